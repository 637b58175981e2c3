//! Packs that a snapshot of the volume, or a pin, names: writing their live part anew would free nothing before that
//! goes, and then frees all the more. So they are left alone until then; all others are not held up by it.
//!
//! What pages name is found by reading the snapshots' indexes, each block once. Forks are volumes of their own: what
//! they share with this one is theirs to keep.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::Pace;
use super::choose::Chosen;
use super::walk::{read_node, read_pages};
use crate::driver::{StoreError, StoreOp, StoreReply};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::marks::Pin;
use crate::hostlog::names::PIN_PREFIX;
use crate::object::page::BlockRef;
use crate::object::root::Root;
use crate::object::{ObjectId, snapshot_of_root_key, snapshots_of};
use crate::request::tail::Tail;
use crate::store::fold::index_blocks::LOADS_AT_ONCE;
use crate::store::objects::{store_error, store_with_retry};
use crate::store::open::load_index::learn_sessions;
use crate::store::roots::{list_keys, read_roots};

/// Takes packs out of what was chosen that a snapshot or pin names.
pub(super) async fn leave_out(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    chosen: &mut Chosen,
) -> Result<(), OpenError> {
    if chosen.packs.is_empty() {
        return Ok(());
    }
    let mut search = Search {
        engine,
        tail,
        pace: Pace::new(engine, tail),
        seen: HashSet::new(),
        left: std::mem::take(&mut chosen.packs),
    };
    for root in pinned_roots(engine, tail).await? {
        if search.left.is_empty() || !search.look(&root).await? {
            // Nothing was found out: nothing is chosen.
            search.left.clear();
            break;
        }
    }
    chosen.packs = search.left;
    Ok(())
}

/// Roots of the volume's snapshots, and of its children that are about to be.
async fn pinned_roots(engine: &Engine, tail: &Tail) -> Result<Vec<Root>, OpenError> {
    let keys = list_keys(engine, &snapshots_of(tail.name())).await?;
    let names: Vec<String> = keys
        .iter()
        .filter_map(|key| snapshot_of_root_key(key))
        .collect();
    let found = read_roots(engine, &names).await?;
    let mut roots: Vec<Root> = found.into_iter().map(|known| known.root).collect();
    let pins = format!("{PIN_PREFIX}{}/", tail.id().volume);
    for key in list_keys(engine, &pins).await? {
        match store_with_retry(engine, StoreOp::Get { key: key.clone() }).await {
            Ok(StoreReply::Object { data, .. }) => {
                let pin = Pin::decode(&data);
                let pin = pin.map_err(|error| OpenError::Corrupt(format!("{key}: {error}")))?;
                roots.push(pin.root);
            }
            Ok(_) => {
                return Err(OpenError::Store(format!(
                    "{key}: the store's answer does not fit"
                )));
            }
            Err(StoreError::NotFound) => {}
            Err(error) => return Err(store_error("read", &key, &error)),
        }
    }
    Ok(roots)
}

struct Search<'a> {
    engine: &'a Arc<Engine>,
    tail: &'a Arc<Tail>,
    pace: Pace<'a>,
    /// Nodes that were looked at, with everything below them.
    seen: HashSet<BlockKey>,
    /// Packs that nothing so far names.
    left: BTreeSet<ObjectId>,
}

/// A block, by the place at which it stands.
type BlockKey = (ObjectId, u32);

impl Search<'_> {
    /// Takes out what a root names; false: it was left in the middle.
    async fn look(&mut self, root: &Root) -> Result<bool, OpenError> {
        learn_sessions(self.engine, root)?;
        for delta in &root.deltas {
            self.left.remove(&delta.pack);
        }
        for (number, block) in &root.nodes {
            if self.seen.insert((block.object, block.offset))
                && !self.look_at_node((*number, *block)).await?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn look_at_node(&mut self, of: (u64, BlockRef)) -> Result<bool, OpenError> {
        let Some(node) = read_node(self.engine, self.tail, of).await? else {
            // What it names is not known.
            return Ok(false);
        };
        let pages: Vec<(u64, BlockRef)> = node.pages().collect();
        let fresh: Vec<(u64, BlockRef)> = pages
            .into_iter()
            .filter(|(_, block)| self.seen.insert((block.object, block.offset)))
            .collect();
        for pages in fresh.chunks(LOADS_AT_ONCE) {
            if !self.pace.wait().await {
                return Ok(false);
            }
            self.pace
                .add(pages.iter().map(|(_, at)| u64::from(at.bytes)).sum());
            let loaded = read_pages(self.engine, self.tail, pages).await?;
            if loaded.len() < pages.len() {
                return Ok(false);
            }
            for (.., page) in loaded {
                for pack in page.packs() {
                    self.left.remove(&pack);
                }
            }
        }
        Ok(true)
    }
}
