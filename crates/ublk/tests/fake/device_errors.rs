//! Lifecycles of devices with faults, on the fake driver: errors with remedies, and nothing left
//! behind. The reactors are real ones, and their commands find no driver: every fetch is refused.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reactor::{Config, Port, Reactor};
use ublk::control::port::ControlPort;
use ublk::control::{COMMAND_TIMEOUT, ControlDevice};
use ublk::device::{self, DeviceState, OpenRequest, QueueOptions, open_or_recover};
use ublk::error::{ErrorKind, Operation};
use ublk::negotiate::RequestedFeature;
use ublk::queue::{Handler, QueueCx};
use ublk::spec::Segments;
use ublk::{DataMode, DeviceSpec, Disk, ModeChoice, Modes, Request, sys};
use ublk_fake::{Driver, FakePort, Profile};

struct Any;

impl Handler for Any {
    fn on_request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        queue.complete(request);
    }
}

struct CopyOnly;

impl Handler for CopyOnly {
    const MODES: Modes = Modes::NONE.and(DataMode::Copy);

    fn on_request<P: Port>(&mut self, queue: &mut QueueCx<'_, P>, request: Request) {
        queue.complete(request);
    }
}

fn control(profile: Profile) -> (ControlDevice, Driver) {
    let driver = Driver::new(profile);
    let port = FakePort::new(driver.clone(), std::process::id() as i32);
    (
        ControlDevice::with_port(Arc::new(port), u64::MAX).unwrap(),
        driver,
    )
}

fn spec() -> DeviceSpec {
    DeviceSpec {
        depth: 4,
        io_bytes_max: 64 << 10,
        ..DeviceSpec::new(Disk::new(1 << 20))
    }
}

fn ring() -> Reactor {
    Reactor::start(Config {
        pool_bytes: 2 << 20,
        reserve_bytes: 1 << 20,
        ..Config::default()
    })
    .unwrap()
}

fn open(control: &ControlDevice, id: u32, within: Duration) -> ublk::Error {
    let reactor = ring();
    open_or_recover(
        OpenRequest {
            control,
            id,
            spec: &spec(),
            reactors: &[reactor.handle().clone()],
            options: &QueueOptions::default(),
            within,
        },
        |_| Any,
    )
    .unwrap_err()
}

#[test]
fn a_fetch_that_is_refused_cancels_the_start_and_the_device_goes_again() {
    for profile in Profile::ALL {
        let (control, driver) = control(profile);
        let reactor = ring();
        let added = device::add(&control, &spec(), Any::MODES).unwrap();
        let handles = [reactor.handle().clone()];
        let armed = added
            .attach(&handles, &QueueOptions::default(), |_| Any)
            .unwrap();
        let begun = Instant::now();
        let error = armed.start(60 * COMMAND_TIMEOUT).unwrap_err();
        assert_eq!(error.operation(), Operation::Fetch, "{error}");
        assert!(
            begun.elapsed() < 3 * COMMAND_TIMEOUT,
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(driver.devices(), [0; 0], "left behind on {}", profile.name);
    }
}

#[test]
fn what_a_spec_cannot_have_is_refused_before_anything_is_added() {
    for profile in Profile::ALL {
        let (control, driver) = control(profile);
        let wrong = [
            DeviceSpec { depth: 0, ..spec() },
            DeviceSpec {
                queues: 5000,
                ..spec()
            },
            DeviceSpec {
                disk: Disk::new(1000),
                ..spec()
            },
        ];
        for spec in wrong {
            let error = device::add(&control, &spec, Any::MODES).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
        let forced = DeviceSpec {
            mode: ModeChoice::Only(DataMode::ZeroCopy),
            ..spec()
        };
        let result = device::add(&control, &forced, Any::MODES);
        if profile.has(DataMode::ZeroCopy.flags()) {
            result.unwrap().delete(COMMAND_TIMEOUT).unwrap();
        } else {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.remedy().contains("6.16"), "{error}");
        }
        assert_eq!(driver.devices(), [0; 0]);
    }
}

#[test]
fn a_handler_that_cannot_serve_what_was_granted_is_refused_and_the_device_goes_again() {
    let (control, driver) = control(Profile::V7_2);
    let reactor = ring();
    let handles = [reactor.handle().clone()];
    let added = device::add(&control, &spec(), Any::MODES).unwrap();
    let error = added
        .attach(&handles, &QueueOptions::default(), |_| CopyOnly)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HandlerMismatch, "{error}");
    assert!(error.to_string().contains("zero-copy"), "{error}");
    assert_eq!(driver.devices(), [0; 0]);
}

#[test]
fn a_number_in_use_is_told_and_its_device_stays() {
    let (control, driver) = control(Profile::V6_12);
    let spec = DeviceSpec {
        id: Some(5),
        ..spec()
    };
    let first = device::add(&control, &spec, Any::MODES).unwrap();
    let error = device::add(&control, &spec, Any::MODES).unwrap_err();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::InUse, Some(libc::EEXIST))
    );
    assert_eq!(driver.devices(), [5]);
    first.delete(COMMAND_TIMEOUT).unwrap();
    assert_eq!(driver.devices(), [0; 0]);
}

#[test]
fn parameters_that_the_kernel_leaves_out_are_told() {
    let spec = DeviceSpec {
        disk: Disk {
            segments: Some(Segments {
                max: 32,
                bytes_max: 65536,
                boundary: 4096,
            }),
            ..Disk::new(1 << 20)
        },
        ..spec()
    };
    for profile in Profile::ALL {
        let (control, _driver) = control(profile);
        let added = device::add(&control, &spec, Any::MODES).unwrap();
        let told = added
            .grant()
            .missing
            .iter()
            .any(|one| one.feature == RequestedFeature::Params(sys::PARAM_SEGMENT));
        let known = profile.params & sys::PARAM_SEGMENT != 0;
        assert_eq!(told, !known, "{}", profile.name);
    }
}

#[test]
fn a_device_that_is_open_elsewhere_is_waited_for_and_never_doubled() {
    let (control, driver) = control(Profile::V7_2);
    let added = device::add(&control, &spec(), Any::MODES).unwrap();
    let holder = FakePort::new(driver.clone(), 4711);
    let held = holder.open_char(added.id()).unwrap();
    let begun = Instant::now();
    let error = open(&control, added.id(), Duration::from_millis(200));
    assert_eq!(
        (error.kind(), error.operation()),
        (ErrorKind::InUse, Operation::OpenChar)
    );
    assert!(
        begun.elapsed() >= Duration::from_millis(200),
        "it gave up early"
    );
    assert_eq!(driver.devices(), [added.id()]);
    drop(held);
}

#[test]
fn a_device_without_a_disk_is_replaced_and_goes_where_that_fails() {
    let (control, driver) = control(Profile::V7_2);
    let added = device::add(&control, &spec(), Any::MODES).unwrap();
    let error = open(&control, added.id(), 3 * COMMAND_TIMEOUT);
    assert_eq!(error.operation(), Operation::Fetch, "{error}");
    assert_eq!(driver.devices(), [0; 0]);
}

#[test]
fn what_nobody_serves_is_listed_and_removed() {
    let (control, driver) = control(Profile::V6_12);
    for _ in 0..3 {
        drop(device::add(&control, &spec(), Any::MODES).unwrap());
    }
    let orphans = device::list_unserved(&control).unwrap();
    assert_eq!(orphans.len(), 3);
    assert!(orphans.iter().all(|one| one.state == DeviceState::Dead));
    for orphan in orphans {
        device::remove(&control, orphan.info.device, COMMAND_TIMEOUT).unwrap();
    }
    assert_eq!(driver.devices(), [0; 0]);
    device::remove(&control, 0, COMMAND_TIMEOUT).unwrap();
}

/// Where a queue's descriptors are mapped from the character devices of this fake: offset, bytes.
fn mapped(inode: u64) -> Vec<(u64, u64)> {
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_line = |line: &str| {
        let mut words = line.split_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let (offset, own) = (words.nth(1)?, words.nth(1)?.parse::<u64>().ok()?);
        (own == inode).then(|| (hex(offset), hex(to) - hex(from)))
    };
    let mut mapped: Vec<_> = maps.lines().filter_map(of_line).collect();
    mapped.sort_unstable();
    mapped
}

#[test]
fn the_descriptors_of_a_queue_are_mapped_where_and_as_far_as_its_device_says() {
    let page = 4096;
    for (profile, stride) in [(Profile::V7_2, 24), (Profile::V7_3, 64)] {
        let (control, driver) = control(profile);
        let spec = DeviceSpec {
            queues: 2,
            depth: 100,
            flags: sys::F_DESCRIPTOR_BYTES,
            ..spec()
        };
        let added = device::add(&control, &spec, Any::MODES).unwrap();
        assert_eq!(u64::from(added.grant().descriptor_bytes), stride);
        let inode = driver.inode_of(added.id()).unwrap();
        let reactor = ring();
        let handles = [reactor.handle().clone()];
        let armed = added
            .attach(&handles, &QueueOptions::default(), |_| Any)
            .unwrap();
        let bytes = (100 * stride).next_multiple_of(page);
        assert_eq!(mapped(inode), [(0, bytes), (4096 * stride, bytes)]);
        armed.start(COMMAND_TIMEOUT).unwrap_err();
        assert_eq!(mapped(inode), []);
    }
}
