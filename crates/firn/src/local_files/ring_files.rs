//! The files of the index rings: shared memory that outlives the process.
//!
//! Each cache directory has one directory below `--ring-dir`, named after the device and inode of
//! its lock file. So servers with different cache directories can share `/dev/shm`, and a copied
//! cache directory does not find the original's rings. The engine judges what a ring holds and
//! whether it can be trusted; this file only finds, creates and removes files.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use reactor::SharedWords;
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use volume::{RingRegion, Rings, TailId};

use crate::failure::{Failure, FailureCode, Result};

const PREFIX: &str = "firn-rings-";

/// The rings of one cache directory, as files in a private directory.
#[derive(Debug)]
pub(crate) struct RingFiles {
    dir: PathBuf,
    mount_id: u64,
}

/// A directory of rings, and the cache directory that it belongs to.
#[derive(Debug)]
pub(crate) struct OrphanedRings {
    pub(crate) rings: PathBuf,
    pub(crate) cache_dir: PathBuf,
}

#[derive(Debug)]
struct MappedRing(SharedWords);

impl RingRegion for MappedRing {
    fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

impl RingFiles {
    /// The rings of the server that uses `cache_dir` and holds its lock. If the log is new, existing
    /// rings belong to a deleted directory whose inode is reused: they are removed.
    pub(crate) fn open(ring_dir: &Path, cache_dir: &Path, log_is_new: bool) -> Result<Self> {
        let lock = cache_dir.join("lock");
        let identity = fs::metadata(&lock).map_err(|source| Failure::io("read", &lock, &source))?;
        let dir = ring_dir.join(format!("{PREFIX}{:x}-{:x}", identity.dev(), identity.ino()));
        let failed =
            |source: &io::Error| Failure::io("make a directory for rings at", &dir, source);
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(source) if source.kind() == Io::AlreadyExists => {}
            made => made.map_err(|source| failed(&source))?,
        }
        check_owner(&dir)?;
        if log_is_new {
            remove_files(&dir).map_err(|source| failed(&source))?;
        }
        let owner = dir.join("cache-dir");
        fs::write(&owner, cache_dir.as_os_str().as_encoded_bytes())
            .map_err(|source| failed(&source))?;
        let mount_id = mount_id(&dir).map_err(|source| failed(&source))?;
        Ok(RingFiles { dir, mount_id })
    }

    /// The id of the rings' mount: after a remount the rings are void.
    pub(crate) fn mount_id(&self) -> u64 {
        self.mount_id
    }

    fn path(&self, tail: TailId) -> PathBuf {
        self.dir.join(format!("{}-{}", tail.volume, tail.since.0))
    }

    fn file(&self, tail: TailId, create: bool) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(create)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(self.path(tail))
    }
}

impl Rings for RingFiles {
    fn find(&self, tail: TailId) -> Option<Arc<dyn RingRegion>> {
        let file = self.file(tail, false).ok()?;
        let words = usize::try_from(file.metadata().ok()?.len()).ok()? / size_of::<u64>();
        let map = SharedWords::map(&file, words).ok()?;
        Some(Arc::new(MappedRing(map)))
    }

    fn open(&self, tail: TailId, words: usize) -> std::result::Result<Arc<dyn RingRegion>, String> {
        let open = || {
            let file = self.file(tail, true)?;
            let bytes = (words * size_of::<u64>()) as u64;
            if file.metadata()?.len() != bytes {
                file.set_len(bytes)?;
            }
            SharedWords::map(&file, words)
        };
        match open() {
            Ok(map) => Ok(Arc::new(MappedRing(map))),
            Err(source) => {
                let path = self.path(tail);
                let text = Failure::io("make the index ring", &path, &source).detail;
                Err(format!(
                    "{text}; --ring-dir chooses another directory in memory"
                ))
            }
        }
    }

    fn remove(&self, tail: TailId) {
        let path = self.path(tail);
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != Io::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove an index ring");
        }
    }
}

impl Drop for RingFiles {
    fn drop(&mut self) {
        // Only if no ring is left: a successor has no use for the file `cache-dir` alone.
        let left = fs::read_dir(&self.dir).map_or(2, |entries| entries.count());
        if left <= 1 {
            let _ = fs::remove_file(self.dir.join("cache-dir"));
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

fn remove_files(dir: &Path) -> io::Result<()> {
    fs::read_dir(dir)?.try_for_each(|entry| fs::remove_file(entry?.path()))
}

/// Everybody may write to `/dev/shm`: refuses a directory of this name that another user made.
fn check_owner(dir: &Path) -> Result<()> {
    let metadata = fs::symlink_metadata(dir).map_err(|source| Failure::io("read", dir, &source))?;
    if metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(Failure::new(
        FailureCode::ForeignFormat,
        format!(
            "{} is not a directory of this user; remove it, or choose another --ring-dir",
            dir.display()
        ),
    ))
}

/// The rings below `ring_dir` whose cache directory is missing. firn never removes them: the cache directory may be on a disk that is not mounted now,
/// and then the rings hold acknowledged writes.
pub(crate) fn find_orphans(ring_dir: &Path) -> Vec<OrphanedRings> {
    let Ok(entries) = fs::read_dir(ring_dir) else {
        return Vec::new();
    };
    let named = |name: &std::ffi::OsStr| name.to_str().is_some_and(|n| n.starts_with(PREFIX));
    entries
        .flatten()
        .filter(|entry| named(&entry.file_name()) && check_owner(&entry.path()).is_ok())
        .filter_map(|entry| {
            let text = fs::read(entry.path().join("cache-dir")).ok()?;
            let cache_dir = PathBuf::from(String::from_utf8_lossy(&text).into_owned());
            (!cache_dir.join("lock").exists()).then(|| OrphanedRings {
                rings: entry.path(),
                cache_dir,
            })
        })
        .collect()
}

fn mount_id(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statx(rustix::fs::CWD, dir, AtFlags::empty(), StatxFlags::MNT_ID)?;
    Ok(stat.stx_mnt_id)
}

/// The identity of this boot: rings of another one are void.
pub(crate) fn boot_id() -> Result<[u8; 16]> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(|source| Failure::io("read", path, &source))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16)
        .map(u128::to_be_bytes)
        .map_err(|_| {
            Failure::new(
                FailureCode::DiskFailed,
                format!("{} is not a boot id", path.display()),
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use volume::units::{Epoch, VolumeId};

    #[test]
    fn a_ring_outlives_its_mapping_and_is_void_with_a_fresh_log() {
        let (rings, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(cache.path().join("lock"), "").unwrap();
        let open = |fresh| RingFiles::open(rings.path(), cache.path(), fresh).unwrap();
        let tail = TailId {
            volume: VolumeId([7; 16]),
            since: Epoch(3),
        };

        let files = open(true);
        assert!(files.find(tail).is_none());
        files.open(tail, 1024).unwrap().words()[1000].store(42, Ordering::Relaxed);
        drop(files);
        let files = open(false);
        let found = files.find(tail).unwrap();
        assert_eq!(
            (
                found.words().len(),
                found.words()[1000].load(Ordering::Relaxed)
            ),
            (1024, 42)
        );
        drop((found, files));
        assert!(
            find_orphans(rings.path()).is_empty(),
            "its cache directory is there"
        );

        let files = open(true);
        assert!(files.find(tail).is_none());
        drop(files);
        assert_eq!(
            fs::read_dir(rings.path()).unwrap().count(),
            0,
            "an empty one is removed"
        );
    }

    #[test]
    fn rings_whose_cache_directory_is_gone_are_named_and_kept() {
        let rings = tempfile::tempdir().unwrap();
        let cache = tempfile::tempdir().unwrap();
        fs::write(cache.path().join("lock"), "").unwrap();
        let files = RingFiles::open(rings.path(), cache.path(), true).unwrap();
        let tail = TailId {
            volume: VolumeId([7; 16]),
            since: Epoch(3),
        };
        files.open(tail, 64).unwrap();
        drop(files);
        let path = cache.path().to_owned();
        drop(cache);
        let found = find_orphans(rings.path());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].cache_dir, path);
        assert!(found[0].rings.is_dir());
    }
}
