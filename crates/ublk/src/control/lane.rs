//! One ring for control commands and what is in flight on it.
//!
//! A lane begins commands, cancels those whose deadline came, and tells how each ended. A command
//! that does not end even then makes the lane stuck: it takes no new ones, and its owner opens
//! another. The memory of such a command is freed only if it ends after all.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use zerocopy::{FromBytes, IntoBytes};

use super::memory::Lent;
use super::port::{Answer, Argument, Command, Done, Failure, Ticket};
use crate::sys::{self, DeviceInfo};

/// Commands of a ring that can be handed over with one enter. More are handed over one after the
/// other.
const ENTRIES: u32 = 64;

/// Commands of a ring that wait in the kernel side by side, each on a thread of the kernel's. Left
/// alone, it has four threads per processor, and whoever has many devices would wait for one after
/// the other.
pub(crate) const SIDE_BY_SIDE: usize = 256;

/// How long a cancelled command may take to end before it is called stuck.
const GRACE: Duration = Duration::from_millis(500);

/// Marks the completions of cancellations. Tickets stay below it.
const OF_CANCEL: u64 = 1 << 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Cancelled at its deadline; to have ended at this time.
    Overdue(Instant),
    /// Cancelled by the caller; to have ended at this time.
    Cancelled(Instant),
    /// Its end is told already: nobody waits for it, but its memory does.
    Stuck,
}

struct Flight {
    opcode: u32,
    memory: Lent,
    deadline: Instant,
    state: State,
    done: Option<Done>,
}

pub(super) struct Lane {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    flights: BTreeMap<u64, Flight>,
    stuck: bool,
}

/// Tells of the end of a command that nobody waits for any more.
fn stuck_ended(opcode: u32, result: i32, argument: &Argument) {
    let added = DeviceInfo::read_from_prefix(argument.bytes());
    match added {
        Ok((info, _)) if opcode == sys::ADD_DEVICE && result >= 0 => tracing::warn!(
            device = info.device,
            "ublk: a device was added after all, and nobody has it: remove it, or adopt it"
        ),
        _ => tracing::info!(opcode, result, "ublk: a stuck command ended"),
    }
}

impl Lane {
    pub(super) fn open() -> io::Result<Lane> {
        Ok(Lane {
            ring: IoUring::builder().build(ENTRIES)?,
            flights: BTreeMap::new(),
            stuck: false,
        })
    }

    /// Lets many commands wait side by side. To be called on the thread that enters the ring: these
    /// workers are that thread's.
    pub(super) fn widen(&self) {
        // The second number is that of another kind of worker, which stays.
        let mut workers = [SIDE_BY_SIDE as u32, 0];
        if let Err(error) = self
            .ring
            .submitter()
            .register_iowq_max_workers(&mut workers)
        {
            tracing::debug!(%error, "ublk: few control commands are carried out side by side");
        }
    }

    /// Becomes readable when a command has ended.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the ring's own and lives as long as the borrow of it.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.stuck
    }

    pub(super) fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    /// Begins a command on the control device.
    pub(super) fn begin(
        &mut self,
        control: impl AsFd,
        ticket: Ticket,
        command: Command,
        deadline: Instant,
        done: Done,
    ) {
        let opcode = command.opcode;
        let memory = Lent::new(command.argument);
        let mut header = command.header;
        let Ok(len) = u16::try_from(memory.len()) else {
            return done(Err(Failure::Errno(libc::E2BIG)));
        };
        header.addr = memory.address();
        header.len = len;
        let mut bytes = [0; 80];
        bytes[..size_of_val(&header)].copy_from_slice(header.as_bytes());
        let control = types::Fd(control.as_fd().as_raw_fd());
        let entry = opcode::UringCmd80::new(control, opcode).cmd(bytes).build();
        self.push(entry.user_data(ticket.0));
        let flight = Flight {
            opcode,
            memory,
            deadline,
            state: State::Running,
            done: Some(done),
        };
        self.flights.insert(ticket.0, flight);
    }

    /// Asks for the end of a command that the caller does not want any more.
    pub(super) fn cancel(&mut self, ticket: Ticket, now: Instant) {
        self.cut(ticket.0, State::Cancelled(now + GRACE));
    }

    pub(super) fn cancel_all(&mut self, now: Instant) {
        let all: Vec<u64> = self.flights.keys().copied().collect();
        for ticket in all {
            self.cancel(Ticket(ticket), now);
        }
    }

    fn cut(&mut self, ticket: u64, state: State) {
        let Some(flight) = self.flights.get_mut(&ticket) else {
            return;
        };
        if flight.state != State::Running {
            return;
        }
        flight.state = state;
        let cancel = opcode::AsyncCancel::new(ticket).build();
        self.push(squeue::Entry128::from(cancel.user_data(ticket | OF_CANCEL)));
    }

    fn push(&mut self, entry: squeue::Entry128) {
        loop {
            let mut queue = self.ring.submission();
            // SAFETY: the memory that a command names is kept in its flight until its completion
            // was seen; a cancellation names none.
            if unsafe { queue.push(&entry) }.is_ok() {
                return;
            }
            drop(queue);
            self.hand_over();
        }
    }

    /// Gives what was begun to the kernel.
    pub(super) fn hand_over(&mut self) {
        if let Err(error) = self.ring.submit()
            && !matches!(
                error.raw_os_error(),
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
            )
        {
            // What is not taken stays in the queue and is tried again; deadlines bound it.
            tracing::warn!(%error, "ublk: the control ring takes no commands");
        }
    }

    /// Tells of what has ended. Calls back only after the ring is left alone.
    pub(super) fn reap(&mut self) {
        let mut ended = Vec::new();
        for entry in self.ring.completion() {
            if entry.user_data() & OF_CANCEL == 0 {
                ended.push((entry.user_data(), entry.result()));
            }
        }
        for (ticket, result) in ended {
            let Some(flight) = self.flights.remove(&ticket) else {
                continue;
            };
            // SAFETY: its completion was just seen.
            let argument = unsafe { flight.memory.back() };
            let Some(done) = flight.done else {
                stuck_ended(flight.opcode, result, &argument);
                continue;
            };
            done(match result {
                0.. => Ok(Answer { result, argument }),
                // What a cancelled command says of itself: never begun, or interrupted.
                _ if matches!(flight.state, State::Overdue(_))
                    && matches!(-result, libc::ECANCELED | libc::EINTR) =>
                {
                    Err(Failure::Late)
                }
                _ => Err(Failure::Errno(-result)),
            });
        }
    }

    /// Cancels what is overdue, and gives up what did not end.
    pub(super) fn expire(&mut self, now: Instant) {
        let mut late = Vec::new();
        for (ticket, flight) in &mut self.flights {
            match flight.state {
                State::Running if flight.deadline <= now => late.push(*ticket),
                State::Overdue(end) | State::Cancelled(end) if end <= now => {
                    flight.state = State::Stuck;
                    self.stuck = true;
                    tracing::error!(
                        opcode = flight.opcode,
                        argument_bytes = flight.memory.len(),
                        "ublk: a control command does not end, not even cancelled; its memory is \
                         left to the kernel"
                    );
                    if let Some(done) = flight.done.take() {
                        done(Err(Failure::Stuck));
                    }
                }
                _ => {}
            }
        }
        for ticket in late {
            self.cut(ticket, State::Overdue(now + GRACE));
        }
    }

    /// When [`Lane::expire`] has something to do.
    pub(super) fn next_event(&self) -> Option<Instant> {
        let events = self
            .flights
            .values()
            .filter_map(|flight| match flight.state {
                State::Running => Some(flight.deadline),
                State::Overdue(end) | State::Cancelled(end) => Some(end),
                State::Stuck => None,
            });
        events.min()
    }

    /// Whether somebody still waits for an end.
    pub(super) fn is_awaited(&self) -> bool {
        self.flights.values().any(|flight| flight.done.is_some())
    }
}

#[cfg(test)]
impl Lane {
    /// One whose ring takes no command, nor a cancellation: every command on it gets stuck.
    pub(super) fn dead() -> io::Result<Lane> {
        Ok(Lane {
            ring: IoUring::builder().setup_r_disabled().build(ENTRIES)?,
            flights: BTreeMap::new(),
            stuck: false,
        })
    }
}
