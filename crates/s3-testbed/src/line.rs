//! A line with a bandwidth, shared by all connections that go over it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A sender that was late may send this much at once: a sleep that lasted too long is made up for.
const CREDIT: Duration = Duration::from_millis(5);

/// One direction of a network.
#[derive(Debug)]
pub(crate) struct Line {
    /// Zero means as fast as it goes.
    bytes_per_second: AtomicU64,
    /// When what was sent up to now has passed.
    free_at: Mutex<Instant>,
}

impl Line {
    pub(crate) fn new() -> Line {
        Line {
            bytes_per_second: AtomicU64::new(0),
            free_at: Mutex::new(Instant::now()),
        }
    }

    pub(crate) fn set_rate(&self, bytes_per_second: Option<u64>) {
        let rate = bytes_per_second.unwrap_or(0);
        self.bytes_per_second.store(rate, Ordering::SeqCst);
        // What waits in the queue of a slow line must not hold up a fast one.
        *self.free_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Takes `bytes` of the line and waits until they have passed. First come, first served.
    pub(crate) fn pass(&self, bytes: usize) {
        let rate = self.bytes_per_second.load(Ordering::Relaxed);
        if rate == 0 {
            return;
        }
        let takes = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let until = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let earliest = now.checked_sub(CREDIT).unwrap_or(now);
            *free_at = (*free_at).max(earliest) + takes;
            *free_at
        };
        sleep(until.saturating_duration_since(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_passes_no_more_than_its_rate_however_many_send() {
        let line = Line::new();
        line.set_rate(Some(10 << 20));
        let started = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..8).for_each(|_| line.pass(64 << 10)));
            }
        });
        // 2 MiB at 10 MiB/s, less the credit.
        assert!(started.elapsed() >= Duration::from_millis(190));
    }
}
