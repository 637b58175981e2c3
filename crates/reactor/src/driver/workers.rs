//! A few threads for file calls where there is no ring: reading, writing and syncing a file has
//! no non-blocking form, and the reactor's thread never blocks (R1).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::call::Call;

/// One file call. Its memory stays valid until its result is taken (`Driver::start`).
pub(crate) struct Job {
    pub(crate) key: u64,
    pub(crate) fd: RawFd,
    pub(crate) call: Call,
}

// SAFETY: the pointers in the call are used by one thread at a time: the worker that took the
// job, until it has put the result into the list.
unsafe impl Send for Job {}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    results: Vec<(u64, i32)>,
    stop: bool,
}

struct Shared {
    state: Mutex<State>,
    more: Condvar,
    wake: Arc<OwnedFd>,
}

pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared.state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workers {
    pub(crate) fn start(count: usize, wake: &Arc<OwnedFd>) -> io::Result<Workers> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            more: Condvar::new(),
            wake: Arc::clone(wake),
        });
        let mut workers = Workers {
            shared,
            threads: Vec::new(),
        };
        for _ in 0..count.max(1) {
            let shared = Arc::clone(&workers.shared);
            let thread = std::thread::Builder::new()
                .name("file-worker".into())
                .spawn(move || run(&shared))?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    pub(crate) fn submit(&self, job: Job) {
        lock(&self.shared).jobs.push_back(job);
        self.shared.more.notify_one();
    }

    /// Takes a job back that no worker has begun.
    pub(crate) fn cancel(&self, key: u64) -> bool {
        let mut state = lock(&self.shared);
        let before = state.jobs.len();
        state.jobs.retain(|job| job.key != key);
        before != state.jobs.len()
    }

    pub(crate) fn take_results(&self, out: &mut Vec<(u64, i32)>) {
        out.append(&mut lock(&self.shared).results);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.shared).stop = true;
        self.shared.more.notify_all();
        for thread in self.threads.drain(..) {
            // A worker does not panic; if one did, its panic message is printed already.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared) {
    loop {
        let job = {
            let mut state = lock(shared);
            loop {
                if let Some(job) = state.jobs.pop_front() {
                    break job;
                }
                if state.stop {
                    return;
                }
                state = shared
                    .more
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        };
        let result = carry_out(&job);
        let first = {
            let mut state = lock(shared);
            state.results.push((job.key, result));
            state.results.len() == 1
        };
        if first {
            // It cannot block: the count would have to be near 2^64.
            let _ = rustix::io::write(&*shared.wake, &1_u64.to_ne_bytes());
        }
    }
}

fn carry_out(job: &Job) -> i32 {
    let result = match job.call {
        Call::Read { to, len, offset } => {
            // SAFETY: the memory is valid until the result is taken, by `Driver::start`.
            unsafe { libc::pread(job.fd, to.cast(), len, offset as libc::off_t) }
        }
        Call::Write { from, len, offset } => {
            // SAFETY: as above.
            unsafe { libc::pwrite(job.fd, from.cast(), len, offset as libc::off_t) }
        }
        Call::Sync { data_only: true } => {
            // SAFETY: no memory is involved; the core keeps the descriptor open.
            (unsafe { libc::fdatasync(job.fd) }) as isize
        }
        Call::Sync { data_only: false } => {
            // SAFETY: as above.
            (unsafe { libc::fsync(job.fd) }) as isize
        }
        Call::Accept
        | Call::Recv { .. }
        | Call::Send { .. }
        | Call::Poll { .. }
        | Call::Fixed { .. }
        | Call::Command(_) => return -libc::EINVAL,
    };
    if result < 0 {
        return -io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO);
    }
    result.min(i32::MAX as isize) as i32
}
