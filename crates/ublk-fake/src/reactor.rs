//! Real reactors whose commands go to the fake driver, so that whole devices run on it with threads.
//!
//! They carry out commands that name memory (the data modes copy and get-data). Windows and buffer
//! slots are simulated by [`crate::Ring`] only.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use reactor::op::Command;
use reactor::{CommandDriver, Config, Reactor};
use zerocopy::FromBytes;

use crate::device::{RingId, TaskId};
use crate::driver::Driver;
use ublk::sys::IoCommand;

/// The next task number; tests name tasks of their own by small numbers.
static TASKS: AtomicU32 = AtomicU32::new(1 << 16);

struct FakeCommands {
    driver: Driver,
    ring: RingId,
    /// Keys of commands to files that are no devices.
    unsupported: Vec<u64>,
}

/// Starts a reactor whose ring is the fake driver's.
pub fn start_reactor(driver: &Driver, config: Config) -> io::Result<Reactor> {
    let driver = driver.clone();
    Reactor::start_with_command_driver(config, move || {
        let task = TaskId(TASKS.fetch_add(1, Ordering::Relaxed));
        Box::new(FakeCommands {
            ring: driver.open_ring(task, 0),
            driver,
            unsupported: Vec::new(),
        })
    })
}

impl CommandDriver for FakeCommands {
    unsafe fn submit(
        &mut self,
        key: u64,
        file: BorrowedFd<'_>,
        opcode: u32,
        payload: [u8; Command::PAYLOAD_BYTES],
        sqe_addr: Option<u64>,
    ) {
        let (Some(device), Ok(command)) = (
            self.driver.device_of(file),
            IoCommand::read_from_bytes(&payload),
        ) else {
            return self.unsupported.push(key);
        };
        // SAFETY: the caller's promise; the driver forgets commands when their ring is closed.
        unsafe {
            let addr = sqe_addr.unwrap_or_default();
            self.driver
                .io(self.ring, device, opcode, addr, command, key);
        }
    }

    fn take_completions(&mut self, out: &mut Vec<(u64, i32)>) {
        let unsupported = self.unsupported.drain(..);
        out.extend(unsupported.map(|key| (key, -libc::EOPNOTSUPP)));
        out.extend(self.driver.completions(self.ring));
    }
}

impl Drop for FakeCommands {
    fn drop(&mut self) {
        self.driver.close_ring(self.ring);
    }
}
