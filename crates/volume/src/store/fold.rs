//! Folding deltas into base pages, so that opens and memory stay bounded.
//!
//! Pages that deltas touch are written anew with the deltas laid over them, and the directory
//! nodes above them, into fresh index objects; the root that follows lists no deltas. Nothing is
//! changed in memory before that root is committed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use blkmq::error::ErrorKind;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::object::ObjectId;
use crate::object::page::{BlockRef, NODE_PAGES, encode_node, encode_page};
use crate::object::root::Root;
use crate::request::tail::{EXTENTS_PER_LOCK, Tail};
use crate::store::fetch::load_page;
use crate::store::objects::put;

/// An index object is closed at this size.
const OBJECT_BYTES: usize = 32 << 20;

/// What a fold changes; applied once the root is committed. No block: the page is empty now.
pub(crate) struct FoldResult {
    pub(crate) pages: Vec<(u64, Option<BlockRef>)>,
    pub(crate) nodes: Vec<(u64, Option<BlockRef>)>,
}

/// Index blocks on their way into objects.
struct Output<'a> {
    engine: &'a Engine,
    tail: &'a Tail,
    id: ObjectId,
    bytes: Vec<u8>,
}

impl Output<'_> {
    async fn add(&mut self, block: &[u8]) -> Result<BlockRef, OpenError> {
        if self.bytes.len() + block.len() > OBJECT_BYTES {
            self.flush().await?;
        }
        let len = |n: usize| u32::try_from(n).expect("objects are closed at 32 MiB");
        let at = BlockRef {
            object: self.id,
            offset: len(self.bytes.len()),
            bytes: len(block.len()),
        };
        self.bytes.extend_from_slice(block);
        Ok(at)
    }

    async fn flush(&mut self) -> Result<(), OpenError> {
        let bytes = std::mem::take(&mut self.bytes);
        let id = std::mem::replace(&mut self.id, self.engine.next_object());
        if bytes.is_empty() {
            return Ok(());
        }
        put(self.engine, self.tail, id.index_key(), bytes).await
    }
}

/// Folds if the deltas have piled up; then `root` lists none.
pub(crate) async fn fold_if_due(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    root: &mut Root,
) -> Result<Option<FoldResult>, OpenError> {
    let (extents, has_lost) = {
        let inner = tail.lock();
        (inner.index.delta_extents(), inner.index.has_lost())
    };
    let options = &engine.options;
    let few = root.deltas.len() <= options.deltas_max && extents <= options.delta_extents_max;
    if few || has_lost {
        return Ok(None);
    }
    let mut out = Output {
        engine,
        tail,
        id: engine.next_object(),
        bytes: Vec::new(),
    };
    let Some(pages) = fold_pages(tail, &mut out).await? else {
        return Ok(None);
    };
    let nodes = fold_nodes(tail, &mut out, &pages).await?;
    out.flush().await?;
    let mut listed: BTreeMap<u64, BlockRef> = root.nodes.iter().copied().collect();
    for (node, block) in &nodes {
        match block {
            Some(block) => listed.insert(*node, *block),
            None => listed.remove(node),
        };
    }
    root.nodes = listed.into_iter().collect();
    root.deltas.clear();
    Ok(Some(FoldResult { pages, nodes }))
}

/// All pages that deltas touch; the lock is held for a bounded number of extents at a time. No
/// delta is added meanwhile: only the upload that folds adds any.
fn touched_pages(tail: &Tail) -> BTreeSet<u64> {
    let mut pages = BTreeSet::new();
    let mut from = Some(0);
    while let Some(at) = from {
        let (touched, next) = tail.lock().index.touched_pages(at, EXTENTS_PER_LOCK);
        pages.extend(touched);
        from = next;
    }
    pages
}

/// None if a page is damaged or gone: uploads go on without folding.
async fn fold_pages(
    tail: &Tail,
    out: &mut Output<'_>,
) -> Result<Option<Vec<(u64, Option<BlockRef>)>>, OpenError> {
    let mut pages = Vec::new();
    for number in touched_pages(tail) {
        let (loaded, block) = {
            let inner = tail.lock();
            (
                inner.index.page(number),
                inner.index.directory.get(&number).copied(),
            )
        };
        let base = match (loaded, block) {
            (Some(page), _) => Some(page),
            (None, None) => None,
            (None, Some(block)) => match load_page(out.engine, tail, number, block).await {
                Ok(page) => Some(Arc::new(page)),
                Err(ErrorKind::Corrupt) => {
                    tail.lock().index.lose_page();
                    return Ok(None);
                }
                Err(error) => {
                    return Err(OpenError::Store(format!(
                        "read of {}: index page {number} of {}: {error}",
                        block.object.index_key(),
                        tail.name()
                    )));
                }
            },
        };
        let page = tail.lock().index.folded_page(number, base.as_deref());
        let block = if page.is_empty() {
            None
        } else {
            Some(
                out.add(&encode_page(tail.id().volume, number, page.iter()))
                    .await?,
            )
        };
        pages.push((number, block));
    }
    Ok(Some(pages))
}

async fn fold_nodes(
    tail: &Tail,
    out: &mut Output<'_>,
    pages: &[(u64, Option<BlockRef>)],
) -> Result<Vec<(u64, Option<BlockRef>)>, OpenError> {
    let touched: BTreeSet<u64> = pages.iter().map(|(page, _)| page / NODE_PAGES).collect();
    let mut nodes = Vec::new();
    for node in touched {
        let range = node * NODE_PAGES..(node + 1) * NODE_PAGES;
        let mut listed: BTreeMap<u64, BlockRef> = {
            let inner = tail.lock();
            inner
                .index
                .directory
                .range(range.clone())
                .map(|(page, at)| (*page, *at))
                .collect()
        };
        for (page, block) in pages.iter().filter(|(page, _)| range.contains(page)) {
            match block {
                Some(block) => listed.insert(*page, *block),
                None => listed.remove(page),
            };
        }
        let block = if listed.is_empty() {
            None
        } else {
            Some(
                out.add(&encode_node(tail.id().volume, node, listed.into_iter()))
                    .await?,
            )
        };
        nodes.push((node, block));
    }
    Ok(nodes)
}
