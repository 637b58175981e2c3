//! One snapshot becomes one there: what it has over the one before is written, the snapshot is taken, and what was written is
//! read from it again, as any later reader will, and compared with what was read here.

use indicatif::ProgressBar;

use super::attachments::AttachedSnapshot;
use super::content::{self, Changes, Digests};
use super::target::Copy;
use crate::cli::client::Client;
use crate::cli::volume_io::failed;
use crate::failure::Result;

/// One snapshot on its way.
pub(super) struct Step<'a> {
    /// What the copy is at, whose snapshot is there already.
    pub(super) before: Option<&'a AttachedSnapshot>,
    pub(super) held: &'a AttachedSnapshot,
    pub(super) copy: &'a Copy<'a>,
    pub(super) bar: &'a ProgressBar,
}

impl Step<'_> {
    /// Returns when the store has the snapshot and it is verified; how many bytes were written.
    pub(super) fn run(&self) -> Result<u64> {
        let snapshot = &self.held.snapshot;
        self.copy.grow(snapshot.size_bytes)?;
        let ways = (&self.held.uris[..], &self.copy.attach()?[..]);
        let moved = content::copy(self.changes()?, ways, self.before.is_some(), self.bar)?;
        self.copy.take_snapshot(snapshot)?;
        let there = self.read_there()?;
        match moved.digests.find_difference(&there) {
            None => Ok(moved.data),
            Some(group) => {
                let name = self.copy.name_of(snapshot);
                self.copy.delete_snapshot(snapshot)?;
                Err(failed(format!(
                    "{name} does not hold what {} does, somewhere in GiB {group}, and was deleted again: look for \
                     errors of the store and of this machine",
                    snapshot.name
                )))
            }
        }
    }

    /// Whether the snapshot there holds what the one here does, by reading both.
    pub(super) fn is_whole(&self) -> Result<bool> {
        let here = content::read(self.changes()?, &self.held.uris, self.bar)?;
        Ok(here.find_difference(&self.read_there()?).is_none())
    }

    fn changes(&self) -> Result<Changes<'_>> {
        match self.before {
            Some(before) => {
                let client: &Client = self.held.client();
                Ok(Changes::since(
                    client,
                    &before.snapshot,
                    &self.held.snapshot,
                ))
            }
            None => Changes::all(&self.held.uris),
        }
    }

    fn read_there(&self) -> Result<Digests> {
        let uris = self.copy.attach_snapshot(&self.held.snapshot)?;
        let read = content::read(self.changes()?, &uris, self.bar);
        self.copy.detach_snapshot(&self.held.snapshot);
        read
    }
}
