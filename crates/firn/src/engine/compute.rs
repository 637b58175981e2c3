//! The threads that compute for the engine, so that its job thread never does so for long.
//!
//! Two lanes, each with a thread per processor: what a client's request waits for (decoding a chunk, a
//! checkpoint) runs at the server's own priority; all else (compressing packs, folding the index) at a lower
//! one, so that it takes every idle processor and none that a client wants. No lane waits for the other.
//! Whoever asks never waits: a computation is queued, however many there are, and the engine bounds them.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// How much nicer than the server the threads of the background lane are: they get about a tenth of a
/// processor that a client wants too.
const BACKGROUND_NICENESS: i32 = 10;

/// Who waits for a computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// A client's request.
    Awaited,
    /// Nobody.
    Background,
}

impl Lane {
    const ALL: [Lane; 2] = [Lane::Awaited, Lane::Background];

    fn thread_name(self, nth: usize) -> String {
        match self {
            Lane::Awaited => format!("firn-awaited-{nth}"),
            Lane::Background => format!("firn-compute-{nth}"),
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// What is to be computed on one lane.
#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    is_stopping: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a job. None once the queue stops.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.is_stopping {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Where computations are handed in.
#[derive(Default)]
pub(super) struct ComputeQueues {
    awaited: Queue,
    background: Queue,
}

impl std::fmt::Debug for ComputeQueues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ComputeQueues")
            .field("awaited", &self.awaited.lock().jobs.len())
            .field("background", &self.background.lock().jobs.len())
            .finish()
    }
}

impl ComputeQueues {
    fn of(&self, lane: Lane) -> &Queue {
        match lane {
            Lane::Awaited => &self.awaited,
            Lane::Background => &self.background,
        }
    }

    /// Has `job` run soon. After a stop it is dropped.
    pub(super) fn push(&self, lane: Lane, job: impl FnOnce() + Send + 'static) {
        let queue = self.of(lane);
        let mut state = queue.lock();
        if state.is_stopping {
            // Outside of the lock: a dropped job reports that it did not run.
            return drop(state);
        }
        state.jobs.push_back(Box::new(job));
        drop(state);
        queue.changed.notify_one();
    }
}

/// The running threads. Dropping it stops them.
#[derive(Debug)]
pub(super) struct ComputeThreads {
    queues: Arc<ComputeQueues>,
    threads: Vec<JoinHandle<()>>,
}

impl ComputeThreads {
    /// Starts a thread of each lane for each processor that the server may use.
    pub(super) fn start(queues: &Arc<ComputeQueues>) -> std::io::Result<ComputeThreads> {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let mut started = ComputeThreads {
            queues: Arc::clone(queues),
            threads: Vec::new(),
        };
        for lane in Lane::ALL {
            for nth in 0..count {
                let queues = Arc::clone(queues);
                let thread = thread::Builder::new()
                    .name(lane.thread_name(nth))
                    .spawn(move || run(&queues, lane))?;
                started.threads.push(thread);
            }
        }
        Ok(started)
    }

    /// Lets the computations at hand end and drops the others.
    pub(super) fn stop(&mut self) {
        for lane in Lane::ALL {
            let queue = self.queues.of(lane);
            let dropped = {
                let mut state = queue.lock();
                state.is_stopping = true;
                std::mem::take(&mut state.jobs)
            };
            queue.changed.notify_all();
            drop(dropped);
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that computes panicked");
            }
        }
    }
}

impl Drop for ComputeThreads {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(queues: &ComputeQueues, lane: Lane) {
    if lane == Lane::Background {
        lower_priority();
    }
    while let Some(job) = queues.of(lane).next() {
        job();
    }
}

/// Makes this thread nicer; on Linux niceness belongs to a thread, and "the calling process" is the calling thread.
fn lower_priority() {
    let own = rustix::process::getpriority_process(None).unwrap_or(0);
    let nicer = (own + BACKGROUND_NICENESS).min(19);
    if let Err(error) = rustix::process::setpriority_process(None, nicer) {
        tracing::debug!(%error, "a thread that computes could not lower its priority");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(30);

    #[test]
    fn what_a_client_waits_for_does_not_wait_for_background_computing() {
        let queues = Arc::new(ComputeQueues::default());
        let threads = ComputeThreads::start(&queues).unwrap();
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..threads.threads.len() * 2 {
            let held = Arc::clone(&held);
            queues.push(Lane::Background, move || {
                let _ = held.lock().unwrap().recv();
            });
        }
        let (done, is_done) = mpsc::channel();
        queues.push(Lane::Awaited, move || done.send(()).unwrap());
        is_done.recv_timeout(DEADLINE).unwrap();
        drop(release);
    }

    #[test]
    fn only_background_threads_are_nicer_than_the_server() {
        let queues = Arc::new(ComputeQueues::default());
        let _threads = ComputeThreads::start(&queues).unwrap();
        let own = rustix::process::getpriority_process(None).unwrap();
        for (lane, nicer) in [(Lane::Awaited, 0), (Lane::Background, BACKGROUND_NICENESS)] {
            let (tell, told) = mpsc::channel();
            queues.push(lane, move || {
                tell.send(rustix::process::getpriority_process(None).unwrap())
                    .unwrap();
            });
            let found = told.recv_timeout(DEADLINE).unwrap();
            assert_eq!(found, (own + nicer).min(19), "{lane:?}");
        }
        assert_eq!(rustix::process::getpriority_process(None).unwrap(), own);
    }

    #[test]
    fn a_computation_that_never_runs_is_dropped_and_so_reported() {
        struct Reports(mpsc::Sender<()>);
        impl Drop for Reports {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
            }
        }
        let queues = Arc::new(ComputeQueues::default());
        let mut threads = ComputeThreads::start(&queues).unwrap();
        threads.stop();
        let (report, reported) = mpsc::channel();
        let reports = Reports(report);
        queues.push(Lane::Background, move || drop(reports));
        reported.recv_timeout(DEADLINE).unwrap();
    }
}
