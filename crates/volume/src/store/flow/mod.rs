//! The flow of slices: bringing a tail to the store (S3) without ever starting over.
//!
//! The history of a volume is cut into slices: frozen layers, of about [`Options::slice_bytes`] each.
//! Several of them are on their way at once: gathered from the log, compressed and put into packs side
//! by side, each pack by itself. A PUT that fails is repeated alone. What is ready is published strictly
//! in order ([`publish`]), so that the store always has a prefix of the history (S4), and each
//! publication frees its part of the log at once.
//!
//! A procedure per volume, for as long as it is live, cuts what was asked for into slices; a job per slice
//! brings it to the store; one procedure of the host publishes what is ready of all volumes. Nothing in the flow
//! decides *when* something is asked for: that is the bookkeeping's (age and pressure, by what
//! [`recovery_point`] computes), and that of whoever waits for the store.
//!
//! [`Options::slice_bytes`]: crate::options::Options::slice_bytes

pub(crate) mod budget;
pub(in crate::store) mod cadence;
mod compute;
pub(crate) mod fork_tail;
mod log_content;
mod log_reads;
mod pack_plan;
mod packing;
pub(crate) mod publish;
pub(crate) mod recovery_point;
mod repeats;
pub(in crate::store) mod reupload;
mod shared_packs;
pub(crate) mod shared_packs_state;
mod slice_job;
pub(crate) mod slices;
pub(crate) mod upload_state;

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::log::merge::merge_before_cut;
use crate::request::tail::{NotLive, Status, Tail};
use crate::store::open::endings::{end, end_reason, is_final, is_refusal};
use crate::store::roots::{begin_update, finish_update};
use crate::sync::atomic::Ordering;
use crate::units::Lsn;

/// Starts the flow of a volume that goes live.
pub(crate) fn start(engine: &Arc<Engine>, tail: &Arc<Tail>) {
    let cutter = cut_slices(Arc::clone(engine), Arc::clone(tail));
    engine.jobs.spawn(cutter);
    engine
        .jobs
        .spawn(grow(Arc::clone(engine), Arc::clone(tail)));
}

/// Cuts slices as long as the tail is live and more is wanted than is on its way.
async fn cut_slices(engine: Arc<Engine>, tail: Arc<Tail>) {
    let upload = &tail.upload;
    // Of a poisoned log only what durable frames cover goes to the store (R10).
    let most = || match engine.poisoned.load(Ordering::Acquire) {
        true => tail.framed_lsn(),
        false => Lsn(u64::MAX),
    };
    loop {
        let is_live = upload.changed.wait_until(|| {
            let inner = tail.lock();
            if inner.status != Status::Live {
                return Some(false);
            }
            let is_wanted = upload.requested_lsn().min(most()) > inner.cut;
            (is_wanted && upload.has_room(engine.options.cut_bytes())).then_some(true)
        });
        if !is_live.await {
            return;
        }
        merge_hot_sets(&engine, &tail).await;
        let cut = upload
            .changed
            .wait_until(|| {
                if !upload.has_room(engine.options.cut_bytes()) {
                    return (tail.lock().status != Status::Live).then_some(None);
                }
                let most = most();
                match tail.cut_slice(upload.requested_lsn(), most, engine.jobs.mono_ns()) {
                    Ok(cut) => cut.map(Some),
                    Err(NotLive) => Some(None),
                }
            })
            .await;
        let Some(cut) = cut else {
            return;
        };
        let bytes = cut.layers.iter().map(|layer| layer.bytes).sum();
        upload.on_slice_cut(cut.last, bytes);
        let job = slice_job::run(Arc::clone(&engine), Arc::clone(&tail), cut);
        engine.jobs.spawn(job);
    }
}

/// Makes one layer of those that hide much of each other, before a slice is cut of them. Only of what durable frames
/// cover: if the log is poisoned nothing else may be stored (R10), and of a layer that reaches beyond it no slice
/// could be cut. What is written meanwhile is another slice's: a hot set that grows as fast as it is merged
/// does not put off the cut.
async fn merge_hot_sets(engine: &Arc<Engine>, tail: &Arc<Tail>) {
    let last = {
        let inner = tail.lock();
        match inner.loose_layers() {
            [_, .., newest] => newest.last,
            _ => return,
        }
    };
    // A slice waits for this round in any case.
    let round = engine.committer().next_round();
    let covered = tail.framed_lsn() >= last || engine.committer().durable(engine, round).await;
    let most = match covered {
        _ if canary::active!("cuts_wait_for_a_hot_set") => Lsn(u64::MAX),
        true => last,
        false => tail.framed_lsn(),
    };
    while merge_before_cut(engine, tail, most).await {}
}

/// Brings the size that the volume is to have to its root, as long as the tail is live.
async fn grow(engine: Arc<Engine>, tail: Arc<Tail>) {
    let upload = &tail.upload;
    let mut delay = engine.options.retry_ns;
    loop {
        let live = upload
            .changed
            .wait_until(|| {
                if tail.lock().status != Status::Live {
                    return Some(false);
                }
                upload.needs_grow().then_some(true)
            })
            .await;
        if !live {
            return;
        }
        let result = {
            let _turn = upload.turn.take().await;
            // A close that had the turn before may have ended the epoch, and its root may be there unseen.
            if tail.lock().status != Status::Live {
                return;
            }
            update_root(&engine, &tail).await
        };
        let error = result.as_ref().err();
        if error.is_some_and(is_final) {
            tail.require_check();
        }
        upload.set_error(error);
        upload.set_refusal(error.filter(|error| is_refusal(error)).cloned());
        if let Some(error) = error.filter(|error| is_final(error)) {
            end(&engine, &tail, error);
        }
        upload.wake_all();
        if let Err(error) = result {
            let volume = tail.name();
            tracing::warn!(volume, %error, "growing the volume failed and will be tried again");
            engine.port.sleep(delay).await;
            delay = (delay * 2).min(engine.options.retry_ns * 30);
        }
    }
}

/// All that is stored, and the volume's size.
async fn update_root(engine: &Arc<Engine>, tail: &Tail) -> Result<(), OpenError> {
    let update = begin_update(engine, tail).await?;
    finish_update(engine, tail, &update).await.map(drop)
}

/// Ends when everything up to `lsn` is in the store, or never will be.
pub(crate) async fn wait_stored(engine: &Engine, tail: &Tail, lsn: Lsn) -> Result<(), OpenError> {
    if tail.upload.request_now(lsn) {
        engine.host_log.wake();
    }
    tail.upload
        .changed
        .wait_until(|| {
            let status = tail.lock().status;
            // What was called stored before may be another history's by now,
            let is_unchecked =
                status == Status::Unchecked && !canary::active!("unchecked_is_called_stored");
            // or the store may have lost it.
            let has_ended = status == Status::Fenced && !canary::active!("ended_is_called_stored");
            if tail.stored_lsn() >= lsn && !is_unchecked && !has_ended {
                return Some(Ok(()));
            }
            // Only what durable frames cover is uploaded from a poisoned log (R10). Commits after
            // the last frame may hide some of it in the map: then it takes a restart, which goes
            // back to the last frame.
            if engine.poisoned.load(Ordering::Acquire) && tail.framed_lsn() < tail.newest() {
                return Some(Err(OpenError::Poisoned));
            }
            match status {
                Status::Live | Status::Unchecked => tail.upload.refusal().map(Err),
                // The record that ends its epoch is on its way, and makes this stored.
                Status::Closed if tail.upload.is_kept_for_end() => None,
                status => Some(Err(end_reason(tail, status))),
            }
        })
        .await
}

/// Ends when the log keeps none of the volume's snapshots any more.
pub(in crate::store) async fn wait_snapshots_stored(tail: &Tail) -> Result<(), OpenError> {
    let are_stored = || {
        let inner = tail.lock();
        match inner.status {
            _ if inner.points.kept().is_empty() => Some(Ok(())),
            Status::Live | Status::Unchecked => tail.upload.refusal().map(Err),
            status => Some(Err(end_reason(tail, status))),
        }
    };
    tail.upload.changed.wait_until(are_stored).await
}

/// Ends when the volume has this size, in the store and here, or never will have.
pub(crate) async fn wait_grown(tail: &Tail, bytes: u64) -> Result<(), OpenError> {
    tail.upload.grow(bytes);
    let size = || {
        let inner = tail.lock();
        match inner.status {
            _ if inner.geometry.bytes >= bytes => Some(Ok(())),
            Status::Live | Status::Unchecked => tail.upload.refusal().map(Err),
            status => Some(Err(end_reason(tail, status))),
        }
    };
    tail.upload.changed.wait_until(size).await
}
