//! The objects of this process that nothing in the store names yet, and the floor below which there are none.
//!
//! A record states the floor, and from then on the collector may remove objects below it that nothing names. So a
//! number is held from its allocation until an effective record or root names the object, or nothing ever will.
//! Where the outcome is not known the number is held for good, which costs only garbage until this process ends.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::hostlog::names::SessionName;
use crate::lock::lock;
use crate::object::ObjectId;
use crate::sync::Mutex;

/// Allocates the numbers of this process's objects.
#[derive(Debug)]
pub(crate) struct UnnamedObjects {
    session: SessionName,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    unnamed: BTreeSet<u64>,
    /// Those of them that are held for good.
    for_good: BTreeSet<u64>,
}

/// An object that nothing names yet. It is dropped when something names the object, or nothing ever will.
#[derive(Debug)]
pub(crate) struct UnnamedObject {
    objects: Arc<UnnamedObjects>,
    number: u64,
}

impl UnnamedObjects {
    pub(crate) fn new(session: SessionName) -> Arc<UnnamedObjects> {
        Arc::new(UnnamedObjects {
            session,
            state: Mutex::default(),
        })
    }

    /// The session that writes the objects.
    pub(crate) fn session(&self) -> SessionName {
        self.session
    }

    /// Allocates a new object.
    pub(crate) fn allocate(self: &Arc<Self>) -> UnnamedObject {
        let mut state = lock(&self.state);
        let number = state.next;
        state.next += 1;
        state.unnamed.insert(number);
        UnnamedObject {
            objects: Arc::clone(self),
            number,
        }
    }

    /// The floor: every object below it is named, or never will be.
    pub(crate) fn floor(&self) -> u64 {
        self.floor_beside(&BTreeSet::new())
    }

    /// The floor for a record that names these objects for good: nothing else is to name them.
    pub(crate) fn floor_beside(&self, named: &BTreeSet<u64>) -> u64 {
        let state = lock(&self.state);
        let mut unnamed = state.unnamed.iter().copied();
        let first = unnamed.find(|number| !named.contains(number));
        first
            .filter(|_| !canary::active!("floor_passes_unnamed_objects"))
            .unwrap_or(state.next)
    }
}

impl UnnamedObject {
    /// The session that writes the object.
    pub(crate) fn session(&self) -> SessionName {
        self.objects.session
    }

    pub(crate) fn id(&self) -> ObjectId {
        ObjectId::new(self.objects.session, self.number)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Keeps the floor below the object as long as this process lives, because a request that names it may still
    /// land.
    pub(crate) fn hold_forever(&self) {
        lock(&self.objects.state).for_good.insert(self.number);
    }
}

impl Drop for UnnamedObject {
    fn drop(&mut self) {
        let mut state = lock(&self.objects.state);
        if !state.for_good.contains(&self.number) {
            state.unnamed.remove(&self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_never_passes_an_object_that_nothing_names_yet() {
        let objects = UnnamedObjects::new(SessionName::default());
        assert_eq!(objects.floor(), 0);
        let (first, second) = (objects.allocate(), objects.allocate());
        assert_eq!((first.id().number, second.id().number), (0, 1));
        assert_eq!(objects.floor(), 0);
        drop(second);
        assert_eq!(objects.floor(), 0, "the first is not named");
        drop(first);
        assert_eq!(objects.floor(), 2);
        objects.allocate().hold_forever();
        drop(objects.allocate());
        assert_eq!(objects.floor(), 2, "it may be named yet");
    }
}
