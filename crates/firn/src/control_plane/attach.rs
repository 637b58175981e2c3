//! The operations of [`ControlPlane`] that concern frontends: attach, detach and resize.
//!
//! Each operation does what it says, or fails and undoes what it had begun.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use volume::OpenMode;

use crate::control_plane::ControlPlane;
use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::disks::probe;
use crate::frontends::open_volumes::OpenVolume;
use crate::model::{AttachRequest, Attachment, DetachRequest, TakeOverLoss, Transport, Volume};

fn open_mode(request: &AttachRequest) -> OpenMode {
    OpenMode {
        take_over: request.take_over,
        ..OpenMode::default()
    }
}

/// Whether it is the name of a snapshot, `VOLUME@SNAPSHOT`, and not of a volume.
pub(super) fn is_snapshot(name: &str) -> bool {
    name.contains('@')
}

/// Refuses to change a snapshot as volumes are changed.
pub(super) fn refuse_snapshot(name: &str) -> Result<()> {
    match is_snapshot(name) {
        false => Ok(()),
        true => Err(Failure::invalid(format!(
            "{name} is a snapshot, which never changes: make a volume of it with `firn fork {name} NEW`, or delete \
             it with `firn snapshot delete {name}`"
        ))),
    }
}

/// A snapshot is nobody's to take over, and its disk takes no writes.
fn request_for_snapshot(
    name: &str,
    request: AttachRequest,
    transport: Transport,
) -> Result<AttachRequest> {
    if request.take_over {
        return Err(Failure::invalid(format!(
            "{name} is a snapshot, which any number of hosts may have attached: leave --take-over out"
        )));
    }
    Ok(AttachRequest {
        read_only: transport == Transport::Ublk,
        ..request
    })
}

/// The failure to detach what was attached with a number.
fn not_by_ticket(name: &str, is_attached: bool) -> Failure {
    match is_attached {
        true => Failure::new(
            FailureCode::VolumeInUse,
            format!(
                "{name} was attached by somebody else, too, or this server was started since: it stays attached;                  `firn detach {name}` detaches it for everybody"
            ),
        ),
        false => Failure::new(
            FailureCode::NotAttached,
            format!("{name} is not attached here; there is nothing to detach"),
        ),
    }
}

impl ControlPlane {
    /// Opens the volume if it is not open, and attaches it by the transport that the request
    /// chooses. A volume that is attached like that already stays as it is.
    pub(crate) async fn attach(&self, name: &str, request: AttachRequest) -> Result<Attachment> {
        request.validate()?;
        let _lock = self.volume_locks.lock(name).await;
        let transport = probe::choose_transport(&request, &self.disks.factory().await)?;
        let request = match is_snapshot(name) {
            true => request_for_snapshot(name, request, transport)?,
            false => request,
        };
        // One that waits to be opened was attached by somebody before.
        let is_new = self.volumes.get(name).is_none() && self.waiting.get(name).is_none();
        let ticket = request.ticket;
        let request = AttachRequest {
            ticket: None,
            ..request
        };
        let given_up = match request.take_over && self.volumes.get(name).is_none() {
            true => self.find_loss(name).await?,
            false => None,
        };
        if canary::active!("an_attach_that_fails_counts") {
            self.starts.take_back(name);
        }
        let attached = match transport {
            Transport::Ublk => self.attach_disk(name, &request).await?,
            Transport::Nbd => self.attach_nbd(name, &request).await?,
        };
        if let Some(open) = self.volumes.get(name) {
            open.note_attach(ticket, is_new);
        }
        // Not before: an attach that ends the server says that it is still so.
        self.starts.take_back(name);
        if let Some(loss) = &given_up {
            tracing::warn!(
                volume = name, owner = %loss.owner, stored_lsn = loss.stored_lsn,
                "the volume was taken over; what its last owner had not uploaded is given up"
            );
        }
        Ok(Attachment {
            given_up,
            ..attached
        })
    }

    /// What taking this volume over gives up, if another host has it: all that its owner had not
    /// uploaded, which only that host knows.
    async fn find_loss(&self, name: &str) -> Result<Option<TakeOverLoss>> {
        let info = self.host.show_volume(name).await.map_err(Failure::from)?;
        let this_host = self.host.id();
        let owner = info.owner.filter(|owner| Some(owner.host) != this_host);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let age = now
            .unwrap_or_default()
            .saturating_sub(Duration::from_millis(info.unix_ms));
        Ok(owner.map(|owner| TakeOverLoss {
            owner: owner.label,
            owner_host: owner.host.to_string(),
            stored_lsn: info.stored.0,
            stored_age_seconds: age.as_secs_f64(),
            last_seen_unix_ms: info.unix_ms,
        }))
    }

    async fn attach_disk(&self, name: &str, request: &AttachRequest) -> Result<Attachment> {
        let before = self.volumes.get(name);
        let opened = before.is_none();
        let open = match before {
            Some(open) => open,
            None => self.open_recorded(name, request).await?,
        };
        match self.disks.attach(&open, request).await {
            Ok(disk) => {
                let uris = self.nbd.uris(name);
                Ok(Attachment {
                    transport: Transport::Ublk,
                    device: Some(disk.path().display().to_string()),
                    uri: uris.first().cloned(),
                    uris,
                    given_up: None,
                })
            }
            Err(failure) => {
                if opened {
                    self.undo_open(&open).await;
                }
                Err(failure)
            }
        }
    }

    /// Opens a volume that the next server is to serve again. It is recorded first: a disk that has
    /// no room for the record refuses the attach before anything has changed, and after a crash in
    /// between the next server completes it.
    async fn open_recorded(&self, name: &str, request: &AttachRequest) -> Result<Arc<OpenVolume>> {
        match is_snapshot(name) {
            true => volume::check_snapshot_name(name).map(drop),
            false => volume::check_name(name),
        }
        .map_err(Failure::from)?;
        let recorded = self.disks.attached.all().contains_key(name);
        self.disks.attached.add(name)?;
        let opened = self.open(name, open_mode(request)).await;
        if opened.is_err()
            && !recorded
            && let Err(failure) = self.disks.attached.remove(name)
        {
            tracing::warn!(volume = name, %failure, "the next server will try to serve this volume");
        }
        opened
    }

    /// Closes a volume that was opened for an operation which failed; the caller reports why.
    async fn undo_open(&self, open: &Arc<OpenVolume>) {
        let name = &open.info.name;
        let closed = match self.close(open).await {
            Ok(()) => self.disks.attached.remove(name),
            Err(failure) => {
                self.restore_export(open);
                Err(failure)
            }
        };
        if let Err(failure) = closed {
            tracing::warn!(volume = %name, %failure, "the volume was opened for a failed operation and cannot be closed");
        }
    }

    async fn attach_nbd(&self, name: &str, request: &AttachRequest) -> Result<Attachment> {
        let uris = self.nbd.uris(name);
        if uris.is_empty() {
            return Err(Failure::new(
                FailureCode::NoTransport,
                "the server has no NBD listener; start it with --nbd",
            ));
        }
        if self.volumes.get(name).is_none() {
            self.open_recorded(name, request).await?;
        }
        Ok(Attachment {
            transport: Transport::Nbd,
            device: None,
            uri: uris.first().cloned(),
            uris,
            given_up: None,
        })
    }

    /// Removes a volume's disk, disconnects its clients, uploads it and gives up its ownership.
    /// Unless `force` is set, only if nobody uses it.
    pub(crate) async fn detach(&self, name: &str, request: DetachRequest) -> Result<()> {
        let DetachRequest {
            force,
            awaited,
            ticket,
        } = request;
        let _lock = self.volume_locks.lock(name).await;
        let open = self.volumes.get(name);
        if let Some(ticket) = ticket
            && open.as_ref().is_none_or(|open| !open.has_ticket(ticket))
        {
            return Err(not_by_ticket(name, open.is_some()));
        }
        let Some(open) = open else {
            return self.cancel_reopen(name, force).await;
        };
        if !force {
            self.check_no_connections(name)?;
        }
        self.disks.detach(name, force).await?;
        let closed = match awaited {
            true => self.close_awaited(&open).await,
            false => self.close(&open).await,
        };
        match closed {
            Ok(()) => {}
            // Another host has it: it is released here, and what only this host has stays in the log.
            Err(failure) if failure.code == FailureCode::VolumeFenced => {
                self.latencies.close(name);
            }
            Err(failure) => {
                self.restore_export(&open);
                return Err(failure);
            }
        }
        self.disks.attached.remove(name)
    }

    /// Stops retrying to open a volume that the store has not given yet ([`super::opening`]). Its data
    /// on this host stays in the log: the next attach or the next server opens it and uploads that.
    async fn cancel_reopen(&self, name: &str, force: bool) -> Result<()> {
        let waits = self.waiting.get(name).is_some();
        let disk = self.disks.attached.all().remove(name);
        let Some(disk) = disk.or(waits.then_some(None)) else {
            // A volume that does not exist is another failure.
            if !is_snapshot(name) {
                self.host.show_volume(name).await.map_err(Failure::from)?;
            }
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
                     `firn detach --force {name}` removes the disk and fails the requests that wait"
                ),
            ));
        }
        self.disks.detach(name, force).await?;
        self.waiting.remove(name);
        self.disks.attached.remove(name)
    }

    /// Grows a volume, and its disk with it. NBD clients see the new size when they reconnect.
    pub(crate) async fn resize(&self, name: &str, bytes: u64) -> Result<Volume> {
        let _lock = self.volume_locks.lock(name).await;
        refuse_snapshot(name)?;
        let Some(open) = self.volumes.get(name) else {
            let open = self.open(name, OpenMode::default()).await?;
            let grown = self.host.grow_volume(&open.volume, bytes).await;
            self.undo_open(&open).await;
            grown.map_err(Failure::from)?;
            return self.show(name).await;
        };
        let disk = self.disks.get(name);
        if let Some(disk) = disk.as_ref().filter(|disk| !disk.can_resize()) {
            return Err(Failure::new(
                FailureCode::UblkUnsupported,
                format!(
                    "disk {} cannot be resized while it is attached: that needs Linux 6.16; \
                     detach it, resize the volume, and attach it again",
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
}
