//! One line of roots: whose commits enter a volume, and what is said when the store has another root
//! than this host wrote last.
//!
//! With the feature `planted` each of these tests also runs with the bug that it is there for.

use blkmq::error::ErrorKind;
use volume::hostlog::record::Record;
use volume::hostlog::stop::Stop;
use volume::object::root::{Owner, Root};
use volume::object::root_key;
use volume::units::{Epoch, HostId, Lsn, VolumeId};
use volume::{OpenError, Volume};

use crate::support::hosts::{close, delete, hand_over, open_bound, other_host, root_of, try_write};
use crate::support::{World, with_volume};

const MIB: u64 = 1 << 20;

fn try_sync(world: &mut World, volume: &Volume) -> Result<(), OpenError> {
    let answer = world.host.sync(volume);
    world.wait(|_| answer.try_take()).map(|_| ())
}

fn root(world: &World) -> Root {
    root_of(&world.env, "demo")
}

fn records(world: &World) -> usize {
    let keys = world.env.objects.keys();
    keys.filter(|key| key.contains("/log/")).count()
}

/// Somebody else writes the root.
fn put_root(world: &mut World, root: &Root) {
    world.env.versions += 1;
    let object = (root.encode(), world.env.versions);
    world.env.objects.insert(root_key("demo"), object);
}

#[test]
fn a_volume_deleted_and_created_anew_elsewhere_takes_no_commit_of_its_former_host() {
    let (mut a, old) = with_volume();
    a.write(&old, 0, 1, 4096);
    a.sync(&old);
    a.write(&old, 0, 2, 4096);
    let mut b = other_host(&mut a);
    let taken = b.try_open("demo", true).expect("taken over");
    close(&mut b, &taken);
    delete(&mut b, "demo");
    b.create("demo", 64 * MIB);
    let new = b.open("demo");
    assert!(new.info().epoch > old.info().epoch, "epochs never go back");
    b.write(&new, 8, 3, 4096);
    b.sync(&new);
    hand_over(&mut b, &mut a);
    let refused = try_sync(&mut a, &old).expect_err("it is not its volume any more");
    assert!(
        matches!(&refused, OpenError::Fenced(name) if name == "demo"),
        "the taker's fence stands in its log: {refused}"
    );
    assert_eq!(try_write(&mut a, &old), Err(ErrorKind::Fenced));
    hand_over(&mut a, &mut b);
    b.write(&new, 16, 4, 4096);
    b.sync(&new);
    let mut c = other_host(&mut b);
    let new = c.try_open("demo", true).expect("opened from the store");
    assert_eq!(c.read_fill(&new, 8, 4096), 3);
    assert_eq!(c.read_fill(&new, 16, 4096), 4);
    assert_eq!(c.read_fill(&new, 0, 4096), 0, "nothing of the old volume");
}

#[test]
fn a_foreign_root_of_equal_epoch_stops_the_host_and_nothing_is_written_over_it() {
    for same_volume in [true, false] {
        let (mut world, volume) = with_volume();
        let ours = root(&world);
        let foreign = Root {
            volume: if same_volume {
                ours.volume
            } else {
                VolumeId([0x66; 16])
            },
            owner: Some(Owner {
                host: HostId([0x77; 16]),
                label: "elsewhere".into(),
            }),
            sequence: ours.sequence + 1,
            ..ours.clone()
        };
        put_root(&mut world, &foreign);
        world.write(&volume, 8, 2, 4096);
        let refused = try_sync(&mut world, &volume).expect_err("not ours");
        assert!(matches!(refused, OpenError::HostStopped(_)), "{refused}");
        assert_eq!(root(&world), foreign, "and nothing is written over it");
        assert_eq!(try_write(&mut world, &volume), Err(ErrorKind::Fenced));
    }
}

#[test]
fn a_deletion_whose_first_attempt_takes_effect_late_succeeds() {
    let (mut world, volume) = with_volume();
    close(&mut world, &volume);
    world.env.store_ms = 20;
    let answer = world.host.delete_volume("demo");
    // It has read the root, and its update is on its way.
    world.pass(30);
    let late = Root {
        epoch: Epoch(root(&world).epoch.0 + 1),
        deleted: true,
        sequence: root(&world).sequence + 1,
        ..root(&world)
    };
    put_root(&mut world, &late);
    world.wait(|_| answer.try_take()).expect("it is deleted");
}

#[test]
fn a_record_whose_answer_was_lost_is_known_by_its_digest_and_stored_once() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    world.write(&volume, 0, 2, 4096);
    world.env.outage_after_record = true;
    let answer = world.host.sync(&volume);
    world.pass(60_000);
    assert!(answer.try_take().is_none(), "it cannot be known yet");
    let records = records(&world);
    world.env.outage = false;
    world.wait(|_| answer.try_take()).expect("synced");
    assert_eq!(self::records(&world), records, "it was there already");
    world.write(&volume, 0, 3, 4096);
    world.sync(&volume);
    assert_eq!(world.read_fill(&volume, 0, 4096), 3);
    let mut other = other_host(&mut world);
    let volume = other.try_open("demo", true).expect("opened");
    assert_eq!(other.read_fill(&volume, 0, 4096), 3);
}

#[test]
fn a_record_whose_answer_a_dead_server_did_not_hear_is_its_successors() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.env.outage_after_record = true;
    let _answer = world.host.sync(&volume);
    world.pass(5_000);
    let mut env = world.kill();
    env.outage = false;
    let mut world = World::start(env);
    let volume = world.open("demo");
    assert_eq!(volume.watermarks().stored.lsn, Lsn(1));
    world.write(&volume, 8, 2, 4096);
    world.sync(&volume);
    let mut other = other_host(&mut world);
    let volume = other.try_open("demo", true).expect("opened");
    assert_eq!(other.read_fill(&volume, 0, 4096), 1);
    assert_eq!(other.read_fill(&volume, 8, 4096), 2);
}

#[test]
fn a_root_that_vanished_is_said_as_what_it_is_and_the_volume_goes_on_once_it_is_back() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    let gone = world.env.objects.remove(&root_key("demo"));
    world.write(&volume, 8, 2, 4096);
    let answer = world.host.grow_volume(&volume, 128 * MIB);
    let refused = world.wait(|_| answer.try_take());
    let refused = refused.expect_err("there is nothing to update");
    assert!(matches!(&refused, OpenError::RootMissing(_)), "{refused}");
    assert!(
        refused.to_string().contains("volumes/demo/root"),
        "{refused}"
    );
    assert!(!world.env.objects.contains_key(&root_key("demo")));
    assert_eq!(volume.check_serving(), Ok(()));
    world.write(&volume, 16, 3, 4096);
    world.flush(&volume);
    for (sector, fill) in [(0, 1), (8, 2), (16, 3)] {
        assert_eq!(world.read_fill(&volume, sector, 4096), fill);
    }
    // Whoever puts it back has a volume that goes on.
    let (bytes, _) = gone.expect("it was there");
    put_root(&mut world, &Root::decode(&bytes).expect("a root"));
    world.pass(60_000);
    world.sync(&volume);
    let mut other = other_host(&mut world);
    let volume = other.try_open("demo", true).expect("opened");
    assert_eq!(other.read_fill(&volume, 16, 4096), 3);
}

#[test]
fn a_store_set_back_below_a_running_server_stores_nothing_more_and_is_named() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    let old = world.env.objects.clone();
    world.write(&volume, 0, 2, 4096);
    world.sync(&volume);
    world.env.objects = old;
    world.write(&volume, 0, 3, 4096);
    let refused = try_sync(&mut world, &volume).expect_err("the store went back");
    let is_named = matches!(refused, OpenError::HostStopped(Stop::SetBack(_)));
    assert!(is_named, "{refused}");
    assert_eq!(try_write(&mut world, &volume), Err(ErrorKind::Fenced));
}

#[test]
fn a_root_that_was_set_back_alone_is_refused_and_the_tail_kept() {
    let (mut world, volume) = with_volume();
    let old = root(&world);
    world.write(&volume, 0, 1, 4096);
    world.flush(&volume);
    let mut world = World::start(world.kill());
    let volume = world.open("demo");
    world.write(&volume, 8, 2, 4096);
    world.flush(&volume);
    put_root(&mut world, &old);
    let mut world = World::start(world.kill());
    let refused = world.try_open("demo", false).expect_err("it is older");
    assert!(
        matches!(refused, OpenError::StoreWentBack { .. }),
        "{refused:?}"
    );
    assert!(!world.host.unserved_tails().is_empty());
}

#[test]
fn a_volume_that_is_closed_ends_its_epoch_in_the_hosts_log_first() {
    let (mut world, volume) = with_volume();
    let (id, epoch) = (root(&world).volume, root(&world).epoch);
    close(&mut world, &volume);
    let objects = world.env.objects.iter();
    let log = objects.filter(|(key, _)| key.contains("/log/"));
    let mut records = log.map(|(_, (data, _))| Record::decode(data).expect("a record"));
    assert!(records.any(|record| record.blocks(id, epoch)));
}

#[test]
fn a_read_that_was_damaged_on_its_way_stops_no_host() {
    let (mut world, volume) = with_volume();
    for block in 0..8 {
        world.write(&volume, block * 8, 1, 4096);
        world.env.damaged_gets = 3;
        world.sync(&volume);
    }
    let mut env = world.kill();
    env.damaged_gets = 3;
    let mut world = World::start(env);
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 56, 4096), 1);
}

#[test]
fn the_first_reason_for_which_a_volume_ends_is_what_every_waiter_hears() {
    let (mut world, volume) = with_volume();
    let old = root(&world);
    for block in 0..8 {
        world.write(&volume, block * 8, 1, 4096);
        world.sync(&volume);
    }
    put_root(&mut world, &old);
    // One of the folds finds out, with records on their way, of which some count.
    world.env.store_ms = 100;
    let mut answers = Vec::new();
    for _ in 0..16 {
        if try_write(&mut world, &volume).is_err() {
            break;
        }
        answers.push(world.host.sync(&volume));
        world.pass(150);
    }
    let answers: Vec<_> = answers
        .into_iter()
        .map(|answer| world.wait(|_| answer.try_take()))
        .collect();
    let last = answers.last().expect("some");
    assert!(
        matches!(last, Err(OpenError::HostStopped(Stop::SetBack(_)))),
        "{answers:?}"
    );
    let refused = try_sync(&mut world, &volume).expect_err("and stays so");
    assert!(
        matches!(refused, OpenError::HostStopped(Stop::SetBack(_))),
        "{refused}"
    );
}

#[test]
fn a_host_that_was_killed_often_still_continues_its_own_tail() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    world.write(&volume, 8, 2, 4096);
    world.flush(&volume);
    for _ in 0..20 {
        world = World::start(world.kill());
    }
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 8, 4096), 2);
    world.sync(&volume);
}

#[test]
fn a_store_set_back_while_the_server_was_down_is_refused_and_no_synced_block_reads_zeroes() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    let old = world.env.objects.clone();
    world.write(&volume, 8, 2, 4096);
    world.sync(&volume);
    // The log has heard of it, and gives the synced bytes up.
    world.write(&volume, 16, 3, 4096);
    world.flush(&volume);
    let mut env = world.kill();
    env.objects = old;
    let mut world = World::start(env);
    for take_over in [false, true] {
        let refused = world.try_open("demo", take_over);
        let refused = refused.expect_err("block 8 is not there");
        let is_named = matches!(refused, OpenError::HostStopped(Stop::SetBack(_)));
        assert!(is_named, "{refused:?}");
        assert!(
            refused.to_string().contains("empty cache directory"),
            "{refused}"
        );
    }
    let kept = world.host.unserved_tails();
    assert!(
        kept.iter().any(|tail| tail.extents == 1),
        "for rescue: {kept:?}"
    );
    // A host with a log of its own goes on from what the store has.
    let mut other = other_host(&mut world);
    let volume = other.try_open("demo", true).expect("taken over");
    assert_eq!(other.read_fill(&volume, 0, 4096), 1);
    assert_eq!(other.read_fill(&volume, 16, 4096), 0, "no mixture");
}

#[test]
fn a_store_set_back_to_before_a_take_over_is_refused_as_set_back_and_not_as_another_hosts() {
    let (mut one, volume) = with_volume();
    one.write(&volume, 0, 1, 4096);
    one.sync(&volume);
    let mut two = other_host(&mut one);
    let old = two.env.objects.clone();
    let volume = two.try_open("demo", true).expect("taken over");
    two.write(&volume, 8, 2, 4096);
    two.sync(&volume);
    two.write(&volume, 16, 3, 4096);
    two.flush(&volume);
    let mut env = two.kill();
    env.objects = old;
    let mut two = World::start(env);
    // The root names the host before: taking it from that one is what would lose the synced block.
    let refused = two.try_open("demo", false).expect_err("block 8 is gone");
    let is_named = matches!(refused, OpenError::StoreWentBack { .. });
    assert!(is_named, "{refused:?}");
    let kept = two.host.unserved_tails();
    assert!(
        kept.iter().any(|tail| tail.extents > 0 && !tail.rescue),
        "as it was: {kept:?}"
    );
}

#[test]
fn a_volume_that_is_to_go_on_from_a_hold_is_opened_over_no_other_history() {
    let (mut one, volume) = with_volume();
    one.write(&volume, 0, 1, 4096);
    one.sync(&volume);
    let hold = volume.hold();
    // The next server on this log goes on, and so does whoever opens what was given back.
    let mut one = World::start(one.kill());
    let volume = open_bound(&mut one, hold).expect("its own tail continues it");
    assert_eq!(volume.hold(), hold);
    close(&mut one, &volume);
    let volume = open_bound(&mut one, hold).expect("given back, and opened by nobody since");
    let hold = volume.hold();

    let mut other = other_host(&mut one);
    let theirs = other.try_open("demo", true).expect("taken over");
    other.write(&theirs, 8, 2, 4096);
    close(&mut other, &theirs);
    hand_over(&mut other, &mut one);
    let mut one = World::start(one.kill());
    let refused = open_bound(&mut one, hold).expect_err("another has served it");
    assert!(matches!(refused, OpenError::HoldEnded(_)), "{refused:?}");
    assert!(
        refused.to_string().contains("firn detach --force demo"),
        "{refused}"
    );
    // It is refused and not taken: any host may open it, this one without its disk too.
    hand_over(&mut one, &mut other);
    let theirs = other.open("demo");
    close(&mut other, &theirs);
    hand_over(&mut other, &mut one);
    let volume = one.open("demo");
    assert_eq!(one.read_fill(&volume, 8, 4096), 2);
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        (
            "foreign_root_of_equal_epoch",
            a_volume_deleted_and_created_anew_elsewhere_takes_no_commit_of_its_former_host,
        ),
        (
            "close_ends_nothing",
            a_volume_that_is_closed_ends_its_epoch_in_the_hosts_log_first,
        ),
        (
            "one_damaged_read_is_believed",
            a_read_that_was_damaged_on_its_way_stops_no_host,
        ),
        (
            "first_reason_is_forgotten",
            the_first_reason_for_which_a_volume_ends_is_what_every_waiter_hears,
        ),
        (
            "older_store_is_believed",
            a_root_that_was_set_back_alone_is_refused_and_the_tail_kept,
        ),
        (
            "older_root_is_another_hosts",
            a_store_set_back_to_before_a_take_over_is_refused_as_set_back_and_not_as_another_hosts,
        ),
        (
            "disk_over_another_history",
            a_volume_that_is_to_go_on_from_a_hold_is_opened_over_no_other_history,
        ),
        (
            "missing_root_is_a_fence",
            a_root_that_vanished_is_said_as_what_it_is_and_the_volume_goes_on_once_it_is_back,
        ),
    ]);
}
