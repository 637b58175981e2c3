//! A host: one log, one cache, and the volumes that are open on them.
//!
//! [`Host`] is what a driver holds: it starts recovery, carries requests out and outcomes in,
//! lets time pass, and offers the control operations. [`Shared`] is what the engine's parts hold.

use std::fmt;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use crate::cache::CacheUse;
use crate::driver::{Outcome, Request, RequestId};
use crate::error::OpenError;
use crate::jobs::maintenance::{self};
use crate::jobs::{Answer, Jobs, Notify, Port};
use crate::log::checkpoint;
use crate::log::committer::{Committer, Journal};
use crate::log::ring::{Home, Ring, Rings};
use crate::log::segments::Room;
use crate::options::Options;
use crate::recover;
use crate::request::Volume;
use crate::shared::{Parts, Shared};
use crate::store::catalog::{self, VolumeInfo, VolumeSpec};
use crate::store::open::{self, OpenMode};
use crate::store::upload;
use crate::units::{HostId, Lsn, Now};

/// What a host is started with.
pub struct Setup {
    /// Limits and intervals.
    pub options: Options,
    /// Memory that outlives the process.
    pub rings: Arc<dyn Rings>,
    /// Told when there is something to do.
    pub notify: Arc<dyn Notify>,
    /// Changes when the host is restarted.
    pub boot_id: [u8; 16],
    /// Changes when the file system of the rings is mounted anew.
    pub mount_id: u64,
    /// Fresh random bytes: object names, nonces and ids are derived from them.
    pub entropy: [u8; 32],
    /// What to call this host in messages to others.
    pub label: String,
    /// The time now.
    pub now: Now,
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// What recovery found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The log was new.
    pub formatted: bool,
    /// Size of the log's segments: fixed when it was made, whatever the options say now.
    pub segment_bytes: u64,
    /// Frames replayed.
    pub frames: u64,
    /// Ring entries replayed.
    pub ring_entries: u64,
    /// Volumes whose ring was gone although the host was not restarted: writes after their last
    /// flush may be lost.
    pub rings_lost: Vec<String>,
    /// Tails found, by volume name: the newest commit, and whether they are kept for rescue only.
    pub tails: Vec<(String, Lsn, bool)>,
    /// The log is poisoned: reads only.
    pub poisoned: bool,
}

/// Numbers for `/metrics` and `volume show`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostUse {
    /// Segments of the log.
    pub segments: usize,
    /// Of them ready, free or soon so.
    pub segments_spare: usize,
    /// Thousandths of the log that hold what the store does not have.
    pub pressure: u64,
    /// The read cache.
    pub cache: CacheUse,
    /// The log is poisoned.
    pub poisoned: bool,
}

/// The engine of one cache directory.
#[derive(Clone)]
pub struct Host {
    jobs: Arc<Jobs>,
    shared: Arc<OnceLock<Arc<Shared>>>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("started", &self.shared.get().is_some())
            .finish()
    }
}

impl Host {
    /// Starts recovery of a log; the host may be used once the answer is there.
    pub fn start(setup: Setup) -> (Host, Answer<Result<RecoveryReport, OpenError>>) {
        let jobs = Jobs::new(Arc::clone(&setup.notify));
        jobs.advance(setup.now);
        let shared = Arc::new(OnceLock::new());
        let host = Host {
            jobs: Arc::clone(&jobs),
            shared: Arc::clone(&shared),
        };
        let (answerer, answer) = Answer::pair();
        jobs.clone()
            .spawn(async move { answerer.give(bring_up(jobs, shared, setup).await) });
        (host, answer)
    }

    /// Carries on whatever can go on. Call it when notified; compresses and checksums, so not on
    /// a thread that owns a ring. True: take the requests so far, then call it again.
    pub fn run_jobs(&self) -> bool {
        self.jobs.run()
    }

    /// Requests of background procedures, in order.
    pub fn take_requests(&self) -> Vec<Request> {
        self.jobs.take_requests()
    }

    /// Requests of the group commit: a FLUSH waits for them. All are disk requests.
    pub fn take_commit_requests(&self) -> Vec<Request> {
        self.shared
            .get()
            .map(|shared| shared.committer().take_requests())
            .unwrap_or_default()
    }

    /// The outcome of a request, from any thread. An outcome that nobody waits for is dropped.
    pub fn complete(&self, id: RequestId, outcome: Outcome) {
        if let Err(outcome) = self.jobs.complete(id, outcome)
            && let Some(shared) = self.shared.get()
        {
            // Nobody's: the waiter was given up.
            let _ = shared.committer().complete(shared, id, outcome);
        }
    }

    /// Lets time pass.
    pub fn tick(&self, now: Now) {
        self.jobs.advance(now);
        if let Some(shared) = self.shared.get() {
            maintenance::tick(shared, now);
        }
    }

    /// When [`Host::tick`] is worth calling next, on the monotonic clock.
    pub fn next_tick_ns(&self) -> u64 {
        let timer = self.jobs.next_timer_ns().unwrap_or(u64::MAX);
        self.shared
            .get()
            .map_or(timer, |shared| timer.min(maintenance::next_ns(shared)))
    }

    /// Creates a volume in the store. It is not opened.
    pub fn create_volume(&self, spec: VolumeSpec) -> Answer<Result<VolumeInfo, OpenError>> {
        self.control(|shared| async move { catalog::create(&shared, spec).await })
    }

    /// Opens a volume: takes its epoch, loads its index, recovers its local tail.
    pub fn open_volume(&self, name: &str, mode: OpenMode) -> Answer<Result<Volume, OpenError>> {
        let name = name.to_owned();
        self.control(move |shared| async move { open::open(&shared, &name, mode).await })
    }

    /// Brings a volume to the store and gives it back. Transports have let go of it before.
    pub fn close_volume(&self, volume: &Volume) -> Answer<Result<(), OpenError>> {
        let tail = Arc::clone(&volume.tail);
        self.control(move |shared| async move { open::close(&shared, &tail).await })
    }

    /// Makes an open volume larger, in the store and here. Ends when it is; a volume never
    /// shrinks.
    pub fn grow_volume(&self, volume: &Volume, bytes: u64) -> Answer<Result<(), OpenError>> {
        let tail = Arc::clone(&volume.tail);
        self.control(move |_| async move { catalog::grow(&tail, bytes).await })
    }

    /// Deletes a volume that is open nowhere.
    pub fn delete_volume(&self, name: &str) -> Answer<Result<(), OpenError>> {
        let name = name.to_owned();
        self.control(move |shared| async move { catalog::delete(&shared, &name).await })
    }

    /// What the store holds.
    pub fn list_volumes(&self) -> Answer<Result<Vec<VolumeInfo>, OpenError>> {
        self.control(|shared| async move { catalog::list(&shared).await })
    }

    /// What the store says of one volume.
    pub fn show_volume(&self, name: &str) -> Answer<Result<VolumeInfo, OpenError>> {
        let name = name.to_owned();
        self.control(move |shared| async move { catalog::show(&shared, &name).await })
    }

    /// Ends when everything that completed before this call is in the store (S3). The LSN is how
    /// far that is.
    pub fn sync(&self, volume: &Volume) -> Answer<Result<Lsn, OpenError>> {
        let tail = Arc::clone(&volume.tail);
        let target = tail.newest();
        self.control(move |shared| async move {
            upload::stored(&shared, &tail, target)
                .await
                .map(|()| target)
        })
    }

    /// The identity of this host's log.
    pub fn id(&self) -> Option<HostId> {
        self.shared.get().map(|shared| shared.host)
    }

    /// How full everything is.
    pub fn usage(&self) -> HostUse {
        let Some(shared) = self.shared.get() else {
            return HostUse::default();
        };
        let room: Room = shared.segments.room();
        HostUse {
            segments: room.total,
            segments_spare: room.ready + room.preparing + room.free + room.dying + room.idle,
            pressure: room.pressure(),
            cache: shared.cache.usage(),
            poisoned: shared.poisoned.load(Ordering::Acquire),
        }
    }

    fn control<T: Send + 'static, F>(
        &self,
        run: impl FnOnce(Arc<Shared>) -> F + Send + 'static,
    ) -> Answer<Result<T, OpenError>>
    where
        F: Future<Output = Result<T, OpenError>> + Send,
    {
        let (answerer, answer) = Answer::pair();
        match self.shared.get() {
            None => answerer.give(Err(OpenError::Options(
                "the host has not started yet".into(),
            ))),
            Some(shared) => {
                let shared = Arc::clone(shared);
                self.jobs
                    .spawn(async move { answerer.give(run(shared).await) });
            }
        }
        answer
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The last handle: procedures hold the host's parts, and those hold the procedures.
        if Arc::strong_count(&self.shared) == 1
            && let Some(shared) = self.shared.get()
        {
            shared.stop();
            self.jobs.clear();
        }
    }
}

/// Writes what was recovered as a checkpoint, before anything is served: from then on the rings
/// of the dead process are not needed.
///
/// Every tail has a ring here and now afterwards, opened or not, so that one that is gone is always
/// a loss. Void rings are replaced before the log says that rings live here, the others after it
/// has what they hold.
async fn seal(
    shared: &Arc<Shared>,
    before: Journal,
    rings_void: bool,
) -> Result<Journal, OpenError> {
    if rings_void {
        shared
            .tails()
            .iter()
            .for_each(|tail| open::empty_ring(shared, tail));
    }
    let frozen = checkpoint::freeze(shared).expect("nothing was committed yet");
    match checkpoint::write(shared, before, frozen).await {
        Ok((journal, _)) => {
            if !rings_void {
                shared
                    .tails()
                    .iter()
                    .for_each(|tail| open::empty_ring(shared, tail));
            }
            Ok(journal)
        }
        Err(error) => {
            if shared.poisoned.load(Ordering::Acquire) {
                // What the next start reads may not be on disk: it must not take it for durable.
                for tail in shared.tails() {
                    let region = shared.rings.existing(tail.id());
                    let ring = region.and_then(|region| {
                        Ring::trust(region, tail.id(), shared.host, shared.home)
                    });
                    ring.iter().for_each(Ring::poison);
                }
                checkpoint::mark_poisoned(&shared.port, shared.superblock()).await;
            }
            Err(OpenError::Disk(error.0))
        }
    }
}

/// Recovers the log and makes the host usable.
async fn bring_up(
    jobs: Arc<Jobs>,
    slot: Arc<OnceLock<Arc<Shared>>>,
    setup: Setup,
) -> Result<RecoveryReport, OpenError> {
    let port = Port(Arc::clone(&jobs));
    let home = Home::new(&setup.boot_id, setup.mount_id);
    let hash = |what: &str| *blake3::keyed_hash(&setup.entropy, what.as_bytes()).as_bytes();
    let mut fresh = [0; 16];
    fresh.copy_from_slice(&hash("host")[..16]);
    let rings = &*setup.rings;
    let found = recover::open(&port, &setup.options, HostId(fresh), rings, home).await?;
    let mut report = found.report;
    let parts = Parts {
        options: setup.options,
        layout: found.layout,
        host: found.host,
        label: setup.label,
        home,
        segments: found.segments,
        rings: setup.rings,
        poisoned: found.poisoned,
        entropy: setup.entropy,
    };
    let shared = Arc::new(Shared::new(Arc::clone(&jobs), parts));
    report.poisoned = found.poisoned;
    for (id, tail) in found.tails {
        report
            .tails
            .push((tail.name.clone(), tail.newest, tail.rescue));
        shared.add_tail(Arc::new(open::dormant(id, tail)));
    }
    let mut journal = found.journal;
    if !found.poisoned {
        journal = seal(&shared, journal, found.rings_void).await?;
    }
    let committer = Committer::new(journal, found.poisoned);
    if !shared.begin_commits(committer) || slot.set(Arc::clone(&shared)).is_err() {
        return Err(OpenError::Options("the host was started twice".into()));
    }
    jobs.spawn(crate::log::reclaim::run(Arc::clone(&shared)));
    shared.call_reclaim();
    Ok(report)
}
