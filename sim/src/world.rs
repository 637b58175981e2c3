//! Owns one simulated world: virtual time, the heap of events, and what lives in it.
//!
//! A world is a machine with a disk and rings, a server process that comes and goes, an object
//! store that stays, and clients. Everything that will happen is an event at a virtual time;
//! the seed decides the times. The world runs until its clients have done their share, then
//! heals, waits for quiet, uploads everything, throws the machine away and opens the volumes
//! from the store alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::batch;
use crate::disk::{IoId, SimDisk};
use crate::faults::{Fault, FaultCounts};
use crate::node::{Node, Volume};
use crate::oracle::history::{History, Loss};
use crate::profile::Profile;
use crate::rings::RingDir;
use crate::rng::Rng;
use crate::store::{CallId, SimStore};
use crate::trace::{Trace, Violation};
use crate::transport::{ReqId, Transport};

mod clients;
mod crash;
mod fork;
mod io;
mod life;
mod plan;

pub use plan::{DELAYS_NS, Order, Plan, PlanReport, PlannedCrash};

/// Something that will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A server process starts.
    Boot(u64),
    /// A disk operation completes.
    Disk(IoId),
    /// A memory-file operation completes.
    Memory(u64),
    /// A call reaches the store.
    Deliver(CallId),
    /// Its answer reaches the caller.
    Answer(CallId),
    /// It takes effect late, or again.
    Straggle(CallId),
    /// A woken request of a volume goes on, if its process still lives.
    Resume {
        process: u64,
        volume: usize,
        req: u64,
    },
    /// The engine's procedures run.
    Jobs(u64),
    /// Time passes for the engine.
    Tick(u64),
    /// A client acts.
    Client {
        process: u64,
        volume: usize,
        client: usize,
    },
    /// A part of a recovered volume could not be read: once more.
    Rescan {
        process: u64,
        volume: usize,
        sector: u64,
        sectors: u64,
        tries: u32,
    },
    /// The store is back.
    OutageEnd,
    /// The scripts of a planned world, and what they set in motion, are over.
    ScriptsEnd(u64),
    /// The next try to bring a volume up.
    Retry { process: u64, volume: usize },
}

/// Where the world stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Clients work, things break.
    Work,
    /// Nothing breaks any more; everything in flight must complete.
    Heal,
    /// Everything is being uploaded.
    LastSync,
    /// The machine is gone; the volumes are being opened from the store.
    LastOpen,
    /// It is over.
    Done,
}

/// Where a volume stands in the life of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    Down,
    Opening,
    Creating,
    /// Its whole image is being read back.
    Scanning,
    Serving,
}

struct VolumeState {
    name: String,
    created: bool,
    stand: Stand,
    history: History,
    transport: Option<Transport<Volume>>,
    clients: Vec<clients::Client>,
    image: Vec<u8>,
    scan_left: u64,
    unread: BTreeSet<u64>,
    /// A sync to the store is wanted before the end.
    synced: bool,
}

/// What a run amounted to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// Digest of all events.
    pub digest: u64,
    /// Events.
    pub events: u64,
    /// Virtual time that passed.
    pub virtual_ns: u64,
    /// Client requests answered.
    pub answered: u64,
    /// Client requests answered with an error.
    pub errors: u64,
    /// Recovered images judged.
    pub settled: u64,
    /// Faults that took effect.
    pub faults: FaultCounts,
    /// What was violated, if anything.
    pub violation: Option<Violation>,
    /// The last lines of the trace, when there was a violation.
    pub tail: Vec<String>,
    /// What a planned world tells.
    pub plan: PlanReport,
}

impl Outcome {
    /// A world that broke off: only its seed and the reason are known.
    pub fn broken(seed: u64, violation: Violation) -> Outcome {
        Outcome {
            seed,
            digest: 0,
            events: 0,
            virtual_ns: 0,
            answered: 0,
            errors: 0,
            settled: 0,
            faults: FaultCounts::default(),
            violation: Some(violation),
            tail: Vec::new(),
            plan: PlanReport::default(),
        }
    }
}

/// How a run is watched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    /// Print each event.
    pub print: bool,
    /// Keep so many lines for the report of a violation.
    pub keep: usize,
    /// Judge by what clients see alone: do not look at the engine's invariants.
    pub clients_only: bool,
}

/// The engine's invariants are looked at after every so many events: after each one they would
/// take a quarter of the time and more.
const INVARIANTS_EVERY: u64 = 4;
/// Events after which a world that still goes on is called a livelock.
const EVENTS_MAX: u64 = 500_000;
/// Virtual time that everything may take after the faults have ended.
const HEAL_NS: u64 = 900_000_000_000;

/// The world of one seed.
pub struct World {
    profile: Profile,
    seed: u64,
    now: u64,
    order: u64,
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    trace: Trace,
    clients_only: bool,
    phase: Phase,
    healed_at: u64,
    latency: Rng,
    chance: Rng,
    disk: SimDisk,
    disks: u64,
    store: SimStore,
    rings: Arc<RingDir>,
    boot_id: u64,
    node: Option<Node>,
    process: u64,
    jobs_due: bool,
    tick_at: Option<u64>,
    take_over: bool,
    failed_boots: u32,
    volumes: Vec<VolumeState>,
    owners: BTreeMap<IoId, io::Owner>,
    callers: BTreeMap<CallId, (u64, crate::node::RequestId)>,
    memory: io::Memory,
    requests: BTreeMap<ReqId, clients::Issued>,
    next_req: u64,
    actions_left: u64,
    crash_at: u64,
    /// Crashes since a recovery was judged.
    unsettled: u32,
    planned: Option<plan::Planned>,
    /// The rings vanished in the same boot, and nothing excuses a loss but that.
    ring_gone: bool,
    /// The machine itself went down since the last recovery was judged.
    machine_down: bool,
    /// Volumes of which the server said that their rings were lost.
    rings_reported: BTreeSet<String>,
    faults: FaultCounts,
    answered: u64,
    errors: u64,
    settled: u64,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("seed", &self.seed)
            .field("now", &self.now)
            .finish()
    }
}

impl World {
    /// The world of `seed`, drawn by its profile.
    pub fn new(seed: u64, watch: Watch) -> World {
        World::with(seed, Profile::draw(seed), watch)
    }

    /// The world of `seed` with a given profile.
    pub fn with(seed: u64, profile: Profile, watch: Watch) -> World {
        let disk = SimDisk::new(
            Rng::stream(seed, "disk 0"),
            profile.disk.clone(),
            profile.corruptible,
        );
        let store = SimStore::new(Rng::stream(seed, "store"), profile.store.clone());
        let volumes = (0..profile.volumes)
            .map(|v| VolumeState::new(seed, v, &profile))
            .collect();
        let mut world = World {
            seed,
            now: 0,
            order: 0,
            heap: BinaryHeap::new(),
            trace: Trace::new(watch.print, watch.keep),
            clients_only: watch.clients_only,
            phase: Phase::Work,
            healed_at: u64::MAX,
            latency: Rng::stream(seed, "latency"),
            chance: Rng::stream(seed, "chance"),
            disk,
            disks: 1,
            store,
            rings: Arc::new(RingDir::default()),
            boot_id: 1,
            node: None,
            process: 0,
            jobs_due: false,
            tick_at: None,
            take_over: false,
            failed_boots: 0,
            volumes,
            owners: BTreeMap::new(),
            callers: BTreeMap::new(),
            memory: io::Memory::default(),
            requests: BTreeMap::new(),
            next_req: 1,
            actions_left: profile.actions,
            crash_at: u64::MAX,
            unsettled: 0,
            planned: None,
            ring_gone: false,
            machine_down: false,
            rings_reported: BTreeSet::new(),
            faults: FaultCounts::default(),
            answered: 0,
            errors: 0,
            settled: 0,
            profile,
        };
        world.draw_crash();
        world.format_disk();
        world.at(0, Event::Boot(0));
        world
    }

    /// Schedules an event.
    fn at(&mut self, delay: u64, event: Event) {
        self.order += 1;
        self.heap
            .push(Reverse((self.now + delay, self.order, event)));
    }

    /// A latency around `typical`: mostly near it, sometimes much longer.
    fn latency(&mut self, typical: u64) -> u64 {
        let spread = self.latency.below(typical.max(1)) + typical / 2;
        if self.latency.below(50) == 0 {
            spread * 20
        } else {
            spread
        }
    }

    /// Runs to the end and tells what happened.
    ///
    /// A panic (an assertion of the engine, or of the simulator) is a violation like any other.
    /// What it left behind is not dropped: drops of a broken engine would panic again.
    pub fn run(self) -> Outcome {
        self.run_watched(|_| true)
    }

    /// Runs to the end, or until `goes_on`, which looks at the world after each event, says no.
    pub fn run_watched(self, mut goes_on: impl FnMut(&World) -> bool) -> Outcome {
        let mut world = ManuallyDrop::new(self);
        let seed = world.seed;
        let result = catch_unwind(AssertUnwindSafe(|| {
            let violation = world.turns(&mut goes_on);
            world.outcome(violation)
        }));
        match result {
            Ok(outcome) => {
                let drop = catch_unwind(AssertUnwindSafe(|| ManuallyDrop::into_inner(world)));
                match drop {
                    Ok(_) => outcome,
                    Err(panic) => Outcome::broken(seed, batch::panic_violation(&*panic)),
                }
            }
            Err(panic) => Outcome::broken(seed, batch::panic_violation(&*panic)),
        }
    }

    fn turns(&mut self, goes_on: &mut dyn FnMut(&World) -> bool) -> Option<Violation> {
        let violation = loop {
            match self.turn() {
                Ok(true) if goes_on(self) => {}
                Ok(true) => return None,
                Ok(false) => return None,
                Err(violation) => break violation,
            }
        };
        self.trace
            .say(self.now, || format!("VIOLATION {violation}"));
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
    fn turn(&mut self) -> Result<bool, Violation> {
        if self.phase == Phase::Done {
            return Ok(false);
        }
        let Some((at, order, event)) = self.next_event() else {
            return Err(self.stuck("nothing will ever happen again"));
        };
        self.now = self.now.max(at);
        if self.now > self.healed_at.saturating_add(HEAL_NS) {
            return Err(self.stuck("the deadline after the last fault has passed"));
        }
        if self.trace.events() > EVENTS_MAX {
            return Err(self.stuck("events without end"));
        }
        self.trace.mix(&[self.now, order]);
        self.happen(event)?;
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
        let Some(delay) = self.choose() else {
            return Some((at, order, event));
        };
        self.heap.push(Reverse((at + delay, order, event)));
        self.heap.pop().map(|Reverse(next)| next)
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Boot(process) => self.boot(process),
            Event::Disk(id) => return self.disk_done(id),
            Event::Memory(id) => return self.memory_done(id),
            Event::Deliver(id) => self.store.deliver(id),
            Event::Answer(id) => self.answer(id),
            Event::Straggle(id) => self.store.straggle(id),
            Event::Resume {
                process,
                volume,
                req,
            } if process == self.process => {
                self.trace
                    .say(self.now, || format!("v{volume} request {req} goes on"));
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
                self.client_acts(volume, client);
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
            Event::ScriptsEnd(process) if process == self.process => self.scripts_end(),
            Event::OutageEnd => self.store.outage = false,
            Event::Retry { process, volume } if process == self.process => {
                self.bring_up(volume);
            }
            _ => {}
        }
        Ok(())
    }

    /// Carries everything that the last event caused as far as it goes without waiting.
    fn pump(&mut self) -> Result<(), Violation> {
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
                self.node_event(event)?;
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

    fn wake_delay(&mut self) -> u64 {
        if self.profile.wake_ns == 0 {
            0
        } else {
            self.latency(self.profile.wake_ns)
        }
    }

    /// Moves and judgements of one volume. True if there were any.
    fn pump_volume(&mut self, volume: usize) -> Result<bool, Violation> {
        let Some(transport) = &mut self.volumes[volume].transport else {
            return Ok(false);
        };
        let seen = std::mem::take(&mut transport.seen);
        let moves = std::mem::take(&mut transport.moves);
        let mut woken = Vec::new();
        while let Some(req) = transport.next_woken() {
            woken.push(req);
        }
        let busy = !(seen.is_empty() && moves.is_empty() && woken.is_empty());
        for seen in seen {
            self.see(volume, seen)?;
        }
        for needed in moves {
            self.submit_move(volume, needed);
        }
        for req in woken {
            let delay = self.wake_delay();
            self.at(
                delay,
                Event::Resume {
                    process: self.process,
                    volume,
                    req: req.0,
                },
            );
        }
        Ok(busy)
    }

    fn schedule_tick(&mut self) {
        let Some(due) = self.node.as_ref().and_then(Node::next_timer_ns) else {
            return;
        };
        let due = due.max(self.now);
        if self.tick_at.is_none_or(|at| due < at) {
            self.tick_at = Some(due);
            self.at(due - self.now, Event::Tick(self.process));
        }
    }

    fn stuck(&self, why: &str) -> Violation {
        let mut detail = format!("{why}; phase {:?}", self.phase);
        for volume in &self.volumes {
            detail.push_str(&format!("\n  {}: {:?}", volume.name, volume.stand));
            for line in volume.transport.iter().flat_map(Transport::describe) {
                detail.push_str(&format!("\n    {line}"));
            }
        }
        if let Some(node) = &self.node {
            detail.push_str(&format!("\n  {}", node.describe()));
        }
        Violation::new("S10 liveness", detail)
    }

    fn count(&mut self, fault: Fault) {
        self.faults.hit(fault);
    }

    fn lose(&mut self, loss: Loss) {
        for volume in &mut self.volumes {
            volume.history.lose(loss);
        }
    }
}
