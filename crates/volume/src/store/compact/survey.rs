//! A survey of a volume: goes through its pages, and counts what they reach of each pack.
//!
//! It reads a few pages at a time and keeps nothing of them but counts: some 60 bytes for each pack, 8 for each
//! scattered page. A fold meanwhile makes counts wrong for packs that are new to the pages, and these are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Pace;
use super::choose::{PackUse, SurveyResult};
use super::state::{SurveyRest, VolumeFacts};
use super::walk::{Movable, read_node, read_pages, scattered};
use crate::driver::{ComputeKind, StoreOp, StoreReply};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::names::object_of_key;
use crate::object::ObjectId;
use crate::object::page::{BlockRef, PAGE_SECTORS, Page};
use crate::request::tail::Tail;
use crate::store::fold::index_blocks::LOADS_AT_ONCE;
use crate::store::objects::{store_error, store_with_retry};
use crate::units::{Lsn, Span, VolumeId};

/// What a chunk takes in footers, beside its bytes: in a pack of several volumes it is listed twice.
const ENTRY_BYTES: u64 = 2 * crate::object::pack::ENTRY_BYTES as u64;

/// How a page's rows are judged.
struct View {
    volume: VolumeId,
    /// What is newer may not be in all pages yet.
    stored: Lsn,
    /// A page without anything newer is cold.
    cold: Option<Lsn>,
    runs_max: usize,
    unreadable: BTreeSet<ObjectId>,
}

/// Surveys a volume; none: it was left in the middle.
pub(super) async fn survey(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    facts: &VolumeFacts,
) -> Result<Option<SurveyResult>, OpenError> {
    let view = Arc::new(View {
        volume: tail.id().volume,
        stored: tail.stored_lsn(),
        cold: facts.surveyed,
        runs_max: engine.options.compact.runs_max,
        unreadable: facts.unreadable.clone(),
    });
    let mut unfolded = unfolded_packs(tail);
    let nodes: Vec<(u64, BlockRef)> = {
        let inner = tail.lock();
        let nodes = inner.index.nodes.iter();
        nodes.map(|(number, block)| (*number, *block)).collect()
    };
    let mut pace = Pace::new(engine, tail);
    let mut surveyed = SurveyResult::default();
    for of in nodes {
        let Some(node) = read_node(engine, tail, of).await? else {
            continue;
        };
        pace.add(u64::from(of.1.bytes));
        let pages: Vec<(u64, BlockRef)> = node.pages().collect();
        for pages in pages.chunks(LOADS_AT_ONCE) {
            if !pace.wait().await {
                return Ok(None);
            }
            pace.add(pages.iter().map(|(_, at)| u64::from(at.bytes)).sum());
            let loaded = read_pages(engine, tail, pages).await?;
            let written = written_pages(tail, pages);
            let bytes = loaded.iter().map(|(.., page)| page.memory_bytes()).sum();
            surveyed.pages += loaded.len() as u64;
            let view = Arc::clone(&view);
            let count = move || {
                for (number, _, page) in &loaded {
                    let is_written = written.contains(number);
                    count_page(&mut surveyed, (*number, page), is_written, &view);
                }
                surveyed
            };
            surveyed = engine.port.compute(ComputeKind::Fold, bytes, count).await?;
        }
    }
    unfolded.extend(unfolded_packs(tail));
    for (id, pack) in &mut surveyed.packs {
        pack.is_unfolded |= unfolded.contains(id);
    }
    add_sizes(engine, &mut surveyed.packs).await?;
    let rest = SurveyRest {
        since_ns: engine.jobs.mono_ns(),
        pages: surveyed.pages,
    };
    engine
        .compaction
        .set_surveyed(view.volume, view.stored, rest);
    Ok(Some(surveyed))
}

/// Packs of which deltas have something.
fn unfolded_packs(tail: &Tail) -> BTreeSet<ObjectId> {
    let listed = tail.upload.head().map(|head| head.root.deltas);
    let listed = listed.unwrap_or_default();
    let (_, published) = tail.upload.published();
    let all = listed.iter().chain(&published);
    all.map(|delta| delta.pack).collect()
}

/// Pages over which deltas lie: something was written in them since they were folded.
fn written_pages(tail: &Tail, pages: &[(u64, BlockRef)]) -> BTreeSet<u64> {
    let inner = tail.lock();
    let has_deltas = |page: &u64| {
        let span = Span::new(page * PAGE_SECTORS, PAGE_SECTORS);
        inner.index.count_deltas_up_to(span, 1) > 0
    };
    let pages = pages.iter().map(|(page, _)| *page);
    pages.filter(has_deltas).collect()
}

fn count_page(
    surveyed: &mut SurveyResult,
    (number, page): (u64, &Page),
    is_written: bool,
    view: &View,
) {
    let mut newest = Lsn::ZERO;
    for (span, chunk, _) in page.extents() {
        newest = newest.max(chunk.lsn);
        let pack: &mut PackUse = surveyed.packs.entry(chunk.pack).or_default();
        let whole = u128::from(chunk.span.sectors().max(1));
        let stored = u128::from(chunk.stored) + u128::from(ENTRY_BYTES);
        let live = stored * u128::from(span.sectors()) / whole;
        pack.live += u64::try_from(live).unwrap_or(u64::MAX);
        pack.sectors += span.sectors();
        pack.is_shared |= chunk.origin != view.volume;
        pack.is_unfolded |= chunk.lsn > view.stored;
    }
    let movable = Movable {
        own: view.volume,
        unreadable: &view.unreadable,
    };
    if scattered(number, page, &movable, view.runs_max).is_empty() {
        return;
    }
    match !is_written && view.cold.is_some_and(|cold| newest <= cold) {
        true => drop(surveyed.scattered.insert(number)),
        false => surveyed.is_warm = true,
    }
}

/// Asks the store how large the packs are: one list for each session that wrote some.
async fn add_sizes(
    engine: &Engine,
    packs: &mut BTreeMap<ObjectId, PackUse>,
) -> Result<(), OpenError> {
    let mut prefixes = BTreeSet::new();
    for id in packs.keys() {
        let key = engine.names.pack_key(*id);
        let key = key.map_err(|error| OpenError::Corrupt(format!("pack {id}: {error}")))?;
        let (prefix, _) = key.rsplit_once('/').unwrap_or_default();
        prefixes.insert(format!("{prefix}/"));
    }
    for prefix in prefixes {
        let op = StoreOp::List {
            prefix: prefix.clone(),
        };
        let keys = match store_with_retry(engine, op).await {
            Ok(StoreReply::Keys(keys)) => keys,
            Ok(_) => return Err(OpenError::Store("the store's list does not fit".into())),
            Err(error) => return Err(store_error("list", &prefix, &error)),
        };
        for (key, bytes) in keys {
            let named = object_of_key(&key).map(|(session, number)| ObjectId::new(session, number));
            if let Some(pack) = named.and_then(|id| packs.get_mut(&id)) {
                pack.size = Some(bytes);
            }
        }
        engine.port.pause().await;
    }
    Ok(())
}
