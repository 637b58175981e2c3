//! Starts the threads on which calls to files are made, before one of them is needed.
//!
//! None has to be started, and no stack to be found room for, when memory is short and these calls are what
//! frees it. A limit of threads (pids.max, `ulimit -u`) is no reason not to serve: tokio then queues what it
//! has no thread for, so nothing here may wait for all of them without a bound.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

/// How long all of them together may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(1);

/// What of its stack each of them has touched before it is needed.
const STACK_BYTES: usize = 16 << 10;

/// Starts as many threads as are wanted, and says in the log if there are fewer.
pub(super) fn start(runtime: &Handle, wanted: usize) {
    let started = gather(runtime, wanted);
    if started < wanted {
        tracing::warn!(
            started,
            wanted,
            "fewer threads than wanted for calls to files: raise the limit of threads (TasksMax, pids.max, ulimit -u)"
        );
    }
}

/// Keeps each thread busy until all have started or the time is over, so that no thread takes two of the
/// tasks; answers how many had started by then.
fn gather(runtime: &Handle, wanted: usize) -> usize {
    let latch = Arc::new(Latch::new(wanted));
    for _ in 0..wanted {
        let latch = Arc::clone(&latch);
        runtime.spawn_blocking(move || {
            std::hint::black_box([1_u8; STACK_BYTES]);
            latch.arrive();
        });
    }
    latch.wait()
}

/// Opens when all have arrived, or when the time is over.
struct Latch {
    wanted: usize,
    deadline: Instant,
    arrived: Mutex<usize>,
    all_arrived: Condvar,
}

impl Latch {
    fn new(wanted: usize) -> Self {
        Latch {
            wanted,
            deadline: Instant::now() + START_TIMEOUT,
            arrived: Mutex::new(0),
            all_arrived: Condvar::new(),
        }
    }

    /// Counts this thread and waits. A thread that comes after the deadline has waited there before.
    fn arrive(&self) {
        if Instant::now() >= self.deadline {
            return;
        }
        *self.arrived.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.all_arrived.notify_all();
        self.wait();
    }

    /// How many arrived in time.
    fn wait(&self) -> usize {
        let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.deadline.saturating_duration_since(Instant::now());
        let (arrived, _) = self
            .all_arrived
            .wait_timeout_while(arrived, left, |arrived| *arrived < self.wanted)
            .unwrap_or_else(PoisonError::into_inner);
        *arrived
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Runtime;

    use super::*;

    fn runtime(threads: usize) -> Runtime {
        tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(threads)
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn as_many_threads_start_as_are_wanted() {
        assert_eq!(gather(runtime(64).handle(), 48), 48);
    }

    #[test]
    fn where_threads_are_limited_the_start_goes_on_with_those_that_there_are() {
        let runtime = runtime(4);
        let begin = Instant::now();
        assert_eq!(gather(runtime.handle(), 48), 4);
        assert!(begin.elapsed() < 20 * START_TIMEOUT);
        let call = runtime.spawn_blocking(|| 7);
        let done = runtime.block_on(async { tokio::time::timeout(20 * START_TIMEOUT, call).await });
        assert_eq!(done.expect("no call waits for ever").unwrap(), 7);
    }
}
