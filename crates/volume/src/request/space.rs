//! Space in the log: which writes are slowed, which are parked, and what wakes them.
//!
//! Below half of the log no write is slowed. Above, volumes that hold more than their share are paced:
//! together to the rate at which slices are published, which is the rate at which the log becomes free;
//! to more than that while the log is not much more than half full, to a little less as it fills up, and
//! each of them to an equal part. With nothing published they still get all of the log, more slowly the
//! less is left. All of that is one smooth curve: no fill of the log is a cliff.
//!
//! Where there are other volumes, the last fifth of the log is for those below their share: a volume
//! that holds more is parked there, so that one volume that fills the log while the store is away stops
//! no other. When there is no segment left, all writers are parked until something is published or the
//! cleaner frees one. Space is never an error.

use crate::lock::lock;
use crate::request::parked::ParkedWrites;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use crate::units::SECOND_NS;

/// Thousandths of the log above which writers are paced.
const PACE_AT_PERMILLE: u64 = 500;
/// Thousandths of the log above which only volumes below their share write, where there are others.
const RESERVED_AT_PERMILLE: u64 = 800;
/// Where pacing begins, writers may still fill the log so often in a second: faster than any disk.
const FILLS_PER_S: f64 = 4.0;
/// With nothing published, what is left of the log would last so long at the rate of each moment.
const LAST_S: f64 = 10.0;
/// Writers creep at least, so that what is left of the log is used up in the end.
const RATE_MIN_BYTES_PER_S: f64 = 65_536.0;
/// The rate of publication is a mean over about so long: longer than a slice takes.
const MEAN_S: f64 = 3.0;
/// A volume may save up this much of its rate: longer than the bookkeeping is ever late.
const BURST_NS: u64 = 100_000_000;

/// What one volume may write while it is paced.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Bytes; negative after a large request.
    tokens: AtomicI64,
    /// It has asked since the last tick.
    asked: AtomicBool,
}

/// How fast the log becomes free.
#[derive(Debug, Default)]
struct Drain {
    looked_ns: u64,
    bytes_per_s: f64,
}

/// What a tick looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickInput {
    pub(crate) now_ns: u64,
    pub(crate) pressure: u64,
    pub(crate) log_bytes: u64,
    /// Sectors that each volume may hold without being slowed.
    pub(crate) share: u64,
    /// More than one volume is served: what is left of a crowded log is for the others.
    pub(crate) others: bool,
}

/// The gate before the log, and the waiting room.
#[derive(Debug, Default)]
pub(crate) struct Space {
    drain: Mutex<Drain>,
    /// Bytes of the log that published slices have set free since the last tick.
    published: AtomicU64,
    pressure: AtomicU64,
    share: AtomicU64,
    others: AtomicBool,
    /// A write was parked because the rest of the log is reserved.
    starved: AtomicBool,
    pub(crate) parked: ParkedWrites,
}

/// Bytes per second that all paced volumes together may write at this fill.
fn rate(fill: &TickInput, drained_bytes_per_s: f64) -> f64 {
    let full = if fill.others {
        RESERVED_AT_PERMILLE
    } else {
        1000
    };
    let knee = (PACE_AT_PERMILLE + full) / 2;
    let half = (full - knee) as f64;
    let pressure = fill.pressure.clamp(PACE_AT_PERMILLE, full);
    let below = knee.saturating_sub(pressure) as f64 / half;
    let beyond = pressure.saturating_sub(knee) as f64 / half;
    let log_bytes = fill.log_bytes as f64;
    let opening = FILLS_PER_S * log_bytes * below.powi(3);
    let drained = drained_bytes_per_s * (1.0 - beyond / 2.0);
    let left = (full - pressure) as f64 / 1000.0 * log_bytes;
    (opening + drained)
        .max(left / LAST_S)
        .max(RATE_MIN_BYTES_PER_S)
}

impl Space {
    /// May `bytes` more be written by a volume that holds `held` sectors?
    pub(crate) fn admit(&self, pace: &Pace, bytes: u64, held: u64) -> bool {
        let pressure = self.pressure.load(Ordering::Relaxed);
        if canary::active!("writers_run_into_a_full_log") {
            return true;
        }
        if pressure < PACE_AT_PERMILLE || held < self.share.load(Ordering::Relaxed) {
            return true;
        }
        if pressure >= RESERVED_AT_PERMILLE && self.others.load(Ordering::Relaxed) {
            self.starved.store(true, Ordering::Relaxed);
            return false;
        }
        pace.asked.store(true, Ordering::Relaxed);
        if pace.tokens.load(Ordering::Relaxed) <= 0 {
            return false;
        }
        let bytes = bytes.min(1 << 40) as i64;
        pace.tokens.fetch_sub(bytes, Ordering::Relaxed);
        true
    }

    /// Whether writers wait for slices: then these take the way that costs the least.
    pub(crate) fn is_pressed(&self) -> bool {
        self.pressure.load(Ordering::Relaxed) > PACE_AT_PERMILLE
    }

    /// So many bytes of the log are free because slices were published.
    pub(crate) fn on_published(&self, bytes: u64) {
        self.published.fetch_add(bytes, Ordering::Relaxed);
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

    /// Time passes: each volume that asked since the last tick gets its part, and some of the parked
    /// writes try again.
    pub(crate) fn tick<'a>(&self, fill: &TickInput, paces: impl Iterator<Item = &'a Pace>) {
        self.set_pressure(fill.pressure);
        self.share.store(fill.share, Ordering::Relaxed);
        self.others.store(fill.others, Ordering::Relaxed);
        let (elapsed_ns, drained) = self.measure_drain(fill.now_ns);
        let asking: Vec<&Pace> = paces
            .filter(|pace| pace.asked.swap(false, Ordering::Relaxed))
            .collect();
        let part = rate(fill, drained) / asking.len().max(1) as f64;
        let bytes = |ns: u64| (part * ns as f64 / SECOND_NS as f64) as i64 + 1;
        for pace in asking {
            let tokens = pace.tokens.load(Ordering::Relaxed);
            let gain = bytes(elapsed_ns.min(BURST_NS)).min(bytes(BURST_NS) - tokens);
            pace.tokens.fetch_add(gain, Ordering::Relaxed);
        }
        self.parked.wake_some();
    }

    /// Nanoseconds since the last look, and how fast slices make the log free.
    fn measure_drain(&self, now_ns: u64) -> (u64, f64) {
        let mut drain = lock(&self.drain);
        let elapsed_ns = now_ns.saturating_sub(drain.looked_ns);
        if elapsed_ns > 0 {
            drain.looked_ns = now_ns;
            let elapsed_s = elapsed_ns as f64 / SECOND_NS as f64;
            let published = self.published.swap(0, Ordering::Relaxed) as f64;
            let weight = elapsed_s / (MEAN_S + elapsed_s);
            drain.bytes_per_s += (published / elapsed_s - drain.bytes_per_s) * weight;
        }
        (elapsed_ns, drain.bytes_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn fill(pressure: u64, others: bool) -> TickInput {
        TickInput {
            now_ns: 0,
            pressure,
            log_bytes: 1024 * MIB,
            share: 100,
            others,
        }
    }

    /// Space that has ticked every 10 ms up to here.
    fn ticked(space: &Space, pace: &Pace, until_ms: u64, fill: TickInput) {
        let from_ns = lock(&space.drain).looked_ns;
        for now_ns in (from_ns..=until_ms * 1_000_000).step_by(10_000_000) {
            pace.asked.store(true, Ordering::Relaxed);
            space.tick(&TickInput { now_ns, ..fill }, [pace].into_iter());
        }
    }

    #[test]
    fn the_rate_falls_smoothly_from_more_than_any_disk_to_that_of_publication_and_below() {
        for (others, full) in [(false, 1000), (true, 800)] {
            let drained = 100.0 * MIB as f64;
            let rates: Vec<f64> = (PACE_AT_PERMILLE..=full)
                .map(|pressure| rate(&fill(pressure, others), drained))
                .collect();
            assert!(rates[0] >= 4.0 * 1024.0 * MIB as f64);
            for pair in rates.windows(2) {
                assert!(pair[0] >= pair[1], "it only falls");
                let step = pair[0] - pair[1];
                assert!(step < rates[0] / 40.0, "no cliff: {pair:?}");
            }
            let around = rates
                .iter()
                .filter(|rate| (0.5..2.0).contains(&(*rate / drained)));
            assert!(
                around.count() * 2 > rates.len(),
                "near it for half of the way"
            );
            assert!(*rates.last().expect("not empty") <= drained / 2.0);
        }
    }

    #[test]
    fn with_nothing_published_a_volume_gets_all_of_the_log_more_and_more_slowly() {
        for (others, full) in [(false, 1000), (true, 800)] {
            let mut held = 0.5 * 1024.0;
            // Steps of a hundredth of a second.
            for _ in 0..20_000 {
                let pressure = (held / 1.024) as u64;
                if pressure >= full {
                    break;
                }
                held += rate(&fill(pressure, others), 0.0) / MIB as f64 / 100.0;
            }
            let all = 1.024 * full as f64;
            assert!((0.99 * all..1.01 * all).contains(&held), "{held} of {all}");
        }
    }

    #[test]
    fn only_volumes_above_their_share_are_paced() {
        let (space, pace) = (Space::default(), Pace::default());
        ticked(&space, &pace, 1000, fill(900, false));
        assert!(space.admit(&pace, 4096, 99), "below its share");
        while space.admit(&pace, MIB, 100) {}
        assert!(!space.admit(&pace, 4096, 100), "above its share");
        assert!(space.admit(&pace, 4096, 99));
        ticked(&space, &pace, 2000, fill(490, false));
        assert!(space.admit(&pace, 4096, 1 << 30), "below half nobody is");
    }

    #[test]
    fn paced_volumes_get_equal_parts_of_what_is_published() {
        let space = Space::default();
        let paces = [Pace::default(), Pace::default(), Pace::default()];
        let mut admitted = [0; 3];
        space.set_pressure(760);
        for now_ms in (0..20_000).step_by(10) {
            space.on_published(MIB);
            // The third asks for little.
            for (volume, bytes) in [(0, 64 << 10), (1, MIB), (2, 4096)] {
                let mut tries = 0;
                while tries < 2 && space.admit(&paces[volume], bytes, 100) {
                    admitted[volume] += bytes * u64::from(now_ms >= 10_000);
                    tries += u64::from(volume == 2);
                }
            }
            let fill = TickInput {
                now_ns: now_ms * 1_000_000,
                ..fill(760, false)
            };
            space.tick(&fill, paces.iter());
        }
        let [a, b, _] = admitted.map(|bytes| bytes as f64 / MIB as f64 / 10.0);
        assert!(
            (25.0..=50.0).contains(&a) && (0.8..1.25).contains(&(a / b)),
            "{a} {b}"
        );
    }

    #[test]
    fn the_last_fifth_is_for_volumes_below_their_share_where_there_are_others() {
        let (space, pace) = (Space::default(), Pace::default());
        ticked(&space, &pace, 100, fill(790, true));
        assert!(space.admit(&pace, 4096, 100), "slowed, not stopped");
        assert!(!space.take_starved());
        space.set_pressure(800);
        assert!(!space.admit(&pace, 4096, 100));
        assert!(space.take_starved() && !space.take_starved());
        assert!(space.admit(&pace, 4096, 99));
        ticked(&space, &pace, 200, fill(999, false));
        assert!(space.admit(&pace, 4096, 100), "alone it may have all of it");
    }
}
