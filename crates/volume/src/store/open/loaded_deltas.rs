//! Deltas that were read for one volume, for others that begin with the same ones: the forks of one snapshot, and what is attached
//! of it.
//!
//! A thousand forks have one copy of them in memory, and their footers are read once. It keeps none of them alive: once the last volume
//! that has them is closed, or has folded them, they are read again. It does not know the engine, which owns it.

use crate::lock::lock;
use crate::map::index::{Index, SharedDeltas};
use crate::object::pack::Lineage;
use crate::object::root::{DeltaRef, Root};
use crate::sync::Mutex;

/// Lists of deltas that are known, at most.
const LISTS_MAX: usize = 64;

/// What a root lists, and whose content of it is the volume's: its ancestors', for it has written none of it.
#[derive(Debug)]
struct Loaded {
    lineage: Lineage,
    deltas: Vec<DeltaRef>,
    shared: SharedDeltas,
}

/// The lists of deltas that volumes of this host were opened with, the newest last.
#[derive(Debug, Default)]
pub(crate) struct LoadedDeltas(Mutex<Vec<Loaded>>);

impl LoadedDeltas {
    /// The deltas of this root, if another volume of this host began with the same and has them yet.
    pub(in crate::store) fn find(&self, root: &Root) -> Option<Index> {
        let lineage = root.lineage();
        let is_same = |one: &&Loaded| {
            let lists = one.lineage == lineage && one.deltas == root.deltas;
            lists || canary::active!("any_deltas_are_shared")
        };
        let loaded = lock(&self.0);
        loaded.iter().rev().find(is_same)?.shared.index()
    }

    /// These deltas were read for this root, which has written none of them.
    pub(in crate::store) fn note(&self, root: &Root, index: &mut Index) {
        if root.deltas.is_empty() || root.lineage().is_empty() {
            return;
        }
        let Some(shared) = index.share_deltas() else {
            return;
        };
        let noted = Loaded {
            lineage: root.lineage(),
            deltas: root.deltas.clone(),
            shared,
        };
        let mut loaded = lock(&self.0);
        let is_same = |one: &Loaded| one.lineage == noted.lineage && one.deltas == noted.deltas;
        loaded.retain(|one| one.shared.is_alive() && !is_same(one));
        loaded.push(noted);
        let surplus = loaded.len().saturating_sub(LISTS_MAX);
        loaded.drain(..surplus);
    }
}
