//! Buffer slots: the numbers under which a ring's kernel side knows memory, and whose they are.
//!
//! What is in a slot is not known here (a device driver puts a request's memory there). This table
//! only ensures that a number never has two holders, and that the numbers of a source that is gone
//! come back.

use crate::ids::SourceId;

/// As many as the kernel allows.
const COUNT: u16 = 16_384;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    None,
    Reactor,
    Source(SourceId),
}

#[derive(Debug, Default)]
pub(crate) struct BufferSlots {
    /// By slot; empty until the ring has its table.
    holders: Vec<Holder>,
    free: Vec<u16>,
}

impl BufferSlots {
    pub(crate) const COUNT: u16 = COUNT;

    pub(crate) fn is_enabled(&self) -> bool {
        !self.holders.is_empty()
    }

    /// The ring has its table now.
    pub(crate) fn enable(&mut self) {
        self.holders = vec![Holder::None; usize::from(COUNT)];
        // The lowest numbers are taken first.
        self.free = (0..COUNT).rev().collect();
    }

    /// `count` slots or none.
    pub(crate) fn take(&mut self, count: usize, source: Option<SourceId>) -> Option<Vec<u16>> {
        if !self.is_enabled() || count > self.free.len() {
            return None;
        }
        let taken = self.free.split_off(self.free.len() - count);
        for &slot in &taken {
            self.holders[usize::from(slot)] = source.map_or(Holder::Reactor, Holder::Source);
        }
        Some(taken)
    }

    /// Takes slots back; free ones are left alone.
    pub(crate) fn release(&mut self, slots: &[u16]) {
        for &slot in slots {
            let Some(holder) = self.holders.get_mut(usize::from(slot)) else {
                continue;
            };
            if std::mem::replace(holder, Holder::None) != Holder::None {
                self.free.push(slot);
            }
        }
    }

    /// Takes back what a source held.
    pub(crate) fn release_all_of(&mut self, source: SourceId) {
        let of_source = |&slot: &u16| self.holders[usize::from(slot)] == Holder::Source(source);
        let held: Vec<u16> = (0..self.holders.len() as u16).filter(of_source).collect();
        self.release(&held);
    }

    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }
}

impl BufferSlots {
    /// Panics where a slot is free and held at the same time, or neither.
    pub(crate) fn assert_invariants(&self) {
        let is_held = |holder: &&Holder| **holder != Holder::None;
        let held = self.holders.iter().filter(is_held).count();
        assert_eq!(
            held + self.free.len(),
            self.holders.len(),
            "held and free buffer slots, against all"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(slot: u32) -> SourceId {
        SourceId {
            slot,
            generation: 0,
        }
    }

    #[test]
    fn a_slot_has_one_holder_and_comes_back_once() {
        let mut slots = BufferSlots::default();
        assert!(slots.take(1, None).is_none(), "there is no table yet");
        slots.enable();
        let all = slots.take(usize::from(COUNT), None).unwrap();
        let distinct: std::collections::HashSet<u16> = all.iter().copied().collect();
        assert_eq!(distinct.len(), usize::from(COUNT));
        assert!(slots.take(1, None).is_none());
        slots.release(&all[..2]);
        slots.release(&all[..2]);
        assert_eq!(slots.free_count(), 2);
        assert!(slots.take(3, None).is_none(), "more than there are");
        assert!(slots.take(2, None).is_some());
    }

    #[test]
    fn what_a_source_held_comes_back_and_nothing_else() {
        let mut slots = BufferSlots::default();
        slots.enable();
        let theirs = slots.take(10, Some(source(1))).unwrap();
        slots.take(10, Some(source(2))).unwrap();
        slots.release(&theirs[..4]);
        slots.release_all_of(source(1));
        slots.release_all_of(source(1));
        assert_eq!(slots.free_count(), usize::from(COUNT) - 10);
    }
}
