//! Owns what is asked of snapshots and forks, and when: beside the clients' actions, drawn from a stream of its own.

use volume::Durability;

use super::{Asked, Fate, Member, Parent, World};
use crate::node::PointAsk;
use crate::oracle::moments::Moments;
use crate::world::AttachmentPhase;

/// Snapshots that there may be at once.
const SNAPSHOTS_MAX: usize = 10;
/// Calls under way at once.
const CALLS_MAX: usize = 4;
/// Weights: take one, take a group, delete, read, fork a volume, fork a snapshot, set a volume back.
const WEIGHTS: [u32; 7] = [6, 3, 4, 4, 2, 3, 2];

impl World {
    /// A client of this attachment acts: perhaps something is done to a snapshot or a fork.
    pub(in crate::world) fn act_on_points(&mut self, attachment: usize) {
        let is_due = self.points.rng.draw_rate(self.profile.points.act);
        if !is_due || self.points.calls.len() >= CALLS_MAX {
            return;
        }
        match self.points.rng.weighted(&WEIGHTS) {
            Some(0) => self.take_snapshots(&[attachment]),
            Some(1) => self.take_group(self.attachments[attachment].machine),
            Some(2) => self.delete_snapshot(),
            Some(3) => self.read_snapshot(),
            Some(4) => self.fork_volume(attachment),
            Some(5) => self.fork_snapshot(),
            _ => self.begin_restore(attachment),
        }
    }

    /// A machine that can be asked.
    fn draw_machine(&mut self) -> Option<usize> {
        let nth = self.points.rng.below(self.machines.len() as u64) as usize;
        let machine = &self.machines[nth];
        let is_there = machine.is_up && machine.node.is_some() && machine.paused_until <= self.now;
        is_there.then_some(nth)
    }

    /// A snapshot: one in four times of those that are gone.
    fn draw_snapshot(&mut self) -> Option<usize> {
        let is_gone = self.points.rng.below(4) == 0;
        let all = self.points.snapshots.iter().enumerate();
        let fitting = all.filter(|(_, at)| (at.fate == Fate::Gone) == is_gone);
        let fitting: Vec<usize> = fitting.map(|(nth, _)| nth).collect();
        match fitting.is_empty() {
            true => None,
            false => Some(*self.points.rng.pick(&fitting)),
        }
    }

    fn take_snapshots(&mut self, attachments: &[usize]) {
        let all = self.points.snapshots.iter();
        if all.filter(|at| at.fate != Fate::Gone).count() >= SNAPSHOTS_MAX {
            return self.delete_snapshot();
        }
        let durability = match self.points.rng.below(4) {
            0 => Durability::Store,
            _ => Durability::Log,
        };
        let suffix = self.points.next;
        let members = attachments.iter().map(|attachment| {
            let here = &self.attachments[*attachment];
            Member {
                attachment: *attachment,
                suffix: format!("s{suffix}"),
                low: here.history.len(),
            }
        });
        let members: Vec<Member> = members.collect();
        let name = |at: &Member| {
            let line = self.attachments[at.attachment].line;
            format!("{}@{}", self.lines[line].name, at.suffix)
        };
        let mut names: Vec<String> = members.iter().map(name).collect();
        let ask = match names.len() {
            1 => PointAsk::Take(names.remove(0), durability),
            _ => PointAsk::TakeGroup(names, durability),
        };
        let moments = Moments::new(members.iter().map(|at| at.low).collect());
        let machine = self.attachments[attachments[0]].machine;
        self.ask_point(machine, Asked::Take(members, moments), ask);
    }

    /// Of all volumes that this machine serves.
    fn take_group(&mut self, machine: usize) {
        let all = self.attachments.iter().enumerate();
        let here =
            all.filter(|(_, at)| at.machine == machine && at.phase == AttachmentPhase::Serving);
        let here: Vec<usize> = here.map(|(nth, _)| nth).collect();
        self.take_snapshots(&here);
    }

    fn delete_snapshot(&mut self) {
        let (Some(machine), Some(nth)) = (self.draw_machine(), self.draw_snapshot()) else {
            return;
        };
        let sought = self.sought(nth);
        let ask = PointAsk::Delete(self.snapshot_name(nth));
        let snapshot = &mut self.points.snapshots[nth];
        if snapshot.fate == Fate::Gone {
            return;
        }
        snapshot.deletions += 1;
        self.ask_point(machine, Asked::Delete(sought), ask);
    }

    fn read_snapshot(&mut self) {
        if let (Some(machine), Some(nth)) = (self.draw_machine(), self.draw_snapshot()) {
            self.open_snapshot(machine, nth);
        }
    }

    pub(super) fn open_snapshot(&mut self, machine: usize, snapshot: usize) {
        let sought = self.sought(snapshot);
        let name = self.snapshot_name(snapshot);
        self.ask_point(machine, Asked::Open(sought), PointAsk::Open(name));
    }

    /// A name for a fork that nobody has used.
    fn free_line(&self) -> Option<usize> {
        let is_asked = |line: usize| {
            let asked = self.points.calls.values().map(|call| &call.asked);
            let lines = asked.filter_map(|asked| match asked {
                Asked::Fork { line, .. } => Some(*line),
                _ => None,
            });
            lines.into_iter().any(|at| at == line)
        };
        let lines = self.lines.iter().enumerate();
        let mut free = lines.filter(|(nth, line)| !line.is_used && !is_asked(*nth));
        free.next().map(|(nth, _)| nth)
    }

    fn fork_volume(&mut self, attachment: usize) {
        let Some(line) = self.free_line() else {
            return self.read_snapshot();
        };
        let here = &self.attachments[attachment];
        let (machine, order, low) = (here.machine, here.order, here.history.len());
        let parent = self.lines[here.line].name.clone();
        let durability = match self.points.rng.below(4) {
            0 => Durability::Store,
            _ => Durability::Log,
        };
        let ask = PointAsk::Fork(parent, self.lines[line].name.clone(), durability);
        let parent = Parent::Live {
            attachment,
            order,
            low,
        };
        self.ask_point(machine, Asked::Fork { line, parent }, ask);
    }

    pub(in crate::world) fn ask_to_rename(&mut self, machine: usize, line: usize, new: String) {
        let asked = Asked::Rename {
            line,
            new: new.clone(),
        };
        let old = self.lines[line].name.clone();
        self.ask_point(machine, asked, PointAsk::Rename(old, new));
    }

    fn fork_snapshot(&mut self) {
        let Some(line) = self.free_line() else {
            return self.read_snapshot();
        };
        let (Some(machine), Some(nth)) = (self.draw_machine(), self.draw_snapshot()) else {
            return;
        };
        let parent = Parent::Snapshot(self.sought(nth));
        if self.points.snapshots[nth].fate == Fate::Gone {
            return;
        }
        let name = self.lines[line].name.clone();
        let ask = PointAsk::Fork(self.snapshot_name(nth), name, Durability::Store);
        self.ask_point(machine, Asked::Fork { line, parent }, ask);
    }
}
