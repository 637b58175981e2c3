//! The volumes that this server is to serve and could not open yet, and why.
//!
//! A map under a small lock, like the map of open volumes. It only records: `opening` opens volumes
//! and retries. A volume is in at most one of the two maps.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc;

use crate::failure::Failure;

/// A volume that waits to be opened.
#[derive(Clone, Debug)]
pub(crate) struct WaitingVolume {
    /// Why the last attempt failed.
    pub(crate) failure: Failure,
    pub(crate) since: Instant,
}

/// All of them, by name.
#[derive(Debug, Default)]
pub(crate) struct WaitingVolumes(Mutex<BTreeMap<String, WaitingVolume>>);

impl WaitingVolumes {
    fn map(&self) -> MutexGuard<'_, BTreeMap<String, WaitingVolume>> {
        // Each critical section is one call on the map, so a panic cannot leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, name: &str) -> Option<WaitingVolume> {
        self.map().get(name).cloned()
    }

    pub(crate) fn all(&self) -> BTreeMap<String, WaitingVolume> {
        self.map().clone()
    }

    /// Records why a volume cannot be opened. True if that is news: another kind of reason than
    /// before.
    pub(crate) fn set(&self, name: &str, failure: Failure) -> bool {
        let mut map = self.map();
        let since = map.get(name).map_or_else(Instant::now, |one| one.since);
        let waiting = WaitingVolume { failure, since };
        let code = waiting.failure.code;
        let before = map.insert(name.to_owned(), waiting);
        before.is_none_or(|before| before.failure.code != code)
    }

    /// The volume is open, or no longer wanted.
    pub(crate) fn remove(&self, name: &str) {
        self.map().remove(name);
    }
}

/// Volumes that were open, and are to be opened again: requests to the task that retries, by name.
#[derive(Debug)]
pub(crate) struct ReopenRequests {
    sender: mpsc::UnboundedSender<String>,
    receiver: Mutex<Option<mpsc::UnboundedReceiver<String>>>,
}

impl Default for ReopenRequests {
    fn default() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        ReopenRequests {
            sender,
            receiver: Mutex::new(Some(receiver)),
        }
    }
}

impl ReopenRequests {
    pub(crate) fn request(&self, name: &str) {
        // Without the task the server stops.
        drop(self.sender.send(name.to_owned()));
    }

    /// For the one task.
    pub(crate) fn take(&self) -> Option<mpsc::UnboundedReceiver<String>> {
        let receiver = self.receiver.lock();
        receiver.unwrap_or_else(PoisonError::into_inner).take()
    }
}
