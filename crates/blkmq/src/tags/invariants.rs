//! What holds of a tag set while no thread is in the midst of taking or returning a tag. Read only.

use super::{TagSet, WORD_BITS, low_bits};
use crate::sync::Ordering;

impl TagSet {
    /// Every word with a free tag is marked in the top word, no tag is beyond the depth, and at
    /// least `in_flight` are taken (a parked request may keep its tag).
    pub(crate) fn invariants(&self, in_flight: u64) -> Result<(), String> {
        let top = self.top.load(Ordering::Acquire);
        let mut below = u32::from(self.depth);
        let mut taken = u64::from(self.depth);
        for (index, word) in self.words.iter().enumerate() {
            let free = word.load(Ordering::Acquire);
            if free != 0 && top & (1 << index) == 0 {
                return Err(format!(
                    "tags {free:#x} of word {index} are free and not marked"
                ));
            }
            if free & !low_bits(below) != 0 {
                return Err(format!("word {index} has tags beyond the depth: {free:#x}"));
            }
            below = below.saturating_sub(WORD_BITS);
            taken -= u64::from(free.count_ones());
        }
        if top & !low_bits(self.words.len() as u32) != 0 {
            return Err(format!(
                "the top word marks words that are not there: {top:#x}"
            ));
        }
        if taken < in_flight {
            return Err(format!(
                "{taken} tags are taken for {in_flight} requests in flight"
            ));
        }
        Ok(())
    }
}

#[cfg(all(test, not(any(feature = "loom", feature = "shuttle"))))]
mod tests {
    use super::*;

    /// Takes all tags, looks for another, and returns the last one.
    fn drain_and_return_one() -> Result<(), String> {
        let tags = TagSet::new(70);
        let last = std::iter::from_fn(|| tags.take()).last();
        tags.invariants(70)?;
        tags.put(last.ok_or("a new set has tags")?);
        tags.invariants(69)
    }

    #[test]
    fn a_returned_tag_that_is_not_marked_is_seen_before_it_is_missed() {
        assert_eq!(drain_and_return_one(), Ok(()));
        let seen = canary::with("tag_top_bit_forgotten", drain_and_return_one);
        assert!(seen.is_err_and(|error| error.contains("not marked")));
    }
}
