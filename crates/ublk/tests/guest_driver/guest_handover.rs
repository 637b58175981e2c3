//! Devices that one server gives to the next under load, against a real kernel: run as root in a guest,
//! after `modprobe ublk_drv`. Requests are answered late, so that the server always has some.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reactor::Handle;
use ublk::device::{DeviceState, LiveDevice, OpenRequest, Origin, QueueOptions, open_or_recover};
use ublk::error::ErrorKind;
use ublk::exit::{ExitTimeouts, shut_down};
use ublk::{Capability, DeviceSpec, Want, sys};

use crate::lifecycle::memory::{Bytes, Clients, DelayedHandler, Gate};
use crate::lifecycle::{DEADLINE, PATIENT, World, path_of, ring, spec};

/// A disk, and the will to answer.
#[derive(Default)]
struct Memory {
    bytes: Bytes,
    gate: Arc<Gate>,
}

impl Memory {
    fn new() -> Memory {
        let memory = Memory::default();
        memory.bytes.lock().unwrap().resize(64 << 20, 0);
        memory
    }

    /// Few tags, so that many clients take them all.
    fn spec() -> DeviceSpec {
        let spec = spec();
        DeviceSpec {
            depth: 4,
            wants: spec.wants.with(Capability::Reissue, Want::Require),
            ..spec
        }
    }

    fn open(&self, world: &World, id: u32, reactors: &[Handle]) -> (LiveDevice, Origin) {
        let (spec, options) = (Memory::spec(), QueueOptions::default());
        let build = |_| DelayedHandler::new(&self.bytes, &self.gate);
        open_or_recover(
            OpenRequest {
                control: &world.control,
                id,
                spec: &spec,
                reactors,
                options: &options,
                within: DEADLINE,
            },
            build,
        )
        .unwrap()
    }
}

fn until_quiesced(world: &World, id: u32) {
    let deadline = Instant::now() + DEADLINE;
    while world.state(id) != DeviceState::Quiesced {
        assert!(Instant::now() < deadline, "the driver never notices");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_busy_device_is_quiesced_and_the_other_on_its_ring_goes_on() {
    let Some(world) = World::new() else { return };
    if !world.has(sys::F_QUIESCE) {
        println!("skipped: this kernel lacks the quiesce command");
        return;
    }
    let reactors = [ring("shared-0"), ring("shared-1")];
    let handles = [reactors[0].handle().clone(), reactors[1].handle().clone()];
    let (stays, goes) = (Memory::new(), Memory::new());
    let (stayed, _) = stays.open(&world, 1, &handles);
    let (mut live, _) = goes.open(&world, 2, &handles);
    let others = Clients::start(&path_of(1), 16);
    // More than there are tags, and fewer: then some are with the driver.
    for count in [32, 3] {
        let clients = Clients::start(&path_of(2), count);
        for _ in 0..8 {
            clients.wait_for_progress();
            let begun = Instant::now();
            let quiesced = live.quiesce(DEADLINE).unwrap();
            println!("{count} clients: quiesced in {:?}", begun.elapsed());
            until_quiesced(&world, quiesced.id());
            others.wait_for_progress();
            let (next, how) = goes.open(&world, 2, &handles);
            assert_eq!(how, Origin::Recovered);
            live = next;
        }
        clients.wait_for_progress();
        println!("{} rounds of {count} clients", clients.end());
    }
    println!("{} rounds of the others", others.end());
    for live in [live, stayed] {
        live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
    }
}

#[test]
fn a_device_whose_requests_are_not_answered_in_time_goes_on_as_it_was() {
    let Some(world) = World::new() else { return };
    if !world.has(sys::F_QUIESCE) {
        println!("skipped: this kernel lacks the quiesce command");
        return;
    }
    let reactor = ring("slow");
    let memory = Memory::new();
    let (live, _) = memory.open(&world, 3, &[reactor.handle().clone()]);
    let clients = Clients::start(&path_of(3), 16);
    clients.wait_for_progress();
    memory.gate.wait_for_request();
    let begun = Instant::now();
    let kept = live.quiesce(Duration::from_secs(1)).unwrap_err();
    assert!(begun.elapsed() < DEADLINE, "{:?}", begun.elapsed());
    assert_eq!(kept.error.kind(), ErrorKind::TimedOut, "{kept}");
    memory.gate.open();
    clients.wait_for_progress();
    assert_eq!(world.state(3), DeviceState::Live);
    let quiesced = kept.device.quiesce(DEADLINE).unwrap();
    until_quiesced(&world, quiesced.id());
    let next = ring("next");
    let (live, _) = memory.open(&world, 3, &[next.handle().clone()]);
    clients.wait_for_progress();
    clients.end();
    live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
}

#[test]
fn a_request_that_is_not_answered_before_its_server_leaves_is_the_successors() {
    let Some(world) = World::new() else { return };
    let reactor = ring("leaves");
    let memory = Memory::new();
    let (live, _) = memory.open(&world, 4, &[reactor.handle().clone()]);
    let clients = Clients::start(&path_of(4), 3);
    clients.wait_for_progress();
    memory.gate.wait_for_request();
    let limits = ExitTimeouts {
        drain: Duration::from_millis(200),
        ..PATIENT
    };
    let begun = Instant::now();
    let report = shut_down(&world.control, vec![live], vec![reactor], limits);
    println!("left in {:?}: {report:?}", begun.elapsed());
    assert!(report.reactors[0].sources_forced > 0, "{report:?}");
    assert_eq!(report.unconfirmed, [], "{report:?}");
    assert_eq!(world.state(4), DeviceState::Quiesced);
    let next = ring("next");
    let (live, how) = memory.open(&world, 4, &[next.handle().clone()]);
    assert_eq!(how, Origin::Recovered);
    memory.gate.open();
    clients.wait_for_progress();
    println!("{} rounds, none failed", clients.end());
    live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
}
