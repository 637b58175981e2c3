//! Which names of snapshots of a volume may be taken, as the host that holds the volume knows it.
//!
//! Memory only, and hashes alone: eight bytes a name. Nobody but the holder makes snapshots of a volume, so a name
//! that was not there when the store was asked, and was not made since, is free; one that is known may have been
//! deleted meanwhile, and the store says whether it was. It must never call a name free before the store was asked.

use std::collections::BTreeSet;

use crate::codec::crc64;
use crate::lock::lock;
use crate::sync::Mutex;

/// Those of one hold.
#[derive(Debug, Default)]
pub(crate) struct KnownNames {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What the store had is among them.
    is_complete: bool,
    hashes: BTreeSet<u64>,
}

fn hash(name: &str) -> u64 {
    crc64(&[name.as_bytes()])
}

impl KnownNames {
    /// This one is about to be made here. Must be called before the store is asked for anything of it.
    pub(in crate::store) fn add(&self, name: &str) {
        lock(&self.state).hashes.insert(hash(name));
    }

    /// These are all that the store has.
    pub(super) fn complete<'a>(&self, names: impl Iterator<Item = &'a str>) {
        let mut state = lock(&self.state);
        state.hashes.extend(names.map(hash));
        state.is_complete = true;
    }

    /// `None`: the store was not asked yet.
    pub(super) fn is_free(&self, name: &str) -> Option<bool> {
        let state = lock(&self.state);
        let is_free = !state.hashes.contains(&hash(name));
        state.is_complete.then_some(is_free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_free_if_neither_the_store_had_it_nor_this_host_made_it() {
        let names = KnownNames::default();
        names.add("demo@made");
        assert_eq!(names.is_free("demo@other"), None, "the store may have it");
        names.complete(["demo@old"].into_iter());
        assert_eq!(names.is_free("demo@other"), Some(true));
        assert_eq!(names.is_free("demo@old"), Some(false));
        assert_eq!(names.is_free("demo@made"), Some(false));
    }
}
