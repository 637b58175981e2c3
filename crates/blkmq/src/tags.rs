//! The tags of one hardware queue: a two-level bitmap, without a lock.
//!
//! A set bit is a free tag. The top word says which words may have free bits, so taking and
//! returning a tag cost a constant number of steps at any depth. Only the queue's owner takes tags,
//! lowest first (an idle queue stays within a few cache lines); any thread returns them. The set
//! is not fair: a request that finds no tag waits in the dispatch list, in order.

mod invariants;

use std::fmt;

use crate::sync::{AtomicU64, Ordering};

const WORD_BITS: u32 = u64::BITS;

/// The most tags a queue can have: one top word of words. It is also the kernel's limit for ublk.
pub const DEPTH_MAX: u16 = 4096;

/// The number of an admitted request in its hardware queue, from zero to the depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub(crate) u16);

impl Tag {
    /// The number.
    pub fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

pub(crate) struct TagSet {
    /// Bit `i` is set if `words[i]` may have a free tag. It is set whenever the word has one,
    /// except between the two steps of `put`.
    top: AtomicU64,
    words: Box<[AtomicU64]>,
    depth: u16,
}

impl TagSet {
    pub(crate) fn new(depth: u16) -> TagSet {
        let depth = depth.clamp(1, DEPTH_MAX);
        let words: Box<[AtomicU64]> = (0..u32::from(depth).div_ceil(WORD_BITS))
            .map(|word| AtomicU64::new(low_bits(u32::from(depth) - word * WORD_BITS)))
            .collect();
        let top = low_bits(u32::from(depth).div_ceil(WORD_BITS));
        TagSet {
            top: AtomicU64::new(top),
            words,
            depth,
        }
    }

    pub(crate) fn depth(&self) -> u16 {
        self.depth
    }

    /// Takes the lowest free tag. By one thread at a time: the queue's owner.
    pub(crate) fn take(&self) -> Option<Tag> {
        loop {
            // Acquire: taking a tag happens after its return.
            let top = self.top.load(Ordering::Acquire);
            if top == 0 {
                return None;
            }
            let index = top.trailing_zeros();
            let word = &self.words[index as usize];
            let free = word.load(Ordering::Acquire);
            if free == 0 {
                self.clear_top(index);
                continue;
            }
            let bit = free.trailing_zeros();
            // Only the owner clears bits, so the bit is still there; others may add some.
            word.fetch_and(!(1 << bit), Ordering::Acquire);
            return Some(Tag((index * WORD_BITS + bit) as u16));
        }
    }

    /// Clears the top bit of a word that was empty, unless a tag was returned to it meanwhile.
    fn clear_top(&self, index: u32) {
        // `put` sets the word, then the top bit. If it set the top bit before this step, this step
        // acquires from it and the check below sees the word. If after, the top bit stays set.
        self.top.fetch_and(!(1 << index), Ordering::AcqRel);
        let recheck = !canary::active!("tag_word_cleared_without_recheck");
        if recheck && self.words[index as usize].load(Ordering::Acquire) != 0 {
            self.top.fetch_or(1 << index, Ordering::Release);
        }
    }

    /// Returns a tag, from any thread.
    pub(crate) fn put(&self, tag: Tag) {
        let (index, bit) = (u32::from(tag.0) / WORD_BITS, u32::from(tag.0) % WORD_BITS);
        if canary::active!("tag_top_set_first") {
            self.top.fetch_or(1 << index, Ordering::Release);
            self.words[index as usize].fetch_or(1 << bit, Ordering::Release);
            return;
        }
        let before = self.words[index as usize].fetch_or(1 << bit, Ordering::Release);
        debug_assert!(before & (1 << bit) == 0, "tag {tag} was returned twice");
        // The top bit has to be set only for a word that was empty: until the owner empties the
        // word again, its top bit stays set or is about to be set.
        if before == 0 && !canary::active!("tag_top_bit_forgotten") {
            self.top.fetch_or(1 << index, Ordering::Release);
        }
    }

    /// Whether a tag is free now.
    pub(crate) fn has_free(&self) -> bool {
        self.words
            .iter()
            .any(|word| word.load(Ordering::Acquire) != 0)
    }

    /// The tags that are taken now, for reports.
    pub(crate) fn taken_tags(&self) -> Vec<Tag> {
        (0..self.depth)
            .filter(|tag| {
                let word = &self.words[usize::from(tag / WORD_BITS as u16)];
                word.load(Ordering::Acquire) & (1 << (u32::from(*tag) % WORD_BITS)) == 0
            })
            .map(Tag)
            .collect()
    }
}

fn low_bits(count: u32) -> u64 {
    if count >= WORD_BITS {
        u64::MAX
    } else {
        (1 << count) - 1
    }
}
