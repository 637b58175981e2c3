//! Takes snapshots into the log (S6), one or a group at one cut: as durable as a FLUSH when this ends.
//!
//! The top layer is frozen and a frame of the log records the snapshot; one frame has all of a group. The store is asked for nothing but, once in a
//! hold, the names that are taken. From that frame on the snapshot survives what a FLUSH survives: its point is held
//! until it has a root in the store, in this process or a later one, however long the store is away. It must never
//! be given up because the store fails. It is lost only with the log, or when another host goes on with the volume.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::log::frame::Record;
use crate::log::snapshot_record::{SnapshotRecord, record_bytes};
use crate::object::extensions::Labels;
use crate::object::{snapshot_of_root_key, snapshots_of};
use crate::request::points::KeptSnapshot;
use crate::request::tail::{Status, Tail};
use crate::store::forks::child::check_free;
use crate::store::forks::held_point::HeldPoint;
use crate::store::forks::kept_snapshots::find_named;
use crate::store::forks::snapshot_list::SnapshotInfo;
use crate::store::open::endings::end_reason;
use crate::store::roots::list_keys;
use crate::sync::atomic::Ordering;
use crate::units::VolumeId;

/// The part of a journal half that records of snapshots may take.
const JOURNAL_PART: u64 = 16;

/// A volume, and the name of the snapshot that is taken of it.
pub(super) type Member = (Arc<Tail>, String);

/// Takes snapshots of volumes as they are at one moment, now; durable when this ends, all of them or none. `None`: the log
/// has no place for them, so the caller must wait for the store.
pub(super) async fn take(
    engine: &Arc<Engine>,
    members: &[Member],
    labels: &Labels,
) -> Result<Option<Vec<SnapshotInfo>>, OpenError> {
    let (bytes, most) = (added_bytes(members, labels), most_bytes(engine));
    if bytes > most && members.len() > 1 {
        return Err(OpenError::Invalid(format!(
            "the records of this group take {bytes} bytes, and this log has room for {most} of all snapshots that wait for the \
             store: give the group fewer labels or fewer members, or the server a larger log (--log-size)"
        )));
    }
    if engine.poisoned.load(Ordering::Acquire) || !has_room(engine, bytes) {
        return Ok(None);
    }
    for (tail, name) in members {
        check_name_is_free(engine, tail, name).await?;
    }
    let tails: Vec<Arc<Tail>> = members.iter().map(|(tail, _)| Arc::clone(tail)).collect();
    let points = HeldPoint::take_together(engine, &tails).await?;
    if !has_room(engine, bytes) {
        // Others were taken meanwhile. From here to the records nobody else comes between.
        return Ok(None);
    }
    let unix_ms = engine.jobs.now().unix_ms;
    let kept = members.iter().zip(&points).map(|((tail, name), point)| {
        let kept = KeptSnapshot {
            record: SnapshotRecord {
                id: engine.next_volume_id(),
                is_fork: false,
                name: name.clone(),
                lsn: point.lsn,
                bytes: point.bytes,
                unix_ms,
                labels: labels.clone(),
            },
            is_durable: false,
            may_be_stored: false,
            failure: None,
            sent_unheld: false,
            base: None,
        };
        (Arc::clone(tail), kept)
    });
    let records = keep_durably(engine, kept.collect()).await?;
    let infos = records
        .iter()
        .map(|(tail, record)| SnapshotInfo::of_kept(tail.id().volume, record));
    Ok(Some(infos.collect()))
}

/// Has the log keep these, whose points are held: durable when this ends, all of them or none. They are due in the store
/// then.
pub(super) async fn keep_durably(
    engine: &Arc<Engine>,
    kept: Vec<(Arc<Tail>, KeptSnapshot)>,
) -> Result<Vec<(Arc<Tail>, SnapshotRecord)>, OpenError> {
    let mut records = Vec::new();
    for (tail, kept) in kept {
        records.push((Arc::clone(&tail), kept.record.clone()));
        tail.lock().points.keep(kept);
    }
    if !record_durably(engine, &records).await {
        for (tail, record) in &records {
            let forgotten = tail.lock().points.forget(record.id);
            drop(forgotten.map(|kept| HeldPoint::of_forgotten(tail, &kept)));
        }
        return Err(OpenError::Poisoned);
    }
    if let Some(error) = on_durable(&records) {
        withdraw(engine, &records).await;
        return Err(error);
    }
    for (tail, record) in &records {
        engine.due_snapshots.add(tail, record.id);
    }
    Ok(records)
}

/// A frame has them. The error, if the service of a volume has ended meanwhile.
fn on_durable(records: &[(Arc<Tail>, SnapshotRecord)]) -> Option<OpenError> {
    let mut error = None;
    for (tail, record) in records {
        let status = {
            let mut inner = tail.lock();
            if let Some(kept) = inner.points.find_kept(record.id) {
                kept.is_durable = true;
            }
            inner.status
        };
        if status != Status::Live {
            error = error.or_else(|| Some(end_reason(tail, status)));
        }
    }
    error
}

/// Of a group that is no whole one, the log keeps none whose volume is served: nobody was told of them.
async fn withdraw(engine: &Arc<Engine>, records: &[(Arc<Tail>, SnapshotRecord)]) {
    for (tail, record) in records {
        let forgotten = {
            let mut inner = tail.lock();
            let is_live = inner.status == Status::Live;
            is_live.then(|| inner.points.forget(record.id)).flatten()
        };
        if let Some(kept) = forgotten {
            record_removal(engine, tail, &kept).await;
        }
    }
}

/// Has one frame name the snapshots. False if the log is poisoned.
async fn record_durably(engine: &Arc<Engine>, records: &[(Arc<Tail>, SnapshotRecord)]) -> bool {
    let notes = records.iter().map(|(tail, record)| Record::Snapshot {
        tail: tail.id(),
        snapshot: record.clone(),
    });
    let round = engine.committer().note_records(engine, notes.collect());
    if canary::active!("snapshot_is_acknowledged_before_its_frame") {
        return true;
    }
    engine.committer().durable(engine, round).await
}

/// Bytes of the journal that the records of these snapshots will take.
fn added_bytes(members: &[Member], labels: &Labels) -> u64 {
    let names = members.iter().map(|(_, name)| name);
    names.map(|name| record_bytes(name, labels)).sum()
}

/// So many bytes of records of snapshots the log keeps at most.
fn most_bytes(engine: &Engine) -> u64 {
    engine.layout.half_bytes / JOURNAL_PART
}

/// Whether the log has room for the record of one more snapshot or fork of this name.
pub(super) fn has_room_for(engine: &Engine, name: &str, labels: &Labels) -> bool {
    has_room(engine, record_bytes(name, labels))
}

/// Whether the records of all snapshots that the log keeps leave the journal its room, with these `added_bytes`.
fn has_room(engine: &Engine, added_bytes: u64) -> bool {
    let kept = engine.tails().into_iter().map(|tail| {
        let inner = tail.lock();
        let kept = inner.points.kept().iter();
        kept.map(|kept| record_bytes(&kept.record.name, &kept.record.labels))
            .sum::<u64>()
    });
    kept.sum::<u64>() + added_bytes <= most_bytes(engine)
}

/// Refuses a name that is taken.
async fn check_name_is_free(engine: &Engine, tail: &Tail, name: &str) -> Result<(), OpenError> {
    if tail.snapshot_names.is_free(name).is_none() {
        let keys = list_keys(engine, &snapshots_of(tail.name())).await?;
        let names: Vec<String> = keys
            .iter()
            .filter_map(|key| snapshot_of_root_key(key))
            .collect();
        tail.snapshot_names
            .complete(names.iter().map(String::as_str));
    }
    if tail.snapshot_names.is_free(name) != Some(true) {
        check_free(engine, name).await?;
    }
    tail.snapshot_names.add(name);
    Ok(())
}

/// Deletes the snapshot of this name if only the log has it; false if the store has it, or may have it, by then. The
/// caller holds the lock of the name.
pub(super) async fn delete(
    engine: &Arc<Engine>,
    name: &str,
    id: Option<VolumeId>,
) -> Result<bool, OpenError> {
    let Some((tail, kept)) = find_named(engine, name) else {
        return Ok(false);
    };
    if id.is_some_and(|id| id != kept.record.id) {
        return Err(OpenError::NoSuchSnapshot(name.to_owned()));
    }
    let forgotten = {
        let mut inner = tail.lock();
        match inner.points.find_kept(kept.record.id) {
            Some(kept) if kept.may_be_stored => return Err(OpenError::Busy(name.to_owned())),
            Some(_) => inner.points.forget(kept.record.id),
            None => None,
        }
    };
    match forgotten {
        None => Ok(false),
        Some(kept) if record_removal(engine, &tail, &kept).await => Ok(true),
        Some(_) => Err(OpenError::Poisoned),
    }
}

/// Has a frame say that the log keeps the snapshot no more. Its point is held until then, so that a start before it finds
/// the snapshot whole. False if the log is poisoned.
pub(super) async fn record_removal(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    forgotten: &KeptSnapshot,
) -> bool {
    let _point = HeldPoint::of_forgotten(tail, forgotten);
    tail.upload.wake_all();
    let removed = Record::SnapshotRemoved {
        tail: tail.id(),
        snapshot: forgotten.record.id,
    };
    let round = engine.committer().note_records(engine, vec![removed]);
    engine.committer().durable(engine, round).await
}
