//! What ends a volume that is served before the store has answered, as soon as its root is read: a take-over, a
//! deletion, a store that was set back; and what a client heard of its end, which lasts.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use std::collections::BTreeMap;

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Op, Step};
use volume::{OpenError, Volume};

use crate::support::hosts::{close, delete, hand_over, other_host, root_of, try_write};
use crate::support::unchecked::{killed, other_host_on, restarted, serve, serve_named};
use crate::support::{Environment, World, waker};

const MIB: u64 = 1 << 20;

type Objects = BTreeMap<String, (Vec<u8>, u64)>;

/// The volume was taken over by another host between the two starts.
fn a_take_over_ends_it() {
    let mut env = killed();
    let mut other = other_host_on(&mut env);
    let theirs = other.try_open("demo", true).expect("taken over");
    other.write(&theirs, 8, 9, 4096);
    other.sync(&theirs);
    let mut world = restarted(env);
    let volume = serve(&mut world).expect("nobody here knows");
    world.write(&volume, 16, 3, 4096);
    let synced = world.host.sync(&volume);
    hand_over(&mut other, &mut world);
    world.env.outage = false;
    let error = world.wait(|_| synced.try_take()).expect_err("another's");
    assert!(matches!(error, OpenError::Fenced(_)), "{error}");
    assert_eq!(try_write(&mut world, &volume), Err(ErrorKind::Fenced));
    let op = Op::Read {
        sector: 0,
        sectors: 8,
    };
    assert!(matches!(
        volume.begin(&op, &waker()),
        Step::Done(Err(ErrorKind::Fenced))
    ));
    // Its writes are for rescue, and no later start serves them, store or none.
    let mut world = restarted(world.kill());
    let kept = world.host.unserved_tails();
    assert!(
        kept.len() == 1 && kept[0].rescue && kept[0].extents == 2,
        "{kept:?}"
    );
    serve(&mut world).expect_err("for rescue");
    world.env.outage = false;
    hand_over(&mut world, &mut other);
    assert_eq!(other.read_fill(&theirs, 8, 4096), 9);
    assert_eq!(other.read_fill(&theirs, 16, 4096), 0);
}

#[test]
fn a_volume_that_was_taken_over_meanwhile_ends_as_soon_as_its_root_is_read() {
    a_take_over_ends_it();
}

/// The other host has stored more than this one ever wrote, and gave the volume back.
fn nothing_goes_before_the_check() {
    let mut env = killed();
    let mut other = other_host_on(&mut env);
    let theirs = other.try_open("demo", true).expect("taken over");
    for block in 0..9 {
        other.write(&theirs, 8 * block, 9, 4096);
    }
    close(&mut other, &theirs);
    assert!(root_of(&other.env, "demo").lsn.0 > 9);
    let mut world = restarted(env);
    let volume = serve(&mut world).expect("nobody here knows");
    world.write(&volume, 16, 3, 4096);
    hand_over(&mut other, &mut world);
    world.env.outage = false;
    world.pass(60_000);
    assert_eq!(try_write(&mut world, &volume), Err(ErrorKind::Fenced));
    let kept = world.host.unserved_tails();
    assert!(kept.len() == 1 && kept[0].extents == 2, "{kept:?}");
}

#[test]
fn no_segment_is_reused_for_what_the_store_says_it_has_before_the_volume_is_checked() {
    nothing_goes_before_the_check();
}

#[test]
fn a_volume_that_was_deleted_meanwhile_ends_as_soon_as_its_root_is_read() {
    let mut env = killed();
    let mut other = other_host_on(&mut env);
    let theirs = other.try_open("demo", true).expect("taken over");
    close(&mut other, &theirs);
    delete(&mut other, "demo");
    let mut world = restarted(env);
    let volume = serve(&mut world).expect("nobody here knows");
    hand_over(&mut other, &mut world);
    world.env.outage = false;
    world.pass(60_000);
    assert_eq!(try_write(&mut world, &volume), Err(ErrorKind::Fenced));
}

/// A host that has a stored block and was killed, started with the store away, and the store as it was before the
/// volume was opened, and before it was stored.
fn with_older_stores() -> (World, Volume, [Objects; 2]) {
    let mut world = World::new();
    world.create("demo", 64 * MIB);
    let created = world.env.objects.clone();
    let volume = world.open("demo");
    let opened = world.env.objects.clone();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    world.flush(&volume);
    world.pass(10);
    let mut world = restarted(world.kill());
    let volume = serve(&mut world).expect("nobody here knows");
    (world, volume, [created, opened])
}

fn a_set_back_store_ends_it() {
    let (mut world, volume, [created, _]) = with_older_stores();
    world.env.objects = created;
    world.env.outage = false;
    world.pass(60_000);
    assert_eq!(try_write(&mut world, &volume), Err(ErrorKind::Fenced));
    let error = volume.upload_error().expect("it says why");
    assert!(error.contains("set back"), "{error}");
    // No later start serves it while the store is away. It is not for rescue: the next one that can ask says so, too.
    let mut world = restarted(world.kill());
    let refused = serve(&mut world).expect_err("it has ended");
    assert!(matches!(refused, OpenError::Store(_)), "{refused}");
    assert!(!world.host.unserved_tails()[0].rescue);
    let mut world = restarted(world.kill());
    serve(&mut world).expect_err("it has ended");
    world.env.outage = false;
    let refused = world.try_open("demo", false).expect_err("older");
    assert!(
        matches!(refused, OpenError::StoreWentBack { .. }),
        "{refused}"
    );
}

#[test]
fn a_store_that_was_set_back_ends_it_as_soon_as_its_root_is_read() {
    a_set_back_store_ends_it();
}

/// What is left of a host that was killed with a volume whose name another had before, and the store as it was then.
fn killed_with_a_namesake(is_synced: bool) -> (Environment, Objects) {
    let mut world = World::new();
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    world.write(&volume, 0, 1, 4096);
    close(&mut world, &volume);
    let before = world.env.objects.clone();
    delete(&mut world, "demo");
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    world.write(&volume, 0, 2, 4096);
    if is_synced {
        world.sync(&volume);
    }
    world.write(&volume, 8, 3, 4096);
    world.flush(&volume);
    world.pass(10);
    (world.kill(), before)
}

/// The store's newer state is put back: all of it goes on.
fn check_all_goes_on(mut env: Environment, newest: Objects) {
    env.objects = newest;
    let mut world = World::start(env);
    assert!(!world.host.unserved_tails()[0].rescue, "it waits");
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 0, 4096), 2);
    assert_eq!(world.read_fill(&volume, 8, 4096), 3);
}

#[test]
fn a_store_that_was_set_back_to_a_namesake_from_before_deletes_nothing() {
    let (env, before) = killed_with_a_namesake(true);
    let mut world = restarted(env);
    let volume = serve(&mut world).expect("it goes on");
    let newest = std::mem::replace(&mut world.env.objects, before);
    world.env.outage = false;
    world.pass(60_000);
    assert_eq!(try_write(&mut world, &volume), Err(ErrorKind::Fenced));
    let error = volume.upload_error().expect("it says why");
    assert!(error.contains("set back"), "{error}");
    check_all_goes_on(world.kill(), newest);
}

/// Nothing of the newer volume is in the store: this host's log there is what it was.
fn a_namesake_from_before_is_not_opened() {
    let (env, before) = killed_with_a_namesake(false);
    let mut world = World::start(env);
    let newest = std::mem::replace(&mut world.env.objects, before.clone());
    let refused = world.try_open("demo", false).expect_err("it is older");
    assert!(
        matches!(refused, OpenError::StoreWentBack { .. }),
        "{refused}"
    );
    assert_eq!(world.env.objects, before, "nothing was claimed");
    check_all_goes_on(world.kill(), newest);
    // Who says so accepts what the store has, and what this log holds is for rescue.
    let (env, before) = killed_with_a_namesake(false);
    let mut world = World::start(env);
    world.env.objects = before;
    let volume = world.try_open("demo", true).expect("it was asked for");
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
    assert!(world.host.unserved_tails()[0].rescue);
}

#[test]
fn an_open_of_a_store_that_was_set_back_to_a_namesake_from_before_is_refused() {
    a_namesake_from_before_is_not_opened();
}

/// A host with two volumes stops, since its store was set back, and is killed.
fn a_stopped_host_serves_nothing() {
    let mut world = World::new();
    let volumes = ["demo", "other"].map(|name| {
        world.create(name, 64 * MIB);
        let volume = world.open(name);
        world.write(&volume, 0, 1, 4096);
        world.sync(&volume);
        volume
    });
    let old = world.env.objects.clone();
    world.write(&volumes[0], 0, 2, 4096);
    world.sync(&volumes[0]);
    world.env.objects = old;
    world.write(&volumes[0], 0, 3, 4096);
    let synced = world.host.sync(&volumes[0]);
    let stopped = world.wait(|_| synced.try_take()).expect_err("set back");
    assert!(matches!(stopped, OpenError::HostStopped(_)), "{stopped}");
    assert_eq!(try_write(&mut world, &volumes[1]), Err(ErrorKind::Fenced));
    let mut world = restarted(world.kill());
    for name in ["demo", "other"] {
        serve_named(&mut world, name).expect_err("clients know that it has ended");
    }
}

#[test]
fn a_start_after_the_host_stopped_serves_none_of_its_volumes_before_the_store_answers() {
    a_stopped_host_serves_nothing();
}

/// Killed as soon as a client has heard of the take-over: the log has nothing of it yet.
fn a_take_over_that_was_heard_of_lasts() {
    let mut world = World::new();
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    let mut other = other_host(&mut world);
    other.try_open("demo", true).expect("taken over");
    hand_over(&mut other, &mut world);
    world.write(&volume, 8, 2, 4096);
    world.flush(&volume);
    world.pass(10);
    let synced = world.host.sync(&volume);
    let heard = (0..1000).find_map(|_| {
        world.host.run_jobs();
        synced.try_take().or_else(|| {
            world.one_step();
            None
        })
    });
    let error = heard.expect("it ends").expect_err("another's");
    assert!(matches!(error, OpenError::Fenced(_)), "{error}");
    let mut world = restarted(world.kill());
    let kept = world.host.unserved_tails();
    assert!(kept.len() == 1 && !kept[0].rescue, "not noted: {kept:?}");
    serve(&mut world).expect_err("a client knows that it has ended");
}

#[test]
fn a_volume_of_which_a_client_heard_that_it_was_taken_over_is_not_served_by_the_next_start() {
    a_take_over_that_was_heard_of_lasts();
}

/// A host with two volumes whose log takes nothing more after an internal error; all of `other` is stored.
fn with_halted_log() -> (World, Volume) {
    let mut world = World::new();
    let volumes = ["demo", "other"].map(|name| {
        world.create(name, 64 * MIB);
        let volume = world.open(name);
        world.write(&volume, 0, 1, 4096);
        world.sync(&volume);
        volume
    });
    world.env.broken_checkpoints = true;
    let is_halted = (0..200).any(|round| {
        world.write(&volumes[0], 8 * (round % 16), 2, 4096);
        world.request(&volumes[0], Op::Flush, &mut []).is_err()
    });
    assert!(is_halted, "no checkpoint was due");
    let [_, other] = volumes;
    (world, other)
}

/// The next start of such a host, on a good log.
fn restarted_after_the_error(mut env: Environment) -> World {
    env.broken_checkpoints = false;
    let world = restarted(env);
    assert!(!world.report.poisoned, "the disk is good");
    world
}

fn a_close_without_a_log_lasts() {
    let (mut world, volume) = with_halted_log();
    close(&mut world, &volume);
    let mut env = world.kill();
    let mut elsewhere = other_host_on(&mut env);
    elsewhere.open("other");
    let mut world = restarted_after_the_error(env);
    serve_named(&mut world, "other").expect_err("it was given back");
}

#[test]
fn a_volume_that_was_given_back_by_a_log_that_took_no_note_is_not_served_before_the_store_answers()
{
    a_close_without_a_log_lasts();
}

fn a_growth_without_a_log_lasts() {
    let (mut world, volume) = with_halted_log();
    world.grow(&volume, 128 * MIB).expect("grown");
    let mut world = restarted_after_the_error(world.kill());
    serve_named(&mut world, "other").expect_err("clients know of more than its log does");
}

#[test]
fn a_volume_that_grew_without_a_note_in_the_log_is_not_served_before_the_store_answers() {
    a_growth_without_a_log_lasts();
}

/// The store is as it was before the host had a record, or a low mark: a live host would stop.
fn no_low_mark_is_a_set_back() {
    let (mut world, volume, [_, opened]) = with_older_stores();
    assert!(opened.keys().all(|key| !key.starts_with("hosts/")));
    let whole = std::mem::replace(&mut world.env.objects, opened);
    world.env.outage = false;
    let synced = world.host.sync(&volume);
    let stopped = world.wait(|_| synced.try_take()).expect_err("set back");
    assert!(stopped.to_string().contains("set back"), "{stopped}");
    assert_eq!(try_write(&mut world, &volume), Err(ErrorKind::Fenced));
    assert!(world.host.unserved_tails()[0].rescue, "it is offered");
    // The next start says so, too, and serves nothing before.
    let mut world = restarted(world.kill());
    serve(&mut world).expect_err("clients know that it has ended");
    world.env.outage = false;
    let stopped = world.try_open("demo", true).expect_err("older");
    assert!(matches!(stopped, OpenError::HostStopped(_)), "{stopped}");
    // The newer state is put back: all of it goes on.
    let mut env = world.kill();
    env.objects = whole;
    let mut world = World::start(env);
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
}

#[test]
fn a_store_that_was_set_back_to_before_the_hosts_low_mark_ends_it_and_is_named() {
    no_low_mark_is_a_set_back();
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        ("foreign_root_passes_the_check", a_take_over_ends_it),
        (
            "unchecked_segments_are_reused",
            nothing_goes_before_the_check,
        ),
        (
            "namesake_of_before_is_believed",
            a_namesake_from_before_is_not_opened,
        ),
        ("lost_low_mark_says_nothing", no_low_mark_is_a_set_back),
        ("ended_is_called_stored", no_low_mark_is_a_set_back),
        ("next_start_serves_what_ended", a_set_back_store_ends_it),
        (
            "next_start_serves_what_ended",
            a_stopped_host_serves_nothing,
        ),
        (
            "next_start_serves_what_ended",
            a_take_over_that_was_heard_of_lasts,
        ),
        ("next_start_serves_what_ended", a_close_without_a_log_lasts),
        ("next_start_serves_what_ended", a_growth_without_a_log_lasts),
    ]);
}
