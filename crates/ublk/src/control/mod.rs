//! Commands of the driver's control device, typed: each with a deadline, each with the kernel's errno.
//!
//! [`ControlDevice`] may be used from any thread; its commands wait for the driver, so never from a
//! thread that runs a ring. Commands of several threads are in flight at the same time: one that hangs
//! delays no other. A command that the driver refuses is not tried in another way; only an interrupted
//! command (EINTR) is repeated, until its deadline.
//!
//! [`port`] is the interface to the driver; `kernel` implements it with `ring`.

mod buffer;
mod commands;
mod kernel;
pub mod port;
mod ring;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use self::kernel::KernelPort;
pub(crate) use ring::CONCURRENT_COMMANDS_MAX;

use self::port::{Argument, Command, ControlPort, Failure, Reply, Ticket};
use crate::error::{Error, Operation};
use crate::features::Features;
use crate::negotiate::Offer;
use crate::spec::{MASK_VARIABLE, mask_of};
use crate::sys::{self, ControlCommand};

/// How long a command may take that does not wait for other processes.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Between two tries of a command that was interrupted.
const INTERRUPTED_PAUSE: Duration = Duration::from_millis(1);

/// How a command completed.
type Completion = Result<Reply, Failure>;

/// The driver's control device. Clones share it; the last one closes it.
#[derive(Clone, Debug)]
pub struct ControlDevice {
    port: Arc<dyn ControlPort>,
    offer: Offer,
}

impl ControlDevice {
    /// Opens `/dev/ublk-control`, and reads the kernel's features through the mask that the environment
    /// sets.
    pub fn open() -> Result<ControlDevice, Error> {
        let mask = mask_of(std::env::var(MASK_VARIABLE).ok().as_deref())?;
        ControlDevice::with_port(Arc::new(KernelPort::open()?), mask)
    }

    /// The driver behind `port`, with features through `mask`.
    pub fn with_port(port: Arc<dyn ControlPort>, mask: u64) -> Result<ControlDevice, Error> {
        let mut control = ControlDevice {
            port,
            offer: Offer::new(Features::NONE, mask),
        };
        control.offer = Offer::new(control.kernel_features()?, mask);
        Ok(control)
    }

    /// The features that the kernel offers and the mask does not hide.
    pub fn features(&self) -> Features {
        self.offer.features()
    }

    /// The kernel's features, and which of them the mask hides.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Opens a device's character device, without a retry.
    pub fn open_char(&self, device: u32) -> Result<Arc<OwnedFd>, Error> {
        let opened = self.port.open_char(device);
        opened.map_err(|error| kernel_error(Operation::OpenChar, device, &error))
    }

    /// The numbers of all devices that exist, whoever serves them.
    pub fn devices(&self) -> Result<Vec<u32>, Error> {
        self.port
            .devices()
            .map_err(|error| kernel_error(Operation::List, None, &error))
    }

    /// Runs a command until it completes, or its deadline.
    fn run(&self, call: &Call, within: Duration, cancel: &CancelToken) -> Result<Reply, Error> {
        blkmq::may_block("a ublk control command");
        let begun = Instant::now();
        let deadline = begun + within;
        let mut interrupted = false;
        loop {
            let failure = match self.run_once(call, deadline, cancel) {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let error = match failure {
                // The first try deleted it, and was interrupted while it waited for the number.
                Failure::Errno(libc::ENODEV)
                    if interrupted && call.operation == Operation::Delete =>
                {
                    let argument = Argument::None;
                    return Ok(Reply {
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

    fn submit(&self, call: &Call, deadline: Instant) -> (Ticket, Receiver<Completion>) {
        let (sender, receiver) = mpsc::sync_channel(1);
        let on_completion = Box::new(move |result| {
            // The caller waits for exactly this.
            let _ = sender.send(result);
        });
        (
            self.port
                .submit(call.command.clone(), deadline, on_completion),
            receiver,
        )
    }

    fn run_once(&self, call: &Call, deadline: Instant, cancel: &CancelToken) -> Completion {
        let (ticket, receiver) = self.submit(call, deadline);
        cancel.set_running(&self.port, ticket);
        let result = receiver.recv().unwrap_or(Err(Failure::Closed));
        cancel.clear_running();
        result
    }
}

fn kernel_error(operation: Operation, device: impl Into<Option<u32>>, error: &io::Error) -> Error {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    Error::kernel(operation, device.into(), errno)
}

/// A command with its operation and device, for errors.
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
            Failure::TimedOut => Error::timed_out(operation, device, waited),
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

/// Cancels a command that waits for something that will not happen. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<Mutex<CancelState>>);

#[derive(Debug, Default)]
struct CancelState {
    cancelled: bool,
    running: Option<(Arc<dyn ControlPort>, Ticket)>,
}

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    fn state(&self) -> MutexGuard<'_, CancelState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The running command, or the next one, completes with ECANCELED. Does not wait.
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

    fn set_running(&self, port: &Arc<dyn ControlPort>, ticket: Ticket) {
        let mut state = self.state();
        if state.cancelled {
            drop(state);
            port.cancel(ticket);
        } else {
            state.running = Some((Arc::clone(port), ticket));
        }
    }

    fn clear_running(&self) {
        self.state().running = None;
    }
}

#[cfg(test)]
mod tests;
