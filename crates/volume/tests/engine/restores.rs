//! Restores: a volume set back to one of its snapshots, what it held kept as another (S6).
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use blkmq::error::ErrorKind;
use volume::hostlog::marks::Pin;
use volume::object::root_key;
use volume::{OpenError, OpenMode, Volume};

use crate::support::hosts::{close, elsewhere, hand_over, other_host, root_of, try_write};
use crate::support::points::{delete_snapshot, done, fold, fork, snapshot, snapshot_names};
use crate::support::{Environment, Fault, World, with_volume};

const MIB: u64 = 1 << 20;

#[test]
fn a_volume_that_is_restored_is_what_its_snapshot_was_and_what_it_held_is_kept() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    snapshot(&mut world, "demo@one").expect("taken");
    world.write(&volume, 0, 2, 8192);
    fold(&mut world, &volume, 64);
    let answer = world.host.restore_volume("demo@one", "demo@kept");
    let refused = world.wait(|_| answer.try_take()).expect_err("it is open");
    assert!(matches!(refused, OpenError::InUse(_)), "{refused}");
    let (id, newest) = (volume.info().id, volume.newest());
    for round in 0..2 {
        let volume = match round {
            0 => volume.clone(),
            _ => world.open("demo"),
        };
        world.write(&volume, 8, 3, 4096);
        let answer = world.host.close_volume(&volume);
        done(&mut world, &answer);
        let answer = world
            .host
            .restore_volume("demo@one", &format!("demo@kept{round}"));
        done(&mut world, &answer);
        let mut other = elsewhere(&world);
        let there = other.open("demo");
        assert_eq!(there.info().id, id, "it is the same volume");
        assert!(there.newest() > newest, "LSNs go on");
        assert_eq!(other.read_fill(&there, 0, 4096), 1);
        assert_eq!(other.read_fill(&there, 8, 4096), 0);
        assert_eq!(other.read_fill(&there, 64, 4096), 0);
        let kept = fork(&mut other, &format!("demo@kept{round}"), "kept").expect("forked");
        assert_eq!(other.read_fill(&kept, 0, 4096), [2, 1][round]);
        assert_eq!(other.read_fill(&kept, 8, 4096), 3);
    }
    let volume = world.open("demo");
    world.write(&volume, 8, 9, 4096);
    fold(&mut world, &volume, 128);
    let mut other = elsewhere(&world);
    let there = other.try_open("demo", true).expect("taken over");
    assert_eq!(
        [0, 8, 64].map(|sector| other.read_fill(&there, sector, 4096)),
        [1, 9, 0]
    );
}

#[test]
fn a_snapshot_of_a_volume_that_is_gone_is_not_laid_over_its_namesake() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    snapshot(&mut world, "demo@one").expect("taken");
    drop(volume);
    let stays: Vec<_> = world.env.objects.clone().into_iter().collect();
    let mut other = World::start(Environment {
        objects: stays
            .into_iter()
            .filter(|(key, _)| key != &root_key("demo"))
            .collect(),
        versions: world.env.versions + 5000,
        ..Environment::default()
    });
    other.create("demo", 64 * MIB);
    let answer = other.host.restore_volume("demo@one", "demo@kept");
    let refused = other
        .wait(|_| answer.try_take())
        .expect_err("another volume");
    assert!(
        refused.to_string().contains("firn fork demo@one NEW"),
        "{refused}"
    );
}

fn restore(world: &mut World, name: &str, kept: &str) -> Result<(), OpenError> {
    let answer = world.host.restore_volume(name, kept);
    world.wait(|_| answer.try_take()).map(drop)
}

fn fills(world: &mut World, volume: &Volume) -> [u8; 3] {
    [0, 8, 16].map(|sector| world.read_fill(volume, sector, 4096))
}

/// A claim was cut short, so the volume is still its old owner's, which brings more to the store while this
/// host sets the volume back.
fn what_the_old_owner_brings_meanwhile_is_kept_or_refused() {
    let (mut owner, volume) = with_volume();
    owner.write(&volume, 0, 1, 4096);
    snapshot(&mut owner, "demo@one").expect("taken");
    let mut taker = World::start(Environment {
        versions: owner.env.versions + 5000,
        store_ms: 100,
        ..Environment::default()
    });
    hand_over(&mut owner, &mut taker);
    let mode = OpenMode {
        take_over: true,
        ..OpenMode::default()
    };
    let _opening = taker.host.open_volume("demo", mode);
    let has_updated = |taker: &mut World| {
        let requests = &taker.env.store_requests;
        requests.contains_key("update").then_some(())
    };
    taker.wait(has_updated);
    let mut taker = World::start(taker.kill());
    assert!(root_of(&taker.env, "demo").predecessor.is_some());
    let answer = taker.host.restore_volume("demo@one", "demo@kept");
    let has_copy = |taker: &mut World| {
        let objects = &taker.env.objects;
        objects.contains_key(&root_key("demo@kept")).then_some(())
    };
    taker.wait(has_copy);
    hand_over(&mut taker, &mut owner);
    owner.write(&volume, 8, 2, 4096);
    let synced = owner.host.sync(&volume);
    let synced = owner.wait(|_| synced.try_take());
    hand_over(&mut owner, &mut taker);
    let restored = taker.wait(|_| answer.try_take());
    let kept = fork(&mut taker, "demo@kept", "kept").expect("forked");
    let found = taker.read_fill(&kept, 8, 4096);
    assert!(
        restored.is_err() || synced.is_err() || found == 2,
        "it was stored, and is in neither"
    );
    restored.expect("restored");
    assert!(matches!(synced, Err(OpenError::Fenced(_))), "{synced:?}");
    let volume = taker.open("demo");
    assert_eq!(fills(&mut taker, &volume), [1, 0, 0]);
}

#[test]
fn what_an_old_owner_brings_while_a_volume_is_restored_is_kept_or_refused() {
    what_the_old_owner_brings_meanwhile_is_kept_or_refused();
}

/// Each request of a restore in turn, of a volume that its host closed, or holds after a restart, and
/// whether it was set back in the end.
fn with_fault(at: usize, fault: Fault, closed: bool) -> bool {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    snapshot(&mut world, "demo@one").expect("taken");
    world.write(&volume, 0, 2, 4096);
    world.write(&volume, 8, 2, 4096);
    world.sync(&volume);
    match closed {
        true => close(&mut world, &volume),
        false => world = World::start(world.kill()),
    }
    drop(volume);
    let epoch = root_of(&world.env, "demo").epoch;
    world.env.fault_after = Some((at, fault));
    let answer = world.host.restore_volume("demo@one", "demo@kept");
    let mut restored = None;
    if fault == Fault::LostAnswer {
        restored = Some(world.wait(|_| answer.try_take()));
    } else {
        world.pass(200);
    }
    world.env.fault_after = None;
    world.env.outage = false;
    let mut world = World::start(world.kill());
    let volume = world.open("demo");
    let found = fills(&mut world, &volume);
    let is_back = found == [1, 0, 0];
    let what = format!("request {at}, {fault:?}: {restored:?}, {found:?}");
    assert!(is_back || found == [2, 2, 0], "{what}");
    assert!(is_back || !matches!(restored, Some(Ok(_))), "{what}");
    let names = snapshot_names(&mut world, "demo");
    assert!(
        !is_back || names.contains(&"demo@kept".to_owned()),
        "{what}"
    );
    if names.contains(&"demo@kept".to_owned()) {
        let kept = fork(&mut world, "demo@kept", "kept").expect("forked");
        assert_eq!(fills(&mut world, &kept), [2, 2, 0], "{what}");
    }
    assert!(volume.info().epoch > epoch, "{what}");
    world.write(&volume, 16, 3, 4096);
    close(&mut world, &volume);
    restore(&mut world, "demo@one", "demo@again").expect("it can be tried again");
    let volume = world.open("demo");
    assert_eq!(fills(&mut world, &volume), [1, 0, 0], "{what}");
    is_back
}

#[test]
fn a_restore_that_is_cut_short_at_any_request_is_whole_or_did_not_happen() {
    for (fault, closed) in [
        (Fault::Outage, true),
        (Fault::Outage, false),
        (Fault::OutageBehind, true),
        (Fault::OutageBehind, false),
    ] {
        let back: Vec<bool> = (0..40).map(|at| with_fault(at, fault, closed)).collect();
        assert!(!back[0] && back[39], "{fault:?}, {closed}: {back:?}");
        assert!(back.is_sorted(), "{fault:?}, {closed}: {back:?}");
    }
}

#[test]
fn a_restore_of_which_any_answer_is_lost_happened_or_is_refused() {
    for closed in [true, false] {
        let fault = Fault::LostAnswer;
        let back: Vec<bool> = (0..40).map(|at| with_fault(at, fault, closed)).collect();
        assert!(back[39], "{closed}: {back:?}");
    }
}

#[test]
fn a_restored_volume_keeps_its_size_and_reads_as_zeroes_behind_its_snapshots_end() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    snapshot(&mut world, "demo@one").expect("taken");
    world.grow(&volume, 128 * MIB).expect("grown");
    let behind = 64 * MIB / 512;
    world.write(&volume, behind, 2, 4096);
    close(&mut world, &volume);
    restore(&mut world, "demo@one", "demo@kept").expect("restored");
    let volume = world.open("demo");
    assert_eq!(volume.info().bytes, 128 * MIB);
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
    assert_eq!(world.read_fill(&volume, behind, 4096), 0);
}

#[test]
fn a_restore_leaves_no_tail_of_what_it_replaced() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    snapshot(&mut world, "demo@one").expect("taken");
    drop(volume);
    let mut world = World::start(world.kill());
    assert_eq!(world.host.unserved_tails().len(), 1);
    restore(&mut world, "demo@one", "demo@kept").expect("restored");
    assert!(world.host.unserved_tails().is_empty());
}

/// Whatever believes to have the volume from before is fenced by its root, and no number is given twice.
fn a_restore_is_an_epoch_and_an_lsn_of_its_own_behind_a_pin() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    let taken = snapshot(&mut world, "demo@one").expect("taken");
    world.write(&volume, 0, 2, 4096);
    close(&mut world, &volume);
    let before = root_of(&world.env, "demo");
    restore(&mut world, "demo@one", "demo@kept").expect("restored");
    let root = root_of(&world.env, "demo");
    assert!(root.epoch > before.epoch && root.since == root.epoch);
    assert!(root.lsn > before.lsn && root.first > root.lsn);
    assert_eq!((&root.owner, &root.predecessor), (&None, &None));
    let of_snapshot = format!("pins/{}/{}", taken.id, root.volume);
    let mut pins = world.env.objects.iter();
    let pin = pins.find(|(key, _)| key.starts_with(&of_snapshot));
    let (_, (bytes, version)) = pin.expect("a pin");
    let pin = Pin::decode(bytes).expect("a pin");
    assert_eq!(
        (&pin.root.deltas, &pin.root.nodes),
        (&root.deltas, &root.nodes)
    );
    assert!(*version < world.env.objects[&root_key("demo")].1);
}

#[test]
fn a_restore_has_an_epoch_and_an_lsn_of_its_own_and_a_pin_before() {
    a_restore_is_an_epoch_and_an_lsn_of_its_own_behind_a_pin();
}

/// Another host deletes the snapshot after this one read it: a collector may take what it named.
fn a_snapshot_that_goes_meanwhile_is_not_laid_over_its_volume() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    let taken = snapshot(&mut world, "demo@one").expect("taken");
    world.write(&volume, 0, 2, 4096);
    close(&mut world, &volume);
    drop(volume);
    world.env.store_ms = 100;
    let answer = world.host.restore_volume("demo@one", "demo@kept");
    let has_copy = |world: &mut World| {
        let objects = &world.env.objects;
        objects.contains_key(&root_key("demo@kept")).then_some(())
    };
    world.wait(has_copy);
    let mut other = other_host(&mut world);
    delete_snapshot(&mut other, "demo@one").expect("deleted");
    hand_over(&mut other, &mut world);
    let refused = world.wait(|_| answer.try_take()).expect_err("it is gone");
    assert_eq!(refused, OpenError::NoSuchSnapshot("demo@one".into()));
    let of_snapshot = format!("pins/{}/", taken.id);
    let is_pin = |key: &String| key.starts_with(&of_snapshot);
    assert!(!world.env.objects.keys().any(is_pin));
    let volume = world.open("demo");
    assert_eq!(fills(&mut world, &volume), [2, 0, 0]);
}

#[test]
fn a_volume_is_not_set_back_to_a_snapshot_that_is_deleted_meanwhile() {
    a_snapshot_that_goes_meanwhile_is_not_laid_over_its_volume();
}

/// The host whose volume was taken over and set back does not know it, and had everything stored.
#[test]
fn an_old_owner_of_a_volume_that_was_set_back_stores_and_acknowledges_nothing_more() {
    let (mut zombie, volume) = with_volume();
    zombie.write(&volume, 0, 1, 4096);
    snapshot(&mut zombie, "demo@one").expect("taken");
    zombie.write(&volume, 8, 2, 4096);
    zombie.sync(&volume);
    let mut taker = other_host(&mut zombie);
    let theirs = taker.try_open("demo", true).expect("taken over");
    close(&mut taker, &theirs);
    restore(&mut taker, "demo@one", "demo@kept").expect("restored");
    hand_over(&mut taker, &mut zombie);
    zombie.write(&volume, 16, 3, 4096);
    let synced = zombie.host.sync(&volume);
    let synced = zombie.wait(|_| synced.try_take());
    assert!(matches!(synced, Err(OpenError::Fenced(_))), "{synced:?}");
    assert_eq!(try_write(&mut zombie, &volume), Err(ErrorKind::Fenced));
    hand_over(&mut zombie, &mut taker);
    let theirs = taker.open("demo");
    assert_eq!(fills(&mut taker, &theirs), [1, 0, 0]);
    let kept = fork(&mut taker, "demo@kept", "kept").expect("forked");
    assert_eq!(fills(&mut taker, &kept), [1, 2, 0]);
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_of_restores_is_seen() {
    canary::each_is_seen(&[
        (
            "restore_keeps_what_was_there_too_early",
            what_the_old_owner_brings_meanwhile_is_kept_or_refused,
        ),
        (
            "restore_keeps_the_epoch",
            a_restore_is_an_epoch_and_an_lsn_of_its_own_behind_a_pin,
        ),
        (
            "restore_never_looks_again",
            a_snapshot_that_goes_meanwhile_is_not_laid_over_its_volume,
        ),
    ]);
}
