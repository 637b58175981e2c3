//! Operations in flight, by key.
//!
//! A key names one operation and never another: its slot's generation is part of it. A slot is
//! taken until the operation's last raw result is in, so what the kernel may touch stays owned.
//! The highest bit of a key is never set: keys with it belong to armed commands, which are not here.

use crate::ids::{FileIndex, OpId, SourceId, Token};
use crate::op::Work;

/// An operation in flight.
pub(crate) struct ActiveOp {
    pub(crate) source: SourceId,
    pub(crate) token: Token,
    pub(crate) work: Work,
    pub(crate) file: Option<FileIndex>,
    pub(crate) cancelled: bool,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    op: Option<ActiveOp>,
}

#[derive(Default)]
pub(crate) struct OpTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// How often all of them were scanned.
    #[cfg(test)]
    pub(crate) scans: std::cell::Cell<usize>,
}

fn index_of(key: u64) -> usize {
    (key & u64::from(u32::MAX)) as usize
}

impl OpTable {
    /// How many are in flight.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Puts an operation into a free slot; returns its key.
    #[inline(always)]
    pub(crate) fn insert(&mut self, op: ActiveOp) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.op = Some(op);
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    pub(crate) fn get(&mut self, key: u64) -> Option<&mut ActiveOp> {
        let slot = self.slots.get_mut(index_of(key))?;
        if u64::from(slot.generation) != key >> 32 {
            return None;
        }
        slot.op.as_mut()
    }

    /// Takes an operation out of its slot; [`OpTable::release`] follows.
    pub(crate) fn take(&mut self, key: u64) -> Option<ActiveOp> {
        self.get(key)?;
        self.slots[index_of(key)].op.take()
    }

    /// Frees the slot of an operation that has ended; its key names nothing any more.
    pub(crate) fn release(&mut self, key: u64) {
        let slot = &mut self.slots[index_of(key)];
        slot.op = None;
        slot.generation = (slot.generation + 1) % (1 << 31);
        self.free.push(index_of(key) as u32);
    }

    /// The operations for which `wanted` is true. It scans all of them, so it must not be called once
    /// per source or file where many leave together.
    pub(crate) fn ids_where(&self, wanted: impl Fn(&ActiveOp) -> bool) -> Vec<OpId> {
        #[cfg(test)]
        self.scans.set(self.scans.get() + 1);
        let slots = self.slots.iter().enumerate();
        slots
            .filter_map(|(index, slot)| {
                let op = slot.op.as_ref()?;
                wanted(op).then_some(OpId(u64::from(slot.generation) << 32 | index as u64))
            })
            .collect()
    }

    /// How many operations use a file.
    pub(crate) fn count_on_files(&self) -> usize {
        let ops = self.slots.iter().filter_map(|slot| slot.op.as_ref());
        ops.filter(|op| op.file.is_some()).count()
    }

    /// Panics where the counts are not those of the slots.
    pub(crate) fn assert_invariants(&self) {
        let taken = self.slots.iter().filter(|slot| slot.op.is_some()).count();
        assert_eq!(
            taken,
            self.len(),
            "operations, against slots that are not free"
        );
    }
}

impl Drop for OpTable {
    /// Leaks what is still in flight, also while unwinding: the kernel may still touch it.
    fn drop(&mut self) {
        if self.len() > 0 {
            Box::leak(Box::new(std::mem::take(&mut self.slots)));
        }
    }
}
