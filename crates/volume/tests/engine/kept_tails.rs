//! Tails that are kept for rescue: what a log holds of a volume that went on without it, and forks of them.
//!
//! With the feature `planted` each of these tests also runs with the bug that it is there for.

use volume::object::{root::Root, root_key};
use volume::{Durability, OpenError, TailId, Volume};

use crate::support::World;
use crate::support::hosts::{close, delete, hand_over, other_host};

const MIB: u64 = 1 << 20;

/// A host that keeps a tail of one block of a volume that was deleted, and made anew, by another; and the
/// new volume, open.
fn with_kept_tail() -> (World, TailId, Volume) {
    let mut one = World::new();
    one.create("demo", 64 * MIB);
    let volume = one.open("demo");
    one.write(&volume, 0, 1, 4096);
    one.flush(&volume);
    let mut one = World::start(one.kill());
    let mut other = other_host(&mut one);
    let theirs = other.try_open("demo", true).expect("taken over");
    close(&mut other, &theirs);
    delete(&mut other, "demo");
    other.create("demo", 64 * MIB);
    hand_over(&mut other, &mut one);
    let waiting = one.host.unserved_tails();
    assert!(waiting.len() == 1 && !waiting[0].rescue, "{waiting:?}");
    let volume = one.open("demo");
    assert_eq!(one.read_fill(&volume, 0, 4096), 0);
    let kept = one.host.unserved_tails();
    assert!(kept.len() == 1 && kept[0].rescue, "{kept:?}");
    let id = kept[0].id;
    (one, id, volume)
}

#[test]
fn what_a_log_holds_of_a_deleted_volume_is_kept_for_rescue_once_its_name_is_anothers() {
    with_kept_tail();
}

#[test]
fn a_fork_that_uploads_holds_its_tail_and_not_the_volume_of_that_name() {
    let (mut one, kept, volume) = with_kept_tail();
    one.env.hanging_puts = 1;
    let fork = one.host.fork_tail(kept, "saved", true);
    one.run_until_idle();
    // The volume of that name comes and goes.
    close(&mut one, &volume);
    let volume = one.open("demo");
    close(&mut one, &volume);
    assert!(fork.try_take().is_none(), "its upload hangs");
    let dropped = one.host.drop_tail(kept, false);
    let refused = one.wait(|_| dropped.try_take()).expect_err("it is read");
    assert!(refused.to_string().contains("try again"), "{refused}");
    one.answer_hanging_puts();
    one.wait(|_| fork.try_take()).expect("forked");
    let saved = one.open("saved");
    assert_eq!(one.read_fill(&saved, 0, 4096), 1);
    let dropped = one.host.drop_tail(kept, false);
    one.wait(|_| dropped.try_take()).expect("nobody reads it");
}

#[test]
fn a_fork_goes_on_after_failures_of_the_store_and_not_for_ever() {
    let (mut one, kept, _volume) = with_kept_tail();
    one.env.failing_puts = 3;
    let fork = one.host.fork_tail(kept, "saved", true);
    one.wait(|_| fork.try_take()).expect("forked");
    let saved = one.open("saved");
    assert_eq!(one.read_fill(&saved, 0, 4096), 1);
    // A store that does not come back: whoever asked is told, and nothing was made.
    one.env.failing_puts = usize::MAX;
    let fork = one.host.fork_tail(kept, "again", true);
    for _ in 0..20 {
        one.pass(60_000);
    }
    let refused = fork
        .try_take()
        .expect("it has ended")
        .expect_err("no store");
    assert!(
        refused.to_string().contains("it is told to fail"),
        "{refused}"
    );
    one.env.failing_puts = 0;
    assert!(one.try_open("again", false).is_err());
    let dropped = one.host.drop_tail(kept, false);
    one.wait(|_| dropped.try_take()).expect("nobody reads it");
}

/// The host that took the volume over sets it back to a snapshot from before what this one has stored, and
/// writes nothing: its root still seems to go on from there.
fn a_restore_is_no_base() {
    let mut one = World::new();
    one.create("demo", 64 * MIB);
    let volume = one.open("demo");
    one.write(&volume, 0, 1, 4096);
    let taken = one
        .host
        .create_snapshot("demo@one", Vec::new(), Durability::Store);
    one.wait(|_| taken.try_take()).expect("taken");
    one.write(&volume, 8, 2, 4096);
    one.sync(&volume);
    one.write(&volume, 16, 3, 4096);
    one.flush(&volume);
    let mut one = World::start(one.kill());
    let mut other = other_host(&mut one);
    let theirs = other.try_open("demo", true).expect("taken over");
    close(&mut other, &theirs);
    let restored = other.host.restore_volume("demo@one", "demo@kept");
    other.wait(|_| restored.try_take()).expect("restored");
    hand_over(&mut other, &mut one);
    let volume = one.open("demo");
    assert_eq!(one.read_fill(&volume, 8, 4096), 0);
    let id = one.host.unserved_tails()[0].id;
    let fork = one.host.fork_tail(id, "saved", false);
    let refused = one.wait(|_| fork.try_take()).expect_err("two histories");
    assert!(matches!(refused, OpenError::BaseGone { .. }), "{refused}");
    assert!(
        refused.to_string().contains("set back to a snapshot"),
        "{refused}"
    );
    let fork = one.host.fork_tail(id, "saved", true);
    one.wait(|_| fork.try_take()).expect("forked");
    let saved = one.open("saved");
    assert_eq!(one.read_fill(&saved, 16, 4096), 3);
}

#[test]
fn a_volume_that_was_set_back_to_a_snapshot_is_no_base_of_a_tail_from_before() {
    a_restore_is_no_base();
}

/// A tail of a volume that another host took over and deleted, on the host that still had it open.
fn a_deleted_volume_is_no_base() {
    let mut one = World::new();
    one.create("demo", 64 * MIB);
    let volume = one.open("demo");
    one.write(&volume, 0, 1, 4096);
    one.sync(&volume);
    one.write(&volume, 8, 2, 4096);
    one.flush(&volume);
    let mut other = other_host(&mut one);
    let theirs = other.try_open("demo", true).expect("taken over");
    close(&mut other, &theirs);
    delete(&mut other, "demo");
    hand_over(&mut other, &mut one);
    let synced = one.host.sync(&volume);
    one.wait(|_| synced.try_take()).expect_err("it is gone");
    let kept = one.host.unserved_tails();
    assert!(kept.len() == 1 && kept[0].rescue, "{kept:?}");
    let brought = one.env.put_keys.len();
    let fork = one.host.fork_tail(kept[0].id, "saved", false);
    let refused = one.wait(|_| fork.try_take()).expect_err("no base");
    assert!(refused.to_string().contains("was deleted"), "{refused}");
    assert_eq!(one.env.put_keys.len(), brought, "before any upload");
    let fork = one.host.fork_tail(kept[0].id, "saved", true);
    one.wait(|_| fork.try_take()).expect("forked");
    let saved = one.open("saved");
    assert_eq!(one.read_fill(&saved, 8, 4096), 2);
}

#[test]
fn a_fork_of_a_deleted_volumes_tail_is_refused_before_anything_is_uploaded() {
    a_deleted_volume_is_no_base();
}

/// A fold of the base while the tail is uploaded: the pin is no good then, and no volume is made.
fn a_base_that_goes_meanwhile_is_no_base() {
    let mut one = World::new();
    one.create("demo", 64 * MIB);
    let volume = one.open("demo");
    one.write(&volume, 0, 1, 4096);
    one.sync(&volume);
    one.write(&volume, 8, 2, 4096);
    one.flush(&volume);
    let mut other = other_host(&mut one);
    let theirs = other.try_open("demo", true).expect("taken over");
    hand_over(&mut other, &mut one);
    let synced = one.host.sync(&volume);
    one.wait(|_| synced.try_take())
        .expect_err("another host has it");
    let id = one.host.unserved_tails()[0].id;
    one.env.hanging_puts = 1;
    let fork = one.host.fork_tail(id, "saved", false);
    one.run_until_idle();
    assert!(fork.try_take().is_none(), "its upload hangs");
    hand_over(&mut one, &mut other);
    for round in 0..8 {
        other.write(&theirs, 64, 10 + round, 4096);
        let synced = other.host.sync(&theirs);
        other.wait(|_| synced.try_take()).expect("synced");
    }
    other.pass(1000);
    hand_over(&mut other, &mut one);
    one.answer_hanging_puts();
    let refused = one.wait(|_| fork.try_take()).expect_err("its base is gone");
    assert!(matches!(refused, OpenError::BaseGone { .. }), "{refused}");
    let made = |key: &String| key.starts_with("pins/") || key.starts_with("volumes/saved");
    assert!(!one.env.objects.keys().any(made));
    let fork = one.host.fork_tail(id, "saved", true);
    one.wait(|_| fork.try_take()).expect("forked");
    let pins = one.env.objects.keys();
    assert_eq!(pins.filter(|key| key.starts_with("pins/")).count(), 1);
}

#[test]
fn a_fork_whose_base_goes_while_it_uploads_is_refused_and_leaves_no_pin() {
    a_base_that_goes_meanwhile_is_no_base();
}

#[test]
fn what_a_rescue_fork_brings_is_of_no_session_that_a_copy_could_end() {
    let (mut one, kept, _volume) = with_kept_tail();
    let fork = one.host.fork_tail(kept, "saved", true);
    one.wait(|_| fork.try_take()).expect("forked");
    let root = Root::decode(&one.env.objects[&root_key("saved")].0).expect("a root");
    let numbers: Vec<u64> = root
        .sessions
        .iter()
        .map(|name| name.session.number)
        .collect();
    assert_eq!(numbers, [0]);
}

/// A host that learned that another one has its volume, and died after that; the store is the other's, open there.
/// What the first has beyond the store was never flushed.
fn with_learned_fence(unstored: bool, ends: impl FnOnce(&mut World, Volume)) -> (World, World) {
    let mut one = World::new();
    one.create("demo", 64 * MIB);
    let volume = one.open("demo");
    one.write(&volume, 0, 1, 4096);
    one.sync(&volume);
    let mut other = other_host(&mut one);
    let theirs = other.try_open("demo", true).expect("taken over");
    if unstored {
        hand_over(&mut other, &mut one);
        one.write(&volume, 8, 2, 4096);
        hand_over(&mut one, &mut other);
    }
    ends(&mut other, theirs);
    hand_over(&mut other, &mut one);
    let refused = match unstored {
        true => {
            let synced = one.host.sync(&volume);
            one.wait(|_| synced.try_take()).map(drop)
        }
        false => one.grow(&volume, 128 * MIB),
    };
    refused.expect_err("it is another's");
    one.pass(10);
    let one = World::start(one.kill());
    (one, other)
}

fn a_learned_fence_lasts() {
    let close_it = |other: &mut World, volume: Volume| close(other, &volume);
    let (mut one, _other) = with_learned_fence(true, close_it);
    let kept = one.host.unserved_tails();
    assert!(kept.len() == 1 && kept[0].rescue, "it waits: {kept:?}");
    assert_eq!((kept[0].newest.0, kept[0].extents), (2, 1), "{kept:?}");
    assert!(one.report.rings_lost.is_empty());
    // It is a history of its own also where the volume is free, and its writes can be had.
    let volume = one.open("demo");
    assert_eq!(one.read_fill(&volume, 8, 4096), 0, "never replayed");
    let fork = one.host.fork_tail(kept[0].id, "saved", false);
    one.wait(|_| fork.try_take()).expect("forked");
    let saved = one.open("saved");
    assert_eq!(one.read_fill(&saved, 0, 4096), 1);
    assert_eq!(one.read_fill(&saved, 8, 4096), 2);
}

#[test]
fn a_tail_whose_host_learned_of_a_take_over_is_for_rescue_also_after_its_death() {
    a_learned_fence_lasts();
}

#[test]
fn a_tail_whose_host_learned_of_a_deletion_is_for_rescue_also_after_its_death() {
    let delete_it = |other: &mut World, volume: Volume| {
        close(other, &volume);
        delete(other, "demo");
    };
    let (one, _other) = with_learned_fence(true, delete_it);
    let kept = one.host.unserved_tails();
    assert!(kept.len() == 1 && kept[0].rescue, "it waits: {kept:?}");
}

#[test]
fn a_volume_that_was_taken_over_with_all_of_it_stored_leaves_nothing_to_be_rescued() {
    let (mut one, _other) = with_learned_fence(false, |_, _| {});
    assert_eq!(one.host.unserved_tails(), []);
    let refused = one.try_open("demo", false).expect_err("the other's");
    assert!(matches!(refused, OpenError::Held { .. }), "{refused}");
}

/// It turned out at the close: everything is stored, and the volume cannot be given back.
fn a_fence_learned_at_a_close_lasts() {
    let mut one = World::new();
    one.create("demo", 64 * MIB);
    let volume = one.open("demo");
    one.write(&volume, 0, 1, 4096);
    one.sync(&volume);
    let mut other = other_host(&mut one);
    let theirs = other.try_open("demo", true).expect("taken over");
    close(&mut other, &theirs);
    delete(&mut other, "demo");
    hand_over(&mut other, &mut one);
    let closed = one.host.close_volume(&volume);
    let refused = one
        .wait(|_| closed.try_take())
        .expect_err("it is another's");
    let is_told = matches!(refused, OpenError::Fenced(_) | OpenError::Deleted(_));
    assert!(is_told, "{refused}");
    one.pass(10);
    let one = World::start(one.kill());
    assert_eq!(one.report.tails, [], "the next start would wait for it");
}

#[test]
fn a_volume_that_turned_out_to_be_anothers_at_its_close_is_not_waited_for() {
    a_fence_learned_at_a_close_lasts();
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        (
            "deleted_volume_waits",
            what_a_log_holds_of_a_deleted_volume_is_kept_for_rescue_once_its_name_is_anothers,
        ),
        ("next_start_forgets_the_fence", a_learned_fence_lasts),
        (
            "next_start_forgets_the_fence",
            a_fence_learned_at_a_close_lasts,
        ),
        (
            "fork_gives_up_at_once",
            a_fork_goes_on_after_failures_of_the_store_and_not_for_ever,
        ),
        (
            "rescue_packs_are_of_a_session",
            what_a_rescue_fork_brings_is_of_no_session_that_a_copy_could_end,
        ),
        ("restore_leaves_no_trace", a_restore_is_no_base),
        ("tombstone_is_a_base", a_deleted_volume_is_no_base),
        (
            "fork_never_looks_at_its_base_again",
            a_base_that_goes_meanwhile_is_no_base,
        ),
    ]);
}
