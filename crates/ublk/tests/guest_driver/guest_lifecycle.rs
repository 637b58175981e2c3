//! Lifecycles of devices on a real kernel: run as root in a guest, after `modprobe ublk_drv`.
//!
//! Elsewhere each test says `skipped: no /dev/ublk-control`. What a test starts ends with it:
//! devices are removed, and servers in processes of their own die with their standard input.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use reactor::{Config, Handle, Reactor};
use ublk::control::ControlDevice;
use ublk::device::{
    self, DeviceState, LiveDevice, OpenRequest, Origin, QueueOptions, open_or_recover,
};
use ublk::error::{ErrorKind, Operation};
use ublk::exit::{ExitTimeouts, shut_down};
use ublk::queue::Handler;
use ublk::{Capability, DeviceSpec, Want, Wants, sys};

use crate::lifecycle::{DEADLINE, Null, PATIENT, Reader, World, disk, path_of, read, ring, spec};

/// Tells a process that it is a server, and of which device.
const SERVER_OF: &str = "GUEST_SERVER_OF";
/// Tells a process which device to look at.
const LOOKS_AT: &str = "GUEST_LOOKS_AT";

#[test]
fn a_device_lives_from_its_spec_to_its_deletion() {
    let Some(world) = World::new() else { return };
    let reactor = ring("life");
    let live = world.serve(&spec(), &[reactor.handle().clone()]);
    println!("granted: {:?}", live.grant());
    let id = live.id();
    assert_eq!(world.state(id), DeviceState::Live);
    read(&disk(&live.path()), 4096).unwrap();
    assert!(live.stats().iter().map(|queue| queue.requests).sum::<u64>() > 0);
    let stopped = live.stop(DEADLINE).unwrap();
    assert_eq!(world.state(id), DeviceState::Dead);
    stopped.delete(DEADLINE).unwrap();
    assert_eq!(world.control.devices().unwrap(), []);
    assert!(!path_of(id).exists());
}

#[test]
fn dropping_a_live_device_leaves_it_served() {
    let Some(world) = World::new() else { return };
    let reactor = ring("dropped");
    let live = world.serve(&spec(), &[reactor.handle().clone()]);
    let id = live.id();
    drop(live);
    read(&disk(&path_of(id)), 0).unwrap();
    let listed = device::list(&world.control).unwrap();
    assert!(
        listed
            .iter()
            .any(|one| one.info.device == id && one.has_server)
    );
    assert_eq!(device::list_unserved(&world.control).unwrap().len(), 0);
    let error = device::remove(&world.control, id, DEADLINE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
}

#[test]
fn one_device_leaves_a_ring_and_the_other_does_not_notice() {
    let Some(world) = World::new() else { return };
    let reactor = ring("shared");
    let reactors = [reactor.handle().clone()];
    let stays = world.serve(&spec(), &reactors);
    let reader = Reader::start(&stays.path());
    for _ in 0..5 {
        let leaves = world.serve(&spec(), &reactors);
        read(&disk(&leaves.path()), 0).unwrap();
        reader.wait_for_progress();
        let begun = Instant::now();
        let stopped = leaves.stop(DEADLINE).unwrap();
        let took = begun.elapsed();
        stopped.delete(DEADLINE).unwrap();
        println!("stopped in {took:?}, deleted after {:?}", begun.elapsed());
        reader.wait_for_progress();
    }
    println!("{} reads meanwhile", reader.end());
    stays.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
}

#[test]
fn a_disk_in_use_is_not_stopped_safely_and_goes_on() {
    let Some(world) = World::new() else { return };
    let reactor = ring("safe");
    let live = world.serve(&spec(), &[reactor.handle().clone()]);
    let user = disk(&live.path());
    let kept = live.try_stop(DEADLINE).unwrap_err();
    if !world.has(sys::F_SAFE_STOP) {
        assert_eq!(kept.error.kind(), ErrorKind::Unsupported, "{kept}");
        return;
    }
    assert_eq!(kept.error.kind(), ErrorKind::Busy, "{kept}");
    read(&user, 0).unwrap();
    drop(user);
    let stopped = kept.device.try_stop(DEADLINE).unwrap();
    stopped.delete(DEADLINE).unwrap();
}

#[test]
fn a_live_disk_changes_its_size() {
    let Some(world) = World::new() else { return };
    let reactor = ring("size");
    let live = world.serve(&spec(), &[reactor.handle().clone()]);
    let error = live.resize(1000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let resized = live.resize(128 << 20);
    if !world.has(sys::F_UPDATE_SIZE) {
        assert_eq!(resized.unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    resized.unwrap();
    let sectors = std::fs::read_to_string(format!("/sys/block/ublkb{}/size", live.id())).unwrap();
    assert_eq!(sectors.trim(), "262144");
    read(&disk(&live.path()), 100 << 20).unwrap();
    live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
}

#[test]
fn a_quiesced_disk_waits_for_its_next_server() {
    let Some(world) = World::new() else { return };
    let reactor = ring("quiesce");
    let reactors = [reactor.handle().clone()];
    let live = world.serve(&spec(), &reactors);
    let (id, path) = (live.id(), live.path());
    if !world.has(sys::F_QUIESCE) {
        let kept = live.quiesce(DEADLINE).unwrap_err();
        assert!(kept.to_string().contains("6.16"), "{kept}");
        return;
    }
    let reader = Reader::start(&path);
    reader.wait_for_progress();
    let begun = Instant::now();
    let quiesced = live.quiesce(DEADLINE).unwrap();
    println!("quiesced in {:?}", begun.elapsed());
    assert_eq!(quiesced.id(), id);
    let next = ring("next");
    let (live, how) = world.open(id, &[next.handle().clone()]);
    assert_eq!(how, Origin::Recovered);
    reader.wait_for_progress();
    reader.end();
    live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
}

#[test]
fn a_server_that_leaves_is_seen_gone_and_its_disks_are_taken_over() {
    let Some(world) = World::new() else { return };
    let reactors: Vec<Reactor> = (0..2).map(|at| ring(&format!("leaves-{at}"))).collect();
    let handles: Vec<Handle> = reactors.iter().map(|one| one.handle().clone()).collect();
    let devices: Vec<LiveDevice> = (0..4).map(|_| world.serve(&spec(), &handles)).collect();
    let ids: Vec<u32> = devices.iter().map(LiveDevice::id).collect();
    let reader = Reader::start(&devices[0].path());
    reader.wait_for_progress();
    let begun = Instant::now();
    let report = shut_down(&world.control, devices, reactors, PATIENT);
    println!("left in {:?}: {report:?}", begun.elapsed());
    assert_eq!(report.unconfirmed, []);
    for id in &ids {
        assert_eq!(world.state(*id), DeviceState::Quiesced);
    }
    assert_eq!(device::list_unserved(&world.control).unwrap().len(), 4);

    let next = ring("next");
    let handles = [next.handle().clone()];
    let mut taken = Vec::new();
    for id in &ids {
        let (live, how) = world.open(*id, &handles);
        assert_eq!(how, Origin::Recovered);
        taken.push(live);
    }
    reader.wait_for_progress();
    println!("{} reads, none failed", reader.end());
    assert_eq!(
        world.control.devices().unwrap().len(),
        4,
        "no second device"
    );
    for live in taken {
        live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
    }
}

#[test]
fn sixty_four_devices_on_one_ring_are_left_together_and_taken_over() {
    let Some(world) = World::new() else { return };
    let small = DeviceSpec {
        queues: 1,
        ..spec()
    };
    let reactor = ring("many");
    let handles = [reactor.handle().clone()];
    let begun = Instant::now();
    let devices: Vec<LiveDevice> = (0..64).map(|_| world.serve(&small, &handles)).collect();
    println!("64 devices live after {:?}", begun.elapsed());
    let ids: Vec<u32> = devices.iter().map(LiveDevice::id).collect();
    let begun = Instant::now();
    // Without QUIESCE the driver takes a grace period of the kernel's for each device, one after the
    // other: seen in time or not, the server is gone in time, and its successor waits for what is
    // missing.
    let limits = match world.has(sys::F_QUIESCE) {
        true => PATIENT,
        false => ExitTimeouts::default(),
    };
    let report = shut_down(&world.control, devices, vec![reactor], limits);
    println!(
        "left after {:?}: quiesced {:?}, rings {:?}, files {:?}, seen {:?}, {:?}",
        begun.elapsed(),
        report.quiesce_time,
        report.stop_time,
        report.close_time,
        report.confirm_time,
        report.reactors
    );
    assert_eq!(report.quiesce_failures, []);
    if world.has(sys::F_QUIESCE) {
        assert_eq!(report.unconfirmed, []);
    }
    println!("{} devices not seen in time", report.unconfirmed.len());
    let bound = limits.confirm + DEADLINE;
    assert!(report.confirm_time < bound, "{:?}", report.confirm_time);
    let next = ring("next");
    let handles = [next.handle().clone()];
    let begun = Instant::now();
    for id in &ids {
        let (live, how) = world.open(*id, &handles);
        assert_eq!(how, Origin::Recovered);
        read(&disk(&live.path()), 0).unwrap();
    }
    println!("taken over after {:?}", begun.elapsed());
    assert_eq!(world.control.devices().unwrap(), ids, "no second device");
}

#[test]
fn a_disk_without_recovery_goes_with_its_server() {
    let Some(world) = World::new() else { return };
    let spec = DeviceSpec {
        wants: Wants::NOTHING.with(Capability::Recovery, Want::Avoid),
        ..spec()
    };
    let reactor = ring("no-recovery");
    let live = world.serve(&spec, &[reactor.handle().clone()]);
    let id = live.id();
    let report = shut_down(&world.control, vec![live], vec![reactor], PATIENT);
    assert_eq!(report.unconfirmed, []);
    assert_eq!(world.state(id), DeviceState::Dead);
    device::remove(&world.control, id, DEADLINE).unwrap();
    assert_eq!(world.control.devices().unwrap(), []);
}

#[test]
fn a_device_that_another_server_has_is_waited_for_and_then_refused() {
    let Some(world) = World::new() else { return };
    let reactor = ring("holder");
    let live = world.serve(&spec(), &[reactor.handle().clone()]);
    let other = ring("other");
    let begun = Instant::now();
    let error = open_or_recover(
        OpenRequest {
            control: &world.control,
            id: live.id(),
            spec: &spec(),
            reactors: &[other.handle().clone()],
            options: &QueueOptions::default(),
            within: Duration::from_millis(300),
        },
        |_| Null,
    )
    .unwrap_err();
    assert_eq!(
        (error.kind(), error.operation()),
        (ErrorKind::InUse, Operation::StartRecovery)
    );
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!(
        world.control.devices().unwrap(),
        [live.id()],
        "no second device"
    );
    read(&disk(&live.path()), 0).unwrap();
}

#[test]
fn a_number_that_is_free_is_added_and_one_that_has_no_disk_is_added_anew() {
    let Some(world) = World::new() else { return };
    let reactor = ring("number");
    let reactors = [reactor.handle().clone()];
    let (live, how) = world.open(41, &reactors);
    assert_eq!((live.id(), how), (41, Origin::Added));
    live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
    let added = DeviceSpec {
        id: Some(42),
        ..spec()
    };
    drop(device::add(&world.control, &added, Null::MODES).unwrap());
    let (live, how) = world.open(42, &reactors);
    assert_eq!((live.id(), how), (42, Origin::Added));
    read(&disk(&live.path()), 0).unwrap();
    live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
}

#[test]
fn a_device_without_a_disk_is_brought_alive_whoever_served_it_before() {
    let Some(world) = World::new() else { return };
    let (reactor, next) = (ring("before"), ring("after"));
    let (live, _) = world.open(43, &[reactor.handle().clone()]);
    drop(live.stop(DEADLINE).unwrap());
    for again in [&reactor, &next] {
        let (live, found) = world.open(43, &[again.handle().clone()]);
        assert_eq!(found, Origin::Added);
        read(&disk(&live.path()), 0).unwrap();
        drop(live.stop(DEADLINE).unwrap());
    }
    let (server, found) = Server::start(43);
    assert!(found.starts_with("Added"), "{found}");
    read(&disk(&path_of(43)), 0).unwrap();
    drop(server);
    assert_eq!(world.control.devices().unwrap(), [43], "no second device");
}

#[test]
fn a_start_that_cannot_be_leaves_nothing_behind() {
    let Some(world) = World::new() else { return };
    let gone = ring("gone");
    let handle = gone.handle().clone();
    drop(gone);
    let added = device::add(&world.control, &spec(), Null::MODES).unwrap();
    let error = added
        .attach(&[handle], &QueueOptions::default(), |_| Null)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    let added = device::add(&world.control, &spec(), Null::MODES).unwrap();
    let error = added
        .attach(&[], &QueueOptions::default(), |_| Null)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(world.control.devices().unwrap(), []);
}

/// Not a test by itself: the server process of the next one.
#[test]
#[ignore = "a role in another test"]
fn serves_for_others() {
    let Ok(id) = std::env::var(SERVER_OF) else {
        return;
    };
    let control = ControlDevice::open().unwrap();
    let reactor = ring("child");
    let begun = Instant::now();
    let (live, how) = open_or_recover(
        OpenRequest {
            control: &control,
            id: id.parse().unwrap(),
            spec: &spec(),
            reactors: &[reactor.handle().clone()],
            options: &QueueOptions::default(),
            within: DEADLINE,
        },
        |_| Null,
    )
    .unwrap();
    println!("live {how:?} {}", begun.elapsed().as_millis());
    // Until it is killed, or whoever started it is gone.
    let _ = std::io::stdin().read(&mut [0]);
    drop(live);
}

struct Server(Child);

impl Server {
    /// Starts a server and waits until it says that its device lives.
    fn start(id: u32) -> (Server, String) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "guest_lifecycle::serves_for_others",
                "--nocapture",
            ])
            .env(SERVER_OF, id.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let server = Server(child);
        let mut lines = lines.map_while(Result::ok);
        let live = lines.find_map(|line| Some(line.split_once("live ")?.1.to_owned()));
        (server, live.expect("the server came alive"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_server_that_is_killed_twenty_times_loses_no_read() {
    let Some(world) = World::new() else { return };
    let id = 9;
    let (mut server, how) = Server::start(id);
    assert!(how.starts_with("Added"), "{how}");
    let reader = Reader::start(&path_of(id));
    for round in 0..20 {
        reader.wait_for_progress();
        server.0.kill().unwrap();
        // At once: the old process need not even be reaped.
        let (next, how) = Server::start(id);
        println!("round {round}: {how} ms");
        assert!(how.starts_with("Recovered"), "{how}");
        drop(std::mem::replace(&mut server, next));
        assert_eq!(world.control.devices().unwrap(), [id], "no second device");
    }
    reader.wait_for_progress();
    println!("{} reads, none failed", reader.end());
    drop(server);
    let deadline = Instant::now() + DEADLINE;
    while world.state(id) == DeviceState::Live {
        assert!(Instant::now() < deadline, "the driver never notices");
        std::thread::sleep(Duration::from_millis(5));
    }
    device::remove(&world.control, id, DEADLINE).unwrap();
    assert_eq!(world.control.devices().unwrap(), []);
}

/// Not a test by itself: looks at the next one's disk, from where its server's process is not seen.
#[test]
fn looks_for_orphans() {
    let Ok(id) = std::env::var(LOOKS_AT) else {
        return;
    };
    let (control, id) = (ControlDevice::open().unwrap(), id.parse().unwrap());
    println!("{:?}", control.info(id).unwrap());
    assert_eq!(device::list_unserved(&control).unwrap().len(), 0);
    let removed = device::remove(&control, id, Duration::from_millis(100));
    assert_eq!(removed.unwrap_err().kind(), ErrorKind::InUse);
}

#[test]
fn a_disk_that_is_served_from_another_namespace_is_no_orphan() {
    let Some(world) = World::new() else { return };
    if !Path::new("/proc/self/ns/pid").exists() {
        println!("skipped: this kernel lacks process id namespaces");
        return;
    }
    let reactor = ring("seen");
    let live = world.serve(&spec(), &[reactor.handle().clone()]);
    let looked = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child"])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "guest_lifecycle::looks_for_orphans",
            "--nocapture",
        ])
        .env(LOOKS_AT, live.id().to_string())
        .status()
        .unwrap();
    assert!(looked.success());
    read(&disk(&live.path()), 0).unwrap();
    live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
}

#[test]
fn more_tags_than_completion_entries_lose_no_request() {
    let Some(world) = World::new() else { return };
    let reactor = Reactor::start(Config {
        name: "narrow".to_owned(),
        entries: 8,
        completions: 8,
        pool_bytes: 8 << 20,
        reserve_bytes: 1 << 20,
        ..Config::default()
    })
    .unwrap();
    let wide = DeviceSpec {
        depth: 128,
        ..spec()
    };
    let live = world.serve(&wide, &[reactor.handle().clone()]);
    // Far more requests at once than there are entries.
    let readers: Vec<_> = (0..32).map(|_| Reader::start(&live.path())).collect();
    for _ in 0..2 {
        readers.iter().for_each(Reader::wait_for_progress);
    }
    let reads: u64 = readers.into_iter().map(Reader::end).sum();
    println!("{reads} reads, 32 at once, through 8 entries");
    // Every one of the 256 tags is told that it is over, at once; the stop waits for them.
    live.stop(DEADLINE).unwrap().delete(DEADLINE).unwrap();
    let report = reactor.stop(DEADLINE);
    assert_eq!(
        (report.ops_abandoned, report.sources_forced),
        (0, 0),
        "{report:?}"
    );
}
