//! A small world for tests of the engine's API: files and objects in memory, no faults but those
//! a test asks for. The simulator in `sim/` is the place for everything random.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod checks;
pub(crate) mod compactions;
mod disk;
mod environment;
pub(crate) mod hosts;
pub(crate) mod points;
pub(crate) mod rebuilds;
pub(crate) mod rebuilt;
mod requests;
mod rings;
mod store;
pub(crate) mod unchecked;

use std::sync::Arc;
use std::task::{Wake, Waker};

use blkmq::io::FileId;
use volume::driver::{
    Computation, ComputeError, ComputeKind, DiskOp, Outcome, Request, RequestOp, StoreOp,
};
use volume::units::Now;
use volume::{
    CompactOptions, Continuation, Host, Notify, OpenError, Options, RecoveryReport, RequestId,
    Setup, Volume,
};

#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use {
    environment::{Environment, Fault, Generator},
    rings::HeapRings,
};

/// The bytes of a seed.
pub(crate) fn random_bytes(seed: u64, bytes: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| random.u8(..)).collect()
}

struct NoopNotify;

impl Notify for NoopNotify {
    fn commit_ready(&self) {}
    fn jobs_ready(&self) {}
}

impl Wake for NoopNotify {
    fn wake(self: Arc<Self>) {}
}

pub(crate) fn waker() -> Waker {
    Waker::from(Arc::new(NoopNotify))
}
/// Computes at once. A panic is the test's.
pub(crate) fn compute(work: Computation) -> Outcome {
    let outcome = work.run();
    assert_eq!(outcome, Ok(()), "a computation panicked");
    Outcome::Compute(outcome)
}

/// A host and what it stands on.
pub(crate) struct World {
    pub(crate) host: Host,
    pub(crate) env: Environment,
    pub(crate) now_ns: u64,
    pub(crate) report: RecoveryReport,
    /// Requests that the store is at work on, and when each is done.
    at_work: Vec<(u64, RequestId, StoreOp)>,
    /// Merges of layers wait until they are told to begin.
    pub(crate) hold_merges: bool,
    held_merges: Vec<(RequestId, Computation)>,
    /// The engine's own reads of this file wait until they are told to begin.
    pub(crate) hold_reads_of: Option<FileId>,
    held_reads: Vec<(RequestId, DiskOp)>,
    /// PUTs without an answer.
    hanging: Vec<(RequestId, StoreOp)>,
    /// Until then the store takes in what it has been sent.
    store_busy_until_ns: u64,
}

pub(crate) fn options() -> Options {
    Options {
        log_bytes: 4 << 20,
        segment_bytes: 64 << 10,
        ring_entries: 64,
        cache_bytes: 1 << 20,
        memory_bytes: 1 << 20,
        pack_bytes: 256 << 10,
        deltas_max: 4,
        ..Options::default()
    }
}

/// Compacts as soon as there is anything to compact, and at once.
pub(crate) fn compacting() -> CompactOptions {
    CompactOptions {
        interval_ns: 100_000_000,
        bytes_per_s: u64::MAX,
        closed_looks: 0,
        ..CompactOptions::default()
    }
}

/// A world with an open volume of 64 MiB, `demo`.
pub(crate) fn with_volume() -> (World, Volume) {
    let mut world = World::new();
    world.create("demo", 64 << 20);
    let volume = world.open("demo");
    (world, volume)
}

impl World {
    pub(crate) fn new() -> World {
        World::try_start(Environment::default(), options()).unwrap_or_else(|e| panic!("{}", e.0))
    }

    pub(crate) fn start(env: Environment) -> World {
        World::try_start(env, options()).unwrap_or_else(|e| panic!("{}", e.0))
    }

    pub(crate) fn try_start(
        mut env: Environment,
        mut options: Options,
    ) -> Result<World, Box<(OpenError, Environment)>> {
        if let Some(compact) = &env.compact {
            options.compact = compact.clone();
        }
        env.versions += 1;
        let mut entropy = [0; 32];
        entropy[..8].copy_from_slice(&env.versions.to_le_bytes());
        let setup = Setup {
            options,
            rings: env.rings.clone(),
            notify: Arc::new(NoopNotify),
            boot_id: [env.boot; 16],
            entropy,
            label: "test".into(),
            now: Now {
                mono_ns: 1,
                unix_ms: 0,
            },
            continues: env.continues.take(),
            may_begin: match env.refuses_start {
                true => Some(Box::pin(std::future::ready(false))),
                false => None,
            },
        };
        let (host, answer) = Host::start(setup);
        let mut world = World {
            host,
            env,
            now_ns: 1,
            report: RecoveryReport::default(),
            at_work: Vec::new(),
            hold_merges: false,
            held_merges: Vec::new(),
            hold_reads_of: None,
            held_reads: Vec::new(),
            hanging: Vec::new(),
            store_busy_until_ns: 0,
        };
        match world.wait(|_| answer.try_take()) {
            Ok(report) => {
                world.report = report;
                Ok(world)
            }
            Err(error) => Err(Box::new((error, world.env))),
        }
    }

    /// The process dies; what lasts is handed to the next one.
    pub(crate) fn kill(self) -> Environment {
        self.env
    }

    /// The process gives its place to the next one.
    pub(crate) fn hand_over(self) -> Environment {
        let journal = self.host.journal_mark();
        assert!(journal.is_some());
        Environment {
            continues: Some(Continuation {
                journal,
                cache_follows: false,
            }),
            ..self.env
        }
    }

    /// Carries everything on until nothing is left to do at this moment.
    pub(crate) fn run_until_idle(&mut self) {
        loop {
            let now_ns = self.now_ns;
            for (_, id, op) in self
                .at_work
                .extract_if(.., |(due, ..)| *due <= now_ns)
                .collect::<Vec<_>>()
            {
                let outcome = Outcome::Store(self.store(op));
                self.host.complete(id, outcome);
            }
            let more = self.host.run_jobs();
            let mut requests = self.host.take_requests();
            requests.extend(self.host.take_commit_requests());
            if requests.is_empty() && !more {
                return;
            }
            for Request { id, op } in requests {
                let outcome = match op {
                    RequestOp::Store(op)
                        if self.env.hanging_puts > 0 && matches!(op, StoreOp::Put { .. }) =>
                    {
                        self.env.hanging_puts -= 1;
                        self.hanging.push((id, op));
                        continue;
                    }
                    RequestOp::Store(op)
                        if self.env.store_ms > 0 || self.env.store_bytes_per_s > 0 =>
                    {
                        let due = self.store_done_at(&op);
                        self.at_work.push((due, id, op));
                        continue;
                    }
                    RequestOp::Disk(op) if self.holds(&op) => {
                        self.held_reads.push((id, op));
                        continue;
                    }
                    RequestOp::Disk(op) => Outcome::Disk(self.disk(op).map(Into::into)),
                    RequestOp::Store(op) => Outcome::Store(self.store(op)),
                    RequestOp::Compute(work)
                        if self.hold_merges && work.kind() == ComputeKind::Merge =>
                    {
                        self.held_merges.push((id, work));
                        continue;
                    }
                    RequestOp::Compute(work)
                        if self.env.broken_checkpoints
                            && work.kind() == ComputeKind::Checkpoint =>
                    {
                        let error = ComputeError("checkpoint: a bug ended it".into());
                        Outcome::Compute(Err(error))
                    }
                    RequestOp::Compute(work)
                        if self.env.broken_folds > 0 && work.kind() == ComputeKind::Fold =>
                    {
                        self.env.broken_folds -= 1;
                        Outcome::Compute(Err(ComputeError("fold: a bug ended it".into())))
                    }
                    RequestOp::Compute(work) => compute(work),
                };
                self.host.complete(id, outcome);
            }
        }
    }

    /// Carries out the requests that there are, and no more. False: there were none.
    pub(crate) fn one_step(&mut self) -> bool {
        let mut requests = self.host.take_requests();
        requests.extend(self.host.take_commit_requests());
        let some = !requests.is_empty();
        for Request { id, op } in requests {
            let outcome = match op {
                RequestOp::Disk(op) => Outcome::Disk(self.disk(op).map(Into::into)),
                RequestOp::Store(op) => Outcome::Store(self.store(op)),
                RequestOp::Compute(work) => compute(work),
            };
            self.host.complete(id, outcome);
        }
        some
    }

    /// When the store is done with a request that it gets now.
    fn store_done_at(&mut self, op: &StoreOp) -> u64 {
        let last = self.at_work.iter().map(|(due, ..)| *due).max();
        let begins = last.filter(|_| self.env.store_serial);
        let mut free_ns = begins.unwrap_or(self.now_ns).max(self.now_ns);
        if let StoreOp::Put { data, .. } = op
            && let Some(ns) =
                (data.len() as u64 * 1_000_000_000).checked_div(self.env.store_bytes_per_s)
        {
            self.store_busy_until_ns = self.store_busy_until_ns.max(free_ns) + ns;
            free_ns = self.store_busy_until_ns;
        }
        free_ns + self.env.store_ms * 1_000_000
    }

    fn holds(&self, op: &DiskOp) -> bool {
        matches!(op, DiskOp::Read { file, .. } if Some(*file) == self.hold_reads_of)
    }

    /// Does the reads that were held so far, of what stands there now; how many they were.
    pub(crate) fn do_held_reads(&mut self) -> usize {
        let held = std::mem::take(&mut self.held_reads);
        let count = held.len();
        for (id, op) in held {
            let outcome = Outcome::Disk(self.disk(op).map(Into::into));
            self.host.complete(id, outcome);
        }
        count
    }

    /// Does the merges that were held so far.
    pub(crate) fn do_held_merges(&mut self) {
        for (id, work) in std::mem::take(&mut self.held_merges) {
            self.host.complete(id, compute(work));
        }
        self.run_until_idle();
    }

    /// The PUTs that hung are answered after all.
    pub(crate) fn answer_hanging_puts(&mut self) {
        for (id, op) in std::mem::take(&mut self.hanging) {
            let outcome = Outcome::Store(self.store(op));
            self.host.complete(id, outcome);
        }
        self.run_until_idle();
    }

    /// The same, but the first sync of the log after a write at `offset` or behind is left where it
    /// is, and ends this.
    pub(crate) fn settle_up_to_a_sync_behind(&mut self, offset: u64) -> Option<RequestId> {
        let (mut seen, mut held) = (false, None);
        loop {
            let more = self.host.run_jobs();
            let mut requests = self.host.take_requests();
            requests.extend(self.host.take_commit_requests());
            if held.is_some() || (requests.is_empty() && !more) {
                assert!(requests.is_empty(), "beside the sync: {requests:?}");
                return held;
            }
            for Request { id, op } in requests {
                let outcome = match op {
                    RequestOp::Disk(DiskOp::Sync { file: FileId::LOG }) if seen => {
                        assert_eq!(held.replace(id), None, "one sync at a time");
                        continue;
                    }
                    RequestOp::Disk(op) => {
                        seen |= matches!(op, DiskOp::Write { offset: at, .. } if at >= offset);
                        Outcome::Disk(self.disk(op).map(Into::into))
                    }
                    RequestOp::Store(op) => Outcome::Store(self.store(op)),
                    RequestOp::Compute(work) => compute(work),
                };
                self.host.complete(id, outcome);
            }
        }
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(10) {
            self.now_ns += 10_000_000;
            self.host.tick(Now {
                mono_ns: self.now_ns,
                unix_ms: self.now_ns / 1_000_000,
            });
            self.run_until_idle();
        }
    }

    /// Goes on, at most a virtual minute, until there is a value.
    pub(crate) fn wait<T>(&mut self, mut look: impl FnMut(&mut World) -> Option<T>) -> T {
        for _ in 0..6000 {
            self.run_until_idle();
            if let Some(value) = look(self) {
                return value;
            }
            self.pass(10);
        }
        panic!("nothing came of it within a minute");
    }
}
