//! The sessions whose objects this host has met. The keys of all objects are made from it.
//!
//! Every decoded object registers its sessions before an object that it names is read. It only grows, by some
//! sixty bytes for each start of a server whose objects are still named.

use std::sync::Arc;

use crate::hostlog::names::SessionName;
use crate::lock::lock;
use crate::object::sessions::SessionNames;
use crate::object::{FormatError, ObjectId};
use crate::sync::Mutex;

#[derive(Debug, Default)]
pub(crate) struct SessionTable {
    /// Shared with computations; copied when a session is new, which is rare.
    names: Mutex<Arc<SessionNames>>,
}

impl SessionTable {
    /// Registers the sessions that an object lists.
    ///
    /// # Errors
    /// If one is known by another name: the object is damaged.
    pub(crate) fn register(
        &self,
        names: impl IntoIterator<Item = SessionName>,
    ) -> Result<(), FormatError> {
        let mut known = lock(&self.names);
        for name in names {
            if !known.has(name) {
                Arc::make_mut(&mut known).insert(name)?;
            }
        }
        Ok(())
    }

    /// All sessions known now.
    pub(crate) fn known(&self) -> Arc<SessionNames> {
        Arc::clone(&lock(&self.names))
    }

    /// Key of a pack.
    ///
    /// # Errors
    /// If nothing that was decoded lists its session.
    pub(crate) fn pack_key(&self, pack: ObjectId) -> Result<String, FormatError> {
        lock(&self.names).pack_key(pack)
    }

    /// Key of an index object.
    ///
    /// # Errors
    /// As [`SessionTable::pack_key`].
    pub(crate) fn index_key(&self, object: ObjectId) -> Result<String, FormatError> {
        lock(&self.names).index_key(object)
    }
}
