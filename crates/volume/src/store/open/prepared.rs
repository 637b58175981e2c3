//! Indexes of volumes that this host is about to take, so that the taking reads what is newer and no more.
//!
//! An index that was prepared is used only as far as the taken root begins with what it was made of. Few are kept, each for a
//! short time; a volume that was not prepared is opened all the same. It does not know the engine, which owns it.

use crate::lock::lock;
use crate::map::index::Index;
use crate::object::root::Root;
use crate::store::flow::upload_state::KnownRoot;
use crate::sync::Mutex;
use crate::units::SECOND_NS;

/// Volumes whose indexes are kept: an index may take much memory.
const VOLUMES_MAX: usize = 8;
/// For how long one is kept: a move prepares again before the volume is let go of.
pub(in crate::store) const KEPT_NS: u64 = 60 * SECOND_NS;

/// An index, and the root that it was made of.
#[derive(Debug)]
struct Prepared {
    until_ns: u64,
    head: KnownRoot,
    index: Index,
}

/// The indexes that are kept, oldest first.
#[derive(Debug, Default)]
pub(crate) struct PreparedIndexes(Mutex<Vec<Prepared>>);

impl PreparedIndexes {
    /// Keeps the index of a root, unless something of it could not be read.
    pub(in crate::store) fn keep(&self, head: KnownRoot, index: Index, now_ns: u64) {
        if !index.is_whole() {
            return;
        }
        let volume = head.root.volume;
        let prepared = Prepared {
            until_ns: now_ns + KEPT_NS,
            head,
            index,
        };
        let mut kept = lock(&self.0);
        let is_same = |one: &mut Prepared| one.head.root.volume == volume;
        let mut gone: Vec<_> = kept.extract_if(.., is_same).collect();
        kept.push(prepared);
        let surplus = kept.len().saturating_sub(VOLUMES_MAX);
        gone.extend(kept.drain(..surplus));
        // They are freed without the lock.
        drop(kept);
    }

    /// Forgets what is too old.
    pub(in crate::store) fn forget_old(&self, now_ns: u64) {
        let is_old = |one: &mut Prepared| one.until_ns <= now_ns;
        let mut kept = lock(&self.0);
        let gone: Vec<_> = kept.extract_if(.., is_old).collect();
        drop(kept);
        drop(gone);
    }

    /// The index that was prepared for this root, and how many of the root's deltas it has. An empty one if there is none that
    /// the root begins with.
    pub(in crate::store) fn take(&self, root: &Root, now_ns: u64) -> (Index, usize) {
        match self.find(|of| of.volume == root.volume, now_ns) {
            Some((head, index)) if begins_with(root, &head.root) => (index, head.root.deltas.len()),
            _ => (Index::default(), 0),
        }
    }

    /// What was prepared of the volume of this name.
    pub(in crate::store) fn take_named(
        &self,
        name: &str,
        now_ns: u64,
    ) -> Option<(KnownRoot, Index)> {
        self.find(|of| of.name == name, now_ns)
    }

    fn find(&self, is_wanted: impl Fn(&Root) -> bool, now_ns: u64) -> Option<(KnownRoot, Index)> {
        let mut kept = lock(&self.0);
        let at = kept.iter().position(|one| is_wanted(&one.head.root))?;
        let found = kept.remove(at);
        drop(kept);
        (found.until_ns > now_ns).then_some((found.head, found.index))
    }
}

fn begins_with(root: &Root, prepared: &Root) -> bool {
    canary::active!("prepared_index_is_any_roots")
        || (root.nodes == prepared.nodes && root.deltas.starts_with(&prepared.deltas))
}
