//! A small world for tests of the engine's API: files and objects in memory, no faults but those
//! a test asks for. The simulator in `sim/` is the place for everything random.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod hosts;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, FileId, Op, Place, Plan, Step};
use volume::RequestId;
use volume::driver::{
    Computation, ComputeError, ComputeKind, DiskError, DiskOp, Outcome, Request, RequestOp,
    StoreError, StoreOp, StoreReply, Version,
};
use volume::object::pack::HEADER_BYTES;
use volume::units::{HostId, Now};
use volume::{
    HeapRegion, Host, Notify, OpenError, OpenMode, Options, RecoveryReport, RingId, RingRegion,
    Rings, RingsAside, Setup, Volume, VolumeSpec,
};

/// What survives the process: files, objects, rings.
#[derive(Default)]
pub(crate) struct Lasting {
    pub(crate) files: BTreeMap<FileId, Vec<u8>>,
    pub(crate) objects: BTreeMap<String, (Vec<u8>, u64)>,
    pub(crate) rings: Arc<HeapRings>,
    pub(crate) boot: u8,
    pub(crate) versions: u64,
    /// Store requests so far, by kind.
    pub(crate) store_requests: BTreeMap<&'static str, usize>,
    /// Bytes of files read so far.
    pub(crate) bytes_read: u64,
    /// How long the store takes for each request, in virtual milliseconds.
    pub(crate) store_ms: u64,
    /// It takes one after the other.
    pub(crate) store_serial: bool,
    /// Bytes that the store takes in a second, all PUTs together; 0: without limit.
    pub(crate) store_bytes_per_s: u64,
    /// So many PUTs of packs are left without an answer.
    pub(crate) hanging_puts: usize,
    /// So many PUTs of packs fail.
    pub(crate) failing_puts: usize,
    /// So many reads of a host's records and low mark are damaged on their way.
    pub(crate) damaged_gets: usize,
    /// So many creates of records fail.
    pub(crate) failing_creates: usize,
    /// Names of objects for which there was a PUT, also one that failed.
    pub(crate) put_keys: Vec<String>,
    /// A bug ends the encoding of checkpoints.
    pub(crate) broken_checkpoints: bool,
    /// Requests for these objects fail.
    pub(crate) failing_keys: Vec<String>,
    /// The store does not answer.
    pub(crate) outage: bool,
    /// The next update takes effect, but the store is gone before it can say so.
    pub(crate) outage_after_update: bool,
    /// The same for the next record.
    pub(crate) outage_after_record: bool,
    /// After so many requests one takes effect, and nobody hears of it; or the store is gone from then on.
    pub(crate) fault_after: Option<(usize, Fault)>,
    /// Where files were written by requests of the engine.
    pub(crate) written: Vec<(FileId, u64)>,
    /// After so many syncs that succeed,
    pub(crate) good_syncs: usize,
    /// so many fail.
    pub(crate) failing_syncs: usize,
    /// Where the disk below the log takes no writes of the engine.
    pub(crate) bad: Vec<Range<u64>>,
    /// Where the log cannot be read.
    pub(crate) unreadable: Vec<Range<u64>>,
    /// Objects that are made when they are asked for: by key, offset and length.
    pub(crate) generated: Option<Generator>,
}

/// What happens to a request, and to those behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The answer is lost.
    LostAnswer,
    /// The store does not answer any more; this request does not take effect.
    Outage,
    /// The store does not answer any more; this request does take effect.
    OutageBehind,
}

/// A part of an object that does not stand anywhere.
pub(crate) type Generator = Box<dyn Fn(&str, u64, u64) -> Option<Vec<u8>> + Send>;

impl Lasting {
    /// The same files, objects and rings, in places of their own.
    pub(crate) fn copy(&self) -> Lasting {
        Lasting {
            files: self.files.clone(),
            objects: self.objects.clone(),
            rings: Arc::new(self.rings.copy()),
            boot: self.boot,
            versions: self.versions,
            ..Lasting::default()
        }
    }
}

#[derive(Default)]
pub(crate) struct HeapRings {
    regions: Mutex<BTreeMap<RingId, Arc<HeapRegion>>>,
    aside: Mutex<Vec<RingId>>,
    /// Whoever touches a ring panics, once.
    trap: Arc<AtomicBool>,
}

/// A region that can be made to panic: the engine holds a volume's lock when it writes there.
#[derive(Debug)]
struct Trapped(Arc<HeapRegion>, Arc<AtomicBool>);

impl RingRegion for Trapped {
    fn words(&self) -> &[AtomicU64] {
        assert!(!self.1.swap(false, Ordering::Relaxed), "the trap was set");
        self.0.words()
    }
}

impl Rings for HeapRings {
    fn find(&self, ring: RingId) -> Result<Option<Arc<dyn RingRegion>>, String> {
        let rings = self.regions.lock().expect("no panics");
        Ok(rings.get(&ring).map(|region| self.trapped(region)))
    }

    fn open(&self, ring: RingId, words: usize) -> Result<Arc<dyn RingRegion>, String> {
        let mut rings = self.regions.lock().expect("no panics");
        let fresh = || Arc::new(HeapRegion::new(words));
        let region = rings.entry(ring).or_insert_with(fresh);
        if region.words().len() != words {
            *region = fresh();
        }
        Ok(self.trapped(region))
    }

    fn remove(&self, ring: RingId) {
        self.regions.lock().expect("no panics").remove(&ring);
    }

    fn list(&self, host: HostId) -> Vec<RingId> {
        let rings = self.regions.lock().expect("no panics");
        rings
            .keys()
            .filter(|ring| ring.host == host)
            .copied()
            .collect()
    }

    fn set_aside(&self, ring: RingId) -> Result<RingsAside, String> {
        let region = self.regions.lock().expect("no panics").remove(&ring);
        let mut aside = self.aside.lock().expect("no panics");
        aside.push(ring);
        Ok(RingsAside {
            place: "aside".into(),
            count: aside.len(),
            bytes: region.map_or(0, |region| region.words().len() as u64 * 8),
        })
    }
}

impl HeapRings {
    fn trapped(&self, region: &Arc<HeapRegion>) -> Arc<dyn RingRegion> {
        Arc::new(Trapped(Arc::clone(region), Arc::clone(&self.trap)))
    }

    /// The next access to a ring panics.
    pub(crate) fn set_trap(&self) {
        self.trap.store(true, Ordering::Relaxed);
    }

    /// The same words in memory of their own.
    pub(crate) fn copy(&self) -> HeapRings {
        let copied = |region: &Arc<HeapRegion>| {
            let copy = HeapRegion::new(region.words().len());
            for (to, from) in copy.words().iter().zip(region.words()) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            Arc::new(copy)
        };
        let rings = self.regions.lock().expect("no panics");
        let copies = rings.iter().map(|(ring, region)| (*ring, copied(region)));
        HeapRings {
            regions: Mutex::new(copies.collect()),
            aside: Mutex::default(),
            trap: Arc::default(),
        }
    }

    /// The names of all rings that were not put aside.
    pub(crate) fn names(&self) -> Vec<RingId> {
        let rings = self.regions.lock().expect("no panics");
        rings.keys().copied().collect()
    }

    /// Those that were.
    pub(crate) fn aside(&self) -> Vec<RingId> {
        self.aside.lock().expect("no panics").clone()
    }

    pub(crate) fn lose_all(&self) {
        self.regions.lock().expect("no panics").clear();
    }
}

/// Runs each test with the bug that it must see.
#[cfg(canary)]
pub(crate) fn each_is_seen(planted: &[(&'static str, fn())]) {
    let is_unseen = |(name, test): &&(&'static str, fn())| {
        std::panic::catch_unwind(|| canary::with(name, *test)).is_ok()
    };
    let unseen = planted.iter().filter(is_unseen).map(|(name, _)| *name);
    let unseen: Vec<&str> = unseen.collect();
    assert!(unseen.is_empty(), "planted and not seen: {unseen:?}");
}

/// The bytes of a seed.
pub(crate) fn noise(seed: u64, bytes: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| random.u8(..)).collect()
}

struct Quiet;

impl Notify for Quiet {
    fn commit_ready(&self) {}
    fn jobs_ready(&self) {}
}

impl Wake for Quiet {
    fn wake(self: Arc<Self>) {}
}

pub(crate) fn waker() -> Waker {
    Waker::from(Arc::new(Quiet))
}

fn kind_of(op: &StoreOp) -> &'static str {
    match op {
        StoreOp::Get { .. } => "get",
        // Whether a pack is there.
        StoreOp::GetRange { offset: 0, len, .. } if *len == HEADER_BYTES as u64 => "look",
        StoreOp::GetRange { .. } => "range",
        StoreOp::Put { .. } => "put",
        StoreOp::Create { .. } => "create",
        StoreOp::Update { .. } => "update",
        StoreOp::Delete { .. } => "delete",
        StoreOp::List { .. } => "list",
    }
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
    pub(crate) lasting: Lasting,
    pub(crate) now_ns: u64,
    pub(crate) report: RecoveryReport,
    /// Requests that the store is at work on, and when each is done.
    at_work: Vec<(u64, RequestId, StoreOp)>,
    /// Merges of layers wait until they are told to begin.
    pub(crate) hold_merges: bool,
    held_merges: Vec<(RequestId, Computation)>,
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

impl World {
    pub(crate) fn new() -> World {
        World::try_start(Lasting::default(), options()).unwrap_or_else(|e| panic!("{}", e.0))
    }

    pub(crate) fn start(lasting: Lasting) -> World {
        World::try_start(lasting, options()).unwrap_or_else(|e| panic!("{}", e.0))
    }

    pub(crate) fn try_start(
        mut lasting: Lasting,
        options: Options,
    ) -> Result<World, Box<(OpenError, Lasting)>> {
        lasting.versions += 1;
        let mut entropy = [0; 32];
        entropy[..8].copy_from_slice(&lasting.versions.to_le_bytes());
        let setup = Setup {
            options,
            rings: lasting.rings.clone(),
            notify: Arc::new(Quiet),
            boot_id: [lasting.boot; 16],
            entropy,
            label: "test".into(),
            now: Now {
                mono_ns: 1,
                unix_ms: 0,
            },
        };
        let (host, answer) = Host::start(setup);
        let mut world = World {
            host,
            lasting,
            now_ns: 1,
            report: RecoveryReport::default(),
            at_work: Vec::new(),
            hold_merges: false,
            held_merges: Vec::new(),
            hanging: Vec::new(),
            store_busy_until_ns: 0,
        };
        match world.wait(|_| answer.try_take()) {
            Ok(report) => {
                world.report = report;
                Ok(world)
            }
            Err(error) => Err(Box::new((error, world.lasting))),
        }
    }

    /// The process dies; what lasts is handed to the next one.
    pub(crate) fn kill(self) -> Lasting {
        self.lasting
    }

    /// Carries everything on until nothing is left to do at this moment.
    pub(crate) fn settle(&mut self) {
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
                        if self.lasting.hanging_puts > 0 && matches!(op, StoreOp::Put { .. }) =>
                    {
                        self.lasting.hanging_puts -= 1;
                        self.hanging.push((id, op));
                        continue;
                    }
                    RequestOp::Store(op)
                        if self.lasting.store_ms > 0 || self.lasting.store_bytes_per_s > 0 =>
                    {
                        let due = self.store_done_at(&op);
                        self.at_work.push((due, id, op));
                        continue;
                    }
                    RequestOp::Disk(op) => Outcome::Disk(self.disk(op)),
                    RequestOp::Store(op) => Outcome::Store(self.store(op)),
                    RequestOp::Compute(work)
                        if self.hold_merges && work.kind() == ComputeKind::Merge =>
                    {
                        self.held_merges.push((id, work));
                        continue;
                    }
                    RequestOp::Compute(work)
                        if self.lasting.broken_checkpoints
                            && work.kind() == ComputeKind::Checkpoint =>
                    {
                        let error = ComputeError("checkpoint: a bug ended it".into());
                        Outcome::Compute(Err(error))
                    }
                    RequestOp::Compute(work) => compute(work),
                };
                self.host.complete(id, outcome);
            }
        }
    }

    /// When the store is done with a request that it gets now.
    fn store_done_at(&mut self, op: &StoreOp) -> u64 {
        let last = self.at_work.iter().map(|(due, ..)| *due).max();
        let begins = last.filter(|_| self.lasting.store_serial);
        let mut free_ns = begins.unwrap_or(self.now_ns).max(self.now_ns);
        if let StoreOp::Put { data, .. } = op
            && let Some(ns) =
                (data.len() as u64 * 1_000_000_000).checked_div(self.lasting.store_bytes_per_s)
        {
            self.store_busy_until_ns = self.store_busy_until_ns.max(free_ns) + ns;
            free_ns = self.store_busy_until_ns;
        }
        free_ns + self.lasting.store_ms * 1_000_000
    }

    /// Does the merges that were held so far.
    pub(crate) fn do_held_merges(&mut self) {
        for (id, work) in std::mem::take(&mut self.held_merges) {
            self.host.complete(id, compute(work));
        }
        self.settle();
    }

    /// The PUTs that hung are answered after all.
    pub(crate) fn answer_hanging_puts(&mut self) {
        for (id, op) in std::mem::take(&mut self.hanging) {
            let outcome = Outcome::Store(self.store(op));
            self.host.complete(id, outcome);
        }
        self.settle();
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
                        Outcome::Disk(self.disk(op))
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
            self.settle();
        }
    }

    /// Goes on, at most a virtual minute, until there is a value.
    pub(crate) fn wait<T>(&mut self, mut look: impl FnMut(&mut World) -> Option<T>) -> T {
        for _ in 0..6000 {
            self.settle();
            if let Some(value) = look(self) {
                return value;
            }
            self.pass(10);
        }
        panic!("nothing came of it within a minute");
    }

    pub(crate) fn disk(&mut self, op: DiskOp) -> Result<Vec<u8>, DiskError> {
        match op {
            DiskOp::Read { file, offset, len } => {
                let asked = offset..offset + len as u64;
                let hits = |bad: &Range<u64>| bad.start < asked.end && asked.start < bad.end;
                if file == FileId::LOG && self.lasting.unreadable.iter().any(hits) {
                    return Err(DiskError::new("read: input/output error"));
                }
                self.lasting.bytes_read += len as u64;
                let data = self.lasting.files.entry(file).or_default();
                let (at, end) = (offset as usize, offset as usize + len);
                if data.len() < end {
                    data.resize(end, 0);
                }
                Ok(data[at..end].to_vec())
            }
            DiskOp::Write { file, offset, .. } | DiskOp::Zero { file, offset, .. }
                if file == FileId::LOG
                    && self.lasting.bad.iter().any(|bad| bad.contains(&offset)) =>
            {
                Err(DiskError::new("write: input/output error"))
            }
            DiskOp::Write { file, offset, data } => {
                self.lasting.written.push((file, offset));
                self.put(file, offset, &data);
                Ok(Vec::new())
            }
            DiskOp::Zero { file, offset, len } => {
                self.put(file, offset, &vec![0; len as usize]);
                Ok(Vec::new())
            }
            DiskOp::Sync { .. } if self.lasting.good_syncs > 0 => {
                self.lasting.good_syncs -= 1;
                Ok(Vec::new())
            }
            DiskOp::Sync { .. } if self.lasting.failing_syncs > 0 => {
                self.lasting.failing_syncs -= 1;
                Err(DiskError::new("sync: input/output error"))
            }
            DiskOp::Sync { .. } => Ok(Vec::new()),
        }
    }

    pub(crate) fn put(&mut self, file: FileId, offset: u64, bytes: &[u8]) {
        let data = self.lasting.files.entry(file).or_default();
        let end = offset as usize + bytes.len();
        if data.len() < end {
            data.resize(end, 0);
        }
        data[offset as usize..end].copy_from_slice(bytes);
    }

    fn count(&mut self, op: &StoreOp) {
        let requests = &mut self.lasting.store_requests;
        *requests.entry(kind_of(op)).or_default() += 1;
        if let StoreOp::Put { key, .. } = op {
            self.lasting.put_keys.push(key.clone());
        }
    }

    fn is_told_to_fail(&mut self, op: &StoreOp) -> bool {
        let key = match op {
            StoreOp::Get { key }
            | StoreOp::GetRange { key, .. }
            | StoreOp::Put { key, .. }
            | StoreOp::Create { key, .. }
            | StoreOp::Update { key, .. }
            | StoreOp::Delete { key } => key,
            StoreOp::List { prefix } => prefix,
        };
        if self.lasting.failing_keys.contains(key) {
            return true;
        }
        let failing = match op {
            StoreOp::Put { .. } => &mut self.lasting.failing_puts,
            StoreOp::Create { key, .. } if key.contains("/log/") => {
                &mut self.lasting.failing_creates
            }
            _ => return false,
        };
        let fails = *failing > 0;
        *failing = failing.saturating_sub(1);
        fails
    }

    fn answer_of_get(&mut self, key: &str, mut data: Vec<u8>, version: u64) -> StoreReply {
        if key.starts_with("hosts/") && self.lasting.damaged_gets > 0 {
            self.lasting.damaged_gets -= 1;
            data[20] ^= 4;
        }
        StoreReply::Object {
            data,
            version: Version(version.to_string()),
        }
    }

    fn answer_of_create(
        &mut self,
        is_record: bool,
        version: Version,
    ) -> Result<StoreReply, StoreError> {
        if is_record && std::mem::take(&mut self.lasting.outage_after_record) {
            self.lasting.outage = true;
            return Err(StoreError::Unknown("no answer".into()));
        }
        Ok(StoreReply::Written { version })
    }

    pub(crate) fn store(&mut self, op: StoreOp) -> Result<StoreReply, StoreError> {
        let fault = match &mut self.lasting.fault_after {
            Some((0, fault)) => Some(*fault),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        };
        let Some(fault) = fault else {
            return self.take_effect(op);
        };
        self.lasting.fault_after = None;
        let answer = match fault {
            Fault::Outage => Err(StoreError::Unavailable("the store is down".into())),
            Fault::LostAnswer | Fault::OutageBehind => self.take_effect(op),
        };
        self.lasting.outage |= fault != Fault::LostAnswer;
        answer.and(Err(StoreError::Unknown("no answer".into())))
    }

    fn take_effect(&mut self, op: StoreOp) -> Result<StoreReply, StoreError> {
        if self.lasting.outage {
            return Err(StoreError::Unavailable("the store is down".into()));
        }
        self.count(&op);
        if self.is_told_to_fail(&op) {
            return Err(StoreError::Unavailable("it is told to fail".into()));
        }
        let objects = &mut self.lasting.objects;
        self.lasting.versions += 1;
        let version = Version(self.lasting.versions.to_string());
        match op {
            StoreOp::Get { key } => {
                let (data, v) = objects.get(&key).cloned().ok_or(StoreError::NotFound)?;
                Ok(self.answer_of_get(&key, data, v))
            }
            StoreOp::GetRange { key, offset, len } => {
                let generated = self.lasting.generated.as_ref();
                if let Some(data) = generated.and_then(|generate| generate(&key, offset, len)) {
                    return Ok(StoreReply::Range(data));
                }
                let (data, _) = objects.get(&key).ok_or(StoreError::NotFound)?;
                let at = offset as usize;
                let range = data.get(at..at + len as usize);
                let range = range.ok_or(StoreError::OutOfRange)?;
                Ok(StoreReply::Range(range.to_vec()))
            }
            StoreOp::Put { key, data } => {
                if objects.contains_key(&key) {
                    return Err(StoreError::PreconditionFailed);
                }
                objects.insert(key, (data.into(), self.lasting.versions));
                Ok(StoreReply::Written { version })
            }
            StoreOp::Create { key, data } => {
                if objects.contains_key(&key) {
                    return Err(StoreError::PreconditionFailed);
                }
                let is_record = key.contains("/log/");
                objects.insert(key, (data, self.lasting.versions));
                self.answer_of_create(is_record, version)
            }
            StoreOp::Update {
                key,
                data,
                version: expected,
            } => {
                let found = objects.get(&key).ok_or(StoreError::NotFound)?;
                if found.1.to_string() != expected.0 {
                    return Err(StoreError::PreconditionFailed);
                }
                objects.insert(key, (data, self.lasting.versions));
                if std::mem::take(&mut self.lasting.outage_after_update) {
                    self.lasting.outage = true;
                    return Err(StoreError::Unknown("no answer".into()));
                }
                Ok(StoreReply::Written { version })
            }
            StoreOp::Delete { key } => {
                objects.remove(&key);
                Ok(StoreReply::Deleted)
            }
            StoreOp::List { prefix } => Ok(StoreReply::Keys(
                objects
                    .iter()
                    .filter(|(key, _)| key.starts_with(&prefix))
                    .map(|(key, (data, _))| (key.clone(), data.len() as u64))
                    .collect(),
            )),
        }
    }

    pub(crate) fn create(&mut self, name: &str, bytes: u64) {
        let spec = VolumeSpec {
            name: name.into(),
            bytes,
            block: 512,
        };
        let answer = self.host.create_volume(spec);
        self.wait(|_| answer.try_take()).expect("created");
    }

    pub(crate) fn open(&mut self, name: &str) -> Volume {
        self.try_open(name, false).expect("opened")
    }

    pub(crate) fn try_open(&mut self, name: &str, take_over: bool) -> Result<Volume, OpenError> {
        let answer = self.host.open_volume(
            name,
            OpenMode {
                take_over,
                ..OpenMode::default()
            },
        );
        self.wait(|_| answer.try_take())
    }

    pub(crate) fn grow(&mut self, volume: &Volume, bytes: u64) -> Result<(), OpenError> {
        let answer = self.host.grow_volume(volume, bytes);
        self.wait(|_| answer.try_take())
    }

    pub(crate) fn sync(&mut self, volume: &Volume) {
        let answer = self.host.sync(volume);
        self.wait(|_| answer.try_take()).expect("synced");
    }

    /// Runs one request to its end; `data` is what a write takes and a read gives.
    pub(crate) fn request(
        &mut self,
        volume: &Volume,
        op: Op,
        data: &mut [u8],
    ) -> Result<(), ErrorKind> {
        let waker = waker();
        let mut step = volume.begin(&op, &waker);
        loop {
            step = match step {
                Step::Done(result) => return result,
                Step::Read(plan) => {
                    for piece in plan.pieces() {
                        let part = &mut data[piece.at as usize..(piece.at + piece.len) as usize];
                        match piece.place {
                            Place::Hole => part.fill(0),
                            Place::At { file, offset } => {
                                let len = part.len();
                                let found = self.disk(DiskOp::Read { file, offset, len });
                                part.copy_from_slice(&found.expect("reads do not fail here"));
                            }
                        }
                    }
                    volume.read(plan, Ok(()), &waker)
                }
                Step::Write(plan) => {
                    for piece in plan.pieces() {
                        let part = &data[piece.at as usize..(piece.at + piece.len) as usize];
                        let Place::At { file, offset } = piece.place else {
                            panic!("a hole")
                        };
                        self.put(file, offset, part);
                    }
                    volume.written(plan, Ok(()), &waker)
                }
                Step::Park(_) => {
                    self.settle();
                    let mut next = volume.begin(&op, &waker);
                    if matches!(next, Step::Park(_)) {
                        self.pass(10);
                        next = volume.begin(&op, &waker);
                    }
                    if matches!(next, Step::Park(_)) && self.now_ns > 3_600_000_000_000 {
                        panic!("parked for an hour");
                    }
                    next
                }
                Step::Status(_) => panic!("asked for with `status`"),
                Step::Sync(wait) => {
                    self.settle();
                    volume.poll_sync(wait, &waker)
                }
            };
        }
    }

    pub(crate) fn write(&mut self, volume: &Volume, sector: u64, fill: u8, bytes: usize) {
        let op = Op::Write {
            sector,
            sectors: (bytes / 512) as u32,
            fua: false,
        };
        self.request(volume, op, &mut vec![fill; bytes])
            .expect("written");
    }

    /// Writes what does not compress.
    pub(crate) fn write_noise(&mut self, volume: &Volume, sector: u64, seed: u64, bytes: u64) {
        let op = Op::Write {
            sector,
            sectors: (bytes / 512) as u32,
            fua: false,
        };
        self.request(volume, op, &mut noise(seed, bytes))
            .expect("written");
    }

    pub(crate) fn flush(&mut self, volume: &Volume) {
        self.request(volume, Op::Flush, &mut []).expect("flushed");
    }

    pub(crate) fn read(&mut self, volume: &Volume, sector: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0xee; bytes];
        let op = Op::Read {
            sector,
            sectors: (bytes / 512) as u32,
        };
        self.request(volume, op, &mut data).expect("read");
        data
    }

    /// The byte of which the whole range consists.
    pub(crate) fn read_fill(&mut self, volume: &Volume, sector: u64, bytes: usize) -> u8 {
        let data = self.read(volume, sector, bytes);
        assert!(
            data.iter().all(|byte| *byte == data[0]),
            "mixed content at {sector}"
        );
        data[0]
    }
}
