//! The fallback driver for hosts that refuse io_uring: sockets by epoll, files by [`Workers`].
//!
//! A socket call is tried at once; where it would wait, it is queued and tried again when epoll
//! says so (one-shot, armed only while something waits, so an idle socket costs nothing).

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::interface::{BackendKind, Driver};
use super::workers::{Job, Workers};
use crate::call::{Call, CallTarget};
use crate::error::{StartError, StartStep};

const EVENTS_PER_WAIT: usize = 128;
const WAKE: u64 = u64::MAX;

/// Calls that wait for one descriptor.
#[derive(Default)]
struct WaitingCalls {
    is_registered: bool,
    input: VecDeque<(u64, Call)>,
    output: VecDeque<(u64, Call)>,
}

pub(crate) struct Epoll {
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    waiting: HashMap<RawFd, WaitingCalls>,
    ready: Vec<(u64, i32)>,
    workers: Workers,
    events: Vec<epoll::Event>,
}

impl Epoll {
    pub(crate) fn new(workers: usize, wake: Arc<OwnedFd>) -> Result<Epoll, StartError> {
        let refused = |error: rustix::io::Errno| StartError::new(StartStep::Epoll, error.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused)?;
        let events = EventFlags::IN;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), events).map_err(refused)?;
        let workers_started = Workers::start(workers, &wake);
        let workers_started = workers_started
            .map_err(|error| StartError::new(StartStep::FileWorkers { count: workers }, error))?;
        Ok(Epoll {
            epoll,
            workers: workers_started,
            wake,
            waiting: HashMap::new(),
            ready: Vec::new(),
            events: Vec::with_capacity(EVENTS_PER_WAIT),
        })
    }

    fn enqueue(&mut self, key: u64, fd: RawFd, call: Call) {
        let waiting = self.waiting.entry(fd).or_default();
        if is_output(&call) {
            waiting.output.push_back((key, call));
        } else {
            waiting.input.push_back((key, call));
        }
        self.arm(fd);
    }

    /// Registers with epoll what the queued calls wait for.
    fn arm(&mut self, fd: RawFd) {
        let Some(waiting) = self.waiting.get_mut(&fd) else {
            return;
        };
        let mut flags = EventFlags::ONESHOT;
        for (_, call) in waiting.input.iter().chain(&waiting.output) {
            flags |= interest(call);
        }
        if flags == EventFlags::ONESHOT {
            return;
        }
        let data = EventData::new_u64(fd as u64);
        // SAFETY: the core keeps a registered descriptor open until `unregister`, and only such
        // descriptors get here.
        let fd_ref = unsafe { BorrowedFd::borrow_raw(fd) };
        let armed = if waiting.is_registered {
            epoll::modify(&self.epoll, fd_ref, data, flags)
        } else {
            epoll::add(&self.epoll, fd_ref, data, flags)
        };
        waiting.is_registered = true;
        if let Err(error) = armed {
            // Not a descriptor that can be waited for: its calls end with that error.
            let calls = waiting.input.drain(..).chain(waiting.output.drain(..));
            self.ready
                .extend(calls.map(|(key, _)| (key, -error.raw_os_error())));
        }
    }

    /// Tries what waited for `fd`, in order in each direction.
    fn on_ready(&mut self, fd: RawFd, events: EventFlags) {
        let Some(waiting) = self.waiting.get_mut(&fd) else {
            return;
        };
        let failed = EventFlags::ERR | EventFlags::HUP;
        if events.intersects(EventFlags::IN | EventFlags::RDHUP | failed) {
            try_all(fd, &mut waiting.input, events, &mut self.ready);
        }
        if events.intersects(EventFlags::OUT | failed) {
            try_all(fd, &mut waiting.output, events, &mut self.ready);
        }
        self.arm(fd);
    }
}

fn is_output(call: &Call) -> bool {
    match call {
        Call::Send { .. } => true,
        Call::Poll { events } => events & libc::POLLOUT as u32 != 0,
        _ => false,
    }
}

/// The events that a queued call waits for. The bits of epoll and poll(2) are the same.
fn interest(call: &Call) -> EventFlags {
    match call {
        Call::Poll { events } => EventFlags::from_bits_retain(*events),
        Call::Send { .. } => EventFlags::OUT,
        _ => EventFlags::IN,
    }
}

/// Tries calls in order; a poll does not hold up those behind it.
fn try_all(
    fd: RawFd,
    calls: &mut VecDeque<(u64, Call)>,
    events: EventFlags,
    ready: &mut Vec<(u64, i32)>,
) {
    let mut blocked = false;
    calls.retain(|(key, call)| {
        let result = match call {
            Call::Poll { events: asked } => {
                let errors = EventFlags::ERR | EventFlags::HUP;
                let seen = events & (EventFlags::from_bits_retain(*asked) | errors);
                (!seen.is_empty()).then_some(seen.bits() as i32)
            }
            _ if blocked => None,
            call => {
                let result = attempt(fd, call);
                blocked = result.is_none();
                result
            }
        };
        if let Some(result) = result {
            ready.push((*key, result));
        }
        result.is_none()
    });
}

/// Carries a socket call out without waiting; `None` where it would have to.
fn attempt(fd: RawFd, call: &Call) -> Option<i32> {
    let result = match *call {
        Call::Accept => {
            let none = std::ptr::null_mut();
            // SAFETY: no address is asked for; the socket is non-blocking (`register`).
            let socket =
                unsafe { libc::accept4(fd, none, std::ptr::null_mut(), libc::SOCK_CLOEXEC) };
            socket as isize
        }
        Call::Recv { to, len, .. } => {
            // SAFETY: the memory is valid until the result is taken, by `Driver::start`.
            unsafe { libc::recv(fd, to.cast(), len, libc::MSG_DONTWAIT) }
        }
        Call::Send { msg } => {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: as above, for the message, its vectors and their memory.
            unsafe { libc::sendmsg(fd, msg, flags) }
        }
        Call::Poll { .. } => return None,
        Call::Read { .. } | Call::Write { .. } | Call::Sync { .. } => return Some(-libc::EINVAL),
        Call::Fixed { .. } | Call::Command(_) => return Some(-libc::EOPNOTSUPP),
    };
    if result >= 0 {
        return Some(result.min(i32::MAX as isize) as i32);
    }
    match io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
    {
        libc::EAGAIN => None,
        raw => Some(-raw),
    }
}

impl Driver for Epoll {
    fn kind(&self) -> BackendKind {
        BackendKind::Epoll
    }

    fn register(&mut self, _slot: u32, _fd: RawFd) -> bool {
        false
    }

    fn unregister(&mut self, _slot: u32, fd: RawFd, _fixed: bool) {
        if let Some(waiting) = self.waiting.remove(&fd)
            && waiting.is_registered
        {
            // SAFETY: the core closes the descriptor after this call, not before.
            let fd_ref = unsafe { BorrowedFd::borrow_raw(fd) };
            let _ = epoll::delete(&self.epoll, fd_ref);
        }
    }

    unsafe fn start(&mut self, key: u64, target: CallTarget, call: Call) {
        let fd = target.fd;
        match call {
            Call::Read { .. } | Call::Write { .. } | Call::Sync { .. } => {
                self.workers.submit(Job { key, fd, call });
                return;
            }
            // Both exist on a ring only.
            Call::Fixed { .. } | Call::Command(_) => {
                self.ready.push((key, -libc::EOPNOTSUPP));
                return;
            }
            Call::Accept => {
                // SAFETY: the core keeps the descriptor open while a call is in flight.
                let fd_ref = unsafe { BorrowedFd::borrow_raw(fd) };
                let _ = rustix::io::ioctl_fionbio(fd_ref, true);
            }
            _ => {}
        }
        // Calls that wait already go first.
        let is_first = self.waiting.get(&fd).is_none_or(|waiting| {
            let queue = if is_output(&call) {
                &waiting.output
            } else {
                &waiting.input
            };
            queue
                .iter()
                .all(|(_, waiting)| matches!(waiting, Call::Poll { .. }))
        });
        match is_first.then(|| attempt(fd, &call)).flatten() {
            Some(result) => self.ready.push((key, result)),
            None => self.enqueue(key, fd, call),
        }
    }

    fn all_submitted(&mut self) -> bool {
        // Calls are carried out or queued here; none waits for the kernel to take it.
        true
    }

    fn register_buffer_slots(&mut self, _count: u16) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn cancel(&mut self, key: u64) {
        if self.workers.cancel(key) {
            self.ready.push((key, -libc::ECANCELED));
            return;
        }
        for waiting in self.waiting.values_mut() {
            for calls in [&mut waiting.input, &mut waiting.output] {
                let before = calls.len();
                calls.retain(|call| call.0 != key);
                if calls.len() != before {
                    self.ready.push((key, -libc::ECANCELED));
                    return;
                }
            }
        }
    }

    fn close(&mut self, fd: OwnedFd) {
        drop(fd);
    }

    fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<(u64, i32)>) -> io::Result<()> {
        let timeout = if self.ready.is_empty() {
            timeout
        } else {
            Some(Duration::ZERO)
        };
        let timespec = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().min(1 << 30) as _,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        self.events.clear();
        match epoll::wait(
            &self.epoll,
            spare_capacity(&mut self.events),
            timespec.as_ref(),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            let (data, flags) = (event.data.u64(), event.flags);
            if data == WAKE {
                let mut count = [0; 8];
                // It is readable, and only this thread reads it: the read does not wait.
                let _ = rustix::io::read(&*self.wake, &mut count);
            } else {
                self.on_ready(data as RawFd, flags);
            }
        }
        self.events = events;
        self.workers.take_results(out);
        out.append(&mut self.ready);
        Ok(())
    }
}
