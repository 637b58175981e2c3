//! Attaching, detaching and resizing: what changes for those who use a volume.
//!
//! The rest of [`Control`], for what concerns both doors and disks. Each operation does what it
//! says, or says why not and leaves things as they were.

use std::sync::Arc;

use crate::control_plane::Control;
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::disks::probe;
use crate::frontends::open_volumes::Open;
use crate::model::{AttachRequest, Attachment, Transport, Volume};

impl Control {
    /// Opens the volume if it is not open, and gives it the place that was asked for. What is
    /// there already is answered again.
    pub(crate) async fn attach(&self, name: &str, request: AttachRequest) -> Result<Attachment> {
        request.check()?;
        let _turn = self.turns.take(name).await;
        match probe::choose_transport(&request, &self.disks.maker().await)? {
            Transport::Ublk => self.attach_disk(name, &request).await,
            Transport::Nbd => self.attach_nbd(name).await,
        }
    }

    async fn attach_disk(&self, name: &str, request: &AttachRequest) -> Result<Attachment> {
        let before = self.volumes.get(name);
        let opened = before.is_none();
        let open = match before {
            Some(open) => open,
            None => self.open(name).await?,
        };
        let attached = match self.disks.attached.add(name) {
            Ok(()) => self.disks.attach(&open, request).await,
            Err(failure) => Err(failure),
        };
        match attached {
            Ok(disk) => {
                let uris = self.doors.uris(name);
                Ok(Attachment {
                    transport: Transport::Ublk,
                    device: Some(disk.path().display().to_string()),
                    uri: uris.first().cloned(),
                    uris,
                })
            }
            Err(failure) => {
                if opened {
                    self.let_go(&open).await;
                }
                Err(failure)
            }
        }
    }

    /// Undoes an opening that came to nothing. The first failure is the one that is told.
    async fn let_go(&self, open: &Arc<Open>) {
        let name = &open.info.name;
        let closed = match self.close(open).await {
            Ok(()) => self.disks.attached.forget(name),
            Err(failure) => {
                self.put_back(open);
                Err(failure)
            }
        };
        if let Err(failure) = closed {
            tracing::warn!(volume = %name, %failure, "opened, and not let go again");
        }
    }

    async fn attach_nbd(&self, name: &str) -> Result<Attachment> {
        let uris = self.doors.uris(name);
        if uris.is_empty() {
            return Err(Failure::new(
                FailureCode::NoTransport,
                "the server listens nowhere; start it with --nbd",
            ));
        }
        if self.volumes.get(name).is_none() {
            self.open(name).await?;
            self.disks.attached.add(name)?;
        }
        Ok(Attachment {
            transport: Transport::Nbd,
            device: None,
            uri: uris.first().cloned(),
            uris,
        })
    }

    /// Takes a volume's disk away, ends its connections, and gives it back to the store. Unless
    /// `force`, only if nobody uses it.
    pub(crate) async fn detach(&self, name: &str, force: bool) -> Result<()> {
        let _turn = self.turns.take(name).await;
        let Some(open) = self.volumes.get(name) else {
            return self.give_up(name, force).await;
        };
        if !force {
            self.no_connections(name)?;
        }
        self.disks.detach(name, force).await?;
        if let Err(failure) = self.close(&open).await {
            self.put_back(&open);
            return Err(failure);
        }
        self.disks.attached.forget(name)
    }

    /// Tries no more to open a volume that the store has not given yet ([`super::reopen`]). What this
    /// host has of it stays in the log: it is opened again when it is attached, or with the next
    /// server, which brings what the store lacks there.
    async fn give_up(&self, name: &str, force: bool) -> Result<()> {
        let Some(disk) = self.disks.attached.all().remove(name) else {
            // A volume that does not exist at all is told apart.
            self.host.show_volume(name).await.map_err(Failure::from)?;
            return Err(Failure::new(
                FailureCode::NotAttached,
                format!("volume {name} is not attached here; there is nothing to detach"),
            ));
        };
        if disk.is_some() && !force {
            return Err(Failure::new(
                FailureCode::NotOpenYet,
                format!(
                    "volume {name} could not be opened yet, and its disk waits for it; \
                     `firn detach --force {name}` takes the disk away and fails what waits there"
                ),
            ));
        }
        self.disks.detach(name, force).await?;
        self.disks.attached.forget(name)
    }

    /// Makes a volume larger, and its disk with it. NBD clients see the new size when they connect
    /// anew.
    pub(crate) async fn resize(&self, name: &str, bytes: u64) -> Result<Volume> {
        let _turn = self.turns.take(name).await;
        let Some(open) = self.volumes.get(name) else {
            let open = self.open(name).await?;
            let grown = self.host.grow_volume(&open.volume, bytes).await;
            self.let_go(&open).await;
            grown.map_err(Failure::from)?;
            return self.show(name).await;
        };
        let disk = self.disks.get(name);
        if let Some(disk) = disk.as_ref().filter(|disk| !disk.can_grow()) {
            return Err(Failure::new(
                FailureCode::UblkUnsupported,
                format!(
                    "disk {} cannot change its size while it is there: this needs Linux 6.16; \
                     detach it, resize, and attach it again",
                    disk.path().display()
                ),
            ));
        }
        let grown = self.host.grow_volume(&open.volume, bytes).await;
        grown.map_err(Failure::from)?;
        if let Some(disk) = disk {
            self.disks.resize(disk, bytes).await?;
        }
        self.show(name).await
    }

    /// Fails if the volume is a disk here.
    pub(crate) fn no_disk(&self, name: &str) -> Result<()> {
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

    /// Fails if NBD clients use the volume.
    pub(crate) fn no_connections(&self, name: &str) -> Result<()> {
        match self.doors.clients(name) {
            0 => Ok(()),
            clients => Err(Failure::new(
                FailureCode::VolumeInUse,
                format!("volume {name} is used by {clients} connections; disconnect them first"),
            )),
        }
    }
}
