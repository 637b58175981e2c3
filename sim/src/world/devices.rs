//! Owns what outlives a server on its machine: devices, which keep what their clients wait for and issue
//! it again to the next server (docs/adr/0015-requests-issued-again.md).

use blkmq::io::Op;

use super::clients::Issuer;
use super::{Attachment, ProcessEvent, World};
use crate::faults::Fault;
use crate::transport::ReqId;
use crate::workload::op_range;

impl Attachment {
    /// What the device was to issue again fails.
    pub(super) fn fail_pending(&mut self) {
        for issued in std::mem::take(&mut self.pending).into_values() {
            if let Issuer::Client(client) = issued.issuer {
                self.clients[client].in_flight -= 1;
            }
        }
    }

    /// The device is gone, and with it what its clients waited for.
    pub(super) fn forget_device(&mut self) {
        self.pending.clear();
        for client in &mut self.clients {
            client.in_flight = 0;
        }
    }
}

impl World {
    /// The server died, its devices live: they keep what their clients wait for, and issue it again
    /// to the next server. The same requests with the same bytes, in any order among themselves and
    /// with what is issued later.
    pub(super) fn keep_in_flight(&mut self, machine: usize) {
        if !self.profile.reissue {
            return;
        }
        for (id, issued) in &self.requests {
            let here = &mut self.attachments[issued.attachment];
            if here.machine == machine && matches!(issued.issuer, Issuer::Client(_)) {
                here.pending.insert(*id, issued.clone());
            }
        }
    }

    /// What the devices kept is issued again.
    pub(super) fn reissue_all(&mut self, attachment: usize) {
        let machine = self.attachments[attachment].machine;
        let pending: Vec<ReqId> = self.attachments[attachment]
            .pending
            .keys()
            .copied()
            .collect();
        for req in pending {
            let delay = self.latency(self.profile.think_ns);
            self.at_process(
                machine,
                delay,
                ProcessEvent::Reissue {
                    attachment,
                    req: req.0,
                },
            );
        }
    }

    pub(super) fn reissue(&mut self, attachment: usize, req: ReqId) {
        let here = &mut self.attachments[attachment];
        let encoded_ns = self.machines[here.machine].encoded_ns(self.now);
        let Some(mut issued) = here.pending.remove(&req) else {
            return;
        };
        // What was there when it was issued first may have been lost with its server.
        issued.commits = issued.commits.min(here.history.len());
        issued.acked = issued.acked.min(here.history.acked());
        issued.position = None;
        if let Op::Write { .. } = issued.op {
            // The volume may have come back on another branch.
            here.history.issue(req.0, op_range(&issued.op));
        }
        issued.is_reissued = true;
        issued.issued_at = self.now;
        issued.encoded_ns = encoded_ns;
        self.count(Fault::Reissued);
        self.send(req, issued);
    }
}
