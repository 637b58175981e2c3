//! Volumes that are served before the store has said that they are still this host's.
//!
//! With the feature `planted` each of these tests also runs with the bug that it is there for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Op, Step};
use volume::units::Now;
use volume::{Durability, OpenError, Volume};

use crate::support::hosts::{hand_over, other_host, root_of};
use crate::support::unchecked::{killed, other_host_on, restarted, serve};
use crate::support::{World, waker};

const MIB: u64 = 1 << 20;

/// Whether it was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn is_parked(volume: &Volume, sector: u64) -> bool {
    let op = Op::Read { sector, sectors: 8 };
    matches!(volume.begin(&op, &waker()), Step::Park(_))
}

fn an_unbroken_tail_serves() {
    let mut world = restarted(killed());
    let volume = serve(&mut world).expect("it goes on");
    assert!(volume.is_unchecked());
    assert_eq!(volume.info().bytes, 64 * MIB);
    assert_eq!(world.read_fill(&volume, 8, 4096), 2);
    world.write(&volume, 16, 3, 4096);
    world.flush(&volume);
    assert_eq!(world.read_fill(&volume, 16, 4096), 3);
    assert!(is_parked(&volume, 0), "only the store has it");
    assert!(
        is_parked(&volume, 4096),
        "only the store knows that it is a hole"
    );
    let status = Op::Status {
        sector: 0,
        sectors: 8,
    };
    assert!(matches!(volume.begin(&status, &waker()), Step::Park(_)));
    let synced = world.host.sync(&volume);
    let closed = world.host.close_volume(&volume);
    world.pass(5_000);
    assert!(synced.try_take().is_none() && closed.try_take().is_none());
    // The store answers: all of it goes on.
    world.env.outage = false;
    world.wait(|_| synced.try_take()).expect("synced");
    world.wait(|_| closed.try_take()).expect("closed");
    let mut other = other_host(&mut world);
    let volume = other.open("demo");
    for (sector, fill) in [(0, 1), (8, 2), (16, 3), (4096, 0)] {
        assert_eq!(other.read_fill(&volume, sector, 4096), fill, "{sector}");
    }
}

#[test]
fn an_unbroken_tail_serves_before_the_store_answers_and_is_stored_after_that() {
    an_unbroken_tail_serves();
}

#[test]
fn a_read_that_waits_for_the_root_goes_on_when_the_store_answers() {
    let mut world = restarted(killed());
    let volume = serve(&mut world).expect("it goes on");
    assert!(is_parked(&volume, 0));
    world.env.outage = false;
    world.pass(60_000);
    assert!(!volume.is_unchecked());
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
    assert_eq!(world.read_fill(&volume, 8, 4096), 2);
    // It is live as any other.
    world.write(&volume, 0, 4, 4096);
    world.sync(&volume);
    assert_eq!(world.read_fill(&volume, 0, 4096), 4);
}

#[test]
fn a_read_that_waits_for_the_root_of_a_tail_that_breaks_ends_with_an_error() {
    let mut world = restarted(killed());
    let volume = serve(&mut world).expect("it goes on");
    let woken = Arc::new(Woken::default());
    let read = Op::Read {
        sector: 0,
        sectors: 8,
    };
    let parked = volume.begin(&read, &Waker::from(Arc::clone(&woken)));
    assert!(matches!(parked, Step::Park(_)));
    let write = Op::Write {
        sector: 16,
        sectors: 8,
        fua: false,
    };
    let Step::Write(plan) = volume.begin(&write, &waker()) else {
        panic!("there is room")
    };
    world.env.rings.set_trap();
    let commit = AssertUnwindSafe(|| drop(volume.written(plan, Ok(()), &waker())));
    assert!(catch_unwind(commit).is_err(), "the trap was not touched");
    world.env.outage = false;
    world.pass(60_000);
    assert!(woken.0.load(Ordering::Relaxed), "it would wait for ever");
    let again = volume.begin(&read, &waker());
    assert!(matches!(again, Step::Done(Err(ErrorKind::Io))));
}

fn nothing_is_called_stored() {
    let mut world = World::new();
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    world.flush(&volume);
    world.pass(10);
    let mut world = restarted(world.kill());
    let volume = serve(&mut world).expect("it goes on");
    assert_eq!(volume.watermarks().stored.lsn, volume.newest());
    let synced = world.host.sync(&volume);
    world.pass(5_000);
    assert!(synced.try_take().is_none(), "another host may have it");
}

#[test]
fn nothing_of_a_volume_is_called_stored_before_its_root_was_read() {
    nothing_is_called_stored();
}

#[test]
fn what_was_written_before_the_store_answered_survives_the_death_of_the_process() {
    let mut world = restarted(killed());
    let volume = serve(&mut world).expect("it goes on");
    world.write(&volume, 16, 3, 4096);
    for round in 0..3 {
        world = restarted(world.kill());
        let volume = serve(&mut world).expect("still");
        assert_eq!(world.read_fill(&volume, 8, 4096), 2);
        assert_eq!(world.read_fill(&volume, 16, 4096), 3);
        world.write(&volume, 24 + 8 * round, 4, 4096);
    }
    // Also that of a process that dies at any of its requests while it reads the root.
    for steps in 0..40 {
        let mut env = world.kill();
        env.outage = false;
        world = World::start(env);
        let volume = match serve(&mut world) {
            Ok(volume) => volume,
            Err(_) => world.open("demo"),
        };
        for (sector, fill) in [(8, 2), (16, 3), (24, 4), (32, 4), (40, 4)] {
            assert_eq!(world.read_fill(&volume, sector, 4096), fill, "{steps}");
        }
        world.write(&volume, 1024 + 8 * steps, 5, 4096);
        for _ in 0..steps {
            let more = world.host.run_jobs();
            if !world.one_step() && !more {
                break;
            }
        }
    }
    let mut world = World::start(world.kill());
    let volume = world.open("demo");
    for step in 0..40 {
        assert_eq!(world.read_fill(&volume, 1024 + 8 * step, 4096), 5, "{step}");
    }
}

#[test]
fn a_snapshot_of_an_unchecked_volume_waits_and_has_all_that_was_written() {
    let mut world = restarted(killed());
    let volume = serve(&mut world).expect("it goes on");
    world.write(&volume, 16, 3, 4096);
    world.env.outage = false;
    world.env.store_ms = 50;
    let taken = world
        .host
        .create_snapshot("demo@one", Vec::new(), Durability::Store);
    world.wait(|_| taken.try_take()).expect("taken");
    let fork = world
        .host
        .fork_volume("demo@one", "copy", Durability::Store);
    world.wait(|_| fork.try_take()).expect("forked");
    let copy = world.open("copy");
    for (sector, fill) in [(0, 1), (8, 2), (16, 3)] {
        assert_eq!(world.read_fill(&copy, sector, 4096), fill, "{sector}");
    }
}

#[test]
fn a_point_that_is_asked_for_at_any_time_of_the_check_waits_for_its_end() {
    let mut checks = 0;
    for ms in (0..3000).step_by(20) {
        for what in ["snapshot", "log", "close"] {
            let mut world = restarted(killed());
            let volume = serve(&mut world).expect("it goes on");
            world.env.outage = false;
            world.env.store_ms = 50;
            world.pass(ms);
            checks += usize::from(volume.is_unchecked());
            let name = "demo@one";
            let (none, log) = (Vec::new(), Durability::Log);
            let result = match what {
                "snapshot" => {
                    let taken = world.host.create_snapshot(name, none, Durability::Store);
                    world.wait(|_| taken.try_take()).map(drop)
                }
                "log" => {
                    let taken = world.host.create_snapshot(name, none, log);
                    world.wait(|_| taken.try_take()).map(drop)
                }
                _ => {
                    let closed = world.host.close_volume(&volume);
                    world.wait(|_| closed.try_take())
                }
            };
            result.unwrap_or_else(|error| panic!("{what} after {ms} ms: {error}"));
        }
    }
    assert!(checks > 20, "{checks} of them came in a check");
}

#[test]
fn a_volume_whose_records_are_gone_stays_unchecked_until_they_are_back() {
    let mut world = World::new();
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    for fill in [1, 2] {
        world.write(&volume, 0, fill, 4096);
        world.sync(&volume);
    }
    world.pass(10);
    let mut world = restarted(world.kill());
    let volume = serve(&mut world).expect("it goes on");
    let is_record = |key: &&String| key.contains("/log/");
    let first = world.env.objects.keys().find(is_record).cloned();
    let first = first.expect("of the first sync");
    let record = world.env.objects.remove(&first).expect("it is there");
    world.env.outage = false;
    let synced = world.host.sync(&volume);
    world.pass(60_000);
    assert!(volume.is_unchecked() && synced.try_take().is_none());
    let error = volume.upload_error().expect("it says why");
    assert!(error.contains(&first), "{error}");
    world.write(&volume, 8, 2, 4096);
    assert_eq!(world.read_fill(&volume, 8, 4096), 2);
    world.env.objects.insert(first, record);
    world.pass(60_000);
    assert!(!volume.is_unchecked(), "{:?}", volume.upload_error());
    world.sync(&volume);
    assert_eq!(world.read_fill(&volume, 0, 4096), 2);
}

fn a_broken_tail_waits() {
    let env = killed();
    env.rings.lose_all();
    let refused = serve(&mut restarted(env)).expect_err("its ring is gone");
    assert!(matches!(refused, OpenError::Store(_)), "{refused}");
    let mut env = killed();
    env.boot = 2;
    env.rings.lose_all();
    serve(&mut restarted(env)).expect_err("the host was started anew");
}

#[test]
fn a_tail_with_a_gap_is_not_served_before_the_store_answers() {
    a_broken_tail_waits();
}

/// A start that was told that another host has the volume does not serve it when the store goes, and neither
/// does the next one.
fn a_judged_tail_waits() {
    let mut env = killed();
    let mut other = other_host_on(&mut env);
    other.try_open("demo", true).expect("taken over");
    let mut world = World::start(env);
    hand_over(&mut other, &mut world);
    let held = world.try_open("demo", false).expect_err("another's");
    assert!(matches!(held, OpenError::Held { .. }), "{held}");
    world.env.outage = true;
    serve(&mut world).expect_err("this process knows");
    serve(&mut restarted(world.kill())).expect_err("it was not served last");
}

#[test]
fn a_tail_whose_root_was_read_is_not_served_without_it_later() {
    a_judged_tail_waits();
}

fn a_size_that_was_told_lasts() {
    let mut world = World::start(killed());
    let volume = world.open("demo");
    world.grow(&volume, 128 * MIB).expect("grown");
    let mut world = restarted(world.kill());
    let volume = serve(&mut world).expect("it goes on");
    assert_eq!(volume.geometry().bytes, 128 * MIB);
    world.write(&volume, 128 * 2048 - 8, 7, 4096);
    // A size that is asked for now waits for the store.
    let grown = world.host.grow_volume(&volume, 256 * MIB);
    world.pass(5_000);
    assert!(grown.try_take().is_none());
    world.env.outage = false;
    world.wait(|_| grown.try_take()).expect("grown");
    assert_eq!(volume.geometry().bytes, 256 * MIB);
    assert_eq!(world.read_fill(&volume, 128 * 2048 - 8, 4096), 7);
}

#[test]
fn a_volume_is_served_unchecked_with_the_size_that_clients_were_told() {
    a_size_that_was_told_lasts();
}

/// A server that died between a growth and its note reads the larger root, and dies at any of its steps.
#[test]
fn a_size_that_the_root_has_is_told_to_nobody_before_the_log_has_it() {
    let mut world = World::start(killed());
    let volume = world.open("demo");
    let _grown = world.host.grow_volume(&volume, 128 * MIB);
    while root_of(&world.env, "demo").bytes == 64 * MIB {
        let more = world.host.run_jobs();
        assert!(world.one_step() || more, "it does not grow");
    }
    let mut world = restarted(world.kill());
    let volume = serve(&mut world).expect("it goes on");
    assert_eq!(volume.info().bytes, 64 * MIB, "the note was not made");
    world.env.outage = false;
    let is_told = (0..100_000).any(|_| {
        world.now_ns += 10_000_000;
        world.host.tick(Now {
            mono_ns: world.now_ns,
            unix_ms: world.now_ns / 1_000_000,
        });
        world.host.run_jobs();
        volume.info().bytes > 64 * MIB || {
            world.one_step();
            false
        }
    });
    assert!(is_told, "it is checked");
    let mut world = restarted(world.kill());
    let volume = serve(&mut world).expect("it goes on");
    assert_eq!(volume.info().bytes, 128 * MIB, "a client knows");
}

#[test]
fn a_log_that_is_poisoned_while_a_volume_is_unchecked_gives_up_nothing_that_was_flushed() {
    let mut world = restarted(killed());
    let volume = serve(&mut world).expect("it goes on");
    world.write(&volume, 16, 3, 4096);
    world.flush(&volume);
    world.env.failing_syncs = 1;
    world.write(&volume, 24, 4, 4096);
    let flushed = world.request(&volume, Op::Flush, &mut []);
    assert_eq!(flushed, Err(ErrorKind::Io));
    world.env.outage = false;
    world.pass(60_000);
    let mut world = World::start(world.kill());
    assert!(world.report.poisoned);
    let volume = world.open("demo");
    world.sync(&volume);
    for (sector, fill) in [(0, 1), (8, 2), (16, 3)] {
        assert_eq!(world.read_fill(&volume, sector, 4096), fill, "{sector}");
    }
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        ("unknown_is_a_hole", an_unbroken_tail_serves),
        ("unchecked_is_called_stored", nothing_is_called_stored),
        ("broken_tail_is_served_unchecked", a_broken_tail_waits),
        ("what_a_client_heard_is_forgotten", a_judged_tail_waits),
        ("size_is_not_noted", a_size_that_was_told_lasts),
    ]);
}
