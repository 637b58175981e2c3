//! How far an import got: a snapshot of the volume, whose labels say which part of the image it has, and by which digest
//! that part is known again.
//!
//! It is taken from time to time, so that a command that was cut short can go on. Two names take turns, for the newer one is
//! there before the older one goes. None is left of an import that is whole.

use serde_json::json;

use super::digest::PartsDigest;
use super::increment::points::{list, split};
use crate::cli::client::{Client, volume_path};
use crate::cli::sync;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{CreateSnapshot, Restored, Snapshot, SnapshotWait};

/// The names of marks.
const NAMES: [&str; 2] = ["unfinished-import-a", "unfinished-import-b"];
/// Their labels: the image's length, up to where the volume has it, and what that is.
const IMAGE_BYTES: &str = "import-image-bytes";
const END: &str = "import-end";
const DIGEST: &str = "import-digest";

/// What a mark says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    snapshot: String,
    pub(super) image_bytes: u64,
    pub(super) end: u64,
    digest: String,
}

impl Mark {
    /// Whether the volume has what this part of the image is.
    pub(super) fn is_of(&self, image_bytes: u64, digest: PartsDigest) -> bool {
        self.image_bytes == image_bytes && self.digest == digest.to_text()
    }

    fn read(snapshot: &Snapshot) -> Option<Mark> {
        let number = |label: &str| snapshot.labels.get(label)?.parse().ok();
        Some(Mark {
            snapshot: split(&snapshot.name).1.to_owned(),
            image_bytes: number(IMAGE_BYTES)?,
            end: number(END)?,
            digest: snapshot.labels.get(DIGEST)?.clone(),
        })
    }
}

/// The marks of a volume.
pub(super) struct Marks<'a> {
    client: &'a Client,
    volume: &'a str,
    /// The newest one, by its place among the names.
    newest: Option<usize>,
}

impl<'a> Marks<'a> {
    pub(super) fn new(client: &'a Client, volume: &'a str) -> Marks<'a> {
        Marks {
            client,
            volume,
            newest: None,
        }
    }

    /// The newest mark of an earlier command.
    pub(super) fn find(&mut self) -> Result<Option<Mark>> {
        let found = list(self.client, self.volume, |one| {
            NAMES.contains(&split(&one.name).1)
        })?;
        let newest = found
            .iter()
            .filter_map(Mark::read)
            .max_by_key(|one| one.end);
        self.newest = newest
            .as_ref()
            .and_then(|mark| NAMES.iter().position(|name| *name == mark.snapshot));
        Ok(newest)
    }

    /// Says that the volume has the image up to `end`, as durable as a FLUSH.
    pub(super) fn set(&mut self, image_bytes: u64, end: u64, digest: PartsDigest) -> Result<()> {
        let next = self.newest.map_or(0, |newest| 1 - newest);
        self.delete(NAMES[next])?;
        let asked = CreateSnapshot {
            name: NAMES[next].to_owned(),
            labels: [
                (IMAGE_BYTES.to_owned(), image_bytes.to_string()),
                (END.to_owned(), end.to_string()),
                (DIGEST.to_owned(), digest.to_text()),
            ]
            .into(),
            wait: SnapshotWait::Log,
            copied_unix_ms: None,
        };
        let path = format!("{}/snapshots", volume_path(self.volume));
        let _: Snapshot = self.client.post(&path, &asked)?;
        if let Some(before) = self.newest.replace(next) {
            self.delete(NAMES[before])?;
        }
        Ok(())
    }

    /// Makes the volume be what it was at a mark: what came behind it may be of another image.
    pub(super) fn set_back(&self, mark: &Mark) -> Result<()> {
        sync::upload(self.client, self.volume)?;
        let path = format!("{}/snapshots", volume_path(self.volume));
        let asked = format!("{path}/{}/restore", mark.snapshot);
        let restored: Restored = self.client.post(&asked, &json!({}))?;
        // Mostly a part of the image; but somebody may have used the volume since, and that is not this command's to delete.
        eprintln!(
            "firn: what {} held behind the import is kept: `firn snapshot delete {}` when nobody needs it",
            self.volume, restored.kept
        );
        Ok(())
    }

    /// The volume is whole.
    pub(super) fn remove(&self) -> Result<()> {
        NAMES.iter().try_for_each(|name| self.delete(name))
    }

    fn delete(&self, snapshot: &str) -> Result<()> {
        let path = format!("{}/snapshots/{snapshot}", volume_path(self.volume));
        match self.client.delete(&path) {
            Err(failure) if failure.code != FailureCode::NoSuchSnapshot => Err(failure),
            _ => Ok(()),
        }
    }
}

/// No mark of an earlier command.
pub(super) fn nothing_to_resume(volume: &str) -> Failure {
    Failure::new(
        FailureCode::VolumeExists,
        format!(
            "{volume} is there, and no import of it was cut short: replace all that it holds with --overwrite, or choose \
             another name"
        ),
    )
}
