//! The end of a reactor's thread, and waiting for it. The wait is bounded: a thread may be stuck in
//! the kernel, and then it is reported and left alone.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::buf::Buf;
use crate::stop::StopReport;

/// How long after its deadline a stopping reactor waits for operations that cannot be cancelled
/// (disk I/O) before it gives up and leaks their memory.
pub(crate) const LINGER: Duration = Duration::from_secs(10);

/// How long the thread may take after that to come out of the kernel.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest that a stop with this deadline takes, where the thread is not stuck.
pub(crate) fn stop_limit(within: Duration) -> Duration {
    within + LINGER + EXIT_TIMEOUT
}

/// Memory that devices may touch until the ring's thread has ended.
#[derive(Default)]
pub(crate) struct ArmedMemory(pub(crate) Vec<Buf>);

impl Drop for ArmedMemory {
    /// Where the thread unwinds, it has not ended: the memory is leaked.
    fn drop(&mut self) {
        if std::thread::panicking() {
            Box::leak(Box::new(std::mem::take(&mut self.0)));
        }
    }
}

/// What a reactor's thread returns.
pub(crate) struct ThreadExit {
    pub(crate) report: StopReport,
    /// When the thread was done with its work.
    pub(crate) finished_at: Instant,
    /// Devices touch it in the reactor's thread only, so the thread that joins it frees it.
    pub(crate) _memory: ArmedMemory,
}

impl ThreadExit {
    /// The report, now that the thread is gone.
    fn report(&self) -> StopReport {
        StopReport {
            exit_time: self.finished_at.elapsed(),
            ..self.report
        }
    }
}

/// Waits for a thread up to the deadline: while it closes its ring it is in the kernel, which may be stuck. The
/// memory that the ring had is freed by the joining thread, and the caller does not wait for that: it
/// takes a call for every buffer.
pub(crate) fn join(
    thread: JoinHandle<Option<ThreadExit>>,
    deadline: Instant,
) -> Option<StopReport> {
    let (joined, joining) = mpsc::sync_channel(1);
    let thread = Arc::new(Mutex::new(Some(thread)));
    let taken = Arc::clone(&thread);
    let joiner = move || {
        let exit = join_now(&taken);
        // The caller may have given up.
        let _ = joined.send(exit.as_ref().map(ThreadExit::report));
    };
    let spawned = std::thread::Builder::new()
        .name("reactor-join".into())
        .spawn(joiner);
    if let Err(error) = spawned {
        tracing::warn!(
            %error,
            "cannot start a thread that waits for a reactor's end; waiting without a time limit \
             (raise the limit of processes)"
        );
        return join_now(&thread).as_ref().map(ThreadExit::report);
    }
    match joining.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(report) => report,
        Err(_) => {
            tracing::error!(
                "a reactor's thread is stuck in the kernel while it closes its ring; it is left \
                 behind and ends with the process (/proc/PID/task/TID/stack shows where it is)"
            );
            Some(StopReport {
                thread_stuck: true,
                ..StopReport::default()
            })
        }
    }
}

fn join_now(thread: &Mutex<Option<JoinHandle<Option<ThreadExit>>>>) -> Option<ThreadExit> {
    let mut thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
    thread.take()?.join().ok().flatten()
}
