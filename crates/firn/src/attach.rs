//! Attaching and detaching: a volume gets a place where clients find it, and is let go again.
//!
//! The rest of [`Control`], for what concerns both doors and disks. Each operation does what it
//! says, or says why not and leaves things as they were.

use crate::control::Control;
use crate::disks::machine;
use crate::failure::{Failure, Result};
use crate::model::{AttachRequest, Attachment, Transport};

impl Control {
    /// Opens the volume if it is not open, and gives it the place that was asked for. What is
    /// there already is answered again.
    pub(crate) async fn attach(&self, name: &str, request: AttachRequest) -> Result<Attachment> {
        request.check()?;
        let _turn = self.turns.take(name).await;
        machine::choose(&request, &self.disks.offered)?;
        self.attach_nbd(name).await
    }

    async fn attach_nbd(&self, name: &str) -> Result<Attachment> {
        let uris = self.doors.uris(name);
        if uris.is_empty() {
            return Err(Failure::new(
                "no-transport",
                500,
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
            // A volume that does not exist at all is told apart.
            self.host.show_volume(name).await.map_err(Failure::from)?;
            return Err(Failure::new(
                "not-attached",
                409,
                format!("volume {name} is not attached here; there is nothing to detach"),
            ));
        };
        if !force {
            self.no_connections(name)?;
        }
        if let Err(failure) = self.close(&open).await {
            self.put_back(&open);
            return Err(failure);
        }
        self.disks.attached.forget(name)
    }

    /// Fails if NBD clients use the volume.
    pub(crate) fn no_connections(&self, name: &str) -> Result<()> {
        match self.doors.clients(name) {
            0 => Ok(()),
            clients => Err(Failure::new(
                "volume-in-use",
                409,
                format!("volume {name} is used by {clients} connections; disconnect them first"),
            )),
        }
    }
}
