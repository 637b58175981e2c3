//! Owns one simulated world: virtual time, the heap of events, and what lives in it.
//!
//! A world is a machine with a disk and rings, a server process that comes and goes, an object
//! store that stays, and clients. Everything that will happen is an event at a virtual time;
//! the seed decides the times. The world runs until its clients have done their share, then
//! heals, waits for quiet, uploads everything, throws the machine away and opens the volumes
//! from the store alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::disk::{IoId, SimDisk};
use crate::faults::{Fault, FaultCounts};
use crate::node::{Node, RequestId, Volume};
use crate::oracle::garbage::GarbageJudge;
use crate::oracle::history::{History, Loss};
use crate::oracle::pins::PinJudge;
use crate::profile::Profile;
use crate::rng::Rng;
use crate::store::{CallId, SimStore};
use crate::trace::{Trace, Violation};
use crate::transport::{ReqId, Transport};

mod clients;
mod crash;
mod devices;
mod fleet;
mod fork;
mod garbage;
mod io;
mod life;
mod line;
mod machine;
mod names;
mod outcome;
mod plan;
mod points;
mod recovery_point;
mod run;
mod scan;
mod set_back;
mod unchecked;

use line::Line;
use machine::Machine;
pub use outcome::{Outcome, Watch};
pub use plan::{DELAYS_NS, Order, Plan, PlanReport, PlannedCrash};

/// Something that will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A disk operation of a machine completes.
    Disk(usize, IoId),
    /// A memory-file operation of a machine completes.
    Memory(usize, u64),
    /// A call reaches the store.
    Deliver(CallId),
    /// Its answer reaches the caller.
    Answer(CallId),
    /// It takes effect late, or again.
    Redeliver(CallId),
    /// The store is back.
    OutageEnd,
    /// The operator of several hosts acts.
    Operator,
    /// A paused machine goes on.
    Resumed(usize),
    /// Something happens in this process, if it still lives.
    Process(u64, ProcessEvent),
}

/// Something that will happen in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ProcessEvent {
    /// It starts.
    Boot,
    /// A woken request of an attachment goes on.
    Resume { attachment: usize, req: u64 },
    /// The engine's procedures run.
    Jobs,
    /// Time passes for the engine.
    Tick,
    /// A computation of the engine ends.
    Computed(RequestId),
    /// A client acts.
    Client { attachment: usize, client: usize },
    /// A part of a recovered image could not be read: once more.
    Rescan {
        attachment: usize,
        sector: u64,
        sectors: u64,
        tries: u32,
    },
    /// The scripts of a planned world, and what they set in motion, are over.
    ScriptsEnd,
    /// The next try to bring an attachment up.
    Retry { attachment: usize },
    /// A woken request of a reader of a snapshot goes on.
    ResumeReader { reader: u64, req: u64 },
    /// A snapshot is looked for again, at the end.
    LastRead(usize),
    /// A device issues a request again.
    Reissue { attachment: usize, req: u64 },
    /// The next try of deleting a name and creating it again.
    Recreate { line: usize },
    /// All that was acknowledged is older than the recovery point.
    RecoveryPointPassed,
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
    /// Or it is left to the recovery point.
    LastWait,
    /// The machine is gone; the volumes are being opened from the store.
    LastOpen,
    /// They are open, and so many passes of the collector must have ended.
    LastPasses(usize),
    /// What is left of snapshots is read.
    LastReads,
    /// It is over.
    Done,
}

/// Where an attachment stands in the life of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttachmentPhase {
    Down,
    Opening,
    Creating,
    /// Its whole image is being read back.
    Scanning,
    Serving,
    /// Served no more, and given back once nothing is in flight.
    Closing,
    /// Taken over by another host, and known to be.
    Fenced,
}

/// A volume as one machine has it: the transport in front of it, the clients there, and the history
/// that they go by.
struct Attachment {
    machine: usize,
    /// Which name in the store.
    line: usize,
    /// Which volume of that name its history is of; stamped on its bytes.
    number: u64,
    /// The version of the root by which it was opened last.
    order: u64,
    /// Its machine's server is to serve it.
    wanted: bool,
    /// It was closed since it was opened.
    has_let_go: bool,
    /// The store had a volume of its name when its server was asked for it last.
    had_root: bool,
    /// And when that was.
    asked_at: u64,
    phase: AttachmentPhase,
    history: History,
    /// A restore was asked for that may have taken place: what the volume is then.
    restored: Option<Box<History>>,
    /// Its server died inside a commit: what of that is there only an image tells.
    is_torn: bool,
    /// Processes that came up since one served it.
    idle_boots: u32,
    /// What a stale read may have hidden the end of from a start.
    hidden: Option<line::HiddenHistory>,
    transport: Option<Transport<Volume>>,
    clients: Vec<clients::Client>,
    image: Vec<u8>,
    scan_left: u64,
    unread: BTreeSet<u64>,
    /// What its device will issue again.
    pending: BTreeMap<ReqId, clients::IssuedRequest>,
    /// A sync to the store is wanted before the end.
    synced: bool,
    /// What was acknowledged when, and what the watermark said when the host was lost.
    completions: recovery_point::Completions,
    claim: Option<recovery_point::Claim>,
}

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
    store: SimStore,
    machines: Vec<Machine>,
    /// Disks, boots and processes so far: each has a number of its own in the world.
    disks: u64,
    boots: u64,
    processes: u64,
    /// On which machine each process ran.
    process_machines: Vec<usize>,
    /// Of each machine in turn, one for each name.
    attachments: Vec<Attachment>,
    lines: Vec<Line>,
    namer: names::Namer,
    points: points::Points,
    /// Volumes so far, counted by their stamps.
    numbers: u64,
    /// Branches of histories so far.
    branches: u64,
    callers: BTreeMap<CallId, (u64, RequestId)>,
    requests: BTreeMap<ReqId, clients::IssuedRequest>,
    next_req: u64,
    actions_left: u64,
    crash_at: u64,
    /// Which machine it befalls, if that is no matter of chance.
    crash_on: Option<usize>,
    /// Crashes since a recovery was judged.
    unsettled: u32,
    planned: Option<plan::PlanProgress>,
    set_back: Option<set_back::SetBack>,
    /// Passes of collectors that have ended.
    passes: usize,
    /// Whoever ended the last of them did not hear of it.
    has_unheard_pass: bool,
    garbage: GarbageJudge,
    pins: PinJudge,
    faults: FaultCounts,
    answered: u64,
    errors: u64,
    settled: u64,
    /// The longest that a FLUSH waited.
    flush_ns: u64,
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
        let hosts = profile.hosts;
        let machine = |nth: u64| {
            let rng = Rng::stream(seed, &format!("disk {nth}"));
            let disk = SimDisk::new(rng, profile.disk.clone(), profile.corruptible);
            let mut machine = Machine::new(disk, nth + 1, nth);
            machine.clock_ns = nth * 123_456_789;
            machine
        };
        let store = SimStore::new(Rng::stream(seed, "store"), profile.store.clone());
        let attachments = (0..hosts)
            .flat_map(|host| (0..profile.lines()).map(move |line| (host, line)))
            .map(|(host, line)| Attachment::new(seed, host, line, &profile))
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
            store,
            machines: (0..hosts).map(machine).collect(),
            disks: hosts,
            boots: hosts,
            processes: hosts,
            process_machines: (0..hosts as usize).collect(),
            attachments,
            lines: (0..profile.lines())
                .map(|nth| Line::new(nth, nth >= profile.volumes))
                .collect(),
            namer: names::Namer::new(seed),
            points: points::Points::new(seed),
            numbers: profile.lines(),
            branches: 0,
            callers: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_req: 1,
            actions_left: profile.actions,
            crash_at: u64::MAX,
            crash_on: None,
            unsettled: 0,
            planned: None,
            set_back: profile.set_back.then(|| set_back::SetBack::draw(seed)),
            passes: 0,
            has_unheard_pass: false,
            garbage: GarbageJudge::default(),
            pins: PinJudge::default(),
            faults: FaultCounts::default(),
            answered: 0,
            errors: 0,
            settled: 0,
            flush_ns: 0,
            profile,
        };
        world.draw_crash();
        for machine in 0..world.machines.len() {
            world.format_disk(machine);
            world.at_process(machine, 0, ProcessEvent::Boot);
        }
        world.schedule_operator();
        world
    }

    /// Schedules an event.
    fn at(&mut self, delay: u64, event: Event) {
        self.order += 1;
        self.heap
            .push(Reverse((self.now + delay, self.order, event)));
    }

    /// Schedules an event in the process of a machine.
    fn at_process(&mut self, machine: usize, delay: u64, event: ProcessEvent) {
        let process = self.machines[machine].process;
        self.at(delay, Event::Process(process, event));
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

    fn wake_delay(&mut self) -> u64 {
        if self.profile.wake_ns == 0 {
            0
        } else {
            self.latency(self.profile.wake_ns)
        }
    }

    /// Moves and judgements of one volume. True if there were any.
    fn pump_attachment(&mut self, attachment: usize) -> Result<bool, Violation> {
        let Some(transport) = &mut self.attachments[attachment].transport else {
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
            self.on_transport_event(attachment, seen)?;
        }
        for needed in moves {
            self.submit_move(attachment, needed);
        }
        for req in woken {
            let delay = self.wake_delay();
            let req = req.0;
            let machine = self.attachments[attachment].machine;
            self.at_process(machine, delay, ProcessEvent::Resume { attachment, req });
        }
        Ok(busy)
    }

    /// The machine on which a process lives, if it still does.
    fn machine_of(&self, process: u64) -> Option<usize> {
        self.machines
            .iter()
            .position(|machine| machine.process == process)
    }

    /// A number for the next process of a machine.
    fn next_process(&mut self, machine: usize) -> u64 {
        self.process_machines.push(machine);
        self.processes += 1;
        self.processes - 1
    }

    fn schedule_tick(&mut self, machine: usize) {
        let there = &mut self.machines[machine];
        let Some(due) = there.node.as_ref().and_then(Node::next_timer_ns) else {
            return;
        };
        let due = due.saturating_sub(there.clock_ns).max(self.now);
        if there.tick_at.is_none_or(|at| due < at) {
            there.tick_at = Some(due);
            self.at_process(machine, due - self.now, ProcessEvent::Tick);
        }
    }

    fn count(&mut self, fault: Fault) {
        self.faults.count(fault);
    }

    fn record_loss(&mut self, machine: usize, loss: Loss) {
        for attachment in &mut self.attachments {
            if attachment.machine == machine {
                attachment.history.record_loss(loss);
            }
        }
    }
}
