//! What all parts of the engine share: the log, the cache, the tails, and where to find them.
//!
//! Owns the registry of tails and the drawing of names and nonces; everything else is owned by
//! the part it belongs to. It must never do a part's work: procedures take it as an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::cache::Cache;
use crate::cache::blocks::BlockCache;
use crate::error::OpenError;
use crate::hostlog::names::SessionName;
use crate::hostlog::notes::LogState;
use crate::hostlog::root_updates::VersionedRoot;
use crate::jobs::{Interval, Jobs, Port, Signal};
use crate::lock::lock;
use crate::log::committer::Committer;
use crate::log::frame::Record;
use crate::log::layout::{Layout, Superblock};
use crate::log::ring::{Ring, RingId, Rings, TailId, region_words};
use crate::log::segments::Segments;
use crate::log::session::{BootId, Sessions};
use crate::log::session_gate::SessionGate;
use crate::options::Options;
use crate::recover::rings::ContinuedRings;
use crate::request::space::Space;
use crate::request::tail::Tail;
use crate::scrub::state::ScrubState;
use crate::store::collector::state::CollectorState;
use crate::store::compact::state::CompactionState;
use crate::store::fetch::streams::Streams;
use crate::store::fetch::table::FetchTable;
use crate::store::flow::budget::Budget;
use crate::store::flow::shared_packs_state::SharedPacks;
use crate::store::forks::due_snapshots::DueSnapshots;
use crate::store::host_log::HostLog;
use crate::store::host_log::session_table::SessionTable;
use crate::store::host_log::unnamed::{UnnamedObject, UnnamedObjects};
use crate::store::open::known_indexes::KnownIndexes;
use crate::store::open::log_reads::LogReads;
use crate::store::roots::watch_state::RootWatchState;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::units::{Epoch, HostId, LogSession, VolumeId};

/// What recovery and the driver give to make a host.
pub(crate) struct Parts {
    pub(crate) options: Options,
    pub(crate) layout: Layout,
    pub(crate) host: HostId,
    pub(crate) label: String,
    pub(crate) boot: BootId,
    pub(crate) sessions: Sessions,
    pub(crate) log_state: LogState,
    pub(crate) segments: Segments,
    pub(crate) rings: Arc<dyn Rings>,
    pub(crate) poisoned: bool,
    pub(crate) entropy: [u8; 32],
}

/// What all parts of the engine share.
pub(crate) struct Engine {
    /// As it was started; what may change since then is beside it.
    pub(crate) options: Options,
    rpo_ns: AtomicU64,
    pub(crate) layout: Layout,
    pub(crate) host: HostId,
    pub(crate) label: String,
    boot: BootId,
    /// This session of the log and those before it: durable once the gate is open.
    pub(crate) sessions: Sessions,
    /// Whoever writes to the store has passed it.
    pub(crate) session_gate: SessionGate,
    /// This host's log in the store.
    pub(crate) host_log: HostLog,
    /// What opens wait for.
    pub(crate) log_reads: LogReads,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) port: Port,
    pub(crate) segments: Segments,
    committer: OnceLock<Committer>,
    tails: Mutex<BTreeMap<TailId, Arc<Tail>>>,
    pub(crate) rings: Arc<dyn Rings>,
    /// The session's own region: it says what no tail's ring can, that the log is poisoned, and that the store must
    /// be asked before a tail is served that this session did not touch.
    session_ring: Mutex<Option<Ring>>,
    pub(crate) cache: Cache,
    pub(crate) blocks: BlockCache,
    pub(crate) fetches: FetchTable,
    pub(crate) streams: Streams,
    pub(crate) space: Space,
    /// Memory for content on its way to the store.
    pub(crate) upload_budget: Arc<Budget>,
    pub(crate) shared_packs: SharedPacks,
    pub(crate) root_watch: RootWatchState,
    pub(crate) reclaim: Signal,
    reclaim_requests: AtomicU64,
    /// Volume names whose opening, closing or deletion is going on.
    pub(crate) locked_names: Mutex<BTreeSet<String>>,
    /// Claims of this process on volumes that it has not adopted yet, and whether a local tail continues the hold.
    pub(crate) claims: Mutex<BTreeMap<VolumeId, (VersionedRoot, bool)>>,
    /// Snapshots that are served, by name. They are no tails of this log.
    pub(crate) open_snapshots: Mutex<BTreeMap<String, Arc<Tail>>>,
    /// Indexes of volumes that are about to be taken.
    pub(crate) indexes: KnownIndexes,
    /// Lost tails that a fork reads: they stay until it has ended.
    pub(crate) forked_tails: Mutex<BTreeSet<TailId>>,
    pub(crate) poisoned: AtomicBool,
    stopping: AtomicBool,
    /// Dirty extents of all tails, as of the last tick.
    pub(crate) extents: AtomicU64,
    entropy: [u8; 32],
    drawn: AtomicU64,
    /// Under it stand the objects that this process writes.
    pub(crate) session_name: SessionName,
    /// The sessions of all objects that it has met.
    pub(crate) names: Arc<SessionTable>,
    /// The objects of this process that nothing names yet.
    pub(crate) unnamed: Arc<UnnamedObjects>,
    /// Objects that no record names before a root does: the collector never takes them.
    pub(crate) unrecorded: Arc<UnnamedObjects>,
    /// What its passes over the store came to.
    pub(crate) collector: CollectorState,
    /// Between two passes of the collector.
    pub(crate) gc_interval: Interval,
    pub(crate) due_snapshots: DueSnapshots,
    /// What its compaction has done, and knows of the volumes that are open.
    pub(crate) compaction: CompactionState,
    /// Between two looks for something to compact.
    pub(crate) compact_interval: Interval,
    /// What its scrub has read and found.
    pub(crate) scrub: ScrubState,
    /// In which all is scrubbed once.
    pub(crate) scrub_interval: Interval,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl Engine {
    pub(crate) fn new(jobs: Arc<Jobs>, parts: Parts) -> Engine {
        let Parts {
            options,
            layout,
            host,
            label,
            boot,
            sessions,
            log_state,
            segments,
            rings,
            poisoned,
            entropy,
        } = parts;
        let session_name = SessionName {
            host,
            session: object_session(sessions.current(), &entropy),
        };
        let unnamed = UnnamedObjects::new(session_name);
        let unrecorded = unrecorded_objects(&unnamed, session_name, &entropy);
        let names = table_of([session_name, unrecorded.session()]);
        Engine {
            layout,
            host,
            label,
            boot,
            sessions,
            session_gate: SessionGate::default(),
            host_log: HostLog::new(log_state),
            port: Port(Arc::clone(&jobs)),
            jobs,
            segments,
            committer: OnceLock::new(),
            tails: Mutex::default(),
            rings,
            session_ring: Mutex::default(),
            cache: Cache::new(options.memory_bytes, options.cache_bytes),
            blocks: BlockCache::new(options.index_bytes),
            fetches: FetchTable::default(),
            streams: Streams::new(options.memory_bytes),
            space: Space::default(),
            upload_budget: Budget::new(options.upload_bytes()),
            shared_packs: SharedPacks::default(),
            root_watch: RootWatchState::default(),
            reclaim: Signal::default(),
            reclaim_requests: AtomicU64::new(0),
            log_reads: LogReads::default(),
            locked_names: Mutex::default(),
            claims: Mutex::default(),
            open_snapshots: Mutex::default(),
            indexes: KnownIndexes::default(),
            forked_tails: Mutex::default(),
            poisoned: AtomicBool::new(poisoned),
            stopping: AtomicBool::new(false),
            extents: AtomicU64::new(0),
            entropy,
            drawn: AtomicU64::new(0),
            session_name,
            names,
            unnamed,
            unrecorded,
            collector: CollectorState::default(),
            gc_interval: Interval::new(options.gc_interval_ns),
            due_snapshots: DueSnapshots::default(),
            compaction: CompactionState::default(),
            compact_interval: Interval::new(options.compact.interval_ns),
            scrub: ScrubState::default(),
            scrub_interval: Interval::new(options.scrub.interval_ns),
            rpo_ns: AtomicU64::new(options.rpo_ns),
            options,
        }
    }

    /// Everything older than this is uploaded.
    pub(crate) fn rpo_ns(&self) -> u64 {
        self.rpo_ns.load(Ordering::Relaxed)
    }

    /// Has the bookkeeping keep another recovery point from its next turn on.
    pub(crate) fn set_rpo_ns(&self, rpo_ns: u64) {
        // Nothing else goes with it: whoever reads the old one is early or late once.
        self.rpo_ns.store(rpo_ns, Ordering::Relaxed);
        self.host_log.wake();
    }

    /// Has passes of the collector come at another interval; zero: none from now on.
    pub(crate) fn set_gc_interval_ns(&self, ns: u64) {
        self.collector.set_on(ns > 0, self.jobs.now().unix_ms);
        self.gc_interval.set_ns(ns);
    }

    /// The host's one committer; false if it has one.
    pub(crate) fn begin_commits(&self, committer: Committer) -> bool {
        self.committer.set(committer).is_ok()
    }

    /// The host stops: procedures end at their next step.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub(crate) fn boot_id(&self) -> BootId {
        self.boot
    }

    /// The name of a ring in use.
    pub(crate) fn ring_id(&self, tail: Option<TailId>) -> RingId {
        RingId {
            host: self.host,
            session: self.sessions.ring_session(),
            tail,
        }
    }

    /// An empty ring of this session. What stood under its name is void.
    pub(crate) fn make_ring(&self, tail: Option<TailId>, entries: u32) -> Result<Ring, String> {
        let id = self.ring_id(tail);
        let region = self.rings.open(id, region_words(entries))?;
        Ok(Ring::format(region, &id, self.boot))
    }

    /// Makes the session's own region. Without one, a log that is poisoned while no volume is open
    /// would only be marked on the disk that has just failed.
    pub(crate) fn make_session_ring(&self) -> Result<(), OpenError> {
        let ring = self.make_ring(None, 0).map_err(OpenError::Disk)?;
        *lock(&self.session_ring) = Some(ring);
        Ok(())
    }

    /// Goes on with the rings of the process before. Frames name them.
    pub(crate) fn keep_rings(&self, rings: ContinuedRings) -> Result<(), OpenError> {
        let tails = rings.of_tails.keys().copied().map(Some);
        let names = tails.chain([None]).map(|tail| self.ring_id(tail));
        let names: Vec<RingId> = names.collect();
        self.rings.keep(&names).map_err(OpenError::Disk)?;
        for (id, ring) in rings.of_tails {
            if let Some(tail) = self.tail(id) {
                tail.lock().ring = Some(ring);
            }
        }
        *lock(&self.session_ring) = Some(rings.own);
        Ok(())
    }

    /// The next start must not serve a tail that this one did not touch before the store was asked. For good.
    pub(crate) fn require_check_of_untouched(&self) {
        if !canary::active!("next_start_serves_what_ended") {
            lock(&self.session_ring)
                .iter()
                .for_each(Ring::require_check);
        }
    }

    /// Makes rings again whose names are gone, with what they hold, so that a successor finds them.
    ///
    /// # Errors
    /// The driver's, of the first that cannot be made.
    pub(crate) fn put_back_rings(&self, gone: &[RingId]) -> Result<(), String> {
        for id in gone.iter().filter(|id| **id == self.ring_id(id.tail)) {
            let Some(tail) = id.tail else {
                let region = self.rings.open(*id, region_words(0))?;
                if let Some(ring) = &mut *lock(&self.session_ring) {
                    ring.move_to(region);
                }
                continue;
            };
            let Some(found) = self.tail(tail) else {
                continue;
            };
            let Some(words) = found.ring_words() else {
                continue;
            };
            found.move_ring(self.rings.open(*id, words)?);
            // One that was let go of meanwhile may have had its name removed before.
            if self.tail(tail).is_none() {
                self.rings.remove(*id);
            }
        }
        Ok(())
    }

    /// The log is poisoned: memory says so at once, for the next process.
    pub(crate) fn poison_rings(&self) {
        lock(&self.session_ring).iter().for_each(Ring::poison);
        self.tails().iter().for_each(|tail| tail.poison_ring());
    }

    /// The log's first block, not poisoned.
    pub(crate) fn superblock(&self) -> Superblock {
        Superblock {
            host: self.host,
            log_bytes: self.layout.log_bytes,
            segment_bytes: self.layout.segment_bytes,
            poisoned: false,
        }
    }

    /// The committer, once recovery is over.
    pub(crate) fn committer_after_recovery(&self) -> Option<&Committer> {
        self.committer.get()
    }

    pub(crate) fn committer(&self) -> &Committer {
        self.committer
            .get()
            .expect("set before anything else may see the host")
    }

    pub(crate) fn tails(&self) -> Vec<Arc<Tail>> {
        lock(&self.tails).values().cloned().collect()
    }

    /// Those of a volume of this name; more than one if it was lost and opened again.
    pub(crate) fn tails_named(&self, name: &str) -> Vec<Arc<Tail>> {
        let tails = lock(&self.tails);
        let named = tails.values().filter(|tail| tail.name() == name);
        named.cloned().collect()
    }

    pub(crate) fn tail_count(&self) -> usize {
        lock(&self.tails).len()
    }

    pub(crate) fn tail(&self, id: TailId) -> Option<Arc<Tail>> {
        lock(&self.tails).get(&id).cloned()
    }

    /// The tail of the newest hold of a volume.
    pub(crate) fn newest_tail_of(&self, volume: VolumeId) -> Option<Arc<Tail>> {
        let of = |since| TailId { volume, since };
        let tails = lock(&self.tails);
        let mut holds = tails.range(of(Epoch(0))..=of(Epoch(u64::MAX)));
        holds.next_back().map(|(_, tail)| Arc::clone(tail))
    }

    pub(crate) fn add_tail(&self, tail: Arc<Tail>) {
        lock(&self.tails).insert(tail.id(), tail);
    }

    /// Has the log record what it should know of the tail; nothing of one that is maintained.
    pub(crate) fn record_tail(self: &Arc<Engine>, tail: &Tail) {
        if !tail.is_for_maintenance() {
            self.committer().record(self, Record::Tail(tail.record()));
        }
    }

    pub(crate) fn remove_tail(&self, id: TailId) {
        lock(&self.tails).remove(&id);
    }

    /// Wakes every parked request and every waiter: something ended for good.
    pub(crate) fn wake_parked(&self) {
        self.space.parked.wake_all();
        self.fetches.wake();
        self.committer().wake();
    }

    /// Wakes the reclaim job.
    pub(crate) fn request_reclaim(&self) {
        self.reclaim_requests.fetch_add(1, Ordering::AcqRel);
        self.reclaim.wake_all();
    }

    pub(crate) fn reclaim_requests(&self) -> u64 {
        self.reclaim_requests.load(Ordering::Acquire)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Is there room for more dirty extents in a checkpoint?
    pub(crate) fn has_extent_room(&self) -> bool {
        self.extents.load(Ordering::Relaxed) < self.layout.extents_max()
    }

    fn random_bytes(&self) -> [u8; 32] {
        let counter = self.drawn.fetch_add(1, Ordering::Relaxed);
        *blake3::keyed_hash(&self.entropy, &counter.to_le_bytes()).as_bytes()
    }

    pub(crate) fn next_nonce(&self) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.random_bytes()[..8]);
        u64::from_le_bytes(word)
    }

    pub(crate) fn next_volume_id(&self) -> VolumeId {
        let mut id = [0; 16];
        id.copy_from_slice(&self.random_bytes()[..16]);
        VolumeId(id)
    }

    /// A new object of this process. To be held until something names it.
    pub(crate) fn next_object(&self) -> UnnamedObject {
        let is_poisoned = self.poisoned.load(Ordering::Acquire);
        match is_poisoned && !canary::active!("poisoned_packs_are_of_a_session") {
            true => self.unrecorded.allocate(),
            false => self.unnamed.allocate(),
        }
    }

    /// The sessions under which this process names objects.
    pub(crate) fn own_sessions(&self) -> [SessionName; 2] {
        [self.session_name, self.unrecorded.session()]
    }
}

/// A table that knows the sessions of this process.
fn table_of(own: [SessionName; 2]) -> Arc<SessionTable> {
    let names = Arc::<SessionTable>::default();
    let known = names.register(own);
    debug_assert!(known.is_ok(), "their bits are drawn");
    names
}

/// The objects that no record names. A session without a number has no others.
fn unrecorded_objects(
    unnamed: &Arc<UnnamedObjects>,
    own: SessionName,
    entropy: &[u8; 32],
) -> Arc<UnnamedObjects> {
    match own.session.number {
        0 => Arc::clone(unnamed),
        _ => UnnamedObjects::new(SessionName {
            host: own.host,
            session: unrecorded_session(entropy),
        }),
    }
}

/// The session of objects that no record names first. It has no number, so nothing ever ends it: not a later start,
/// nor a copy of this host that publishes more than this one does.
fn unrecorded_session(entropy: &[u8; 32]) -> LogSession {
    let mut drawn = [0; 8];
    drawn.copy_from_slice(&blake3::keyed_hash(entropy, b"unrecorded").as_bytes()[..8]);
    LogSession {
        random: u64::from_le_bytes(drawn),
        ..LogSession::default()
    }
}

/// The session under which this process names objects. All servers on a poisoned log have the same
/// session, since it can record none, but no two of them may use the same names.
fn object_session(current: LogSession, entropy: &[u8; 32]) -> LogSession {
    let mut drawn = [0; 8];
    drawn.copy_from_slice(&blake3::keyed_hash(entropy, b"session").as_bytes()[..8]);
    if current == LogSession::default() && !canary::active!("poisoned_logs_share_names") {
        LogSession {
            random: u64::from_le_bytes(drawn),
            ..current
        }
    } else {
        current
    }
}
