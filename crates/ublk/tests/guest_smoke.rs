//! Whether there is ublk at all: the first thing that runs in a guest.
//!
//! It uses nothing but the numbers of `ublk::sys` and a ring, so that where it fails the lane is at
//! fault and not the library. It adds no device.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use ublk::sys;
use zerocopy::IntoBytes;

/// Whether the kernel's driver is here; says so where it is not.
fn is_here() -> bool {
    let here = Path::new(sys::CONTROL_PATH).exists();
    if !here {
        println!("skipped: no {}", sys::CONTROL_PATH);
    }
    here
}

/// The release of the running kernel, as numbers.
fn release() -> (u32, u32) {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut parts = text
        .split(['.', '-', '+'])
        .map(|part| part.parse().unwrap());
    (parts.next().unwrap(), parts.next().unwrap())
}

/// Asks the driver for its features.
fn features() -> u64 {
    let control = File::options()
        .read(true)
        .write(true)
        .open(sys::CONTROL_PATH)
        .unwrap();
    let mut ring: IoUring<squeue::Entry128, cqueue::Entry> = IoUring::builder().build(4).unwrap();
    let mut features = 0_u64;
    let command = sys::ControlCommand {
        device: u32::MAX,
        queue: sys::NO_QUEUE,
        len: 8,
        addr: (&raw mut features).addr() as u64,
        ..sys::ControlCommand::default()
    };
    let mut payload = [0; 80];
    payload[..size_of_val(&command)].copy_from_slice(command.as_bytes());
    let file = types::Fd(control.as_raw_fd());
    let entry = opcode::UringCmd80::new(file, sys::GET_FEATURES)
        .cmd(payload)
        .build();
    // SAFETY: the command writes eight bytes to `features`, which outlives the wait below.
    unsafe { ring.submission().push(&entry) }.unwrap();
    ring.submit_and_wait(1).unwrap();
    let result = ring.completion().next().unwrap().result();
    assert_eq!(result, 0, "GET_FEATURES");
    features
}

#[test]
fn the_driver_tells_the_features_that_its_release_has() {
    if !is_here() {
        return;
    }
    let features = features();
    println!("features {features:#x} of Linux {:?}", release());
    let everywhere = sys::F_USER_COPY
        | sys::F_NEED_GET_DATA
        | sys::F_RECOVERY
        | sys::F_RECOVERY_REISSUE
        | sys::F_IOCTL_ENCODE;
    assert_eq!(features & everywhere, everywhere);
    let since_6_16 = sys::F_ZERO_COPY | sys::F_AUTO_BUFFER | sys::F_QUIESCE | sys::F_UPDATE_SIZE;
    let expected = if release() >= (6, 16) { since_6_16 } else { 0 };
    assert_eq!(features & since_6_16, expected);
}

#[test]
fn no_device_is_there_before_one_is_added() {
    if !is_here() {
        return;
    }
    let names = std::fs::read_dir("/dev").unwrap().flatten();
    let devices: Vec<_> = names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("ublkb") || name.starts_with("ublkc"))
        .collect();
    assert!(devices.is_empty(), "{devices:?}");
}
