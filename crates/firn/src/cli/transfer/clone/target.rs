//! The copy in the other store: what it is made by, and where a command that was cut short goes on.
//!
//! As long as the copy is not whole it has a snapshot [`MARK`], of nothing, that says of which volume it is. Nothing is
//! changed of a volume without it.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::attach;
use super::content::{Changes, count_data};
use super::progress_note::{NoteContent, ProgressNote};
use super::source::{MARK, Original};
use crate::cli::client::{Client, volume_path};
use crate::cli::diff;
use crate::cli::transfer::increment::points::{COPY_OF, KEPT_PREFIX, identity, list, split};
use crate::cli::volume_io::detach;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{
    AttachRequest, Attachment, CreateSnapshot, CreateVolume, ResizeRequest, Restored, Snapshot,
    SnapshotWait, TransportChoice, Volume, VolumeState,
};

/// Labels of its mark: the volume that is copied, and the snapshot that was taken of it for that.
const OF: &str = "clone-of";
const MOMENT: &str = "clone-moment";
/// Labels that the server gives by itself, and what stands for them on a copy. A schedule there must not take what another
/// one took for its own and remove it, and the members of a group are not there.
const RENAMED: [(&str, &str); 2] = [("schedule", "copied-schedule"), ("group", "copied-group")];

/// The volume that becomes a copy.
pub(super) struct Copy<'a> {
    client: &'a Client,
    name: String,
    /// The identity of the snapshot that is copied last.
    pub(super) moment: String,
}

/// What there is of a name in the other store.
pub(super) enum ExistingCopy<'a> {
    Nothing,
    Unfinished(Copy<'a>),
    /// Its command was cut short behind its last step.
    Whole(Copy<'a>),
}

impl<'a> Copy<'a> {
    /// What an earlier command made; anything else that has the name is a failure.
    pub(super) fn find(
        client: &'a Client,
        name: &str,
        original: &Original<'_>,
        note: &ProgressNote,
    ) -> Result<ExistingCopy<'a>> {
        let volume = match client.get::<Volume>(&volume_path(name)) {
            Ok(volume) => volume,
            Err(failure) if failure.code == FailureCode::NoSuchVolume => {
                return Ok(ExistingCopy::Nothing);
            }
            Err(failure) => return Err(failure),
        };
        let copy = |moment: String| Copy {
            client,
            name: name.to_owned(),
            moment,
        };
        let snapshots = list(client, name, |_| true)?;
        let mark = snapshots.iter().find(|one| split(&one.name).1 == MARK);
        let labels = mark.map(|mark| mark.labels.clone()).unwrap_or_default();
        match (labels.get(OF), labels.get(MOMENT), note.read()) {
            (Some(of), Some(moment), _) if *of == original.volume.id => {
                Ok(ExistingCopy::Unfinished(copy(moment.clone())))
            }
            (Some(_), _, _) => Err(exists(format!(
                "{name} is in that store already, an unfinished copy of another volume: choose another name with --name"
            ))),
            (_, _, Some(noted)) if noted.whole.as_ref() == Some(&volume.id) => {
                Ok(ExistingCopy::Whole(copy(noted.moment)))
            }
            // A command that was killed right after it had made the volume. Whoever has another one of this name open, or
            // made it otherwise, keeps it.
            (_, _, Some(noted))
                if noted.whole.is_none()
                    && snapshots.is_empty()
                    && volume.state != VolumeState::Held
                    && volume.size_bytes == noted.size_bytes
                    && volume.block_size == original.volume.block_size =>
            {
                let copy = copy(noted.moment);
                match copy.is_empty()? {
                    true => copy.mark(original).map(|()| ExistingCopy::Unfinished(copy)),
                    false => Err(in_use(name)),
                }
            }
            _ => Err(in_use(name)),
        }
    }

    /// Whether nothing was ever written to it. Never takes it from anybody: it may be another's.
    fn is_empty(&self) -> Result<bool> {
        Ok(count_data(Changes::all(&self.attach()?)?)? == 0)
    }

    /// Says that it is not whole, while it is empty.
    fn mark(&self, original: &Original<'_>) -> Result<()> {
        let labels = [
            (OF.to_owned(), original.volume.id.clone()),
            (MOMENT.to_owned(), self.moment.clone()),
        ];
        self.post_snapshot(MARK, labels.into(), None)
    }

    pub(super) fn create(
        client: &'a Client,
        name: &str,
        (original, first): (&Original<'_>, &Snapshot),
        moment: &Snapshot,
    ) -> Result<Copy<'a>> {
        let asked = CreateVolume {
            name: name.to_owned(),
            size_bytes: first.size_bytes,
            block_size: original.volume.block_size,
        };
        let _: Volume = client.post("/v1/volumes", &asked)?;
        let copy = Copy {
            client,
            name: name.to_owned(),
            moment: moment.id.clone(),
        };
        copy.mark(original)?;
        Ok(copy)
    }

    /// What the copy of a snapshot is called.
    pub(super) fn name_of(&self, snapshot: &Snapshot) -> String {
        format!("{}@{}", self.name, split(&snapshot.name).1)
    }

    fn snapshot_path(&self, snapshot: &str) -> String {
        format!("{}/snapshots/{snapshot}", volume_path(&self.name))
    }

    /// Whether this snapshot has its copy, or another one has its name.
    pub(super) fn has(&self, there: &[Snapshot], snapshot: &Snapshot) -> bool {
        let is_copy = |one: &&Snapshot| one.name == self.name_of(snapshot);
        let found = there.iter().find(is_copy);
        found.is_some_and(|found| match (identity(found), identity(snapshot)) {
            (Ok(found), Ok(original)) => found == original,
            _ => false,
        })
    }

    /// Whether it is the copy of the snapshot that is copied last.
    pub(super) fn is_of_moment(&self, one: &Snapshot) -> bool {
        one.labels.get(COPY_OF) == Some(&self.moment)
    }

    /// Removes the copies of snapshots that were deleted since, or deleted and taken again under their names: nobody would
    /// look at them again. Whatever is no copy is somebody's.
    pub(super) fn remove_leftovers(&self, originals: &[Snapshot]) -> Result<()> {
        let there = self.list()?;
        let of = originals.first().map_or("", |one| split(&one.name).0);
        let has_original = |one: &Snapshot| {
            let one = std::slice::from_ref(one);
            originals.iter().any(|original| self.has(one, original))
        };
        for one in &there {
            if one.labels.contains_key(COPY_OF) && !has_original(one) {
                eprintln!(
                    "firn: {} is a copy of a snapshot that {of} does not have any more, and is removed",
                    one.name
                );
                self.delete_snapshot(one)?;
            }
        }
        Ok(())
    }

    /// Opens it; it may have been open on a host that was killed.
    pub(super) fn take(&self) -> Result<()> {
        let volume = self.show()?;
        let request = AttachRequest {
            transport: TransportChoice::Nbd,
            take_over: volume.state == VolumeState::Held,
            ..AttachRequest::default()
        };
        let path = format!("{}/attach", volume_path(&self.name));
        self.client.post::<Attachment>(&path, &request).map(drop)
    }

    /// Undoes what was written after a snapshot, or all of it.
    pub(super) fn set_to(&self, snapshot: Option<&Snapshot>) -> Result<()> {
        self.sync()?;
        let snapshot = snapshot.map_or(MARK, |snapshot| split(&snapshot.name).1);
        let base = format!("{}@{snapshot}", self.name);
        let mut differs = false;
        diff::each_part(self.client, &base, &self.name, |part| {
            differs |= !part.ranges.is_empty();
            Ok(())
        })?;
        if differs {
            let path = format!("{}/restore", self.snapshot_path(snapshot));
            let _: Restored = self.client.post(&path, &json!({}))?;
        }
        // What it was before is kept, perhaps by a command that was killed then. It is nobody's, and no copy.
        let kept = |one: &Snapshot| {
            split(&one.name).1.starts_with(KEPT_PREFIX) && !one.labels.contains_key(COPY_OF)
        };
        list(self.client, &self.name, kept)?
            .iter()
            .try_for_each(|kept| self.client.delete(&self.snapshot_path(split(&kept.name).1)))
    }

    pub(super) fn grow(&self, size_bytes: u64) -> Result<()> {
        let volume = self.show()?;
        if volume.size_bytes >= size_bytes {
            return Ok(());
        }
        let path = format!("{}/resize", volume_path(&self.name));
        let grown = self
            .client
            .post::<Volume>(&path, &ResizeRequest { size_bytes });
        grown.map(drop)
    }

    /// Where it is reached.
    pub(super) fn attach(&self) -> Result<Vec<String>> {
        attach(self.client, &self.name)
    }

    fn sync(&self) -> Result<()> {
        let path = format!("{}/sync", volume_path(&self.name));
        self.client.post::<Volume>(&path, &json!({})).map(drop)
    }

    /// Takes the copy of a snapshot, of what the volume holds; the store has it when this returns.
    pub(super) fn take_snapshot(&self, original: &Snapshot) -> Result<()> {
        self.sync()?;
        let mut labels = original.labels.clone();
        for (label, copied) in RENAMED {
            if let Some(value) = labels.remove(label) {
                labels.insert(copied.to_owned(), value);
            }
        }
        let id = || original.id.clone();
        labels.entry(COPY_OF.to_owned()).or_insert_with(id);
        let name = split(&original.name).1;
        self.post_snapshot(name, labels, Some(original.taken_unix_ms))
    }

    fn post_snapshot(
        &self,
        name: &str,
        labels: BTreeMap<String, String>,
        copied_unix_ms: Option<u64>,
    ) -> Result<()> {
        let asked = CreateSnapshot {
            name: name.to_owned(),
            labels,
            wait: SnapshotWait::Store,
            copied_unix_ms,
        };
        let path = format!("{}/snapshots", volume_path(&self.name));
        self.client.post::<Snapshot>(&path, &asked).map(drop)
    }

    pub(super) fn delete_snapshot(&self, original: &Snapshot) -> Result<()> {
        self.client
            .delete(&self.snapshot_path(split(&original.name).1))
    }

    /// Where the copy of a snapshot is reached. What is read there is what the store has.
    pub(super) fn attach_snapshot(&self, original: &Snapshot) -> Result<Vec<String>> {
        attach(self.client, &self.name_of(original))
    }

    pub(super) fn detach_snapshot(&self, original: &Snapshot) {
        // Its server ends with the command.
        let _ = detach(self.client, &self.name_of(original), true);
    }

    /// Its snapshots, but for the mark.
    pub(super) fn list(&self) -> Result<Vec<Snapshot>> {
        let mut found = list(self.client, &self.name, |one| split(&one.name).1 != MARK)?;
        found.sort_by_key(|one| (one.lsn, one.taken_unix_ms));
        Ok(found)
    }

    /// Everything is there: gives it to whoever wants it.
    pub(super) fn finish(&self, note: &ProgressNote) -> Result<Volume> {
        detach(self.client, &self.name, true)?;
        let volume = self.show()?;
        note.write(&NoteContent {
            moment: self.moment.clone(),
            size_bytes: volume.size_bytes,
            whole: Some(volume.id.clone()),
        })?;
        self.client.delete(&self.snapshot_path(MARK))?;
        Ok(volume)
    }

    pub(super) fn show(&self) -> Result<Volume> {
        self.client.get(&volume_path(&self.name))
    }
}

fn in_use(name: &str) -> Failure {
    exists(format!(
        "a volume named {name} is in that store already: choose another name with --name. If it is a copy that is to \
         follow its original, bring what is new with `firn export --since` and `firn import --onto`"
    ))
}

fn exists(why: String) -> Failure {
    Failure::new(FailureCode::VolumeExists, why)
}
