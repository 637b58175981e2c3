//! One ring for control commands, and the commands in flight on it.
//!
//! It submits commands, cancels those whose deadline came, and reports completions. A command that does
//! not complete even then makes the ring stuck: it takes no new commands, and its owner opens another
//! ring. The memory of such a command is freed only if it completes after all.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use zerocopy::{FromBytes, IntoBytes};

use super::buffer::CommandBuffer;
use super::port::{Argument, Command, Failure, OnCompletion, Reply, Ticket};
use crate::sys::{self, DeviceInfo};

/// Submission entries of the ring. More commands need more than one enter.
const ENTRIES: u32 = 64;

/// Commands of a ring that can wait in the kernel at the same time, each on a kernel worker. The
/// default is four workers per processor, so that commands for many devices would wait for each other.
pub(crate) const CONCURRENT_COMMANDS_MAX: usize = 256;

/// How long a cancelled command may take to complete before it counts as stuck.
const GRACE: Duration = Duration::from_millis(500);

/// Marks the completions of cancellations. Tickets are smaller.
const CANCEL_BIT: u64 = 1 << 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Cancelled at its deadline; stuck if it has not completed at this time.
    Overdue(Instant),
    /// Cancelled by the caller; stuck if it has not completed at this time.
    Cancelled(Instant),
    /// Reported as stuck: no caller waits for it, but its memory is kept.
    Stuck,
}

struct InFlight {
    opcode: u32,
    memory: CommandBuffer,
    deadline: Instant,
    state: State,
    on_completion: Option<OnCompletion>,
}

pub(super) struct ControlRing {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    in_flight: BTreeMap<u64, InFlight>,
    stuck: bool,
}

/// Logs the completion of a command that was reported as stuck.
fn log_late_completion(opcode: u32, result: i32, argument: &Argument) {
    let added = DeviceInfo::read_from_prefix(argument.bytes());
    match added {
        Ok((info, _)) if opcode == sys::ADD_DEVICE && result >= 0 => tracing::warn!(
            device = info.device,
            "ublk: a device was added after all, and has no server: remove it, or recover it"
        ),
        _ => tracing::info!(
            opcode,
            result,
            "ublk: a stuck control command has completed"
        ),
    }
}

impl ControlRing {
    pub(super) fn open() -> io::Result<ControlRing> {
        Ok(ControlRing {
            ring: IoUring::builder().build(ENTRIES)?,
            in_flight: BTreeMap::new(),
            stuck: false,
        })
    }

    /// Lets many commands wait at the same time. To be called on the thread that enters the ring, which
    /// the workers belong to.
    pub(super) fn raise_worker_limit(&self) {
        // The second number is for another kind of worker; zero leaves it unchanged.
        let mut workers = [CONCURRENT_COMMANDS_MAX as u32, 0];
        if let Err(error) = self
            .ring
            .submitter()
            .register_iowq_max_workers(&mut workers)
        {
            tracing::debug!(%error, "ublk: the limit of io-wq workers stays: few control commands run at the same time");
        }
    }

    /// Becomes readable when a command has completed.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the ring's own and lives as long as the borrow of it.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.stuck
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Queues a command for the control device.
    pub(super) fn queue(
        &mut self,
        control: impl AsFd,
        ticket: Ticket,
        command: Command,
        deadline: Instant,
        on_completion: OnCompletion,
    ) {
        let opcode = command.opcode;
        let memory = CommandBuffer::new(command.argument);
        let mut header = command.header;
        let Ok(len) = u16::try_from(memory.len()) else {
            return on_completion(Err(Failure::Errno(libc::E2BIG)));
        };
        header.addr = memory.address();
        header.len = len;
        let mut bytes = [0; 80];
        bytes[..size_of_val(&header)].copy_from_slice(header.as_bytes());
        let control = types::Fd(control.as_fd().as_raw_fd());
        let entry = opcode::UringCmd80::new(control, opcode).cmd(bytes).build();
        self.push(entry.user_data(ticket.0));
        let entry_state = InFlight {
            opcode,
            memory,
            deadline,
            state: State::Running,
            on_completion: Some(on_completion),
        };
        self.in_flight.insert(ticket.0, entry_state);
    }

    /// Cancels a command on behalf of the caller.
    pub(super) fn cancel(&mut self, ticket: Ticket, now: Instant) {
        self.cancel_as(ticket.0, State::Cancelled(now + GRACE));
    }

    pub(super) fn cancel_all(&mut self, now: Instant) {
        let all: Vec<u64> = self.in_flight.keys().copied().collect();
        for ticket in all {
            self.cancel(Ticket(ticket), now);
        }
    }

    fn cancel_as(&mut self, ticket: u64, state: State) {
        let Some(command) = self.in_flight.get_mut(&ticket) else {
            return;
        };
        if command.state != State::Running {
            return;
        }
        command.state = state;
        let cancel = opcode::AsyncCancel::new(ticket).build();
        self.push(squeue::Entry128::from(
            cancel.user_data(ticket | CANCEL_BIT),
        ));
    }

    fn push(&mut self, entry: squeue::Entry128) {
        loop {
            let mut queue = self.ring.submission();
            // SAFETY: the memory that a command names is kept in `in_flight` until its completion
            // was seen; a cancellation names none.
            if unsafe { queue.push(&entry) }.is_ok() {
                return;
            }
            drop(queue);
            self.submit();
        }
    }

    /// Submits the queued entries to the kernel.
    pub(super) fn submit(&mut self) {
        if let Err(error) = self.ring.submit()
            && !matches!(
                error.raw_os_error(),
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
            )
        {
            // Entries that the kernel did not take stay queued and are tried again, until their
            // deadlines.
            tracing::warn!(%error, "ublk: io_uring_enter failed for control commands; they are tried again");
        }
    }

    /// Reports completions. Calls back only when it does not use the ring any more.
    pub(super) fn reap(&mut self) {
        let mut completed = Vec::new();
        for entry in self.ring.completion() {
            if entry.user_data() & CANCEL_BIT == 0 {
                completed.push((entry.user_data(), entry.result()));
            }
        }
        for (ticket, result) in completed {
            let Some(command) = self.in_flight.remove(&ticket) else {
                continue;
            };
            // SAFETY: its completion was just seen.
            let argument = unsafe { command.memory.into_argument() };
            let Some(on_completion) = command.on_completion else {
                log_late_completion(command.opcode, result, &argument);
                continue;
            };
            on_completion(match result {
                0.. => Ok(Reply { result, argument }),
                // The results of a cancelled command: it was not started, or interrupted.
                _ if matches!(command.state, State::Overdue(_))
                    && matches!(-result, libc::ECANCELED | libc::EINTR) =>
                {
                    Err(Failure::TimedOut)
                }
                _ => Err(Failure::Errno(-result)),
            });
        }
    }

    /// Cancels commands at their deadlines, and reports those as stuck that did not complete then.
    pub(super) fn expire(&mut self, now: Instant) {
        let mut late = Vec::new();
        for (ticket, command) in &mut self.in_flight {
            match command.state {
                State::Running if command.deadline <= now => late.push(*ticket),
                State::Overdue(end) | State::Cancelled(end) if end <= now => {
                    command.state = State::Stuck;
                    self.stuck = true;
                    tracing::error!(
                        opcode = command.opcode,
                        argument_bytes = command.memory.len(),
                        "ublk: a control command does not complete, not even cancelled; its \
                         memory is left to the kernel"
                    );
                    if let Some(on_completion) = command.on_completion.take() {
                        on_completion(Err(Failure::Stuck));
                    }
                }
                _ => {}
            }
        }
        for ticket in late {
            self.cancel_as(ticket, State::Overdue(now + GRACE));
        }
    }

    /// When [`ControlRing::expire`] has something to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let events = self
            .in_flight
            .values()
            .filter_map(|command| match command.state {
                State::Running => Some(command.deadline),
                State::Overdue(end) | State::Cancelled(end) => Some(end),
                State::Stuck => None,
            });
        events.min()
    }

    /// Whether a caller waits for a completion.
    pub(super) fn has_waiters(&self) -> bool {
        self.in_flight
            .values()
            .any(|command| command.on_completion.is_some())
    }
}

#[cfg(test)]
impl ControlRing {
    /// A ring that takes no commands and no cancellations: every command on it gets stuck.
    pub(super) fn dead() -> io::Result<ControlRing> {
        Ok(ControlRing {
            ring: IoUring::builder().setup_r_disabled().build(ENTRIES)?,
            in_flight: BTreeMap::new(),
            stuck: false,
        })
    }
}
