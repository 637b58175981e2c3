//! What holds of the cache's tiers between any two steps. Read only.

use super::Cache;
use super::regions::Occupant;
use super::tier::Tier;
use crate::lock::lock;
use crate::log::layout::BLOCK_BYTES;

impl Cache {
    /// Both tiers are whole.
    pub(crate) fn invariants(&self) -> Result<(), String> {
        lock(&self.tiers).iter().try_for_each(Tier::invariants)
    }
}

impl Tier {
    /// Each chunk has its slot and its place in a queue, and every byte is counted once.
    fn invariants(&self) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("cache file {}: {what}", self.file.0));
        self.regions.invariants().or_else(wrong)?;
        self.queues.invariants().or_else(wrong)?;
        let mut used = 0;
        for (number, chunk) in self.queues.iter() {
            used += chunk.bytes.next_multiple_of(BLOCK_BYTES);
            if self.numbers.get(&chunk.key) != Some(&number) {
                return wrong("a chunk is not found by its name");
            }
            let occupants = self.regions.occupants(chunk.place.region);
            let occupant = occupants.get(chunk.place.slot as usize);
            if occupant.is_some_and(|occupant| *occupant != Occupant::Chunk(number)) {
                return wrong("a slot does not know its chunk");
            }
            if chunk.bytes > u64::from(chunk.class.blocks()) * BLOCK_BYTES {
                return wrong("a chunk is longer than its slot");
            }
        }
        // What a chunk is being written to is used, and no chunk yet.
        if used > self.used {
            return wrong("bytes of chunks are not counted");
        }
        let is_settled = !self.elastic && self.regions.last_leaving().is_none();
        if is_settled && self.used > self.capacity {
            return wrong("it is larger than its capacity");
        }
        match self.queues.len() == self.numbers.len() {
            true => Ok(()),
            false => wrong("a name is found that no chunk has"),
        }
    }
}
