//! Brings the snapshots and forks that the log keeps to the store.
//!
//! A snapshot has its identity from the beginning, so whoever comes after a crash knows its root, or its tombstone,
//! when he sees it. The log keeps it until the store has it; what fails is tried again for as long as the volume is
//! live, and by the next start that opens it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::log::frame::Record;
use crate::log::snapshot_record::SnapshotRecord;
use crate::object::SNAPSHOT_SIGN;
use crate::request::points::KeptSnapshot;
use crate::request::tail::{Status, Tail};
use crate::store::flow;
use crate::store::forks::child::ChildSpec;
use crate::store::forks::keep::record_removal;
use crate::store::forks::kept_forks::name_is_taken;
use crate::store::forks::kept_snapshots::{find, is_kept};
use crate::store::forks::live_parent::{PointInTime, create_at};
use crate::store::roots::read_any_root;
use crate::units::VolumeId;

/// Bytes of the name of a snapshot that are left when it gets another one.
const RENAMED_BYTES_MAX: usize = 48;

/// Brings to the store what is due; never ends.
pub(crate) async fn run(engine: Arc<Engine>) {
    loop {
        let (tail, id) = engine.due_snapshots.next().await;
        engine.jobs.spawn(bring(Arc::clone(&engine), tail, id));
    }
}

/// Tries until the snapshot has a root, or the log keeps it no more.
async fn bring(engine: Arc<Engine>, tail: Arc<Tail>, id: VolumeId) {
    let mut delay = engine.options.retry_ns;
    while let Err(error) = bring_once(&engine, &tail, id).await {
        let failure = error.to_string();
        let is_news = {
            let mut inner = tail.lock();
            if inner.status != Status::Live {
                // Who ended the service has said why, and a later start of it goes on.
                return;
            }
            let kept = inner.points.find_kept(id);
            kept.is_some_and(|kept| kept.failure.replace(failure) != kept.failure)
        };
        if is_news {
            tracing::warn!(volume = tail.name(), %error, "a snapshot is not in the store yet; trying again");
        }
        engine.port.sleep(delay).await;
        delay = (delay * 2).min(engine.options.retry_ns * 30);
    }
}

async fn bring_once(engine: &Arc<Engine>, tail: &Arc<Tail>, id: VolumeId) -> Result<(), OpenError> {
    let Some(KeptSnapshot { record, .. }) = find(tail, id) else {
        return Ok(());
    };
    wait_content_stored(engine, tail, &record).await?;
    // It may have been deleted meanwhile. From here on it is deleted only once the store has it.
    let may_be_stored = match tail.lock().points.find_kept(id) {
        Some(kept) => std::mem::replace(&mut kept.may_be_stored, true),
        None => return Ok(()),
    };
    // Creating it again would do no harm, and leave a pin behind.
    if may_be_stored {
        match read_any_root(engine, &record.name).await {
            // Its root, or what was left when it was deleted.
            Ok(head) if head.root.volume == id => {
                on_stored(engine, tail, id).await;
                return Ok(());
            }
            Ok(_) | Err(OpenError::NoSuchVolume(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let spec = ChildSpec {
        name: record.name.clone(),
        labels: (!record.is_fork).then(|| record.labels.clone()),
        id: (!canary::active!("kept_snapshot_has_no_identity")).then_some(id),
        copied_unix_ms: None,
        may_be_served: record.is_fork,
        is_repeated: may_be_stored,
    };
    let at = PointInTime {
        lsn: record.lsn,
        bytes: record.bytes,
        unix_ms: record.unix_ms,
    };
    let turn = tail.upload.turn.take().await;
    let created = create_at(engine, tail, at, &spec).await;
    drop(turn);
    match created {
        Ok(_) => on_stored(engine, tail, id).await,
        Err(OpenError::Exists(name)) if record.is_fork => {
            let error = name_is_taken(&name);
            tell_its_users(engine, id, &error);
            return Err(error);
        }
        Err(error @ OpenError::Exists(_)) => {
            rename(engine, tail, id);
            return Err(error);
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Whoever waits for a fork that is open hears what has to be done first.
fn tell_its_users(engine: &Engine, id: VolumeId, error: &OpenError) {
    let is_it = |tail: &&Arc<Tail>| tail.id().volume == id && tail.lock().status.serves();
    for tail in engine.tails().iter().filter(is_it) {
        tail.upload.set_error(Some(error));
        tail.upload.set_refusal(Some(error.clone()));
        tail.upload.wake_all();
    }
}

/// Waits until the store has everything up to the point, or the log keeps the snapshot no more.
async fn wait_content_stored(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    record: &SnapshotRecord,
) -> Result<(), OpenError> {
    let mut stored = pin!(flow::wait_stored(engine, tail, record.lsn));
    let is_gone = || (!is_kept(tail, record.id)).then_some(());
    let mut gone = pin!(tail.upload.changed.wait_until(is_gone));
    std::future::poll_fn(|cx| match gone.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(Ok(())),
        Poll::Pending => stored.as_mut().poll(cx),
    })
    .await
}

/// The snapshot has its root: the log needs to keep it no more.
async fn on_stored(engine: &Arc<Engine>, tail: &Arc<Tail>, id: VolumeId) {
    let forgotten = tail.lock().points.forget(id);
    if let Some(kept) = forgotten {
        // On a poisoned log the next start finds its root.
        record_removal(engine, tail, &kept).await;
    }
}

/// Gives the snapshot another name, because the store has one of its name that it did not list: nothing that was
/// acknowledged may be lost for a name.
fn rename(engine: &Arc<Engine>, tail: &Arc<Tail>, id: VolumeId) {
    let mut inner = tail.lock();
    let Some(kept) = inner.points.find_kept(id) else {
        return;
    };
    let taken = kept.record.name.clone();
    let (volume, snapshot) = taken.split_once(SNAPSHOT_SIGN).unwrap_or((&taken, ""));
    let snapshot: String = snapshot.chars().take(RENAMED_BYTES_MAX).collect();
    let [a, b, c, d, ..] = id.0;
    kept.record.name = format!("{volume}{SNAPSHOT_SIGN}{snapshot}.{a:02x}{b:02x}{c:02x}{d:02x}");
    tracing::error!(
        snapshot = taken,
        name = kept.record.name,
        "the store has another snapshot of that name, which it did not list before: this one has another name now"
    );
    let renamed = Record::Snapshot {
        tail: tail.id(),
        snapshot: kept.record.clone(),
    };
    drop(inner);
    engine.committer().record(engine, renamed);
}
