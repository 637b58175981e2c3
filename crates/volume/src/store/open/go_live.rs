//! How a tail begins to serve: its ring, its record in the log, its uploads.
//!
//! It must never make a ring anew that has commits which no frame has, and must not let a commit into a ring that
//! no frame names, because recovery reads only the rings that frames name.

use std::sync::Arc;

use blkmq::io::Geometry;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::log::frame::Record;
use crate::log::ring::{Ring, TailId};
use crate::map::index::Index;
use crate::map::layers::{BaseLayers, LogAddr};
use crate::object::root::Root;
use crate::request::tail::{Inner, Status, Tail};
use crate::request::watermark::CommitAges;
use crate::store::flow::upload_state::KnownRoot;
use crate::store::fold::index_blocks;
use crate::store::open::endings;
use crate::store::{flow, fold};
use crate::sync::atomic::Ordering;
use crate::units::{Lsn, VolumeSize};

/// Opens an empty ring for a tail. `None` if the log is poisoned: nothing will be committed, and the old ring
/// stays, because it says that the log is poisoned.
pub(in crate::store) fn open_ring(
    engine: &Engine,
    tail: TailId,
    entries: u32,
) -> Result<Option<Ring>, OpenError> {
    if engine.poisoned.load(Ordering::Acquire) {
        return Ok(None);
    }
    let ring = engine.make_ring(Some(tail), entries);
    ring.map(Some).map_err(OpenError::Disk)
}

/// A new ring for a tail that is to serve; none if it has one. That one a frame names, and it may have commits that no
/// frame has: whatever goes on meanwhile has to find it.
pub(in crate::store) fn missing_ring(
    engine: &Engine,
    tail: &Tail,
) -> Result<Option<Ring>, OpenError> {
    // Nobody commits to one that is maintained.
    if tail.has_ring() || tail.is_for_maintenance() {
        return Ok(None);
    }
    open_ring(engine, tail.id(), engine.options.ring_entries)
}

/// Makes the rings of tails that are about to serve, so that the first checkpoint names them and no round has to.
pub(crate) fn make_rings_early(engine: &Engine) {
    for tail in engine.tails() {
        let serves = tail.is_unbroken() && !tail.is_rescue() && tail.size().block > 0;
        if !serves {
            continue;
        }
        match open_ring(engine, tail.id(), engine.options.ring_entries) {
            Ok(ring) => tail.lock().ring = ring,
            // Whoever opens the volume tries again, and hears why.
            Err(error) => tracing::debug!(volume = tail.name(), %error, "no ring yet"),
        }
    }
}

/// The geometry that clients see of a volume of this size.
pub(in crate::store) fn geometry_of(size: VolumeSize) -> Geometry {
    Geometry {
        bytes: size.bytes,
        logical_block: size.block,
        physical_block: 4096,
        read_only: false,
    }
}

/// Makes the tail live: opens its ring, has the log record it, and starts its uploads. A tail that serves
/// unchecked has a ring, and keeps serving meanwhile.
pub(in crate::store) async fn go_live(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    head: KnownRoot,
    index: Index,
) -> Result<(), OpenError> {
    let (volume, epoch, size) = (head.root.volume, head.root.epoch, head.root.size());
    let (stale, base) = lay_over(engine, tail, &head.root, index)?;
    if base.is_some() {
        // Segments that it kept may be used again.
        drop(base);
        engine.request_reclaim();
    }
    for (addr, sectors) in stale {
        tail.release_dirty(&engine.segments, addr, sectors);
    }
    tail.set_stored(head.root.lsn);
    tail.set_size(size);
    tail.upload.set_head(head);
    tail.checked.wake_all();
    engine.add_tail(Arc::clone(tail));
    if engine.poisoned.load(Ordering::Acquire) {
        // The log may have been poisoned after the ring was made and before the tail was registered.
        tail.poison_ring();
    }
    note_tail(engine, tail).await?;
    engine
        .host_log
        .attach(volume, tail.name().to_owned(), epoch);
    let ended = {
        let mut inner = tail.lock();
        match inner.status {
            Status::Dormant | Status::Unchecked => {
                // The log has a record of the tail by now.
                inner.geometry = geometry_of(size);
                inner.status = Status::Live;
                None
            }
            status => Some(status),
        }
    };
    if let Some(status) = ended {
        engine.host_log.detach(volume);
        return Err(endings::end_reason(tail, status));
    }
    // A host that stops sets the stop first and then ends the live tails, so either this check or that loop ends
    // this tail.
    if let Some(stop) = engine.host_log.stop_reason()
        && !canary::active!("stopped_host_opens_volumes")
    {
        let error = OpenError::HostStopped(stop);
        endings::end(engine, tail, &error);
        return Err(error);
    }
    // The age of these commits is not known, and this process may live as shortly as the one before.
    tail.upload.request_now(tail.newest());
    flow::start(engine, tail);
    engine.due_snapshots.add_all(tail);
    let shared = || (Arc::clone(engine), Arc::clone(tail));
    let (folding, loading) = (shared(), shared());
    engine.jobs.spawn(fold::run(folding.0, folding.1));
    engine
        .jobs
        .spawn(index_blocks::load_nodes(loading.0, loading.1));
    Ok(())
}

/// Places in the log whose content the store has by now, and what a fork read below its layers until now.
type Replaced = (Vec<(LogAddr, u64)>, Option<Arc<BaseLayers>>);

/// Lays the tail's layers over the index.
fn lay_over(
    engine: &Engine,
    tail: &Tail,
    root: &Root,
    index: Index,
) -> Result<Replaced, OpenError> {
    let status = tail.lock().status;
    let (serves, ring) = match status {
        // Its ring has commits that no frame has, so it stays.
        Status::Unchecked => (true, None),
        Status::Dormant => {
            let ring = missing_ring(engine, tail)?;
            (false, ring)
        }
        status => return Err(endings::end_reason(tail, status)),
    };
    let mut inner = tail.lock();
    // Recovery has dropped what the log knew to be stored, so a serving tail need not be walked if nothing was
    // stored since.
    let stale = match serves && root.lsn <= tail.stored_lsn() {
        true => Vec::new(),
        false => inner.layers.drop_stored(root.lsn),
    };
    if root.lsn > inner.newest {
        inner.newest = root.lsn;
        // The log is told with the tail's record that the store has all of them.
        tail.set_framed(root.lsn);
    }
    let base = inner.layers.base.take();
    inner.index = index;
    inner.cut = root.lsn;
    if serves {
        inner.ages.on_stored(root.lsn);
    } else {
        begin_serving(engine, &mut inner, root.lsn, ring);
        inner.ring.iter().for_each(Ring::on_checked);
    }
    Ok((stale, base))
}

/// Lets the tail take requests, with a `new` ring if it had none. All of its commits are in frames or in the ring, and the
/// store has those up to `stored`.
pub(in crate::store) fn begin_serving(
    engine: &Engine,
    inner: &mut Inner,
    stored: Lsn,
    new: Option<Ring>,
) {
    inner.ages = CommitAges::default();
    if inner.newest > stored {
        inner
            .ages
            .on_acknowledged(stored.next(), engine.jobs.mono_ns());
    }
    if new.is_some() {
        inner.ring = new;
    }
    inner.slice_bytes = engine.options.slice_bytes();
}

/// Has a frame name the tail's ring. Recovery reads the rings that frames name, so no commit may enter the ring
/// before.
pub(in crate::store) async fn note_tail(
    engine: &Arc<Engine>,
    tail: &Tail,
) -> Result<(), OpenError> {
    if tail.is_for_maintenance() {
        return Ok(());
    }
    if engine.committer().is_poisoned() {
        tail.require_check();
        // It has no ring, and the log says still that nobody has touched it.
        engine.require_check_of_untouched();
        return Ok(());
    }
    // The record is queued first: a round that starts meanwhile may be waited for needlessly, but never too
    // short.
    engine
        .committer()
        .record(engine, Record::Tail(tail.record()));
    let round = engine.committer().next_round();
    match engine.committer().durable(engine, round).await {
        true => Ok(()),
        false => Err(OpenError::Poisoned),
    }
}
