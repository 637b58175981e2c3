//! A start that dies before it serves a volume leaves the next one what it had itself: the next one serves it before
//! the store answers, unless a client heard something of the volume meanwhile.
//!
//! With the feature `planted` each of these tests also runs with the bug that it is there for.

use blkmq::error::ErrorKind;
use blkmq::io::Op;
use volume::{OpenError, OpenMode, Volume};

use crate::support::hosts::{close, hand_over, other_host, root_of, try_write};
use crate::support::unchecked::{killed, other_host_on, restarted, serve};
use crate::support::{Environment, World};

const MIB: u64 = 1 << 20;

/// Requests of a start and an open, and some more.
const STEPS: usize = 60;

/// The same, with the store there.
fn restarted_beside_the_store(mut env: Environment) -> World {
    env.outage = false;
    World::start(env)
}

/// The host carries on for so many requests at most.
fn steps(world: &mut World, steps: usize) {
    for _ in 0..steps {
        let more = world.host.run_jobs();
        if !world.one_step() && !more {
            return;
        }
    }
}

fn check_unflushed(world: &mut World, volume: &Volume) {
    assert_eq!(world.read_fill(volume, 8, 4096), 2);
}

fn check_all_is_stored(mut world: World, volume: &Volume) {
    world.env.outage = false;
    world.sync(volume);
    close(&mut world, volume);
    let mut other = other_host(&mut world);
    let volume = other.open("demo");
    for (sector, fill) in [(0, 1), (8, 2), (16, 3)] {
        assert_eq!(other.read_fill(&volume, sector, 4096), fill, "{sector}");
    }
}

fn starts_that_serve_nothing_break_nothing() {
    let mut env = killed();
    for _ in 0..3 {
        env = restarted(env).kill();
    }
    let mut world = restarted(env);
    let volume = serve(&mut world).expect("nothing of it is missing");
    check_unflushed(&mut world, &volume);
    world.write(&volume, 16, 3, 4096);
    check_all_is_stored(world, &volume);
}

#[test]
fn a_volume_that_the_starts_before_did_not_get_to_is_served_before_the_store_answers() {
    starts_that_serve_nothing_break_nothing();
}

#[test]
fn a_start_that_dies_while_it_opens_a_volume_leaves_it_to_be_served_before_the_store_answers() {
    let mut env = killed();
    let block = |life: usize| 8 * (16 + life as u64);
    for life in 0..STEPS {
        let mut world = restarted_beside_the_store(env);
        let _opened = world.host.open_volume("demo", OpenMode::default());
        steps(&mut world, life);
        let mut world = restarted(world.kill());
        let volume = serve(&mut world).unwrap_or_else(|error| panic!("{life}: {error}"));
        // Killed again, without a FLUSH.
        world.write(&volume, block(life), 4, 4096);
        env = world.kill();
    }
    let mut world = restarted_beside_the_store(env);
    let volume = world.open("demo");
    for life in 0..STEPS {
        assert_eq!(world.read_fill(&volume, block(life), 4096), 4, "{life}");
    }
    assert_eq!(world.read_fill(&volume, 8, 4096), 2);
}

/// A later checkpoint of a start that did not touch the volume says so, too.
#[test]
fn a_volume_that_a_start_did_not_get_to_stays_so_over_the_checkpoints_of_others() {
    let mut world = World::start(killed());
    world.create("other", 64 * MIB);
    let other = world.open("other");
    for round in 0..2000 {
        world.write(&other, 8 * (round % 64), 5, 4096);
        world.flush(&other);
    }
    let mut world = restarted(world.kill());
    let volume = serve(&mut world).expect("nobody touched it");
    check_unflushed(&mut world, &volume);
}

/// Whoever dies at any step of finding out that another host has the volume, the next one stores nothing of it, and
/// once a client has heard of it serves nothing of it either.
fn what_another_host_has_ends() {
    for dies_after in 0..STEPS {
        let mut env = killed();
        let mut other = other_host_on(&mut env);
        let theirs = other.try_open("demo", true).expect("taken over");
        other.write(&theirs, 8, 9, 4096);
        other.sync(&theirs);
        let mut world = World::start(env);
        hand_over(&mut other, &mut world);
        let opened = world.host.open_volume("demo", OpenMode::default());
        steps(&mut world, dies_after);
        let heard = opened.try_take();
        assert!(!matches!(heard, Some(Ok(_))), "it is another's");
        let mut world = restarted(world.kill());
        match serve(&mut world) {
            Ok(_) if heard.is_some() => panic!("a client has heard of it: {dies_after}"),
            Ok(volume) => {
                check_unflushed(&mut world, &volume);
                world.env.outage = false;
                world.pass(60_000);
                assert_eq!(try_write(&mut world, &volume), Err(ErrorKind::Fenced));
                assert!(world.host.unserved_tails()[0].rescue);
            }
            Err(error) => assert!(heard.is_some(), "{dies_after}: {error}"),
        }
        hand_over(&mut world, &mut other);
        assert_eq!(other.read_fill(&theirs, 8, 4096), 9);
    }
}

#[test]
fn a_volume_that_another_host_has_ends_whichever_start_finds_that_out() {
    what_another_host_has_ends();
}

/// Killed as soon as the client has its answer.
fn a_deletion_that_was_heard_of_lasts() {
    let mut world = World::start(killed());
    // All of it is stored, so that the deletion needs no open.
    let volume = world.open("demo");
    world.sync(&volume);
    let mut world = World::start(world.kill());
    let deleted = world.host.delete_volume("demo");
    let heard = (0..1000).find_map(|_| {
        world.host.run_jobs();
        deleted.try_take().or_else(|| {
            world.one_step();
            None
        })
    });
    heard.expect("it ends").expect("deleted");
    serve(&mut restarted(world.kill())).expect_err("a client knows that it is deleted");
}

#[test]
fn a_volume_that_a_start_deleted_is_not_served_by_the_next_one() {
    a_deletion_that_was_heard_of_lasts();
}

/// The name was given to another volume: the one here had lost its root.
fn a_name_that_was_given_away_lasts() {
    let mut world = World::start(killed());
    world
        .env
        .objects
        .remove("volumes/demo/root")
        .expect("a root");
    world.create("demo", 64 * MIB);
    serve(&mut restarted(world.kill())).expect_err("a client has made another one");
}

#[test]
fn a_volume_whose_name_a_start_gave_to_another_is_not_served_by_the_next_one() {
    a_name_that_was_given_away_lasts();
}

/// A host whose log takes nothing more after an internal error opens the volume, and gives it back.
fn a_close_without_a_log_lasts() {
    let mut world = World::start(killed());
    let demo = world.open("demo");
    world.sync(&demo);
    let mut world = World::start(world.kill());
    world.create("busy", 64 * MIB);
    let busy = world.open("busy");
    world.env.broken_checkpoints = true;
    let is_halted = (0..200).any(|round| {
        world.write(&busy, 8 * (round % 16), 2, 4096);
        world.request(&busy, Op::Flush, &mut []).is_err()
    });
    assert!(is_halted, "no checkpoint was due");
    let demo = world.open("demo");
    close(&mut world, &demo);
    let mut env = world.kill();
    env.broken_checkpoints = false;
    let mut world = restarted(env);
    assert!(!world.report.poisoned, "the disk is good");
    serve(&mut world).expect_err("it was given back");
}

#[test]
fn a_volume_that_a_halted_log_opened_and_gave_back_is_not_served_before_the_store_answers() {
    a_close_without_a_log_lasts();
}

/// The host stops, since its store was set back, before it got to the volume.
fn a_stop_is_of_all_volumes() {
    let mut world = World::start(killed());
    world.create("other", 64 * MIB);
    let other = world.open("other");
    world.write(&other, 0, 1, 4096);
    world.sync(&other);
    let old = world.env.objects.clone();
    world.write(&other, 0, 2, 4096);
    world.sync(&other);
    world.env.objects = old;
    world.write(&other, 0, 3, 4096);
    let synced = world.host.sync(&other);
    let stopped = world.wait(|_| synced.try_take()).expect_err("set back");
    assert!(matches!(stopped, OpenError::HostStopped(_)), "{stopped}");
    serve(&mut restarted(world.kill())).expect_err("clients know that the store was set back");
}

#[test]
fn a_start_that_stopped_leaves_no_volume_to_be_served_that_it_did_not_get_to() {
    a_stop_is_of_all_volumes();
}

/// Without the session's own region nothing tells what that session learned.
fn a_session_without_a_trace_is_not_trusted() {
    let world = restarted(killed());
    let env = world.kill();
    env.rings.lose_all();
    serve(&mut restarted(env)).expect_err("its memory is gone");
    let mut env = restarted(killed()).kill();
    env.boot = 2;
    env.rings.lose_all();
    serve(&mut restarted(env)).expect_err("the host was started anew");
}

#[test]
fn a_volume_that_a_start_did_not_get_to_waits_if_nothing_tells_what_that_start_learned() {
    a_session_without_a_trace_is_not_trusted();
}

/// A record of the host's log cannot be read for a minute, in which its volume is tried again and again.
fn attempts_claim_once() {
    let mut world = World::start(killed());
    let volume = world.open("demo");
    world.sync(&volume);
    world.write(&volume, 24, 4, 4096);
    world.sync(&volume);
    let mut world = restarted(world.kill());
    let volume = serve(&mut world).expect("nothing of it is missing");
    let is_record = |key: &&String| key.contains("/log/");
    let records: Vec<_> = world
        .env
        .objects
        .keys()
        .filter(is_record)
        .cloned()
        .collect();
    let first = records[records.len() - 2].clone();
    let record = world.env.objects.remove(&first).expect("it is there");
    world.env.outage = false;
    let before = root_of(&world.env, "demo").epoch;
    world.pass(60_000);
    assert!(volume.is_unchecked(), "{:?}", volume.upload_error());
    let claimed = root_of(&world.env, "demo").epoch;
    assert!(claimed > before, "it was claimed");
    let updates = world.env.store_requests["update"];
    world.pass(300_000);
    assert_eq!(world.env.store_requests["update"], updates);
    assert_eq!(root_of(&world.env, "demo").epoch, claimed);
    // The record is back: it is adopted in the epoch that was claimed.
    world.env.objects.insert(first, record);
    world.pass(60_000);
    assert!(!volume.is_unchecked(), "{:?}", volume.upload_error());
    assert_eq!(root_of(&world.env, "demo").epoch, claimed);
    world.write(&volume, 16, 3, 4096);
    check_all_is_stored(world, &volume);
}

#[test]
fn a_check_that_is_tried_again_claims_the_volume_once() {
    attempts_claim_once();
}

#[test]
fn a_root_that_was_removed_is_said_by_a_start_and_the_volume_goes_on_once_it_is_back() {
    const ROOT: &str = "volumes/demo/root";
    let mut world = World::start(killed());
    let removed = world.env.objects.remove(ROOT).expect("a root");
    let missing = world.try_open("demo", false).expect_err("it has no root");
    assert!(matches!(missing, OpenError::RootMissing(_)), "{missing}");
    assert!(missing.to_string().contains(ROOT), "{missing}");
    let volume = serve(&mut world).expect("nothing is missing here");
    check_unflushed(&mut world, &volume);
    world.write(&volume, 16, 3, 4096);
    // Whoever waits for the store hears of it.
    let synced = world.host.sync(&volume);
    let grown = world.host.grow_volume(&volume, 128 * MIB);
    let closed = world.host.close_volume(&volume);
    let refused = [
        world.wait(|_| synced.try_take()).err(),
        world.wait(|_| grown.try_take()).err(),
        world.wait(|_| closed.try_take()).err(),
    ];
    for refused in refused {
        assert!(
            matches!(refused, Some(OpenError::RootMissing(_))),
            "{refused:?}"
        );
    }
    // So does the next start.
    let mut world = World::start(world.kill());
    world.try_open("demo", false).expect_err("it has no root");
    let volume = serve(&mut world).expect("still nothing is missing here");
    world.env.objects.insert(ROOT.into(), removed);
    world.pass(60_000);
    assert!(!volume.is_unchecked(), "{:?}", volume.upload_error());
    check_all_is_stored(world, &volume);
}

#[test]
fn a_store_that_lacks_everything_of_a_host_is_another_one() {
    let mut world = World::start(killed());
    world.env.objects.clear();
    let missing = world.try_open("demo", false).expect_err("it has no root");
    assert!(matches!(missing, OpenError::NoSuchVolume(_)), "{missing}");
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        ("each_attempt_claims", attempts_claim_once),
        (
            "untouched_tail_waits",
            starts_that_serve_nothing_break_nothing,
        ),
        (
            "what_a_client_heard_is_forgotten",
            what_another_host_has_ends,
        ),
        (
            "what_a_client_heard_is_forgotten",
            a_name_that_was_given_away_lasts,
        ),
        ("next_start_serves_what_ended", a_close_without_a_log_lasts),
        ("next_start_serves_what_ended", a_stop_is_of_all_volumes),
        (
            "silent_session_is_trusted",
            a_session_without_a_trace_is_not_trusted,
        ),
    ]);
}
