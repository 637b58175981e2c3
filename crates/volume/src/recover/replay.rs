//! What the frames say each tail holds.
//!
//! Memory only: the map of one tail is rebuilt in the order of commit, and a gap in that order is
//! refused, never skipped.

use std::collections::BTreeMap;

use crate::error::OpenError;
use crate::hostlog::notes::LogState;
use crate::log::entry::Entry;
use crate::log::frame::{Frame, Record};
use crate::log::ring::TailId;
use crate::log::session::Sessions;
use crate::map::layers::DirtyExtent;
use crate::map::{ExtentMap, SectorRun};
use crate::units::{Lsn, RootMark, Span};

/// A tail as recovered.
#[derive(Debug)]
pub(crate) struct RecoveredTail {
    pub(crate) name: String,
    pub(crate) stored: Lsn,
    pub(crate) root: RootMark,
    pub(crate) rescue: bool,
    /// Its ring was lost, and nobody may have been told.
    pub(crate) unreported_loss: bool,
    pub(crate) newest: Lsn,
    pub(crate) map: ExtentMap<DirtyExtent>,
}

/// A dirty extent with the generation it was recorded under.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplayedExtent {
    pub(super) dirty: DirtyExtent,
    pub(super) generation: u32,
}

impl SectorRun for ReplayedExtent {
    fn skip(&self, sectors: u64) -> ReplayedExtent {
        ReplayedExtent {
            dirty: self.dirty.skip(sectors),
            generation: self.generation,
        }
    }
}

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
    stored: Lsn,
    /// The newest root that a record names.
    root: RootMark,
    pub(super) rescue: bool,
    /// Commits beyond the frames are in its ring.
    pub(super) ring: bool,
    /// A ring was lost, and nobody may have been told.
    pub(super) unreported_loss: bool,
    pub(super) newest: Lsn,
    pub(super) map: ExtentMap<ReplayedExtent>,
}

pub(super) fn finish(replay: TailReplay) -> RecoveredTail {
    let mut map = ExtentMap::default();
    for (span, extent) in replay.map.iter() {
        map.insert(span, extent.dirty, |_, _| {});
    }
    let TailReplay {
        name,
        stored,
        root,
        rescue,
        unreported_loss,
        newest,
        ..
    } = replay;
    RecoveredTail {
        name,
        stored,
        root,
        rescue,
        unreported_loss,
        newest,
        map,
    }
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
    for entry in entries {
        if !checkpoint {
            if entry.lsn <= tail.newest {
                continue;
            }
            if entry.lsn != tail.newest.next() {
                return Err(OpenError::Corrupt(format!(
                    "the log of {} misses commits between LSN {} and {}",
                    tail.name, tail.newest.0, entry.lsn.0
                )));
            }
            tail.newest = entry.lsn;
        }
        apply(tail, entry);
    }
    if !checkpoint && cut > tail.newest {
        return Err(OpenError::Corrupt(format!(
            "the log of {} misses commits up to LSN {}",
            tail.name, cut.0
        )));
    }
    tail.newest = tail.newest.max(cut);
    Ok(())
}

pub(super) fn apply(tail: &mut TailReplay, entry: &Entry) {
    let dirty = DirtyExtent {
        addr: entry.addr,
        lsn: entry.lsn,
    };
    tail.map.insert(
        entry.span,
        ReplayedExtent {
            dirty,
            generation: entry.generation,
        },
        |_, _| {},
    );
}

/// The store has everything up to `stored`; extents from before need not be kept.
fn drop_stored(tail: &mut TailReplay) {
    let stored = tail.stored;
    let old: Vec<Span> = tail
        .map
        .iter()
        .filter(|(_, extent)| extent.dirty.lsn <= stored)
        .map(|(span, _)| span)
        .collect();
    for span in old {
        tail.map.remove(span, |_, _| {});
    }
}
