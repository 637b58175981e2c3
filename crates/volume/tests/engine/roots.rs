//! One line of roots: whose commits enter a volume, and what is said when the store has another root
//! than this host wrote last.
//!
//! With the feature `planted` each of these tests also runs with the bug that it is there for.

use blkmq::error::ErrorKind;
use blkmq::io::{FileId, Op};
use volume::hostlog::record::Record;
use volume::hostlog::stop::Stop;
use volume::object::root::{Owner, Root};
use volume::object::root_key;
use volume::units::{Epoch, HostId, Lsn, VolumeId};
use volume::{OpenError, OpenMode, TailId, Volume};

use crate::support::hosts::{close, delete, hand_over, other_host, root_of, try_write};
use crate::support::{Environment, World, with_volume};

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

/// A host and a copy of its cache directory. After the copy was made, the host wrote ten blocks and
/// flushed them, and was killed; then the copy wrote five and brought them to the store.
fn host_and_copy() -> (Environment, World, Volume) {
    let (mut a, volume) = with_volume();
    a.write(&volume, 0, 1, 4096);
    a.sync(&volume);
    a.write(&volume, 8, 1, 4096);
    a.flush(&volume);
    let mut copy = a.env.copy();
    for block in 2..12 {
        a.write(&volume, block * 8, 10, 4096);
    }
    a.flush(&volume);
    let mut a = a.kill();
    copy.versions += 5000;
    copy.objects = std::mem::take(&mut a.objects);
    let mut b = World::start(copy);
    let theirs = b.open("demo");
    for block in 0..5 {
        b.write(&theirs, block * 8, 20, 4096);
    }
    b.sync(&theirs);
    (a, b, theirs)
}

/// The host of which there is a copy starts again.
fn restarted(mut a: Environment, b: &World) -> World {
    a.objects = b.env.objects.clone();
    a.versions = b.env.versions + 5000;
    World::start(a)
}

#[test]
fn a_copied_cache_directory_never_mixes_two_histories() {
    let (a, b, _) = host_and_copy();
    let mut a = restarted(a, &b);
    let refused = a.try_open("demo", false).expect_err("its copy holds it");
    assert!(matches!(refused, OpenError::Held { .. }), "{refused}");
    for _ in 0..2 {
        let refused = a.try_open("demo", true);
        let refused = refused.expect_err("its copy writes under its name");
        assert!(
            matches!(&refused, OpenError::HostStopped(Stop::Cloned(_))),
            "{refused}"
        );
        assert!(
            refused
                .to_string()
                .contains("a copy of this cache directory"),
            "{refused}"
        );
    }
    let kept = a.host.unserved_tails();
    assert!(kept.len() == 1 && kept[0].extents > 0, "{kept:?}");
    // A host of its own may take what the copy has stored, and nothing of the other.
    let mut other = other_host(&mut a);
    let volume = other.try_open("demo", true).expect("taken over");
    for block in 0..12 {
        let expected = if block < 5 { 20 } else { 0 };
        assert_eq!(
            other.read_fill(&volume, block * 8, 4096),
            expected,
            "{block}"
        );
    }
}

#[test]
fn a_tail_is_kept_though_the_copy_of_its_directory_closed_the_volume_and_is_ahead() {
    let (a, mut b, theirs) = host_and_copy();
    for round in 0..20 {
        b.write(&theirs, 4000, round, 4096);
    }
    close(&mut b, &theirs);
    let mut a = restarted(a, &b);
    let refused = a.try_open("demo", true).expect_err("a copy has its name");
    assert!(
        matches!(&refused, OpenError::HostStopped(Stop::Cloned(_))),
        "{refused}"
    );
    let kept = a.host.unserved_tails();
    assert!(kept.iter().any(|tail| tail.extents > 0), "{kept:?}");
}

#[test]
fn a_log_that_was_poisoned_before_its_first_session_knows_its_own_volumes() {
    let env = Environment {
        good_syncs: 2,
        failing_syncs: 1,
        ..Environment::default()
    };
    let failed = World::try_start(env, crate::support::options());
    let (_, env) = *failed
        .err()
        .expect("the sync of the first checkpoint failed");
    let mut world = World::start(env);
    assert!(world.host.usage().poisoned);
    world.create("demo", 64 * MIB);
    world.open("demo");
    let mut world = World::start(world.kill());
    world.open("demo");
}

#[test]
fn a_volume_opened_on_a_poisoned_log_is_its_own_though_the_log_lost_its_last_session() {
    let mut env = World::new().kill();
    let before = env.files[&FileId::LOG].clone();
    // The checkpoint of this recovery is written and never durable; the next start still reads it.
    env.failing_syncs = 1;
    let failed = World::try_start(env, crate::support::options());
    let (_, env) = *failed.err().expect("a sync of the recovery failed");
    let mut world = World::start(env);
    world.create("demo", 64 * MIB);
    world.open("demo");
    // Power is lost: of the log only the mark is as it was.
    let mut env = world.kill();
    let log = env.files.get_mut(&FileId::LOG).expect("the log");
    log.truncate(8192);
    log.extend_from_slice(&before[8192..]);
    env.boot += 1;
    env.rings.lose_all();
    let mut world = World::start(env);
    assert!(world.host.usage().poisoned);
    world.open("demo");
}

#[test]
fn a_volume_opened_on_a_poisoned_log_is_its_own_though_power_took_the_mark_that_says_so() {
    let mut world = World::new();
    world.create("demo", 64 * MIB);
    let before = world.env.files[&FileId::LOG].clone();
    // The syncs of new segments' headers, and of the mark in the superblock.
    world.env.failing_syncs = 2;
    world.create("other", 64 * MIB);
    assert!(world.try_open("other", false).is_err());
    assert!(world.host.usage().poisoned);
    world.open("demo");
    // What was not durable is gone, the mark too: the next start finds a good log.
    let mut env = world.kill();
    env.files.insert(FileId::LOG, before);
    env.boot += 1;
    env.rings.lose_all();
    let mut world = World::start(env);
    assert!(!world.report.poisoned);
    let volume = world.open("demo");
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    // A hold that began on a poisoned log took no write: there is nothing in it that could be mixed in.
    let mut world = World::start(world.kill());
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
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

fn open_bound(world: &mut World, hold: TailId) -> Result<Volume, OpenError> {
    let mode = OpenMode {
        continues: Some(hold),
        ..OpenMode::default()
    };
    let answer = world.host.open_volume("demo", mode);
    world.wait(|_| answer.try_take())
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

#[test]
fn a_volume_that_a_poisoned_log_gives_back_again_and_again_goes_on_from_the_same_hold() {
    let (mut one, volume) = with_volume();
    one.write(&volume, 0, 1, 4096);
    one.flush(&volume);
    one.env.failing_syncs = 1;
    one.write(&volume, 0, 2, 4096);
    assert!(one.request(&volume, Op::Flush, &mut []).is_err());
    let hold = volume.hold();
    let mut one = World::start(one.kill());
    for _ in 0..3 {
        assert!(one.report.poisoned);
        let volume = one.open("demo");
        assert_eq!(volume.hold(), hold);
        close(&mut one, &volume);
        // It cannot record that it has: the next start finds the tail again.
        one = World::start(one.kill());
    }
    assert!(one.host.unserved_tails().iter().all(|tail| !tail.rescue));
    // A new log, which has nothing of the volume.
    let mut two = other_host(&mut one);
    let volume = open_bound(&mut two, hold).expect("given back, and opened by nobody since");
    assert_eq!(two.read_fill(&volume, 0, 4096), 1);
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
            "copy_continues_the_tail",
            a_copied_cache_directory_never_mixes_two_histories,
        ),
        (
            "copy_is_not_looked_for",
            a_tail_is_kept_though_the_copy_of_its_directory_closed_the_volume_and_is_ahead,
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
            "lost_mark_makes_a_copy",
            a_volume_opened_on_a_poisoned_log_is_its_own_though_power_took_the_mark_that_says_so,
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
