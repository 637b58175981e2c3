//! The machine under a modelled host: files and objects in memory, and the driver's two threads.
//!
//! Its own state is behind the standard library's locks, which are never held across a step of the model:
//! so it adds no schedules. A sync makes durable what was written before it began, and takes a while.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::{Arc, Mutex as Contents};
use std::task::Poll;

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, FileId, Op, Place, Plan, Step};
use shuttle::future::block_on;
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

use crate::driver::{
    DiskError, DiskOp, Notify, Outcome, Request, RequestOp, StoreError, StoreOp, StoreReply,
    Version,
};
use crate::log::ring::{HeapRegion, RetainedRings, RingId, RingRegion, Rings};
use crate::options::Options;
use crate::store::catalog::volume_spec::VolumeSpec;
use crate::store::open::OpenMode;
use crate::units::{HostId, Now};
use crate::{Answer, Host, Setup, Volume};

/// The smallest log, of six segments, each with room for one block.
pub(super) const SMALL_LOG: u64 = 616 << 10;
/// One of sixteen.
pub(super) const LARGE_LOG: u64 = SMALL_LOG + (80 << 10);

fn options(log_bytes: u64) -> Options {
    Options {
        log_bytes,
        segment_bytes: 8 << 10,
        ring_entries: 8,
        cache_bytes: 0,
        memory_bytes: 1 << 20,
        pack_bytes: 64 << 10,
        ..Options::default()
    }
}

/// Time passes in steps of this, once the jobs have nothing else to do and a write waits for space: the tick is what
/// looks whether dying segments are free. So often at most until something else
/// happens, so that a wake which is lost leaves a thread asleep.
const TICK_NS: u64 = 100_000_000;
const TICKS: u32 = 2;

/// Says that there is something to do, and whether there will be more.
#[derive(Default)]
struct Bell {
    state: Mutex<BellState>,
    changed: Condvar,
}

#[derive(Default)]
struct BellState {
    rung: bool,
    is_last: bool,
}

impl Bell {
    fn ring(&self, is_last: bool) {
        let mut state = self.state.lock().unwrap();
        state.rung = true;
        state.is_last |= is_last;
        self.changed.notify_all();
    }

    /// True for the last time.
    fn wait(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        while !state.rung {
            state = self.changed.wait(state).unwrap();
        }
        state.rung = false;
        state.is_last
    }
}

/// A thread of the driver for each.
#[derive(Default)]
struct Bells {
    commits: Bell,
    jobs: Bell,
}

impl Notify for Bells {
    fn commit_ready(&self) {
        self.commits.ring(false);
    }

    fn jobs_ready(&self) {
        self.jobs.ring(false);
    }
}

#[derive(Default)]
struct HeapRings(Contents<BTreeMap<RingId, Arc<HeapRegion>>>);

impl Rings for HeapRings {
    fn find(&self, ring: RingId) -> Result<Option<Arc<dyn RingRegion>>, String> {
        let rings = self.0.lock().unwrap();
        Ok(rings.get(&ring).map(|region| Arc::clone(region) as _))
    }

    fn open(&self, ring: RingId, words: usize) -> Result<Arc<dyn RingRegion>, String> {
        let mut rings = self.0.lock().unwrap();
        let region = rings.entry(ring);
        let region = region.or_insert_with(|| Arc::new(HeapRegion::new(words)));
        Ok(Arc::clone(region) as _)
    }

    fn remove(&self, ring: RingId) {
        self.0.lock().unwrap().remove(&ring);
    }

    fn list(&self, _: HostId) -> Vec<RingId> {
        self.0.lock().unwrap().keys().copied().collect()
    }

    fn set_aside(&self, _: RingId) -> Result<RetainedRings, String> {
        Err("no ring is damaged here".into())
    }
}

#[derive(Default)]
struct StorageContent {
    files: BTreeMap<FileId, Vec<u8>>,
    /// Offsets in the log that were written, and not synced since.
    unsynced: BTreeSet<u64>,
    objects: BTreeMap<String, (Vec<u8>, u64)>,
    versions: u64,
    /// Writes that wait for log space.
    parked: usize,
    /// So often one began to.
    parks: u64,
}

/// Files and objects.
#[derive(Default)]
pub(super) struct Machine(Contents<StorageContent>);

impl Machine {
    pub(super) fn put(&self, file: FileId, offset: u64, bytes: &[u8]) {
        let mut contained = self.0.lock().unwrap();
        if file == FileId::LOG {
            contained.unsynced.insert(offset);
        }
        let data = contained.files.entry(file).or_default();
        let (at, end) = (offset as usize, offset as usize + bytes.len());
        if data.len() < end {
            data.resize(end, 0);
        }
        data[at..end].copy_from_slice(bytes);
    }

    pub(super) fn get(&self, file: FileId, offset: u64, len: usize) -> Vec<u8> {
        let mut contained = self.0.lock().unwrap();
        let data = contained.files.entry(file).or_default();
        let (at, end) = (offset as usize, offset as usize + len);
        if data.len() < end {
            data.resize(end, 0);
        }
        data[at..end].to_vec()
    }

    pub(super) fn is_synced(&self, offset: u64) -> bool {
        !self.0.lock().unwrap().unsynced.contains(&offset)
    }

    /// How often writes began to wait for log space, and how many wait.
    fn parks(&self) -> (u64, usize) {
        let contained = self.0.lock().unwrap();
        (contained.parks, contained.parked)
    }

    fn disk(&self, op: DiskOp) -> Result<Vec<u8>, DiskError> {
        match op {
            DiskOp::Read { file, offset, len } => return Ok(self.get(file, offset, len)),
            DiskOp::Write { file, offset, data } => self.put(file, offset, &data),
            DiskOp::Zero { file, offset, len } => self.put(file, offset, &vec![0; len as usize]),
            DiskOp::Sync { .. } => {
                let before = self.0.lock().unwrap().unsynced.clone();
                thread::yield_now();
                let mut contained = self.0.lock().unwrap();
                contained.unsynced.retain(|offset| !before.contains(offset));
            }
        }
        Ok(Vec::new())
    }

    fn store(&self, op: StoreOp) -> Result<StoreReply, StoreError> {
        let mut contained = self.0.lock().unwrap();
        contained.versions += 1;
        let new = contained.versions;
        let objects = &mut contained.objects;
        let is_there = |objects: &BTreeMap<_, _>, key: &str| objects.contains_key(key);
        match op {
            StoreOp::Get { key } => {
                let (data, version) = objects.get(&key).cloned().ok_or(StoreError::NotFound)?;
                let version = Version(version.to_string());
                return Ok(StoreReply::Object { data, version });
            }
            StoreOp::GetRange { key, offset, len } => {
                let (data, _) = objects.get(&key).ok_or(StoreError::NotFound)?;
                let range = data.get(offset as usize..(offset + len) as usize);
                return Ok(StoreReply::Range(
                    range.ok_or(StoreError::OutOfRange)?.to_vec(),
                ));
            }
            StoreOp::Put { key, .. } | StoreOp::Create { key, .. } if is_there(objects, &key) => {
                return Err(StoreError::PreconditionFailed);
            }
            StoreOp::Put { key, data } => {
                objects.insert(key, (data.to_vec(), new));
            }
            StoreOp::Create { key, data } => {
                objects.insert(key, (data, new));
            }
            StoreOp::Update { key, data, version } => {
                let found = objects.get(&key).ok_or(StoreError::NotFound)?;
                if found.1.to_string() != version.0 {
                    return Err(StoreError::PreconditionFailed);
                }
                objects.insert(key, (data, new));
            }
            StoreOp::Delete { key } => {
                objects.remove(&key);
                return Ok(StoreReply::Deleted);
            }
            StoreOp::List { prefix } => {
                let found = objects.iter().filter(|(key, _)| key.starts_with(&prefix));
                let keys = found.map(|(key, (data, _))| (key.clone(), data.len() as u64));
                return Ok(StoreReply::Keys(keys.collect()));
            }
            StoreOp::ListPart {
                prefix,
                after,
                limit,
            } => {
                let found = objects.iter().filter(|(key, _)| key.starts_with(&prefix));
                let found = found.filter(|(key, _)| **key > after).take(limit);
                let keys = found.map(|(key, (data, _))| (key.clone(), data.len() as u64));
                return Ok(StoreReply::Keys(keys.collect()));
            }
        }
        let version = Version(new.to_string());
        Ok(StoreReply::Written { version })
    }

    fn carry_out(&self, host: &Host, Request { id, op }: Request) {
        let outcome = match op {
            RequestOp::Disk(op) => Outcome::Disk(self.disk(op).map(Into::into)),
            RequestOp::Store(op) => Outcome::Store(self.store(op)),
            RequestOp::Compute(work) => Outcome::Compute(work.run()),
        };
        host.complete(id, outcome);
    }
}

/// A host that serves one volume, and its driver.
pub(super) struct Server {
    pub(super) machine: Arc<Machine>,
    pub(super) volume: Volume,
    host: Host,
    bells: Arc<Bells>,
    drivers: Vec<thread::JoinHandle<()>>,
}

impl Server {
    /// On one thread, with a volume of some blocks; then the driver's threads begin.
    pub(super) fn start(log_bytes: u64) -> Server {
        let (machine, bells) = (Arc::<Machine>::default(), Arc::<Bells>::default());
        let (host, answer) = Host::start(Setup {
            options: options(log_bytes),
            rings: Arc::<HeapRings>::default(),
            notify: Arc::clone(&bells) as _,
            boot_id: [1; 16],
            entropy: [2; 32],
            label: "model".into(),
            now: Now {
                mono_ns: 1,
                unix_ms: 0,
            },
            continues: None,
            may_begin: None,
        });
        wait(&host, &machine, &answer).expect("an empty log is recovered");
        let created = host.create_volume(VolumeSpec {
            name: "v".into(),
            bytes: 1 << 20,
            block: 4096,
        });
        wait(&host, &machine, &created).expect("created");
        let opened = host.open_volume("v", OpenMode::default());
        let volume = wait(&host, &machine, &opened).expect("opened");
        // In a log with room for all there is nothing to heal, and time stands still.
        let ticks = if log_bytes == SMALL_LOG { TICKS } else { 0 };
        let drivers = begin_driving(&host, &machine, &bells, ticks);
        Server {
            machine,
            volume,
            host,
            bells,
            drivers,
        }
    }

    /// Ends the driver's threads, after what they have begun.
    pub(super) fn stop(self) -> Host {
        self.bells.commits.ring(true);
        self.bells.jobs.ring(true);
        for driver in self.drivers {
            driver.join().unwrap();
        }
        self.host
    }
}

/// Drives a host on this thread until the answer is there.
fn wait<T>(host: &Host, machine: &Machine, answer: &Answer<T>) -> T {
    loop {
        if let Some(value) = answer.try_take() {
            return value;
        }
        host.run_jobs();
        let requests = host.take_requests().into_iter();
        for request in requests.chain(host.take_commit_requests()) {
            machine.carry_out(host, request);
        }
    }
}

/// One thread for the group commit, which a FLUSH waits for, and one for the jobs.
fn begin_driving(
    host: &Host,
    machine: &Arc<Machine>,
    bells: &Arc<Bells>,
    most_ticks: u32,
) -> Vec<thread::JoinHandle<()>> {
    let (on, at, by) = (host.clone(), Arc::clone(machine), Arc::clone(bells));
    let commits = thread::spawn(move || {
        loop {
            let is_last = by.commits.wait();
            for request in on.take_commit_requests() {
                at.carry_out(&on, request);
            }
            if is_last {
                return;
            }
        }
    });
    let (on, at, by) = (host.clone(), Arc::clone(machine), Arc::clone(bells));
    let jobs = thread::spawn(move || {
        let (mut seen, mut ticks) = ((0, 0), 0);
        loop {
            let is_last = by.jobs.wait();
            loop {
                let more = on.run_jobs();
                let requests = on.take_requests();
                if requests.is_empty() && !more {
                    let parks = at.parks();
                    if parks != seen {
                        (seen, ticks) = (parks, 0);
                    }
                    if ticks == most_ticks || parks.1 == 0 {
                        break;
                    }
                    ticks += 1;
                    // The others go on meanwhile.
                    thread::yield_now();
                    on.advance_clock(TICK_NS);
                }
                if !requests.is_empty() {
                    ticks = 0;
                }
                requests
                    .into_iter()
                    .for_each(|request| at.carry_out(&on, request));
            }
            if is_last {
                return;
            }
        }
    });
    vec![commits, jobs]
}

/// What a request has moved.
#[derive(Default)]
pub(super) struct Moves {
    /// Where a write put its bytes.
    pub(super) written: Vec<u64>,
    /// What a read gave.
    pub(super) read: Vec<u8>,
}

/// Carries a request to its end, as a transport does; a write fills its sectors with `fill`.
pub(super) fn request(
    machine: &Machine,
    volume: &Volume,
    op: Op,
    fill: u8,
) -> Result<Moves, ErrorKind> {
    let (mut moves, mut sync, mut is_parked) = (Moves::default(), None, false);
    let result = block_on(poll_fn(|cx| {
        machine.0.lock().unwrap().parked -= usize::from(std::mem::take(&mut is_parked));
        let mut step = match sync.take() {
            Some(sync) => volume.poll_sync(sync, cx.waker()),
            None => volume.begin(&op, cx.waker()),
        };
        loop {
            step = match step {
                Step::Done(result) => return Poll::Ready(result),
                Step::Park(_) => {
                    is_parked = true;
                    let mut contained = machine.0.lock().unwrap();
                    (contained.parked, contained.parks) =
                        (contained.parked + 1, contained.parks + 1);
                    return Poll::Pending;
                }
                Step::Sync(wait) => {
                    sync = Some(wait);
                    return Poll::Pending;
                }
                Step::Read(plan) => {
                    thread::yield_now();
                    moves.read = read(machine, &plan);
                    volume.read(plan, Ok(()), cx.waker())
                }
                Step::Write(plan) => {
                    moves.written = write(machine, &plan, fill);
                    thread::yield_now();
                    volume.written(plan, Ok(()), cx.waker())
                }
                Step::Status(_) => unreachable!("nobody asks for it"),
            };
        }
    }));
    result.map(|()| moves)
}

fn read(machine: &Machine, plan: &impl Plan) -> Vec<u8> {
    let pieces = plan.pieces().iter();
    pieces
        .flat_map(|piece| match piece.place {
            Place::Hole => vec![0; piece.len as usize],
            Place::At { file, offset } => machine.get(file, offset, piece.len as usize),
        })
        .collect()
}

fn write(machine: &Machine, plan: &impl Plan, fill: u8) -> Vec<u64> {
    let place = |place| match place {
        Place::At { file, offset } => (file, offset),
        Place::Hole => unreachable!("a write has a place"),
    };
    let pieces = plan.pieces().iter();
    pieces
        .map(|piece| {
            let (file, offset) = place(piece.place);
            machine.put(file, offset, &vec![fill; piece.len as usize]);
            offset
        })
        .collect()
}
