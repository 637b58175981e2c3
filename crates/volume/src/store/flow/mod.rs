//! The flow of slices: bringing a tail to the store (S3) without ever starting over.
//!
//! The history of a volume is cut into slices: frozen layers, of about [`Options::slice_bytes`] each.
//! Several of them are on their way at once: gathered from the log, compressed and put into packs side
//! by side, each pack by itself. A PUT that fails is repeated alone. What is ready is published strictly
//! in order ([`super::publish`]), so that the store always has a prefix of the history (S4), and each
//! publication frees its part of the log at once.
//!
//! Two procedures per volume, both for as long as it is live: one cuts what was asked for into slices,
//! the other publishes. A job per slice lies between them. Nothing here decides *when* something is
//! asked for: that is the bookkeeping's (age and pressure), and that of whoever waits for the store.
//!
//! [`Options::slice_bytes`]: crate::options::Options::slice_bytes

pub(crate) mod budget;
mod compute;
mod log_reads;
mod packing;
mod repeats;
mod slice_job;
pub(crate) mod slices;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::request::tail::{NotLive, Status, Tail};
use crate::store::publish::publish;
use crate::units::Lsn;

/// Starts the flow of a volume that goes live.
pub(crate) fn start(engine: &Arc<Engine>, tail: &Arc<Tail>) {
    let cutter = cut_slices(Arc::clone(engine), Arc::clone(tail));
    engine.jobs.spawn(cutter);
    let publisher = publish_slices(Arc::clone(engine), Arc::clone(tail));
    engine.jobs.spawn(publisher);
}

/// Cuts slices as long as the tail is live and more is wanted than is on its way.
async fn cut_slices(engine: Arc<Engine>, tail: Arc<Tail>) {
    let upload = &tail.upload;
    loop {
        let cut = upload
            .changed
            .wait_until(|| {
                if !upload.has_room(engine.options.cut_bytes()) {
                    return (tail.lock().status != Status::Live).then_some(None);
                }
                // Of a poisoned log only what durable frames cover goes to the store (R10).
                let most = match engine.poisoned.load(Ordering::Acquire) {
                    true => tail.framed(),
                    false => Lsn(u64::MAX),
                };
                match tail.cut_slice(upload.wanted(), most, engine.jobs.mono_ns()) {
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

/// Publishes what is ready, and the size that the volume is to have, as long as the tail is live.
async fn publish_slices(engine: Arc<Engine>, tail: Arc<Tail>) {
    let upload = &tail.upload;
    let mut delay = engine.options.retry_ns;
    loop {
        let live = upload
            .changed
            .wait_until(|| {
                if tail.lock().status != Status::Live {
                    return Some(false);
                }
                (upload.has_publishable() || upload.needs_grow()).then_some(true)
            })
            .await;
        if !live {
            return;
        }
        let result = publish(&engine, &tail, &upload.publishable()).await;
        let error = result.as_ref().err();
        upload.set_error(error);
        upload.on_store_answer(error.is_some());
        upload.set_refusal(error.filter(|error| is_refusal(error)).cloned());
        if let Some(error) = error.filter(|error| is_final(error)) {
            fence(&engine, &tail, error);
        }
        upload.wake_all();
        engine.request_reclaim();
        match result {
            Ok(()) => delay = engine.options.retry_ns,
            Err(error) if is_final(&error) => return,
            Err(error) => {
                let volume = tail.name();
                tracing::warn!(volume, %error, "publishing slices failed and will be tried again");
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

/// The volume is another host's, or none, which was found out without a commit.
pub(crate) fn end(engine: &Engine, tail: &Tail, error: &OpenError) {
    // Whoever found out first has said why; those behind know only that it is served no more.
    let is_live = tail.lock().status == Status::Live;
    if !is_live && !canary::active!("first_reason_is_forgotten") {
        return;
    }
    tail.upload.set_error(Some(error));
    tail.upload.set_refusal(Some(error.clone()));
    fence(engine, tail, error);
    tail.upload.wake_all();
}

/// Nothing more of the volume is completed here; its layers, kept for rescue, may be merged again.
fn fence(engine: &Engine, tail: &Tail, error: &OpenError) {
    let mut inner = tail.lock();
    (inner.cut, inner.merged) = (Lsn::ZERO, Lsn::ZERO);
    if inner.status != Status::Live {
        return;
    }
    inner.status = Status::Fenced;
    drop(inner);
    tracing::error!(
        volume = tail.name(),
        %error,
        "fenced: nothing more of it is completed here"
    );
    engine.wake_parked();
}
