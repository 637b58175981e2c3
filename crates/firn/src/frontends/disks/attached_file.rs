//! The file `attached`: which volumes the next server serves again, and as which disks.
//!
//! Normative description: docs/format.md. The file says what should exist, the driver says what
//! does. So it is written before a disk is created (after a crash in between, the next server
//! completes the attach) and before one is removed (it completes the detach). Its space is reserved,
//! so that a full disk refuses no change; a file of a newer version is refused.

use std::collections::BTreeMap;
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use volume::TailId;
use volume::units::{Epoch, VolumeId};

use super::options::DiskOptions;
use crate::failure::{Failure, FailureCode, Result};
use crate::local_files::ReservedFile;

/// The version that this program writes, and the only one that it reads.
pub(crate) const VERSION: u32 = 3;

/// The disk that a volume is attached as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiskRecord {
    /// The driver's device number: the N of /dev/ublkbN.
    pub(crate) id: u32,
    /// The volume's id: its name may belong to another volume later.
    pub(crate) volume_id: String,
    /// The epoch in which the hold began whose data the disk has shown.
    pub(crate) since: u64,
    #[serde(rename = "wanted")]
    pub(crate) options: DiskOptions,
    /// The disk is being removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) leaving: bool,
}

impl DiskRecord {
    /// The hold of the volume whose data the disk has shown.
    pub(crate) fn hold(&self) -> Option<TailId> {
        Some(TailId {
            volume: VolumeId(volume::units::parse_hex_identity(&self.volume_id)?),
            since: Epoch(self.since),
        })
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    disk: Option<DiskRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    volumes: BTreeMap<String, Entry>,
}

type Entries = BTreeMap<String, Entry>;

/// The file and what is in it.
#[derive(Debug)]
pub(crate) struct AttachedFile {
    path: PathBuf,
    /// Locked while the file is written, so that memory and file agree.
    entries: Mutex<StoredEntries>,
}

/// What the file says, and the file.
#[derive(Debug)]
struct StoredEntries {
    entries: Entries,
    file: ReservedFile,
}

impl AttachedFile {
    pub(crate) fn load(cache_dir: &Path) -> Result<Self> {
        let path = cache_dir.join("attached");
        let unusable = |why: String| {
            Failure::new(
                FailureCode::ForeignFormat,
                format!(
                    "the list of attached volumes {}: {why}; use a newer firn, or remove the \
                     file and attach anew",
                    path.display()
                ),
            )
        };
        let (file, content) = ReservedFile::open(&path).map_err(|source| match source.kind() {
            Io::InvalidData => unusable(source.to_string()),
            _ => Failure::io("open", &path, &source),
        })?;
        let text = content.as_deref().map(String::from_utf8_lossy);
        let entries = text.map_or_else(|| Ok(Entries::new()), |text| parse(&text));
        let entries = entries.map_err(unusable)?;
        Ok(AttachedFile {
            entries: Mutex::new(StoredEntries { entries, file }),
            path,
        })
    }

    fn lock(&self) -> MutexGuard<'_, StoredEntries> {
        // A change that is not written is undone, so a panic cannot leave the map half changed.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All volumes, each with its disk if it has one.
    pub(crate) fn all(&self) -> BTreeMap<String, Option<DiskRecord>> {
        let stored = self.lock();
        let each = stored.entries.iter();
        each.map(|(name, entry)| (name.clone(), entry.disk.clone()))
            .collect()
    }

    /// The number of volumes.
    pub(crate) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// The disk of a volume.
    pub(crate) fn disk(&self, volume: &str) -> Option<DiskRecord> {
        self.lock().entries.get(volume)?.disk.clone()
    }

    /// Records that a volume is served. Its disk, if it has one, stays recorded.
    pub(crate) fn add(&self, volume: &str) -> Result<()> {
        self.change(volume, |entry| Some(entry.unwrap_or_default()))
    }

    /// Records the disk of a volume, or that it has none.
    pub(crate) fn set_disk(&self, volume: &str, disk: Option<DiskRecord>) -> Result<()> {
        self.change(volume, |_| Some(Entry { disk }))
    }

    /// Records that a volume is no longer served.
    pub(crate) fn remove(&self, volume: &str) -> Result<()> {
        self.change(volume, |_| None)
    }

    /// Makes the file of another cache directory say what this one says, and nothing of its own: what it
    /// says may be from a copy that was cut short.
    pub(crate) fn copy_to(&self, other: &AttachedFile) -> Result<()> {
        let entries = self.all();
        for name in other
            .all()
            .keys()
            .filter(|name| !entries.contains_key(*name))
        {
            other.remove(name)?;
        }
        for (name, disk) in &entries {
            other.set_disk(name, disk.clone())?;
        }
        Ok(())
    }

    /// Forgets all volumes: another cache directory has them.
    pub(crate) fn clear(&self) -> Result<()> {
        self.all().keys().try_for_each(|name| self.remove(name))
    }

    /// Changes one entry both in the file and in memory, or in neither.
    fn change(
        &self,
        volume: &str,
        update: impl FnOnce(Option<Entry>) -> Option<Entry>,
    ) -> Result<()> {
        let mut stored = self.lock();
        let StoredEntries { entries, file } = &mut *stored;
        let before = entries.get(volume).map(|entry| entry.disk.clone());
        let after = update(entries.remove(volume));
        if let Some(entry) = after {
            entries.insert(volume.to_owned(), entry);
        }
        if before == entries.get(volume).map(|entry| entry.disk.clone()) {
            return Ok(());
        }
        let written = self.write(entries, file);
        if written.is_err() {
            match before {
                Some(disk) => entries.insert(volume.to_owned(), Entry { disk }),
                None => entries.remove(volume),
            };
        }
        written
    }

    fn write(&self, entries: &mut Entries, file: &mut ReservedFile) -> Result<()> {
        let content = Content {
            version: VERSION,
            volumes: std::mem::take(entries),
        };
        let text = serde_json::to_string_pretty(&content)
            .expect("strings, numbers and flags always serialize");
        *entries = content.volumes;
        file.replace(format!("{text}\n").as_bytes())
            .map_err(|source| Failure::io("write", &self.path, &source))
    }
}

fn parse(text: &str) -> std::result::Result<Entries, String> {
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|source| source.to_string())?;
    match value.get("version").and_then(serde_json::Value::as_u64) {
        Some(version) if version == u64::from(VERSION) => {}
        Some(version) => {
            return Err(format!(
                "it has version {version}, this firn knows version {VERSION}"
            ));
        }
        None => return Err("it has no version".to_owned()),
    }
    let content: Content = serde_json::from_value(value).map_err(|source| source.to_string())?;
    Ok(content.volumes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AttachRequest, DataMode};

    fn record(id: u32) -> DiskRecord {
        DiskRecord {
            id,
            volume_id: "00ff".into(),
            since: 4,
            options: DiskOptions::from_request(&AttachRequest::default(), 2),
            leaving: false,
        }
    }

    #[test]
    fn what_was_recorded_is_read_back_and_what_was_removed_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let attached = AttachedFile::load(dir.path()).unwrap();
        attached.add("a").unwrap();
        attached.set_disk("b", Some(record(3))).unwrap();
        attached.add("b").unwrap();
        attached.add("c").unwrap();
        attached.remove("c").unwrap();
        let again = AttachedFile::load(dir.path()).unwrap();
        assert_eq!(
            again.all(),
            BTreeMap::from([("a".into(), None), ("b".into(), Some(record(3)))])
        );
        let leaving = DiskRecord {
            leaving: true,
            ..record(3)
        };
        again.set_disk("b", Some(leaving.clone())).unwrap();
        assert_eq!(
            AttachedFile::load(dir.path()).unwrap().disk("b"),
            Some(leaving)
        );
    }

    #[test]
    fn a_copy_of_the_list_that_was_cut_short_is_made_whole_by_the_next() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let old = AttachedFile::load(one.path()).unwrap();
        old.add("a").unwrap();
        old.set_disk("b", Some(record(3))).unwrap();
        let new = AttachedFile::load(two.path()).unwrap();
        new.add("gone").unwrap();
        new.set_disk("b", Some(record(2))).unwrap();
        old.copy_to(&new).unwrap();
        let again = AttachedFile::load(two.path()).unwrap();
        assert_eq!((again.all(), old.len()), (old.all(), 2));
        old.clear().unwrap();
        assert_eq!(AttachedFile::load(one.path()).unwrap().len(), 0);
    }

    #[test]
    fn the_file_is_as_docs_format_md_shows_it() {
        let text = r#"{"version": 3, "volumes": {"demo": {"disk": {"id": 0, "volume_id": "6f", "since": 4,
            "wanted": {"data_mode": "zero-copy", "queues": 2, "depth": 128, "read_only": false,
                "part_scan": true, "patience": {"at-most-ms": 20000}},
            "leaving": true}}, "other": {}}}"#;
        let entries = parse(text).unwrap();
        let disk = entries["demo"].disk.clone().unwrap();
        assert_eq!((disk.id, disk.since, disk.leaving), (0, 4, true));
        assert_eq!(disk.options.data_mode, DataMode::ZeroCopy);
        assert!(entries["other"].disk.is_none());
    }

    #[test]
    fn a_newer_or_damaged_file_is_refused_with_the_remedy_and_left_alone() {
        for (text, says) in [
            (r#"{"version": 4, "volumes": []}"#, "version 4"),
            (r#"{"volumes": {}}"#, "no version"),
            (r#"{"version": 3"#, "EOF"),
            (r#"{"version": 3, "volumes": {"a": {"tape": 1}}}"#, "tape"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("attached");
            ReservedFile::open(&path)
                .unwrap()
                .0
                .replace(text.as_bytes())
                .unwrap();
            let before = std::fs::read(&path).unwrap();
            let failure = AttachedFile::load(dir.path()).unwrap_err();
            assert_eq!(failure.code, FailureCode::ForeignFormat);
            assert!(failure.detail.contains(says), "{failure}");
            assert!(failure.detail.contains("attach anew"), "{failure}");
            assert_eq!(std::fs::read(&path).unwrap(), before);
        }
    }

    #[test]
    fn what_could_not_be_written_is_not_in_memory_either() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        std::fs::create_dir(&gone).unwrap();
        let attached = AttachedFile::load(&gone).unwrap();
        std::fs::remove_dir_all(&gone).unwrap();
        // More than the reserved space, so that a new file is needed, and there is no place for one.
        let long = "a".repeat(3 << 20);
        assert!(attached.add(&long).is_err());
        assert!(attached.all().is_empty());
    }
}
