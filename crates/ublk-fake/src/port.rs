//! The fake driver's control device, behind the same seam as the kernel's.
//!
//! A process of a number of the test's choice. Commands that wait are waited for by a thread each.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::{ControlId, Driver, Outcome};
use ublk::control::port::{Answer, Argument, Command, ControlPort, Done, Failure, Ticket};

/// Between two looks at a command that waits.
const LOOK: Duration = Duration::from_millis(1);

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

    /// Tells the driver of character devices that nobody has open any more.
    fn notice_closed(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(device, file)| {
            let held = file.strong_count() > 0;
            if !held {
                self.driver.closed(*device);
            }
            held
        });
    }
}

fn locked(
    waiting: &Mutex<BTreeMap<Ticket, ControlId>>,
) -> MutexGuard<'_, BTreeMap<Ticket, ControlId>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

fn told(result: i32, argument: Argument) -> Result<Answer, Failure> {
    match result {
        0.. => Ok(Answer { result, argument }),
        _ => Err(Failure::Errno(-result)),
    }
}

impl ControlPort for FakePort {
    fn submit(&self, command: Command, deadline: Instant, done: Done) -> Ticket {
        self.notice_closed();
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
            Outcome::Ended(result) => {
                done(told(result, argument));
                return ticket;
            }
            Outcome::Waits(id) => id,
        };
        locked(&self.waiting).insert(ticket, id);
        let (driver, waiting) = (self.driver.clone(), Arc::clone(&self.waiting));
        std::thread::spawn(move || {
            let mut late = false;
            let result = loop {
                if let Some(result) = driver.control_result(id) {
                    break result;
                }
                if !late && Instant::now() >= deadline {
                    late = true;
                    driver.control_cancel(id);
                }
                std::thread::sleep(LOOK);
            };
            locked(&waiting).remove(&ticket);
            done(match told(result, argument) {
                Err(Failure::Errno(libc::EINTR)) if late => Err(Failure::Late),
                result => result,
            });
        });
        ticket
    }

    fn cancel(&self, ticket: Ticket) {
        let id = locked(&self.waiting).get(&ticket).copied();
        if let Some(id) = id {
            self.driver.control_cancel(id);
        }
    }

    fn open_char(&self, device: u32) -> io::Result<Arc<OwnedFd>> {
        self.notice_closed();
        let file = Arc::new(self.driver.open(device, self.pid)?);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.push((device, Arc::downgrade(&file)));
        Ok(file)
    }

    fn devices(&self) -> io::Result<Vec<u32>> {
        Ok(self.driver.devices())
    }
}
