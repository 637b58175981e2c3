//! Packs that a snapshot of the volume, or a pin, names: writing their live part anew would free nothing before that
//! goes, and then frees all the more. So they are left alone until then; all others are not held up by it.
//!
//! What pages name is found by reading the snapshots' indexes, each block once. Forks are volumes of their own: what
//! they share with this one is theirs to keep.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::Pace;
use super::walk::{read_node, read_pages};
use crate::driver::{StoreError, StoreOp, StoreReply};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::marks::Pin;
use crate::hostlog::names::PIN_PREFIX;
use crate::object::ObjectId;
use crate::object::page::BlockRef;
use crate::object::root::Root;
use crate::request::tail::Tail;
use crate::store::flow::upload_state::KnownRoot;
use crate::store::fold::index_blocks::LOADS_AT_ONCE;
use crate::store::objects::{store_error, store_with_retry};
use crate::store::open::load_index::learn_sessions;
use crate::store::parts::RootWalk;
use crate::store::roots::{READS_AT_ONCE, list_keys};

/// The candidates that no snapshot and no pin names.
pub(super) async fn leave_out(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    candidates: BTreeSet<ObjectId>,
) -> Result<BTreeSet<ObjectId>, OpenError> {
    let mut search = Search {
        engine,
        tail,
        pace: Pace::new(engine, tail),
        seen: HashSet::new(),
        left: candidates,
    };
    if !search.left.is_empty() && !search.look_at_all().await? {
        // Nothing was found out: nothing is chosen.
        search.left.clear();
    }
    Ok(search.left)
}

/// The root in a pin: of a child that is about to be; none: the pin is gone.
async fn read_pin(engine: &Engine, key: &str) -> Result<Option<Root>, OpenError> {
    let op = StoreOp::Get {
        key: key.to_owned(),
    };
    match store_with_retry(engine, op).await {
        Ok(StoreReply::Object { data, .. }) => {
            let pin = Pin::decode(&data);
            let pin = pin.map_err(|error| OpenError::Corrupt(format!("{key}: {error}")))?;
            Ok(Some(pin.root))
        }
        Ok(_) => Err(OpenError::Store(format!(
            "{key}: the store's answer does not fit"
        ))),
        Err(StoreError::NotFound) => Ok(None),
        Err(error) => Err(store_error("read", key, &error)),
    }
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
    /// Takes out what the volume's snapshots and pins name; false: it was left in the middle.
    async fn look_at_all(&mut self) -> Result<bool, OpenError> {
        let mut walk = RootWalk::of_snapshots(self.engine, self.tail.name(), None);
        while let Some(roots) = walk.next(READS_AT_ONCE).await? {
            for KnownRoot { root, .. } in roots.iter().filter(|head| !head.root.deleted) {
                if self.left.is_empty() {
                    return Ok(true);
                }
                if !self.look(root).await? {
                    return Ok(false);
                }
            }
        }
        // After the roots: the pin of one that was not there yet is still there.
        let pins = format!("{PIN_PREFIX}{}/", self.tail.id().volume);
        for key in list_keys(self.engine, &pins).await? {
            let Some(root) = read_pin(self.engine, &key).await? else {
                continue;
            };
            if self.left.is_empty() {
                return Ok(true);
            }
            if !self.look(&root).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

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
