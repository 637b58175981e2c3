//! Waiting for the driver where it has no event to wait for.

use std::time::{Duration, Instant};

/// Sleeps between tries, longer each time, up to a deadline.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    deadline: Instant,
}

impl Backoff {
    const MIN: Duration = Duration::from_millis(1);
    pub(crate) const MAX: Duration = Duration::from_millis(50);

    pub(crate) fn until(deadline: Instant) -> Backoff {
        Backoff {
            next: Backoff::MIN,
            deadline,
        }
    }

    /// Sleeps once. False if the deadline has come.
    pub(crate) fn sleep(&mut self) -> bool {
        blkmq::may_block("waiting for the ublk driver");
        let remaining = self.remaining();
        if remaining.is_zero() {
            return false;
        }
        std::thread::sleep(self.next.min(remaining));
        self.next = (2 * self.next).min(Backoff::MAX);
        true
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}
