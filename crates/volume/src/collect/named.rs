//! The names that a pass has found: packs and index objects that something can reach.
//!
//! It only grows: an object that was named once during a pass is live for that pass.

use std::collections::{BTreeMap, BTreeSet};

use crate::object::ObjectId;

/// Objects by session and number.
#[derive(Debug, Default)]
struct Objects(BTreeMap<u64, BTreeSet<u64>>);

impl Objects {
    fn insert(&mut self, object: ObjectId) {
        self.0
            .entry(object.session)
            .or_default()
            .insert(object.number);
    }

    fn has(&self, object: ObjectId) -> bool {
        let numbers = self.0.get(&object.session);
        numbers.is_some_and(|numbers| numbers.contains(&object.number))
    }
}

/// The named objects of each kind. Both kinds share one sequence of numbers, but a name is of one kind.
#[derive(Debug, Default)]
pub(super) struct NamedObjects {
    packs: Objects,
    indexes: Objects,
}

impl NamedObjects {
    pub(super) fn add_pack(&mut self, pack: ObjectId) {
        self.packs.insert(pack);
    }

    pub(super) fn add_index(&mut self, object: ObjectId) {
        self.indexes.insert(object);
    }

    pub(super) fn has(&self, is_index: bool, object: ObjectId) -> bool {
        match is_index {
            true => self.indexes.has(object),
            false => self.packs.has(object),
        }
    }
}
