//! What a process remembers of the records that it published, or passed, itself: which volumes they name, and how
//! many bytes of packs.
//!
//! The low mark's raise would else read each of them once more. They were there when their successors were
//! published, and whoever uses this memory looks first whether the newest of them still is: a store that was set
//! back has another one there, or none. It must never hold less than the records name.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::names::{Digest, Position};
use super::record::{Content, Record};
use crate::lock::lock;
use crate::sync::Mutex;
use crate::units::VolumeId;

/// The records of one process from `first` to the newest.
#[derive(Clone, Debug)]
pub struct RecentRecords {
    /// Every record from here to `newest` is known.
    pub(super) first: Position,
    pub(super) newest: Option<(Position, Digest)>,
    /// The newest that is no fence.
    pub(super) newest_own: Option<Position>,
    /// Each volume with the newest record that names it.
    pub(super) volumes: BTreeMap<VolumeId, Position>,
    /// Bytes of the packs that all of them name.
    pub(super) bytes: u64,
}

impl RecentRecords {
    fn add(&mut self, record: &Record, digest: Digest) {
        self.newest = Some((record.position, digest));
        for volume in record.named_volumes() {
            self.volumes.insert(volume, record.position);
        }
        if let Content::Slices(slices) = &record.content {
            self.newest_own = Some(record.position);
            // Slices that share a pack have a row each.
            let mut packs: BTreeMap<u64, u64> = BTreeMap::new();
            for pack in &slices.packs {
                let end = u64::from(pack.footer_offset) + u64::from(pack.footer_bytes);
                let bytes = packs.entry(pack.number).or_default();
                *bytes = end.max(*bytes);
            }
            self.bytes += packs.values().sum::<u64>();
        }
    }

    /// Bytes of the packs that all records of the process name.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many volumes they name, as far as the low mark has not passed them.
    pub(crate) fn volumes(&self) -> usize {
        self.volumes.len()
    }
}

/// [`RecentRecords`] as the publisher and others share them.
#[derive(Clone, Debug)]
pub struct SharedRecords(Arc<Mutex<RecentRecords>>);

impl SharedRecords {
    pub(super) fn new(first: Position) -> SharedRecords {
        SharedRecords(Arc::new(Mutex::new(RecentRecords {
            first,
            newest: None,
            newest_own: None,
            volumes: BTreeMap::new(),
            bytes: 0,
        })))
    }

    /// Remembers the record at the position after the newest.
    pub(super) fn add(&self, record: &Record, digest: Digest) {
        lock(&self.0).add(record, digest);
    }

    /// What is remembered now.
    pub fn get(&self) -> RecentRecords {
        lock(&self.0).clone()
    }

    /// Bytes and volumes, see [`RecentRecords`].
    pub(crate) fn size(&self) -> (u64, usize) {
        let records = lock(&self.0);
        (records.bytes(), records.volumes())
    }

    /// Forgets volumes that only records below the low mark name.
    pub fn forget_below(&self, low: Position) {
        lock(&self.0).volumes.retain(|_, newest| *newest >= low);
    }
}
