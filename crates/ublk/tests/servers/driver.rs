//! The driver, asked without the library under test.
//!
//! What a test believes of a device comes from here, from sysfs and from clients, never from the
//! library that it judges. One command at a time, each with a deadline.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use ublk::sys::{self, ControlCommand, DeviceInfo};
use zerocopy::IntoBytes;

/// No command of a healthy device takes longer, emulated or not.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs one control command; what `argument` points at must be what the command takes.
fn run(opcode: u32, mut command: ControlCommand, argument: &mut [u8]) -> io::Result<i32> {
    let control = File::options()
        .read(true)
        .write(true)
        .open(sys::CONTROL_PATH)?;
    let mut ring: IoUring<squeue::Entry128, cqueue::Entry> = IoUring::builder().build(4)?;
    command.queue = sys::NO_QUEUE;
    command.addr = argument.as_mut_ptr().addr() as u64;
    command.len = u16::try_from(argument.len()).expect("arguments are small");
    let mut payload = [0; 80];
    payload[..size_of_val(&command)].copy_from_slice(command.as_bytes());
    let file = types::Fd(control.as_raw_fd());
    let entry = opcode::UringCmd80::new(file, opcode).cmd(payload).build();
    // SAFETY: the kernel uses `argument` until the command completes, which is awaited below; where
    // it does not complete in time the process ends.
    unsafe { ring.submission().push(&entry) }.expect("the queue is empty");
    let time = types::Timespec::from(DEADLINE);
    let limits = types::SubmitArgs::new().timespec(&time);
    let result = loop {
        // Handed over and then interrupted, it says only the former.
        if let Some(wait_for_exit) = ring.completion().next() {
            break wait_for_exit.result();
        }
        match ring.submitter().submit_with_args(1, &limits) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => {
                eprintln!("command {opcode:#x} of device {} hangs", command.device);
                std::process::abort();
            }
            done => drop(done?),
        }
    };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(result)
}

fn of(device: u32) -> ControlCommand {
    ControlCommand {
        device,
        ..ControlCommand::default()
    }
}

/// What the driver can do.
pub fn features() -> u64 {
    let mut features = 0_u64;
    run(sys::GET_FEATURES, of(u32::MAX), features.as_mut_bytes()).expect("features");
    features
}

/// A device, if it is there.
pub fn info(device: u32) -> Option<DeviceInfo> {
    let mut info = DeviceInfo::default();
    match run(sys::GET_DEVICE_INFO, of(device), info.as_mut_bytes()) {
        Ok(_) => Some(info),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => None,
        Err(error) => panic!("info of device {device}: {error}"),
    }
}

/// The data mode that the driver serves a device in.
pub fn mode(device: u32) -> &'static str {
    let flags = info(device).expect("the device is there").flags;
    let has = |flag: u64| flags & flag != 0;
    match () {
        () if has(sys::F_ZERO_COPY) => "zero-copy",
        () if has(sys::F_USER_COPY) => "user-copy",
        () if has(sys::F_NEED_GET_DATA) => "get-data",
        () => "copy",
    }
}

/// Stops a device if nobody has it open; EBUSY otherwise. Linux 7.0.
pub fn try_stop(device: u32) -> io::Result<i32> {
    run(sys::TRY_STOP_DEVICE, of(device), &mut [])
}

/// Gives a live disk another size. Linux 6.16.
pub fn update_size(device: u32, sectors: u64) {
    let command = ControlCommand {
        data: sectors,
        ..of(device)
    };
    if let Err(error) = run(sys::UPDATE_SIZE, command, &mut []) {
        panic!("size of device {device}: {error}");
    }
}

/// Deletes a device and waits until it is gone; it is no error if it is gone already.
pub fn delete(device: u32) {
    loop {
        match run(sys::DELETE_DEVICE, of(device), &mut []) {
            Ok(_) => return,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return,
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => panic!("delete device {device}: {error}"),
        }
    }
}

/// The devices that there are.
pub fn devices() -> Vec<u32> {
    let names = std::fs::read_dir("/dev").expect("/dev").flatten();
    let mut ids: Vec<u32> = names
        .filter_map(|entry| {
            entry
                .file_name()
                .to_str()?
                .strip_prefix("ublkc")?
                .parse()
                .ok()
        })
        .collect();
    ids.sort_unstable();
    ids
}

/// Stops a device, whoever has it open.
pub fn stop(device: u32) {
    if let Err(error) = run(sys::STOP_DEVICE, of(device), &mut []) {
        panic!("stop device {device}: {error}");
    }
}

/// Deletes a device without waiting for its server to let go of it.
pub fn delete_async(device: u32) {
    if let Err(error) = run(sys::DELETE_DEVICE_ASYNC, of(device), &mut []) {
        panic!("delete device {device}: {error}");
    }
}
