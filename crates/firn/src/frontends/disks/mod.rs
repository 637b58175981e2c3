//! The ublk frontend: volumes as block devices of this machine.
//!
//! Owns the live disks and the file that records them for the next server. Callers hold the
//! volume's lock while they change its disk. In the order of an attach: `probe` is what the kernel
//! offers, `options` what a disk was asked to be, `attached_file` the record, `factory` creates and
//! recovers devices, `disk` is one live device and `node` its name. What their queues do is `transports::disk`.

pub(crate) mod attached_file;
mod disk;
mod factory;
mod node;
pub(crate) mod options;
pub(crate) mod probe;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use blkmq::io::FileId;
use reactor::BackendKind;
use ublk::device::LiveDevice;
use volume::TailId;

use crate::engine::{Engine, LiveDisks};
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::open_volumes::OpenVolume;
use crate::model::{self, AttachRequest};

use attached_file::{AttachedFile, DiskRecord};
use disk::Disk;
use factory::{CreateError, DiskFactory, ServeContext};
use options::{DiskOptions, flag_of};

/// How many device numbers are tried while other programs take them.
const ID_ATTEMPTS: u32 = 16;

/// All disks of this server.
#[derive(Debug)]
pub(crate) struct Disks {
    pub(crate) attached: AttachedFile,
    context: ServeContext,
    /// Set once ublk can be used: the driver may be loaded while the server runs.
    factory: OnceLock<Arc<DiskFactory>>,
    /// The live disks, by volume.
    live: Mutex<BTreeMap<String, Arc<Disk>>>,
    /// Held from choosing a device number until it is recorded.
    id_lock: Mutex<()>,
}

impl Disks {
    pub(crate) fn new(engine: &Engine) -> Result<Self> {
        Ok(Disks {
            attached: AttachedFile::load(&engine.files().path)?,
            context: serve_context(engine),
            factory: OnceLock::new(),
            live: Mutex::default(),
            id_lock: Mutex::default(),
        })
    }

    /// The factory, or why ublk cannot be used.
    pub(crate) async fn factory(&self) -> Result<Arc<DiskFactory>> {
        if let Some(factory) = self.factory.get() {
            return Ok(Arc::clone(factory));
        }
        if !self.context.has_io_uring {
            return Err(probe::io_uring_refused());
        }
        let control = blocking(probe::open_control).await??;
        let context = self.context.clone();
        let factory = self
            .factory
            .get_or_init(|| Arc::new(DiskFactory::new(control, context)));
        Ok(Arc::clone(factory))
    }

    fn live(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Disk>>> {
        // Each critical section is one call on the map, so a panic cannot leave it half changed.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk of a volume.
    pub(crate) fn get(&self, volume: &str) -> Option<Arc<Disk>> {
        self.live().get(volume).cloned()
    }

    /// The disk of a volume, as the API shows it.
    pub(crate) fn describe(&self, volume: &str) -> Option<model::DiskInfo> {
        self.get(volume).map(|disk| disk.describe())
    }

    /// The disk of this volume: the live one if its options fit the request, else a new one. A
    /// failure leaves nothing behind.
    pub(crate) async fn attach(
        &self,
        open: &Arc<OpenVolume>,
        request: &AttachRequest,
    ) -> Result<Arc<Disk>> {
        let name = &open.info.name;
        if let Some(disk) = self.get(name) {
            check_same_options(name, disk.options(), request)?;
            self.check_node(&disk).await?;
            return Ok(disk);
        }
        let factory = self.factory().await?;
        let made = match self.find_record(open) {
            // It was attached before, and could not be recovered then.
            Some(record) => {
                check_same_options(name, &record.options, request)?;
                self.recover(&factory, open, record).await?
            }
            None => {
                let options = DiskOptions::from_request(request, self.context.reactors.len());
                self.create(&factory, open, &options).await?
            }
        };
        let disk = self.insert(name, made);
        match self.check_node(&disk).await {
            Ok(()) => Ok(disk),
            Err(failure) => {
                // Nobody has been told of it yet, so nobody uses it.
                self.detach(name, true).await?;
                Err(failure)
            }
        }
    }

    /// Makes the path that programs open lead to this disk.
    async fn check_node(&self, disk: &Disk) -> Result<()> {
        let path = disk.path();
        blocking(move || node::repair(&path)).await?
    }

    fn insert(&self, volume: &str, disk: Disk) -> Arc<Disk> {
        let disk = Arc::new(disk);
        self.live().insert(volume.to_owned(), Arc::clone(&disk));
        disk
    }

    /// The recorded disk of this volume, and not of another volume that had its name.
    fn find_record(&self, open: &OpenVolume) -> Option<DiskRecord> {
        let record = self.attached.disk(&open.info.name)?;
        (record.volume_id == open.info.id.to_string()).then_some(record)
    }

    /// The command by which a volume is served again as it was.
    pub(crate) fn attach_command(&self, volume: &str) -> String {
        match self.attached.disk(volume) {
            Some(_) => format!("firn attach {volume}"),
            None => format!("firn attach {volume} --transport nbd"),
        }
    }

    /// The hold that a volume must go on from because its recorded disk has shown it: what has that device
    /// open or mounted knows no other content. `None` if no disk is recorded, or only its removal is left.
    pub(crate) fn bound_hold(&self, volume: &str) -> Option<TailId> {
        let record = self
            .attached
            .disk(volume)
            .filter(|record| !record.leaving)?;
        record.hold()
    }

    /// Records that a volume's disk is from now on of this hold: the one before it was given back.
    pub(crate) fn rebind(&self, open: &OpenVolume) -> Result<()> {
        let (name, hold) = (&open.info.name, open.volume.hold());
        let Some(record) = self.find_record(open) else {
            return Ok(());
        };
        let since = hold.since.0;
        self.attached
            .set_disk(name, Some(DiskRecord { since, ..record }))
    }

    /// Records that the disks of these volumes never go on: what they have shown is lost, and nobody who has
    /// one open was told. No hold that serves a disk begins in epoch 0.
    pub(crate) fn end_holds<'a>(&self, volumes: impl Iterator<Item = &'a String>) -> Result<()> {
        for volume in volumes {
            if let Some(record) = self.attached.disk(volume)
                && !canary::active!("disk_over_lost_writes")
            {
                let ended = DiskRecord { since: 0, ..record };
                self.attached.set_disk(volume, Some(ended))?;
            }
        }
        Ok(())
    }

    async fn create(
        &self,
        factory: &Arc<DiskFactory>,
        open: &Arc<OpenVolume>,
        options: &DiskOptions,
    ) -> Result<Disk> {
        let name = &open.info.name;
        for _ in 0..ID_ATTEMPTS {
            let id = self.reserve_id(factory, open, options)?;
            let (factory, for_task, options) =
                (Arc::clone(factory), Arc::clone(open), options.clone());
            match blocking(move || factory.create(&for_task, id, &options)).await? {
                Ok(disk) => return Ok(disk),
                Err(CreateError::IdTaken) => {}
                Err(CreateError::Failed(failure)) => {
                    self.attached.set_disk(name, None)?;
                    return Err(failure);
                }
            }
        }
        self.attached.set_disk(name, None)?;
        Err(Failure::new(
            FailureCode::UblkFailed,
            format!(
                "no device number for volume {name}: other programs took each one first; try again"
            ),
        ))
    }

    /// Chooses a number for a volume's device and records it before the device is created.
    fn reserve_id(
        &self,
        factory: &DiskFactory,
        open: &OpenVolume,
        options: &DiskOptions,
    ) -> Result<u32> {
        let _guard = self.id_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.attached.all();
        let others = all.iter().filter(|(name, _)| **name != open.info.name);
        let reserved: Vec<u32> = others.filter_map(|(_, d)| Some(d.as_ref()?.id)).collect();
        let id = factory.free_id(&reserved)?;
        let record = DiskRecord {
            id,
            volume_id: open.info.id.to_string(),
            since: open.volume.hold().since.0,
            options: options.clone(),
            leaving: false,
        };
        self.attached.set_disk(&open.info.name, Some(record))?;
        Ok(id)
    }

    async fn recover(
        &self,
        factory: &Arc<DiskFactory>,
        open: &Arc<OpenVolume>,
        record: DiskRecord,
    ) -> Result<Disk> {
        let (for_task, for_open) = (Arc::clone(factory), Arc::clone(open));
        let options = record.options.clone();
        let id = record.id;
        let devices = self.attached.len();
        let made = blocking(move || for_task.recover(&for_open, &record, devices));
        match made.await? {
            Ok(disk) => Ok(disk),
            Err(CreateError::Failed(failure)) => Err(failure),
            Err(CreateError::IdTaken) => {
                tracing::warn!(
                    volume = %open.info.name, device = id,
                    "the number of its device belongs to another program now; it gets a new one"
                );
                self.create(factory, open, &options).await
            }
        }
    }

    /// After a restart, recovers this volume's recorded disk, or completes its removal.
    pub(crate) async fn restore(&self, open: &Arc<OpenVolume>) -> Result<()> {
        let name = &open.info.name;
        let Some(record) = self.attached.disk(name) else {
            return Ok(());
        };
        let factory = self.factory().await?;
        if record.leaving || record.volume_id != open.info.id.to_string() {
            blocking(move || factory.remove(&record.volume_id, record.id)).await??;
            return self.attached.set_disk(name, None);
        }
        let disk = self.recover(&factory, open, record).await?;
        let disk = self.insert(name, disk);
        if let Err(failure) = self.check_node(&disk).await {
            // Who has it open has the disk itself, and is served.
            tracing::error!(volume = %name, %failure, "the disk is served, but cannot be opened by its name");
        }
        Ok(())
    }

    /// Removes the disk of a volume, if it has one.
    pub(crate) async fn detach(&self, volume: &str, force: bool) -> Result<()> {
        let Some(disk) = self.get(volume) else {
            return self.remove_leftover(volume).await;
        };
        if let Some(record) = self.attached.disk(volume) {
            self.set_leaving(volume, &record, true)?;
            let removed = blocking(move || disk.remove(force)).await?;
            if let Err(failure) = removed {
                self.set_leaving(volume, &record, false)?;
                return Err(failure);
            }
        }
        self.live().remove(volume);
        self.attached.set_disk(volume, None)
    }

    /// Resizes a volume's disk.
    pub(crate) async fn resize(&self, disk: Arc<Disk>, bytes: u64) -> Result<()> {
        blocking(move || disk.resize(bytes)).await?
    }

    /// Takes all live devices, to leave them to the next server; `None` if there are none.
    pub(crate) fn take_live(&self) -> Option<LiveDisks> {
        let disks = std::mem::take(&mut *self.live());
        let devices: Vec<LiveDevice> = disks.values().filter_map(|disk| disk.take_live()).collect();
        let factory = self.factory.get().filter(|_| !devices.is_empty())?;
        Some(LiveDisks {
            control: factory.control().clone(),
            devices,
        })
    }

    /// Removes what may be left of a recorded disk that was not recovered.
    async fn remove_leftover(&self, volume: &str) -> Result<()> {
        let Some(record) = self.attached.disk(volume) else {
            return Ok(());
        };
        // Without the driver there is no device either.
        let Ok(factory) = self.factory().await else {
            return Ok(());
        };
        blocking(move || factory.remove(&record.volume_id, record.id)).await??;
        self.attached.set_disk(volume, None)
    }

    fn set_leaving(&self, volume: &str, disk: &DiskRecord, leaving: bool) -> Result<()> {
        let disk = DiskRecord {
            leaving,
            ..disk.clone()
        };
        self.attached.set_disk(volume, Some(disk))
    }
}

/// What the server serves its disks with.
fn serve_context(engine: &Engine) -> ServeContext {
    let log = engine
        .export_files
        .iter()
        .find(|file| file.id == FileId::LOG);
    let reactors = engine.reactors.iter();
    ServeContext {
        has_io_uring: reactors
            .clone()
            .all(|one| one.backend() == BackendKind::IoUring),
        reactors: reactors.map(|one| one.handle().clone()).collect(),
        reactor_names: engine.reactor_names.clone(),
        files: engine.export_files.clone(),
        dma_alignment: log.map_or(1, |log| log.align.memory).max(512),
    }
}

/// Refuses a request whose options differ from those of the existing disk.
fn check_same_options(name: &str, options: &DiskOptions, request: &AttachRequest) -> Result<()> {
    match options.find_difference(request) {
        None => Ok(()),
        Some(option) => Err(Failure::new(
            FailureCode::AttachedOtherwise,
            format!(
                "volume {name} is attached with another {flag}; detach it first, or leave {flag} out \
                 to use it as it is",
                flag = flag_of(option)
            ),
        )),
    }
}

/// Runs a call that waits for the driver on a thread that may wait.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|source| {
        Failure::internal(format!(
            "a call of the ublk driver ended: {source}; see the server's log"
        ))
    })
}
