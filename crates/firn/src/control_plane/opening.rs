//! Opens the volumes that a server is to serve: at its start, and later those that it could not.
//!
//! Their clients wait, so one volume that cannot be opened must not keep the others from being
//! served, and it is retried by itself until it is open, until somebody detaches it, or until the
//! server stops. Meanwhile [`super::waiting`] says why. A disk that is being restored is finished
//! before the server stops.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, FuturesUnordered, StreamExt};
use tokio::sync::watch;
use volume::{OpenError, OpenMode, RecoveryReport, VolumeSpec};

use crate::cli::args::NewVolume;
use crate::control_plane::ControlPlane;
use crate::control_plane::opening_order::{OpeningOrder, OpeningSlots};
use crate::control_plane::start_record;
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::open_volumes::OpenVolume;
use crate::units::Size;

/// The first delay between attempts, and the longest.
const RETRY_DELAY: Duration = Duration::from_millis(500);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(15);

/// Disks that are recovered concurrently after a restart. The driver recovers them more or less one
/// after the other, and the time for each counts against the deadline of all that have started.
const RESTORE_CONCURRENCY: usize = 64;

/// Block size of a volume that `--volume` creates.
const NEW_VOLUME_BLOCK: u32 = 512;

/// A volume that this server is to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WantedVolume {
    pub(crate) name: String,
    /// From `--volume NAME=SIZE`: it is created if it is missing, and grown to this size.
    pub(crate) size: Option<Size>,
    /// A server on this cache directory has served it: then a store without it is another store, or
    /// it was deleted there, and it is not made anew.
    pub(crate) served_before: bool,
}

/// Why a volume is not open for which no attempt was made that asks the store.
const NOT_ASKED: &str = "the store was not asked yet";

/// What a start is to open.
#[derive(Debug)]
pub(crate) struct OpeningPlan {
    /// Each alone, before all others.
    suspects: Vec<WantedVolume>,
    others: Vec<WantedVolume>,
    /// Nobody waits for these: [`ControlPlane::open_put_off`].
    put_off: Vec<WantedVolume>,
    /// Why the store is not asked at first.
    away: Option<Failure>,
    /// This program takes another's place.
    takes_over: bool,
}

/// What a start has not opened.
#[derive(Debug, Default)]
pub(crate) struct NotOpened {
    /// Could not be opened: it is to be retried.
    pub(crate) waiting: Vec<WantedVolume>,
    /// Was put off, because nobody waits for it: [`ControlPlane::open_put_off`].
    put_off: Vec<WantedVolume>,
}

impl ControlPlane {
    /// Decides what a start is to open: the volumes that the command line names, those that were
    /// attached before, and those that a dead server left in the log, but for those that are left out. From here on
    /// clients may ask for them, and wait. A program that takes another's place says which volumes are
    /// `in_use`: it opens these, and those with disks, and puts the others off.
    pub(crate) fn plan_openings(
        &self,
        volumes: &[NewVolume],
        report: &RecoveryReport,
        in_use: Option<&BTreeSet<String>>,
    ) -> OpeningPlan {
        let wanted = self.set_aside_left_out(self.wanted_volumes(volumes, report));
        // While the store is away only what goes on here can be served, and finding the rest out takes long.
        let mut away = self.store.as_ref().and_then(|store| store.failure());
        if in_use.is_some() && away.is_none() {
            // Its clients wait, and what the log continues needs no store to be served. The others are opened
            // when these are.
            away = Some(not_asked_error());
        }
        wanted.iter().for_each(|one| self.opening.add(&one.name));
        let is_suspect = |wanted: &WantedVolume| self.starts.is_suspect(&wanted.name);
        let (suspects, others) = wanted.into_iter().partition(is_suspect);
        let (put_off, others) = self.put_off(others, in_use);
        OpeningPlan {
            suspects,
            others,
            put_off,
            away,
            takes_over: in_use.is_some(),
        }
    }

    /// Opens what a start is to open (creating missing volumes), and restores their disks. Returns what is not opened:
    /// nothing of it changes.
    pub(crate) async fn open_initial_volumes(&self, plan: OpeningPlan) -> Result<NotOpened> {
        start_record::planned_step("").await;
        let OpeningPlan {
            suspects,
            others,
            put_off,
            away,
            takes_over,
        } = plan;
        let mut waiting = self.open_suspects(suspects, away.as_ref()).await?;
        let restored: BTreeSet<String> = self.volumes.names();
        waiting.extend(self.open_concurrently(others, away.as_ref()).await?);
        let open = self.volumes.all();
        tracing::info!(
            volumes = open.len(),
            waiting = waiting.len(),
            put_off = put_off.len(),
            "volumes are open"
        );
        if !takes_over {
            self.record_served();
        }
        let not_restored = open
            .iter()
            .filter(|open| !restored.contains(&open.info.name));
        self.restore_disks(not_restored.collect()).await;
        Ok(NotOpened { waiting, put_off })
    }

    /// Those that nobody waits for, who are put off, and the others.
    fn put_off(
        &self,
        wanted: Vec<WantedVolume>,
        in_use: Option<&BTreeSet<String>>,
    ) -> (Vec<WantedVolume>, Vec<WantedVolume>) {
        let is_put_off = |wanted: &WantedVolume| {
            let name = &wanted.name;
            in_use.is_some_and(|used| !used.contains(name))
                && self.disks.attached.disk(name).is_none()
        };
        let (put_off, others): (Vec<_>, Vec<_>) = wanted.into_iter().partition(is_put_off);
        for wanted in &put_off {
            self.waiting.set(&wanted.name, not_asked_error());
        }
        (put_off, others)
    }

    /// Opens what a start has put off. Returns the volumes whose opening is to be retried.
    pub(crate) async fn open_put_off(&self, not_opened: NotOpened) -> Result<Vec<WantedVolume>> {
        let NotOpened {
            mut waiting,
            put_off,
        } = not_opened;
        if put_off.is_empty() {
            return Ok(waiting);
        }
        let away = not_asked_error();
        waiting.extend(self.open_concurrently(put_off, Some(&away)).await?);
        self.record_served();
        Ok(waiting)
    }

    /// Takes those out that are left out, and says so. One that nobody wants any more is forgotten.
    fn set_aside_left_out(&self, wanted: Vec<WantedVolume>) -> Vec<WantedVolume> {
        let names: BTreeSet<&str> = wanted.iter().map(|one| one.name.as_str()).collect();
        self.starts.retain_left_out(|name| names.contains(name));
        let is_opened = |wanted: &WantedVolume| {
            let name = &wanted.name;
            let attach = || self.disks.attach_command(name);
            let Some(failure) = self.starts.left_out(name, attach) else {
                return true;
            };
            tracing::error!(volume = %name, %failure, "the volume is not opened");
            self.waiting.set(name, failure);
            false
        };
        wanted.into_iter().filter(is_opened).collect()
    }

    /// Opens volumes one by one, each with its disk, while nothing else is open and no client of NBD is served: if this start ends it
    /// is known at which of them, and that nothing else was the cause.
    async fn open_suspects(
        &self,
        suspects: Vec<WantedVolume>,
        away: Option<&Failure>,
    ) -> Result<Vec<WantedVolume>> {
        let (mut waiting, mut decided) = (Vec::new(), Vec::new());
        let each = suspects.into_iter().map(|one| (one.name.clone(), one));
        let mut order = OpeningOrder::new(each);
        while let Some(wanted) = order.next(&self.opening) {
            tracing::warn!(
                volume = %wanted.name,
                "the last two starts ended while this volume was being opened: now it is opened alone"
            );
            let _under_way = self.starts.open_volumes(&[&wanted.name]);
            let opened = self.open_initially(&wanted, away).await;
            if let Ok(open) = &opened {
                self.restore_disk(open).await;
            }
            if is_decided(&opened, away) {
                decided.push(wanted.name.clone());
            }
            waiting.extend(self.wait_if_failed(wanted, opened)?);
        }
        decided.iter().for_each(|name| self.decide_opening(name));
        Ok(waiting)
    }

    /// Opens volumes side by side, without their disks.
    async fn open_concurrently(
        &self,
        wanted: Vec<WantedVolume>,
        away: Option<&Failure>,
    ) -> Result<Vec<WantedVolume>> {
        if away.is_none() {
            return self.open_in_order(wanted).await;
        }
        // It takes microseconds for each, which to write down the end of each would multiply.
        let names: Vec<&str> = wanted.iter().map(|one| one.name.as_str()).collect();
        let _under_way = self.starts.open_together(&names);
        let opened = wanted
            .into_iter()
            .map(|wanted| self.open_first(wanted, away));
        let waiting: Result<Vec<_>> = join_all(opened).await.into_iter().collect();
        Ok(waiting?.into_iter().flatten().collect())
    }

    /// Opens volumes some at a time, those first for which clients wait.
    async fn open_in_order(&self, wanted: Vec<WantedVolume>) -> Result<Vec<WantedVolume>> {
        let names: Vec<&str> = wanted.iter().map(|one| one.name.as_str()).collect();
        let under_way = self.starts.open_volumes(&names);
        let each = wanted.into_iter().zip(under_way);
        let mut order = OpeningOrder::new(each.map(|one| (one.0.name.clone(), one)));
        let slots = OpeningSlots::default();
        let mut opening = FuturesUnordered::new();
        let mut waiting = Vec::new();
        loop {
            tokio::select! {
                Some(opened) = opening.next() => waiting.extend(opened?),
                slot = slots.take(), if !order.is_empty() => {
                    let Some((wanted, under_way)) = order.next(&self.opening) else {
                        continue;
                    };
                    opening.push(async move {
                        let opened = slot.keep_during(self.open_first(wanted, None)).await;
                        drop(under_way);
                        opened
                    });
                }
                else => return Ok(waiting),
            }
        }
    }

    /// The first attempt of a start to open a volume, which decides what its clients hear. If it is to be retried it is
    /// returned.
    async fn open_first(
        &self,
        wanted: WantedVolume,
        away: Option<&Failure>,
    ) -> Result<Option<WantedVolume>> {
        let name = wanted.name.clone();
        let opened = self.open_initially(&wanted, away).await;
        let is_decided = is_decided(&opened, away);
        let waiting = self.wait_if_failed(wanted, opened);
        if is_decided {
            self.decide_opening(&name);
        }
        waiting
    }

    /// It is known what comes of a volume that this start was to open: clients who wait for it are served, or refused.
    fn decide_opening(&self, name: &str) {
        if self.opening.remove(name) {
            self.nbd.wake_parked(name);
        }
    }

    /// Opens a volume. `away`: the store is not asked.
    async fn open_initially(
        &self,
        wanted: &WantedVolume,
        away: Option<&Failure>,
    ) -> Result<Arc<OpenVolume>> {
        start_record::planned_step(&format!("before:{}", wanted.name)).await;
        match away {
            Some(failure) => self.open_before_store(wanted, failure).await,
            None => self.open_or_serve_local(wanted).await,
        }
    }

    /// A volume that could not be opened waits: it is returned, to be retried.
    fn wait_if_failed(
        &self,
        wanted: WantedVolume,
        opened: Result<Arc<OpenVolume>>,
    ) -> Result<Option<WantedVolume>> {
        let Err(failure) = opened else {
            return Ok(None);
        };
        if canary::active!("one_volume_stops_all") {
            return Err(failure);
        }
        // The others are served; the data of this one stays in the log.
        tracing::error!(
            volume = %wanted.name, %failure,
            "the volume cannot be opened yet; it is retried"
        );
        self.waiting.set(&wanted.name, failure);
        Ok(Some(wanted))
    }

    /// Records for the next server what is served. This includes volumes that wait: a detach meanwhile removes
    /// them again.
    fn record_served(&self) {
        let names = self.volumes.names().into_iter();
        for name in names.chain(self.waiting.all().into_keys()) {
            if let Err(failure) = self.disks.attached.add(&name) {
                tracing::error!(volume = %name, %failure, "the next server will not know that it is to serve this volume");
            }
        }
    }

    /// Concurrently: each waits for the driver, and mounted file systems wait for all of them.
    async fn restore_disks(&self, open: Vec<&Arc<OpenVolume>>) {
        let has_disk =
            |open: &&Arc<OpenVolume>| self.disks.attached.disk(&open.info.name).is_some();
        let open: Vec<_> = open.into_iter().filter(has_disk).collect();
        let names: Vec<&str> = open.iter().map(|open| open.info.name.as_str()).collect();
        let each = open.iter().zip(self.starts.open_volumes(&names));
        stream::iter(each)
            .for_each_concurrent(RESTORE_CONCURRENCY, |(open, under_way)| async move {
                self.restore_disk(open).await;
                drop(under_way);
            })
            .await;
    }

    /// Each volume once, with the size that the command line gives it.
    fn wanted_volumes(&self, volumes: &[NewVolume], report: &RecoveryReport) -> Vec<WantedVolume> {
        let attached = self.disks.attached.all().into_keys();
        let tails = report.tails.iter().filter(|tail| !tail.rescue);
        let before = attached.chain(tails.map(|tail| tail.volume.clone()));
        let mut wanted: BTreeMap<String, (Option<Size>, bool)> =
            before.map(|name| (name, (None, true))).collect();
        for volume in volumes {
            wanted.entry(volume.name.clone()).or_default().0 = Some(volume.size);
        }
        let wanted = wanted.into_iter();
        wanted
            .map(|(name, (size, served_before))| WantedVolume {
                name,
                size,
                served_before,
            })
            .collect()
    }

    /// Opens a volume. One whose root somebody removed from the store is served from this host until it is back, if
    /// nothing of it is missing here.
    async fn open_or_serve_local(&self, wanted: &WantedVolume) -> Result<Arc<OpenVolume>> {
        match self.open_wanted(wanted).await {
            Err(failure)
                if failure.code == FailureCode::RootMissing
                    && !canary::active!("missing_root_keeps_local_data") =>
            {
                self.open_before_store(wanted, &failure).await
            }
            opened => opened,
        }
    }

    /// Opens a volume; creates it, or grows it, as its size asks.
    async fn open_wanted(&self, wanted: &WantedVolume) -> Result<Arc<OpenVolume>> {
        let Some(size) = wanted.size else {
            return self.open(&wanted.name, OpenMode::default()).await;
        };
        match self.host.show_volume(&wanted.name).await {
            Err(OpenError::NoSuchVolume(name)) if wanted.served_before => {
                // This tells a root that was removed from a store that is another.
                match self.open(&wanted.name, OpenMode::default()).await {
                    Err(failure) if failure.code == FailureCode::NoSuchVolume => {}
                    opened => return opened,
                }
                return Err(Failure::new(
                    FailureCode::NoSuchVolume,
                    format!(
                        "no volume named {name} is in the store, although this host has served it: is \
                         it the right store? If the volume was deleted: firn detach {name}"
                    ),
                ));
            }
            Err(OpenError::NoSuchVolume(_)) => {
                let spec = VolumeSpec {
                    name: wanted.name.clone(),
                    bytes: size.0,
                    block: NEW_VOLUME_BLOCK,
                };
                self.host.create_volume(spec).await.map_err(Failure::from)?;
            }
            found => drop(found.map_err(Failure::from)?),
        }
        let open = self.open(&wanted.name, OpenMode::default()).await?;
        if canary::active!("volume_size_is_exact") && open.info.bytes != size.0 {
            return Err(Failure::invalid("the volume has another size"));
        }
        // A volume that was resized is larger than the command line says, and stays so.
        if open.info.bytes < size.0
            && let Err(error) = self.host.grow_volume(&open.volume, size.0).await
        {
            tracing::error!(volume = %wanted.name, %error, %size, "the volume serves, but it is not grown");
        }
        Ok(open)
    }

    /// Serves a volume that this host's log continues without a gap; its root is read when the store answers. Others
    /// wait, because the store is `away`.
    async fn open_before_store(
        &self,
        wanted: &WantedVolume,
        away: &Failure,
    ) -> Result<Arc<OpenVolume>> {
        if canary::active!("nothing_is_served_before_the_store_answers") {
            return Err(away.clone());
        }
        let name = &wanted.name;
        let mode = OpenMode {
            continues: self.disks.bound_hold(name),
            ..OpenMode::default()
        };
        let volume = match self.host.open_unchecked(name, mode).await {
            Ok(volume) => volume,
            Err(error) => {
                tracing::info!(volume = %name, %error, "the volume is not served without the store");
                return Err(away.clone());
            }
        };
        start_record::planned_step(name).await;
        let open = self.export(volume);
        if let Some(size) = wanted.size.filter(|size| size.0 > open.info.bytes) {
            let grown = self.host.grow_volume(&open.volume, size.0);
            let name = name.clone();
            tokio::spawn(async move {
                if let Err(error) = grown.await {
                    tracing::error!(volume = %name, %error, %size, "the volume is not grown");
                }
            });
        }
        Ok(open)
    }

    async fn restore_disk(&self, open: &Arc<OpenVolume>) {
        start_record::planned_step(&format!("disk:{}", open.info.name)).await;
        if let Err(failure) = self.disks.restore(open).await {
            tracing::error!(
                volume = %open.info.name, %failure,
                "the disk is not restored; attach it again once the cause is gone"
            );
        }
    }

    /// Retries to open each of these volumes until it is open, or `stop` changes.
    pub(crate) async fn reopen_volumes(
        &self,
        wanted: Vec<WantedVolume>,
        first_delay: Duration,
        stop: watch::Receiver<bool>,
    ) {
        let reopening = wanted.iter();
        join_all(reopening.map(|wanted| self.reopen_volume(wanted, first_delay, stop.clone())))
            .await;
    }

    /// The same for those that are asked for later, until `stop` changes.
    async fn reopen_requested(&self, mut stop: watch::Receiver<bool>) {
        let Some(mut requests) = self.reopens.take() else {
            return;
        };
        let mut reopening = FuturesUnordered::new();
        loop {
            tokio::select! {
                // Also when the sender is dropped.
                _ = stop.changed() => break,
                Some(name) = requests.recv() => {
                    let stop = stop.clone();
                    let wanted = WantedVolume {
                        name,
                        size: None,
                        served_before: true,
                    };
                    let reopened = async move { self.reopen_volume(&wanted, RETRY_DELAY, stop).await };
                    reopening.push(reopened);
                }
                Some(()) = reopening.next() => {}
            }
        }
        // Each has been told to stop, and finishes the disk that it restores.
        while reopening.next().await.is_some() {}
    }

    async fn reopen_volume(
        &self,
        wanted: &WantedVolume,
        first_delay: Duration,
        mut stop: watch::Receiver<bool>,
    ) {
        let name = &wanted.name;
        let mut delay = first_delay;
        loop {
            let opened = tokio::select! {
                // Also when the sender is dropped.
                _ = stop.changed() => return,
                opened = async {
                    tokio::time::sleep(delay).await;
                    let lock = self.volume_locks.lock(name).await;
                    // Meanwhile a client may have attached the volume, so that it is open; or
                    // detached it, so that another host may own it.
                    let open = match self.waiting.get(name) {
                        Some(_) => Some(self.open_or_serve_local(wanted).await),
                        None => None,
                    };
                    (lock, open)
                } => opened,
            };
            let (_lock, open) = opened;
            // A start may have left that to the first of these attempts.
            self.decide_opening(name);
            match open {
                None => return,
                Some(Ok(open)) => {
                    tracing::info!(volume = %name, "the volume is open now, after the others");
                    return self.restore_disk(&open).await;
                }
                Some(Err(failure)) => {
                    let text = failure.to_string();
                    if self.waiting.set(name, failure) {
                        tracing::warn!(volume = %name, failure = text, "the volume still cannot be opened; it is retried");
                    }
                    delay = (delay * 2).clamp(RETRY_DELAY, RETRY_DELAY_MAX);
                }
            }
        }
    }
}

fn not_asked_error() -> Failure {
    Failure::new(FailureCode::StoreUnavailable, NOT_ASKED)
}

/// Whether an attempt decides what clients hear. Where the store was left out although it is there, it is asked next.
fn is_decided(opened: &Result<Arc<OpenVolume>>, away: Option<&Failure>) -> bool {
    opened.is_ok() || away.is_none_or(|failure| failure.detail != NOT_ASKED)
}

/// The task that retries; it ends before volumes are closed.
#[derive(Debug)]
pub(crate) struct ReopenTask {
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl ReopenTask {
    /// `at_once`: nobody has tried yet.
    pub(crate) fn start(
        control: &Arc<ControlPlane>,
        wanted: Vec<WantedVolume>,
        at_once: bool,
    ) -> ReopenTask {
        let first_delay = match at_once {
            true => Duration::ZERO,
            false => RETRY_DELAY,
        };
        let (stop, stopped) = watch::channel(false);
        let control = Arc::clone(control);
        ReopenTask {
            stop,
            task: tokio::spawn(async move {
                let later = control.reopen_requested(stopped.clone());
                tokio::join!(control.reopen_volumes(wanted, first_delay, stopped), later);
            }),
        }
    }

    /// Stops the task, after it has finished a disk that it is restoring.
    pub(crate) async fn stop(self) {
        drop(self.stop);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the task that reopens volumes panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nbd::server::Listen;
    use object_store::memory::InMemory;
    use store::{ObjectStoreAdapter, SharedStore};
    use tokio::runtime::Runtime;
    use volume::VolumeSpec;

    use volume::Durability;

    use super::*;
    use crate::cli::args::{LogIo, ServeArgs};
    use crate::config::Settings;
    use crate::control_plane::start_record::StartRecord;
    use crate::engine::Engine;
    use crate::frontends::disks::attached_file::DiskRecord;
    use crate::frontends::disks::options::DiskOptions;
    use crate::local_files::{CacheDir, Progress};
    use crate::model::{AttachRequest, DetachRequest, TransportChoice};
    use crate::units::Size;

    const DEADLINE: Duration = Duration::from_secs(60);

    struct NoProgress;

    impl Progress for NoProgress {
        fn on_filled(&mut self, _done_bytes: u64, _total_bytes: u64) {}
    }

    fn new_store() -> SharedStore {
        Arc::new(ObjectStoreAdapter::new(Arc::new(InMemory::new()), "memory"))
    }

    /// A server without an API, and a volume "demo" that it is to open later.
    fn start(runtime: &Runtime, dir: &Path) -> (Engine, Arc<ControlPlane>) {
        let (engine, control) = start_on(runtime, dir, new_store());
        control.listen(&[Listen::Unix(dir.join("nbd"))]).unwrap();
        let spec = VolumeSpec {
            name: "demo".into(),
            bytes: 8 << 20,
            block: 512,
        };
        runtime.block_on(engine.host.create_volume(spec)).unwrap();
        control.disks.attached.add("demo").unwrap();
        let away = Failure::new(FailureCode::StoreUnavailable, "away");
        control.waiting.set("demo", away);
        (engine, control)
    }

    /// A server without an API on this directory.
    fn start_on(runtime: &Runtime, dir: &Path, store: SharedStore) -> (Engine, Arc<ControlPlane>) {
        std::fs::create_dir_all(dir.join("rings")).unwrap();
        let flags = ServeArgs {
            cache: Some(dir.join("cache")),
            ring_dir: Some(dir.join("rings")),
            log_size: Some(Size(64 << 20)),
            cache_size: Some(Size(1 << 20)),
            log_io: Some(LogIo::Buffered),
            ..ServeArgs::default()
        };
        let settings = Settings::new(&[], flags).unwrap();
        let files = CacheDir::open(&settings, &mut NoProgress).unwrap();
        let started = Engine::start(&settings, store, files, runtime.handle(), None, None);
        let engine = runtime.block_on(started).unwrap();
        let control = Arc::new(
            ControlPlane::new(
                &engine,
                None,
                settings.control(engine.files().cache.bytes),
                None,
                StartRecord::default(),
            )
            .unwrap(),
        );
        (engine, control)
    }

    /// Lets the task come to its end while `meanwhile` happens; whether the volume is open then.
    fn open_after(meanwhile: impl AsyncFnOnce(&ControlPlane)) -> bool {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (mut engine, control) = start(&runtime, dir.path());
        let is_open = runtime.block_on(async {
            let (stop, stopped) = watch::channel(false);
            let later = Arc::clone(&control);
            let task = tokio::spawn(async move {
                later
                    .reopen_volumes(vec![demo()], RETRY_DELAY, stopped)
                    .await
            });
            meanwhile(&control).await;
            tokio::time::timeout(DEADLINE, task).await.unwrap().unwrap();
            drop(stop);
            let is_open = control.volumes.get("demo").is_some();
            control.close_all().await.unwrap();
            is_open
        });
        engine.stop(None);
        is_open
    }

    #[test]
    fn a_volume_that_is_wanted_is_opened_late() {
        assert!(open_after(async |_| {}));
    }

    #[test]
    fn a_volume_that_is_detached_before_it_could_be_opened_is_not_opened_late() {
        let is_open = open_after(async |control| {
            control
                .detach("demo", DetachRequest::default())
                .await
                .unwrap()
        });
        assert!(!is_open);
    }

    #[test]
    fn a_disk_that_waits_for_its_volume_is_taken_away_only_by_force() {
        open_after(async |control| {
            let waiting = DiskRecord {
                id: 7,
                volume_id: "none".into(),
                since: 1,
                options: DiskOptions::from_request(&AttachRequest::default(), 1),
                leaving: false,
            };
            let attached = &control.disks.attached;
            attached.set_disk("demo", Some(waiting)).unwrap();
            let refused = control
                .detach("demo", DetachRequest::default())
                .await
                .unwrap_err();
            assert_eq!(refused.code, FailureCode::NotOpenYet);
            assert!(attached.all().contains_key("demo"), "nothing has changed");
        });
    }

    #[test]
    fn a_volume_whose_disk_waits_for_it_is_not_restored() {
        let is_open = open_after(async |control| {
            let lock = control.volume_locks.lock("demo").await;
            let open = control.open_wanted(&demo()).await.unwrap();
            let one = control
                .host
                .create_snapshot("demo@one", Vec::new(), Durability::Store);
            one.await.unwrap();
            let hold = open.volume.hold();
            let waiting = DiskRecord {
                id: 7,
                volume_id: hold.volume.to_string(),
                since: hold.since.0,
                options: DiskOptions::from_request(&AttachRequest::default(), 1),
                leaving: false,
            };
            let attached = &control.disks.attached;
            attached.set_disk("demo", Some(waiting)).unwrap();
            control.close(&open).await.unwrap();
            drop(open);
            let away = Failure::new(FailureCode::StoreUnavailable, "away");
            control.waiting.set("demo", away);
            drop(lock);
            let refused = control.restore_volume("demo", "one").await.unwrap_err();
            assert_eq!(refused.code, FailureCode::NotOpenYet);
            assert!(refused.detail.contains("firn detach --force demo"));
        });
        assert!(is_open, "its disk's content goes on");
    }

    /// The restore takes the volume out of service, and something ends it before it is open again.
    #[test]
    fn a_volume_that_cannot_be_opened_behind_its_restore_is_retried() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (mut engine, control) = start(&runtime, dir.path());
        runtime.block_on(async {
            let task = ReopenTask::start(&control, Vec::new(), false);
            let busy = Failure::new(FailureCode::StoreUnavailable, "away");
            control.reopen_later("demo", busy);
            assert!(control.waiting.get("demo").is_some(), "and says why");
            let is_open = async {
                while control.volumes.get("demo").is_none() {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(DEADLINE, is_open).await.unwrap();
            assert!(control.waiting.get("demo").is_none());
            task.stop().await;
            control.close_all().await.unwrap();
        });
        engine.stop(None);
    }

    fn demo() -> WantedVolume {
        WantedVolume {
            name: "demo".into(),
            size: None,
            served_before: true,
        }
    }

    /// Records a disk of the volume as an attach does, and stops the server as a crash would.
    fn attach_and_crash((mut engine, control): (Engine, Arc<ControlPlane>), runtime: &Runtime) {
        let open = runtime.block_on(control.open_wanted(&demo())).unwrap();
        let hold = open.volume.hold();
        let disk = DiskRecord {
            id: 7,
            volume_id: hold.volume.to_string(),
            since: hold.since.0,
            options: DiskOptions::from_request(&AttachRequest::default(), 1),
            leaving: false,
        };
        control.disks.attached.set_disk("demo", Some(disk)).unwrap();
        drop(open);
        engine.stop(None);
    }

    /// Another host takes the volume over, and closes it.
    fn serve_elsewhere(runtime: &Runtime, dir: &Path, store: SharedStore) {
        let (mut engine, control) = start_on(runtime, dir, store);
        let mode = OpenMode {
            take_over: true,
            ..OpenMode::default()
        };
        runtime.block_on(async {
            control.open("demo", mode).await.unwrap();
            control.close_all().await.unwrap();
        });
        engine.stop(None);
    }

    #[test]
    fn a_disk_is_not_served_again_over_what_another_host_made_of_its_volume() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = new_store();
        let (engine, control) = start_on(&runtime, one.path(), Arc::clone(&store));
        let spec = VolumeSpec {
            name: "demo".into(),
            bytes: 8 << 20,
            block: 512,
        };
        runtime.block_on(engine.host.create_volume(spec)).unwrap();
        attach_and_crash((engine, control), &runtime);

        // Its own next server goes on.
        let (mut engine, control) = start_on(&runtime, one.path(), Arc::clone(&store));
        runtime.block_on(control.open_wanted(&demo())).unwrap();
        drop(control);
        engine.stop(None);
        drop(engine);

        serve_elsewhere(&runtime, two.path(), Arc::clone(&store));
        let (mut engine, control) = start_on(&runtime, one.path(), store);
        let refused = runtime.block_on(control.open_wanted(&demo())).unwrap_err();
        assert_eq!(refused.code, FailureCode::HoldEnded, "{refused}");
        assert!(
            refused.detail.contains("firn detach --force demo"),
            "{refused}"
        );
        // Nobody is kept from it by that, and detaching the disk ends it.
        runtime.block_on(async {
            let info = control.host.show_volume("demo").await.unwrap();
            assert!(info.owner.is_none(), "{info:?}");
            control.disks.attached.set_disk("demo", None).unwrap();
            control.open_wanted(&demo()).await.unwrap();
            control.close_all().await.unwrap();
        });
        engine.stop(None);
    }

    /// However long attaching and detaching take, it is closed in the end.
    #[test]
    fn a_volume_that_was_attached_and_let_go_of_within_a_pause_is_not_opened_late() {
        let is_open = open_after(async |control| {
            let request = AttachRequest {
                transport: TransportChoice::Nbd,
                ..AttachRequest::default()
            };
            control.attach("demo", request).await.unwrap();
            control
                .detach("demo", DetachRequest::default())
                .await
                .unwrap();
        });
        assert!(!is_open);
    }
}
