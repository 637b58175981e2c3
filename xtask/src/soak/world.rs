//! What all threads of a soak share: its end, its failures, and what each thread does since when.
//!
//! A worker records when it begins and ends an operation; the watchdog reads that. Nothing here
//! waits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many failures are kept; the first ones matter.
const FAILURES_KEPT: usize = 20;

/// Counts of everything that the soak did.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) written_bytes: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) writes: AtomicU64,
    /// The writes with FUA.
    pub(super) fua_writes: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) flushes: AtomicU64,
    pub(super) zeroings: AtomicU64,
    pub(super) discards: AtomicU64,
    /// The writes and reads that went through the page cache.
    pub(super) buffered: AtomicU64,
    /// Requests that took longer than a second.
    pub(super) slow: AtomicU64,
    /// The longest request since the last row of the table, in milliseconds.
    pub(super) longest_ms: AtomicU64,
    /// Planned restarts, kills by SIGKILL, and disks detached and attached again.
    pub(super) stops: AtomicU64,
    pub(super) kills: AtomicU64,
    pub(super) detaches: AtomicU64,
    /// Servers that went on with a program anew.
    pub(super) upgrades: AtomicU64,
    /// Volumes that went to another host, and moves that ended with an error.
    pub(super) moves: AtomicU64,
    pub(super) failed_moves: AtomicU64,
    /// How often MinIO was killed, and suspended, for some seconds.
    pub(super) store_kills: AtomicU64,
    pub(super) store_suspensions: AtomicU64,
    /// Disks that a restarted server recovered only after it was ready.
    pub(super) late_recoveries: AtomicU64,
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

/// What one thread is doing, and since when.
#[derive(Debug)]
pub(super) struct ThreadActivity {
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
    activities: Mutex<Vec<std::sync::Arc<ThreadActivity>>>,
}

/// Locks a mutex. Each critical section is one call, so a panic cannot leave its data half changed.
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
            activities: Mutex::default(),
        }
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Records a failure and ends the soak.
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

    /// Fails if the store was not disturbed in both ways.
    pub(super) fn judge_store(&self) {
        let tally = &self.tally;
        self.judge_happened("MinIO was killed", &tally.store_kills);
        self.judge_happened("MinIO was suspended", &tally.store_suspensions);
    }

    /// Fails if something never happened that this soak is for.
    pub(super) fn judge_happened(&self, what: &str, counter: &AtomicU64) {
        if counter.load(Ordering::Relaxed) == 0 {
            self.fail(format!("it never happened that {what}: run longer"));
        }
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

    pub(super) fn register_thread(&self, name: String) -> std::sync::Arc<ThreadActivity> {
        let activity = std::sync::Arc::new(ThreadActivity {
            name,
            doing: Mutex::default(),
        });
        lock(&self.activities).push(std::sync::Arc::clone(&activity));
        activity
    }

    /// The threads whose present operation has lasted longer than `limit`.
    pub(super) fn find_stalled(&self, limit: Duration) -> Vec<String> {
        let activities = lock(&self.activities);
        let late = activities.iter().filter_map(|activity| {
            let doing = lock(&activity.doing);
            let (since, what) = doing.as_ref()?;
            (since.elapsed() > limit).then(|| {
                format!(
                    "{}: {what} for {:.0} s",
                    activity.name,
                    since.elapsed().as_secs_f64()
                )
            })
        });
        late.collect()
    }
}

impl ThreadActivity {
    /// Runs an operation that the watchdog sees, and counts how long it took.
    pub(super) fn track<T>(
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
