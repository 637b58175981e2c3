//! Lifecycles of devices without faults, on the fake driver, with real reactors whose commands it takes:
//! what the guests show on real kernels, here in a second and without root.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use reactor::{Config, Handle, Reactor};
use ublk::control::port::{Argument, Command, ControlPort, OnCompletion, Reply, Ticket};
use ublk::control::{COMMAND_TIMEOUT, ControlDevice};
use ublk::device::{
    self, DeviceState, LiveDevice, OpenRequest, Origin, QueueOptions, open_or_recover,
};
use ublk::error::ErrorKind;
use ublk::exit::{ExitTimeouts, shut_down};
use ublk::sys::DeviceInfo;
use ublk::{Capability, DeviceSpec, Disk, Error, Want, Wants, sys};
use ublk_fake::{ClientId, ClientOp, ClientRequest, Driver, FakePort, Profile, start_reactor};
use zerocopy::{FromBytes, IntoBytes};

use crate::lifecycle::DEADLINE;
use crate::lifecycle::memory::{Bytes, DelayedHandler, Gate};

/// A driver, and a server's process. All of them have this process's number, by which the library
/// knows itself.
struct World {
    driver: Driver,
    control: ControlDevice,
    bytes: Bytes,
    gate: Arc<Gate>,
    answers: Mutex<BTreeMap<ClientId, Result<Vec<u8>, i32>>>,
    /// Handlers that were made.
    built: AtomicUsize,
}

impl World {
    fn new(profile: Profile) -> World {
        let driver = Driver::new(profile);
        let port = FakePort::new(driver.clone(), std::process::id() as i32);
        World::with_port(driver, Arc::new(port))
    }

    fn with_port(driver: Driver, port: Arc<dyn ControlPort>) -> World {
        let bytes = Bytes::default();
        bytes.lock().unwrap().resize(1 << 20, 0);
        World {
            control: ControlDevice::with_port(port, u64::MAX).unwrap(),
            driver,
            bytes,
            gate: Arc::default(),
            answers: Mutex::default(),
            built: AtomicUsize::new(0),
        }
    }

    fn ring(&self) -> Reactor {
        let config = Config {
            pool_bytes: 2 << 20,
            reserve_bytes: 1 << 20,
            ..Config::default()
        };
        start_reactor(&self.driver, config).unwrap()
    }

    fn try_open(
        &self,
        id: u32,
        reactors: &[Handle],
        within: Duration,
    ) -> Result<(LiveDevice, Origin), Error> {
        let (spec, options) = (spec(), QueueOptions::default());
        let build = |_| {
            self.built.fetch_add(1, Ordering::Relaxed);
            DelayedHandler::new(&self.bytes, &self.gate)
        };
        open_or_recover(
            OpenRequest {
                control: &self.control,
                id,
                spec: &spec,
                reactors,
                options: &options,
                within,
            },
            build,
        )
    }

    fn open(&self, id: u32, reactors: &[Handle]) -> (LiveDevice, Origin) {
        self.try_open(id, reactors, DEADLINE).unwrap()
    }

    fn write(&self, id: u32, byte: u8) -> ClientId {
        let request = ClientRequest {
            op: ClientOp::Write(vec![byte; 4096]),
            sector: 8,
            fua: false,
        };
        self.driver.submit(id, 0, request)
    }

    fn answer_to(&self, client: ClientId) -> Result<Vec<u8>, i32> {
        let mut answer = None;
        until("a request is answered", || {
            let mut answers = self.answers.lock().unwrap();
            answers.extend(self.driver.answers());
            answer = answers.remove(&client);
            answer.is_some()
        });
        answer.unwrap()
    }

    /// Writes and reads back.
    fn check_read_write(&self, id: u32, byte: u8) {
        let written = self.write(id, byte);
        assert_eq!(self.answer_to(written), Ok(Vec::new()));
        assert_eq!(self.read(id), [byte; 4096]);
    }

    fn read(&self, id: u32) -> Vec<u8> {
        let request = ClientRequest {
            op: ClientOp::Read(4096),
            sector: 8,
            fua: false,
        };
        let client = self.driver.submit(id, 0, request);
        self.answer_to(client).unwrap()
    }

    /// The server goes, and all that it had with it.
    fn dies(&self, live: LiveDevice, reactor: Reactor) {
        reactor.stop(Duration::ZERO);
        drop(live);
    }

    fn state(&self, id: u32) -> DeviceState {
        DeviceState::of(&self.control.info(id).unwrap())
    }
}

fn spec() -> DeviceSpec {
    DeviceSpec {
        queues: 2,
        depth: 4,
        io_bytes_max: 64 << 10,
        ..DeviceSpec::new(Disk::new(1 << 20))
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_device_lives_from_its_spec_to_its_deletion() {
    for profile in Profile::ALL {
        let world = World::new(profile);
        let reactor = world.ring();
        let (live, how) = world.open(3, &[reactor.handle().clone()]);
        assert_eq!((live.id(), how), (3, Origin::Added));
        world.check_read_write(3, 7);
        let resized = live.resize(2 << 20);
        assert_eq!(resized.is_ok(), profile.has(sys::F_UPDATE_SIZE));
        world.driver.disk_open(3, true).unwrap();
        let kept = live.try_stop(DEADLINE).unwrap_err();
        let expected = match profile.has(sys::F_SAFE_STOP) {
            true => ErrorKind::Busy,
            false => ErrorKind::Unsupported,
        };
        assert_eq!(kept.error.kind(), expected, "{kept}");
        world.check_read_write(3, 8);
        world.driver.disk_open(3, false).unwrap();
        let stopped = match profile.has(sys::F_SAFE_STOP) {
            true => kept.device.try_stop(DEADLINE).unwrap(),
            false => kept.device.stop(DEADLINE).unwrap(),
        };
        assert_eq!(world.state(3), DeviceState::Dead);
        stopped.delete(DEADLINE).unwrap();
        assert_eq!(world.driver.devices(), [0; 0]);
        assert_eq!(world.driver.stats().refused, 0);
    }
}

#[test]
fn a_busy_device_is_quiesced_and_the_other_on_its_ring_goes_on() {
    for profile in [Profile::V6_17, Profile::V7_2] {
        let world = World::new(profile);
        let reactor = world.ring();
        let handles = [reactor.handle().clone()];
        let (stays, _) = world.open(1, &handles);
        let (mut live, _) = world.open(2, &handles);
        for round in 0..5 {
            world.gate.close();
            // More than there are tags.
            let writes: Vec<_> = (0..6).map(|_| world.write(2, round)).collect();
            let gate = Arc::clone(&world.gate);
            let answering = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                gate.open();
            });
            live.quiesce(DEADLINE).unwrap();
            answering.join().unwrap();
            until("it has no server", || {
                world.state(2) == DeviceState::Quiesced
            });
            world.check_read_write(1, 100 + round);
            let (next, how) = world.open(2, &handles);
            assert_eq!(how, Origin::Recovered);
            live = next;
            for write in writes {
                assert_eq!(world.answer_to(write), Ok(Vec::new()));
            }
            assert_eq!(world.read(2), [round; 4096]);
        }
        for live in [live, stays] {
            live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
        }
        assert_eq!(world.driver.stats().refused, 0);
    }
}

#[test]
fn a_server_that_leaves_finishes_what_it_has_and_its_successor_does_the_rest() {
    for profile in Profile::ALL {
        let world = World::new(profile);
        let reactors = vec![world.ring(), world.ring()];
        let handles: Vec<Handle> = reactors.iter().map(|one| one.handle().clone()).collect();
        let devices: Vec<LiveDevice> = (0..3).map(|id| world.open(id, &handles).0).collect();
        let writes: Vec<_> = (0..3).map(|id| (id, world.write(id, 5))).collect();
        let report = shut_down(&world.control, devices, reactors, ExitTimeouts::default());
        assert_eq!(report.unconfirmed, [], "{report:?}");
        assert_eq!(report.quiesce_failures, [], "{report:?}");
        for (id, write) in writes {
            assert_eq!(world.answer_to(write), Ok(Vec::new()));
            assert_eq!(world.state(id), DeviceState::Quiesced);
            let waits = world.write(id, 6);
            let next = world.ring();
            let (live, how) = world.open(id, &[next.handle().clone()]);
            assert_eq!(how, Origin::Recovered);
            assert_eq!(world.answer_to(waits), Ok(Vec::new()));
            live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
        }
    }
}

#[test]
fn a_request_that_is_not_answered_in_time_is_its_successors() {
    for profile in [Profile::V6_17, Profile::V7_2] {
        let world = World::new(profile);
        let reactor = world.ring();
        let (live, _) = world.open(0, &[reactor.handle().clone()]);
        world.gate.close();
        let write = world.write(0, 9);
        until("it is taken up", || live.stats()[0].requests == 1);
        let limits = ExitTimeouts {
            drain: Duration::from_millis(50),
            ..ExitTimeouts::default()
        };
        let report = shut_down(&world.control, vec![live], vec![reactor], limits);
        assert_eq!(report.reactors[0].sources_forced, 1, "{report:?}");
        assert_eq!(report.unconfirmed, [], "{report:?}");
        world.gate.open();
        let next = world.ring();
        let (live, _) = world.open(0, &[next.handle().clone()]);
        assert_eq!(world.answer_to(write), Ok(Vec::new()));
        assert_eq!(live.stats()[0].requests, 1, "its successor did it");
        live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
    }
}

#[test]
fn a_successor_that_is_quicker_than_the_driver_waits_with_the_handlers_that_it_made() {
    for profile in Profile::ALL {
        let world = World::new(profile);
        let reactor = world.ring();
        let (live, _) = world.open(0, &[reactor.handle().clone()]);
        let built = world.built.load(Ordering::Relaxed);
        world.driver.set_release_delay(8);
        world.dies(live, reactor);
        let next = world.ring();
        let (live, how) = world.open(0, &[next.handle().clone()]);
        assert_eq!(how, Origin::Recovered);
        assert_eq!(
            world.built.load(Ordering::Relaxed),
            built + 2,
            "one per queue"
        );
        world.check_read_write(0, 3);
        live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
        assert_eq!(world.driver.devices(), [0; 0]);
    }
}

/// A driver that answers START_USER_RECOVERY late, or whose servers are not seen here.
#[derive(Debug)]
struct DelayingPort {
    port: FakePort,
    late: Duration,
    unseen: bool,
}

impl DelayingPort {
    fn world(profile: Profile, late: Duration, unseen: bool) -> World {
        let driver = Driver::new(profile);
        let port = FakePort::new(driver.clone(), std::process::id() as i32);
        World::with_port(driver, Arc::new(DelayingPort { port, late, unseen }))
    }
}

impl ControlPort for DelayingPort {
    fn submit(&self, command: Command, deadline: Instant, mut done: OnCompletion) -> Ticket {
        if command.opcode == sys::START_RECOVERY {
            std::thread::sleep(self.late);
        }
        if command.opcode == sys::GET_DEVICE_INFO && self.unseen {
            let told = done;
            done = Box::new(|answer| {
                told(answer.map(|answer| {
                    let (mut info, _) =
                        DeviceInfo::read_from_prefix(answer.argument.bytes()).unwrap();
                    info.server_pid = 0;
                    let argument = Argument::Bytes(info.as_bytes().to_vec());
                    Reply { argument, ..answer }
                }));
            });
        }
        self.port.submit(command, deadline, done)
    }

    fn cancel(&self, ticket: Ticket) {
        self.port.cancel(ticket);
    }

    fn open_char(&self, device: u32) -> io::Result<Arc<OwnedFd>> {
        self.port.open_char(device)
    }

    fn devices(&self) -> io::Result<Vec<u32>> {
        self.port.devices()
    }
}

#[test]
fn a_recovery_that_has_begun_is_given_time_whatever_the_deadline() {
    for profile in Profile::ALL {
        let world = DelayingPort::world(profile, Duration::from_millis(300), false);
        let reactor = world.ring();
        let (live, _) = world.open(0, &[reactor.handle().clone()]);
        world.dies(live, reactor);
        let next = world.ring();
        let handles = [next.handle().clone()];
        let (live, how) = world
            .try_open(0, &handles, Duration::from_millis(200))
            .unwrap();
        assert_eq!(how, Origin::Recovered);
        world.check_read_write(0, 3);
        live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
    }
}

#[test]
fn a_device_that_is_being_deleted_is_waited_for_and_then_added() {
    for profile in Profile::ALL {
        let world = World::new(profile);
        let reactor = world.ring();
        let (live, _) = world.open(4, &[reactor.handle().clone()]);
        world.control.delete_async(4, COMMAND_TIMEOUT).unwrap();
        let next = world.ring();
        let handles = [next.handle().clone()];
        let error = world
            .try_open(4, &handles, Duration::from_millis(100))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| world.open(4, &handles));
            std::thread::sleep(Duration::from_millis(50));
            world.dies(live, reactor);
            let (live, how) = opening.join().unwrap();
            assert_eq!(how, Origin::Added);
            live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
        });
    }
}

#[test]
fn a_device_without_a_disk_is_brought_alive_whoever_served_it_before() {
    for profile in Profile::ALL {
        let world = World::new(profile);
        let reactor = world.ring();
        let (live, _) = world.open(4, &[reactor.handle().clone()]);
        drop(live.stop(DEADLINE).unwrap());
        for again in [true, false] {
            let next = world.ring();
            let ring = if again { &reactor } else { &next };
            let (live, how) = world.open(4, &[ring.handle().clone()]);
            assert_eq!(how, Origin::Added, "on {}", profile.name);
            world.check_read_write(4, 9);
            drop(live.stop(DEADLINE).unwrap());
        }
        assert_eq!(world.driver.devices(), [4]);
        assert_eq!(world.driver.stats().warnings, 0);
    }
}

#[test]
fn a_disk_of_another_kind_is_not_taken_over() {
    let world = World::new(Profile::V7_2);
    let reactor = world.ring();
    let (live, _) = world.open(3, &[reactor.handle().clone()]);
    world.dies(live, reactor);
    let next = world.ring();
    let wanted = DeviceSpec {
        wants: Wants::NOTHING
            .with(Capability::Recovery, Want::Require)
            .with(Capability::FailIo, Want::Require),
        ..spec()
    };
    let error = open_or_recover(
        OpenRequest {
            control: &world.control,
            id: 3,
            spec: &wanted,
            reactors: &[next.handle().clone()],
            options: &QueueOptions::default(),
            within: DEADLINE,
        },
        |_| DelayedHandler::new(&world.bytes, &world.gate),
    )
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotGranted, "{error}");
    assert!(error.remedy().contains("delete the device"), "{error}");
    assert_eq!(world.state(3), DeviceState::Quiesced);
}

#[test]
fn a_disk_whose_server_is_not_seen_here_is_no_orphan() {
    for profile in Profile::ALL {
        let world = DelayingPort::world(profile, Duration::ZERO, true);
        let reactor = world.ring();
        let (live, _) = world.open(3, &[reactor.handle().clone()]);
        assert_eq!(device::list_unserved(&world.control).unwrap().len(), 0);
        let error = device::remove(&world.control, 3, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
        assert!(error.remedy().contains("namespaces"), "{error}");
        world.check_read_write(3, 4);
        world.dies(live, reactor);
        device::remove(&world.control, 3, DEADLINE).unwrap();
        assert_eq!(world.driver.devices(), [0; 0]);
    }
}
