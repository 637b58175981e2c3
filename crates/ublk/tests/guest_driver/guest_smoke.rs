//! Whether there is ublk at all: the first thing that runs in a guest.
//!
//! It uses nothing but the numbers of `ublk::sys` and a ring, so that where it fails the lane is at
//! fault and not the library. It adds no device.

use std::path::Path;

use ublk::sys;

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

#[test]
fn the_driver_tells_the_features_that_its_release_has() {
    if !is_here() {
        return;
    }
    let features = crate::servers::driver::features();
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
    let devices = crate::servers::driver::devices();
    assert!(devices.is_empty(), "{devices:?}");
}
