//! Control commands against a real kernel: run as root in a guest, after `modprobe ublk_drv`.
//!
//! Elsewhere each test says `skipped: no /dev/ublk-control`. Every device that a test adds is
//! deleted when the test ends, also on panic.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ublk::control::{COMMAND_TIMEOUT, CancelToken, ControlDevice};
use ublk::device;
use ublk::error::ErrorKind;
use ublk::negotiate;
use ublk::sys::{self, DeviceInfo};
use ublk::{DataMode, DeviceSpec, Disk, Features, ModeChoice, Modes};

/// One test at a time: some change what others would see.
static ALONE: Mutex<()> = Mutex::new(());

struct World {
    control: ControlDevice,
    added: Vec<u32>,
    _alone: MutexGuard<'static, ()>,
}

impl World {
    fn new() -> Option<World> {
        if !Path::new(sys::CONTROL_PATH).exists() {
            println!("skipped: no {}", sys::CONTROL_PATH);
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Some(World {
            control: ControlDevice::open().unwrap(),
            added: Vec::new(),
            _alone: alone,
        })
    }

    fn add(&mut self, spec: &DeviceSpec) -> Result<DeviceInfo, ublk::Error> {
        let ask = negotiate::choose_flags(spec, self.control.offer(), Modes::ALL)?;
        let wanted = DeviceInfo {
            queues: spec.queues,
            depth: spec.depth,
            io_bytes_max: spec.io_bytes_max,
            device: spec.id.unwrap_or(u32::MAX),
            flags: ask.flags.bits(),
            ..DeviceInfo::default()
        };
        let info = self.control.add_device(&wanted, COMMAND_TIMEOUT)?;
        self.added.push(info.device);
        Ok(info)
    }

    /// A device that could be started, and its number.
    fn add_with_params(&mut self) -> u32 {
        let device = self.add(&spec()).unwrap().device;
        let params = spec().disk.params(spec().io_bytes_max).unwrap();
        self.control.set_params(device, &params).unwrap();
        device
    }

    fn delete(&mut self, device: u32, within: Duration) -> Result<(), ublk::Error> {
        self.control.delete(device, within)?;
        self.added.retain(|one| *one != device);
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for device in &self.added {
            let _ = self.control.delete_async(*device, COMMAND_TIMEOUT);
        }
    }
}

fn spec() -> DeviceSpec {
    DeviceSpec {
        depth: 16,
        ..DeviceSpec::new(Disk::new(64 << 20))
    }
}

/// Waits until the condition holds, or fails.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + COMMAND_TIMEOUT;
    while !holds() {
        assert!(
            Instant::now() < deadline,
            "not within {COMMAND_TIMEOUT:?}: {what}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_device_is_added_described_and_deleted() {
    let Some(mut world) = World::new() else {
        return;
    };
    println!("features: {:?}", world.control.features());
    assert!(world.control.features().has(sys::F_USER_COPY));
    let spec = spec();
    let info = world.add(&spec).unwrap();
    let ask = negotiate::choose_flags(&spec, world.control.offer(), Modes::ALL).unwrap();
    let granted = negotiate::check_grant(&spec, ask, world.control.offer(), &info).unwrap();
    println!("granted: {granted:?}");
    assert!(world.control.devices().unwrap().contains(&info.device));
    assert_eq!(info.state, sys::STATE_DEAD);

    let params = spec.disk.params(spec.io_bytes_max).unwrap();
    world.control.set_params(info.device, &params).unwrap();
    let read = world.control.params(info.device).unwrap();
    assert_eq!(read.basic, params.basic);

    let now = world.control.info(info.device).unwrap();
    assert_eq!(
        (now.queues, now.depth, now.flags),
        (info.queues, 16, info.flags)
    );

    world.delete(info.device, COMMAND_TIMEOUT).unwrap();
    assert!(!world.control.devices().unwrap().contains(&info.device));
    let error = world.control.info(info.device).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

/// generic_13.
#[test]
fn every_feature_of_the_kernel_has_a_name() {
    let Some(world) = World::new() else {
        return;
    };
    let features = world.control.features();
    assert_eq!(features.unknown(), Features::NONE, "{features}");
    assert_ne!(features, Features::NONE);
}

#[test]
fn every_mode_that_the_kernel_has_is_granted_when_forced_and_refused_otherwise() {
    let Some(mut world) = World::new() else {
        return;
    };
    for mode in DataMode::LADDER {
        let spec = DeviceSpec {
            mode: ModeChoice::Only(mode),
            ..spec()
        };
        if !world.control.features().has(mode.flags()) {
            let error = world.add(&spec).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            println!("{error}");
            continue;
        }
        let info = world.add(&spec).unwrap();
        assert_eq!(DataMode::of_flags(info.flags), mode, "{:#x}", info.flags);
        world.delete(info.device, COMMAND_TIMEOUT).unwrap();
    }
    assert_eq!(world.control.devices().unwrap(), []);
}

#[test]
fn a_number_that_is_taken_is_an_error_and_leaves_its_device_alone() {
    let Some(mut world) = World::new() else {
        return;
    };
    let first = DeviceSpec {
        id: Some(77),
        ..spec()
    };
    assert_eq!(world.add(&first).unwrap().device, 77);
    let error = world.add(&first).unwrap_err();
    assert_eq!(
        (error.kind(), error.device()),
        (ErrorKind::InUse, Some(77)),
        "{error}"
    );
    assert_eq!(world.control.devices().unwrap(), [77]);
}

#[test]
fn a_start_without_tags_ends_at_its_deadline_and_holds_up_nobody() {
    let Some(mut world) = World::new() else {
        return;
    };
    let device = world.add_with_params();
    let other = world.add(&spec()).unwrap().device;
    let _server = world.control.open_char(device).unwrap();
    let control = world.control.clone();
    let start = std::thread::spawn(move || {
        let within = Duration::from_secs(2);
        control.start(device, std::process::id(), within, &CancelToken::new())
    });
    let mut answered = 0;
    while !start.is_finished() {
        world.control.info(other).unwrap();
        answered += 1;
    }
    let error = start.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(answered > 1, "{answered} other commands meanwhile");
}

#[test]
fn a_start_without_tags_ends_when_it_is_cancelled() {
    let Some(mut world) = World::new() else {
        return;
    };
    let device = world.add_with_params();
    let _server = world.control.open_char(device).unwrap();
    let cancel = CancelToken::new();
    let (control, other) = (world.control.clone(), cancel.clone());
    let start = std::thread::spawn(move || {
        let begun = Instant::now();
        let result = control.start(device, std::process::id(), 60 * COMMAND_TIMEOUT, &other);
        (result, begun.elapsed())
    });
    // It waits already, or does not yet: either way it ends.
    std::thread::sleep(Duration::from_millis(100));
    cancel.cancel();
    let (result, took) = start.join().unwrap();
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(took < 30 * COMMAND_TIMEOUT, "{took:?}: not by its deadline");
}

#[test]
fn a_deletion_waits_for_who_has_the_device_open_up_to_its_deadline() {
    let Some(mut world) = World::new() else {
        return;
    };
    let device = world.add(&spec()).unwrap().device;
    let server = world.control.open_char(device).unwrap();
    let error = world
        .delete(device, Duration::from_millis(500))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(error.remedy().contains("end the old server"), "{error}");
    drop(server);
    eventually("the number is free", || {
        let info = world.control.info(device);
        info.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    });
}

#[test]
fn a_second_opener_of_a_character_device_is_told_so() {
    let Some(mut world) = World::new() else {
        return;
    };
    let device = world.add(&spec()).unwrap().device;
    let _server = world.control.open_char(device).unwrap();
    let error = world.control.open_char(device).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
}

#[test]
fn many_threads_give_commands_side_by_side() {
    let Some(mut world) = World::new() else {
        return;
    };
    let control = &world.control;
    let churn = || {
        for _ in 0..4 {
            let added = device::add(control, &spec(), Modes::ALL).unwrap();
            control.info(added.id()).unwrap();
            added.delete(4 * COMMAND_TIMEOUT).unwrap();
        }
        device::add(control, &spec(), Modes::ALL).unwrap().id()
    };
    let added: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(churn)).collect();
        threads.into_iter().map(|one| one.join().unwrap()).collect()
    });
    world.added.clone_from(&added);
    let mut sorted = added.clone();
    sorted.sort_unstable();
    assert_eq!(world.control.devices().unwrap(), sorted);
    for device in added {
        world.delete(device, COMMAND_TIMEOUT).unwrap();
    }
}

#[test]
fn commands_that_this_kernel_lacks_say_which_one_has_them() {
    let Some(mut world) = World::new() else {
        return;
    };
    // It has no disk yet, which each of them needs: what the kernel has, it refuses.
    let device = world.add(&spec()).unwrap().device;
    let control = &world.control;
    for (result, flag) in [
        (control.update_size(device, 8), sys::F_UPDATE_SIZE),
        (control.quiesce(device, COMMAND_TIMEOUT), sys::F_QUIESCE),
        (control.try_stop(device, COMMAND_TIMEOUT), sys::F_SAFE_STOP),
    ] {
        let error = result.unwrap_err();
        println!("{error}");
        let has = control.features().has(flag);
        assert_eq!(error.kind() == ErrorKind::Unsupported, !has, "{error}");
        assert_eq!(error.errno(), has.then_some(libc::ENODEV), "{error}");
    }
}
