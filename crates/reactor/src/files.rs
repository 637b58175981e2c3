//! The reactor's table of descriptors.
//!
//! An index stays valid until its file is closed and no operation uses it; after that it names
//! nothing, even where the slot is used again. A descriptor is never closed under an operation.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use crate::call::CallTarget;
use crate::ids::{FileIndex, SourceId};

#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    fd: Option<Arc<OwnedFd>>,
    /// Whether the driver knows it by the slot's number.
    fixed: bool,
    /// Operations in flight.
    users: u32,
    closing: bool,
    /// The source whose end closes it.
    owner: Option<SourceId>,
}

/// A descriptor that left the table.
pub(crate) struct ClosedFile {
    pub(crate) slot: u32,
    pub(crate) fixed: bool,
    pub(crate) fd: Arc<OwnedFd>,
}

/// The table of descriptors.
#[derive(Debug, Default)]
pub(crate) struct FileTable {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl FileTable {
    pub(crate) fn insert(&mut self, fd: Arc<OwnedFd>, owner: Option<SourceId>) -> FileIndex {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[slot as usize];
        entry.fd = Some(fd);
        entry.fixed = false;
        entry.closing = false;
        entry.owner = owner;
        FileIndex {
            slot,
            generation: entry.generation,
        }
    }

    pub(crate) fn set_fixed(&mut self, index: FileIndex) {
        if let Some(entry) = self.entry(index) {
            entry.fixed = true;
        }
    }

    fn entry(&mut self, index: FileIndex) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(index.slot as usize)?;
        (entry.generation == index.generation && entry.fd.is_some()).then_some(entry)
    }

    /// The descriptor, whether or not operations may still begin.
    pub(crate) fn target(&mut self, index: FileIndex) -> Option<CallTarget> {
        let entry = self.entry(index)?;
        let fd = entry.fd.as_ref()?.as_raw_fd();
        Some(CallTarget {
            fd,
            fixed: entry.fixed.then_some(index.slot),
        })
    }

    pub(crate) fn share(&mut self, index: FileIndex) -> Option<Arc<OwnedFd>> {
        self.entry(index)?.fd.clone()
    }

    /// Adds a user; `None` where the index names no file, or one that is closing.
    pub(crate) fn acquire(&mut self, index: FileIndex) -> Option<CallTarget> {
        let entry = self.entry(index)?;
        if entry.closing {
            return None;
        }
        entry.users += 1;
        self.target(index)
    }

    /// Removes a user; returns the descriptor where it was the last of a closing file.
    pub(crate) fn release(&mut self, index: FileIndex) -> Option<ClosedFile> {
        let entry = self.entry(index)?;
        entry.users -= 1;
        let last = entry.closing && entry.users == 0;
        last.then(|| self.remove(index.slot)).flatten()
    }

    /// Closes a file to new users; returns the descriptor where it has none.
    pub(crate) fn close(&mut self, index: FileIndex) -> Option<ClosedFile> {
        let entry = self.entry(index)?;
        entry.closing = true;
        let idle = entry.users == 0;
        idle.then(|| self.remove(index.slot)).flatten()
    }

    fn remove(&mut self, slot: u32) -> Option<ClosedFile> {
        let entry = &mut self.entries[slot as usize];
        let fd = entry.fd.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
        Some(ClosedFile {
            slot,
            fixed: entry.fixed,
            fd,
        })
    }

    /// What a source registered and did not close.
    pub(crate) fn owned_by(&self, source: SourceId) -> Vec<FileIndex> {
        let index = |(slot, entry): (usize, &Entry)| FileIndex {
            slot: slot as u32,
            generation: entry.generation,
        };
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.fd.is_some() && entry.owner == Some(source))
            .map(index)
            .collect()
    }

    /// Operations in flight on all of them.
    pub(crate) fn total_in_flight(&self) -> usize {
        self.entries.iter().map(|entry| entry.users as usize).sum()
    }

    /// How many descriptors are registered.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fd() -> Arc<OwnedFd> {
        Arc::new(crate::memory::memfd(c"file", 0).unwrap())
    }

    #[test]
    fn a_closing_file_leaves_after_its_last_operation() {
        let mut table = FileTable::default();
        let index = table.insert(fd(), None);
        assert!(table.acquire(index).is_some());
        assert!(table.close(index).is_none());
        assert!(
            table.acquire(index).is_none(),
            "an operation began on a closing file"
        );
        assert!(table.release(index).is_some());
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn an_old_index_names_nothing_after_its_slot_was_taken_anew() {
        let mut table = FileTable::default();
        let old = table.insert(fd(), None);
        assert!(table.close(old).is_some());
        let new = table.insert(fd(), None);
        assert_eq!(old.slot, new.slot);
        assert!(table.acquire(old).is_none() && table.close(old).is_none());
        assert!(table.acquire(new).is_some());
    }
}
