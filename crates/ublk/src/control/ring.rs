//! The kernel's control device behind [`ControlPort`]: one thread, which sleeps only in `poll`,
//! and a ring of its own.
//!
//! Commands are begun in the order of asking and end in any: each is an entry of its own, run by
//! the kernel's workers. A ring on which one got stuck takes no more; the next command gets a
//! fresh one. (Kernels are known that lose a ring's commands, and no other ring's.)

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};

use super::lane::Lane;
use super::port::{Command, ControlPort, Done, Failure, Ticket};
use crate::error::{Error, Kind, Operation};
use crate::sys;

/// Stuck rings that are kept in case their commands end after all.
const STUCK_MAX: usize = 4;

/// How long a port that is dropped waits for its thread, which cancels what is in flight.
const LEAVE: Duration = Duration::from_secs(2);

/// Where the kernel lists its devices.
const LIST: [&str; 2] = ["/sys/class/ublk-char", "/dev"];

enum Message {
    Begin(Ticket, Command, Instant, Done),
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
            Message::Begin(ticket, command, ..) => write!(f, "Begin({ticket:?}, {command:?})"),
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
    ended: Mutex<mpsc::Receiver<()>>,
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
        let lane = Lane::open().map_err(|error| no_ring(&error))?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(refused)?;
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            wake,
        });
        let worker = Worker {
            shared: Arc::clone(&shared),
            control,
            lanes: vec![lane],
        };
        let (tell_end, ended) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("ublk-control".to_owned())
            .spawn(move || {
                worker.run();
                // The port may have given up waiting.
                let _ = tell_end.send(());
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
            ended: Mutex::new(ended),
        })
    }
}

fn no_ring(error: &io::Error) -> Error {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let (kind, remedy) = match errno {
        libc::EPERM | libc::EACCES | libc::ENOSYS => (
            Kind::Denied,
            "allow io_uring: sysctl kernel.io_uring_disabled=0, and the container's seccomp profile",
        ),
        libc::EINVAL => (Kind::TooOld, "it needs Linux 6.5 or newer"),
        libc::ENOMEM => (Kind::Limit, "raise the limit of locked memory (ulimit -l)"),
        _ => (Kind::Kernel, "see that io_uring works here"),
    };
    let detail = format!("no ring for its commands: {error}");
    Error::new(Operation::Open, kind, detail, remedy)
}

impl ControlPort for KernelPort {
    fn submit(&self, command: Command, deadline: Instant, done: Done) -> Ticket {
        let ticket = Ticket(self.next.fetch_add(1, Ordering::Relaxed));
        self.shared
            .send(Message::Begin(ticket, command, deadline, done));
        ticket
    }

    fn cancel(&self, ticket: Ticket) {
        self.shared.send(Message::Cancel(ticket));
    }

    fn open_char(&self, device: u32) -> io::Result<Arc<OwnedFd>> {
        let path = format!("/dev/ublkc{device}");
        // Without waiting, because then the kernel copies data on the thread that asks for it.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Arc::new(file))
    }

    fn devices(&self) -> io::Result<Vec<u32>> {
        let mut result = Ok(Vec::new());
        for folder in LIST {
            result = list(folder);
            if result.is_ok() {
                break;
            }
        }
        result
    }
}

fn list(folder: &str) -> io::Result<Vec<u32>> {
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
        // A callback may hold the last owner: the thread cannot wait for itself.
        if std::thread::current().id() == self.thread_id {
            return;
        }
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(LEAVE) == Err(RecvTimeoutError::Timeout) {
            tracing::error!("ublk: the control thread does not end; it is left behind");
        } else if let Some(thread) = self.thread.take() {
            // It has said its last word or panicked.
            let _ = thread.join();
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    control: OwnedFd,
    /// The last one takes new commands; the others are stuck.
    lanes: Vec<Lane>,
}

impl Worker {
    fn run(mut self) {
        self.lanes.iter().for_each(Lane::widen);
        let mut stopping = false;
        while !stopping || self.lanes.iter().any(Lane::is_awaited) {
            stopping |= self.take_messages(stopping);
            for lane in &mut self.lanes {
                lane.expire(Instant::now());
                lane.hand_over();
                lane.reap();
            }
            self.replace();
            // What callbacks sent is seen by the poll: the wake descriptor is readable then.
            if !stopping || self.lanes.iter().any(Lane::is_awaited) {
                self.sleep();
            }
        }
    }

    /// True once it is to stop.
    fn take_messages(&mut self, stopping: bool) -> bool {
        let mut count = [0; 8];
        // Empty or not: the inbox is looked at in any case.
        let _ = rustix::io::read(&self.shared.wake, &mut count);
        let messages = std::mem::take(&mut *self.shared.inbox());
        let now = Instant::now();
        let mut stop = false;
        for message in messages {
            match message {
                Message::Begin(.., done) if stopping || stop => done(Err(Failure::Closed)),
                Message::Begin(ticket, command, deadline, done) => {
                    let lane = self.lanes.last_mut().expect("there is always one");
                    lane.begin(&self.control, ticket, command, deadline, done);
                }
                Message::Cancel(ticket) => {
                    for lane in &mut self.lanes {
                        lane.cancel(ticket, now);
                    }
                }
                Message::Stop => {
                    stop = true;
                    self.lanes.iter_mut().for_each(|lane| lane.cancel_all(now));
                }
            }
        }
        stop
    }

    /// Opens a fresh ring where the last one is stuck, and closes those that are done with.
    fn replace(&mut self) {
        if self.lanes.last().is_some_and(Lane::is_stuck) {
            match Lane::open() {
                Ok(lane) => {
                    tracing::warn!("ublk: control commands go on over a fresh ring");
                    lane.widen();
                    self.lanes.push(lane);
                }
                Err(error) => {
                    tracing::error!(%error, "ublk: no fresh ring for control commands");
                }
            }
        }
        let last = self.lanes.len() - 1;
        let mut index = 0;
        self.lanes.retain(|lane| {
            index += 1;
            index > last || !lane.is_idle()
        });
        // The oldest: its memory is left to the kernel for good. Nobody waits for it.
        while self.lanes.len() > STUCK_MAX + 1 && !self.lanes[0].is_awaited() {
            self.lanes.remove(0);
        }
    }

    fn sleep(&self) {
        let next = self.lanes.iter().filter_map(Lane::next_event).min();
        let timeout = next.map(|at| {
            let wait = at.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: wait.as_secs() as i64,
                tv_nsec: i64::from(wait.subsec_nanos()),
            }
        });
        let mut fds = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        let rings: Vec<_> = self.lanes.iter().map(Lane::fd).collect();
        fds.extend(
            rings
                .iter()
                .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)),
        );
        // Interrupted or not: everything is looked at anew.
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::port::{Answer, Argument};
    use crate::sys::ControlCommand;

    /// A worker on its thread, ended when dropped.
    struct Working(Arc<Shared>, Option<JoinHandle<()>>);

    impl Working {
        fn on(lane: Lane) -> Working {
            let shared = Arc::new(Shared {
                inbox: Mutex::default(),
                wake: rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
            });
            let worker = Worker {
                shared: Arc::clone(&shared),
                // It ends every command at once, well or not, as its kernel likes.
                control: std::fs::File::open("/dev/null").unwrap().into(),
                lanes: vec![lane],
            };
            let thread = std::thread::spawn(move || worker.run());
            Working(shared, Some(thread))
        }

        /// How a command ends, if it does.
        fn command(&self, ticket: u64, within: Duration) -> Result<Answer, Failure> {
            let command = Command {
                opcode: sys::STOP_DEVICE,
                header: ControlCommand::default(),
                argument: Argument::None,
            };
            let (tell, told) = mpsc::channel();
            let done: Done = Box::new(move |how| tell.send(how).unwrap());
            let deadline = Instant::now() + within;
            self.0
                .send(Message::Begin(Ticket(ticket), command, deadline, done));
            told.recv_timeout(within + Duration::from_secs(20)).unwrap()
        }
    }

    impl Drop for Working {
        fn drop(&mut self) {
            self.0.send(Message::Stop);
            self.1.take().unwrap().join().unwrap();
        }
    }

    #[test]
    fn a_ring_on_which_a_command_got_stuck_is_replaced_for_those_that_follow() {
        let working = Working::on(Lane::dead().unwrap());
        let stuck = working.command(1, Duration::from_millis(1));
        assert_eq!(stuck, Err(Failure::Stuck));
        for ticket in 2..5 {
            let ended = working.command(ticket, Duration::from_secs(10));
            let answered = matches!(ended, Ok(_) | Err(Failure::Errno(_)));
            assert!(answered, "{ended:?}");
        }
    }
}
