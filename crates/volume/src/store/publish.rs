//! Publishing: what makes slices stored. One conditional update of the root for all slices of a volume
//! that are ready, in order.
//!
//! The order is what makes a crash anywhere harmless: all packs are in the store and unreferenced; the
//! root that names them is replaced by conditional update, whose unknown outcome is read back; only then
//! does memory follow: deltas into the index, uploaded extents become clean, layers go, and the log
//! notes it. The frozen layers hide all of that until the end, so a reader sees no step of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use blkmq::io::SECTOR_BYTES;

use crate::driver::ComputeKind;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::log::frame::Record;
use crate::map::index::delta_of;
use crate::map::layers::{CleanExtent, DirtyExtent};
use crate::object::pack::Item;
use crate::request::tail::{EXTENTS_PER_LOCK, Tail};
use crate::store::flow::slices::{ReadySlice, UploadedPack};
use crate::store::roots::{commit_root, settled_head};
use crate::units::Span;

/// Extents that are worked on between two pauses: well below a millisecond's worth.
const EXTENTS_PER_PAUSE: usize = 8 * EXTENTS_PER_LOCK;

/// Publishes consecutive slices, the oldest that are not stored, and the size that the volume is to
/// have.
pub(crate) async fn publish(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    slices: &[Arc<ReadySlice>],
) -> Result<(), OpenError> {
    let _turn = tail.upload.turn.take().await;
    let head = settled_head(engine, tail).await?;
    let mut root = head.root.clone();
    if let Some(newest) = slices.last() {
        root.lsn = newest.last;
    }
    root.bytes = tail.upload.grown_bytes(root.bytes);
    let packs = slices.iter().flat_map(|slice| &slice.packs);
    root.deltas.extend(packs.map(|pack| pack.reference));
    let named = root.sessions.insert(engine.session_name);
    named.map_err(|error| OpenError::Corrupt(format!("{}: {error}", tail.name())))?;
    let head = commit_root(engine, tail, root, &head).await?;
    // Only now: what is written beyond the old size must be in the volume for the next opener.
    tail.lock().geometry.bytes = head.root.bytes;
    let listed = head.root.deltas.len();
    tail.upload.set_head(head);
    for slice in slices {
        apply_published(engine, tail, slice).await;
    }
    tail.lock().index.listed = listed;
    Ok(())
}

/// The slice is stored: the index has it, its extents are clean, its layers go.
async fn apply_published(engine: &Arc<Engine>, tail: &Tail, slice: &ReadySlice) {
    for pack in &slice.packs {
        add_deltas(engine, tail, pack).await;
    }
    report_damage(tail, &slice.damaged);
    mark_clean(engine, tail, slice).await;
    tail.set_stored(slice.last);
    tail.upload.on_published(slice.last);
    let now_ns = engine.jobs.mono_ns();
    let took_ns = now_ns.saturating_sub(slice.cut_ns);
    tail.upload.recovery_point.on_uploaded(took_ns);
    // The record spares recovery the uploaded extents, and lets their segments be reused.
    engine
        .committer()
        .record(engine, Record::Tail(tail.record()));
}

async fn add_deltas(engine: &Engine, tail: &Tail, pack: &UploadedPack) {
    let items: Vec<&Item> = pack.sections.iter().flat_map(|part| &part.items).collect();
    for part in items.chunks(EXTENTS_PER_PAUSE) {
        for items in part.chunks(EXTENTS_PER_LOCK) {
            let mut inner = tail.lock();
            for item in items {
                let (span, delta) = delta_of(item);
                inner.index.apply_delta(span, delta);
            }
        }
        engine.port.pause().await;
    }
}

/// Says what was given up, once it is.
fn report_damage(tail: &Tail, damaged: &[Span]) {
    for span in damaged {
        tail.upload
            .damaged_bytes
            .fetch_add(span.bytes(), Ordering::Relaxed);
        tracing::error!(
            volume = tail.name(),
            first_sector = span.start,
            sectors = span.sectors(),
            "the log could not be read there: these sectors are stored as damaged, and reads of them \
             fail until they are written again"
        );
    }
}

/// The slice's extents are clean now; the layers that held them are dropped.
async fn mark_clean(engine: &Arc<Engine>, tail: &Tail, slice: &ReadySlice) {
    let release_clean = |part: Span, old: CleanExtent| {
        engine.segments.release_clean(old.0, part.sectors());
    };
    let extents: Vec<(Span, DirtyExtent)> = slice
        .merged
        .iter()
        .map(|(span, dirty)| (span, *dirty))
        .collect();
    for part in extents.chunks(EXTENTS_PER_PAUSE) {
        for part in part.chunks(EXTENTS_PER_LOCK) {
            let mut inner = tail.lock();
            let clean = &mut inner.layers.clean;
            for (span, dirty) in part {
                match dirty.addr {
                    Some(addr) => {
                        engine.segments.add_clean(addr, span.sectors());
                        clean.insert(*span, CleanExtent(addr), release_clean);
                    }
                    None => clean.remove(*span, release_clean),
                }
            }
        }
        engine.port.pause().await;
    }
    let gone = {
        let mut inner = tail.lock();
        // Of those the store says that they are damaged, and so does this host from now on, even if
        // the disk gives something for them later.
        for span in &slice.damaged {
            inner.layers.clean.remove(*span, release_clean);
        }
        inner.ages.stored(slice.last);
        let frozen = &mut inner.layers.frozen;
        let stored = frozen.partition_point(|layer| layer.last <= slice.last);
        frozen.drain(..stored).collect::<Vec<_>>()
    };
    let bytes = slice.merged.len() as u64 * 32;
    drop(
        engine
            .port
            .compute(ComputeKind::Release, bytes, move || drop(gone)),
    );
    // Only now does no dirty map name these bytes any more.
    let held = extents
        .iter()
        .filter_map(|(span, dirty)| dirty.addr.map(|addr| (addr, span.sectors())));
    let mut freed = 0;
    for (addr, sectors) in held.chain(slice.hidden.iter().copied()) {
        tail.release_dirty(&engine.segments, addr, sectors);
        freed += sectors * SECTOR_BYTES;
    }
    engine.space.on_published(freed);
}
