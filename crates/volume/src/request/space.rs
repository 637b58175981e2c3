//! Space in the log: which writes are slowed, which are parked, and what wakes them.
//!
//! Below 70 % of the log no write is slowed. Above, volumes that hold more than their share pay for
//! each byte from a bucket that refills more slowly the fuller the log is; so the rate falls
//! gently to what the store drains, never off a cliff. The last fifth of the log is for volumes
//! below their share: a volume that holds more is parked there, so that one volume that fills the log
//! while the store is away stops no other. When there is no segment left, all writers are parked
//! until an upload or the cleaner frees one. Space is never an error.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;

use crate::jobs::Signal;
use crate::lock::lock;

/// Thousandths of the log above which writers are slowed.
const THROTTLE_AT_PERMILLE: u64 = 700;
/// Thousandths of the log above which only volumes below their share write, where there are others.
const RESERVED_AT_PERMILLE: u64 = 800;
/// The rate just above [`THROTTLE_AT_PERMILLE`], in bytes per second.
const RATE_MAX_BYTES_PER_S: u64 = 1 << 30;
/// The rate of a full log. Writers creep, so that clients see progress while anything drains.
const RATE_MIN_BYTES_PER_S: u64 = 1 << 20;
/// The bucket holds at most this many nanoseconds of the rate.
const BURST_NS: u64 = 20_000_000;

#[derive(Debug, Default)]
struct Bucket {
    /// Bytes; negative after a large request.
    tokens: i64,
    filled_ns: u64,
}

/// The gate before the log, and the waiting room.
#[derive(Debug, Default)]
pub(crate) struct Space {
    bucket: Mutex<Bucket>,
    pressure: AtomicU64,
    /// Sectors that each volume may hold without being slowed.
    share: AtomicU64,
    /// More than one volume is served: what is left of a crowded log is for the others.
    others: AtomicBool,
    /// A write was parked because the rest of the log is reserved.
    starved: AtomicBool,
    room: Signal,
}

/// Bytes per second at this pressure.
fn rate(pressure: u64) -> u64 {
    let left = 1000_u64.saturating_sub(pressure);
    let scale = 1000 - THROTTLE_AT_PERMILLE;
    RATE_MIN_BYTES_PER_S + RATE_MAX_BYTES_PER_S / (scale * scale) * left * left
}

impl Space {
    /// May `bytes` more be written by a volume that holds `held` sectors?
    pub(crate) fn admit(&self, bytes: u64, held: u64) -> bool {
        let pressure = self.pressure.load(Ordering::Relaxed);
        if pressure < THROTTLE_AT_PERMILLE || held < self.share.load(Ordering::Relaxed) {
            return true;
        }
        if pressure >= RESERVED_AT_PERMILLE && self.others.load(Ordering::Relaxed) {
            self.starved.store(true, Ordering::Relaxed);
            return false;
        }
        let mut bucket = lock(&self.bucket);
        if bucket.tokens <= 0 {
            return false;
        }
        bucket.tokens -= bytes.min(1 << 40) as i64;
        true
    }

    /// The log is this full now: between two ticks a burst may change much.
    pub(crate) fn set_pressure(&self, pressure: u64) {
        self.pressure.store(pressure, Ordering::Relaxed);
    }

    /// Whether a write was parked for the reserve since the last call: dead bytes are worth
    /// collecting then, though there are segments left.
    pub(crate) fn take_starved(&self) -> bool {
        self.starved.swap(false, Ordering::Relaxed)
    }

    /// Keeps the waker until there may be room.
    pub(crate) fn wait(&self, waker: &Waker) {
        self.room.wait(waker);
    }

    /// There may be room now.
    pub(crate) fn wake_all(&self) {
        self.room.wake_all();
    }

    pub(crate) fn has_waiters(&self) -> bool {
        self.room.has_waiters()
    }

    /// Time passes: the bucket fills, and parked writes try again.
    pub(crate) fn tick(&self, now_ns: u64, pressure: u64, share: u64, others: bool) {
        self.set_pressure(pressure);
        self.share.store(share, Ordering::Relaxed);
        self.others.store(others, Ordering::Relaxed);
        {
            let mut bucket = lock(&self.bucket);
            let elapsed = now_ns.saturating_sub(bucket.filled_ns).min(BURST_NS);
            bucket.filled_ns = now_ns;
            let gain = (rate(pressure) as u128 * u128::from(elapsed) / 1_000_000_000) as i64;
            let most = (rate(pressure) as u128 * u128::from(BURST_NS) / 1_000_000_000) as i64;
            bucket.tokens = (bucket.tokens + gain).min(most.max(1));
        }
        if self.has_waiters() {
            self.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_falls_steadily_and_never_to_nothing() {
        let rates: Vec<u64> = (THROTTLE_AT_PERMILLE..=1000).map(rate).collect();
        assert!(rates.windows(2).all(|pair| pair[0] >= pair[1]));
        let steepest = rates
            .windows(2)
            .map(|pair| pair[0] - pair[1])
            .max()
            .expect("not empty");
        assert!(steepest < RATE_MAX_BYTES_PER_S / 100, "no cliff");
        assert_eq!(rates.last(), Some(&RATE_MIN_BYTES_PER_S));
    }

    #[test]
    fn only_volumes_above_their_share_are_slowed() {
        let space = Space::default();
        space.tick(0, 900, 100, false);
        assert!(space.admit(4096, 99), "below its share");
        while space.admit(1 << 20, 100) {}
        assert!(!space.admit(4096, 100), "above its share");
        assert!(space.admit(4096, 99));
        space.tick(10_000_000, 900, 100, false);
        space.tick(1_000_000_000, 600, 100, false);
        assert!(space.admit(4096, 1 << 30), "below 70 % nobody is slowed");
    }

    #[test]
    fn the_last_fifth_is_for_volumes_below_their_share_where_there_are_others() {
        let space = Space::default();
        space.tick(10_000_000, 790, 100, true);
        assert!(space.admit(4096, 100), "slowed, not stopped");
        assert!(!space.take_starved());
        space.set_pressure(800);
        assert!(!space.admit(4096, 100));
        assert!(space.take_starved() && !space.take_starved());
        assert!(space.admit(4096, 99));
        space.tick(20_000_000, 999, 100, false);
        assert!(space.admit(4096, 100), "alone it may have all of it");
    }
}
