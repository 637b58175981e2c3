//! How far an import got: a snapshot of the volume, whose labels say which part of the image it has, and by which digest
//! that part is known again.
//!
//! It is taken from time to time, so that a command that was cut short can go on. Two names take turns, for the newer one is
//! there before the older one goes. None is left of an import that is whole. A mark that the server does not take at once, for
//! the store is away, is made beside the import ([`NewMark`]): an import must never wait for its marks, nor fail for one. What is
//! taken late has more than it says, which its LSN shows: it counts for nothing.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::json;

use super::digest::PartsDigest;
use super::increment::points::{list, split};
use crate::cli::client::{Client, volume_path};
use crate::cli::sync;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{CreateSnapshot, Restored, Snapshot, SnapshotWait, Volume};

/// The names of marks.
const NAMES: [&str; 2] = ["unfinished-import-a", "unfinished-import-b"];
/// How long an import waits for a mark.
const TAKEN_TIMEOUT: Duration = Duration::from_secs(3);
/// Their labels: the image's length, up to where the volume has it, and what that is; and the newest write that the volume had
/// then.
const IMAGE_BYTES: &str = "import-image-bytes";
const END: &str = "import-end";
const DIGEST: &str = "import-digest";
const LSN: &str = "import-lsn";

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

    /// None, if it was taken late.
    fn read(snapshot: &Snapshot) -> Option<Mark> {
        let number = |label: &str| snapshot.labels.get(label)?.parse::<u64>().ok();
        (number(LSN)? == snapshot.lsn).then_some(())?;
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
    /// Whether there is none of the other name.
    is_other_free: bool,
    /// One that is being made, or whose predecessor is being removed.
    pending: Option<Receiver<Step>>,
    /// For how long the import waited for the last one.
    took: Duration,
    is_failure_said: bool,
}

/// How far a mark is.
enum Step {
    /// It is there, and the newest.
    Taken,
    /// Nothing more is done.
    Ended(Result<()>),
}

/// A mark that is made in a thread of its own.
struct NewMark {
    client: Client,
    volume: String,
    name: &'static str,
    is_name_free: bool,
    /// The older one.
    before: Option<&'static str>,
    labels: BTreeMap<String, String>,
    lsn: u64,
}

impl NewMark {
    /// Takes it, and removes the older one.
    fn make(self, steps: &Sender<Step>) -> Result<()> {
        if !self.is_name_free {
            delete(&self.client, &self.volume, self.name)?;
        }
        let asked = CreateSnapshot {
            name: self.name.to_owned(),
            labels: self.labels,
            wait: SnapshotWait::Log,
            copied_unix_ms: None,
        };
        let path = format!("{}/snapshots", volume_path(&self.volume));
        let taken: Snapshot = self.client.post(&path, &asked)?;
        if taken.lsn != self.lsn {
            delete(&self.client, &self.volume, self.name)?;
            return Err(Failure::new(
                FailureCode::VolumeBusy,
                format!("{} was written to before it was marked", self.volume),
            ));
        }
        // Nobody listens any more if the command is at its end.
        let _ = steps.send(Step::Taken);
        match self.before {
            Some(before) => delete(&self.client, &self.volume, before),
            None => Ok(()),
        }
    }
}

impl<'a> Marks<'a> {
    pub(super) fn new(client: &'a Client, volume: &'a str) -> Marks<'a> {
        Marks {
            client,
            volume,
            newest: None,
            is_other_free: false,
            pending: None,
            took: Duration::ZERO,
            is_failure_said: false,
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

    /// The first mark, of nothing.
    pub(super) fn set_first(&mut self, image_bytes: u64) -> Result<()> {
        self.begin(image_bytes, 0, PartsDigest::default())?;
        self.wait_ended()
    }

    /// Says that the volume has the image up to `end`, as durable as a FLUSH. If that cannot be said now, an older mark stays.
    pub(super) fn set(&mut self, image_bytes: u64, end: u64, digest: PartsDigest) {
        let begun = Instant::now();
        let set = self.try_set(image_bytes, end, digest);
        self.took = begun.elapsed();
        if let Err(why) = set
            && !std::mem::replace(&mut self.is_failure_said, true)
        {
            eprintln!(
                "firn: how far the import is cannot be marked now ({why}): going on, and marking it later; if it is cut short \
                 meanwhile, --resume goes on from an older mark"
            );
        }
    }

    /// For how long the import waited for the last mark.
    pub(super) fn took(&self) -> Duration {
        self.took
    }

    fn try_set(&mut self, image_bytes: u64, end: u64, digest: PartsDigest) -> Result<()> {
        let late = || {
            let why = "the server has not taken the last mark yet; is the store away?";
            Failure::new(FailureCode::StoreUnavailable, why)
        };
        if self.pending.is_some() && !self.look(Duration::ZERO)? {
            return Err(late());
        }
        self.begin(image_bytes, end, digest)?;
        let deadline = Instant::now() + TAKEN_TIMEOUT;
        let before = self.newest;
        while self.newest == before {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(late());
            }
            self.look(left)?;
        }
        self.is_failure_said = false;
        Ok(())
    }

    /// Starts to make one of the volume as it is now, of which everything was flushed.
    fn begin(&mut self, image_bytes: u64, end: u64, digest: PartsDigest) -> Result<()> {
        let volume: Volume = self.client.get(&volume_path(self.volume))?;
        let watermarks = volume.watermarks.ok_or_else(|| {
            Failure::new(
                FailureCode::NotAttached,
                format!("{} is not open on the server any more", self.volume),
            )
        })?;
        let lsn = watermarks.acknowledged.lsn;
        let mark = NewMark {
            client: self.client.clone(),
            volume: self.volume.to_owned(),
            name: NAMES[self.next()],
            is_name_free: std::mem::take(&mut self.is_other_free),
            before: self.newest.map(|newest| NAMES[newest]),
            labels: [
                (IMAGE_BYTES.to_owned(), image_bytes.to_string()),
                (END.to_owned(), end.to_string()),
                (DIGEST.to_owned(), digest.to_text()),
                (LSN.to_owned(), lsn.to_string()),
            ]
            .into(),
            lsn,
        };
        let (steps, pending) = channel();
        self.pending = Some(pending);
        std::thread::spawn(move || {
            let ended = mark.make(&steps);
            let _ = steps.send(Step::Ended(ended));
        });
        Ok(())
    }

    /// The place of the name that the next mark has.
    fn next(&self) -> usize {
        self.newest.map_or(0, |newest| 1 - newest)
    }

    /// Waits so long for the next step of the pending mark. Whether it has ended.
    fn look(&mut self, time: Duration) -> Result<bool> {
        let Some(pending) = &self.pending else {
            return Ok(true);
        };
        match pending.recv_timeout(time) {
            Ok(Step::Taken) => {
                self.newest = Some(self.next());
                self.look(Duration::ZERO)
            }
            Ok(Step::Ended(ended)) => {
                self.pending = None;
                self.is_other_free = ended.is_ok();
                ended.map(|()| true)
            }
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => {
                self.pending = None;
                Ok(true)
            }
        }
    }

    /// Waits until nothing is being made.
    fn wait_ended(&mut self) -> Result<()> {
        while !self.look(Duration::from_secs(3600))? {}
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
    ///
    /// # Errors
    /// If some are left; which ones, and how they go.
    pub(super) fn remove(&mut self) -> Result<()> {
        // Whatever became of it: now both go.
        let _ = self.wait_ended();
        let (mut left, mut failure) = (Vec::new(), None);
        for name in NAMES {
            if let Err(why) = delete(self.client, self.volume, name) {
                left.push(format!("`firn snapshot delete {}@{name}`", self.volume));
                failure.get_or_insert(why);
            }
        }
        match failure {
            None => Ok(()),
            Some(why) => Err(Failure::new(
                why.code,
                format!(
                    "a mark of how far it was is left: remove it with {} ({why})",
                    left.join(" and ")
                ),
            )),
        }
    }
}

fn delete(client: &Client, volume: &str, snapshot: &str) -> Result<()> {
    let path = format!("{}/snapshots/{snapshot}", volume_path(volume));
    match client.delete(&path) {
        Err(failure) if failure.code != FailureCode::NoSuchSnapshot => Err(failure),
        _ => Ok(()),
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
