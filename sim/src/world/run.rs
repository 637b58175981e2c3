//! The loop of a world: the next event, what it causes, and what must hold after it.
//!
//! It knows when a world is over or stuck; what an event means belongs to the files beside it.

use std::cmp::Reverse;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::outcome::Outcome;
use super::{Event, Phase, World};
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
                    Err(panic) => Outcome::broken(seed, panic_violation(&*panic)),
                }
            }
            Err(panic) => Outcome::broken(seed, panic_violation(&*panic)),
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
        self.faults.add(&self.disk.counts);
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
        if self.now > self.healed_at.saturating_add(HEAL_NS) {
            return Err(self.liveness_violation("the deadline after the last fault has passed"));
        }
        if self.trace.events() > EVENTS_MAX {
            return Err(self.liveness_violation("events without end"));
        }
        self.trace.record(&[self.now, order]);
        self.handle_event(event)?;
        self.pump()?;
        let due = !self.clients_only && self.trace.events().is_multiple_of(INVARIANTS_EVERY);
        if let Some(node) = self.node.as_ref().filter(|_| due) {
            node.check_invariants()?;
        }
        self.planned_crash(event)?;
        if self.trace.events() >= self.crash_at && self.phase == Phase::Work {
            self.crash_now()?;
        }
        Ok(true)
    }

    /// The next event: the earliest, unless a plan puts that one off.
    fn next_event(&mut self) -> Option<(u64, u64, Event)> {
        let Reverse((at, order, event)) = self.heap.pop()?;
        let Some(delay) = self.next_delay() else {
            return Some((at, order, event));
        };
        self.heap.push(Reverse((at + delay, order, event)));
        self.heap.pop().map(|Reverse(next)| next)
    }

    fn handle_event(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Boot(process) => self.boot(process),
            Event::Disk(id) => return self.on_disk_done(id),
            Event::Memory(id) => return self.on_memory_done(id),
            Event::Deliver(id) => self.store.deliver(id),
            Event::Answer(id) => self.answer(id),
            Event::Redeliver(id) => self.store.redeliver(id),
            Event::Resume {
                process,
                volume,
                req,
            } if process == self.process => {
                self.trace
                    .log(self.now, || format!("v{volume} request {req} goes on"));
                if let Some(transport) = &mut self.volumes[volume].transport {
                    transport.resume(ReqId(req));
                }
            }
            Event::Jobs(process) if process == self.process => {
                self.jobs_due = false;
                if let Some(node) = &mut self.node {
                    node.run_jobs();
                }
            }
            // An earlier tick may have taken the place of this one.
            Event::Tick(process)
                if process == self.process && self.tick_at.is_some_and(|at| at <= self.now) =>
            {
                self.tick_at = None;
                if let Some(node) = &mut self.node {
                    node.advance(self.now);
                }
            }
            Event::Client {
                process,
                volume,
                client,
            } if process == self.process => {
                self.run_client(volume, client);
            }
            Event::Rescan {
                process,
                volume,
                sector,
                sectors,
                tries,
            } if process == self.process => {
                self.scan(volume, sector..sector + sectors, tries);
            }
            Event::ScriptsEnd(process) if process == self.process => self.end_scripts(),
            Event::OutageEnd => self.store.outage = false,
            Event::Retry { process, volume } if process == self.process => {
                self.bring_up(volume);
            }
            _ => {}
        }
        Ok(())
    }

    /// Carries everything that the last event caused as far as it goes without waiting.
    pub(super) fn pump(&mut self) -> Result<(), Violation> {
        loop {
            let mut idle = true;
            for volume in 0..self.volumes.len() {
                idle &= !self.pump_volume(volume)?;
            }
            let events = self
                .node
                .as_mut()
                .map(Node::take_events)
                .unwrap_or_default();
            for event in events {
                idle = false;
                self.on_node_event(event)?;
            }
            let requests = self
                .node
                .as_mut()
                .map(Node::take_requests)
                .unwrap_or_default();
            for request in requests {
                idle = false;
                self.submit(request);
            }
            if idle {
                break;
            }
        }
        if self.node.as_ref().is_some_and(Node::jobs_ready) && !self.jobs_due {
            self.jobs_due = true;
            let delay = self.wake_delay();
            self.at(delay, Event::Jobs(self.process));
        }
        self.schedule_tick();
        self.check_phase()
    }

    fn liveness_violation(&self, why: &str) -> Violation {
        let mut detail = format!("{why}; phase {:?}", self.phase);
        for volume in &self.volumes {
            detail.push_str(&format!("\n  {}: {:?}", volume.name, volume.phase));
            for line in volume.transport.iter().flat_map(Transport::describe) {
                detail.push_str(&format!("\n    {line}"));
            }
        }
        if let Some(node) = &self.node {
            detail.push_str(&format!("\n  {}", node.describe()));
        }
        Violation::new("S10 liveness", detail)
    }
}
