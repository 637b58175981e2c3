//! What of a host's intervals may change while it runs.
//!
//! Tells the engine, and no more: must never wait, nor keep a value of its own.

use super::Host;

impl Host {
    /// Uploads what is older than `rpo_ns` from now on. `false` while the host is still recovered: nothing has changed.
    #[must_use]
    pub fn set_rpo(&self, rpo_ns: u64) -> bool {
        self.engine.get().map(|e| e.set_rpo_ns(rpo_ns)).is_some()
    }

    /// Makes passes of the collector at this interval from now on, zero: none. One that has begun goes on. `false` while
    /// the host is still recovered: nothing has changed.
    #[must_use]
    pub fn set_gc_interval(&self, ns: u64) -> bool {
        let set = self.engine.get().map(|e| e.set_gc_interval_ns(ns));
        set.is_some()
    }

    /// Looks for something to compact at this interval from now on, zero: never; then what has begun ends with its
    /// present step. `false` while the host is still recovered: nothing has changed.
    #[must_use]
    pub fn set_compact_interval(&self, ns: u64) -> bool {
        let set = self.engine.get().map(|e| e.compact_interval.set_ns(ns));
        set.is_some()
    }

    /// Scrubs all there is once in this time from now on, zero: never. `false` while the host is still recovered: nothing has
    /// changed.
    #[must_use]
    pub fn set_scrub_interval(&self, ns: u64) -> bool {
        let set = self.engine.get().map(|e| e.scrub_interval.set_ns(ns));
        set.is_some()
    }
}
