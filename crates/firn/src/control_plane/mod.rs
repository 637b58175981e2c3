//! The control plane: creates, opens, attaches, uploads, resizes and deletes volumes.
//!
//! Owns the frontends and the map of open volumes; the engine owns what is in them. Changes of one
//! volume are serialized by a lock. Each operation either does what it says, or fails and changes
//! nothing. `attach` holds the operations that concern the frontends, `opening` what a server opens
//! by itself, `opening_order` in which order, `start_record` what keeps it from opening a volume again and again that ends it, `waiting` what it could
//! not open yet, `lists` which volumes there are, `activity` what it does, `rescue` what is kept of volumes that were lost,
//! `give_back` how a log is emptied for good.

mod activity;
mod adoption;
mod attach;
mod cache_size;
mod diff;
mod gc;
pub(crate) mod give_back;
mod health;
mod lists;
pub(crate) mod opening;
mod opening_order;
mod points;
mod rename;
mod rescue;
mod schedules;
mod settings;
mod start_history;
pub(crate) mod start_record;
mod trash;
pub(crate) mod upgrades;
mod volume_locks;
mod waiting;
mod warm_up;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use blkmq::error::ErrorKind;
use blkmq::{Device, DeviceOptions};
use futures_util::future::join_all;
use nbd::server::{BackendFile, Export, Listen};
use volume::{Host, OpenError, OpenMode, VolumeInfo, VolumeSpec};

use crate::config::ControlSettings;
use crate::control_plane::adoption::PendingConnections;
use crate::control_plane::schedules::Schedules;
use crate::control_plane::settings::SettingsInForce;
use crate::control_plane::start_record::StartRecord;
use crate::control_plane::upgrades::Upgrades;
use crate::control_plane::volume_locks::VolumeLocks;
use crate::control_plane::waiting::{ReopenRequests, WaitingVolumes};
use crate::engine::Engine;
use crate::engine::boot_sets::{self, BootSets};
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::disks::Disks;
use crate::frontends::nbd::NbdFrontend;
use crate::frontends::nbd_access::NbdTls;
use crate::frontends::open_volumes::{OpenVolume, OpenVolumes};
use crate::frontends::opening_volumes::OpeningVolumes;
use crate::local_files::{CacheFile, DiskWatch, RingFiles};
use crate::metrics::IoCounters;
use crate::metrics::latencies::LatencyRegistry;
use crate::model::{CreateVolume, NbdInfo, Volume, VolumeState};
use crate::store_access::StoreAccess;
use crate::units::Size;

/// How often the server logs that it still waits for the store.
const WAIT_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// How long uploading a disk's newest writes may take when the server stops. Those who have the
/// disk mounted wait for the next server meanwhile.
const EXIT_SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// How often closing a volume is attempted while the store fails, and the first delay between.
const CLOSE_ATTEMPTS: u32 = 5;
const CLOSE_RETRY_DELAY: Duration = Duration::from_secs(1);

/// An open volume and the addresses under which clients reach it.
#[derive(Debug)]
pub(crate) struct ReachableVolume {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// The path of its disk, if it is attached as one.
    pub(crate) device: Option<String>,
    pub(crate) uris: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct ControlPlane {
    pub(crate) host: Host,
    pub(crate) counters: Arc<IoCounters>,
    /// The way to the store; none in tests that have one of their own.
    pub(crate) store: Option<Arc<StoreAccess>>,
    pub(crate) volumes: Arc<OpenVolumes>,
    /// Those that this start has still to open.
    opening: Arc<OpeningVolumes>,
    /// Those that it is to serve and could not open yet.
    pub(crate) waiting: WaitingVolumes,
    /// What this start is doing, and which volumes it leaves out.
    pub(crate) starts: StartRecord,
    reopens: ReopenRequests,
    export_files: Vec<BackendFile>,
    /// The engine's rings, and the disk of the log: what `health` looks at.
    pub(crate) rings: Arc<RingFiles>,
    disk_watch: DiskWatch,
    pub(crate) disks: Disks,
    pub(crate) nbd: NbdFrontend,
    pending: PendingConnections,
    pub(crate) volume_locks: VolumeLocks,
    pub(crate) upgrades: Upgrades,
    boot_sets: BootSets,
    /// How long the requests of open volumes take.
    pub(crate) latencies: LatencyRegistry,
    settings: SettingsInForce,
    cache_file: CacheFile,
    pub(crate) schedules: Schedules,
}

/// A volume that is not open here cannot be said to be stored.
fn unknown_stored_error(name: &str, code: FailureCode, why: &str) -> Failure {
    Failure::new(
        code,
        format!(
            "{name} is not open here ({why}): what this host has of it is not known to be stored"
        ),
    )
}

impl ControlPlane {
    pub(crate) fn new(
        engine: &Engine,
        store: Option<Arc<StoreAccess>>,
        settings: ControlSettings,
        nbd_tls: Option<&NbdTls>,
        starts: StartRecord,
    ) -> Result<Self> {
        let volumes: Arc<OpenVolumes> = Arc::default();
        let opening: Arc<OpeningVolumes> = Arc::default();
        let looked_up = (Arc::clone(&volumes), Arc::clone(&opening));
        let nbd = NbdFrontend::new(&engine.reactors, looked_up, nbd_tls)?;
        Ok(ControlPlane {
            host: engine.host.clone(),
            counters: Arc::clone(&engine.counters),
            store,
            volumes,
            opening,
            waiting: WaitingVolumes::default(),
            starts,
            reopens: ReopenRequests::default(),
            export_files: engine.export_files.clone(),
            rings: Arc::clone(&engine.rings),
            disk_watch: engine.files().watch_disk()?,
            disks: Disks::new(engine)?,
            nbd,
            pending: PendingConnections::default(),
            volume_locks: VolumeLocks::default(),
            upgrades: Upgrades::default(),
            boot_sets: BootSets::new(&engine.files().path),
            latencies: LatencyRegistry::new(settings.slow_request),
            schedules: Schedules::default(),
            settings: SettingsInForce::new(settings, Size(engine.files().cache.bytes)),
            cache_file: engine.files().cache.clone(),
        })
    }

    /// Starts listening for NBD clients.
    pub(crate) fn listen(&self, addresses: &[Listen]) -> Result<()> {
        addresses
            .iter()
            .try_for_each(|address| self.nbd.listen(address))
    }

    /// The addresses on which the server listens for NBD clients.
    pub(crate) fn nbd_addresses(&self) -> Vec<Listen> {
        self.nbd.addresses()
    }

    /// The open volumes, and the addresses under which clients reach them.
    pub(crate) fn reachable_volumes(&self) -> Vec<ReachableVolume> {
        let reachable = |open: Arc<OpenVolume>| ReachableVolume {
            name: open.info.name.clone(),
            bytes: open.volume.info().bytes,
            device: self.disks.describe(&open.info.name).map(|disk| disk.device),
            uris: self.nbd.uris(&open.info.name),
        };
        self.volumes.all().into_iter().map(reachable).collect()
    }

    pub(crate) async fn show(&self, name: &str) -> Result<Volume> {
        // An open volume is described without a store request: watermarks matter most in an outage.
        if let Some(open) = self.volumes.get(name) {
            return Ok(self.describe(&open.volume.info()));
        }
        let info = self.host.show_volume(name).await.map_err(Failure::from)?;
        Ok(self.describe(&info))
    }

    pub(crate) async fn create(&self, request: CreateVolume) -> Result<Volume> {
        let CreateVolume {
            name,
            size_bytes,
            block_size,
        } = request;
        let spec = VolumeSpec {
            name,
            bytes: size_bytes,
            block: block_size,
        };
        let info = self.host.create_volume(spec).await.map_err(Failure::from)?;
        Ok(self.describe(&info))
    }

    pub(crate) async fn sync(&self, name: &str) -> Result<Volume> {
        if let Some(open) = self.volumes.get(name) {
            self.host.sync(&open.volume).await.map_err(Failure::from)?;
            return self.show(name).await;
        }
        if let Some(waiting) = self.waiting.get(name) {
            let code = match waiting.failure.code {
                FailureCode::VolumeHeld => FailureCode::VolumeHeld,
                _ => FailureCode::NotOpenYet,
            };
            return Err(unknown_stored_error(name, code, &waiting.failure.detail));
        }
        let shown = self.show(name).await?;
        if let Some(holder) = &shown.holder {
            let why = format!("it is held by {holder}");
            return Err(unknown_stored_error(name, FailureCode::VolumeHeld, &why));
        }
        let kept = self.host.unserved_tails();
        if kept.iter().any(|tail| tail.volume == name && !tail.rescue) {
            let why = "its newest writes are in the log of this host and wait until it is opened";
            return Err(unknown_stored_error(name, FailureCode::NotOpenYet, why));
        }
        // A closed volume has nothing here that the store lacks.
        Ok(shown)
    }

    /// Opens a volume. One whose disk is recorded here is opened only where it goes on as that disk
    /// has shown it.
    pub(crate) async fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<OpenVolume>> {
        let mode = OpenMode {
            continues: self.disks.bound_hold(name),
            ..mode
        };
        let open = self.open_unbound(name, mode).await?;
        if let Err(failure) = self.disks.rebind(&open) {
            tracing::error!(volume = name, %failure, "the next server will not serve the disk of this volume");
        }
        Ok(open)
    }

    /// Opens a volume whatever its disk has shown: nothing of it is served to a disk.
    pub(crate) async fn open_unbound(&self, name: &str, mode: OpenMode) -> Result<Arc<OpenVolume>> {
        let mode = OpenMode {
            take_over: mode.take_over || canary::active!("take_over_every_volume"),
            ..mode
        };
        let volume = match attach::is_snapshot(name) {
            true => self.host.open_snapshot(name).await,
            false => self.host.open_volume(name, mode).await,
        };
        let volume = volume.map_err(Failure::from)?;
        start_record::planned_step(name).await;
        let open = self.export(volume);
        self.prefetch_boot_set(&open);
        Ok(open)
    }

    /// Fetches what the volume read first after it was opened before, and keeps what it reads first now.
    fn prefetch_boot_set(&self, open: &OpenVolume) {
        let (sets, volumes) = (self.boot_sets.clone(), Arc::clone(&self.volumes));
        let (name, id, volume) = (open.info.name.clone(), open.info.id, open.volume.clone());
        tokio::spawn(async move {
            let reader = sets.clone();
            let loaded = tokio::task::spawn_blocking(move || reader.load(id));
            if let Ok(Some(set)) = loaded.await {
                volume.prefetch(&set);
            }
            drop(volume);
            tokio::time::sleep(boot_sets::COMPLETE_AFTER).await;
            let open = volumes.get(&name).filter(|open| open.info.id == id);
            if let Some(set) = open.map(|open| open.volume.boot_set()) {
                drop(tokio::task::spawn_blocking(move || sets.save(id, &set)));
            }
        });
    }

    /// Makes an open volume visible to clients. Nothing between the engine's open and this may
    /// fail: a volume that is open but not in the map could be neither used nor opened again.
    fn export(&self, volume: volume::Volume) -> Arc<OpenVolume> {
        let info = volume.info();
        let export = Arc::new(Export {
            name: info.name.clone(),
            description: format!("firn volume, {}", Size(info.bytes)),
            backend: Arc::new(volume.clone()),
            device: Device::new(&info.name, DeviceOptions::default()),
            files: self.export_files.clone(),
            latencies: self.latencies.open(&info.name),
        });
        let open = Arc::new(OpenVolume {
            volume,
            info,
            export,
            since: Instant::now(),
            ticket: AtomicU64::new(0),
        });
        self.volumes.insert(Arc::clone(&open));
        self.waiting.remove(&open.info.name);
        open
    }

    /// Makes a volume visible again that could not be closed and still serves.
    pub(crate) fn restore_export(&self, open: &OpenVolume) {
        if open.volume.check_serving().is_ok() {
            self.export(open.volume.clone());
        }
    }

    /// Disconnects a volume's clients, uploads what the store lacks, and gives up its ownership.
    pub(crate) async fn close(&self, open: &OpenVolume) -> Result<()> {
        let again = || self.host.close_volume(&open.volume);
        self.close_retrying(open, again).await?;
        self.latencies.close(&open.info.name);
        Ok(())
    }

    /// The same for a volume that another server waits for.
    async fn close_awaited(&self, open: &OpenVolume) -> Result<()> {
        let again = || self.host.close_awaited_volume(&open.volume);
        self.close_retrying(open, again).await?;
        self.latencies.close(&open.info.name);
        Ok(())
    }

    async fn close_retrying(
        &self,
        open: &OpenVolume,
        close: impl Fn() -> volume::Answer<std::result::Result<(), OpenError>>,
    ) -> Result<()> {
        self.volumes.remove(&open.info.name);
        self.nbd.disconnect(&open.export).await;
        let mut delay = CLOSE_RETRY_DELAY;
        for _ in 1..CLOSE_ATTEMPTS {
            match close().await {
                // All data is in the store, but not the release of ownership. Without that, the
                // next host would have to declare a loss although nothing is lost.
                Err(OpenError::Store(reason)) => {
                    tracing::warn!(volume = %open.info.name, %reason, "closing the volume failed; it is retried");
                    tokio::time::sleep(delay).await;
                    delay *= 2;
                }
                closed => return closed.map_err(Failure::from),
            }
        }
        close().await.map_err(Failure::from)
    }

    /// Closes all volumes. One that cannot be uploaded stays in the log. One that is attached as a
    /// disk keeps its owner: those who have it mounted wait for the next server on this host.
    pub(crate) async fn close_all(&self) -> Result<()> {
        self.nbd.stop().await;
        let open = self.volumes.all();
        let closed = open.iter().map(|open| async move {
            let _lock = self.volume_locks.lock(&open.info.name).await;
            if self.disks.get(&open.info.name).is_some() {
                self.sync_before_exit(open).await;
                return Ok(());
            }
            self.close_with_reports(open).await.inspect_err(|failure| {
                tracing::error!(
                    volume = %open.info.name, %failure,
                    "the volume is not closed; what the store lacks stays in the log"
                );
            })
        });
        join_all(closed).await.into_iter().collect()
    }

    /// Uploads what can be uploaded in a short time, while the disk is still served. The rest
    /// stays in the log for the next server.
    async fn sync_before_exit(&self, open: &OpenVolume) {
        let synced = tokio::time::timeout(EXIT_SYNC_TIMEOUT, self.host.sync(&open.volume)).await;
        if !matches!(synced, Ok(Ok(_))) {
            tracing::warn!(
                volume = %open.info.name,
                "its newest writes are only in the log until a server runs here again"
            );
        }
    }

    /// Closes a volume, and logs every few seconds why that takes so long.
    async fn close_with_reports(&self, open: &OpenVolume) -> Result<()> {
        let mut closing = std::pin::pin!(self.close(open));
        loop {
            if let Ok(closed) = tokio::time::timeout(WAIT_LOG_INTERVAL, &mut closing).await {
                return closed;
            }
            let (stored, newest) = (open.volume.watermarks().stored.lsn, open.volume.newest());
            tracing::warn!(
                volume = %open.info.name,
                stored = stored.0,
                newest = newest.0,
                reason = open.volume.upload_error().as_deref().unwrap_or("none"),
                "still uploading the volume; a second signal stops at once and leaves the rest in the log"
            );
        }
    }

    /// Fails if the volume is attached as a disk.
    pub(crate) fn check_no_disk(&self, name: &str) -> Result<()> {
        match self.disks.get(name) {
            None => Ok(()),
            Some(disk) => Err(Failure::new(
                FailureCode::VolumeInUse,
                format!(
                    "volume {name} is attached as {}; detach it first: firn detach {name}",
                    disk.path().display()
                ),
            )),
        }
    }

    /// Fails if the volume has NBD connections.
    pub(crate) fn check_no_connections(&self, name: &str) -> Result<()> {
        match self.nbd.connections(name) {
            0 => Ok(()),
            connections => Err(Failure::new(
                FailureCode::VolumeInUse,
                format!(
                    "volume {name} is used by {connections} connections; disconnect them first"
                ),
            )),
        }
    }

    fn describe(&self, info: &VolumeInfo) -> Volume {
        let open = self
            .volumes
            .get(&info.name)
            .filter(|open| open.info.id == info.id);
        let this_host = self.host.id();
        let holder = info
            .owner
            .as_ref()
            .filter(|owner| Some(owner.host) != this_host);
        let state = match &open {
            Some(open) if open.volume.check_serving() == Err(ErrorKind::Fenced) => {
                VolumeState::Fenced
            }
            Some(_) if self.host.usage().poisoned => VolumeState::Poisoned,
            Some(_) => VolumeState::Open,
            None if holder.is_some() => VolumeState::Held,
            None => VolumeState::Closed,
        };
        Volume {
            name: info.name.clone(),
            id: info.id.to_string(),
            size_bytes: info.bytes,
            block_size: info.block,
            state,
            epoch: info.epoch.0,
            holder: holder.map(|owner| owner.label.clone()),
            watermarks: open.as_ref().map(|open| open.watermarks()),
            nbd: open.as_ref().map(|_| NbdInfo {
                uris: self.nbd.uris(&info.name),
                connections: self.nbd.connections(&info.name),
            }),
            disk: open.as_ref().and_then(|_| self.disks.describe(&info.name)),
            upload_error: open.as_ref().and_then(|open| open.volume.upload_error()),
            overdue_seconds: open
                .as_ref()
                .map(|open| open.volume.watermarks().overdue_ms)
                .filter(|overdue_ms| *overdue_ms > 0)
                .map(|overdue_ms| overdue_ms as f64 / 1000.0),
            log_snapshots: open
                .as_ref()
                .map(|open| open.volume.log_snapshots().count)
                .filter(|count| *count > 0),
            damaged_bytes: open
                .as_ref()
                .map(|open| open.volume.damaged_bytes())
                .filter(|bytes| *bytes > 0),
            space: open
                .as_ref()
                .and_then(|open| open.volume.space())
                .map(Into::into),
            health: (open.is_some() || self.waiting.get(&info.name).is_some())
                .then(|| self.volume_health(&info.name)),
            waiting: self.waiting.get(&info.name).map(|one| one.failure.detail),
        }
    }
}
