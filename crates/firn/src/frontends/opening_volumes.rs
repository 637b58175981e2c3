//! The volumes that a start has still to open, and which of them clients wait for.
//!
//! A set under a small lock, like the map of [`super::open_volumes`]: NBD connections look volumes up on reactor threads.
//! It only records; [`crate::control_plane`] opens volumes, and takes a name out when it is decided what comes of it:
//! behind the insertion of the volume into that map, so that whoever looks here first and there second misses none.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Their names.
#[derive(Debug, Default)]
pub(crate) struct OpeningVolumes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    names: BTreeSet<String>,
    /// Those of them for which clients wait and that nobody has taken from here, the first at the front.
    asked: VecDeque<String>,
}

impl OpeningVolumes {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in a critical section panics between two changes.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, name: &str) {
        self.state().names.insert(name.to_owned());
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.state().names.contains(name)
    }

    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.state().names.clone()
    }

    /// It is decided what comes of a volume; false if that was known.
    pub(crate) fn remove(&self, name: &str) -> bool {
        let mut state = self.state();
        state.asked.retain(|asked| asked != name);
        state.names.remove(name)
    }

    /// A client waits for this volume.
    pub(crate) fn ask(&self, name: &str) {
        let mut state = self.state();
        let is_new = state.names.contains(name) && !state.asked.iter().any(|one| one == name);
        if is_new {
            state.asked.push_back(name.to_owned());
        }
    }

    /// Takes the volume that clients wait for longest, of those that are wanted.
    pub(crate) fn take_asked(&self, is_wanted: impl Fn(&str) -> bool) -> Option<String> {
        let mut state = self.state();
        let found = state.asked.iter().position(|name| is_wanted(name))?;
        state.asked.remove(found)
    }
}
