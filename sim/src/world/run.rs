//! The loop of a world: the next event, what it causes, and what must hold after it.
//!
//! It knows when a world is over or stuck; what an event means belongs to the files beside it.

use std::cmp::Reverse;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::outcome::Outcome;
use super::{Event, Phase, ProcessEvent, World};
use crate::node::Node;
use crate::panics::panic_violation;
use crate::trace::Violation;
use crate::transport::{ReqId, Transport};

/// The engine's invariants are looked at after every so many events: after each one they would
/// take a quarter of the time and more.
const INVARIANTS_EVERY: u64 = 4;
/// Events after which a world that still goes on is called a livelock.
const EVENTS_MAX: u64 = 500_000;
/// Virtual time that everything may take after the faults have ended.
const HEAL_NS: u64 = 900_000_000_000;

impl World {
    /// Runs to the end and tells what happened.
    ///
    /// A panic (an assertion of the engine, or of the simulator) is a violation like any other.
    /// What it left behind is not dropped: drops of a broken engine would panic again.
    pub fn run(self) -> Outcome {
        self.run_watched(|_| true)
    }

    /// Runs to the end, or until `continues`, which looks at the world after each event, says no.
    pub fn run_watched(self, mut continues: impl FnMut(&World) -> bool) -> Outcome {
        let mut world = ManuallyDrop::new(self);
        let seed = world.seed;
        let result = catch_unwind(AssertUnwindSafe(|| {
            let violation = world.run_steps(&mut continues);
            world.outcome(violation)
        }));
        match result {
            Ok(outcome) => {
                let drop = catch_unwind(AssertUnwindSafe(|| ManuallyDrop::into_inner(world)));
                match drop {
                    Ok(_) => outcome,
                    Err(panic) => Outcome::from_violation(seed, panic_violation(&*panic)),
                }
            }
            Err(panic) => Outcome::from_violation(seed, panic_violation(&*panic)),
        }
    }

    fn run_steps(&mut self, continues: &mut dyn FnMut(&World) -> bool) -> Option<Violation> {
        let violation = loop {
            match self.step() {
                Ok(true) if continues(self) => {}
                Ok(true) => return None,
                Ok(false) => return None,
                Err(violation) => break violation,
            }
        };
        self.trace
            .log(self.now, || format!("VIOLATION {violation}"));
        Some(violation)
    }

    fn outcome(&mut self, violation: Option<Violation>) -> Outcome {
        for machine in &self.machines {
            self.faults.add(&machine.disk.counts);
        }
        self.faults.add(&self.store.counts);
        let tail = match violation {
            Some(_) => self.trace.tail().map(str::to_owned).collect(),
            None => Vec::new(),
        };
        let plan = self.plan_report();
        Outcome {
            plan,
            seed: self.seed,
            digest: self.trace.digest(),
            events: self.trace.events(),
            virtual_ns: self.now,
            answered: self.answered,
            errors: self.errors,
            settled: self.settled,
            flush_ns: self.flush_ns,
            faults: self.faults.clone(),
            violation,
            tail,
        }
    }

    /// One event. False when the world is over.
    fn step(&mut self) -> Result<bool, Violation> {
        if self.phase == Phase::Done {
            return Ok(false);
        }
        let Some((at, order, event)) = self.next_event() else {
            return Err(self.liveness_violation("nothing will ever happen again"));
        };
        self.now = self.now.max(at);
        let is_late = self.now > self.healed_at.saturating_add(HEAL_NS);
        let is_endless = self.trace.events() > EVENTS_MAX;
        if is_late {
            return Err(self.liveness_violation("the deadline after the last fault has passed"));
        }
        if is_endless {
            return Err(self.liveness_violation("events without end"));
        }
        self.trace.record(&[self.now, order]);
        self.handle_event(event)?;
        self.judge_roots()?;
        self.judge_passes()?;
        self.count_compactions();
        self.judge_scrubs()?;
        self.pump()?;
        let due = !self.clients_only && self.trace.events().is_multiple_of(INVARIANTS_EVERY);
        for machine in self.machines.iter().filter(|_| due) {
            if let Some(node) = &machine.node {
                node.check_invariants()?;
            }
        }
        self.planned_crash(event)?;
        self.pass_set_back();
        if self.trace.events() >= self.crash_at && self.phase == Phase::Work {
            self.crash_now()?;
        }
        Ok(true)
    }

    /// The next event: the earliest, unless a plan puts that one off.
    fn next_event(&mut self) -> Option<(u64, u64, Event)> {
        let Reverse((mut at, mut order, mut event)) = self.heap.pop()?;
        if !self.is_single() {
            self.now = self.now.max(at);
            while let Some(until) = self.paused_until(event) {
                self.heap.push(Reverse((until, order, event)));
                Reverse((at, order, event)) = self.heap.pop()?;
                self.now = self.now.max(at);
            }
        }
        let Some(delay) = self.next_delay() else {
            return Some((at, order, event));
        };
        self.heap.push(Reverse((at + delay, order, event)));
        self.heap.pop().map(|Reverse(next)| next)
    }

    fn handle_event(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Disk(machine, id) => self.on_disk_done(machine, id),
            Event::Memory(machine, id) => self.on_memory_done(machine, id),
            Event::Deliver(id) => {
                self.store.deliver(id);
                Ok(())
            }
            Event::Answer(id) => {
                self.answer(id);
                Ok(())
            }
            Event::Redeliver(id) => {
                self.store.redeliver(id);
                Ok(())
            }
            Event::Operator => {
                self.operate();
                Ok(())
            }
            Event::Resumed(machine) => {
                self.on_resumed(machine);
                Ok(())
            }
            Event::OutageEnd => {
                self.store.outage = false;
                Ok(())
            }
            Event::Process(process, event) => {
                if let Some(machine) = self.machine_of(process) {
                    self.handle_process_event(machine, event);
                }
                Ok(())
            }
        }
    }

    fn handle_process_event(&mut self, machine: usize, event: ProcessEvent) {
        match event {
            ProcessEvent::Boot => self.boot(machine),
            ProcessEvent::Resume { attachment, req } => {
                self.trace
                    .log(self.now, || format!("v{attachment} request {req} goes on"));
                if let Some(transport) = &mut self.attachments[attachment].transport {
                    transport.resume(ReqId(req));
                }
            }
            ProcessEvent::Jobs => {
                let there = &mut self.machines[machine];
                there.jobs_due = false;
                if let Some(node) = &mut there.node {
                    node.run_jobs();
                }
            }
            ProcessEvent::Tick => {
                let there = &mut self.machines[machine];
                // An earlier tick may have taken the place of this one.
                if there.tick_at.is_some_and(|at| at <= self.now) {
                    there.tick_at = None;
                    if let Some(node) = &mut there.node {
                        node.advance(self.now + there.clock_ns);
                    }
                }
            }
            ProcessEvent::Computed(id) => {
                if let Some(node) = &mut self.machines[machine].node {
                    node.on_computed(id);
                }
            }
            ProcessEvent::Client { attachment, client } => self.run_client(attachment, client),
            ProcessEvent::Rescan {
                attachment,
                sector,
                sectors,
                tries,
            } => self.scan(attachment, sector..sector + sectors, tries),
            ProcessEvent::ResumeReader { reader, req } => self.resume_reader(reader, ReqId(req)),
            ProcessEvent::LastRead(nth) => self.read_again(nth),
            ProcessEvent::ScriptsEnd => self.end_scripts(),
            ProcessEvent::Retry { attachment } => self.bring_up(attachment),
            ProcessEvent::Reissue { attachment, req } => self.reissue(attachment, ReqId(req)),
            ProcessEvent::Recreate { line } => self.on_recreate(line),
            ProcessEvent::RecoveryPointPassed => self.end_from_the_store(),
        }
    }

    /// Carries everything that the last event caused as far as it goes without waiting.
    pub(super) fn pump(&mut self) -> Result<(), Violation> {
        if !self.is_single() {
            self.drop_fenced_attachments();
        }
        if !self.is_single() || self.points.is_to_restore() {
            self.close_quiet_attachments();
        }
        loop {
            let mut idle = true;
            for attachment in 0..self.attachments.len() {
                idle &= !self.pump_attachment(attachment)?;
            }
            for machine in 0..self.machines.len() {
                idle &= !self.pump_machine(machine)?;
            }
            idle &= !self.pump_readers()?;
            if idle {
                break;
            }
        }
        for machine in 0..self.machines.len() {
            let there = &self.machines[machine];
            let ready = there.node.as_ref().is_some_and(Node::jobs_ready);
            if ready && !there.jobs_due {
                self.machines[machine].jobs_due = true;
                let delay = self.wake_delay();
                self.at_process(machine, delay, ProcessEvent::Jobs);
            }
            self.schedule_tick(machine);
        }
        self.check_phase()
    }

    /// What the server of one machine tells and asks. True if there was anything.
    fn pump_machine(&mut self, machine: usize) -> Result<bool, Violation> {
        let Some(node) = &mut self.machines[machine].node else {
            return Ok(false);
        };
        let events = node.take_events();
        let mut busy = !events.is_empty();
        for event in events {
            if self.machines[machine].node.is_none() {
                // The event before was its end: nobody hears what else it said.
                break;
            }
            self.on_node_event(machine, event)?;
        }
        let requests = self.machines[machine].node.as_mut();
        let requests = requests.map(Node::take_requests).unwrap_or_default();
        busy |= !requests.is_empty();
        for request in requests {
            self.submit(machine, request);
        }
        Ok(busy)
    }

    fn liveness_violation(&self, why: &str) -> Violation {
        let mut detail = format!("{why}; phase {:?}", self.phase);
        for attachment in &self.attachments {
            detail.push_str(&format!(
                "\n  {}: {:?}",
                self.lines[attachment.line].name, attachment.phase
            ));
            for line in attachment.transport.iter().flat_map(Transport::describe) {
                detail.push_str(&format!("\n    {line}"));
            }
        }
        for node in self.machines.iter().flat_map(|machine| &machine.node) {
            detail.push_str(&format!("\n  {}", node.describe()));
        }
        Violation::new("S10 liveness", detail)
    }
}
