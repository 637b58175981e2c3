//! Owns volumes that are set back to one of their snapshots: closed, restored, and opened again by the same host. Only worlds of
//! one host have any of it.
//!
//! If it is not known whether a restore took place, the volume's next image says it: it is what the volume was, or what
//! the snapshot is.

use super::{Asked, Fate, Snapshot, Sought, World};
use crate::faults::Fault;
use crate::node::{Failure, PointAsk};
use crate::trace::Violation;
use crate::world::{AttachmentPhase, ProcessEvent};

impl World {
    /// This volume is to be closed and set back.
    pub(super) fn begin_restore(&mut self, attachment: usize) {
        let here = &self.attachments[attachment];
        // Commits are numbered anew behind the restore: a call that outlasts it is answered with a number of before, which
        // nobody could tell from those.
        let is_busy = self.points.is_being_taken(attachment);
        if !self.is_single() || here.phase != AttachmentPhase::Serving || is_busy {
            return;
        }
        let all = self.points.snapshots.iter().enumerate();
        let own = all.filter(|(_, at)| at.attachment == attachment && at.fate != Fate::Gone);
        let own: Vec<usize> = own.map(|(nth, _)| nth).collect();
        if own.is_empty() {
            return;
        }
        let nth = *self.points.rng.pick(&own);
        self.trace.log(self.now, || {
            format!("v{attachment} is closed to be set back")
        });
        self.points.to_restore.insert(attachment, nth);
        self.attachments[attachment].phase = AttachmentPhase::Closing;
    }

    /// A volume was closed, or could not be: perhaps it is one that is to be set back.
    pub(in crate::world) fn restore_closed(
        &mut self,
        attachment: usize,
        result: &Result<(), Failure>,
    ) {
        let Some(nth) = self.points.to_restore.get(&attachment).copied() else {
            return;
        };
        let here = &mut self.attachments[attachment];
        if here.phase == AttachmentPhase::Closing {
            // Something else is done to that name, and it is tried again.
            return;
        }
        let machine = here.machine;
        match result {
            Ok(()) => {}
            Err(Failure::Store(_)) => {
                (here.phase, here.wanted) = (AttachmentPhase::Closing, true);
                return self.at_process(machine, 100_000_000, ProcessEvent::Retry { attachment });
            }
            // It will never be closed: the operator restarts the server.
            Err(_) => {
                here.wanted = true;
                return self.process_crash(machine);
            }
        }
        self.points.to_restore.remove(&attachment);
        // The store has all of it.
        let acked = here.history.acked();
        here.history.on_flushed(acked);
        let volume = self.lines[here.line].name.clone();
        let kept = format!("k{}", self.points.next);
        let sought = self.sought(nth);
        let name = self.snapshot_name(nth);
        let asked = Asked::Restore {
            attachment,
            sought,
            kept: kept.clone(),
        };
        let kept = format!("{volume}@{kept}");
        self.ask_point(machine, asked, PointAsk::Restore(name, kept));
    }

    pub(super) fn on_restored(
        &mut self,
        attachment: usize,
        sought: Sought,
        kept: String,
        result: &Result<(), Failure>,
    ) -> Result<(), Violation> {
        match result {
            Ok(()) => {
                self.count(Fault::Restored);
                self.add_kept(attachment, kept, Fate::Stored);
                let restored = self.points.snapshots[sought.nth].history.clone();
                self.attachments[attachment].history = restored;
            }
            Err(failure) => {
                match failure {
                    Failure::NoSuchSnapshot(_)
                        if self.points.snapshots[sought.nth].deletions == 0 =>
                    {
                        self.judge_missing(self.attachments[attachment].machine, sought)?;
                    }
                    Failure::NoSuchSnapshot(_) => {}
                    _ => self.judge_point_refusal(attachment, failure)?,
                }
                self.leave_open_whether_restored(attachment, sought, kept);
            }
        }
        self.attachments[attachment].wanted = true;
        self.bring_up(attachment);
        Ok(())
    }

    /// The volume is as it was, or as the snapshot is; and there is a copy of what it was, or none.
    pub(super) fn leave_open_whether_restored(
        &mut self,
        attachment: usize,
        sought: Sought,
        kept: String,
    ) {
        self.count(Fault::RestoreUnsure);
        self.add_kept(attachment, kept, Fate::Maybe);
        let restored = self.points.snapshots[sought.nth].history.clone();
        let here = &mut self.attachments[attachment];
        here.restored = Some(Box::new(restored));
        here.wanted = true;
    }

    /// What the volume held is a snapshot of its own.
    fn add_kept(&mut self, attachment: usize, suffix: String, fate: Fate) {
        let history = &self.attachments[attachment].history;
        self.points.snapshots.push(Snapshot {
            suffix,
            id: None,
            attachment,
            fate,
            deletions: 0,
            history: history.point_since(history.stored()),
            group: None,
            found: None,
        });
    }
}
