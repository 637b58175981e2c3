//! What the API does: volumes are created, opened, brought to the store, deleted.
//!
//! Owns the doors through which clients come and the list of what is open; the engine owns the
//! truth. Operations that change one volume take turns, and each either does what it says or says
//! why not and has changed nothing.

mod attach;
pub(crate) mod reopen;
mod volume_locks;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use blkmq::error::ErrorKind;
use blkmq::{Device, DeviceOptions};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use nbd::server::{BackendFile, Export, Listen};
use volume::{Host, OpenError, OpenMode, RecoveryReport, VolumeInfo, VolumeSpec};

use crate::cli::args::NewVolume;
use crate::control_plane::volume_locks::Turns;
use crate::engine::Engine;
use crate::failure::{Failure, Result};
use crate::frontends::disks::Disks;
use crate::frontends::nbd::Doors;
use crate::frontends::open_volumes::{Open, Volumes};
use crate::metrics::Counters;
use crate::model::{CreateVolume, Nbd, State, Volume};
use crate::store_faults::Running;
use crate::units::Size;

/// How often it is said that the store is still being waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the newest writes of disks may take to reach the store when the server ends: its
/// successor is waited for by whoever has them mounted.
const LAST_SYNC: Duration = Duration::from_secs(5);

/// Disks that come back at once after a restart. The driver takes some time for each, more or less one
/// after the other, and that time counts against the deadline of all that have begun.
const RESTORED_AT_ONCE: usize = 64;

/// How often giving a volume back is tried while the store fails, and the first pause between.
const CLOSE_TRIES: u32 = 5;
const CLOSE_PAUSE: Duration = Duration::from_secs(1);

/// An open volume and where it is found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Its disk here, if it is one.
    pub(crate) device: Option<String>,
    pub(crate) uris: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) host: Host,
    pub(crate) counters: Arc<Counters>,
    /// Faults of the store that are planned.
    pub(crate) planned: Option<Running>,
    pub(crate) volumes: Arc<Volumes>,
    export_files: Vec<BackendFile>,
    pub(crate) disks: Disks,
    pub(crate) doors: Doors,
    pub(crate) turns: Turns,
}

impl Control {
    pub(crate) fn new(engine: &Engine, planned: Option<Running>) -> Result<Self> {
        let volumes: Arc<Volumes> = Arc::default();
        let doors = Doors::new(&engine.reactors, Arc::clone(&volumes))?;
        Ok(Control {
            host: engine.host.clone(),
            counters: Arc::clone(&engine.counters),
            planned,
            volumes,
            export_files: engine.export_files.clone(),
            disks: Disks::new(engine)?,
            doors,
            turns: Turns::default(),
        })
    }

    /// Lets clients in.
    pub(crate) fn listen(&self, places: &[Listen]) -> Result<()> {
        places.iter().try_for_each(|place| self.doors.open(place))
    }

    /// Where clients are let in.
    pub(crate) fn places(&self) -> Vec<Listen> {
        self.doors.places()
    }

    /// What is open, and where it is found.
    pub(crate) fn open_volumes(&self) -> Vec<Found> {
        let found = |open: Arc<Open>| Found {
            name: open.info.name.clone(),
            bytes: open.volume.info().bytes,
            device: self.disks.shown(&open.info.name).map(|disk| disk.device),
            uris: self.doors.uris(&open.info.name),
        };
        self.volumes.all().into_iter().map(found).collect()
    }

    pub(crate) async fn list(&self) -> Result<Vec<Volume>> {
        let infos = self.host.list_volumes().await.map_err(Failure::from)?;
        Ok(infos.iter().map(|info| self.describe(info)).collect())
    }

    pub(crate) async fn show(&self, name: &str) -> Result<Volume> {
        // What is open is known without the store: watermarks matter most in an outage, and
        // looking costs no request.
        if let Some(open) = self.volumes.get(name) {
            return Ok(self.describe(&open.volume.info()));
        }
        let info = self.host.show_volume(name).await.map_err(Failure::from)?;
        Ok(self.describe(&info))
    }

    pub(crate) async fn create(&self, wanted: CreateVolume) -> Result<Volume> {
        let CreateVolume {
            name,
            size_bytes,
            block_size,
        } = wanted;
        let spec = VolumeSpec {
            name,
            bytes: size_bytes,
            block: block_size,
        };
        let info = self.host.create_volume(spec).await.map_err(Failure::from)?;
        Ok(self.describe(&info))
    }

    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        let _turn = self.turns.take(name).await;
        if let Some(open) = self.volumes.get(name) {
            self.no_disk(name)?;
            self.no_connections(name)?;
            if let Err(failure) = self.close(&open).await {
                self.put_back(&open);
                return Err(failure);
            }
        }
        self.host.delete_volume(name).await.map_err(Failure::from)?;
        self.disks.attached.forget(name)
    }

    pub(crate) async fn sync(&self, name: &str) -> Result<Volume> {
        if let Some(open) = self.volumes.get(name) {
            self.host.sync(&open.volume).await.map_err(Failure::from)?;
        }
        // A volume that is not open here has nothing here that the store lacks.
        self.show(name).await
    }

    pub(crate) fn ready(&self) -> Result<()> {
        if self.host.usage().poisoned {
            return Err(Failure::from(OpenError::Poisoned));
        }
        Ok(())
    }

    /// Opens what the command line names (creating what is missing), what was attached before,
    /// and what a dead server left in the log. Answers what the store did not give, and may yet.
    pub(crate) async fn open_initial(
        &self,
        wanted: &[NewVolume],
        report: &RecoveryReport,
    ) -> Result<Vec<String>> {
        let opened = wanted.iter().map(|volume| async move {
            self.make_sure_of(volume).await?;
            self.open(&volume.name).await.map(drop)
        });
        for opened in join_all(opened).await {
            opened?;
        }
        let mut names: BTreeSet<String> = self.disks.attached.all().into_keys().collect();
        for (name, _, rescue) in &report.tails {
            if !rescue {
                names.insert(name.clone());
            }
        }
        names.retain(|name| self.volumes.get(name).is_none());
        let late = join_all(names.into_iter().map(|name| async move {
            let failure = self.open(&name).await.err()?;
            // Others may be fine, and what this one has in the log stays there.
            tracing::error!(volume = %name, %failure, "not opened again");
            failure.code.is_transient().then_some(name)
        }))
        .await;
        let late: Vec<String> = late.into_iter().flatten().collect();
        // Also what is still to be opened: who detaches it meanwhile takes it out again.
        let open = self.volumes.all();
        tracing::info!(volumes = open.len(), late = late.len(), "volumes are open");
        let mut names = open.iter().map(|open| &open.info.name).chain(&late);
        names.try_for_each(|name| self.disks.attached.add(name))?;
        // Side by side: each waits for the driver, and mounted file systems wait for all of them.
        let restored =
            stream::iter(&open).for_each_concurrent(RESTORED_AT_ONCE, |open| async move {
                if let Err(failure) = self.disks.restore(open).await {
                    tracing::error!(
                        volume = %open.info.name, %failure,
                        "its disk is not back; attach it again once that is mended"
                    );
                }
            });
        restored.await;
        Ok(late)
    }

    async fn make_sure_of(&self, wanted: &NewVolume) -> Result<()> {
        let name = wanted.name.clone();
        let found = match self.host.show_volume(&name).await {
            Err(OpenError::NoSuchVolume(_)) => {
                let spec = VolumeSpec {
                    name,
                    bytes: wanted.size.0,
                    block: 512,
                };
                return self
                    .host
                    .create_volume(spec)
                    .await
                    .map(drop)
                    .map_err(Failure::from);
            }
            found => found.map_err(Failure::from)?,
        };
        if found.bytes == wanted.size.0 {
            return Ok(());
        }
        Err(Failure::invalid(format!(
            "volume {name} exists and has {}, --volume says {}; name its real size",
            Size(found.bytes),
            wanted.size
        )))
    }

    pub(crate) async fn open(&self, name: &str) -> Result<Arc<Open>> {
        let volume = self
            .host
            .open_volume(name, OpenMode::default())
            .await
            .map_err(Failure::from)?;
        Ok(self.export(volume))
    }

    /// Lets clients find an open volume. From the engine's opening to here nothing may fail: a
    /// volume that is open and not found could be neither used nor opened again.
    fn export(&self, volume: volume::Volume) -> Arc<Open> {
        let info = volume.info();
        let export = Arc::new(Export {
            name: info.name.clone(),
            description: format!("firn volume, {}", Size(info.bytes)),
            backend: Arc::new(volume.clone()),
            device: Device::new(&info.name, DeviceOptions::default()),
            files: self.export_files.clone(),
        });
        let open = Arc::new(Open {
            volume,
            info,
            export,
        });
        self.volumes.insert(Arc::clone(&open));
        open
    }

    /// A volume that could not be closed and still serves is found again.
    pub(crate) fn put_back(&self, open: &Open) {
        if open.volume.serving().is_ok() {
            self.export(open.volume.clone());
        }
    }

    /// Takes a volume from its clients, brings it to the store and gives it back.
    pub(crate) async fn close(&self, open: &Open) -> Result<()> {
        self.volumes.remove(&open.info.name);
        self.doors.detach(&open.export).await;
        let mut pause = CLOSE_PAUSE;
        for _ in 1..CLOSE_TRIES {
            match self.host.close_volume(&open.volume).await {
                // Everything is in the store but the last word: that this host has let go.
                // Unsaid, the next host would be asked to declare a loss that is none.
                Err(OpenError::Store(reason)) => {
                    tracing::warn!(volume = %open.info.name, %reason, "closed again in a moment");
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                closed => return closed.map_err(Failure::from),
            }
        }
        self.host
            .close_volume(&open.volume)
            .await
            .map_err(Failure::from)
    }

    /// Closes everything. A volume that cannot be brought to the store stays in the log. One
    /// that is a disk is not given back: whoever has it mounted waits for the next server here.
    pub(crate) async fn close_all(&self) -> Result<()> {
        self.doors.shut().await;
        let open = self.volumes.all();
        let closed = open.iter().map(|open| async move {
            let _turn = self.turns.take(&open.info.name).await;
            if self.disks.get(&open.info.name).is_some() {
                self.bring_up_to_date(open).await;
                return Ok(());
            }
            self.close_patiently(open).await.inspect_err(|failure| {
                tracing::error!(
                    volume = %open.info.name, %failure,
                    "not brought to the store; what is missing there stays in the log"
                );
            })
        });
        join_all(closed).await.into_iter().collect()
    }

    /// Brings what can be brought to the store in a short time: the disk is still served, and
    /// what is left stays in the log for the next server.
    async fn bring_up_to_date(&self, open: &Open) {
        let synced = tokio::time::timeout(LAST_SYNC, self.host.sync(&open.volume)).await;
        if !matches!(synced, Ok(Ok(_))) {
            tracing::warn!(
                volume = %open.info.name,
                "its newest writes are in the log alone until a server runs here again"
            );
        }
    }

    /// Closes, and says now and then why that takes so long.
    async fn close_patiently(&self, open: &Open) -> Result<()> {
        let mut closing = std::pin::pin!(self.close(open));
        loop {
            if let Ok(closed) = tokio::time::timeout(PATIENCE, &mut closing).await {
                return closed;
            }
            let (stored, newest) = (open.volume.watermarks().stored.lsn, open.volume.newest());
            tracing::warn!(
                volume = %open.info.name,
                stored = stored.0,
                newest = newest.0,
                reason = open.volume.upload_error().as_deref().unwrap_or("none"),
                "still bringing the volume to the store; stop again to leave the rest in the log"
            );
        }
    }

    fn describe(&self, info: &VolumeInfo) -> Volume {
        let open = self
            .volumes
            .get(&info.name)
            .filter(|open| open.info.id == info.id);
        let mine = self.host.id();
        let holder = info.owner.as_ref().filter(|(host, _)| Some(*host) != mine);
        let state = match &open {
            Some(open) if open.volume.serving() == Err(ErrorKind::Fenced) => State::Fenced,
            Some(_) if self.host.usage().poisoned => State::Poisoned,
            Some(_) => State::Open,
            None if holder.is_some() => State::Held,
            None => State::Closed,
        };
        Volume {
            name: info.name.clone(),
            id: info.id.to_string(),
            size_bytes: info.bytes,
            block_size: info.block,
            state,
            epoch: info.epoch.0,
            holder: holder.map(|(_, label)| label.clone()),
            watermarks: open.as_ref().map(|open| open.watermarks()),
            nbd: open.as_ref().map(|_| Nbd {
                uris: self.doors.uris(&info.name),
                connections: self.doors.clients(&info.name),
            }),
            disk: open.as_ref().and_then(|_| self.disks.shown(&info.name)),
            upload_error: open.and_then(|open| open.volume.upload_error()),
        }
    }
}
