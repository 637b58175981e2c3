//! A host: one log, one cache, and the volumes that are open on them.
//!
//! [`Host`] is what a driver holds: it starts recovery, carries requests out and outcomes in,
//! lets time pass, and offers the control operations. [`Engine`] is what the engine's parts hold.

mod cache_inventory;
mod cache_size;
mod intervals;
mod points;
mod start;

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use crate::cache::CacheUsage;
use crate::collect::pass::Findings;
use crate::driver::{Notify, Outcome, Request, RequestId};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::failures::FailureCounts;
use crate::invariants;
use crate::jobs::maintenance::{self, Maintenance};
use crate::jobs::{Answer, Jobs};
use crate::log::ring::{RingId, Rings, TailId};
use crate::log::segments::SegmentCounts;
use crate::object::SNAPSHOT_SIGN;
use crate::options::Options;
use crate::recover::continuation::{Continuation, JournalMark};
use crate::recover::report::RecoveryReport;
use crate::request::Volume;
use crate::scrub::state::ScrubReport;
use crate::store::catalog;
use crate::store::catalog::volume_spec::{VolumeInfo, VolumeSpec};
use crate::store::collector;
use crate::store::collector::state::CollectorReport;
use crate::store::compact::state::CompactionReport;
use crate::store::fetch::warm_up::{self, HintPart, WarmUp};
use crate::store::flow;
use crate::store::flow::fork_tail::{self, ForkedTail};
use crate::store::forks::open_snapshot;
use crate::store::open::forget;
use crate::store::open::let_go;
use crate::store::open::rescue::{self, UnservedTail};
use crate::store::open::unchecked;
use crate::store::open::{self, OpenMode};
use crate::store::parts::{ListPart, ListPlace};
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;
use crate::units::{HostId, LogSession, Lsn, Now, VolumeId};

/// Frames that a start reads in a few milliseconds.
const JOURNAL_SHORT_BYTES: u64 = 1 << 20;

/// What a host is started with.
pub struct Setup {
    /// Limits and intervals.
    pub options: Options,
    /// Memory that outlives the process.
    pub rings: Arc<dyn Rings>,
    /// Called when there is something to do.
    pub notify: Arc<dyn Notify>,
    /// Changes when the host is restarted.
    pub boot_id: [u8; 16],
    /// Fresh random bytes: object names, nonces and ids are derived from them.
    pub entropy: [u8; 32],
    /// What to call this host in messages to others.
    pub label: String,
    /// The time now.
    pub now: Now,
    /// This start continues a host that was stopped a moment ago.
    pub continues: Option<Continuation>,
    /// Says whether the host may begin, once its log has been read; until then the log is as it was, and where the answer is
    /// no it stays so. None: it may.
    pub may_begin: Option<Permission>,
}

/// See [`Setup::may_begin`].
pub type Permission = Pin<Box<dyn Future<Output = bool> + Send>>;

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Numbers for `/metrics` and `volume show`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostUsage {
    /// Segments of the log.
    pub segments: usize,
    /// Of them ready, free or soon so.
    pub segments_spare: usize,
    /// Thousandths of the log that hold what the store does not have.
    pub pressure_permille: u64,
    /// Frozen layers of the volume that has most of them: a read may look into each.
    pub layers: usize,
    /// The read cache.
    pub cache: CacheUsage,
    /// The log is poisoned.
    pub poisoned: bool,
    /// Failed I/O since the host was started.
    pub failures: FailureCounts,
}

/// The engine of one cache directory.
#[derive(Clone)]
pub struct Host {
    jobs: Arc<Jobs>,
    engine: Arc<OnceLock<Arc<Engine>>>,
    maintenance: Arc<Mutex<Maintenance>>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("started", &self.engine.get().is_some())
            .finish()
    }
}

impl Host {
    /// Starts recovery of a log; the host may be used once the answer is there.
    pub fn start(setup: Setup) -> (Host, Answer<Result<RecoveryReport, OpenError>>) {
        let jobs = Jobs::new(Arc::clone(&setup.notify));
        jobs.advance(setup.now);
        let engine = Arc::new(OnceLock::new());
        let host = Host {
            jobs: Arc::clone(&jobs),
            engine: Arc::clone(&engine),
            maintenance: Arc::default(),
        };
        let (sender, answer) = Answer::channel();
        jobs.clone()
            .spawn(async move { sender.send(start::start_engine(jobs, engine, setup).await) });
        (host, answer)
    }

    /// Carries on whatever can go on. Call it when notified, and not on a thread that owns a ring. True:
    /// take the requests so far, then call it again.
    pub fn run_jobs(&self) -> bool {
        self.jobs.run(|| true)
    }

    /// The same, but ends with true once `has_time` says no between two steps of procedures.
    pub fn run_jobs_while(&self, has_time: impl FnMut() -> bool) -> bool {
        self.jobs.run(has_time)
    }

    /// Requests of background procedures, in order.
    pub fn take_requests(&self) -> Vec<Request> {
        self.jobs.take_requests()
    }

    /// Requests of the group commit: a FLUSH waits for them. All are disk requests.
    pub fn take_commit_requests(&self) -> Vec<Request> {
        self.engine
            .get()
            .map(|engine| engine.committer().take_requests())
            .unwrap_or_default()
    }

    /// The round of the group commit that is going on, if one is. A FLUSH waits for two at most.
    pub fn commit_round(&self) -> Option<u64> {
        let engine = self.engine.get()?;
        engine.committer_after_recovery()?.current_round()
    }

    /// The outcome of a request, from any thread. An outcome without a waiter is dropped.
    pub fn complete(&self, id: RequestId, outcome: Outcome) {
        if let Err(outcome) = self.jobs.complete(id, outcome)
            && let Some(engine) = self.engine.get()
        {
            // Its waiter was dropped.
            let _ = engine.committer().complete(engine, id, outcome);
        }
    }

    /// Lets time pass.
    pub fn tick(&self, now: Now) {
        self.jobs.advance(now);
        if let Some(engine) = self.engine.get() {
            maintenance::tick(engine, &self.maintenance, now);
        }
    }

    /// For the models, whose clock stands still: lets so much time pass.
    #[cfg(all(test, feature = "shuttle"))]
    pub(crate) fn advance_clock(&self, ns: u64) {
        let mut now = self.jobs.now();
        now.mono_ns += ns;
        self.tick(now);
    }

    /// When [`Host::tick`] is worth calling next, on the monotonic clock.
    pub fn next_tick_ns(&self) -> u64 {
        let timer = self.jobs.next_timer_ns().unwrap_or(u64::MAX);
        self.engine.get().map_or(timer, |engine| {
            timer.min(maintenance::next_ns(engine, &self.maintenance))
        })
    }

    /// Creates a volume in the store. It is not opened.
    pub fn create_volume(&self, spec: VolumeSpec) -> Answer<Result<VolumeInfo, OpenError>> {
        self.control(|engine| async move { catalog::create(&engine, spec).await })
    }

    /// Opens a volume: takes its epoch, loads its index, recovers its local tail.
    pub fn open_volume(&self, name: &str, mode: OpenMode) -> Answer<Result<Volume, OpenError>> {
        let name = name.to_owned();
        self.control_volume(&name.clone(), move |engine| async move {
            open::open(&engine, &name, mode).await
        })
    }

    /// Serves a volume that this start continued before the store has answered; its root is read as soon as that is
    /// possible. Only what is on this host can be read until then, and nothing is called stored. Refused where it
    /// can only be said by the store whose the volume is.
    pub fn open_unchecked(&self, name: &str, mode: OpenMode) -> Answer<Result<Volume, OpenError>> {
        let name = name.to_owned();
        self.control_log(move |engine| async move {
            unchecked::open_unchecked(&engine, &name, mode).await
        })
    }

    /// Opens a snapshot, `VOLUME@SNAPSHOT`, to be read. It takes no write and needs no log; other hosts may have it
    /// open, too. [`Host::close_volume`] closes it.
    pub fn open_snapshot(&self, name: &str) -> Answer<Result<Volume, OpenError>> {
        let name = name.to_owned();
        self.control(move |engine| async move { open_snapshot::open(&engine, &name).await })
    }

    /// Brings a volume to the store and gives it back. Transports have let go of it before.
    pub fn close_volume(&self, volume: &Volume) -> Answer<Result<(), OpenError>> {
        let tail = Arc::clone(&volume.tail);
        self.control(move |engine| async move {
            if tail.is_snapshot() {
                open_snapshot::close(&engine, &tail);
                return Ok(());
            }
            let_go::close(&engine, &tail).await
        })
    }

    /// The same for a volume that another host waits for: its last slices and the end of its epoch share a record, so that
    /// fewer requests follow each other. What that record names stays in the store until this host's next one.
    pub fn close_awaited_volume(&self, volume: &Volume) -> Answer<Result<(), OpenError>> {
        let tail = Arc::clone(&volume.tail);
        self.control(move |engine| async move {
            if tail.is_snapshot() {
                open_snapshot::close(&engine, &tail);
                return Ok(());
            }
            let_go::close_awaited(&engine, &tail).await
        })
    }

    /// Makes an open volume larger, in the store and here. Ends when it is; a volume never
    /// shrinks.
    pub fn grow_volume(&self, volume: &Volume, bytes: u64) -> Answer<Result<(), OpenError>> {
        let tail = Arc::clone(&volume.tail);
        self.control(move |_| async move { catalog::grow(&tail, bytes).await })
    }

    /// Tails that are not served: kept for rescue, or of volumes that are not open yet.
    pub fn unserved_tails(&self) -> Vec<UnservedTail> {
        self.engine
            .get()
            .map(|engine| rescue::list(engine))
            .unwrap_or_default()
    }

    /// Drops a tail that is not served, and with it what the store lacks of it. One that is not
    /// kept for rescue, but waits for its volume, only if `waiting_too`.
    pub fn drop_tail(&self, id: TailId, waiting_too: bool) -> Answer<Result<(), OpenError>> {
        self.control(move |engine| async move { rescue::drop_tail(&engine, id, waiting_too).await })
    }

    /// Makes a volume of this name of a tail that is kept for rescue, over the store's state that it
    /// continues or, `without_base`, over zeroes.
    pub fn fork_tail(
        &self,
        id: TailId,
        name: &str,
        without_base: bool,
    ) -> Answer<Result<ForkedTail, OpenError>> {
        let name = name.to_owned();
        self.control(move |engine| async move {
            fork_tail::fork_tail(&engine, id, &name, without_base).await
        })
    }

    /// Makes a pass of the garbage collector over the whole store; a `dry_run` looks and changes nothing.
    pub fn collect_garbage(&self, dry_run: bool) -> Answer<Result<Findings, OpenError>> {
        self.control(move |engine| async move { collector::collect_now(&engine, dry_run).await })
    }

    /// Says that a volume is gone for good whose root was removed from the store. One that has a root is not touched.
    pub fn forget_volume(&self, volume: VolumeId) -> Answer<Result<(), OpenError>> {
        self.control(move |engine| async move { forget::forget(&engine, volume).await })
    }

    /// Where the journal stands; none if this host has not written to it, as to that of a poisoned log. Says nothing
    /// that lasts before the host's requests are all carried out.
    pub fn journal_mark(&self) -> Option<JournalMark> {
        let committer = self.engine.get()?.committer_after_recovery()?;
        let journal = committer.journal();
        let is_known = journal.number > 0 && !committer.is_poisoned();
        is_known.then_some(JournalMark {
            half: journal.half,
            lap: journal.lap,
            frames: journal.number,
            bytes: journal.used,
            is_settled: committer.is_settled(),
        })
    }

    /// Ends when the log has this start's session; before that nothing but the log is written to.
    ///
    /// # Errors
    /// The log is poisoned, and never will: nothing can be stored until the next start.
    pub fn session_recorded(&self) -> Answer<Result<(), OpenError>> {
        self.control(|_| async { Ok(()) })
    }

    /// What of a volume this host has at hand, from this sector on, in at most about so many ranges: hints for a host that is
    /// about to have it.
    pub fn hints(
        &self,
        volume: &Volume,
        from: u64,
        most: usize,
    ) -> Answer<Result<HintPart, OpenError>> {
        let tail = Arc::clone(&volume.tail);
        self.control(
            move |engine| async move { Ok(warm_up::hints(&engine, &tail, from, most).await) },
        )
    }

    /// Reads the index of a volume that is not open here, and these sectors of it, so that little is to be read when it is
    /// opened soon. Changes nothing in the store.
    pub fn prepare_volume(
        &self,
        name: &str,
        sectors: Vec<Range<u64>>,
    ) -> Answer<Result<WarmUp, OpenError>> {
        let name = name.to_owned();
        self.control(move |engine| async move { warm_up::prepare(&engine, &name, &sectors).await })
    }

    /// Makes all that is completed durable, as a FLUSH of every volume does.
    pub fn commit(&self) -> Answer<Result<(), OpenError>> {
        self.control_log(|engine| async move {
            let round = engine.committer().next_round();
            match engine.committer().durable(&engine, round).await {
                true => Ok(()),
                false => Err(OpenError::Poisoned),
            }
        })
    }

    /// The same, in a journal that is quick to read: for a host that is about to be stopped in favour of another one.
    pub fn commit_for_successor(&self) -> Answer<Result<(), OpenError>> {
        if let Some(engine) = self.engine.get() {
            engine.committer().shorten_journal(JOURNAL_SHORT_BYTES);
        }
        self.commit()
    }

    /// Makes all that is completed durable as the last thing that this host does with its log: no FLUSH ends any more, and the journal stays as it is, for
    /// the host in whose favour this one is stopped.
    pub fn commit_last(&self) -> Answer<Result<(), OpenError>> {
        self.control_log(|engine| async move {
            let round = engine.committer().next_round();
            let is_durable = engine.committer().durable(&engine, round).await;
            engine.committer().hold().await;
            match is_durable {
                true => Ok(()),
                false => Err(OpenError::Poisoned),
            }
        })
    }

    /// What the collector of this host did.
    pub fn collector(&self) -> CollectorReport {
        let engine = self.engine.get();
        engine.map_or_else(CollectorReport::default, |engine| engine.collector.report())
    }

    /// What the scrub of this host's disk read and found.
    pub fn scrub(&self) -> ScrubReport {
        let engine = self.engine.get();
        engine.map_or_else(ScrubReport::default, |engine| engine.scrub.report())
    }

    /// What the compaction of this host did.
    pub fn compaction(&self) -> CompactionReport {
        let engine = self.engine.get();
        engine.map_or_else(CompactionReport::default, |engine| {
            engine.compaction.report()
        })
    }

    /// A part of what the store holds, by name.
    pub fn list_volumes(
        &self,
        place: ListPlace,
    ) -> Answer<Result<ListPart<VolumeInfo>, OpenError>> {
        self.control(move |engine| async move { catalog::list(&engine, &place).await })
    }

    /// What the store says of one volume.
    pub fn show_volume(&self, name: &str) -> Answer<Result<VolumeInfo, OpenError>> {
        let name = name.to_owned();
        self.control(move |engine| async move { catalog::show(&engine, &name).await })
    }

    /// Ends when everything that completed before this call is in the store (S3). The LSN is how
    /// far that is.
    pub fn sync(&self, volume: &Volume) -> Answer<Result<Lsn, OpenError>> {
        let tail = Arc::clone(&volume.tail);
        let target = tail.newest();
        self.control(move |engine| async move {
            if tail.is_snapshot() {
                return Ok(target);
            }
            flow::wait_stored(&engine, &tail, target)
                .await
                .map(|()| target)
        })
    }

    /// The identity of this host's log.
    pub fn id(&self) -> Option<HostId> {
        self.engine.get().map(|engine| engine.host)
    }

    /// This start of a server on the log.
    pub fn session(&self) -> Option<LogSession> {
        self.engine.get().map(|engine| engine.sessions.current())
    }

    /// Whether that was a start of a server on this log, and not on a copy of it.
    pub fn has_had_session(&self, session: LogSession) -> bool {
        let engine = self.engine.get();
        engine.is_some_and(|engine| engine.sessions.is_own(session))
    }

    /// What the engine's structures promise each other between any two steps. For the simulator
    /// and for tests: it walks all maps, and nothing else may use the host meanwhile.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn invariants(&self) -> Result<(), String> {
        self.engine
            .get()
            .map_or(Ok(()), |engine| invariants::check(engine))
    }

    /// Makes index rings again whose names were removed while this host uses them: the same content
    /// under the same name, so that a successor finds it. Takes each tail's lock for a copy in memory.
    ///
    /// # Errors
    /// Why one cannot be made; those before it are back.
    pub fn put_back_rings(&self, gone: &[RingId]) -> Result<(), String> {
        let engine = self.engine.get();
        engine.map_or(Ok(()), |engine| engine.put_back_rings(gone))
    }

    /// How full everything is.
    pub fn usage(&self) -> HostUsage {
        let Some(engine) = self.engine.get() else {
            return HostUsage::default();
        };
        let counts: SegmentCounts = engine.segments.counts();
        let tails = engine.tails().into_iter();
        HostUsage {
            segments: counts.total,
            segments_spare: counts.ready
                + counts.preparing
                + counts.free
                + counts.dying
                + counts.idle,
            pressure_permille: counts.pressure(),
            layers: tails
                .map(|tail| tail.lock().layers.frozen.len())
                .max()
                .unwrap_or(0),
            cache: engine.cache.usage(),
            poisoned: engine.poisoned.load(Ordering::Acquire),
            failures: self.jobs.failures.counts(),
        }
    }

    /// Runs an operation that may write to the store: not before this session is durable.
    fn control<T: Send + 'static, F>(
        &self,
        run: impl FnOnce(Arc<Engine>) -> F + Send + 'static,
    ) -> Answer<Result<T, OpenError>>
    where
        F: Future<Output = Result<T, OpenError>> + Send,
    {
        self.control_log(move |engine| async move {
            engine.session_gate.passed().await?;
            run(engine).await
        })
    }

    /// The same for an operation on a volume, or on a snapshot of it: this host does not maintain it any more.
    fn control_volume<T: Send + 'static, F>(
        &self,
        name: &str,
        run: impl FnOnce(Arc<Engine>) -> F + Send + 'static,
    ) -> Answer<Result<T, OpenError>>
    where
        F: Future<Output = Result<T, OpenError>> + Send,
    {
        let volume = name
            .split_once(SNAPSHOT_SIGN)
            .map_or(name, |(volume, _)| volume);
        let volume = volume.to_owned();
        self.control(move |engine| async move {
            engine
                .compaction
                .maintained
                .wait_let_go(&engine.port, &volume)
                .await?;
            run(engine).await
        })
    }

    /// Runs an operation that writes to nothing but the log.
    fn control_log<T: Send + 'static, F>(
        &self,
        run: impl FnOnce(Arc<Engine>) -> F + Send + 'static,
    ) -> Answer<Result<T, OpenError>>
    where
        F: Future<Output = Result<T, OpenError>> + Send,
    {
        let (sender, answer) = Answer::channel();
        match self.engine.get() {
            None => sender.send(Err(OpenError::Options(
                "the host has not started yet".into(),
            ))),
            Some(engine) => {
                let engine = Arc::clone(engine);
                self.jobs
                    .spawn(async move { sender.send(run(engine).await) });
            }
        }
        answer
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The last handle: procedures hold the host's parts, and those hold the procedures.
        if Arc::strong_count(&self.engine) == 1
            && let Some(engine) = self.engine.get()
        {
            engine.stop();
            self.jobs.clear();
        }
    }
}
