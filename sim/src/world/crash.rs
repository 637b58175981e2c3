//! How processes and machines die in a world.

use super::{Phase, ProcessEvent, World};
use crate::disk::{IoResult, SimDisk};
use crate::faults::Fault;
use crate::node::Node;
use crate::oracle::history::{Loss, Value};
use crate::rng::Rng;
use crate::trace::Violation;
use crate::transport::{PieceId, ReqId, TransportEvent};
use crate::workload::op_range;

/// Crashes in a row: after so many the machine is given time to recover.
const UNSETTLED_MAX: u32 = 4;
/// Events after which nothing crashes any more. Lives that are all shorter than a scan of the volume, or than
/// an upload, would never let the clients' work end.
const CRASHES_END: u64 = 100_000;

impl World {
    /// Draws when the next crash comes, counted in events: idle time is not worth crashing in.
    pub(super) fn draw_crash(&mut self) {
        self.crash_on = None;
        let mean = self.profile.crash_every;
        let is_over = self.trace.events() >= CRASHES_END;
        self.crash_at = if mean == 0 || self.unsettled >= UNSETTLED_MAX || is_over {
            u64::MAX
        } else if self.unsettled > 0 && self.chance.below(2) == 0 {
            // Into the recovery of the one before.
            self.trace.events() + self.chance.within(1, 150)
        } else {
            self.trace.events() + self.chance.within(1, 2 * mean)
        };
    }

    /// A crash is due.
    pub(super) fn crash_now(&mut self) -> Result<(), Violation> {
        let machine = match self.machines.len() {
            1 => 0,
            several => self.chance.below(several as u64) as usize,
        };
        let machine = self.crash_on.take().unwrap_or(machine);
        let kind = self.chance.weighted(&self.profile.crash_weights);
        if self.unsettled > 0 {
            self.count(Fault::CrashInRecovery);
        }
        self.unsettled += 1;
        match kind {
            Some(1) => self.host_crash(machine),
            Some(2) => self.host_loss(machine),
            _ => self.process_crash(machine),
        }
        self.draw_crash();
        Ok(())
    }

    /// The server process is gone. What it had in flight is decided when its successor starts.
    pub(super) fn kill_process(&mut self, machine: usize) {
        let next = self.next_process(machine);
        self.machines[machine].end_process(next);
        self.lose_point_calls(machine);
        let here = &self.attachments;
        self.requests
            .retain(|_, request| here[request.attachment].machine != machine);
        for attachment in &mut self.attachments {
            if attachment.machine == machine {
                attachment.forget_process();
            }
        }
    }

    pub(super) fn process_crash(&mut self, machine: usize) {
        self.count(Fault::ProcessCrash);
        self.trace
            .log(self.now, || format!("m{machine} process crash"));
        self.machines[machine].rings.detach();
        self.keep_in_flight(machine);
        // What is in flight lands or not: the next process gets a word that may be wrong.
        let there = &self.machines[machine];
        let name = format!("continues {}", there.process);
        let takes_place = Rng::stream(self.seed, &name).below(2) == 0;
        let told = there.node.as_ref().map(Node::continuation);
        let told = told.or(there.continues);
        let told = told.filter(|_| takes_place);
        let cache = there.node.as_ref().filter(|_| takes_place);
        let cache = cache.and_then(Node::list_cache);
        self.kill_process(machine);
        self.machines[machine].continues = told;
        self.machines[machine].cache = cache;
        let there = &mut self.machines[machine];
        there.disk.process_crash();
        let mut loss = Loss::Process;
        if self.chance.draw_rate(self.profile.rings.gone) && there.rings.clear() {
            // The ring directory was wiped: unflushed writes are lost, and it must be said.
            there.ring_gone = !there.went_down;
            self.count(Fault::RingGone);
            loss = Loss::Host;
        } else if self.chance.draw_rate(self.profile.rings.elsewhere) && !there.rings.is_empty() {
            // The same for this start; the one that comes back finds rings of an older session.
            there.ring_gone = !there.went_down;
            std::mem::swap(&mut there.rings, &mut there.other_rings);
            self.count(Fault::RingElsewhere);
            loss = Loss::Host;
        }
        self.record_loss(machine, loss);
        if self.phase == Phase::Work && self.chance.draw_rate(self.profile.outage_at_crash) {
            self.begin_outage();
        }
        self.restart(machine);
    }

    pub(super) fn host_crash(&mut self, machine: usize) {
        self.count(Fault::HostCrash);
        self.trace.log(self.now, || {
            format!("m{machine} host crash, {:?}", self.profile.cut)
        });
        self.machines[machine].rings.detach();
        self.forget_devices(machine);
        self.kill_process(machine);
        self.boots += 1;
        let there = &mut self.machines[machine];
        there.disk.host_crash(self.profile.cut);
        there.boot_id = self.boots;
        (there.continues, there.cache) = (None, None);
        (there.ring_gone, there.went_down) = (false, true);
        if self.chance.draw_rate(self.profile.rings.stale) && !there.rings.is_empty() {
            self.count(Fault::RingStale);
        } else {
            there.rings.clear();
            there.other_rings.clear();
        }
        self.record_loss(machine, Loss::Host);
        self.restart(machine);
    }

    /// The machine is gone for good; another one, with an empty disk, takes over.
    pub(super) fn host_loss(&mut self, machine: usize) {
        self.count(Fault::HostLoss);
        self.trace.log(self.now, || format!("m{machine} host loss"));
        self.note_exposure(machine);
        self.lose_logged_snapshots(machine);
        self.lose_logged_forks(machine);
        self.forget_devices(machine);
        self.kill_process(machine);
        if self.has_gone_back() && !self.has_gone_on() {
            // Only its log knew that the store had more.
            self.phase = Phase::Done;
            return;
        }
        let rng = Rng::stream(self.seed, &format!("disk {}", self.disks));
        self.disks += 1;
        self.boots += 1;
        let single = self.is_single();
        let is_last = matches!(self.phase, Phase::LastSync | Phase::LastWait);
        let there = &mut self.machines[machine];
        self.faults.add(&there.disk.counts);
        let rates = std::mem::take(&mut there.disk.faults);
        there.disk = SimDisk::new(rng, rates, self.profile.corruptible);
        there.rings.clear();
        there.other_rings.clear();
        there.boot_id = self.boots;
        (there.continues, there.cache) = (None, None);
        (there.ring_gone, there.went_down) = (false, true);
        there.take_over = single || is_last;
        there.failed_boots = 0;
        (there.is_clone, there.shares_log, there.is_poisoned) = (false, false, false);
        there.has_opened = false;
        if self.is_single() {
            self.record_loss(machine, Loss::Cache);
        } else {
            self.forget_attachments(machine);
        }
        self.format_disk(machine);
        self.restart(machine);
    }

    fn forget_devices(&mut self, machine: usize) {
        let attachments = self.attachments.iter_mut();
        for attachment in attachments.filter(|at| at.machine == machine) {
            attachment.forget_device();
        }
    }

    pub(super) fn restart(&mut self, machine: usize) {
        let delay = self.latency(1_000_000);
        self.at_process(machine, delay, ProcessEvent::Boot);
    }

    /// A move ends. Now and then the process dies inside the commit that follows: of the words
    /// that it was writing to the ring, only some are there.
    pub(super) fn on_moved(
        &mut self,
        attachment: usize,
        req: ReqId,
        piece: PieceId,
        result: IoResult,
    ) -> Result<(), Violation> {
        // A commit in several parts can be torn between them: the more interesting place.
        let transport = self.attachments[attachment].transport.as_ref();
        let parts = transport.map_or(0, |transport| transport.pieces(req)) as u32;
        let rate = self.profile.rings.torn / 40 * if parts > 1 { 10 } else { 1 };
        let tear = self.phase == Phase::Work
            && self.profile.crash_every > 0
            && self.chance.draw_rate(rate);
        let machine = self.attachments[attachment].machine;
        let before = tear.then(|| self.machines[machine].rings.snapshot());
        let Some(transport) = &mut self.attachments[attachment].transport else {
            return Ok(());
        };
        transport.on_moved(req, piece, result);
        let Some(before) = before else { return Ok(()) };
        let committed = transport.seen.iter().find_map(|seen| match seen {
            TransportEvent::Committed(id, parts) if *id == req => Some(parts.clone()),
            _ => None,
        });
        let Some(parts) = committed else {
            return Ok(());
        };
        if !self.machines[machine].rings.tear(&before, &mut self.chance) {
            return Ok(());
        }
        // Nobody was told of this commit; it may be there, wholly or a prefix of its parts.
        let op = self.requests[&req].op;
        let mut at = op_range(&op).start;
        for sectors in parts {
            self.attachments[attachment]
                .history
                .commit(at..at + sectors, Value::Write(req.0));
            at += sectors;
        }
        self.attachments[attachment].is_torn = true;
        self.count(Fault::TornCall);
        self.unsettled += 1;
        self.process_crash(machine);
        self.draw_crash();
        Ok(())
    }
}
