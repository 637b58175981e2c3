//! Another name for a volume.
//!
//! The engine renames what nobody has open; this file refuses what this server has attached under the old name, also if it
//! waits to be opened: it would be looked for under a name that it has no more.

use crate::control_plane::{ControlPlane, attach};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{RenameRequest, Volume};

impl ControlPlane {
    /// Gives a volume another name, with its snapshots, or goes on where that was cut short.
    pub(crate) async fn rename(&self, name: &str, request: RenameRequest) -> Result<Volume> {
        attach::refuse_snapshot(name)?;
        let new = &request.name;
        // Each caller in the same order. The same name twice is refused by the engine.
        let (first, second) = match name < new.as_str() {
            true => (name, new.as_str()),
            false => (new.as_str(), name),
        };
        let _first = self.volume_locks.lock(first).await;
        let _second = match first == second {
            true => None,
            false => Some(self.volume_locks.lock(second).await),
        };
        self.check_not_attached(name)?;
        let renamed = self.host.rename_volume(name, new).await;
        let renamed = renamed.map_err(Failure::from)?;
        self.starts.take_back(name);
        Ok(self.describe(&renamed))
    }

    /// Refuses a volume that is attached here, or that has an attached snapshot.
    fn check_not_attached(&self, name: &str) -> Result<()> {
        let is_its = |other: &str| {
            let snapshot = other.strip_prefix(name);
            other == name || snapshot.is_some_and(|snapshot| snapshot.starts_with('@'))
        };
        let recorded = self.disks.attached.all().into_keys();
        let waiting = self.waiting.all().into_keys();
        let mut attached = recorded.chain(waiting);
        match attached.find(|other| is_its(other)) {
            None => Ok(()),
            Some(other) => Err(Failure::new(
                FailureCode::VolumeInUse,
                format!(
                    "{other} is attached here, and a volume is renamed while nobody has it open: `firn detach {other}` first"
                ),
            )),
        }
    }
}
