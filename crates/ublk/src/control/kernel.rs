//! The kernel's control device as a [`ControlPort`]: one thread, which sleeps only in `poll`, with a
//! ring of its own.
//!
//! Commands are submitted in the order of the calls and complete in any: each runs on a kernel worker of
//! its own. A ring with a stuck command takes no new ones; the next command gets a new ring, because some
//! kernels lose all commands of one ring, and of no other.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};

use super::port::{Command, ControlPort, Failure, OnCompletion, Ticket};
use super::ring::ControlRing;
use crate::error::{Error, ErrorKind, Operation};
use crate::sys;

/// Stuck rings that are kept in case their commands complete after all.
const STUCK_RINGS_MAX: usize = 4;

/// How long dropping a port waits for its thread, which cancels the commands in flight.
const THREAD_EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the kernel lists its devices, the first that exists.
const DEVICE_FOLDERS: [&str; 2] = ["/sys/class/ublk-char", "/dev"];

enum Message {
    Submit(Ticket, Command, Instant, OnCompletion),
    Cancel(Ticket),
    Stop,
}

#[derive(Debug)]
struct Shared {
    inbox: Mutex<Vec<Message>>,
    wake: OwnedFd,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Message::Submit(ticket, command, ..) => write!(f, "Submit({ticket:?}, {command:?})"),
            Message::Cancel(ticket) => write!(f, "Cancel({ticket:?})"),
            Message::Stop => f.write_str("Stop"),
        }
    }
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Vec<Message>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, message: Message) {
        self.inbox().push(message);
        // It cannot block: the count would have to be near 2^64.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// The kernel's control device.
#[derive(Debug)]
pub struct KernelPort {
    shared: Arc<Shared>,
    next: AtomicU64,
    thread: Option<JoinHandle<()>>,
    thread_id: ThreadId,
    thread_ended: Mutex<mpsc::Receiver<()>>,
}

impl KernelPort {
    /// Opens `/dev/ublk-control` and a ring, and starts the thread.
    pub fn open() -> Result<KernelPort, Error> {
        let refused =
            |errno: rustix::io::Errno| Error::kernel(Operation::Open, None, errno.raw_os_error());
        let control = rustix::fs::open(
            sys::CONTROL_PATH,
            OFlags::RDWR | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(refused)?;
        let ring = ControlRing::open().map_err(|error| ring_error(&error))?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(refused)?;
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            wake,
        });
        let worker = Worker {
            shared: Arc::clone(&shared),
            control,
            rings: vec![ring],
        };
        let (end_sender, thread_ended) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("ublk-control".to_owned())
            .spawn(move || {
                worker.run();
                // Nobody receives this after the time-out.
                let _ = end_sender.send(());
            })
            .map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
                Error::kernel(Operation::Open, None, errno)
            })?;
        Ok(KernelPort {
            shared,
            next: AtomicU64::new(1),
            thread_id: thread.thread().id(),
            thread: Some(thread),
            thread_ended: Mutex::new(thread_ended),
        })
    }
}

fn ring_error(error: &io::Error) -> Error {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let (kind, remedy) = match errno {
        libc::EPERM | libc::EACCES | libc::ENOSYS => (
            ErrorKind::PermissionDenied,
            "allow io_uring: sysctl kernel.io_uring_disabled=0, and the container's seccomp profile",
        ),
        libc::EINVAL => (ErrorKind::Unsupported, "it needs Linux 6.5 or newer"),
        libc::ENOMEM => (
            ErrorKind::LimitReached,
            "raise the limit of locked memory (ulimit -l)",
        ),
        _ => (ErrorKind::Kernel, "see that io_uring works here"),
    };
    let detail = "no io_uring for control commands";
    Error::new(Operation::Open, kind, detail, remedy).with_errno(errno)
}

impl ControlPort for KernelPort {
    fn submit(&self, command: Command, deadline: Instant, on_completion: OnCompletion) -> Ticket {
        let ticket = Ticket(self.next.fetch_add(1, Ordering::Relaxed));
        self.shared
            .send(Message::Submit(ticket, command, deadline, on_completion));
        ticket
    }

    fn cancel(&self, ticket: Ticket) {
        self.shared.send(Message::Cancel(ticket));
    }

    fn open_char(&self, device: u32) -> io::Result<Arc<OwnedFd>> {
        let path = format!("/dev/ublkc{device}");
        // Non-blocking, so that the kernel copies data on the thread that submits the operation.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Arc::new(file))
    }

    fn devices(&self) -> io::Result<Vec<u32>> {
        let mut result = Ok(Vec::new());
        for folder in DEVICE_FOLDERS {
            result = list_devices(folder);
            if result.is_ok() {
                break;
            }
        }
        result
    }
}

fn list_devices(folder: &str) -> io::Result<Vec<u32>> {
    let mut devices = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("ublkc"));
        devices.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    devices.sort_unstable();
    Ok(devices)
}

impl Drop for KernelPort {
    fn drop(&mut self) {
        self.shared.send(Message::Stop);
        // A callback may own the last reference: the thread cannot join itself.
        if std::thread::current().id() == self.thread_id {
            return;
        }
        let ended = self
            .thread_ended
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(THREAD_EXIT_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            tracing::error!("ublk: the control thread does not end; it is detached");
        } else if let Some(thread) = self.thread.take() {
            // It has ended, or panicked.
            let _ = thread.join();
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    control: OwnedFd,
    /// The last ring takes new commands; the others are stuck.
    rings: Vec<ControlRing>,
}

impl Worker {
    fn run(mut self) {
        self.rings.iter().for_each(ControlRing::raise_worker_limit);
        let mut stopping = false;
        while !stopping || self.rings.iter().any(ControlRing::has_waiters) {
            stopping |= self.take_messages(stopping);
            for ring in &mut self.rings {
                ring.expire(Instant::now());
                ring.submit();
                ring.reap();
            }
            self.replace_stuck_ring();
            // Messages that callbacks sent make the eventfd readable, so `poll` returns at once.
            if !stopping || self.rings.iter().any(ControlRing::has_waiters) {
                self.sleep();
            }
        }
    }

    /// Returns whether a message asked the thread to stop.
    fn take_messages(&mut self, stopping: bool) -> bool {
        let mut count = [0; 8];
        // The inbox is read whatever the eventfd's count is.
        let _ = rustix::io::read(&self.shared.wake, &mut count);
        let messages = std::mem::take(&mut *self.shared.inbox());
        let now = Instant::now();
        let mut stop = false;
        for message in messages {
            match message {
                Message::Submit(.., on_completion) if stopping || stop => {
                    on_completion(Err(Failure::Closed))
                }
                Message::Submit(ticket, command, deadline, on_completion) => {
                    let ring = self.rings.last_mut().expect("there is always one");
                    ring.queue(&self.control, ticket, command, deadline, on_completion);
                }
                Message::Cancel(ticket) => {
                    for ring in &mut self.rings {
                        ring.cancel(ticket, now);
                    }
                }
                Message::Stop => {
                    stop = true;
                    self.rings.iter_mut().for_each(|ring| ring.cancel_all(now));
                }
            }
        }
        stop
    }

    /// Opens a new ring if the last one is stuck, and closes stuck ones that have become idle.
    fn replace_stuck_ring(&mut self) {
        if self.rings.last().is_some_and(ControlRing::is_stuck) {
            match ControlRing::open() {
                Ok(ring) => {
                    tracing::warn!(
                        "ublk: a control command is stuck; the next ones use a new ring"
                    );
                    ring.raise_worker_limit();
                    self.rings.push(ring);
                }
                Err(error) => {
                    tracing::error!(%error, "ublk: no new ring for control commands");
                }
            }
        }
        let last = self.rings.len() - 1;
        let mut index = 0;
        self.rings.retain(|ring| {
            index += 1;
            index > last || !ring.is_idle()
        });
        // Drops the oldest ring, for which no caller waits. Its memory is left to the kernel for good.
        while self.rings.len() > STUCK_RINGS_MAX + 1 && !self.rings[0].has_waiters() {
            self.rings.remove(0);
        }
    }

    fn sleep(&self) {
        let next = self
            .rings
            .iter()
            .filter_map(ControlRing::next_deadline)
            .min();
        let timeout = next.map(|at| {
            let wait = at.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: wait.as_secs() as i64,
                tv_nsec: i64::from(wait.subsec_nanos()),
            }
        });
        let mut fds = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        let ring_fds: Vec<_> = self.rings.iter().map(ControlRing::fd).collect();
        fds.extend(
            ring_fds
                .iter()
                .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)),
        );
        // Everything is checked again, whether `poll` was interrupted or not.
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::port::{Argument, Reply};
    use crate::sys::ControlCommand;

    /// A worker on its thread, ended when dropped.
    struct RunningWorker(Arc<Shared>, Option<JoinHandle<()>>);

    impl RunningWorker {
        fn start(ring: ControlRing) -> RunningWorker {
            let shared = Arc::new(Shared {
                inbox: Mutex::default(),
                wake: rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
            });
            let worker = Worker {
                shared: Arc::clone(&shared),
                // It ends every command at once, well or not, as its kernel likes.
                control: std::fs::File::open("/dev/null").unwrap().into(),
                rings: vec![ring],
            };
            let thread = std::thread::spawn(move || worker.run());
            RunningWorker(shared, Some(thread))
        }

        /// How a command ends, if it does.
        fn command(&self, ticket: u64, within: Duration) -> Result<Reply, Failure> {
            let command = Command {
                opcode: sys::STOP_DEVICE,
                header: ControlCommand::default(),
                argument: Argument::None,
            };
            let (tell, told) = mpsc::channel();
            let on_completion: OnCompletion = Box::new(move |how| tell.send(how).unwrap());
            let deadline = Instant::now() + within;
            self.0.send(Message::Submit(
                Ticket(ticket),
                command,
                deadline,
                on_completion,
            ));
            told.recv_timeout(within + Duration::from_secs(20)).unwrap()
        }
    }

    impl Drop for RunningWorker {
        fn drop(&mut self) {
            self.0.send(Message::Stop);
            self.1.take().unwrap().join().unwrap();
        }
    }

    #[test]
    fn a_ring_on_which_a_command_got_stuck_is_replaced_for_those_that_follow() {
        let working = RunningWorker::start(ControlRing::dead().unwrap());
        let stuck = working.command(1, Duration::from_millis(1));
        assert_eq!(stuck, Err(Failure::Stuck));
        for ticket in 2..5 {
            let ended = working.command(ticket, Duration::from_secs(10));
            let answered = matches!(ended, Ok(_) | Err(Failure::Errno(_)));
            assert!(answered, "{ended:?}");
        }
    }
}
