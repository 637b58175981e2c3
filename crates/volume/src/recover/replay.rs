//! What the frames say each tail holds: layers of the checkpoint, and the commits since.
//!
//! Memory only: commits are taken in their order, and a gap in that order is refused, never skipped. Which layers
//! come of them is for `layering` to say.

use std::collections::BTreeMap;

use crate::error::OpenError;
use crate::hostlog::notes::LogState;
use crate::log::entry::Entry;
use crate::log::frame::{Frame, Record};
use crate::log::ring::TailId;
use crate::log::session::Sessions;
use crate::log::snapshot_record::SnapshotRecord;
use crate::units::{Lsn, RootMark, VolumeSize};

/// What frames say of the log as a whole; the newest record counts.
#[derive(Debug, Default)]
pub(super) struct LogReplay {
    pub(super) sessions: Sessions,
    /// Where the host's log in the store stands.
    pub(super) state: LogState,
}

/// What was replayed of one tail so far.
#[derive(Debug, Default)]
pub(super) struct TailReplay {
    pub(super) name: String,
    pub(super) stored: Lsn,
    /// The newest root that a record names.
    pub(super) root: RootMark,
    pub(super) rescue: bool,
    /// Commits beyond the frames are in its ring.
    pub(super) ring: bool,
    /// A ring was lost, and nobody may have been told.
    pub(super) unreported_loss: bool,
    /// The last session continued it without a gap, and neither served it nor read its root.
    pub(super) untouched: bool,
    pub(super) size: VolumeSize,
    /// The ring of the last session, or the session's own region where it did not serve the tail, was there, and
    /// does not say that the store must be asked first.
    pub(super) is_unbroken: bool,
    pub(super) newest: Lsn,
    /// The newest commit that a frame has; none where that is the newest of all.
    pub(super) framed: Option<Lsn>,
    /// The layers of the checkpoint, the oldest first.
    pub(super) layers: Vec<CheckpointLayer>,
    /// The commits since, in their order.
    pub(super) commits: Vec<Entry>,
    /// Snapshots that the store does not have yet.
    pub(super) snapshots: Vec<SnapshotRecord>,
}

impl TailReplay {
    /// The points of its snapshots.
    pub(super) fn points(&self) -> Vec<Lsn> {
        if canary::active!("recovery_forgets_points") {
            return Vec::new();
        }
        self.snapshots.iter().map(|snapshot| snapshot.lsn).collect()
    }
}

/// A layer as a checkpoint wrote it: its extents do not overlap.
#[derive(Debug)]
pub(super) struct CheckpointLayer {
    /// The newest commit that it stands for.
    pub(super) last: Lsn,
    pub(super) extents: Vec<Entry>,
}

pub(super) fn replay_frame(
    replay: &mut BTreeMap<TailId, TailReplay>,
    frame: &Frame,
    checkpoint: bool,
    log: &mut LogReplay,
) -> Result<(), OpenError> {
    for record in &frame.records {
        match record {
            Record::Sessions(found) => log.sessions.clone_from(found),
            Record::LogState(found) => log.state.clone_from(found),
            Record::TailRemoved(tail) => {
                replay.remove(tail);
            }
            Record::Tail(record) => {
                let tail = replay.entry(record.tail).or_default();
                tail.name.clone_from(&record.name);
                tail.stored = tail.stored.max(record.stored);
                tail.newest = tail.newest.max(record.stored);
                if record.root.sequence >= tail.root.sequence {
                    tail.root = record.root;
                }
                tail.rescue |= record.rescue;
                tail.ring = record.ring;
                tail.unreported_loss = record.unreported_loss;
                tail.untouched = record.untouched;
                tail.size.grow_to(record.size);
                drop_stored(tail);
            }
            Record::Entries { tail, cut, entries } => {
                // A tail's record precedes its entries; entries of a tail that is gone are those
                // of a round that was cut before it went.
                let Some(tail) = replay.get_mut(tail) else {
                    continue;
                };
                replay_entries(tail, *cut, entries, checkpoint)?;
            }
            Record::Snapshot { tail, snapshot } => {
                if let Some(tail) = replay.get_mut(tail) {
                    tail.snapshots.retain(|other| other.id != snapshot.id);
                    tail.snapshots.push(snapshot.clone());
                }
            }
            Record::SnapshotRemoved { tail, snapshot } => {
                if let Some(tail) = replay.get_mut(tail) {
                    tail.snapshots.retain(|other| other.id != *snapshot);
                }
            }
        }
    }
    Ok(())
}

/// Entries of a checkpoint are extents, in any order of LSN; those of a round are commits.
fn replay_entries(
    tail: &mut TailReplay,
    cut: Lsn,
    entries: &[Entry],
    checkpoint: bool,
) -> Result<(), OpenError> {
    if checkpoint {
        replay_layer(tail, cut, entries);
        return Ok(());
    }
    for entry in entries {
        if entry.lsn <= tail.newest {
            continue;
        }
        if entry.lsn != tail.newest.next() {
            return Err(OpenError::Corrupt(format!(
                "the log of {} misses commits between LSN {} and {}",
                tail.name, tail.newest.0, entry.lsn.0
            )));
        }
        replay_commit(tail, entry);
    }
    if cut > tail.newest {
        return Err(OpenError::Corrupt(format!(
            "the log of {} misses commits up to LSN {}",
            tail.name, cut.0
        )));
    }
    Ok(())
}

/// A layer's entries may stand in several records, which then have the same cut.
fn replay_layer(tail: &mut TailReplay, cut: Lsn, entries: &[Entry]) {
    tail.newest = tail.newest.max(cut);
    match tail.layers.last_mut() {
        Some(layer) if layer.last == cut => layer.extents.extend(entries),
        _ => tail.layers.push(CheckpointLayer {
            last: cut,
            extents: entries.to_vec(),
        }),
    }
}

/// The commit after the newest one.
pub(super) fn replay_commit(tail: &mut TailReplay, entry: &Entry) {
    tail.newest = entry.lsn;
    tail.commits.push(*entry);
}

/// The store has everything up to `stored`; commits from before need not be kept.
fn drop_stored(tail: &mut TailReplay) {
    let stored = tail.stored;
    tail.layers.retain(|layer| layer.last > stored);
    let old = tail.commits.partition_point(|entry| entry.lsn <= stored);
    tail.commits.drain(..old);
}
