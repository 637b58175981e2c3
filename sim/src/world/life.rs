//! How a server process comes up, brings its volumes up, and how a world ends.

use super::names::is_of_renaming;
use super::{AttachmentPhase, Phase, ProcessEvent, World};
use crate::disk::{DiskFaults, Io, Origin};
use crate::faults::Fault;
use crate::node::{Failure, Node, NodeEvent, RecoveryReport, Setup};
use crate::oracle::history::Loss;
use crate::rng::Rng;
use crate::store::StoreFaults;
use crate::trace::Violation;
use crate::transport::Transport;
use blkmq::io::FileId;

/// Boots that fail in a row before the machine is given up, in worlds where a disk can fail.
const BOOTS_MAX: u32 = 12;

impl World {
    /// A new machine's log file begins with zeroes, as a new file does; what lies behind was
    /// never written.
    pub(super) fn format_disk(&mut self, machine: usize) {
        let disk = &mut self.machines[machine].disk;
        let faults = std::mem::take(&mut disk.faults);
        let file = FileId::LOG.0;
        let write = Io::Write {
            file,
            offset: 0,
            data: vec![0; 8192].into(),
        };
        for io in [write, Io::Sync { file }] {
            let id = disk.submit(Origin::Engine, io);
            disk.finish(id);
        }
        disk.faults = faults;
    }

    pub(super) fn boot(&mut self, machine: usize) {
        let there = &mut self.machines[machine];
        let process = there.process;
        self.trace.log(self.now, || {
            format!(
                "m{machine} process {process} boots, boot id {}",
                there.boot_id
            )
        });
        let identity = Rng::stream(self.seed, &format!("identity {process}"));
        let setup = Setup {
            limits: self.profile.limits.clone(),
            rings: there.rings.clone(),
            boot_id: there.boot_id,
            take_over: there.take_over,
            identity,
            now: self.now + there.clock_ns,
            continues: there.continues.take(),
            cache: there.cache.take(),
        };
        there.node = Some(Node::boot(setup));
    }

    pub(super) fn on_node_event(
        &mut self,
        machine: usize,
        event: NodeEvent,
    ) -> Result<(), Violation> {
        self.trace.record(&[9]);
        self.trace
            .log(self.now, || format!("m{machine} engine: {event:?}"));
        match event {
            NodeEvent::Booted(Ok(report)) => {
                self.on_booted(machine, report);
                Ok(())
            }
            NodeEvent::Booted(Err(failure)) => self.on_boot_failed(machine, &failure),
            NodeEvent::Opened(attachment, Ok(device)) => {
                let here = &mut self.attachments[attachment];
                here.idle_boots = 0;
                self.lines[here.line].created = true;
                self.machines[here.machine].has_opened = true;
                self.note_opening(attachment);
                self.attachments[attachment].transport = Some(Transport::new(device));
                if self.has_no_scan() {
                    self.attachments[attachment].history.assume_whole();
                    self.serve(attachment);
                } else {
                    self.start_scan(attachment);
                }
                Ok(())
            }
            NodeEvent::Opened(attachment, Err(failure)) => {
                self.on_open_failed(attachment, &failure)
            }
            NodeEvent::Served(attachment, result) => {
                self.on_served(attachment, result.ok());
                Ok(())
            }
            NodeEvent::Checked(attachment, goes_on) => self.on_checked(attachment, goes_on),
            NodeEvent::Created(attachment, result) => {
                if self.on_recreated(attachment, &result) {
                    return Ok(());
                }
                self.attachments[attachment].phase = AttachmentPhase::Down;
                match result {
                    Ok(()) => self.lines[self.attachments[attachment].line].created = true,
                    // An earlier try, whose end nobody saw, made it.
                    Err(Failure::Exists(_)) => {}
                    Err(failure) => return self.on_open_failed(attachment, &failure),
                }
                self.bring_up(attachment);
                Ok(())
            }
            NodeEvent::Closed(attachment, result) => {
                self.on_closed(attachment, &result)?;
                self.restore_closed(attachment, &result);
                Ok(())
            }
            NodeEvent::Deleted(line, result) => {
                self.on_deleted(line, &result);
                Ok(())
            }
            NodeEvent::Synced {
                volume: attachment,
                client,
                covers,
                result,
            } => self.on_synced(attachment, client, covers, &result),
            NodeEvent::Point(token, end) => self.on_point(token, end),
        }
    }

    fn on_booted(&mut self, machine: usize, report: RecoveryReport) {
        if report.goes_on {
            self.count(Fault::LogGoesOn);
        }
        let there = &mut self.machines[machine];
        there.rings_reported.extend(report.rings_lost);
        there.failed_boots = 0;
        there.is_up = true;
        if there.disk.has_corrupted() {
            // One copy was all there was: what it held may be lost, but nothing may be
            // made up. Judged only now, for the disk lies mostly when recovery reads it.
            self.record_loss(machine, Loss::Cache);
        }
        self.machines[machine].is_poisoned |= report.poisoned;
        if report.poisoned {
            // A sync failed: only what frames covered before that is served (R10).
            self.record_loss(machine, Loss::Host);
        }
        for attachment in 0..self.attachments.len() {
            if self.attachments[attachment].machine == machine {
                self.attachments[attachment].idle_boots += 1;
                self.bring_up(attachment);
            }
        }
    }

    /// Opens a volume; if it was never created, that comes first.
    pub(super) fn bring_up(&mut self, attachment: usize) {
        let here = &mut self.attachments[attachment];
        if here.phase != AttachmentPhase::Down || !here.wanted {
            if here.phase == AttachmentPhase::Closing && here.transport.is_none() {
                self.close(attachment);
            }
            return;
        }
        let (machine, line) = (here.machine, here.line);
        self.note_ask(attachment);
        let before_the_store = self.chance.draw_rate(self.profile.unchecked);
        if let Some(node) = &mut self.machines[machine].node {
            let name = &self.lines[line].name;
            match before_the_store {
                true => node.serve_unchecked(attachment, name),
                false => node.open(attachment, name, false),
            }
        }
    }

    /// A process is about to be asked for this volume.
    pub(super) fn note_ask(&mut self, attachment: usize) {
        let had_root = self.has_root(self.attachments[attachment].line);
        let here = &mut self.attachments[attachment];
        (here.phase, here.had_root) = (AttachmentPhase::Opening, had_root);
        here.asked_at = self.now;
    }

    fn on_boot_failed(&mut self, machine: usize, failure: &Failure) -> Result<(), Violation> {
        self.machines[machine].failed_boots += 1;
        if !self.profile.errors_allowed() {
            let detail = format!("the server does not start: {failure:?}");
            return Err(Violation::new("S1 process crash", detail));
        }
        if self.machines[machine].failed_boots > BOOTS_MAX {
            self.host_loss(machine);
            return Ok(());
        }
        let next = self.next_process(machine);
        self.machines[machine].end_process(next);
        self.machines[machine].disk.process_crash();
        self.at_process(machine, 50_000_000, ProcessEvent::Boot);
        Ok(())
    }

    fn on_open_failed(&mut self, attachment: usize, failure: &Failure) -> Result<(), Violation> {
        self.attachments[attachment].phase = AttachmentPhase::Down;
        if self.has_gone_back() {
            let unanswered = matches!(failure, Failure::Store(_) | Failure::Disk(_));
            self.judge_set_back_refusal(failure)?;
            if !unanswered && self.phase == Phase::Done {
                return Ok(());
            }
        }
        let here = &self.attachments[attachment];
        let (machine, line) = (here.machine, here.line);
        let has_new_name = is_of_renaming(failure) && self.is_renamed_since(line, here.asked_at);
        let here = &mut self.attachments[attachment];
        match failure {
            Failure::NoSuchVolume(_) if !self.lines[line].created => {
                here.phase = AttachmentPhase::Creating;
                let name = self.lines[line].name.clone();
                let (bytes, block) = (self.profile.sectors * 512, self.profile.block * 512);
                if let Some(node) = &mut self.machines[machine].node {
                    node.create(attachment, &name, bytes, block as u32);
                }
                Ok(())
            }
            // It has another name by now.
            _ if has_new_name => {
                self.look_for_renamed(attachment);
                Ok(())
            }
            // A deletion whose answer was lost took effect after all.
            Failure::NoSuchVolume(_) if self.lines[line].may_be_deleted => {
                here.wanted = false;
                here.forget_device();
                Ok(())
            }
            // A log whose sync failed, or whose disk lied, may have lost what it knew of its own
            // sessions: it is for the operator to say that the volume is this host's.
            Failure::Held { .. } if self.is_single() && self.machines[machine].may_forget() => {
                self.host_loss(machine);
                Ok(())
            }
            // Somebody else has it, or it was deleted: the operator may think again.
            _ if self.may_be_anothers(attachment, failure) => {
                self.attachments[attachment].wanted = false;
                self.attachments[attachment].forget_device();
                Ok(())
            }
            // Another volume's opening said so at the same moment, and the process is gone since.
            Failure::HostStopped(_) if self.machines[machine].node.is_none() => Ok(()),
            // Its log in the store is not what this one says: the operator gives it an empty directory.
            Failure::HostStopped(_)
                if self.machines[machine].shares_log
                    || self.machines[machine].disk.has_corrupted() =>
            {
                self.host_loss(machine);
                Ok(())
            }
            Failure::Store(_) => {
                self.at_process(machine, 100_000_000, ProcessEvent::Retry { attachment });
                Ok(())
            }
            Failure::Disk(_) | Failure::Corrupt(_) | Failure::Poisoned
                if self.profile.errors_allowed() =>
            {
                self.machines[machine].failed_boots += 1;
                if self.machines[machine].failed_boots > BOOTS_MAX {
                    self.host_loss(machine);
                } else {
                    self.at_process(machine, 100_000_000, ProcessEvent::Retry { attachment });
                }
                Ok(())
            }
            _ => {
                let detail = format!("volume {attachment} cannot be opened: {failure:?}");
                Err(Violation::new("S4 prefix", detail))
            }
        }
    }

    /// A volume was asked for by a name that it had: at the end it is asked for again, and before the operator may think again.
    fn look_for_renamed(&mut self, attachment: usize) {
        let here = &mut self.attachments[attachment];
        if self.phase == Phase::LastOpen {
            let machine = here.machine;
            self.at_process(machine, 100_000_000, ProcessEvent::Retry { attachment });
        } else {
            here.wanted = false;
            here.forget_device();
        }
    }

    /// Whether this may be why a volume of several hosts cannot be opened here. Of a fork that was made its root is there, or the
    /// log of one host has it.
    fn may_be_anothers(&mut self, attachment: usize, failure: &Failure) -> bool {
        if self.is_single() || self.phase == Phase::LastOpen {
            return false;
        }
        let line = self.attachments[attachment].line;
        match failure {
            Failure::Held { .. } | Failure::Fenced(_) | Failure::InUse(_) => true,
            Failure::NoSuchVolume(_) => {
                !self.lines[line].is_fork() || self.may_miss_fork(attachment)
            }
            _ => false,
        }
    }

    pub(super) fn all_serving(&mut self) {
        self.unsettled = 0;
        for machine in &mut self.machines {
            (machine.ring_gone, machine.went_down) = (false, false);
            machine.rings_reported.clear();
        }
        self.draw_crash();
    }

    /// Asks for everything that is complete now to be brought to the store.
    pub(super) fn start_sync(&mut self, attachment: usize, client: Option<usize>) {
        let covers = self.attachments[attachment].history.acked();
        if let Some(client) = client {
            self.attachments[attachment].clients[client].in_flight += 1;
        }
        let machine = self.attachments[attachment].machine;
        if let Some(node) = &mut self.machines[machine].node {
            node.sync(attachment, client, covers);
        }
    }

    fn on_synced(
        &mut self,
        attachment: usize,
        client: Option<usize>,
        covers: u64,
        result: &Result<(), Failure>,
    ) -> Result<(), Violation> {
        if let Err(failure) = result {
            if self.has_gone_back() {
                self.judge_set_back_refusal(failure)?;
            }
            let challenged = self.is_challenged(attachment);
            if challenged && matches!(failure, Failure::Fenced(_) | Failure::HostStopped(_)) {
                self.on_fenced(attachment);
            }
            if !challenged && !self.profile.errors_allowed() {
                let detail = format!("sync of attachment {attachment} failed: {failure:?}");
                return Err(Violation::new("S10 no invented errors", detail));
            }
        } else {
            self.judge_set_back_sync(covers)?;
            self.attachments[attachment].history.on_stored(covers)?;
        }
        match client {
            Some(client) => self.on_request_ended(attachment, client),
            None => self.attachments[attachment].synced = true,
        }
        Ok(())
    }

    /// Looks whether the world's phase is over.
    pub(super) fn check_phase(&mut self) -> Result<(), Violation> {
        if self.check_plan() {
            return Ok(());
        }
        let up = self.attachments.iter().all(super::Attachment::is_settled)
            && self.lines.iter().all(|line| line.recreation.is_none());
        let quiet = self.attachments.iter().all(super::Attachment::is_quiet);
        let heals = self.phase == Phase::Heal && up && quiet;
        let rests = !heals || self.points_are_at_rest()?;
        match self.phase {
            Phase::Work if self.actions_left == 0 => self.stop_faults(),
            _ if self.ends_set_back() => self.phase = Phase::Done,
            Phase::Heal if up && quiet && !rests => {}
            Phase::Heal if up && quiet && self.rests_on_recovery_point() => {
                self.await_recovery_point();
            }
            Phase::Heal if up && quiet => {
                self.trace.log(self.now, || "quiet: last sync".into());
                self.phase = Phase::LastSync;
                for attachment in 0..self.attachments.len() {
                    if self.attachments[attachment].phase == AttachmentPhase::Serving {
                        self.start_sync(attachment, None);
                    } else {
                        self.attachments[attachment].synced = true;
                    }
                }
                // What the calls emitted is carried on by the next turn of the pump.
                return self.pump();
            }
            Phase::LastSync if self.attachments.iter().all(|v| v.synced) => {
                if self.has_gone_back() && !self.has_gone_on() {
                    // Nothing came since, so nothing gave it away.
                    self.phase = Phase::Done;
                } else {
                    self.end_from_the_store();
                }
            }
            Phase::LastOpen if up => self.await_last_passes(),
            Phase::LastPasses(wanted) if self.passes >= wanted => {
                self.begin_last_reads();
                self.go_on_with_last_reads();
            }
            Phase::LastReads => self.go_on_with_last_reads(),
            _ => {}
        }
        Ok(())
    }

    /// All hosts are gone; one comes up and opens everything from the store.
    pub(super) fn end_from_the_store(&mut self) {
        self.host_loss(0);
        self.phase = Phase::LastOpen;
        self.leave_one_machine();
    }

    /// Nothing breaks from here on, and what is in flight must come to an end.
    pub(super) fn stop_faults(&mut self) {
        self.trace.log(self.now, || "healing".into());
        self.phase = Phase::Heal;
        self.healed_at = self.now;
        self.store.outage = false;
        // A share of the requests may fail for ever: everything must be stored all the same.
        if !self.profile.partial_failures {
            self.store.faults = StoreFaults::default();
        }
        for machine in &mut self.machines {
            machine.disk.faults = DiskFaults::default();
        }
    }
}
