//! Owns the scan after an open: the whole volume is read back before its clients begin, and judged.

use std::ops::Range;

use blkmq::error::ErrorKind;
use blkmq::io::Op;

use super::clients::{IssuedRequest, Issuer};
use super::{AttachmentPhase, ProcessEvent, World};
use crate::disk::SECTOR;
use crate::trace::Violation;
use crate::transport::ReqId;
use crate::workload::op_range;

/// Times that a failed scan read is tried again before its sectors count as unreadable.
const SCAN_TRIES: u32 = 20;

impl World {
    /// Begins to read a volume's whole image back.
    pub(super) fn start_scan(&mut self, attachment: usize) {
        let sectors = self.profile.sectors;
        let state = &mut self.attachments[attachment];
        state.phase = AttachmentPhase::Scanning;
        state.image = vec![0; sectors as usize * SECTOR];
        state.unread.clear();
        state.scan_left = sectors;
        let mut at = 0;
        while at < sectors {
            let len = (8 * self.chance.within(1, 16)).min(sectors - at);
            self.scan(attachment, at..at + len, 0);
            at += len;
        }
    }

    pub(super) fn scan(&mut self, attachment: usize, range: Range<u64>, tries: u32) {
        let id = ReqId(self.next_req);
        self.next_req += 1;
        let sectors = u32::try_from(range.end - range.start).expect("drawn small");
        let op = Op::Read {
            sector: range.start,
            sectors,
        };
        let issued = IssuedRequest {
            attachment,
            issuer: Issuer::Scan(tries),
            op,
            commits: self.attachments[attachment].history.len(),
            acked: 0,
            position: None,
            generation: 0,
            is_reissued: false,
            issued_at: self.now,
            encoded_ns: 0,
        };
        self.send(id, issued);
    }

    pub(super) fn on_scanned(
        &mut self,
        issued: &IssuedRequest,
        result: Result<Vec<u8>, ErrorKind>,
        tries: u32,
    ) -> Result<(), Violation> {
        let range = op_range(&issued.op);
        let attachment = issued.attachment;
        let state = &mut self.attachments[attachment];
        match result {
            Ok(bytes) => {
                let at = range.start as usize * SECTOR;
                state.image[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Err(_) if tries < SCAN_TRIES && state.phase == AttachmentPhase::Scanning => {
                // The engine remembers a failed fetch for a while: try again after that.
                let (machine, sector) = (state.machine, range.start);
                let sectors = range.end - range.start;
                let rescan = ProcessEvent::Rescan {
                    attachment,
                    sector,
                    sectors,
                    tries: tries + 1,
                };
                self.at_process(machine, 200_000_000, rescan);
                return Ok(());
            }
            Err(_) => state.unread.extend(range.clone()),
        }
        state.scan_left -= range.end - range.start;
        if state.scan_left > 0 || state.phase != AttachmentPhase::Scanning {
            return Ok(());
        }
        self.scan_complete(attachment)
    }

    pub(super) fn scan_complete(&mut self, attachment: usize) -> Result<(), Violation> {
        let state = &mut self.attachments[attachment];
        let image = std::mem::take(&mut state.image);
        let unread = std::mem::take(&mut state.unread);
        let (before, acked) = (state.history.len(), state.history.acked());
        let (found, own) = self.judge_recovery(attachment, &image, &unread)?;
        self.judge_claim(attachment, found)?;
        self.judge_new_fork(attachment, &image, &unread, found)?;
        // The answer to a group may come when a member was closed and opened again, and its point began long before.
        let is_being_taken = self.points.is_being_taken(attachment);
        let state = &mut self.attachments[attachment];
        if !is_being_taken {
            state.history.prune();
        }
        state.is_torn = false;
        let there = &self.machines[state.machine];
        let mut names = self.lines[state.line].names.all.iter();
        let is_reported = names.any(|name| there.rings_reported.contains(name));
        let name = &self.lines[state.line].name;
        let silent = own && there.ring_gone && !there.disk.has_corrupted() && found < acked;
        if silent && !is_reported {
            let detail = format!(
                "the rings vanished, {} acknowledged commits of volume {name} with them, and \
                 recovery did not say so",
                acked - found
            );
            return Err(Violation::new("S1 silent loss", detail));
        }
        self.settled += 1;
        self.trace.record(&[4, attachment as u64, found]);
        self.trace.record_bytes(&image);
        self.trace.log(self.now, || {
            format!("v{attachment} recovered: prefix {found} of {before}")
        });
        self.serve(attachment);
        Ok(())
    }
}
