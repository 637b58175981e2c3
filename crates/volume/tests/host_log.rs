//! The host's log under the engine: what of it an outage, a stop or a damaged object of one volume may
//! hold up, and what never.
//!
//! With `--cfg canary` each planted bug is seen by the test that is there for it.

mod support;

use blkmq::error::ErrorKind;
use blkmq::io::Op;
use support::{Lasting, World};
use volume::object::root::Root;
use volume::object::root_key;
use volume::{OpenError, OpenMode, Volume};

const MIB: u64 = 1 << 20;

/// A host with two volumes; both have something in the store, and `other` is closed.
fn with_closed_volume() -> (World, Volume) {
    let mut world = World::new();
    for name in ["demo", "other"] {
        world.create(name, 64 * MIB);
        let volume = world.open(name);
        world.write(&volume, 0, 1, 4096);
        world.sync(&volume);
        let answer = world.host.close_volume(&volume);
        world.wait(|_| answer.try_take()).expect("closed");
    }
    let volume = world.open("demo");
    world.write(&volume, 0, 2, 4096);
    world.sync(&volume);
    (world, volume)
}

fn try_write(world: &mut World, volume: &Volume) -> Result<(), ErrorKind> {
    let op = Op::Write {
        sector: 0,
        sectors: 8,
        fua: false,
    };
    world.request(volume, op, &mut [9; 4096])
}

fn root_of(lasting: &Lasting, name: &str) -> Root {
    let (bytes, _) = &lasting.objects[&root_key(name)];
    Root::decode(bytes).expect("a root")
}

#[test]
fn a_close_that_an_outage_cut_short_anywhere_ends_when_it_is_asked_for_again() {
    for moment in (0..1200).step_by(50) {
        let (mut world, demo) = with_closed_volume();
        let other = world.open("other");
        for fill in 3..6 {
            world.write(&other, 8 * u64::from(fill), fill, 4096);
            world.sync(&other);
        }
        world.lasting.store_ms = 100;
        let closing = world.host.close_volume(&other);
        world.pass(moment);
        // A record of the other volume keeps the publisher busy.
        world.write(&demo, 8, 3, 4096);
        let synced = world.host.sync(&demo);
        world.lasting.outage_after_record = true;
        world.pass(40_000);
        world.lasting.outage_after_record = false;
        world.lasting.outage = false;
        if let Err(error) = world.wait(|_| closing.try_take()) {
            assert!(matches!(error, OpenError::Store(_)), "{moment}: {error}");
            let again = world.host.close_volume(&other);
            let closed = world.wait(|_| again.try_take());
            closed.unwrap_or_else(|error| panic!("{moment}: {error}"));
        }
        assert!(root_of(&world.lasting, "other").owner.is_none());
        world.wait(|_| synced.try_take()).expect("synced");
        let other = world.open("other");
        assert_eq!(world.read_fill(&other, 40, 4096), 5);
    }
}

#[test]
fn no_volume_goes_live_on_a_host_that_has_stopped() {
    for moment in (0..1500).step_by(50) {
        let (mut world, demo) = with_closed_volume();
        world.lasting.store_ms = 100;
        world.write(&demo, 8, 3, 4096);
        let opening = world.host.open_volume("other", OpenMode::default());
        world.pass(moment);
        // The host was retired meanwhile.
        world.lasting.objects.retain(|key, _| !key.ends_with("/low"));
        let synced = world.host.sync(&demo);
        let stopped = world.wait(|_| synced.try_take()).expect_err("it stops");
        assert!(matches!(stopped, OpenError::HostStopped(_)), "{stopped}");
        if let Ok(other) = world.wait(|_| opening.try_take()) {
            let refused = try_write(&mut world, &other);
            assert_eq!(refused, Err(ErrorKind::Fenced), "opened at {moment}");
        }
    }
}

#[test]
fn an_open_ends_though_a_record_of_another_volume_is_not_answered() {
    for moment in (0..1500).step_by(50) {
        let (mut world, demo) = with_closed_volume();
        world.lasting.store_ms = 100;
        let opening = world.host.open_volume("other", OpenMode::default());
        world.pass(moment);
        world.write(&demo, 8, 3, 4096);
        let _synced = world.host.sync(&demo);
        world.lasting.outage_after_record = true;
        world.pass(55_000);
        let opened = opening.try_take();
        assert!(opened.is_some(), "asked for {moment} ms before the outage");
    }
}

#[test]
fn a_close_goes_on_from_a_root_that_somebody_put_back_with_a_higher_sequence() {
    let (mut world, _demo) = with_closed_volume();
    let other = world.open("other");
    world.lasting.store_ms = 100;
    let closing = world.host.close_volume(&other);
    // Until its update is on its way.
    let updates = |world: &World| world.lasting.store_requests.get("update").copied();
    let creates = |world: &World| world.lasting.store_requests.get("create").copied();
    let (before, records) = (updates(&world), creates(&world));
    world.wait(|world| (creates(world) != records).then_some(()));
    assert_eq!(updates(&world), before);
    let standing = root_of(&world.lasting, "other");
    let moved = Root {
        sequence: standing.sequence + 1,
        ..standing
    };
    world.lasting.versions += 1;
    let object = (moved.encode(), world.lasting.versions);
    world.lasting.objects.insert(root_key("other"), object);
    let refused = world.wait(|_| closing.try_take());
    assert!(matches!(refused, Err(OpenError::Store(_))), "{refused:?}");
    let again = world.host.close_volume(&other);
    world.wait(|_| again.try_take()).expect("closed");
    assert!(root_of(&world.lasting, "other").owner.is_none());
}

#[cfg(canary)]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    support::each_is_seen(&[
        (
            "stopped_host_opens_volumes",
            no_volume_goes_live_on_a_host_that_has_stopped,
        ),
        (
            "close_is_sent_for_ever",
            a_close_goes_on_from_a_root_that_somebody_put_back_with_a_higher_sequence,
        ),
    ]);
}
