//! What holds of the cache's tiers between any two steps. Read only.

use super::{Cache, Slab};
use crate::lock::lock;
use crate::log::layout::BLOCK_BYTES;

impl Cache {
    /// Both tiers are whole.
    pub(crate) fn invariants(&self) -> Result<(), String> {
        lock(&self.tiers).iter().try_for_each(Slab::invariants)
    }
}

impl Slab {
    /// Slots and gaps do not overlap, every byte is counted once, gaps are as large as they can
    /// be, and the clock's hand passes every slot.
    fn invariants(&self) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("cache file {}: {what}", self.file.0));
        let slots = self.slots.values();
        let slots =
            slots.map(|slot| (slot.offset, slot.bytes.next_multiple_of(BLOCK_BYTES), false));
        let gaps = self.gaps.iter().map(|(at, bytes)| (*at, *bytes, true));
        let mut places: Vec<_> = slots.chain(gaps).collect();
        places.sort_unstable();
        let (mut end, mut after_gap) = (0, false);
        for (at, bytes, gap) in places {
            if at < end {
                return wrong("two places overlap");
            }
            if gap && after_gap && at == end {
                return wrong("two gaps touch");
            }
            (end, after_gap) = (at + bytes, gap);
        }
        if end > self.end || (after_gap && end == self.end) {
            return wrong("a place ends behind the end, or a gap at it");
        }
        // What a chunk is being written to is used, and no slot yet.
        if self.used + self.gaps.values().sum::<u64>() != self.end {
            return wrong("bytes are neither used nor free");
        }
        if !self.elastic && self.end > self.capacity {
            return wrong("it is larger than its capacity");
        }
        let passed = self.clock.iter().all(|key| self.slots.contains_key(key));
        if !passed || self.clock.len() != self.slots.len() {
            return wrong("the clock does not pass every slot once");
        }
        Ok(())
    }
}
