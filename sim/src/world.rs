//! Owns one simulated world: virtual time, the heap of events, and what lives in it.
//!
//! A world is a machine with a disk and rings, a server process that comes and goes, an object
//! store that stays, and clients. Everything that will happen is an event at a virtual time;
//! the seed decides the times. The world runs until its clients have done their share, then
//! heals, waits for quiet, uploads everything, throws the machine away and opens the volumes
//! from the store alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

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
mod outcome;
mod plan;
mod run;

pub use outcome::{Outcome, Watch};
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
    Redeliver(CallId),
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
enum VolumePhase {
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
    phase: VolumePhase,
    history: History,
    transport: Option<Transport<Volume>>,
    clients: Vec<clients::Client>,
    image: Vec<u8>,
    scan_left: u64,
    unread: BTreeSet<u64>,
    /// A sync to the store is wanted before the end.
    synced: bool,
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
    owners: BTreeMap<IoId, io::IoOwner>,
    callers: BTreeMap<CallId, (u64, crate::node::RequestId)>,
    memory: io::Memory,
    requests: BTreeMap<ReqId, clients::IssuedRequest>,
    next_req: u64,
    actions_left: u64,
    crash_at: u64,
    /// Crashes since a recovery was judged.
    unsettled: u32,
    planned: Option<plan::PlanProgress>,
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
            self.on_transport_event(volume, seen)?;
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

    fn count(&mut self, fault: Fault) {
        self.faults.count(fault);
    }

    fn record_loss(&mut self, loss: Loss) {
        for volume in &mut self.volumes {
            volume.history.record_loss(loss);
        }
    }
}
