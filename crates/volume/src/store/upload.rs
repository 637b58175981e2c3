//! Bringing a tail to the store (S3): freeze, coalesce, write packs, then one root.
//!
//! Per volume one upload at a time. The order is what makes a crash anywhere harmless:
//!
//! 1. freeze the top layer as of a cut;
//! 2. wait until a frame up to the cut is durable, so that the local state never falls behind the
//!    store's and its LSNs are never given out twice;
//! 3. write packs: all of it unreferenced;
//! 4. replace the root by conditional update: the commit. An unknown outcome is read back; then the
//!    index gets what the packs hold;
//! 5. note it in the log, turn the uploaded extents into clean ones, and let the layers go.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::lock::lock;
use crate::log::frame::Record;
use crate::map::ExtentMap;
use crate::map::index::delta_of;
use crate::map::layers::{CleanExtent, DirtyExtent, LogAddr, merge};
use crate::object::pack::{Item, Slice};
use crate::request::tail::{EXTENTS_PER_LOCK, Status, Tail};
use crate::store::packing::{UploadedPack, write_packs};
use crate::store::roots::{commit_root, settled_head};
use crate::units::{Epoch, Lsn, Span};

/// Runs as long as the tail is live.
pub(crate) async fn run(engine: Arc<Engine>, tail: Arc<Tail>) {
    let upload = &tail.upload;
    let mut delay = engine.options.retry_ns;
    loop {
        let live = upload
            .changed
            .wait_until(|| {
                if tail.lock().status != Status::Live {
                    return Some(false);
                }
                let wanted = upload.wanted.load(Ordering::Acquire) > tail.stored().0;
                (wanted || upload.needs_grow()).then_some(true)
            })
            .await;
        if !live {
            return;
        }
        let begun_ns = engine.jobs.mono_ns();
        let result = upload_once(&engine, &tail).await;
        if let Err(error) = &result {
            abort_upload(&engine, &tail, error);
        }
        *lock(&upload.error) = result.as_ref().err().map(ToString::to_string);
        upload.set_refusal(result.as_ref().err().filter(|e| is_refusal(e)).cloned());
        upload.changed.wake_all();
        engine.request_reclaim();
        match result {
            Ok(()) => {
                delay = engine.options.retry_ns;
                let took_ns = engine.jobs.mono_ns().saturating_sub(begun_ns);
                upload.recovery_point.on_uploaded(took_ns);
            }
            Err(error) if is_final(&error) => return,
            Err(error) => {
                tracing::warn!(volume = tail.name(), %error, "an upload failed; trying again");
                engine.port.sleep(delay).await;
                delay = (delay * 2).min(engine.options.retry_ns * 30);
            }
        }
    }
}

/// Ends when everything up to `lsn` is in the store, or never will be.
pub(crate) async fn wait_stored(engine: &Engine, tail: &Tail, lsn: Lsn) -> Result<(), OpenError> {
    tail.upload.request(lsn);
    tail.upload
        .changed
        .wait_until(|| {
            if tail.stored() >= lsn {
                return Some(Ok(()));
            }
            // Only what durable frames cover is uploaded from a poisoned log (R10). Commits after
            // the last frame may hide some of it in the map: then it takes a restart, which goes
            // back to the last frame.
            if engine.poisoned.load(Ordering::Acquire) && tail.framed() < tail.newest() {
                return Some(Err(OpenError::Poisoned));
            }
            match tail.lock().status {
                Status::Live => tail.upload.refusal().map(Err),
                status => Some(Err(end_of(tail, status))),
            }
        })
        .await
}

/// Why a tail that is not live stores nothing more.
fn end_of(tail: &Tail, status: Status) -> OpenError {
    if status == Status::Broken {
        return broken_error(tail);
    }
    let refusal = tail.upload.refusal();
    refusal.unwrap_or_else(|| OpenError::Fenced(tail.name().to_owned()))
}

/// Another host's history stands in the store, or none that this host's continues: nothing is
/// completed here any more.
pub(super) fn is_final(error: &OpenError) -> bool {
    matches!(
        error,
        OpenError::Fenced(_) | OpenError::Deleted(_) | OpenError::StoreWentBack { .. }
    )
}

/// Nothing can be stored, and who waits for that must hear of it.
fn is_refusal(error: &OpenError) -> bool {
    is_final(error) || matches!(error, OpenError::RootMissing(_))
}

/// Ends when the volume has this size, in the store and here, or never will have.
pub(crate) async fn wait_grown(tail: &Tail, bytes: u64) -> Result<(), OpenError> {
    tail.upload.grow(bytes);
    let size = || {
        let inner = tail.lock();
        match inner.status {
            _ if inner.geometry.bytes >= bytes => Some(Ok(())),
            Status::Live => tail.upload.refusal().map(Err),
            status => Some(Err(end_of(tail, status))),
        }
    };
    tail.upload.changed.wait_until(size).await
}

fn broken_error(tail: &Tail) -> OpenError {
    OpenError::Corrupt(format!(
        "{}: the server failed inside a commit and serves it no more; restart the server: nothing \
         that was acknowledged is lost",
        tail.name()
    ))
}

/// Ends a failed upload: the frozen layers may be merged again.
fn abort_upload(engine: &Engine, tail: &Tail, error: &OpenError) {
    let mut inner = tail.lock();
    inner.uploading = false;
    if is_final(error) && inner.status == Status::Live {
        inner.status = Status::Fenced;
        drop(inner);
        tracing::error!(
            volume = tail.name(),
            %error,
            "fenced: nothing more of it is completed here"
        );
        engine.wake_parked();
    }
}

/// One upload.
async fn upload_once(engine: &Arc<Engine>, tail: &Arc<Tail>) -> Result<(), OpenError> {
    let head = tail.upload.head();
    let root = head
        .ok_or_else(|| OpenError::InUse(tail.name().to_owned()))?
        .root;
    tail.lock().uploading = true;
    let Some((cut, frozen)) = tail.freeze() else {
        return Err(broken_error(tail));
    };
    let round = engine.committer().next_round();
    if tail.framed() < cut && !engine.committer().durable(engine, round).await {
        return Err(OpenError::Poisoned);
    }
    let mut hidden = Vec::new();
    let merged = merge(frozen.iter().map(|layer| &*layer.map), |addr, sectors| {
        hidden.push((addr, sectors));
    });
    drop(frozen);
    let slice = Slice {
        origin: root.volume,
        epoch: if canary::active!("slices_of_one_epoch") {
            Epoch(0)
        } else {
            root.epoch
        },
        first: root.first,
        last: cut,
    };
    let written = write_packs(engine, tail, &slice, &merged).await?;
    publish(engine, tail, cut, written.packs).await?;
    tail.set_stored(cut);
    report_damage(tail, &written.damaged);
    mark_clean(engine, tail, cut, merged, hidden, &written.damaged);
    // The record spares recovery the uploaded extents, and lets their segments be reused.
    engine
        .committer()
        .record(engine, Record::Tail(tail.record()));
    Ok(())
}

/// The commit: a root that names the packs, and then the index that it describes.
async fn publish(
    engine: &Engine,
    tail: &Tail,
    cut: Lsn,
    packs: Vec<UploadedPack>,
) -> Result<(), OpenError> {
    let _turn = tail.upload.turn.take().await;
    let head = settled_head(engine, tail).await?;
    let mut root = head.root.clone();
    root.lsn = cut;
    root.bytes = root.bytes.max(tail.upload.grow.load(Ordering::Acquire));
    root.deltas.extend(packs.iter().map(|pack| pack.reference));
    let head = commit_root(engine, tail, root, &head).await?;
    // Only now: what is written beyond the old size must be in the volume for the next opener.
    tail.lock().geometry.bytes = head.root.bytes;
    // Until the frozen layers go, they hide all of it.
    let sections = packs.into_iter().flat_map(|pack| pack.sections);
    let items: Vec<Item> = sections.flat_map(|section| section.items).collect();
    for items in items.chunks(EXTENTS_PER_LOCK) {
        let mut inner = tail.lock();
        for item in items {
            let (span, delta) = delta_of(item);
            inner.index.apply_delta(span, delta);
        }
    }
    tail.lock().index.listed = head.root.deltas.len();
    tail.upload.set_head(head);
    Ok(())
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

/// The uploaded extents are clean now; the layers that held them are dropped.
fn mark_clean(
    engine: &Arc<Engine>,
    tail: &Tail,
    cut: Lsn,
    merged: ExtentMap<DirtyExtent>,
    hidden: Vec<(LogAddr, u64)>,
    damaged: &[Span],
) {
    let extents: Vec<(Span, DirtyExtent)> =
        merged.iter().map(|(span, dirty)| (span, *dirty)).collect();
    for part in extents.chunks(EXTENTS_PER_LOCK) {
        let mut inner = tail.lock();
        for (span, dirty) in part {
            let release_clean = |part: Span, old: CleanExtent| {
                engine.segments.release_clean(old.0, part.sectors());
            };
            match dirty.addr {
                Some(addr) => {
                    engine.segments.add_clean(addr, span.sectors());
                    inner
                        .layers
                        .clean
                        .insert(*span, CleanExtent(addr), release_clean);
                }
                None => inner.layers.clean.remove(*span, release_clean),
            }
        }
    }
    let gone = {
        let mut inner = tail.lock();
        // Of those the store says that they are damaged, and so does this host from now on, even if
        // the disk gives something for them later.
        for span in damaged {
            let release_clean = |part: Span, old: CleanExtent| {
                engine.segments.release_clean(old.0, part.sectors());
            };
            inner.layers.clean.remove(*span, release_clean);
        }
        inner.uploading = false;
        inner.ages.stored(cut);
        let keep = inner
            .layers
            .frozen
            .partition_point(|layer| layer.last <= cut);
        inner.layers.frozen.drain(..keep).collect::<Vec<_>>()
    };
    drop(gone);
    // Only now does no dirty map name these bytes any more.
    let born = extents
        .iter()
        .filter_map(|(span, d)| d.addr.map(|addr| (addr, span.sectors())));
    for (addr, sectors) in born.chain(hidden) {
        tail.release_dirty(&engine.segments, addr, sectors);
    }
}
