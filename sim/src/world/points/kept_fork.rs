//! Owns where a fork is that was in the log of one host alone when its making ended: until the store has it, nobody else
//! finds it, and it goes with that log, or when another host goes on with its parent.
//!
//! What happened first, that the fork got its root or that another host took the parent, the store tells.

use super::{Parent, World};
use crate::faults::Fault;
use crate::world::Phase;
use crate::world::line::KeptFork;

impl World {
    /// What is known of a fork that this parent's host may have in its log alone.
    pub(super) fn kept_fork(&self, parent: Parent, made: Option<bool>) -> Option<KeptFork> {
        match parent {
            Parent::Live {
                attachment, order, ..
            } if made != Some(true) => Some(KeptFork {
                parent: attachment,
                order,
                is_sure: made.is_some(),
                is_brought: false,
            }),
            _ => None,
        }
    }

    /// The version of the root that a name got first.
    fn first_root(&self, line: usize) -> Option<u64> {
        self.root_writes(line).first().map(|write| write.version)
    }

    /// Whether the store has had a volume of this name.
    pub(in crate::world) fn has_root(&self, line: usize) -> bool {
        self.first_root(line).is_some()
    }

    /// Whether another host had gone on with a fork's parent before the fork was in the store.
    fn has_parent_gone_on(&self, line: usize) -> bool {
        let Some(kept) = self.lines[line].kept else {
            return false;
        };
        let until = self.first_root(line).unwrap_or(u64::MAX);
        !self.is_single() && self.was_replaced_elsewhere(kept.parent, kept.order, until)
    }

    /// Whether the service of a fork may end on this machine, which has it in its log, because of its parent.
    pub(in crate::world) fn may_end_with_parent(&self, line: usize, machine: usize) -> bool {
        let kept = self.lines[line].kept;
        let is_here = |kept: KeptFork| self.attachments[kept.parent].machine == machine;
        kept.is_some_and(is_here) && self.has_parent_gone_on(line)
    }

    /// Whether the log is gone that had this fork alone, or goes on without it.
    fn may_be_lost(&self, line: usize) -> bool {
        let Some(kept) = self.lines[line].kept else {
            return false;
        };
        let parent = &self.attachments[kept.parent];
        let there = &self.machines[parent.machine];
        let is_dropped = self.phase != Phase::Work && !parent.wanted;
        there.may_forget() || is_dropped || self.has_parent_gone_on(line)
    }

    /// Whether a host may say that there is no such fork. `had_root`: the store had it when the host was asked.
    pub(in crate::world) fn may_miss_fork(&mut self, attachment: usize) -> bool {
        let here = &self.attachments[attachment];
        let (line, machine) = (here.line, here.machine);
        let Some(kept) = self.lines[line].kept.filter(|_| !here.had_root) else {
            return false;
        };
        let is_elsewhere = self.attachments[kept.parent].machine != machine;
        if is_elsewhere {
            self.count(Fault::ForkNotSeen);
        }
        is_elsewhere || self.may_be_lost(line)
    }

    /// A machine's log is about to be lost, and with it the forks that have no root yet.
    pub(in crate::world) fn lose_logged_forks(&mut self, machine: usize) {
        for line in 0..self.lines.len() {
            let kept = self.lines[line].kept;
            let is_here = kept.is_some_and(|kept| self.attachments[kept.parent].machine == machine);
            if !is_here || self.has_root(line) {
                continue;
            }
            self.lines[line].may_be_deleted = true;
        }
    }

    /// Whether what logs have of forks went to the store, as far as it has to.
    pub(super) fn forks_are_at_rest(&mut self) -> bool {
        for line in 0..self.lines.len() {
            let Some(kept) = self.lines[line].kept.filter(|kept| !kept.is_brought) else {
                continue;
            };
            if self.has_root(line) {
                self.count(Fault::ForkBrought);
                let brought = KeptFork {
                    is_brought: true,
                    ..kept
                };
                self.lines[line].kept = Some(brought);
            } else if kept.is_sure && !self.lines[line].may_be_deleted && !self.may_be_lost(line) {
                return false;
            }
        }
        true
    }
}
