//! The fake driver's control device, behind the same seam as the kernel's.
//!
//! It acts as a process whose number the test chooses. Each command that waits has a thread.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::{ControlId, Driver, Outcome};
use ublk::control::port::{Argument, Command, ControlPort, Failure, OnCompletion, Reply, Ticket};

/// Time between two polls of a command that waits.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The control device of a [`Driver`], as one process has it.
#[derive(Debug)]
pub struct FakePort {
    driver: Driver,
    pid: i32,
    next: AtomicU64,
    waiting: Arc<Mutex<BTreeMap<Ticket, ControlId>>>,
    /// Character devices that this process has opened.
    open: Mutex<Vec<(u32, Weak<OwnedFd>)>>,
}

impl FakePort {
    /// The control device, for process `pid`.
    pub fn new(driver: Driver, pid: i32) -> FakePort {
        FakePort {
            driver,
            pid,
            next: AtomicU64::new(0),
            waiting: Arc::default(),
            open: Mutex::default(),
        }
    }

    /// Tells the driver of character devices whose last descriptor was dropped.
    fn report_closed_devices(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(device, file)| {
            let held = file.strong_count() > 0;
            if !held {
                self.driver.on_char_close(*device);
            }
            held
        });
    }
}

fn lock(
    waiting: &Mutex<BTreeMap<Ticket, ControlId>>,
) -> MutexGuard<'_, BTreeMap<Ticket, ControlId>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

fn to_answer(result: i32, argument: Argument) -> Result<Reply, Failure> {
    match result {
        0.. => Ok(Reply { result, argument }),
        _ => Err(Failure::Errno(-result)),
    }
}

impl ControlPort for FakePort {
    fn submit(&self, command: Command, deadline: Instant, done: OnCompletion) -> Ticket {
        self.report_closed_devices();
        let ticket = Ticket(self.next.fetch_add(1, Ordering::Relaxed));
        let Command {
            opcode,
            mut header,
            mut argument,
        } = command;
        header.len = argument.bytes().len() as u16;
        let outcome = match &mut argument {
            Argument::None => self.driver.control(opcode, header, &mut []),
            Argument::Bytes(bytes) => self.driver.control(opcode, header, bytes),
        };
        let id = match outcome {
            Outcome::Done(result) => {
                done(to_answer(result, argument));
                return ticket;
            }
            Outcome::Pending(id) => id,
        };
        lock(&self.waiting).insert(ticket, id);
        let (driver, waiting) = (self.driver.clone(), Arc::clone(&self.waiting));
        std::thread::spawn(move || {
            let mut late = false;
            let result = loop {
                if let Some(result) = driver.control_result(id) {
                    break result;
                }
                if !late && Instant::now() >= deadline {
                    late = true;
                    driver.cancel_control(id);
                }
                std::thread::sleep(POLL_INTERVAL);
            };
            lock(&waiting).remove(&ticket);
            done(match to_answer(result, argument) {
                Err(Failure::Errno(libc::EINTR)) if late => Err(Failure::TimedOut),
                result => result,
            });
        });
        ticket
    }

    fn cancel(&self, ticket: Ticket) {
        let id = lock(&self.waiting).get(&ticket).copied();
        if let Some(id) = id {
            self.driver.cancel_control(id);
        }
    }

    fn open_char(&self, device: u32) -> io::Result<Arc<OwnedFd>> {
        self.report_closed_devices();
        let file = Arc::new(self.driver.open(device, self.pid)?);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.push((device, Arc::downgrade(&file)));
        Ok(file)
    }

    fn devices(&self) -> io::Result<Vec<u32>> {
        Ok(self.driver.devices())
    }
}
