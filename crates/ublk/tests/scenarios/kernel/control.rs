//! One control command on a ring of its own.

use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, squeue, types};
use ublk::sys::{self, ControlCommand};
use zerocopy::IntoBytes;

/// Runs it to its end: the result, and the argument as it came back.
pub(super) fn run(opcode: u32, command: ControlCommand, argument: Vec<u8>) -> (i32, Vec<u8>) {
    match try_run(opcode, command, argument) {
        Ok(done) => done,
        Err(error) => panic!("the control ring failed: {error}"),
    }
}

fn try_run(
    opcode: u32,
    mut command: ControlCommand,
    mut argument: Vec<u8>,
) -> std::io::Result<(i32, Vec<u8>)> {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(sys::CONTROL_PATH)?;
    let mut ring: IoUring<squeue::Entry128> = IoUring::builder().build(2)?;
    if !argument.is_empty() {
        command.addr = argument.as_mut_ptr() as u64;
        command.len = argument.len() as u16;
    }
    let mut payload = [0; 80];
    payload[..32].copy_from_slice(command.as_bytes());
    let fd = types::Fd(file.as_raw_fd());
    let entry = opcode::UringCmd80::new(fd, opcode).cmd(payload).build();
    // SAFETY: the argument outlives the command, whose completion is waited for below.
    unsafe { ring.submission().push(&entry) }.expect("an empty ring has room");
    loop {
        match ring.submit_and_wait(1) {
            Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error),
            _ => {}
        }
        if let Some(completions) = ring.completion().next() {
            return Ok((completions.result(), argument));
        }
    }
}
