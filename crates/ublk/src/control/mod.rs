//! Control commands, typed: each under a deadline, each with the kernel's own errno.
//!
//! [`Control`] may be used from any thread; its commands wait for the driver, so never from a
//! thread that owns a ring. Commands of several threads are in flight side by side: one that
//! hangs holds up nobody else. What the driver answers is never tried again in another way; only
//! an interrupted command (EINTR) is repeated, until its deadline.
//!
//! [`port`] is the seam to the driver; `ring` and `lane` are the kernel's side of it.

mod commands;
mod lane;
mod memory;
pub mod port;
mod ring;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use self::ring::KernelPort;
pub(crate) use lane::SIDE_BY_SIDE;

use self::port::{Answer, Argument, Command, ControlPort, Failure, Ticket};
use crate::error::{Error, Operation};
use crate::features::Features;
use crate::negotiate::Offer;
use crate::spec::{MASK_VARIABLE, mask_of};
use crate::sys::{self, ControlCommand};

/// How long a command that waits for nobody may take.
pub const QUICK: Duration = Duration::from_secs(10);

/// Between two tries of a command that was interrupted.
const INTERRUPTED_PAUSE: Duration = Duration::from_millis(1);

/// How a command ended.
type Ended = Result<Answer, Failure>;

/// The driver's control device. Clones are the same one; the last one closes it.
#[derive(Clone, Debug)]
pub struct Control {
    port: Arc<dyn ControlPort>,
    offer: Offer,
}

impl Control {
    /// Opens `/dev/ublk-control`, and asks the kernel for its features, seen through the mask
    /// that the environment sets.
    pub fn open() -> Result<Control, Error> {
        let mask = mask_of(std::env::var(MASK_VARIABLE).ok().as_deref())?;
        Control::over(Arc::new(KernelPort::open()?), mask)
    }

    /// The driver behind `port`, its features seen through `mask`.
    pub fn over(port: Arc<dyn ControlPort>, mask: u64) -> Result<Control, Error> {
        let mut control = Control {
            port,
            offer: Offer::new(Features::NONE, mask),
        };
        control.offer = Offer::new(control.kernel_features()?, mask);
        Ok(control)
    }

    /// What the kernel offers and the mask leaves.
    pub fn features(&self) -> Features {
        self.offer.features()
    }

    /// The same, with what is hidden.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Opens a device's character device, once: who retries knows until when.
    pub fn open_char(&self, device: u32) -> Result<Arc<OwnedFd>, Error> {
        let opened = self.port.open_char(device);
        opened.map_err(|error| kernel(Operation::OpenChar, device, &error))
    }

    /// The numbers of all devices there are, whoever serves them.
    pub fn devices(&self) -> Result<Vec<u32>, Error> {
        self.port
            .devices()
            .map_err(|error| kernel(Operation::List, None, &error))
    }

    /// Runs a command to its end, or to its deadline.
    fn run(&self, call: &Call, within: Duration, cancel: &Cancel) -> Result<Answer, Error> {
        blkmq::may_block("a ublk control command");
        let begun = Instant::now();
        let deadline = begun + within;
        let mut interrupted = false;
        loop {
            let failure = match self.once(call, deadline, cancel) {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let error = match failure {
                // The first try did it, and was interrupted while it waited for the number.
                Failure::Errno(libc::ENODEV)
                    if interrupted && call.operation == Operation::Delete =>
                {
                    let argument = Argument::None;
                    return Ok(Answer {
                        result: 0,
                        argument,
                    });
                }
                Failure::Errno(libc::EINTR | libc::ECANCELED) if cancel.is_cancelled() => {
                    Error::kernel(call.operation, call.device, libc::ECANCELED)
                }
                Failure::Errno(libc::EINTR) if Instant::now() < deadline => {
                    interrupted = true;
                    std::thread::sleep(INTERRUPTED_PAUSE);
                    continue;
                }
                failure => call.error(failure, begun.elapsed()),
            };
            return Err(error);
        }
    }

    fn begin(&self, call: &Call, deadline: Instant) -> (Ticket, Receiver<Ended>) {
        let (tell, told) = mpsc::sync_channel(1);
        let done = Box::new(move |result| {
            // Whoever asked waits for exactly this.
            let _ = tell.send(result);
        });
        (self.port.submit(call.command.clone(), deadline, done), told)
    }

    fn once(&self, call: &Call, deadline: Instant, cancel: &Cancel) -> Ended {
        let (ticket, told) = self.begin(call, deadline);
        cancel.enter(&self.port, ticket);
        let result = told.recv().unwrap_or(Err(Failure::Closed));
        cancel.leave();
        result
    }
}

fn kernel(operation: Operation, device: impl Into<Option<u32>>, error: &io::Error) -> Error {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    Error::kernel(operation, device.into(), errno)
}

/// A command and what it is for.
#[derive(Debug)]
struct Call {
    operation: Operation,
    device: Option<u32>,
    command: Command,
}

impl Call {
    fn new(operation: Operation, opcode: u32, device: impl Into<Option<u32>>) -> Call {
        let device = device.into();
        Call {
            operation,
            device,
            command: Command {
                opcode,
                header: ControlCommand {
                    device: device.unwrap_or(u32::MAX),
                    queue: sys::NO_QUEUE,
                    ..ControlCommand::default()
                },
                argument: Argument::None,
            },
        }
    }

    fn error(&self, failure: Failure, waited: Duration) -> Error {
        let (operation, device) = (self.operation, self.device);
        match failure {
            Failure::Errno(errno) => Error::kernel(operation, device, errno),
            Failure::Late => Error::late(operation, device, waited),
            Failure::Stuck => Error::stuck(operation, device, waited),
            Failure::Closed => Error::kernel(operation, device, libc::ESHUTDOWN),
        }
    }

    fn data(mut self, data: u64) -> Call {
        self.command.header.data = data;
        self
    }

    fn argument(mut self, bytes: Vec<u8>) -> Call {
        self.command.argument = Argument::Bytes(bytes);
        self
    }
}

/// Ends a command that waits for something that will not come. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<Mutex<Cancelling>>);

#[derive(Debug, Default)]
struct Cancelling {
    cancelled: bool,
    running: Option<(Arc<dyn ControlPort>, Ticket)>,
}

impl Cancel {
    /// One that nobody has cancelled.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    fn state(&self) -> MutexGuard<'_, Cancelling> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The command that runs, or the next one, ends with ECANCELED. Does not wait.
    pub fn cancel(&self) {
        let mut state = self.state();
        state.cancelled = true;
        let running = state.running.take();
        drop(state);
        if let Some((port, ticket)) = running {
            port.cancel(ticket);
        }
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.state().cancelled
    }

    fn enter(&self, port: &Arc<dyn ControlPort>, ticket: Ticket) {
        let mut state = self.state();
        if state.cancelled {
            drop(state);
            port.cancel(ticket);
        } else {
            state.running = Some((Arc::clone(port), ticket));
        }
    }

    fn leave(&self) {
        self.state().running = None;
    }
}

#[cfg(test)]
mod tests;
