//! Lifecycles of devices with faults, on a real kernel: run as root in a guest, after
//! `modprobe ublk_drv`. Elsewhere each test says `skipped: no /dev/ublk-control`.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use reactor::{Handle, Port, Reactor};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use ublk::control::ControlDevice;
use ublk::device::{
    self, DeviceState, LiveDevice, OpenRequest, Origin, QueueOptions, open_or_recover,
};
use ublk::error::ErrorKind;
use ublk::exit::shut_down;
use ublk::queue::{Handler, QueueCx};
use ublk::{Capability, DataMode, DeviceSpec, ModeChoice, Modes, Request, Want, Wants, sys};

use crate::lifecycle::{DEADLINE, Null, PATIENT, Reader, World, disk, read, ring, spec};

/// Tells a process what to be, and of which device.
const ROLE: &str = "GUEST_ROLE";

/// This program again, as one ignored test that plays a role.
fn role(name: &str, id: u32) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact"])
        .arg(format!("guest_faults::{name}"))
        .arg("--nocapture")
        .env(ROLE, id.to_string());
    command
}

fn my_role() -> Option<u32> {
    Some(std::env::var(ROLE).ok()?.parse().unwrap())
}

/// Keeps what comes, and completes what came before it was told to let go.
#[derive(Clone, Default)]
struct HoldingHandler(Arc<Mutex<HeldRequests>>);

#[derive(Default)]
struct HeldRequests {
    requests: Vec<Request>,
    released: bool,
}

impl HoldingHandler {
    fn release(&self) {
        let mut held = self.0.lock().unwrap();
        held.released = true;
        held.requests.clear();
    }

    fn wait_for(&self, count: usize) {
        let deadline = Instant::now() + DEADLINE;
        while self.0.lock().unwrap().requests.len() < count {
            assert!(Instant::now() < deadline, "{count} requests do not come");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Handler for HoldingHandler {
    const MODES: Modes = Modes::NONE.and(DataMode::UserCopy);

    fn on_request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        let mut held = self.0.lock().unwrap();
        if held.released {
            queue.complete(request);
        } else {
            held.requests.push(request);
        }
    }
}

/// Lets go also where a test panics: what is held would keep the disk for ever.
struct ReleaseOnDrop(HoldingHandler);

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        self.0.release();
    }
}

#[test]
fn a_stop_that_waits_for_an_unanswered_request_is_told_and_holds_up_nobody() {
    let Some(world) = World::new() else { return };
    let reactor = ring("hold");
    let hold = ReleaseOnDrop(HoldingHandler::default());
    let unscanned = DeviceSpec {
        wants: Wants::default().with(Capability::NoPartScan, Want::Prefer),
        ..spec()
    };
    let added = device::add(&world.control, &unscanned, HoldingHandler::MODES).unwrap();
    let handles = [reactor.handle().clone()];
    let armed = added.attach(&handles, &QueueOptions::default(), |_| hold.0.clone());
    // Before 7.0 the kernel looks for partitions inside START: it is answered late then.
    let scanned = hold.0.clone();
    let answers = (!world.has(sys::F_NO_PART_SCAN)).then(|| {
        scanned.0.lock().unwrap().released = true;
    });
    let live = armed.unwrap().start(DEADLINE).unwrap();
    if answers.is_some() {
        hold.0.0.lock().unwrap().released = false;
    }
    let path = live.path();
    let client = std::thread::spawn(move || read(&disk(&path), 0));
    hold.0.wait_for(1);

    let begun = Instant::now();
    let kept = live.stop(Duration::from_millis(700)).unwrap_err();
    println!("after {:?}: {kept}", begun.elapsed());
    assert!(
        matches!(kept.error.kind(), ErrorKind::Stuck | ErrorKind::TimedOut),
        "{kept}"
    );
    assert!(begun.elapsed() < DEADLINE, "{:?}", begun.elapsed());

    // Over the fresh ring, or the old one: other devices come and go.
    let other = ring("other");
    let live = world.serve(&spec(), &[other.handle().clone()]);
    read(&disk(&live.path()), 0).unwrap();
    live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();

    hold.0.release();
    client.join().unwrap().unwrap_err();
    let stopped = kept.device.stop(DEADLINE).unwrap();
    stopped.delete(DEADLINE).unwrap();
    assert_eq!(world.control.devices().unwrap(), []);
}

/// Waits until the only queue of a device has counted so many aborts: no more, and of the rest the
/// server owned what it should at the first.
fn until_aborts(live: &LiveDevice, aborts: u64, owned: u64) {
    let deadline = Instant::now() + DEADLINE;
    while live.stats()[0].aborts < aborts {
        assert!(Instant::now() < deadline, "{:?}", live.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
    let stats = live.stats()[0];
    assert_eq!((stats.aborts, stats.owned_at_abort), (aborts, owned));
}

#[test]
fn tags_that_the_server_owns_get_no_abort_and_are_counted_apart() {
    let Some(world) = World::new() else { return };
    let (reactor, next) = (ring("owner"), ring("next"));
    let hold = ReleaseOnDrop(HoldingHandler::default());
    // A late look for partitions would be held as well, and keep all others from opening the disk.
    let one_queue = DeviceSpec {
        queues: 1,
        wants: Wants::default().with(Capability::NoPartScan, Want::Prefer),
        ..spec()
    };
    let added = device::add(&world.control, &one_queue, HoldingHandler::MODES).unwrap();
    let handles = [reactor.handle().clone()];
    let armed = added.attach(&handles, &QueueOptions::default(), |_| hold.0.clone());
    // Until the disk is there: before 7.0 the kernel looks for partitions inside START.
    hold.0.0.lock().unwrap().released = true;
    let mut live = armed.unwrap().start(DEADLINE).unwrap();
    let (id, path, tags) = (live.id(), live.path(), u64::from(spec().depth));
    let quiesces = world.has(sys::F_QUIESCE);
    if quiesces {
        read(&disk(&path), 0).unwrap();
        hold.0.0.lock().unwrap().released = false;
        // Far apart: the scheduler of a disk with one queue joins neighbours into one request.
        let client = |at: u64| {
            let disk = disk(&path);
            std::thread::spawn(move || read(&disk, (at + 1) << 20))
        };
        let clients = [client(0), client(1), client(2)];
        hold.0.wait_for(3);
        world.control.quiesce(id, DEADLINE).unwrap();
        until_aborts(&live, tags - 3, 3);
        // The queue stays for them, and each is answered: dropped, that is failed.
        hold.0.release();
        for client in clients {
            client.join().unwrap().unwrap_err();
        }
        let report = shut_down(&world.control, vec![live], vec![reactor], PATIENT);
        assert_eq!(report.unconfirmed, []);
        let how;
        (live, how) = world.open(id, &[next.handle().clone()]);
        assert_eq!(how, Origin::Recovered);
    }
    // A stop waits for what the server owns: then every tag is idle.
    world.control.stop(id, DEADLINE).unwrap();
    until_aborts(&live, tags, 0);
    live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
    assert_eq!(world.control.devices().unwrap(), []);
}

/// Sends signals to the control thread until it is dropped.
struct SignalStorm(Arc<AtomicBool>, Option<JoinHandle<u64>>);

impl SignalStorm {
    /// The runtime is where a handler is set for the signal: without one it would be the end.
    fn at_the_control_thread(runtime: &Runtime) -> SignalStorm {
        let inside = runtime.enter();
        let handled = signal(SignalKind::user_defined1()).unwrap();
        drop(inside);
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let mut named = tasks.filter(|task| {
            let name = std::fs::read_to_string(task.path().join("comm"));
            name.is_ok_and(|name| name.trim() == "ublk-control")
        });
        let thread = named.next().unwrap().file_name().into_string().unwrap();
        assert!(named.next().is_none(), "which one is it?");
        let thread: libc::c_long = thread.parse().unwrap();
        let process = libc::c_long::from(std::process::id());
        let over = Arc::<AtomicBool>::default();
        let ends = Arc::clone(&over);
        let storm = std::thread::spawn(move || {
            let mut sent = 0;
            while !ends.load(Ordering::Relaxed) {
                // SAFETY: it takes three numbers, and touches no memory of this process.
                unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
                sent += 1;
                // Often enough to meet every command, and the thread still gets on.
                std::thread::sleep(Duration::from_micros(200));
            }
            drop(handled);
            sent
        });
        SignalStorm(over, Some(storm))
    }

    fn stop_and_count(mut self) -> u64 {
        self.0.store(true, Ordering::Relaxed);
        self.1.take().unwrap().join().unwrap()
    }
}

impl Drop for SignalStorm {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn signals_at_the_control_thread_fail_no_command() {
    let Some(world) = World::new() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let storm = SignalStorm::at_the_control_thread(&runtime);
    for _ in 0..2 {
        let (first, next) = (ring("first"), ring("next"));
        let live = world.serve(&spec(), &[first.handle().clone()]);
        let id = live.id();
        let report = shut_down(&world.control, vec![live], vec![first], PATIENT);
        assert_eq!(report.unconfirmed, []);
        let (live, how) = world.open(id, &[next.handle().clone()]);
        assert_eq!(how, Origin::Recovered);
        live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
    }
    let sent = storm.stop_and_count();
    println!("{sent} signals");
    assert!(sent > 10);
    assert_eq!(world.control.devices().unwrap(), []);
}

#[test]
fn when_one_of_two_reactors_dies_the_device_is_left_and_recovered() {
    let Some(world) = World::new() else { return };
    let (dies, stays) = (ring("dies"), ring("stays"));
    let handles: Vec<Handle> = [&dies, &stays]
        .map(|one: &Reactor| one.handle().clone())
        .into();
    let live = world.serve(&spec(), &handles);
    assert_eq!(live.grant().queues, 2);
    let id = live.id();
    let reader = Reader::start(&live.path());
    reader.wait_for_progress();
    drop(dies);
    let report = shut_down(&world.control, vec![live], vec![stays], PATIENT);
    println!("{report:?}");
    assert_eq!(report.unconfirmed, []);
    let next = ring("next");
    let (live, how) = world.open(id, &[next.handle().clone()]);
    assert_eq!(how, Origin::Recovered);
    reader.wait_for_progress();
    println!("{} reads, none failed", reader.end());
    live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
}

#[test]
fn a_disk_that_fails_without_a_server_works_again_with_the_next_one() {
    let Some(world) = World::new() else { return };
    let fails = DeviceSpec {
        wants: Wants::default()
            .with(Capability::FailIo, Want::Require)
            .with(Capability::Reissue, Want::Avoid),
        ..spec()
    };
    if !world.has(sys::F_RECOVERY_FAIL_IO) {
        let error = device::add(&world.control, &fails, Null::MODES).unwrap_err();
        assert!(error.remedy().contains("6.13"), "{error}");
        return;
    }
    let reactor = ring("fails");
    let live = world.serve(&fails, &[reactor.handle().clone()]);
    let (id, client) = (live.id(), disk(&live.path()));
    read(&client, 0).unwrap();
    let report = shut_down(&world.control, vec![live], vec![reactor], PATIENT);
    assert_eq!(report.unconfirmed, []);
    assert_eq!(world.state(id), DeviceState::FailIo);
    read(&client, 0).unwrap_err();
    let next = ring("next");
    let (live, how) = world.open(id, &[next.handle().clone()]);
    assert_eq!(how, Origin::Recovered);
    read(&client, 0).unwrap();
    drop(client);
    live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
}

/// Kills its process in the middle of a recovery: as soon as one queue has its tags out.
struct ExitingHandler;

impl Handler for ExitingHandler {
    const MODES: Modes = Modes::ALL;

    fn on_attached<P: Port>(&mut self, _queue: &mut QueueCx<'_, P>) {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
            .unwrap();
    }

    fn on_request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        queue.complete(request);
    }
}

/// Not a test by itself: dies while it recovers a device.
#[test]
#[ignore = "a role in another test"]
fn dies_recovering() {
    let Some(id) = my_role() else { return };
    let reactor = ring("dies");
    let reactors = [reactor.handle().clone()];
    let control = ControlDevice::open().unwrap();
    let result = open_or_recover(
        OpenRequest {
            control: &control,
            id,
            spec: &spec(),
            reactors: &reactors,
            options: &QueueOptions::default(),
            within: DEADLINE,
        },
        |_| ExitingHandler,
    );
    panic!(
        "it did not die: {:?}",
        result.map(|(live, how)| (live.id(), how))
    );
}

#[test]
fn a_server_killed_while_it_recovers_leaves_a_disk_that_is_recovered_or_removed() {
    let Some(world) = World::new() else { return };
    let reactor = ring("first");
    let live = world.serve(&spec(), &[reactor.handle().clone()]);
    let id = live.id();
    shut_down(&world.control, vec![live], vec![reactor], PATIENT);
    let died = role("dies_recovering", id).output().unwrap();
    assert_eq!(died.status.signal(), Some(libc::SIGKILL), "{died:?}");

    let next = ring("next");
    let reactors = [next.handle().clone()];
    let opened = open_or_recover(
        OpenRequest {
            control: &world.control,
            id,
            spec: &spec(),
            reactors: &reactors,
            options: &QueueOptions::default(),
            within: DEADLINE,
        },
        |_| Null,
    );
    match opened {
        Ok((live, how)) => {
            assert_eq!(how, Origin::Recovered);
            read(&disk(&live.path()), 0).unwrap();
            live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
        }
        Err(error) => {
            println!("{error}");
            assert!(!world.has(sys::F_PER_IO_TASK), "{error}");
            assert!(error.remedy().contains("delete it"), "{error}");
            device::remove(&world.control, id, DEADLINE).unwrap();
        }
    }
    assert_eq!(world.control.devices().unwrap(), []);
}

/// Serves in any mode, and does nothing: what is read is no data, or an error.
struct IdleHandler;

impl Handler for IdleHandler {
    const MODES: Modes = Modes::ALL;

    fn on_request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        queue.complete(request);
    }
}

/// generic_17.
#[test]
fn what_a_server_killed_while_it_recovers_leaves_can_be_removed_in_every_mode() {
    let Some(world) = World::new() else { return };
    if std::env::var("FIRN_UBLK_TABLE").as_deref() != Ok("all") {
        println!("skipped: only in the whole table");
        return;
    }
    let has = |mode: &DataMode| world.has(mode.flags());
    for mode in DataMode::LADDER.into_iter().filter(has) {
        let forced = DeviceSpec {
            mode: ModeChoice::Only(mode),
            ..spec()
        };
        let reactor = ring("first");
        let added = device::add(&world.control, &forced, IdleHandler::MODES).unwrap();
        let handles = [reactor.handle().clone()];
        let armed = added
            .attach(&handles, &QueueOptions::default(), |_| IdleHandler)
            .unwrap();
        let live = armed.start(DEADLINE).unwrap();
        assert_eq!(live.grant().mode, mode);
        let id = live.id();
        shut_down(&world.control, vec![live], vec![reactor], PATIENT);
        let died = role("dies_recovering", id).output().unwrap();
        assert_eq!(
            died.status.signal(),
            Some(libc::SIGKILL),
            "{mode}: {died:?}"
        );
        device::remove(&world.control, id, DEADLINE).unwrap();
        assert_eq!(world.control.devices().unwrap(), [], "{mode}");
    }
}

/// Not a test by itself: opens the control device as somebody who may not.
#[test]
#[ignore = "a role in another test"]
fn opens_without_rights() {
    if my_role().is_none() {
        return;
    }
    let error = ControlDevice::open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    println!("refused: {error}");
}

#[test]
fn without_rights_the_control_device_says_what_is_missing() {
    let Some(_world) = World::new() else { return };
    let output = role("opens_without_rights", 0).uid(65534).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("refused: ublk: opening the control device"),
        "{text}"
    );
    assert!(text.contains("run as root"), "{text}");
}
