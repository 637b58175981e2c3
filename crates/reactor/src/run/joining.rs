//! How a reactor's thread is waited for, and what it says last. The wait is bounded: a thread may be
//! stuck in the kernel, and then it is told and left.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use super::StopReport;
use super::sources::Memory;

/// The last word of a reactor's thread.
pub(super) struct Ended {
    pub(super) report: StopReport,
    pub(super) at: Instant,
    /// Memory of armed commands. Drivers touch it in this thread only, so whoever joins the
    /// thread frees it.
    pub(super) _memory: Memory,
}

impl Ended {
    /// What there is to say of it, now that the thread is gone.
    fn now(&self) -> StopReport {
        StopReport {
            exit_time: self.at.elapsed(),
            ..self.report
        }
    }
}

/// Waits for a thread to the deadline: on its way out it is in the kernel, which may be stuck. The
/// memory that the ring had is given back after that, and nobody waits for it: a call for every
/// buffer takes time.
pub(super) fn join(thread: JoinHandle<Option<Ended>>, deadline: Instant) -> Option<StopReport> {
    let (joined, joining) = mpsc::sync_channel(1);
    let thread = Arc::new(Mutex::new(Some(thread)));
    let taken = Arc::clone(&thread);
    let joiner = move || {
        let ended = join_now(&taken);
        // Whoever waited may have given up.
        let _ = joined.send(ended.as_ref().map(Ended::now));
    };
    let spawned = std::thread::Builder::new()
        .name("reactor-join".into())
        .spawn(joiner);
    if spawned.is_err() {
        tracing::warn!("no thread can be started to wait for a reactor: waiting without a bound");
        return join_now(&thread).as_ref().map(Ended::now);
    }
    match joining.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(report) => report,
        Err(_) => {
            tracing::error!("a reactor's thread does not come out of the kernel; it is left");
            Some(StopReport {
                thread_stuck: true,
                ..StopReport::default()
            })
        }
    }
}

fn join_now(thread: &Mutex<Option<JoinHandle<Option<Ended>>>>) -> Option<Ended> {
    let mut thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
    thread.take()?.join().ok().flatten()
}
