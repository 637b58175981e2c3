//! Owns volumes that are served before the store has said whose they are: their clients begin at once, and what they
//! read is judged by all that was ever committed here, for a process takes nothing with it.
//!
//! What a crash may have taken is not known without the store, so such a volume is scanned first, as any other is; its
//! scan waits for the store. It must not believe the engine that a volume is whole.

use std::sync::Arc;

use super::{AttachmentPhase, Event, World};
use crate::faults::Fault;
use crate::node::Volume;
use crate::trace::Violation;
use crate::transport::Transport;

impl World {
    /// The store answers nothing for a while.
    pub(super) fn begin_outage(&mut self) {
        if self.store.outage {
            return;
        }
        self.store.outage = true;
        let length = self.latency(self.profile.store_ns * 40);
        self.trace.log(self.now, || {
            format!("store outage for {} ms", length / 1_000_000)
        });
        self.at(length, Event::OutageEnd);
    }

    /// A volume serves unchecked, or must wait for the store as all others do.
    pub(super) fn on_served(&mut self, attachment: usize, device: Option<Arc<Volume>>) {
        let here = &mut self.attachments[attachment];
        let (machine, line) = (here.machine, here.line);
        let Some(device) = device else {
            if let Some(node) = &mut self.machines[machine].node {
                node.open(attachment, &self.lines[line].name, false);
            }
            return;
        };
        here.transport = Some(Transport::new(device));
        let boots = std::mem::take(&mut here.idle_boots);
        let is_whole = !here.is_torn && !here.history.may_have_lost();
        let is_whole = self.is_history_current(attachment) && is_whole;
        self.count(Fault::ServedUnchecked);
        if boots > 1 {
            self.count(Fault::ServedPastIdleStart);
        }
        if is_whole {
            let here = &mut self.attachments[attachment];
            here.history.assume_whole();
            here.completions.restart(self.now, here.history.acked());
            self.serve(attachment);
        } else {
            self.start_scan(attachment);
        }
    }

    /// The store was asked.
    pub(super) fn on_checked(&mut self, attachment: usize, goes_on: bool) -> Result<(), Violation> {
        if goes_on {
            self.count(Fault::Checked);
            // One whose image is being judged is settled by that.
            return match self.attachments[attachment].phase {
                AttachmentPhase::Scanning => {
                    self.note_opening(attachment);
                    Ok(())
                }
                _ => self.go_on_as_checked(attachment),
            };
        }
        self.count(Fault::UncheckedEnded);
        // Also of one that is scanned: what a process learned of the end, it left for the next one.
        if self.is_challenged(attachment) || self.profile.errors_allowed() {
            self.on_fenced(attachment);
            return Ok(());
        }
        let detail = format!("v{attachment} ended when it was checked, and nobody else had it");
        Err(Violation::new("S10 no invented errors", detail))
    }
}
