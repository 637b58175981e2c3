//! A request to stop a reactor, the park point at which its thread may be held before it closes its
//! ring, and the report of how it ended.
//!
//! The owner of several reactors may have to do something when all of them have finished and none
//! has closed its ring yet. The thread waits for that outside of its ring: what the kernel has for
//! it meanwhile stays where it is, and no source is called any more.

use std::convert::Infallible;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

/// What a reactor's thread was asked to do.
pub(crate) struct StopRequest {
    /// When sources that have not detached are cut off.
    pub(crate) deadline: Instant,
    /// When it was asked; none where the reactor stops by itself.
    pub(crate) requested_at: Option<Instant>,
    /// Where the thread waits between the end of its work and that of its ring.
    pub(crate) park_point: Option<ParkPoint>,
}

/// The thread's side of a park point.
#[derive(Debug)]
pub(crate) struct ParkPoint {
    parked: SyncSender<()>,
    resume: Receiver<Infallible>,
}

/// The owner's side, until the thread is there.
#[derive(Debug)]
pub(crate) struct ParkWaiter {
    parked: Receiver<()>,
    resume: Sender<Infallible>,
}

/// Holds a thread at its park point; the thread goes on when this is dropped.
#[derive(Debug)]
pub(crate) struct ParkGuard {
    _resume: Sender<Infallible>,
}

/// Both sides of a park point.
pub(crate) fn park_point() -> (ParkPoint, ParkWaiter) {
    let (parked_to, parked) = sync_channel(1);
    let (resume, resume_from) = channel();
    let point = ParkPoint {
        parked: parked_to,
        resume: resume_from,
    };
    (point, ParkWaiter { parked, resume })
}

impl ParkPoint {
    /// Reports that the thread is here, and waits until it may go on.
    pub(crate) fn park(self) {
        // An owner that gave up waiting has dropped its side, and the thread goes on at once.
        let _ = self.parked.send(());
        let Err(_dropped) = self.resume.recv();
    }
}

impl ParkWaiter {
    /// Waits until the thread is there; none where it is not in time, or has ended.
    pub(crate) fn wait(self, within: Duration) -> Option<ParkGuard> {
        self.parked.recv_timeout(within).ok()?;
        Some(ParkGuard {
            _resume: self.resume,
        })
    }
}

/// How a reactor ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopReport {
    /// Sources that had not detached at the deadline.
    pub sources_forced: usize,
    /// Operations that did not end even after being cancelled; their memory was leaked on purpose.
    pub ops_abandoned: usize,
    /// Armed commands that ended with the ring.
    pub ops_armed: usize,
    /// Sources that panicked while the reactor ran.
    pub panics: u64,
    /// From the request to stop until nothing was left but armed commands, or the deadline's end.
    pub drain_time: Duration,
    /// Closing the ring and dropping the sources, in the reactor's thread.
    pub close_time: Duration,
    /// From then until the thread had ended. What the ring still had, the kernel cancels after
    /// that by itself; files of armed commands are closed some milliseconds later.
    pub exit_time: Duration,
    /// The thread had not ended when the time for it was over; the kernel still has its ring.
    /// Nothing else in the report is known then.
    pub thread_stuck: bool,
}
