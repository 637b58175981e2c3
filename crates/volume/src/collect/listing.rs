//! What is in the store when a pass begins: packs and index objects, by their keys.
//!
//! A key says which session wrote an object, and nothing about whether it is needed. The collector ignores
//! objects whose keys do not have this form: firn did not write them.

use std::collections::BTreeMap;

use super::CollectPort;
use super::error::CollectError;
use crate::driver::StoreOp;
use crate::driver::StoreReply;
use crate::hostlog::names::{INDEX_PREFIX, PACK_PREFIX, SessionName, object_of_key};
use crate::hostlog::port::list;
use crate::object::ObjectId;

/// An object in the listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListedObject {
    /// Index of the session that wrote it.
    pub(super) session: u32,
    pub(super) is_index: bool,
    pub(super) number: u64,
    pub(super) bytes: u64,
}

/// All packs and index objects in the store.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) sessions: Vec<SessionName>,
    pub(super) objects: Vec<ListedObject>,
}

impl Listing {
    pub(super) fn session(&self, listed: &ListedObject) -> SessionName {
        self.sessions[listed.session as usize]
    }

    pub(super) fn id(&self, listed: &ListedObject) -> ObjectId {
        ObjectId::new(self.session(listed), listed.number)
    }

    pub(super) fn key(&self, listed: &ListedObject) -> String {
        let session = self.session(listed);
        match listed.is_index {
            true => session.index_key(listed.number),
            false => session.pack_key(listed.number),
        }
    }
}

/// Lists the packs and index objects.
///
/// # Errors
/// If two sessions have the same random bits: then an object in memory is not known by them.
pub(super) async fn list_objects(port: &impl CollectPort) -> Result<Listing, CollectError> {
    let mut listing = Listing::default();
    let mut numbers: BTreeMap<SessionName, u32> = BTreeMap::new();
    for (prefix, is_index) in [(PACK_PREFIX, false), (INDEX_PREFIX, true)] {
        for (key, bytes) in list(port, prefix).await {
            let Some((session, number)) = object_of_key(&key) else {
                continue;
            };
            let session = *numbers.entry(session).or_insert_with(|| {
                listing.sessions.push(session);
                listing.sessions.len() as u32 - 1
            });
            listing.objects.push(ListedObject {
                session,
                is_index,
                number,
                bytes,
            });
        }
    }
    let mut bits: Vec<u64> = numbers.keys().map(|name| name.session.random).collect();
    bits.sort_unstable();
    match bits.windows(2).any(|pair| pair[0] == pair[1]) {
        true => Err(CollectError::TwoSessions),
        false => Ok(listing),
    }
}

/// Removes an object. A missing object is no error.
///
/// # Errors
/// Which one stays, and what the store says.
pub(super) async fn remove(port: &impl CollectPort, key: String) -> Result<(), String> {
    let removed = port.store(StoreOp::Delete { key: key.clone() }).await;
    match removed {
        Ok(StoreReply::Deleted) => Ok(()),
        Ok(other) => Err(format!("{key}: {other:?} is no answer to a removal")),
        Err(error) => Err(format!("{key}: {error:?}")),
    }
}
