//! The volumes that are open here, as clients find them.
//!
//! A map in memory with a small lock: NBD connections look exports up on reactor threads, which
//! never wait. Opening and closing is [`crate::control_plane`]'s; this only says what is open.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nbd::codec::Listed;
use nbd::server::{Export, Exports};
use volume::{Volume, VolumeInfo};

use crate::model::{Mark, Watermarks};

/// An open volume with what serves it.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) volume: Volume,
    /// As the store described it when it was opened.
    pub(crate) info: VolumeInfo,
    pub(crate) export: Arc<Export<Volume>>,
}

impl Open {
    /// How far the volume's writes have got, as the API shows it.
    pub(crate) fn watermarks(&self) -> Watermarks {
        let mark = |rung: volume::Rung| Mark {
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
pub(crate) struct Volumes(Mutex<BTreeMap<String, Arc<Open>>>);

impl Volumes {
    fn map(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Open>>> {
        // Every section is one call on the map: a panic elsewhere leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Open>> {
        self.map().get(name).cloned()
    }

    pub(crate) fn insert(&self, open: Arc<Open>) {
        self.map().insert(open.info.name.clone(), open);
    }

    pub(crate) fn remove(&self, name: &str) {
        self.map().remove(name);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Open>> {
        self.map().values().cloned().collect()
    }
}

impl Exports<Volume> for Volumes {
    /// The empty name is the only volume, where there is only one: then no client needs to know
    /// its name.
    fn find(&self, name: &str) -> Option<Arc<Export<Volume>>> {
        let map = self.map();
        let open = if name.is_empty() {
            map.values().next().filter(|_| map.len() == 1)
        } else {
            map.get(name)
        };
        open.map(|open| Arc::clone(&open.export))
    }

    fn list(&self) -> Vec<Listed> {
        self.map()
            .values()
            .map(|open| Listed {
                name: open.export.name.clone(),
                description: open.export.description.clone(),
            })
            .collect()
    }
}
