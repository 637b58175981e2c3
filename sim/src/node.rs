//! Owns the joint to the engine: a server process, as the world sees it.
//!
//! Everything the simulator knows of the engine's interface is here: how a host is opened, how
//! its requests and outcomes look, how control operations end. It must not judge and must not
//! schedule.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::disk::{IoError, IoResult};
use crate::profile::Limits;
use crate::rings::RingDir;
use crate::rng::Rng;
use crate::store::{Call, CallError, CallResult, Condition, Reply};
use crate::trace::Violation;

mod points;

pub use points::{PointAsk, PointEnd};
pub use volume::RecoveryReport;
pub use volume::Volume;
pub use volume::driver::{Computation, ComputeKind, DiskOp, Request, RequestId, RequestOp};
use volume::driver::{DiskError, Outcome, StoreError, StoreOp, StoreReply, Version};
use volume::units::{Lsn, Now, VolumeId};
use volume::{
    Answer, CompactOptions, Host, Notify, OpenError, OpenMode, Options, ScrubCounts, ScrubOptions,
    VolumeInfo, VolumeSpec, Watermarks,
};

/// What a process is started with.
#[derive(Debug)]
pub struct Setup {
    /// The engine's limits.
    pub limits: Limits,
    /// The ring directory.
    pub rings: Arc<RingDir>,
    /// Which boot of the machine.
    pub boot_id: u64,
    /// Whether volumes of other hosts are taken over.
    pub take_over: bool,
    /// Where identities are drawn from.
    pub identity: Rng,
    /// Virtual time.
    pub now: u64,
    /// The process before gave its place to this one.
    pub continues: Option<volume::Continuation>,
    /// What that one said its cache holds.
    pub cache: Option<Vec<u8>>,
}

/// Why a control operation failed.
pub type Failure = OpenError;

/// What a process tells its world.
#[derive(Debug)]
pub enum NodeEvent {
    /// The host is open, or is not.
    Booted(Result<RecoveryReport, Failure>),
    /// A volume is open, or is not.
    Opened(usize, Result<Arc<Volume>, Failure>),
    /// A volume serves before the store was asked, or does not.
    Served(usize, Result<Arc<Volume>, Failure>),
    /// The store has said whether such a volume goes on here.
    Checked(usize, bool),
    /// A volume was created, or was not.
    Created(usize, Result<(), Failure>),
    /// A volume is closed, or is not.
    Closed(usize, Result<(), Failure>),
    /// A volume is deleted, or is not.
    Deleted(usize, Result<(), Failure>),
    /// A sync to the store ended.
    Synced {
        /// Which volume.
        volume: usize,
        /// Which client asked; none: the world itself.
        client: Option<usize>,
        /// What it covers: the position acknowledged when it was asked.
        covers: u64,
        /// How it ended.
        result: Result<(), Failure>,
    },
    /// What was asked of a snapshot or a fork ended.
    Point(u64, PointEnd),
}

/// Notes that the engine wants its procedures run.
#[derive(Debug, Default)]
struct ReadyFlag(AtomicBool);

impl Notify for ReadyFlag {
    fn commit_ready(&self) {}

    fn jobs_ready(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A server process.
pub struct Node {
    host: Host,
    ready: Arc<ReadyFlag>,
    booting: Option<Answer<Result<RecoveryReport, OpenError>>>,
    /// To be restored when it has booted.
    cache: Option<Vec<u8>>,
    opening: Vec<(usize, Answer<Result<Volume, OpenError>>)>,
    serving: Vec<(usize, Answer<Result<Volume, OpenError>>)>,
    unchecked: BTreeMap<usize, Arc<Volume>>,
    creating: Vec<(usize, Answer<Result<VolumeInfo, OpenError>>)>,
    closing: Vec<(usize, Answer<Result<(), OpenError>>)>,
    deleting: Vec<(usize, Answer<Result<(), OpenError>>)>,
    dropping: Vec<(usize, Answer<Result<(), OpenError>>)>,
    syncing: Vec<PendingSync>,
    open: BTreeMap<usize, Arc<Volume>>,
    points: points::PointCalls,
    compaction_steps: u64,
    maintained: u64,
    scrub_passes: u64,
}

struct PendingSync {
    volume: usize,
    client: Option<usize>,
    covers: u64,
    answer: Answer<Result<Lsn, OpenError>>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

fn options(limits: &Limits, take_over: bool) -> Options {
    Options {
        log_bytes: limits.log_bytes,
        segment_bytes: limits.segment_bytes,
        ring_entries: limits.ring_entries,
        cache_bytes: limits.cache_bytes,
        memory_bytes: limits.memory_bytes,
        chunk_bytes: limits.chunk_bytes,
        pack_bytes: limits.pack_bytes,
        deltas_max: limits.deltas_max,
        delta_extents_max: limits.delta_extents_max,
        index_bytes: limits.index_bytes,
        low_mark_records: 3 * limits.deltas_max as u64,
        low_mark_bytes: limits.pack_bytes,
        // Often enough that every world has some, and so seldom that it comes to rest.
        gc_interval_ns: 3_000_000_000,
        compact: CompactOptions {
            interval_ns: limits.compact_ns,
            bytes_per_s: 64 << 20,
            live_percent: limits.compact_percent,
            pass_bytes: 1 << 30,
            runs_max: limits.compact_runs,
            closed_looks: limits.compact_closed,
            closed_deltas: 0,
        },
        scrub: ScrubOptions {
            interval_ns: limits.scrub_ns,
            bytes_per_s: 64 << 20,
        },
        rpo_ns: limits.rpo_ns,
        frame_interval_ns: limits.frame_interval_ns,
        retry_ns: limits.retry_ns,
        take_over,
    }
}

fn moment(now: u64) -> Now {
    Now {
        mono_ns: now,
        unix_ms: now / 1_000_000,
    }
}

impl Node {
    /// Starts a process.
    pub fn boot(setup: Setup) -> Node {
        let ready = Arc::new(ReadyFlag::default());
        let mut rng = setup.identity;
        let mut entropy = [0; 32];
        for chunk in entropy.chunks_mut(8) {
            chunk.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        let mut boot_id = [0; 16];
        boot_id[..8].copy_from_slice(&setup.boot_id.to_le_bytes());
        let (host, answer) = Host::start(volume::Setup {
            options: options(&setup.limits, setup.take_over),
            rings: setup.rings,
            notify: ready.clone(),
            boot_id,
            entropy,
            label: "simulated".into(),
            now: moment(setup.now),
            continues: setup.continues.map(|told| volume::Continuation {
                cache_follows: setup.cache.is_some(),
                ..told
            }),
            may_begin: None,
        });
        Node {
            host,
            ready,
            booting: Some(answer),
            cache: setup.cache,
            opening: Vec::new(),
            serving: Vec::new(),
            unchecked: BTreeMap::new(),
            creating: Vec::new(),
            closing: Vec::new(),
            deleting: Vec::new(),
            dropping: Vec::new(),
            syncing: Vec::new(),
            open: BTreeMap::new(),
            points: points::PointCalls::default(),
            compaction_steps: 0,
            maintained: 0,
            scrub_passes: 0,
        }
    }

    /// What this process would tell the one that takes its place.
    pub fn continuation(&self) -> volume::Continuation {
        volume::Continuation {
            journal: self.host.journal_mark(),
            cache_follows: false,
        }
    }

    /// What it would say its cache holds. From then on the cache file stays as it is.
    pub fn list_cache(&self) -> Option<Vec<u8>> {
        self.host.list_cache()
    }

    /// Opens a volume, perhaps by taking it over; ends with [`NodeEvent::Opened`].
    pub fn open(&mut self, volume: usize, name: &str, take_over: bool) {
        let mode = OpenMode {
            take_over,
            ..OpenMode::default()
        };
        self.opening
            .push((volume, self.host.open_volume(name, mode)));
    }

    /// Serves a volume without asking the store; ends with [`NodeEvent::Served`].
    pub fn serve_unchecked(&mut self, volume: usize, name: &str) {
        let answer = self.host.open_unchecked(name, OpenMode::default());
        self.serving.push((volume, answer));
    }

    /// Closes a volume that no transport has any more; ends with [`NodeEvent::Closed`].
    pub fn close(&mut self, volume: usize) {
        if let Some(device) = self.open.get(&volume) {
            // Both ways of closing have to stand every fault.
            let closed = match device.newest().0.is_multiple_of(2) {
                true => self.host.close_awaited_volume(device),
                false => self.host.close_volume(device),
            };
            self.closing.push((volume, closed));
        }
    }

    /// Lets go of a volume without a word: it was fenced.
    pub fn forget(&mut self, volume: usize) {
        self.open.remove(&volume);
    }

    /// Drops what is kept for rescue, so that its log space is free again, and what waits for volumes
    /// that are unwanted here. True if there was any.
    pub fn drop_tails(&mut self, is_unwanted: impl Fn(VolumeId, &str) -> bool) -> bool {
        let mut tails = self.host.unserved_tails();
        tails.retain(|tail| tail.rescue || is_unwanted(tail.id.volume, &tail.volume));
        for tail in &tails {
            let waiting_too = !tail.rescue;
            let answer = self.host.drop_tail(tail.id, waiting_too);
            self.dropping.push((0, answer));
        }
        !tails.is_empty()
    }

    /// Deletes a volume; ends with [`NodeEvent::Deleted`], which carries `token`.
    pub fn delete(&mut self, token: usize, name: &str) {
        self.deleting.push((token, self.host.delete_volume(name)));
    }

    /// Creates a volume; ends with [`NodeEvent::Created`].
    pub fn create(&mut self, volume: usize, name: &str, bytes: u64, block: u32) {
        let spec = VolumeSpec {
            name: name.to_owned(),
            bytes,
            block,
        };
        self.creating.push((volume, self.host.create_volume(spec)));
    }

    /// Brings a volume to the store; ends with [`NodeEvent::Synced`].
    pub fn sync(&mut self, volume: usize, client: Option<usize>, covers: u64) {
        let Some(device) = self.open.get(&volume) else {
            return;
        };
        let answer = self.host.sync(device);
        self.syncing.push(PendingSync {
            volume,
            client,
            covers,
            answer,
        });
    }

    /// How far a volume says that it has got.
    pub fn watermarks(&self, volume: usize) -> Option<Watermarks> {
        self.open.get(&volume).map(|device| device.watermarks())
    }

    /// Runs the engine's procedures until none is ready.
    pub fn run_jobs(&mut self) {
        self.ready.0.store(false, Ordering::Relaxed);
        // What only paused sets the flag again, so that other events come in between.
        self.host.run_jobs();
    }

    /// Whether procedures are ready.
    pub fn jobs_ready(&self) -> bool {
        self.ready.0.load(Ordering::Relaxed)
    }

    /// Lets time pass.
    pub fn advance(&mut self, now: u64) {
        self.host.tick(moment(now));
    }

    /// When time must pass next.
    pub fn next_timer_ns(&self) -> Option<u64> {
        let due = self.host.next_tick_ns();
        (due < u64::MAX).then_some(due)
    }

    /// What the engine asks for.
    pub fn take_requests(&mut self) -> Vec<Request> {
        let mut requests = self.host.take_commit_requests();
        requests.extend(self.host.take_requests());
        requests
    }

    /// A disk request ended.
    pub fn on_disk_done(&mut self, id: RequestId, result: IoResult) {
        let result = result.map_err(|error| match error {
            IoError::Eio => DiskError::new("the disk failed: input/output error"),
            IoError::Short(done) => DiskError::new(format!("only {done} bytes were written")),
            IoError::Full => DiskError::full("no space left on the disk"),
        });
        self.host
            .complete(id, Outcome::Disk(result.map(Into::into)));
    }

    /// A store request ended.
    pub fn on_store_done(&mut self, id: RequestId, result: CallResult) {
        let tag = |version: u64| Version(version.to_string());
        let result = match result {
            Ok(Reply::Object(data, version)) => Ok(StoreReply::Object {
                data,
                version: tag(version),
            }),
            Ok(Reply::Range(data)) => Ok(StoreReply::Range(data)),
            Ok(Reply::Written(version)) => Ok(StoreReply::Written {
                version: tag(version),
            }),
            Ok(Reply::Deleted) => Ok(StoreReply::Deleted),
            Ok(Reply::Keys(keys)) => Ok(StoreReply::Keys(keys)),
            Err(CallError::NotFound) => Err(StoreError::NotFound),
            Err(CallError::OutOfRange) => Err(StoreError::OutOfRange),
            Err(CallError::Lost) => Err(StoreError::PreconditionFailed),
            Err(CallError::Unknown) => Err(StoreError::Unknown("the answer was lost".into())),
            Err(CallError::Unavailable) => Err(StoreError::Unavailable("try again".into())),
        };
        self.host.complete(id, Outcome::Store(result));
    }

    /// A computation ended.
    pub fn on_computed(&mut self, id: RequestId) {
        self.host.complete(id, Outcome::Compute(Ok(())));
    }

    /// Control operations that ended.
    pub fn take_events(&mut self) -> Vec<NodeEvent> {
        let mut events = Vec::new();
        if let Some(result) = self.booting.as_ref().and_then(Answer::try_take) {
            self.booting = None;
            if let Some(listed) = self.cache.take().filter(|_| result.is_ok()) {
                // A list that does not fit leaves an empty cache.
                let _ = self.host.restore_cache(&listed);
            }
            events.push(NodeEvent::Booted(result));
        }
        self.creating
            .retain(|(volume, answer)| match answer.try_take() {
                Some(result) => {
                    events.push(NodeEvent::Created(*volume, result.map(drop)));
                    false
                }
                None => true,
            });
        self.opening
            .retain(|(volume, answer)| match answer.try_take() {
                Some(result) => {
                    let result = result.map(Arc::new);
                    if let Ok(device) = &result {
                        self.open.insert(*volume, Arc::clone(device));
                    }
                    events.push(NodeEvent::Opened(*volume, result));
                    false
                }
                None => true,
            });
        self.take_served(&mut events);
        take_ended(&mut self.closing, |volume, result| {
            // What failed for the store or for something that is under way can be tried again.
            if !matches!(result, Err(OpenError::InUse(_) | OpenError::Store(_))) {
                self.open.remove(&volume);
            }
            events.push(NodeEvent::Closed(volume, result));
        });
        take_ended(&mut self.dropping, |_, _| {});
        self.points.take_ended(&mut events);
        take_ended(&mut self.deleting, |token, result| {
            events.push(NodeEvent::Deleted(token, result));
        });
        self.syncing
            .retain(|syncing| match syncing.answer.try_take() {
                Some(result) => {
                    let PendingSync {
                        volume,
                        client,
                        covers,
                        ..
                    } = *syncing;
                    let result = result.map(drop);
                    events.push(NodeEvent::Synced {
                        volume,
                        client,
                        covers,
                        result,
                    });
                    false
                }
                None => true,
            });
        events
    }

    /// Volumes that serve before the store was asked, and those of which it has said whose they are.
    fn take_served(&mut self, events: &mut Vec<NodeEvent>) {
        take_ended(&mut self.serving, |volume, result| {
            let result = result.map(Arc::new);
            if let Ok(device) = &result {
                self.open.insert(volume, Arc::clone(device));
                self.unchecked.insert(volume, Arc::clone(device));
            }
            events.push(NodeEvent::Served(volume, result));
        });
        self.unchecked.retain(|volume, device| {
            let is_unchecked = device.is_unchecked();
            if !is_unchecked {
                // One that waited to be closed is closed at once, and had been found to go on.
                let ended = device.check_serving().err();
                let goes_on = ended.is_none_or(|kind| kind == blkmq::error::ErrorKind::Closed);
                events.push(NodeEvent::Checked(*volume, goes_on));
            }
            is_unchecked
        });
    }

    /// Steps of compaction since the last call.
    pub fn take_compaction_steps(&mut self) -> u64 {
        let steps = self.host.compaction().steps;
        steps - std::mem::replace(&mut self.compaction_steps, steps)
    }

    /// Closed volumes that were opened to be compacted since the last call.
    pub fn take_maintained(&mut self) -> u64 {
        let maintained = self.host.compaction().maintained;
        maintained - std::mem::replace(&mut self.maintained, maintained)
    }

    /// Passes of the scrub since the last call, and all that it ever found.
    pub fn take_scrub_passes(&mut self) -> (u64, ScrubCounts) {
        let report = self.host.scrub();
        let before = std::mem::replace(&mut self.scrub_passes, report.passes);
        (report.passes - before, report.damaged)
    }

    /// Looks at the engine's structures: the first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), Violation> {
        let found = self.host.invariants();
        found.map_err(|detail| Violation::new("invariants", detail))
    }

    /// Where it stands, for reports.
    pub fn describe(&self) -> String {
        let usage = self.host.usage();
        let mut text = format!(
            "process: booting {}, opening {}, creating {}, syncing {}; log {} segments, {} spare, {} ‰ full",
            self.booting.is_some(),
            self.opening.len(),
            self.creating.len(),
            self.syncing.len(),
            usage.segments,
            usage.segments_spare,
            usage.pressure_permille,
        );
        for volume in self.open.values() {
            let (name, marks) = (volume.info().name, volume.watermarks());
            let (newest, stored) = (marks.acked.lsn.0, marks.stored.lsn.0);
            let (serving, error) = (volume.check_serving(), volume.upload_error());
            text.push_str(&format!(
                "\n    {name}: commits to {newest}, stored to {stored}, {serving:?}, upload error {error:?}"
            ));
        }
        for tail in self.host.unserved_tails() {
            text.push_str(&format!("\n    not served: {tail:?}"));
        }
        text
    }
}

/// Hands on what ended of these, and keeps the rest.
fn take_ended<I: Copy, T>(all: &mut Vec<(I, Answer<T>)>, mut on_end: impl FnMut(I, T)) {
    all.retain(|(token, answer)| match answer.try_take() {
        Some(result) => {
            on_end(*token, result);
            false
        }
        None => true,
    });
}

/// A store request in the simulator's words.
pub fn call(op: StoreOp) -> Call {
    match op {
        StoreOp::Get { key } => Call::Get { key },
        StoreOp::GetRange { key, offset, len } => Call::GetRange { key, offset, len },
        StoreOp::Put { key, data } => Call::Put {
            key,
            data: data.as_ref().into(),
            condition: Condition::Absent,
        },
        StoreOp::Create { key, data } => Call::Put {
            key,
            data: data.into(),
            condition: Condition::Absent,
        },
        StoreOp::Update { key, data, version } => {
            // A tag that this store never gave out fits no object.
            let version = version.0.parse().unwrap_or(0);
            Call::Put {
                key,
                data: data.into(),
                condition: Condition::Version(version),
            }
        }
        StoreOp::Delete { key } => Call::Delete { key },
        StoreOp::List { prefix } => Call::List { prefix },
        StoreOp::ListPart {
            prefix,
            after,
            limit,
        } => Call::ListPart {
            prefix,
            after,
            limit,
        },
    }
}

/// A request in one line, without its bytes.
pub fn brief(op: &RequestOp) -> String {
    match op {
        RequestOp::Disk(DiskOp::Write { file, offset, data }) => {
            format!("write {}:{offset}+{}", file.0, data.len())
        }
        RequestOp::Disk(op) => format!("{op:?}"),
        RequestOp::Store(StoreOp::Put { key, data }) => format!("put {key} ({})", data.len()),
        RequestOp::Store(StoreOp::Create { key, data }) => {
            format!("create {key} ({})", data.len())
        }
        RequestOp::Store(StoreOp::Update { key, data, version }) => {
            format!("update {key} ({}) at {version:?}", data.len())
        }
        RequestOp::Store(op) => format!("{op:?}"),
        RequestOp::Compute(work) => format!("{} ({})", work.kind().name(), work.bytes()),
    }
}

/// A store's answer in one line.
pub fn brief_result(result: &CallResult) -> String {
    match result {
        Ok(Reply::Object(data, version)) => format!("object ({}) version {version}", data.len()),
        Ok(Reply::Range(data)) => format!("range ({})", data.len()),
        other => format!("{other:?}"),
    }
}
