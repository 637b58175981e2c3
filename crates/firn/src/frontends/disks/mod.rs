//! The disks of this server: volumes as ublk block devices of this machine.
//!
//! Beside `doors`, which has the volumes' NBD exports. `wanted` is what a disk is asked to be,
//! `remembered` the file that outlives the server, `machine` what the kernel offers, `disk` one
//! device's life, and `view` what its queues serve. Callers see to it that one volume's changes
//! take turns.

pub(crate) mod attached_file;
mod backend;
mod disk;
pub(crate) mod options;
pub(crate) mod probe;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use blkmq::io::FileId;
use reactor::BackendKind;
use ublk::control::Control;
use ublk::device::Live;

use crate::engine::Engine;
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::open_volumes::Open;
use crate::model::{self, AttachRequest};

use attached_file::{Attached, Remembered};
use disk::{Disk, Maker, NotMade, Seats};
use options::Wanted;

/// How many numbers are tried while others take them at the same moment.
const ID_TRIES: u32 = 16;

/// All disks, and what they are made with.
#[derive(Debug)]
pub(crate) struct Disks {
    pub(crate) attached: Attached,
    seats: Seats,
    /// Once ublk could be used: the driver may be loaded while the server runs.
    maker: OnceLock<Arc<Maker>>,
    /// Live ones, by volume.
    live: Mutex<BTreeMap<String, Arc<Disk>>>,
    /// One new number at a time: it is another's until it is remembered.
    numbering: Mutex<()>,
}

impl Disks {
    pub(crate) fn new(engine: &Engine) -> Result<Self> {
        Ok(Disks {
            attached: Attached::load(&engine.files().path)?,
            seats: seats(engine),
            maker: OnceLock::new(),
            live: Mutex::default(),
            numbering: Mutex::default(),
        })
    }

    /// What makes disks here, or why nothing does.
    pub(crate) async fn maker(&self) -> Result<Arc<Maker>> {
        if let Some(maker) = self.maker.get() {
            return Ok(Arc::clone(maker));
        }
        if !self.seats.rings {
            return Err(probe::no_rings());
        }
        let control = blocking(probe::look).await??;
        let seats = self.seats.clone();
        let maker = self
            .maker
            .get_or_init(|| Arc::new(Maker::new(control, seats)));
        Ok(Arc::clone(maker))
    }

    fn live(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Disk>>> {
        // Every section is one call on the map: a panic elsewhere leaves it whole.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk of a volume.
    pub(crate) fn get(&self, volume: &str) -> Option<Arc<Disk>> {
        self.live().get(volume).cloned()
    }

    /// The disk of a volume, as the API shows it.
    pub(crate) fn shown(&self, volume: &str) -> Option<model::Disk> {
        self.get(volume).map(|disk| disk.shown())
    }

    /// The disk of this volume: the one there is if it is as wished, else a new one. What fails
    /// leaves nothing behind.
    pub(crate) async fn attach(
        &self,
        open: &Arc<Open>,
        request: &AttachRequest,
    ) -> Result<Arc<Disk>> {
        let name = &open.info.name;
        if let Some(disk) = self.get(name) {
            return as_wished(name, disk.wanted(), request).map(|()| disk);
        }
        let maker = self.maker().await?;
        let made = match self.remembered(open) {
            // It was here before, and could not be brought back then.
            Some(remembered) => {
                as_wished(name, &remembered.wanted, request)?;
                self.bring_back(&maker, open, remembered).await?
            }
            None => {
                let wanted = Wanted::of(request, self.seats.reactors.len());
                self.make(&maker, open, &wanted).await?
            }
        };
        Ok(self.insert(name, made))
    }

    fn insert(&self, volume: &str, disk: Disk) -> Arc<Disk> {
        let disk = Arc::new(disk);
        self.live().insert(volume.to_owned(), Arc::clone(&disk));
        disk
    }

    /// The disk that is remembered of this volume, and not of another that had its name.
    fn remembered(&self, open: &Open) -> Option<Remembered> {
        let remembered = self.attached.disk(&open.info.name)?;
        (remembered.volume_id == open.info.id.to_string()).then_some(remembered)
    }

    async fn make(&self, maker: &Arc<Maker>, open: &Arc<Open>, wanted: &Wanted) -> Result<Disk> {
        let name = &open.info.name;
        for _ in 0..ID_TRIES {
            let id = self.take_id(maker, open, wanted)?;
            let (maker, for_maker, wanted) = (Arc::clone(maker), Arc::clone(open), wanted.clone());
            match blocking(move || maker.add(&for_maker, id, &wanted)).await? {
                Ok(disk) => return Ok(disk),
                Err(NotMade::Taken) => {}
                Err(NotMade::Failed(failure)) => {
                    self.attached.set_disk(name, None)?;
                    return Err(failure);
                }
            }
        }
        self.attached.set_disk(name, None)?;
        Err(Failure::new(
            FailureCode::UblkFailed,
            format!("no device number for volume {name}: others take each first; try again"),
        ))
    }

    /// A number for a volume's device, remembered before the device is made.
    fn take_id(&self, maker: &Maker, open: &Open, wanted: &Wanted) -> Result<u32> {
        let _numbering = self
            .numbering
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let all = self.attached.all();
        let others = all.iter().filter(|(name, _)| **name != open.info.name);
        let reserved: Vec<u32> = others.filter_map(|(_, d)| Some(d.as_ref()?.id)).collect();
        let id = maker.free_id(&reserved)?;
        let remembered = Remembered {
            id,
            volume_id: open.info.id.to_string(),
            wanted: wanted.clone(),
            leaving: false,
        };
        self.attached.set_disk(&open.info.name, Some(remembered))?;
        Ok(id)
    }

    async fn bring_back(
        &self,
        maker: &Arc<Maker>,
        open: &Arc<Open>,
        remembered: Remembered,
    ) -> Result<Disk> {
        let (for_maker, for_open) = (Arc::clone(maker), Arc::clone(open));
        let wanted = remembered.wanted.clone();
        let id = remembered.id;
        let devices = self.attached.len();
        let made = blocking(move || for_maker.bring_back(&for_open, &remembered, devices));
        match made.await? {
            Ok(disk) => Ok(disk),
            Err(NotMade::Failed(failure)) => Err(failure),
            Err(NotMade::Taken) => {
                tracing::warn!(
                    volume = %open.info.name, device = id,
                    "its device's number belongs to somebody else now; it gets a new one"
                );
                self.make(maker, open, &wanted).await
            }
        }
    }

    /// After a restart: what is remembered of this volume's disk is made true again.
    pub(crate) async fn restore(&self, open: &Arc<Open>) -> Result<()> {
        let name = &open.info.name;
        let Some(remembered) = self.attached.disk(name) else {
            return Ok(());
        };
        let maker = self.maker().await?;
        if remembered.leaving || remembered.volume_id != open.info.id.to_string() {
            blocking(move || maker.remove(&remembered.volume_id, remembered.id)).await??;
            return self.attached.set_disk(name, None);
        }
        let disk = self.bring_back(&maker, open, remembered).await?;
        self.insert(name, disk);
        Ok(())
    }

    /// Takes the disk of a volume away, if it has one.
    pub(crate) async fn detach(&self, volume: &str, force: bool) -> Result<()> {
        let Some(disk) = self.get(volume) else {
            return self.forget(volume).await;
        };
        if let Some(remembered) = self.attached.disk(volume) {
            self.set_leaving(volume, &remembered, true)?;
            let ended = blocking(move || disk.end(force)).await?;
            if let Err(failure) = ended {
                self.set_leaving(volume, &remembered, false)?;
                return Err(failure);
            }
        }
        self.live().remove(volume);
        self.attached.set_disk(volume, None)
    }

    /// The disk of a volume gets the volume's new size.
    pub(crate) async fn resize(&self, disk: Arc<Disk>, bytes: u64) -> Result<()> {
        blocking(move || disk.resize(bytes)).await?
    }

    /// All devices, for a server that ends and leaves them to the next; none if there are none.
    pub(crate) fn leave(&self) -> Option<(Control, Vec<Live>)> {
        let disks = std::mem::take(&mut *self.live());
        let devices: Vec<Live> = disks.values().filter_map(|disk| disk.leave()).collect();
        let maker = self.maker.get().filter(|_| !devices.is_empty())?;
        Some((maker.control().clone(), devices))
    }

    /// Takes away what may be left of a disk that was not brought back.
    async fn forget(&self, volume: &str) -> Result<()> {
        let Some(remembered) = self.attached.disk(volume) else {
            return Ok(());
        };
        // Without the driver there is no device either.
        let Ok(maker) = self.maker().await else {
            return Ok(());
        };
        blocking(move || maker.remove(&remembered.volume_id, remembered.id)).await??;
        self.attached.set_disk(volume, None)
    }

    fn set_leaving(&self, volume: &str, disk: &Remembered, leaving: bool) -> Result<()> {
        let disk = Remembered {
            leaving,
            ..disk.clone()
        };
        self.attached.set_disk(volume, Some(disk))
    }
}

/// What a server has for disks.
fn seats(engine: &Engine) -> Seats {
    let log = engine
        .export_files
        .iter()
        .find(|file| file.id == FileId::LOG);
    let reactors = engine.reactors.iter();
    Seats {
        rings: reactors
            .clone()
            .all(|one| one.backend() == BackendKind::IoUring),
        reactors: reactors.map(|one| one.handle().clone()).collect(),
        threads: engine.threads.clone(),
        files: engine.export_files.clone(),
        dma_alignment: log.map_or(1, |log| log.align.memory).max(512),
    }
}

/// A disk that is there is answered again, if it is what was asked for.
fn as_wished(name: &str, disk: &Wanted, request: &AttachRequest) -> Result<()> {
    match disk.unlike(request) {
        None => Ok(()),
        Some(wish) => Err(Failure::new(
            FailureCode::AttachedOtherwise,
            format!(
                "volume {name} is attached with another {wish}; detach it first, or leave \
                 {wish} out to use it as it is"
            ),
        )),
    }
}

/// Runs what waits for the driver on a thread that may wait.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|source| {
        Failure::internal(format!(
            "a disk's thread ended: {source}; see the server's log"
        ))
    })
}
