//! Makes a volume's pages point to the copies of a step: new pages and nodes, a record that names them and the pack, and
//! one update of the root.
//!
//! Pages are looked at as they are now, while no fold runs: what a page does not have any more stays as it is. The
//! content of each sector is the same before and after, so no reader, point or snapshot notices.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkmq::error::ErrorKind;

use super::copy::{Relocation, StepCopy, keep_cached};
use super::walk::read_node;
use crate::cache::blocks::{BlockKind, BlockTarget, IndexBlock, block_key};
use crate::driver::ComputeKind;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::record::NamedObject;
use crate::object::FormatError;
use crate::object::node::{Node, encode_node};
use crate::object::page::{BlockRef, NODE_PAGES, PAGE_SECTORS, Page, PageBuilder, encode_page};
use crate::object::sessions::SessionNames;
use crate::request::tail::{Status, Tail};
use crate::store::fold::index_blocks::read;
use crate::store::fold::name_and_take_turn;
use crate::store::fold::pages::Output;
use crate::store::host_log::unnamed::UnnamedObject;
use crate::store::roots::{begin_update, finish_update};
use crate::units::Span;

/// What a step has written.
#[derive(Debug, Default)]
pub(super) struct SwapResult {
    pub(super) written: u64,
}

/// The index of a step, before its root.
#[derive(Default)]
struct NewIndex {
    nodes: Vec<(u64, Option<BlockRef>)>,
    replaced: Vec<BlockRef>,
    bytes: u64,
}

pub(super) async fn swap(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    copied: StepCopy,
) -> Result<SwapResult, OpenError> {
    let _folds = tail.upload.index_turn.take().await;
    let mut by_node: BTreeMap<u64, BTreeMap<u64, Vec<Relocation>>> = BTreeMap::new();
    for moved in copied.moved {
        let page = moved.from.span.start / PAGE_SECTORS;
        let node = by_node.entry(page / NODE_PAGES).or_default();
        node.entry(page).or_default().push(moved);
    }
    let mut out = Output::new(engine, tail);
    let mut index = NewIndex::default();
    for (number, pages) in by_node {
        swap_node(&mut out, (number, pages), &copied.pages, &mut index).await?;
    }
    let mut swapped = SwapResult {
        written: copied.written + index.bytes,
    };
    if index.nodes.is_empty() {
        // Everything was folded anew meanwhile, or cannot be read: nothing will name the pack.
        swapped.written = copied.written;
        return Ok(swapped);
    }
    out.flush().await?;
    // Held until the root names them, or until the update has failed.
    let objects = out.take_objects();
    commit(engine, tail, (&copied.pack, &objects), index).await?;
    keep_cached(engine, copied.cached);
    Ok(swapped)
}

/// Names the pack and the index objects in a record, and updates the root.
async fn commit(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    (pack, objects): (&UnnamedObject, &[UnnamedObject]),
    index: NewIndex,
) -> Result<(), OpenError> {
    let named = |object: &UnnamedObject, is_index| NamedObject {
        volume: 0,
        is_index,
        is_kept: false,
        number: object.id().number,
    };
    let mut names: Vec<NamedObject> = objects.iter().map(|it| named(it, true)).collect();
    if !canary::active!("compaction_names_no_pack") {
        names.push(named(pack, false));
    }
    let _turn = name_and_take_turn(engine, tail, &names, false).await?;
    if tail.lock().status != Status::Live {
        return Err(OpenError::Fenced(tail.name().to_owned()));
    }
    let mut update = begin_update(engine, tail).await?;
    let root = &mut update.root;
    let mut listed: BTreeMap<u64, BlockRef> = root.nodes.iter().copied().collect();
    for (node, block) in &index.nodes {
        match block {
            Some(block) => listed.insert(*node, *block),
            None => listed.remove(node),
        };
    }
    root.nodes = listed.into_iter().collect();
    finish_update(engine, tail, &update).await?;
    tail.lock().index.replace_nodes(&index.nodes);
    engine.record_tail(tail);
    engine.blocks.remove(&index.replaced);
    Ok(())
}

/// Writes the pages of one node that have something of the step, and the node.
async fn swap_node(
    out: &mut Output<'_>,
    (number, mut moved): (u64, BTreeMap<u64, Vec<Relocation>>),
    known: &BTreeMap<u64, (BlockRef, Arc<Page>)>,
    index: &mut NewIndex,
) -> Result<(), OpenError> {
    let (engine, tail) = (out.engine, out.tail);
    let block = tail.lock().index.nodes.get(&number).copied();
    let Some(block) = block else {
        return Ok(());
    };
    let Some(node) = read_node(engine, tail, (number, block)).await? else {
        return Ok(());
    };
    let mut listed: BTreeMap<u64, BlockRef> = node.pages().collect();
    let mut bases = Vec::new();
    for (page, moved) in std::mem::take(&mut moved) {
        let Some(at) = listed.get(&page).copied() else {
            continue;
        };
        let base = match known.get(&page) {
            Some((before, base)) if *before == at => Some(Arc::clone(base)),
            _ => read_page(engine, tail, page, at).await?,
        };
        bases.extend(base.map(|base| (page, base, moved)));
    }
    let (volume, names) = (tail.id().volume, engine.names.known());
    let bytes = bases.iter().map(|(_, base, _)| base.memory_bytes()).sum();
    let make = move || -> Result<Vec<(u64, Page, Vec<u8>)>, FormatError> {
        let mut made = Vec::new();
        for (number, base, moved) in &bases {
            if let Some(page) = swap_page(*number, base, moved, &names)? {
                let block = encode_page(volume, &page);
                made.push((*number, page, block));
            }
        }
        Ok(made)
    };
    let made = engine.port.compute(ComputeKind::Fold, bytes, make).await?;
    let unnamed = |error| OpenError::Corrupt(format!("the index of {}: {error}", tail.name()));
    let made = made.map_err(unnamed)?;
    if made.is_empty() {
        return Ok(());
    }
    for (number, page, bytes) in made {
        index.bytes += bytes.len() as u64;
        let at = out.add(bytes).await?;
        if let Some(old) = listed.insert(number, at) {
            if engine.blocks.contains(block_key(old)) {
                engine.blocks.insert(at, IndexBlock::Page(Arc::new(page)));
            }
            index.replaced.push(old);
        }
    }
    let names = engine.names.known();
    let node = Node::new(number, &names, listed.into_iter()).map_err(unnamed)?;
    let bytes = encode_node(volume, &node);
    index.bytes += bytes.len() as u64;
    let at = out.add(bytes).await?;
    engine.blocks.insert(at, IndexBlock::Node(Arc::new(node)));
    index.replaced.push(block);
    index.nodes.push((number, Some(at)));
    Ok(())
}

async fn read_page(
    engine: &Engine,
    tail: &Tail,
    number: u64,
    block: BlockRef,
) -> Result<Option<Arc<Page>>, OpenError> {
    let target = BlockTarget {
        kind: BlockKind::Page,
        number,
        block,
    };
    match read(engine, tail, target).await {
        Ok((IndexBlock::Page(page), _)) => Ok(Some(page)),
        Ok((IndexBlock::Node(_), _)) | Err(ErrorKind::Corrupt) => Ok(None),
        Err(error) => Err(OpenError::Store(format!(
            "read of page {number} of {}: {error}",
            tail.name()
        ))),
    }
}

/// The page with what was moved pointing to its copy; none: it has nothing of that any more.
fn swap_page(
    number: u64,
    base: &Page,
    moved: &[Relocation],
    names: &SessionNames,
) -> Result<Option<Page>, FormatError> {
    let mut page = PageBuilder::new(number);
    let mut swaps = 0;
    let mut moved = moved.iter().peekable();
    for (span, chunk, skip) in base.extents() {
        let mut at = span.start;
        let keep = |page: &mut PageBuilder, from: u64, to: u64| {
            if from < to {
                let before = u32::try_from(from - span.start).expect("within a page");
                page.push(
                    Span {
                        start: from,
                        end: to,
                    },
                    &chunk,
                    skip + before,
                );
            }
        };
        while let Some(next) = moved.peek() {
            let part = next.from.span.intersect(span);
            if next.from.span.start >= span.end {
                break;
            }
            let before = u32::try_from(part.start.saturating_sub(span.start)).unwrap_or(0);
            let into = u32::try_from(part.start.saturating_sub(next.from.span.start)).unwrap_or(0);
            // The very sectors that were copied.
            let is_same = *next.from.chunk == chunk && next.from.skip + into == skip + before;
            let is_same = is_same || canary::active!("compaction_swaps_without_looking");
            if !part.is_empty() && is_same {
                keep(&mut page, at, part.start);
                page.push(part, &next.to, into);
                swaps += 1;
                at = part.end;
            }
            if next.from.span.end > span.end {
                break;
            }
            moved.next();
        }
        keep(&mut page, at, span.end);
    }
    match swaps {
        0 => Ok(None),
        _ => page.finish(names).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::super::walk::Part;
    use super::*;
    use crate::hostlog::names::SessionName;
    use crate::object::ObjectId;
    use crate::object::pack::{Chunk, Codec};
    use crate::units::{Lsn, VolumeId};

    fn chunk(number: u64, start: u64, sectors: u64) -> Chunk {
        Chunk {
            pack: ObjectId { session: 0, number },
            offset: 16,
            stored: 8,
            origin: VolumeId::default(),
            span: Span::new(start, sectors),
            lsn: Lsn(1),
            codec: Codec::Plain,
            checksum: 0,
        }
    }

    fn names() -> SessionNames {
        let mut names = SessionNames::default();
        names.insert(SessionName::default()).expect("the first");
        names
    }

    fn moved(of: &Chunk, start: u64, end: u64) -> Relocation {
        let span = Span { start, end };
        Relocation {
            from: Part {
                span,
                chunk: Arc::new(of.clone()),
                skip: (start - of.span.start) as u32,
            },
            to: Arc::new(chunk(9, start, end - start)),
        }
    }

    /// Sector by sector: pack, and the sector of the volume at which that chunk has it.
    fn sectors(page: &Page) -> Vec<(u64, u64, u64)> {
        let extents = page.extents().flat_map(|(span, chunk, skip)| {
            let place = move |at: u64| chunk.span.start + u64::from(skip) + at - span.start;
            let number = chunk.pack.number;
            (span.start..span.end).map(move |at| (at, number, place(at)))
        });
        extents.collect()
    }

    fn page(extents: &[(u64, u64, &Chunk)]) -> Page {
        let extents = extents.iter().map(|(start, end, chunk)| {
            let span = Span {
                start: *start,
                end: *end,
            };
            (span, *chunk, (*start - chunk.span.start) as u32)
        });
        Page::new(0, &names(), extents).expect("a page")
    }

    #[test]
    fn what_the_page_has_still_points_to_its_copy_and_nothing_else_does() {
        let (one, two) = (chunk(1, 0, 32), chunk(2, 40, 16));
        let copied = [moved(&one, 4, 8), moved(&one, 16, 32), moved(&two, 40, 56)];
        // Since then 20 to 24 were written, and all of the second chunk was.
        let (newer, over) = (chunk(3, 20, 4), chunk(4, 40, 16));
        let now = page(&[
            (0, 20, &one),
            (20, 24, &newer),
            (24, 32, &one),
            (40, 56, &over),
        ]);
        let swapped = swap_page(0, &now, &copied, &names()).expect("named");
        let found = sectors(&swapped.expect("something was moved"));
        let expected = sectors(&now).into_iter().map(|(at, pack, place)| match at {
            4..8 | 16..20 | 24..32 => (at, 9, at),
            _ => (at, pack, place),
        });
        assert_eq!(found, expected.collect::<Vec<_>>());
        let gone = page(&[(0, 4, &one), (40, 56, &over)]);
        assert_eq!(swap_page(0, &gone, &copied, &names()), Ok(None));
    }

    #[test]
    #[should_panic(expected = "left")]
    fn swapping_without_looking_is_seen() {
        canary::with(
            "compaction_swaps_without_looking",
            what_the_page_has_still_points_to_its_copy_and_nothing_else_does,
        );
    }
}
