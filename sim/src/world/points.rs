//! Owns what a world knows of snapshots and forks (S6): which were asked for, what became of each, and by that what must
//! be there, may be there, or must be gone.
//!
//! Each snapshot has the part of its volume's history of which it may be; what is read of it settles which
//! ([`crate::oracle::history`]). A fork is a line of its own that begins with such a part, so all that is judged of volumes is judged
//! of it. What the engine says is believed where it is a promise: a snapshot that was acknowledged must be there from then on, for as long as
//! the log that has it, or, once the store has it, until its deletion was asked for.

use std::collections::BTreeMap;

use volume::object::root::{RenameStep, Root};
use volume::object::root_key;
use volume::units::VolumeId;

use super::{AttachmentPhase, Phase, World};
use crate::faults::Fault;
use crate::node::PointAsk;
use crate::oracle::history::{History, Intervals};
use crate::oracle::moments::Moments;
use crate::rng::Rng;
use crate::trace::Violation;

mod ask;
mod ends;
mod kept_fork;
mod last;
mod reader;
mod restore;

pub(super) use reader::Reader;

/// Of so many calls a crash cuts one short, where there are crashes; and within so many events of its beginning.
const CALLS_TO_A_CRASH: u64 = 6;
const EVENTS_OF_A_CALL: u64 = 250;

/// Where a snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It was never acknowledged, or lost with a log, or its deletion was asked for: it is there as a whole, or not.
    Maybe,
    /// A host's log has it, and has had the volume since this version of its root.
    Logged { order: u64 },
    /// The store has it.
    Stored,
    /// Its deletion was acknowledged.
    Gone,
}

/// A snapshot.
#[derive(Clone, Debug)]
struct Snapshot {
    /// Its name behind that of its volume.
    suffix: String,
    /// As it was acknowledged.
    id: Option<VolumeId>,
    /// Of whose volume, and by which machine.
    attachment: usize,
    fate: Fate,
    /// How often its deletion was asked for.
    deletions: u32,
    /// What it may be.
    history: History,
    /// Its group, and which member it is.
    group: Option<(usize, usize)>,
    /// Of which positions it was found to be, and whether all of it was read.
    found: Option<(Intervals, bool)>,
}

/// Of whom a fork is made.
#[derive(Clone, Copy, Debug)]
enum Parent {
    /// Of a volume that is served since this version of its root, whose history stood there.
    Live {
        attachment: usize,
        order: u64,
        low: u64,
    },
    /// Of a snapshot.
    Snapshot(Sought),
}

/// A snapshot, and where it was when a process was asked for it.
#[derive(Clone, Copy, Debug)]
struct Sought {
    nth: usize,
    fate: Fate,
    asked_at: u64,
}

/// A member of what is being taken: a volume, the end of the snapshot's name, and where the history stood.
#[derive(Clone, Debug)]
struct Member {
    attachment: usize,
    suffix: String,
    low: u64,
}

/// What was asked of a process.
#[derive(Clone, Debug)]
enum Asked {
    Take(Vec<Member>, Moments),
    Delete(Sought),
    Fork {
        line: usize,
        parent: Parent,
    },
    Open(Sought),
    Close,
    Restore {
        attachment: usize,
        sought: Sought,
        /// The end of the name of what the volume held.
        kept: String,
    },
    Rename {
        line: usize,
        new: String,
    },
}

#[derive(Clone, Debug)]
struct Call {
    machine: usize,
    asked: Asked,
    asked_at: u64,
}

/// All snapshots of a world, and what is done to them and to forks.
pub(super) struct Points {
    rng: Rng,
    snapshots: Vec<Snapshot>,
    groups: Vec<Moments>,
    calls: BTreeMap<u64, Call>,
    pub(super) readers: BTreeMap<u64, Reader>,
    /// Volumes that are being closed, and to which snapshot each is to be set back.
    to_restore: BTreeMap<usize, usize>,
    /// Names the next call or reader.
    next: u64,
    /// When what ends now was asked for.
    answered_since: u64,
    /// At the end of the world: the next one to be read.
    last: Option<usize>,
}

impl Points {
    pub(super) fn new(seed: u64) -> Points {
        Points {
            rng: Rng::stream(seed, "points asked for"),
            snapshots: Vec::new(),
            groups: Vec::new(),
            calls: BTreeMap::new(),
            readers: BTreeMap::new(),
            to_restore: BTreeMap::new(),
            next: 0,
            answered_since: 0,
            last: Some(0),
        }
    }

    /// The same without what processes were asked.
    pub(super) fn copy(&self) -> Points {
        Points {
            rng: self.rng.clone(),
            snapshots: self.snapshots.clone(),
            groups: self.groups.clone(),
            calls: BTreeMap::new(),
            readers: BTreeMap::new(),
            to_restore: BTreeMap::new(),
            ..*self
        }
    }

    /// A commit took effect.
    pub(super) fn note_commit(&mut self, attachment: usize) {
        for call in self.calls.values_mut() {
            if let Asked::Take(members, moments) = &mut call.asked {
                let member = members.iter().position(|at| at.attachment == attachment);
                member.into_iter().for_each(|nth| moments.note(nth));
            }
        }
    }

    /// Whether a snapshot of it is asked for, alone or with others.
    pub(super) fn is_being_taken(&self, attachment: usize) -> bool {
        let is_member = |call: &Call| match &call.asked {
            Asked::Take(members, _) => members.iter().any(|at| at.attachment == attachment),
            _ => false,
        };
        self.calls.values().any(is_member)
    }

    /// Whether a process was asked to rename this line.
    pub(super) fn is_being_renamed(&self, line: usize) -> bool {
        let is_it =
            |call: &Call| matches!(&call.asked, Asked::Rename { line: at, .. } if *at == line);
        self.calls.values().any(is_it)
    }

    /// Whether a volume is closed to be set back.
    pub(super) fn is_to_restore(&self) -> bool {
        !self.to_restore.is_empty()
    }

    pub(super) fn is_without_calls(&self) -> bool {
        self.calls.is_empty()
    }

    fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.readers.is_empty() && self.to_restore.is_empty()
    }
}

impl World {
    fn ask_point(&mut self, machine: usize, asked: Asked, ask: PointAsk) {
        let token = self.points.next;
        self.points.next += 1;
        self.trace.record(&[10, token]);
        self.trace.log(self.now, || {
            format!("m{machine} asked for {ask:?} ({token})")
        });
        if let Some(node) = &mut self.machines[machine].node {
            node.ask_point(token, ask);
            let odds = match asked {
                Asked::Restore { .. } => (2, EVENTS_OF_A_CALL / 3),
                Asked::Rename { .. } => (2, EVENTS_OF_A_CALL * 2),
                _ => (CALLS_TO_A_CRASH, EVENTS_OF_A_CALL),
            };
            let call = Call {
                machine,
                asked,
                asked_at: self.now,
            };
            self.points.calls.insert(token, call);
            self.draw_crash_in_call(machine, odds);
        }
    }

    /// One call in a few is cut short by a crash, at any of its steps. While a volume is set back or renamed its clients do
    /// nothing, so there are fewer.
    fn draw_crash_in_call(&mut self, machine: usize, (one_in, most): (u64, u64)) {
        let events = self.trace.events();
        if self.crash_at < u64::MAX && self.points.rng.below(one_in) == 0 {
            let at = events + self.points.rng.within(1, most);
            if at < self.crash_at {
                (self.crash_at, self.crash_on) = (at, Some(machine));
            }
        }
    }

    /// Looks where a snapshot is by now that was in a log.
    fn settle_fate(&mut self, nth: usize) -> Result<Fate, Violation> {
        let snapshot = &self.points.snapshots[nth];
        let Fate::Logged { order } = snapshot.fate else {
            return Ok(snapshot.fate);
        };
        let fate = match self.is_stored(snapshot)? {
            // Perhaps it is deleted by now: who is asked to do it may die before he says so.
            _ if snapshot.deletions > 0 => return Ok(Fate::Maybe),
            true => Fate::Stored,
            false if self.may_have_lost(snapshot.attachment, order) => Fate::Maybe,
            false => snapshot.fate,
        };
        if fate == Fate::Stored {
            self.count(Fault::SnapshotBrought);
        }
        self.points.snapshots[nth].fate = fate;
        Ok(fate)
    }

    /// The name of a snapshot as its volume is called now.
    fn snapshot_name(&self, nth: usize) -> String {
        let snapshot = &self.points.snapshots[nth];
        let line = self.attachments[snapshot.attachment].line;
        format!("{}@{}", self.lines[line].name, snapshot.suffix)
    }

    /// Whether the store has a snapshot that was acknowledged, under one of the names that its volume has had.
    fn is_stored(&self, snapshot: &Snapshot) -> Result<bool, Violation> {
        let line = self.attachments[snapshot.attachment].line;
        for name in &self.lines[line].names.all {
            // A renaming may have been refused, or been undone by another one since.
            let others = self
                .lines
                .iter()
                .enumerate()
                .filter(|(nth, _)| *nth != line);
            let is_shared = others
                .into_iter()
                .any(|(_, other)| other.names.all.contains(name));
            let name = format!("{name}@{}", snapshot.suffix);
            if self.is_stored_as(snapshot, &name, is_shared)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// `is_shared`: another volume may have had the name of this one.
    fn is_stored_as(
        &self,
        snapshot: &Snapshot,
        name: &str,
        is_shared: bool,
    ) -> Result<bool, Violation> {
        let Some(bytes) = self.store.data(&root_key(name)) else {
            return Ok(false);
        };
        let wrong = |what: String| {
            let detail = format!("{name}: {what}");
            Err(Violation::new("S6 snapshot", detail))
        };
        let root = match Root::decode(bytes) {
            Ok(root) => root,
            Err(error) => return wrong(format!("its root cannot be read: {error:?}")),
        };
        if let Some(mark) = root.rename_mark() {
            return Ok(mark.step == RenameStep::Leaving);
        }
        match snapshot.id {
            Some(id) if id != root.volume && is_shared => Ok(false),
            Some(id) if id != root.volume => wrong(format!(
                "acknowledged as {id}, and the store has {}",
                root.volume
            )),
            _ if root.deleted && snapshot.deletions == 0 => wrong("nobody deleted it".into()),
            _ => Ok(!root.deleted),
        }
    }

    /// Whether the log may be gone in which this attachment's host kept a snapshot, or the volume have gone on without it.
    fn may_have_lost(&self, attachment: usize, order: u64) -> bool {
        let here = &self.attachments[attachment];
        let there = &self.machines[here.machine];
        let is_dropped = self.phase != Phase::Work && !self.is_single() && !here.wanted;
        let is_anothers = || self.was_replaced_elsewhere(attachment, order, u64::MAX);
        there.may_forget() || there.shares_log || is_dropped || !self.is_single() && is_anothers()
    }

    /// Where a snapshot is that a process is about to be asked for. What is wrong with it is seen later.
    fn sought(&mut self, nth: usize) -> Sought {
        let fate = self.settle_fate(nth).unwrap_or(Fate::Maybe);
        Sought {
            nth,
            fate,
            asked_at: self.now,
        }
    }

    /// Whether a process of this machine that was asked for a snapshot had to find it.
    fn must_be_found(&mut self, sought: Sought, machine: usize) -> Result<bool, Violation> {
        let now = self.settle_fate(sought.nth)?;
        let attachment = self.points.snapshots[sought.nth].attachment;
        let here = &self.attachments[attachment];
        let is_serving = here.phase == AttachmentPhase::Serving;
        if self.is_renamed_since(here.line, sought.asked_at) {
            return Ok(false);
        }
        Ok(match sought.fate {
            Fate::Stored => now == Fate::Stored,
            Fate::Logged { .. } => {
                let is_kept = matches!(now, Fate::Logged { .. } | Fate::Stored);
                is_kept && here.machine == machine && is_serving
            }
            Fate::Maybe | Fate::Gone => false,
        })
    }

    /// A process died, and nobody hears how what it was asked ends.
    pub(super) fn lose_point_calls(&mut self, machine: usize) {
        let calls = std::mem::take(&mut self.points.calls);
        let (lost, left) = calls
            .into_iter()
            .partition(|(_, call)| call.machine == machine);
        self.points.calls = left;
        self.points
            .readers
            .retain(|_, reader| reader.machine != machine);
        let here = &self.attachments;
        self.points
            .to_restore
            .retain(|attachment, _| here[*attachment].machine != machine);
        let lost: BTreeMap<u64, Call> = lost;
        for call in lost.into_values() {
            match call.asked {
                Asked::Take(members, moments) => {
                    self.count(Fault::SnapshotCut);
                    self.add_snapshots(members, moments, None);
                }
                Asked::Fork { line, parent } => self.begin_fork(line, parent, machine, None),
                Asked::Restore {
                    attachment,
                    sought,
                    kept,
                } => self.leave_open_whether_restored(attachment, sought, kept),
                Asked::Rename { line, new } => {
                    // What is wrong with it is seen at the next step of the store.
                    let _ = self.on_renamed(machine, line, &new, None);
                }
                Asked::Delete(_) | Asked::Open(_) | Asked::Close => {}
            }
        }
    }

    /// A machine's log is about to be lost.
    pub(super) fn lose_logged_snapshots(&mut self, machine: usize) {
        for nth in 0..self.points.snapshots.len() {
            let attachment = self.points.snapshots[nth].attachment;
            if self.attachments[attachment].machine != machine {
                continue;
            }
            // What is wrong with it is seen when somebody looks for it.
            let fate = self.settle_fate(nth);
            if let Ok(Fate::Logged { .. }) = fate {
                self.points.snapshots[nth].fate = Fate::Maybe;
            }
        }
    }

    /// Whether everything that was asked has ended, and what logs have went to the store.
    pub(super) fn points_are_at_rest(&mut self) -> Result<bool, Violation> {
        if !self.points.is_idle() {
            return Ok(false);
        }
        for nth in 0..self.points.snapshots.len() {
            if let Fate::Logged { .. } = self.settle_fate(nth)? {
                return Ok(false);
            }
        }
        Ok(self.forks_are_at_rest() && self.names_are_at_rest()?)
    }
}
