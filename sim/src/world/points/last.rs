//! Owns the end of a world for its snapshots: when nothing but the store is left, each that must be there is read, and each that is
//! gone is looked for.

use super::{Fate, World};
use crate::node::Failure;
use crate::trace::Violation;
use crate::world::{Phase, ProcessEvent};

impl World {
    /// Everything else is over.
    pub(in crate::world) fn begin_last_reads(&mut self) {
        self.trace.log(self.now, || "the last reads".into());
        self.phase = Phase::LastReads;
    }

    /// Nothing is under way: the next snapshot, or the end.
    pub(in crate::world) fn go_on_with_last_reads(&mut self) {
        if !self.points.is_idle() {
            return;
        }
        // None: one waits to be tried again.
        let Some(nth) = self.points.last else { return };
        if nth >= self.points.snapshots.len() {
            self.trace.log(self.now, || "over".into());
            self.phase = Phase::Done;
            return;
        }
        self.points.last = Some(nth + 1);
        self.open_snapshot(0, nth);
    }

    /// One of the last reads could not begin: it is tried again, if the store alone is why. False: the world is not over.
    pub(super) fn is_last_read(
        &mut self,
        nth: usize,
        failure: &Failure,
    ) -> Result<bool, Violation> {
        if self.phase != Phase::LastReads {
            return Ok(false);
        }
        let is_passing = matches!(
            failure,
            Failure::Store(_) | Failure::Busy(_) | Failure::InUse(_)
        );
        let is_damaged = matches!(failure, Failure::Corrupt(_));
        match failure {
            // The store may go on to damage what is read.
            _ if is_passing || is_damaged && self.profile.errors_allowed() => {
                self.at_process(0, 100_000_000, ProcessEvent::LastRead(nth));
                self.points.last = None;
                Ok(true)
            }
            Failure::NoSuchSnapshot(_) | Failure::RenamedAndGone { .. } => Ok(false),
            _ => match self.points.snapshots[nth].fate {
                Fate::Stored => {
                    let name = self.snapshot_name(nth);
                    let detail = format!("{name} cannot be opened: {failure:?}");
                    Err(Violation::new("S6 snapshot is kept", detail))
                }
                _ => Ok(true),
            },
        }
    }

    /// It is time to try again.
    pub(in crate::world) fn read_again(&mut self, nth: usize) {
        self.points.last = Some(nth + 1);
        self.open_snapshot(0, nth);
    }
}
