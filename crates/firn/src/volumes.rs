//! The volumes that are open here, as clients find them.
//!
//! A map in memory with a small lock: NBD connections look exports up on reactor threads, which
//! never wait. Opening and closing is [`crate::control`]'s; this only says what is open.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nbd::codec::Listed;
use nbd::server::{Export, Exports};
use volume::{Volume, VolumeInfo};

use crate::failure::{Failure, Result};
use crate::files;

/// An open volume with what serves it.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) volume: Volume,
    /// As the store described it when it was opened.
    pub(crate) info: VolumeInfo,
    pub(crate) export: Arc<Export<Volume>>,
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

/// Which volumes were attached, so that a restarted server serves them again without being told.
#[derive(Debug)]
pub(crate) struct Attached {
    path: PathBuf,
    /// Held while the file is written: writers share the name of the unfinished one.
    writing: Mutex<()>,
}

impl Attached {
    pub(crate) fn new(cache_dir: &Path) -> Self {
        Attached {
            path: cache_dir.join("attached"),
            writing: Mutex::default(),
        }
    }

    pub(crate) fn names(&self) -> Result<Vec<String>> {
        match fs::read_to_string(&self.path) {
            Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
            Err(source) if source.kind() == Io::NotFound => Ok(Vec::new()),
            Err(source) => Err(Failure::io("read", &self.path, &source)),
        }
    }

    /// Remembers what is open now.
    pub(crate) fn set(&self, volumes: &Volumes) -> Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let open = volumes.all();
        let names = open.iter().map(|open| &open.info.name);
        let text: String = names.map(|name| format!("{name}\n")).collect();
        files::write_whole(&self.path, text.as_bytes())
            .map_err(|source| Failure::io("write", &self.path, &source))
    }
}
