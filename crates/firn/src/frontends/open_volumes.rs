//! The volumes that are open on this server, by name.
//!
//! A map under a small lock: NBD connections look up exports on reactor threads, which never
//! wait (`nbd_access` says who may). Only [`crate::control_plane`] opens and closes volumes; this map says what is open.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nbd::server::Export;
use volume::{Volume, VolumeInfo};

use crate::model::{Watermark, Watermarks};

/// An open volume with its NBD export.
#[derive(Debug)]
pub(crate) struct OpenVolume {
    pub(crate) volume: Volume,
    /// As the store described it when it was opened.
    pub(crate) info: VolumeInfo,
    pub(crate) export: Arc<Export<Volume>>,
    pub(crate) since: Instant,
    /// By which number it was attached, if only one attach was asked for; zero otherwise.
    pub(crate) ticket: AtomicU64,
}

impl OpenVolume {
    /// Somebody has attached it: `is_new` if nobody had before.
    pub(crate) fn note_attach(&self, ticket: Option<u64>, is_new: bool) {
        let ticket = ticket.filter(|ticket| is_new || self.has_ticket(*ticket));
        self.ticket.store(ticket.unwrap_or(0), Ordering::Relaxed);
    }

    /// Whether it was attached with this number alone.
    pub(crate) fn has_ticket(&self, ticket: u64) -> bool {
        ticket != 0 && self.ticket.load(Ordering::Relaxed) == ticket
    }

    /// How far the volume's writes have got, as the API shows it.
    pub(crate) fn watermarks(&self) -> Watermarks {
        let mark = |rung: volume::Watermark| Watermark {
            lsn: rung.lsn.0,
            age_seconds: rung.age_ms as f64 / 1000.0,
        };
        let watermarks = self.volume.watermarks();
        Watermarks {
            acknowledged: mark(watermarks.acked),
            flushed: mark(watermarks.flushed),
            stored: mark(watermarks.stored),
        }
    }
}

/// All open volumes, by name.
#[derive(Debug, Default)]
pub(crate) struct OpenVolumes(Mutex<BTreeMap<String, Arc<OpenVolume>>>);

impl OpenVolumes {
    fn map(&self) -> MutexGuard<'_, BTreeMap<String, Arc<OpenVolume>>> {
        // Each critical section is one call on the map, so a panic cannot leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<OpenVolume>> {
        self.map().get(name).cloned()
    }

    pub(crate) fn insert(&self, open: Arc<OpenVolume>) {
        self.map().insert(open.info.name.clone(), open);
    }

    pub(crate) fn remove(&self, name: &str) {
        self.map().remove(name);
    }

    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.map().keys().cloned().collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<OpenVolume>> {
        self.map().values().cloned().collect()
    }
}
