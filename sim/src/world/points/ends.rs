//! Owns what is concluded when something ends that was asked of snapshots and forks.

use std::collections::BTreeSet;

use volume::SnapshotInfo;

use super::{Asked, Fate, Member, Parent, Snapshot, Sought, World};
use crate::faults::Fault;
use crate::node::{Failure, PointEnd};
use crate::oracle::history::History;
use crate::oracle::moments::Moments;
use crate::trace::Violation;
use crate::world::line::ForkOrigin;
use crate::world::names::is_of_renaming;

impl World {
    /// What was asked of a process has ended.
    pub(in crate::world) fn on_point(
        &mut self,
        token: u64,
        end: PointEnd,
    ) -> Result<(), Violation> {
        self.trace.record(&[11, token]);
        let Some(call) = self.points.calls.remove(&token) else {
            return Ok(());
        };
        let (machine, asked) = (call.machine, call.asked);
        self.points.answered_since = call.asked_at;
        match (asked, end) {
            (Asked::Take(members, moments), PointEnd::Taken(result)) => {
                if let Err(failure) = &result {
                    // Of a group that another host has one volume of by now.
                    let anothers = members.iter().find(|at| self.is_challenged(at.attachment));
                    let judged = anothers.unwrap_or(&members[0]).attachment;
                    self.judge_point_refusal(judged, failure)?;
                }
                self.add_snapshots(members, moments, result.ok().as_deref());
                Ok(())
            }
            (Asked::Delete(sought), PointEnd::Deleted(result)) => {
                self.on_snapshot_deleted(machine, sought, &result)
            }
            (Asked::Fork { line, parent }, PointEnd::Forked(result)) => {
                self.on_forked(machine, line, parent, &result)
            }
            (
                Asked::Restore {
                    attachment,
                    sought,
                    kept,
                },
                PointEnd::Restored(result),
            ) => self.on_restored(attachment, sought, kept, &result),
            (Asked::Rename { line, new }, PointEnd::Renamed(result)) => {
                self.on_renamed(machine, line, &new, Some(&result))
            }
            (Asked::Open(sought), PointEnd::Opened(result)) => match result {
                Ok(_) if sought.fate == Fate::Gone => {
                    let name = self.snapshot_name(sought.nth);
                    let detail = format!("{name} can be opened, and was deleted before");
                    Err(Violation::new("S6 deleted snapshot", detail))
                }
                Ok(device) => {
                    self.start_reader(machine, sought.nth, device);
                    Ok(())
                }
                Err(failure) => self.on_snapshot_not_opened(machine, sought, &failure),
            },
            _ => Ok(()),
        }
    }

    /// Snapshots are there as they were acknowledged, or it is not known whether they are.
    pub(super) fn add_snapshots(
        &mut self,
        members: Vec<Member>,
        mut moments: Moments,
        infos: Option<&[SnapshotInfo]>,
    ) {
        let is_group = members.len() > 1;
        let len = |at: &Member| self.attachments[at.attachment].history.len();
        moments.end(&members.iter().map(len).collect::<Vec<u64>>());
        if infos.is_some() {
            self.count(Fault::SnapshotTaken);
            if is_group {
                self.count(Fault::GroupTaken);
            }
        }
        let group = self.points.groups.len();
        for (nth, member) in members.into_iter().enumerate() {
            let info = infos.map(|infos| &infos[nth]);
            let here = &self.attachments[member.attachment];
            let fate = match info {
                None => Fate::Maybe,
                Some(info) if info.is_stored => Fate::Stored,
                Some(_) => Fate::Logged { order: here.order },
            };
            self.points.snapshots.push(Snapshot {
                suffix: member.suffix,
                id: info.map(|info| info.id),
                attachment: member.attachment,
                fate,
                deletions: 0,
                history: here.history.point_since(member.low),
                group: is_group.then_some((group, nth)),
                found: None,
            });
        }
        if is_group {
            self.points.groups.push(moments);
        }
    }

    fn on_snapshot_deleted(
        &mut self,
        machine: usize,
        sought: Sought,
        result: &Result<(), Failure>,
    ) -> Result<(), Violation> {
        let nth = sought.nth;
        match result {
            Ok(()) => {
                self.count(Fault::SnapshotDeleted);
                self.points.snapshots[nth].fate = Fate::Gone;
                Ok(())
            }
            Err(Failure::InUse(_)) => {
                self.points.snapshots[nth].deletions -= 1;
                Ok(())
            }
            // Nobody else was asked: it was not deleted, and a log that this host does not know may have it still.
            Err(Failure::NoSuchSnapshot(_) | Failure::RenamedAndGone { .. })
                if self.points.snapshots[nth].deletions == 1 =>
            {
                self.points.snapshots[nth].deletions = 0;
                self.judge_missing(machine, sought)
            }
            Err(Failure::NoSuchSnapshot(_) | Failure::RenamedAndGone { .. }) => Ok(()),
            Err(failure) => {
                let here = &mut self.points.snapshots[nth];
                if here.fate != Fate::Gone {
                    here.fate = Fate::Maybe;
                }
                self.judge_point_refusal(self.points.snapshots[nth].attachment, failure)
            }
        }
    }

    /// A process of this machine did not find a snapshot.
    pub(super) fn judge_missing(
        &mut self,
        machine: usize,
        sought: Sought,
    ) -> Result<(), Violation> {
        if !self.must_be_found(sought, machine)? {
            return Ok(());
        }
        let name = self.snapshot_name(sought.nth);
        let (detail, fate) = ("was acknowledged, and is not found", sought.fate);
        let detail = format!("{name} {detail} by m{machine}, which was asked when it was {fate:?}");
        Err(Violation::new("S6 snapshot is kept", detail))
    }

    fn on_snapshot_not_opened(
        &mut self,
        machine: usize,
        sought: Sought,
        failure: &Failure,
    ) -> Result<(), Violation> {
        let nth = sought.nth;
        if self.is_last_read(nth, failure)? {
            return Ok(());
        }
        match failure {
            Failure::NoSuchSnapshot(_) | Failure::RenamedAndGone { .. }
                if self.points.snapshots[nth].deletions == 0 =>
            {
                self.judge_missing(machine, sought)
            }
            Failure::NoSuchSnapshot(_) | Failure::RenamedAndGone { .. } => Ok(()),
            _ => self.judge_point_refusal(self.points.snapshots[nth].attachment, failure),
        }
    }

    fn on_forked(
        &mut self,
        machine: usize,
        line: usize,
        parent: Parent,
        result: &Result<bool, Failure>,
    ) -> Result<(), Violation> {
        let failure = match result {
            Ok(is_stored) => {
                self.count(match is_stored {
                    true => Fault::ForkMade,
                    false => Fault::ForkKept,
                });
                self.begin_fork(line, parent, machine, Some(*is_stored));
                return Ok(());
            }
            Err(failure) => failure,
        };
        match (failure, parent) {
            // Nothing was sent yet that could make one.
            (Failure::Busy(_) | Failure::TooManyPoints(..) | Failure::InUse(_), _) => Ok(()),
            (
                Failure::NoSuchSnapshot(_) | Failure::RenamedAndGone { .. },
                Parent::Snapshot(sought),
            ) => match self.points.snapshots[sought.nth].deletions {
                0 => self.judge_missing(machine, sought),
                _ => Ok(()),
            },
            (failure, Parent::Snapshot(sought)) => {
                let attachment = self.points.snapshots[sought.nth].attachment;
                self.judge_point_refusal(attachment, failure)?;
                self.begin_fork(line, parent, machine, None);
                Ok(())
            }
            (failure, Parent::Live { attachment, .. }) => {
                self.judge_point_refusal(attachment, failure)?;
                self.begin_fork(line, parent, machine, None);
                Ok(())
            }
        }
    }

    /// A fork is there, in the store or in a log, or perhaps is. Some machine opens it.
    pub(super) fn begin_fork(
        &mut self,
        line: usize,
        parent: Parent,
        maker: usize,
        made: Option<bool>,
    ) {
        let is_sure = made.is_some();
        if !is_sure {
            self.count(Fault::ForkUnsure);
        }
        let (origins, snapshot) = self.origins_of_fork(parent);
        let origins = origins.iter().map(|at| at.forked(line as u64));
        let origins: Vec<History> = origins.collect();
        let lines = self.lines.len();
        for at in self.attachments.iter_mut().filter(|at| at.line == line) {
            at.history = origins[0].clone();
        }
        let origin = ForkOrigin {
            maker,
            snapshot,
            is_stored: made == Some(true),
        };
        let kept = self.kept_fork(parent, made);
        self.lines[line].begin_as_fork(origins, origin, kept, is_sure);
        let machine = self.points.rng.below(self.machines.len() as u64) as usize;
        let attachment = machine * lines + line;
        self.attachments[attachment].wanted = true;
        if self.machines[machine].is_up {
            self.bring_up(attachment);
        }
    }

    /// What a fork may begin with, and of which snapshot that is.
    fn origins_of_fork(&self, parent: Parent) -> (Vec<History>, Option<usize>) {
        match parent {
            Parent::Snapshot(sought) => {
                let snapshot = &self.points.snapshots[sought.nth];
                (vec![snapshot.history.clone()], Some(sought.nth))
            }
            Parent::Live {
                attachment,
                order,
                low,
            } => {
                let here = &self.attachments[attachment];
                let mut origins = vec![here.history.point_since(low)];
                if !self.is_single() && self.was_replaced_elsewhere(attachment, order, u64::MAX) {
                    // Another host has had it since, and of that it has what the store has.
                    let all = self.attachments.iter().filter(|at| at.line == here.line);
                    let all = all.map(|at| &at.history);
                    // Its own machine may be gone, and with it what its attachment knew.
                    let left = self.lines[here.line].left_branches();
                    origins.extend(all.chain(left).map(|at| at.point_since(0)));
                }
                (origins, None)
            }
        }
    }

    /// A fork came up for the first time: it is what its parent was, and the store has all of it if it was said so.
    pub(in crate::world) fn judge_new_fork(
        &mut self,
        attachment: usize,
        image: &[u8],
        unread: &BTreeSet<u64>,
        found: u64,
    ) -> Result<(), Violation> {
        let here = &self.attachments[attachment];
        let (line, machine) = (here.line, here.machine);
        let Some(origin) = self.lines[line].take_new_fork() else {
            return Ok(());
        };
        self.count(Fault::ForkOpened);
        if origin.maker != machine {
            self.count(Fault::ForkOpenedElsewhere);
        }
        if let Some(nth) = origin.snapshot {
            self.judge_snapshot(nth, image, unread)?;
        }
        let history = &mut self.attachments[attachment].history;
        if self.machines.len() == 1 && unread.is_empty() {
            history.on_flushed(found);
            if origin.is_stored {
                history.on_stored(found)?;
            }
        }
        Ok(())
    }

    /// Judges what was read of a snapshot, and that its group is one moment.
    pub(super) fn judge_snapshot(
        &mut self,
        nth: usize,
        image: &[u8],
        unread: &BTreeSet<u64>,
    ) -> Result<(), Violation> {
        let name = self.snapshot_name(nth);
        let snapshot = &mut self.points.snapshots[nth];
        let judged = snapshot.history.judge_point(image, unread);
        let found = judged.map_err(|violation| {
            let detail = format!("{name}: {}", violation.detail);
            Violation::new(violation.promise, detail)
        })?;
        let is_whole = unread.is_empty();
        if snapshot.found.as_ref().is_none_or(|(_, whole)| !whole) {
            snapshot.found = Some((found, is_whole));
        }
        self.trace.record(&[12, nth as u64]);
        self.trace.record_bytes(image);
        match snapshot.group {
            Some((group, _)) => self.judge_group(group),
            None => Ok(()),
        }
    }

    fn judge_group(&mut self, group: usize) -> Result<(), Violation> {
        let all = self.points.snapshots.iter();
        let members = all.filter_map(|at| {
            let (_, member) = at.group.filter(|(of, _)| *of == group)?;
            let (found, _) = at.found.as_ref()?;
            Some((member, found))
        });
        let members: Vec<_> = members.collect();
        if members.len() < 2 {
            return Ok(());
        }
        let moments = &self.points.groups[group];
        if !moments.agree(&members) {
            let detail = format!("members at {members:?} are of no one moment of {moments:?}");
            return Err(Violation::new("S6 group", detail));
        }
        self.count(Fault::GroupJudged);
        Ok(())
    }

    /// What may be refused: what cannot be reached, or is busy, or is another's by now.
    pub(in crate::world) fn judge_point_refusal(
        &self,
        attachment: usize,
        failure: &Failure,
    ) -> Result<(), Violation> {
        let is_common = matches!(
            failure,
            Failure::Store(_)
                | Failure::Busy(_)
                | Failure::TooManyPoints(..)
                | Failure::InUse(_)
                | Failure::HostStopped(_)
        );
        // A call may begin in one hold of a volume and end in the next.
        let is_anothers = matches!(
            failure,
            Failure::Fenced(_) | Failure::Deleted(_) | Failure::Held { .. }
        );
        let line = self.attachments[attachment].line;
        let is_renamed = self.is_renamed_since(line, self.points.answered_since);
        let is_common =
            is_common || is_anothers && !self.is_single() || is_renamed && is_of_renaming(failure);
        if is_common || self.profile.errors_allowed() || self.is_challenged(attachment) {
            return Ok(());
        }
        let detail = format!("a snapshot or fork of v{attachment} was refused: {failure:?}");
        Err(Violation::new("S10 no invented errors", detail))
    }
}
