//! What all threads of a soak share: when it ends, what went wrong, who does what since when.
//!
//! A worker says what it begins and that it ended; the watchdog reads that. Nothing here waits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many failures are kept; the first ones matter.
const FAILURES_KEPT: usize = 20;

/// Everything that happened, counted.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) written_bytes: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) writes: AtomicU64,
    /// Of them with FUA.
    pub(super) forced: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) flushes: AtomicU64,
    pub(super) zeroings: AtomicU64,
    pub(super) discards: AtomicU64,
    /// Of writes and reads, those through the page cache.
    pub(super) buffered: AtomicU64,
    /// Requests that took longer than a second.
    pub(super) slow: AtomicU64,
    /// The longest since the curve's last line, in milliseconds.
    pub(super) longest_ms: AtomicU64,
    /// Planned restarts, kill -9, disks detached and attached again.
    pub(super) stops: AtomicU64,
    pub(super) kills: AtomicU64,
    pub(super) detaches: AtomicU64,
    /// Disks that a restarted server brought back after it was ready.
    pub(super) late_back: AtomicU64,
}

impl Tally {
    pub(super) fn add(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }

    pub(super) fn requests(&self) -> u64 {
        [
            &self.writes,
            &self.reads,
            &self.flushes,
            &self.zeroings,
            &self.discards,
        ]
        .map(|counter| counter.load(Ordering::Relaxed))
        .iter()
        .sum()
    }
}

/// What one thread is doing.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) name: String,
    doing: Mutex<Option<(Instant, String)>>,
}

/// Shared by all threads of a soak.
#[derive(Debug)]
pub(super) struct World {
    pub(super) began: Instant,
    pub(super) tally: Tally,
    stop: AtomicBool,
    failures: Mutex<Vec<String>>,
    seats: Mutex<Vec<std::sync::Arc<Seat>>>,
}

/// Every section under these locks is one call on what they hold.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(super) fn new() -> World {
        World {
            began: Instant::now(),
            tally: Tally::default(),
            stop: AtomicBool::new(false),
            failures: Mutex::default(),
            seats: Mutex::default(),
        }
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Something is wrong; the soak ends.
    pub(super) fn fail(&self, what: String) {
        println!(
            "WRONG after {:.1} s: {what}",
            self.began.elapsed().as_secs_f64()
        );
        let mut failures = lock(&self.failures);
        if failures.len() < FAILURES_KEPT {
            failures.push(what);
        }
        drop(failures);
        self.stop();
    }

    pub(super) fn failures(&self) -> Vec<String> {
        lock(&self.failures).clone()
    }

    /// Sleeps, but not past the end of the soak.
    pub(super) fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.stopped() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
    }

    pub(super) fn seat(&self, name: String) -> std::sync::Arc<Seat> {
        let seat = std::sync::Arc::new(Seat {
            name,
            doing: Mutex::default(),
        });
        lock(&self.seats).push(std::sync::Arc::clone(&seat));
        seat
    }

    /// Those that have been at one thing for longer than `limit`.
    pub(super) fn late(&self, limit: Duration) -> Vec<String> {
        let seats = lock(&self.seats);
        let late = seats.iter().filter_map(|seat| {
            let doing = lock(&seat.doing);
            let (since, what) = doing.as_ref()?;
            (since.elapsed() > limit).then(|| {
                format!(
                    "{}: {what} for {:.0} s",
                    seat.name,
                    since.elapsed().as_secs_f64()
                )
            })
        });
        late.collect()
    }
}

impl Seat {
    /// Does something under the watchdog's eyes; how long it took is tallied.
    pub(super) fn does<T>(
        &self,
        tally: &Tally,
        what: impl FnOnce() -> String,
        work: impl FnOnce() -> T,
    ) -> T {
        let began = Instant::now();
        *lock(&self.doing) = Some((began, what()));
        let done = work();
        *lock(&self.doing) = None;
        let took = began.elapsed();
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        tally.longest_ms.fetch_max(ms, Ordering::Relaxed);
        if took > Duration::from_secs(1) {
            Tally::add(&tally.slow, 1);
        }
        done
    }
}
