//! Owns what befalls several hosts on one store: an operator who attaches, takes over, closes, deletes and
//! creates volumes under the same names, hosts that are paused and come back as zombies, and cache
//! directories that are cloned. Only worlds of several machines have any of it.

use std::ops::Range;

use volume::units::VolumeId;

use super::{AttachmentPhase, Event, Phase, ProcessEvent, World};
use crate::disk::PowerCut;
use crate::faults::Fault;
use crate::node::Failure;
use crate::oracle::history::{History, Loss};
use crate::trace::Violation;

/// A name is deleted and created again, by one process after another until it is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recreation {
    /// The process that is at it.
    process: u64,
    /// The name is free.
    deleted: bool,
}

/// The number of no volume: what an attachment that knows none goes by.
const NO_VOLUME: u64 = u64::MAX;

impl World {
    /// Whether all there is happens on one machine.
    pub(super) fn is_single(&self) -> bool {
        self.machines.len() == 1
    }

    pub(super) fn schedule_operator(&mut self) {
        if !self.is_single() {
            let pause = self.latency(self.profile.fleet.operate_ns);
            self.at(pause, Event::Operator);
        }
    }

    /// The operator acts.
    pub(super) fn operate(&mut self) {
        if matches!(self.phase, Phase::Work | Phase::Heal) {
            self.schedule_operator();
        }
        self.resume_recreations();
        if self.phase != Phase::Work {
            // What is kept for rescue holds its log space, and others wait for that.
            return self.drop_rescue_tails(0..self.machines.len());
        }
        self.actions_left = self.actions_left.saturating_sub(1);
        let attachment = self.chance.below(self.attachments.len() as u64) as usize;
        let machine = self.attachments[attachment].machine;
        if !self.machines[machine].is_up || self.machines[machine].paused_until > self.now {
            return;
        }
        if self.chance.below(4) == 0 {
            self.drop_rescue_tails(machine..machine + 1);
        }
        let fleet = self.profile.fleet.clone();
        if self.chance.draw_rate(fleet.pause) {
            return self.pause_machine(machine);
        }
        if self.chance.draw_rate(fleet.clone) {
            return self.clone_cache(machine);
        }
        if self.operate_names(attachment) {
            return;
        }
        let here = &self.attachments[attachment];
        let line = &self.lines[here.line];
        let busy = line.recreation.is_some() || !line.is_used;
        match here.phase {
            AttachmentPhase::Down if !here.wanted && !busy => {
                let take_over = self.chance.draw_rate(fleet.take_over);
                self.attachments[attachment].wanted = true;
                self.attach(attachment, take_over);
            }
            AttachmentPhase::Serving if self.chance.draw_rate(fleet.close) => {
                self.trace
                    .log(self.now, || format!("operator closes v{attachment}"));
                self.attachments[attachment].phase = AttachmentPhase::Closing;
            }
            _ => {}
        }
    }

    fn drop_rescue_tails(&mut self, machines: Range<usize>) {
        for at in machines {
            let here = self.attachments.iter();
            let here = here.filter(|attachment| attachment.machine == at && !attachment.wanted);
            let unwanted: Vec<usize> = match self.phase {
                Phase::Heal => here.map(|at| at.line).collect(),
                // It may be attached here again.
                _ => Vec::new(),
            };
            let lines = &self.lines;
            let is_unwanted = |id: VolumeId, name: &str| {
                // One without a root has the name that it was made with.
                let is_rooted = lines.iter().any(|line| line.names.ids.contains(&id));
                let mut unwanted = unwanted.iter().map(|nth| &lines[*nth]);
                unwanted.any(|line| match is_rooted {
                    true => line.names.ids.contains(&id),
                    false => line.name == name,
                })
            };
            let machine = &mut self.machines[at];
            let Some(node) = machine.node.as_mut().filter(|_| machine.is_up) else {
                continue;
            };
            if node.drop_tails(is_unwanted) {
                self.faults.count(Fault::RescueDropped);
            }
        }
    }

    fn attach(&mut self, attachment: usize, take_over: bool) {
        self.trace.log(self.now, || {
            format!("operator attaches v{attachment}, take over: {take_over}")
        });
        self.note_ask(attachment);
        let here = &self.attachments[attachment];
        if let Some(node) = &mut self.machines[here.machine].node {
            node.open(attachment, &self.lines[here.line].name, take_over);
        }
    }

    /// Nothing happens on this machine for a while; what it sent may still take effect.
    fn pause_machine(&mut self, machine: usize) {
        let length = self.latency(self.profile.fleet.pause_ns);
        self.count(Fault::HostPaused);
        self.trace.log(self.now, || {
            format!("m{machine} paused for {} ms", length / 1_000_000)
        });
        self.machines[machine].paused_until = self.now + length;
        self.at(length, Event::Resumed(machine));
    }

    /// A paused machine goes on: perhaps somebody else has its volumes.
    pub(super) fn on_resumed(&mut self, machine: usize) {
        let zombie = (0..self.attachments.len()).any(|attachment| {
            let here = &self.attachments[attachment];
            let serving = here.phase == AttachmentPhase::Serving;
            here.machine == machine && serving && self.is_challenged(attachment)
        });
        if zombie {
            self.count(Fault::ZombieResumed);
        }
    }

    /// Until when an event of a paused machine is put off.
    pub(super) fn paused_until(&self, event: Event) -> Option<u64> {
        let machine = match event {
            Event::Disk(machine, _) | Event::Memory(machine, _) => machine,
            Event::Process(process, _) => self.machine_of(process)?,
            // What comes after the answer waits for it.
            Event::Answer(call) | Event::Redeliver(call) => {
                self.machine_of(self.callers.get(&call)?.0)?
            }
            _ => return None,
        };
        let until = self.machines[machine].paused_until;
        (until > self.now).then_some(until)
    }

    /// Another machine comes up with a copy of this one's cache directory, as a power cut would have
    /// left it. It is attached to what the original is.
    fn clone_cache(&mut self, machine: usize) {
        let others = self.machines.len() as u64 - 1;
        let copy = (machine + 1 + self.chance.below(others) as usize) % self.machines.len();
        self.count(Fault::CacheCloned);
        self.trace.log(self.now, || {
            format!("m{copy} becomes a clone of m{machine}")
        });
        self.lose_logged_snapshots(copy);
        self.lose_logged_forks(copy);
        self.kill_process(copy);
        let mut disk = self.machines[machine].disk.clone();
        disk.host_crash(PowerCut::LoseAll);
        disk.counts = Default::default();
        self.boots += 1;
        let there = &mut self.machines[copy];
        self.faults.add(&there.disk.counts);
        there.disk = disk;
        there.rings.clear();
        there.boot_id = self.boots;
        there.is_clone = true;
        there.shares_log = true;
        self.machines[machine].shares_log = true;
        self.forget_attachments(copy);
        for attachment in 0..self.attachments.len() {
            let here = &self.attachments[attachment];
            if here.machine == machine {
                let (wanted, number, order) = (here.wanted, here.number, here.order);
                let mut history = here.history.clone();
                history.record_loss(Loss::Host);
                let at = self.attachment_of(copy, here.line);
                let clone = &mut self.attachments[at];
                (clone.wanted, clone.number, clone.order) = (wanted, number, order);
                clone.history = history;
            }
        }
        self.restart(copy);
    }

    pub(super) fn attachment_of(&self, machine: usize, line: usize) -> usize {
        let lines = self.lines.len();
        machine * lines + line
    }

    /// A machine with another disk knows none of its volumes.
    pub(super) fn forget_attachments(&mut self, machine: usize) {
        for attachment in 0..self.attachments.len() {
            if self.attachments[attachment].machine != machine {
                continue;
            }
            self.keep_branch(attachment);
            let here = &mut self.attachments[attachment];
            here.wanted = false;
            here.forget_device();
            here.number = NO_VOLUME;
            here.history = History::new(NO_VOLUME, self.profile.sectors);
        }
    }

    /// A volume is wanted closed, and nothing is in flight any more.
    pub(super) fn close_quiet_attachments(&mut self) {
        for attachment in 0..self.attachments.len() {
            let here = &mut self.attachments[attachment];
            let closing = here.phase == AttachmentPhase::Closing;
            if closing && here.transport.is_some() && here.is_quiet() {
                here.transport = None;
                self.close(attachment);
            }
        }
    }

    pub(super) fn close(&mut self, attachment: usize) {
        let machine = self.attachments[attachment].machine;
        if let Some(node) = &mut self.machines[machine].node {
            node.close(attachment);
        }
    }

    pub(super) fn on_closed(
        &mut self,
        attachment: usize,
        result: &Result<(), Failure>,
    ) -> Result<(), Violation> {
        let challenged = self.is_challenged(attachment);
        let here = &mut self.attachments[attachment];
        if let Err(Failure::InUse(_)) = result {
            // Something else is done to that name: it is still open.
            let machine = here.machine;
            self.at_process(machine, 50_000_000, ProcessEvent::Retry { attachment });
            return Ok(());
        }
        here.phase = AttachmentPhase::Down;
        here.wanted = false;
        match result {
            Ok(()) => {
                self.faults.count(Fault::VolumeClosed);
                here.has_let_go = true;
                let acked = here.history.acked();
                here.history.on_stored(acked)?;
                if self.chance.draw_rate(self.profile.fleet.recreate) && self.phase == Phase::Work {
                    let (line, machine) = (here.line, here.machine);
                    let process = self.machines[machine].process;
                    self.begin_recreation(line, process);
                }
                self.rename_closed(self.attachments[attachment].line);
                Ok(())
            }
            // It stays as it is; the next to open it finds out.
            Err(Failure::Store(_)) => Ok(()),
            Err(_) if challenged || self.profile.errors_allowed() => Ok(()),
            Err(failure) => {
                let detail = format!("closing v{attachment} failed: {failure:?}");
                Err(Violation::new("S10 no invented errors", detail))
            }
        }
    }

    fn begin_recreation(&mut self, line: usize, process: u64) {
        let here = &self.lines[line];
        if here.recreation.is_none() && here.names.renaming.is_none() {
            self.lines[line].recreation = Some(Recreation {
                process,
                deleted: false,
            });
            self.recreate(line);
        }
    }

    /// Asks for the next step, of the process that is at it.
    fn recreate(&mut self, line: usize) {
        let Some(recreation) = self.lines[line].recreation else {
            return;
        };
        let Some(machine) = self.machine_of(recreation.process) else {
            return;
        };
        let Some(node) = &mut self.machines[machine].node else {
            return;
        };
        self.lines[line].may_be_deleted = true;
        let name = &self.lines[line].name;
        if recreation.deleted {
            let (bytes, block) = (self.profile.sectors * 512, self.profile.block * 512);
            let attachment = machine * self.lines.len() + line;
            node.create(attachment, name, bytes, block as u32);
        } else {
            node.delete(line, name);
        }
    }

    /// What a dead process was at is done again by another.
    fn resume_recreations(&mut self) {
        for line in 0..self.lines.len() {
            let Some(recreation) = self.lines[line].recreation else {
                continue;
            };
            if self.machine_of(recreation.process).is_some() {
                continue;
            }
            let up = self.machines.iter().find(|machine| machine.is_up);
            let Some(process) = up.map(|machine| machine.process) else {
                continue;
            };
            self.lines[line].recreation = Some(Recreation {
                process,
                ..recreation
            });
            self.recreate(line);
        }
    }

    pub(super) fn on_deleted(&mut self, line: usize, result: &Result<(), Failure>) {
        let Some(recreation) = &mut self.lines[line].recreation else {
            return;
        };
        match result {
            Ok(()) | Err(Failure::NoSuchVolume(_)) => {
                recreation.deleted = true;
                self.faults.count(Fault::VolumeRecreated);
                self.numbers += 1;
                let (number, version) = (self.numbers, self.store.next_version());
                self.lines[line].begin_incarnation(number, version);
                self.recreate(line);
            }
            Err(Failure::Store(_)) => self.retry_recreation(line),
            // Somebody has it.
            Err(_) => self.lines[line].recreation = None,
        }
    }

    fn retry_recreation(&mut self, line: usize) {
        let process = self.lines[line].recreation.map(|r| r.process);
        if let Some(machine) = process.and_then(|process| self.machine_of(process)) {
            self.at_process(machine, 100_000_000, ProcessEvent::Recreate { line });
        }
    }

    /// Goes on with a recreation whose last step failed.
    pub(super) fn on_recreate(&mut self, line: usize) {
        self.recreate(line);
    }

    /// A recreation's creation ended. False: this was another's.
    pub(super) fn on_recreated(&mut self, attachment: usize, result: &Result<(), Failure>) -> bool {
        let line = self.attachments[attachment].line;
        let first = self.attachments[attachment].phase == AttachmentPhase::Creating;
        if first || self.lines[line].recreation.is_none() {
            return false;
        }
        match result {
            Ok(()) | Err(Failure::Exists(_)) => {
                self.lines[line].recreation = None;
                self.lines[line].may_be_deleted = false;
                let here = &self.attachments[attachment];
                if here.phase == AttachmentPhase::Down && !here.wanted {
                    self.attachments[attachment].wanted = true;
                    self.attach(attachment, false);
                }
            }
            Err(_) => self.retry_recreation(line),
        }
        true
    }

    /// A host learned that it was fenced: from now on it completes nothing of this volume.
    pub(super) fn on_fenced(&mut self, attachment: usize) {
        let here = &mut self.attachments[attachment];
        if here.phase != AttachmentPhase::Closing {
            here.phase = AttachmentPhase::Fenced;
            here.fail_pending();
        }
    }

    /// Fenced attachments are given up once nothing is in flight.
    pub(super) fn drop_fenced_attachments(&mut self) {
        for attachment in 0..self.attachments.len() {
            let here = &mut self.attachments[attachment];
            if here.phase == AttachmentPhase::Fenced && here.is_quiet() && here.scan_left == 0 {
                here.phase = AttachmentPhase::Down;
                here.wanted = false;
                here.transport = None;
                let machine = here.machine;
                if let Some(node) = &mut self.machines[machine].node {
                    node.forget(attachment);
                }
            }
        }
    }

    /// Everything but the first machine is gone; that one opens all volumes from the store.
    pub(super) fn leave_one_machine(&mut self) {
        for machine in 1..self.machines.len() {
            self.lose_logged_forks(machine);
            self.kill_process(machine);
            self.machines[machine].is_up = false;
        }
        for attachment in &mut self.attachments {
            attachment.wanted = attachment.machine == 0 && self.lines[attachment.line].is_used;
        }
    }
}
