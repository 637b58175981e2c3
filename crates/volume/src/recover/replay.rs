//! What the frames, and then the rings, say each tail holds.
//!
//! Memory only: the map of one tail is rebuilt in the order of commit, and a gap in that order is
//! refused, never skipped.

use std::collections::BTreeMap;

use super::report::RecoveryReport;
use crate::error::OpenError;
use crate::log::entry::Entry;
use crate::log::frame::{Frame, Record};
use crate::log::ring::{Ring, RingMount, Rings, TailId};
use crate::map::layers::DirtyExtent;
use crate::map::{ExtentMap, SectorRun};
use crate::units::{HostId, Lsn, Span};

/// A tail as recovered.
#[derive(Debug)]
pub(crate) struct RecoveredTail {
    pub(crate) name: String,
    pub(crate) stored: Lsn,
    pub(crate) rescue: bool,
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

/// What was replayed of one tail so far.
#[derive(Debug, Default)]
pub(super) struct TailReplay {
    name: String,
    stored: Lsn,
    rescue: bool,
    newest: Lsn,
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
        rescue,
        newest,
        ..
    } = replay;
    RecoveredTail {
        name,
        stored,
        rescue,
        newest,
        map,
    }
}

pub(super) fn replay_frame(
    replay: &mut BTreeMap<TailId, TailReplay>,
    frame: &Frame,
    checkpoint: bool,
    mount: &mut Option<u64>,
) -> Result<(), OpenError> {
    for record in &frame.records {
        match record {
            Record::RingMount(found) => *mount = Some(*found),
            Record::TailRemoved(tail) => {
                replay.remove(tail);
            }
            Record::Tail(record) => {
                let tail = replay.entry(record.tail).or_default();
                tail.name.clone_from(&record.name);
                tail.stored = tail.stored.max(record.stored);
                tail.newest = tail.newest.max(record.stored);
                tail.rescue |= record.rescue;
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

fn apply(tail: &mut TailReplay, entry: &Entry) {
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

/// The ring of a tail as a dead process of this boot left it.
fn existing_ring(rings: &dyn Rings, tail: TailId, host: HostId, mount: RingMount) -> Option<Ring> {
    Ring::open_existing(rings.find(tail)?, tail, host, mount)
}

/// Whether any ring says that the log was poisoned: the dead process may not have got as far as
/// to say so on disk.
pub(super) fn has_poisoned_ring(
    replay: &BTreeMap<TailId, TailReplay>,
    rings: &dyn Rings,
    host: HostId,
    mount: RingMount,
) -> bool {
    replay.keys().any(|id| {
        let ring = existing_ring(rings, *id, host, mount);
        ring.is_some_and(|ring| ring.is_poisoned())
    })
}

/// The rings of a poisoned log are not replayed (R10). What they held is lost, and reported.
pub(super) fn report_unreplayed_rings(
    replay: &BTreeMap<TailId, TailReplay>,
    rings: &dyn Rings,
    host: HostId,
    mount: RingMount,
    same_boot: bool,
    report: &mut RecoveryReport,
) {
    for (id, tail) in replay.iter().filter(|(_, tail)| !tail.rescue && same_boot) {
        let ring = existing_ring(rings, *id, host, mount);
        if ring.is_none_or(|ring| ring.read(tail.newest.next()).is_some()) {
            report.rings_lost.push(tail.name.clone());
        }
    }
}

pub(super) fn replay_rings(
    replay: &mut BTreeMap<TailId, TailReplay>,
    rings: &dyn Rings,
    host: HostId,
    mount: RingMount,
    same_boot: bool,
    report: &mut RecoveryReport,
) {
    for (id, tail) in replay.iter_mut().filter(|(_, tail)| !tail.rescue) {
        let Some(ring) = existing_ring(rings, *id, host, mount) else {
            if same_boot {
                // The host did not go down, and yet the ring is gone (its file was removed, or
                // its directory mounted anew): say so.
                tracing::error!(
                    volume = tail.name,
                    after_lsn = tail.newest.0,
                    "the index ring is gone though the host was not restarted: writes after the \
                     last flush may be lost"
                );
                report.rings_lost.push(tail.name.clone());
            }
            continue;
        };
        let next = |newest: Lsn| {
            let entry = ring.read(newest.next());
            if canary::active!("replay_past_hole") {
                return entry.or_else(|| ring.read(newest.next().next()));
            }
            entry
        };
        while let Some(entry) = next(tail.newest) {
            tail.newest = entry.lsn;
            apply(tail, &entry);
            report.ring_entries += 1;
        }
    }
}
