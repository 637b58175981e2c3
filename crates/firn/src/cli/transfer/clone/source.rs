//! What is copied: the snapshots of a volume in the order of its history, and one more of its present state.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::cli::client::{Client, volume_path};
use crate::cli::similar_name;
use crate::cli::transfer::increment::points::{COPY_OF, list, split};
use crate::failure::{Failure, Result};
use crate::model::{CreateSnapshot, Diff, Snapshot, SnapshotWait, Volume};

/// The snapshot that a copy has until it is whole.
pub(super) const MARK: &str = "unfinished-clone";
/// The label of a snapshot that was taken for a copy: the copy's name.
const CLONED_TO: &str = "cloned-to";
/// Labels of a snapshot; one more is set on its copy.
const LABELS_MAX: usize = 64;

/// The volume that is copied.
pub(super) struct Original<'a> {
    client: &'a Client,
    pub(super) volume: Volume,
}

impl<'a> Original<'a> {
    pub(super) fn find(client: &'a Client, name: &str) -> Result<Original<'a>> {
        let volume: Volume = client
            .get(&volume_path(name))
            .map_err(|failure| similar_name::suggest(client, name, failure))?;
        let snapshots = list(client, name, |one| {
            split(&one.name).1 == MARK || !has_room_for_a_label(one)
        })?;
        match snapshots.first() {
            None => Ok(Original { client, volume }),
            Some(found) if has_room_for_a_label(found) => Err(Failure::invalid(format!(
                "{name} is a copy that is not whole: {} says so; run the `firn clone` again that makes it",
                found.name
            ))),
            Some(found) => Err(Failure::invalid(format!(
                "{} has {LABELS_MAX} labels, and its copy takes one more",
                found.name
            ))),
        }
    }

    /// Takes a snapshot of what the volume holds now; it is the last one that is copied, and stays: from it increments go
    /// on to the copy.
    pub(super) fn take_moment(&self, copy: &str) -> Result<Snapshot> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let asked = CreateSnapshot {
            name: format!("clone-{}", now.map_or(0, |now| now.as_millis())),
            labels: [(CLONED_TO.to_owned(), copy.to_owned())].into(),
            wait: SnapshotWait::Store,
            copied_unix_ms: None,
        };
        let path = format!("{}/snapshots", volume_path(&self.volume.name));
        self.client.post(&path, &asked)
    }

    /// The same snapshot for a command that goes on; another one if that was deleted.
    pub(super) fn moment_again(&self, id: &str, copy: &str) -> Result<Snapshot> {
        let found = list(self.client, &self.volume.name, |one| one.id == id)?.pop();
        found.map_or_else(|| self.take_moment(copy), Ok)
    }

    /// What is copied, in order; the last is `moment`.
    pub(super) fn snapshots(&self, moment: &Snapshot) -> Result<Vec<Snapshot>> {
        let name = &self.volume.name;
        let place = |one: &Snapshot| (one.lsn, one.taken_unix_ms, one.name.clone());
        let mut found = list(self.client, name, |one| {
            one.id != moment.id && place(one) < place(moment)
        })?;
        found.sort_by_key(place);
        let mut kept = Vec::with_capacity(found.len() + 1);
        for one in found {
            match self.is_history(&one, moment)? {
                true => kept.push(one),
                false => eprintln!(
                    "firn: {} is of an earlier volume of this name, and is not copied",
                    one.name
                ),
            }
        }
        kept.push(moment.clone());
        Ok(kept)
    }

    /// Whether it is a point of this volume's history: the name may have been another's.
    fn is_history(&self, one: &Snapshot, moment: &Snapshot) -> Result<bool> {
        if one.volume_id.as_ref() == Some(&self.volume.id) {
            return Ok(true);
        }
        let path = volume_path(&moment.name);
        let asked = format!("{path}/diff?from={}&limit=1", one.name);
        match self.client.get::<Diff>(&asked) {
            Ok(_) => Ok(true),
            Err(failure) if failure.code == crate::failure::FailureCode::Invalid => Ok(false),
            Err(failure) => Err(failure),
        }
    }
}

fn has_room_for_a_label(one: &Snapshot) -> bool {
    one.labels.len() < LABELS_MAX || one.labels.contains_key(COPY_OF)
}
