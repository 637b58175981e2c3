//! The files of the index rings: shared memory that outlives the process.
//!
//! Each log has one directory below `--ring-dir`, named after its host id, and in it one file for each
//! ring, named after the session and the tail. So servers with different cache directories can share
//! `/dev/shm`, and a cache directory finds its rings wherever its disk is mounted. What a log went on
//! without is kept in the folder `aside`. The engine judges what a ring holds and whether it can be
//! believed; this file only finds, creates, moves and removes files, and never removes one that
//! another server uses.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use reactor::SharedWords;
use rustix::fs::{Access, OFlags};
use volume::units::{Epoch, HostId, LogSession, VolumeId, parse_hex_identity};
use volume::{RetainedRings, RingId, RingRegion, Rings, TailId};

use crate::failure::{Failure, FailureCode, Result};

pub(super) const PREFIX: &str = "firn-rings-";

/// The folder of rings that a log went on without.
const ASIDE: &str = "aside";
/// How many of them are kept.
const ASIDE_MAX: usize = 16;

/// How often, and how long apart, a server tries to lock its session's region.
const LOCK_TRIES: u32 = 10;
const LOCK_DELAY: Duration = Duration::from_millis(2);

/// What the file of a session's own region has in place of a tail.
const SESSION: &str = "session";

/// The rings of one cache directory's log, as files in a private directory.
#[derive(Debug)]
pub(crate) struct RingFiles {
    ring_dir: PathBuf,
    cache_dir: PathBuf,
    in_use: Mutex<InUse>,
}

/// What this process made.
#[derive(Debug, Default)]
struct InUse {
    /// The directory of the log's rings.
    dir: Option<PathBuf>,
    /// The file of the session's own region: locked as long as this process lives, so that a server
    /// on a copy of the cache directory keeps off the rings.
    locked: Option<File>,
    /// The inode of each ring that is mapped. The mapping keeps its memory alive though its name is
    /// gone, but a successor would not find it.
    mapped: BTreeMap<RingId, u64>,
    /// The rings of other sessions that were looked at, with the inode of each: recovery looks several times, and
    /// to map one costs more than to read it.
    found: BTreeMap<RingId, (u64, Arc<MappedRing>)>,
    /// Sessions that no server uses, of those that were looked at: one that has ended does not begin again.
    ended: BTreeSet<(HostId, LogSession)>,
    /// How many names of `mapped` were gone when they were looked for.
    removed: usize,
    /// Why the last ring could not be made.
    failure: Option<String>,
}

impl InUse {
    /// Answers the mapping that is to be let go of, if there is one.
    fn forget(&mut self, ring: RingId) -> Option<Arc<MappedRing>> {
        self.mapped.remove(&ring);
        self.found.remove(&ring).map(|(_, mapped)| mapped)
    }
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
    /// The rings of the server that uses `cache_dir` and holds its lock.
    pub(crate) fn open(ring_dir: &Path, cache_dir: &Path) -> Result<Self> {
        let failed = |source: &io::Error| Failure::io("keep index rings in", ring_dir, source);
        if !fs::metadata(ring_dir)
            .map_err(|source| failed(&source))?
            .is_dir()
        {
            return Err(failed(&Io::NotADirectory.into()));
        }
        rustix::fs::access(ring_dir, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|source| failed(&source.into()))?;
        Ok(RingFiles {
            ring_dir: ring_dir.to_owned(),
            cache_dir: cache_dir.to_owned(),
            in_use: Mutex::default(),
        })
    }

    /// Looks for the rings in use whose names are gone: somebody removed them, and a successor would not find them.
    /// [`explain_removal`](RingFiles::explain_removal) says what was found last.
    pub(crate) fn find_removed(&self) -> Vec<RingId> {
        let mapped = self.in_use().mapped.clone();
        let is_there = |(ring, inode): &(RingId, u64)| {
            fs::symlink_metadata(self.path(*ring)).is_ok_and(|found| found.ino() == *inode)
        };
        let gone = mapped.into_iter().filter(|one| !is_there(one));
        let gone: Vec<RingId> = gone.map(|(ring, _)| ring).collect();
        self.in_use().removed = gone.len();
        gone
    }

    /// What it means that names are gone, if some were when they were looked for. Looks at no file: each volume's health
    /// asks this.
    pub(crate) fn explain_removal(&self) -> Option<String> {
        let in_use = self.in_use();
        let gone = in_use.removed;
        let why = in_use.failure.as_deref().unwrap_or("they are put back");
        (gone > 0).then(|| {
            format!(
                "{gone} of {} are gone from {} ({why}): if this server is killed now, writes of the last \
                 second may be lost; what is flushed is safe. Use a --ring-dir that nothing cleans",
                in_use.mapped.len(),
                self.ring_dir.display()
            )
        })
    }

    /// Removes the rings of a log that is not used any more.
    pub(crate) fn remove_all(&self, host: HostId) {
        for ring in self.list(host) {
            self.remove(ring);
        }
    }

    fn in_use(&self) -> std::sync::MutexGuard<'_, InUse> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dir(&self, host: HostId) -> PathBuf {
        self.ring_dir.join(format!("{PREFIX}{host}"))
    }

    fn path(&self, ring: RingId) -> PathBuf {
        self.dir(ring.host).join(file_name(ring))
    }

    /// The directory of this process's rings.
    fn own_dir(&self, host: HostId) -> io::Result<PathBuf> {
        let known = self.in_use().dir.clone();
        // It may have been removed since, and somebody else's may have its name.
        let is_whole = |dir: &PathBuf| {
            *dir == self.dir(host) && check_owner(dir).is_ok() && dir.join("cache-dir").exists()
        };
        match known.filter(is_whole) {
            Some(dir) => Ok(dir),
            None => self.make_dir(host),
        }
    }

    /// The file of a ring of this process.
    fn open_own(&self, ring: RingId, bytes: u64) -> io::Result<File> {
        let path = self.own_dir(ring.host)?.join(file_name(ring));
        let file = open_file(&path, true)?;
        if file.metadata()?.len() != bytes {
            file.set_len(bytes)?;
        }
        Ok(file)
    }

    /// Locks the session's own region, for others that look for its rings. One that looks just now has the lock for a moment.
    fn lock_session(&self, file: File) {
        for _ in 0..LOCK_TRIES {
            if file.try_lock().is_ok() {
                self.in_use().locked = Some(file);
                return;
            }
            std::thread::sleep(LOCK_DELAY);
        }
        tracing::warn!(
            "the index rings are not locked: another server on a copy of the cache directory may take them for its own"
        );
    }

    /// Takes over what was found, as this process's own.
    fn take_over(&self, rings: &[RingId]) -> io::Result<()> {
        let mut kept = Vec::new();
        for ring in rings {
            if ring.tail.is_none() {
                self.own_dir(ring.host)?;
                self.lock_session(open_file(&self.path(*ring), false)?);
            }
            let mut in_use = self.in_use();
            let (inode, region) = in_use.found.remove(ring).ok_or(Io::NotFound)?;
            in_use.mapped.insert(*ring, inode);
            kept.push(region);
        }
        // Clients wait, and it takes long: a page that is not locked yet is no less there.
        let lock = move || kept.iter().for_each(|region| region.0.lock());
        let thread = std::thread::Builder::new().name("firn-rings".into());
        if let Err(error) = thread.spawn(lock) {
            tracing::debug!(%error, "index rings are not locked in memory");
        }
        Ok(())
    }

    /// Makes the directory of a log's rings, if it is not there.
    fn make_dir(&self, host: HostId) -> io::Result<PathBuf> {
        let dir = self.dir(host);
        // With what is above it: it may have been removed since the start.
        DirBuilder::new().mode(0o700).recursive(true).create(&dir)?;
        check_owner(&dir).map_err(|failure| io::Error::other(failure.detail))?;
        let owner = self.cache_dir.as_os_str().as_encoded_bytes();
        if fs::read(dir.join("cache-dir")).ok().as_deref() != Some(owner) {
            fs::write(dir.join("cache-dir"), owner)?;
        }
        self.in_use().dir = Some(dir.clone());
        Ok(dir)
    }

    /// Whether a server that runs now made this session, and it is not this one.
    fn is_used_elsewhere(&self, ring: RingId) -> bool {
        let own = RingId { tail: None, ..ring };
        let Ok(file) = open_file(&self.path(own), false) else {
            return false;
        };
        matches!(file.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Operation, file, cause and remedy of a ring that cannot be made.
    fn describe_creation_failure(&self, ring: RingId, words: usize, source: &io::Error) -> String {
        let path = self.path(ring);
        match source.kind() {
            Io::StorageFull if !canary::active!("full_memory_is_a_full_disk") => format!(
                "cannot make the index ring {}: there is no room for its {} bytes in {}; remove what \
                 fills that memory, make it larger, or choose another directory in memory with \
                 --ring-dir",
                path.display(),
                words * size_of::<u64>(),
                self.ring_dir.display()
            ),
            _ => format!(
                "{}; --ring-dir chooses another directory in memory",
                Failure::io("make the index ring", &path, source).detail
            ),
        }
    }

    fn check_unused(&self, ring: RingId) -> std::result::Result<(), String> {
        let session = (ring.host, ring.session);
        if self.in_use().ended.contains(&session) {
            return Ok(());
        }
        if !self.is_used_elsewhere(ring) {
            self.in_use().ended.insert(session);
            return Ok(());
        }
        let dir = self.dir(ring.host);
        let other = fs::read(dir.join("cache-dir")).unwrap_or_default();
        Err(format!(
            "the index rings in {} are in use by a server on {}, whose log is the same one: one of \
             the two cache directories is a copy; stop that server, or give this one another \
             --ring-dir",
            dir.display(),
            String::from_utf8_lossy(&other)
        ))
    }
}

fn file_name(ring: RingId) -> String {
    match ring.tail {
        Some(tail) => format!("{}-{}-{}", ring.session, tail.volume, tail.since.0),
        None => format!("{}-{SESSION}", ring.session),
    }
}

/// The ring that a file name stands for.
fn parse_name(host: HostId, name: &str) -> Option<RingId> {
    let mut parts = name.split('-');
    let number = parts.next()?.parse().ok()?;
    let random = u64::from_str_radix(parts.next()?, 16).ok()?;
    let tail = match parts.next()? {
        SESSION => None,
        volume => Some(TailId {
            volume: VolumeId(parse_hex_identity(volume)?),
            since: Epoch(parts.next()?.parse().ok()?),
        }),
    };
    let session = LogSession { number, random };
    let ring = RingId {
        host,
        session,
        tail,
    };
    (file_name(ring) == name).then_some(ring)
}

fn open_file(path: &Path, create: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
}

impl Rings for RingFiles {
    fn find(&self, ring: RingId) -> std::result::Result<Option<Arc<dyn RingRegion>>, String> {
        self.check_unused(ring)?;
        let path = self.path(ring);
        let find = || -> io::Result<Arc<MappedRing>> {
            let known = self.in_use().found.get(&ring).cloned();
            if let Some((inode, found)) = known
                && inode == fs::symlink_metadata(&path)?.ino()
            {
                return Ok(found);
            }
            let file = open_file(&path, false)?;
            let metadata = file.metadata()?;
            let bytes = metadata.len();
            let words = usize::try_from(bytes).map_err(io::Error::other)? / size_of::<u64>();
            let found = Arc::new(MappedRing(SharedWords::map_lazily(&file, words)?));
            let known = (metadata.ino(), Arc::clone(&found));
            self.in_use().found.insert(ring, known);
            Ok(found)
        };
        match find() {
            Ok(found) => Ok(Some(found)),
            Err(source) if source.kind() == Io::NotFound => Ok(None),
            Err(source) => Err(Failure::io("read the index ring", &path, &source).detail),
        }
    }

    fn open(&self, ring: RingId, words: usize) -> std::result::Result<Arc<dyn RingRegion>, String> {
        let open = || -> io::Result<SharedWords> {
            let file = self.open_own(ring, (words * size_of::<u64>()) as u64)?;
            let map = SharedWords::map(&file, words)?;
            self.in_use().mapped.insert(ring, file.metadata()?.ino());
            if ring.tail.is_none() {
                // A file of its own: a mapping keeps what it was made of open, also beyond this program.
                drop(file);
                self.lock_session(open_file(&self.path(ring), false)?);
            }
            Ok(map)
        };
        let opened = open().map_err(|source| self.describe_creation_failure(ring, words, &source));
        self.in_use().failure = opened.as_ref().err().cloned();
        opened.map(|map| Arc::new(MappedRing(map)) as Arc<dyn RingRegion>)
    }

    fn keep(&self, rings: &[RingId]) -> std::result::Result<(), String> {
        self.take_over(rings).map_err(|source| {
            format!(
                "go on with the index rings in {}: {source}",
                self.ring_dir.display()
            )
        })
    }

    fn remove(&self, ring: RingId) {
        self.in_use().forget(ring);
        remove_file(&self.path(ring));
    }

    fn remove_many(&self, rings: Vec<RingId>) {
        let gone: Vec<_> = {
            let mut in_use = self.in_use();
            let forget = |ring: &RingId| (in_use.forget(*ring), self.path(*ring));
            rings.iter().map(forget).collect()
        };
        // To give the memory back takes long, and a start need not wait for it: of rings that a kill leaves
        // the next start knows that they are not needed.
        let remove = move || {
            gone.into_iter().for_each(|(mapped, path)| {
                drop(mapped);
                remove_file(&path);
            });
        };
        let thread = std::thread::Builder::new().name("firn-rings".into());
        if let Err(error) = thread.spawn(remove) {
            tracing::debug!(%error, "rings are removed by the job thread");
            rings.into_iter().for_each(|ring| self.remove(ring));
        }
    }

    fn list(&self, host: HostId) -> Vec<RingId> {
        let Ok(entries) = fs::read_dir(self.dir(host)) else {
            return Vec::new();
        };
        let names = entries.flatten().map(|entry| entry.file_name());
        let rings = names.filter_map(|name| parse_name(host, name.to_str()?));
        let mut rings: Vec<RingId> = rings.collect();
        rings.sort_unstable();
        rings
    }

    fn set_aside(&self, ring: RingId) -> std::result::Result<RetainedRings, String> {
        self.check_unused(ring)?;
        self.in_use().forget(ring);
        let (path, aside) = (self.path(ring), self.dir(ring.host).join(ASIDE));
        let moved = || {
            fs::create_dir_all(&aside)?;
            fs::rename(&path, aside.join(file_name(ring)))?;
            keep_newest(&aside)
        };
        let (count, bytes) = moved()
            .map_err(|source| Failure::io("put aside the index ring", &path, &source).detail)?;
        Ok(RetainedRings {
            place: aside.display().to_string(),
            count,
            bytes,
        })
    }
}

/// Removes the oldest files beyond the number that is kept. Answers how many are left, and their
/// bytes.
fn keep_newest(aside: &Path) -> io::Result<(usize, u64)> {
    let mut files: Vec<(SystemTime, PathBuf, u64)> = Vec::new();
    for entry in fs::read_dir(aside)? {
        let (path, metadata) = {
            let entry = entry?;
            (entry.path(), entry.metadata()?)
        };
        files.push((metadata.modified()?, path, metadata.len()));
    }
    files.sort_unstable();
    let surplus = files.len().saturating_sub(ASIDE_MAX);
    for (_, path, _) in files.drain(..surplus) {
        tracing::warn!(path = %path.display(), "the oldest ring that was kept aside is removed");
        fs::remove_file(path)?;
    }
    Ok((files.len(), files.iter().map(|(_, _, bytes)| bytes).sum()))
}

fn remove_file(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != Io::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove an index ring");
    }
}

impl Drop for RingFiles {
    fn drop(&mut self) {
        // Only if no tail's ring is left: a successor has no use for the rest.
        let Some(dir) = self.in_use().dir.take() else {
            return;
        };
        let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
        let names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        let spare = |name: &std::ffi::OsString| {
            name == "cache-dir" || name.to_str().is_some_and(|name| name.ends_with(SESSION))
        };
        if names.iter().all(spare) {
            for name in &names {
                let _ = fs::remove_file(dir.join(name));
            }
            let _ = fs::remove_dir(&dir);
        }
    }
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

    fn ring(session: u64, tail: bool) -> RingId {
        RingId {
            host: HostId([9; 16]),
            session: LogSession {
                number: session,
                random: 0xabc,
            },
            tail: tail.then_some(TailId {
                volume: VolumeId([7; 16]),
                since: Epoch(3),
            }),
        }
    }

    fn cache_dir() -> tempfile::TempDir {
        let cache = tempfile::tempdir().unwrap();
        fs::write(cache.path().join("lock"), "").unwrap();
        cache
    }

    /// The memory of a program that was executed over may be taken apart after the next one has begun.
    #[test]
    fn a_session_has_ended_with_its_descriptors_while_its_memory_is_still_mapped() {
        let (rings, cache) = (tempfile::tempdir().unwrap(), cache_dir());
        let open = || RingFiles::open(rings.path(), cache.path()).unwrap();
        let before = open();
        let regions = [false, true].map(|tail| before.open(ring(1, tail), 1024).unwrap());
        assert!(open().find(ring(1, true)).is_err(), "it runs");
        before.in_use().locked = None;
        let next = open();
        assert!(next.find(ring(1, false)).unwrap().is_some());
        assert!(next.find(ring(1, true)).unwrap().is_some());
        next.keep(&[ring(1, true), ring(1, false)]).unwrap();
        assert!(open().find(ring(1, true)).is_err(), "the next one has them");
        assert_eq!(next.find_removed(), []);
        drop(regions);
    }

    #[test]
    fn a_ring_outlives_its_mapping_wherever_its_cache_directory_is_mounted() {
        let (rings, cache, again) = (tempfile::tempdir().unwrap(), cache_dir(), cache_dir());
        let open = |cache: &tempfile::TempDir| RingFiles::open(rings.path(), cache.path()).unwrap();
        let files = open(&cache);
        assert!(files.find(ring(1, true)).unwrap().is_none());
        files.open(ring(1, false), 16).unwrap();
        let region = files.open(ring(1, true), 1024).unwrap();
        region.words()[1000].store(42, Ordering::Relaxed);
        drop((region, files));
        let files = open(&again);
        assert_eq!(files.list(HostId([9; 16])), [ring(1, false), ring(1, true)]);
        let found = files.find(ring(1, true)).unwrap().unwrap();
        let words = found.words();
        assert_eq!(
            (words.len(), words[1000].load(Ordering::Relaxed)),
            (1024, 42)
        );
        assert!(
            files.find(ring(2, true)).unwrap().is_none(),
            "another session's"
        );
        drop(found);
        files.open(ring(2, false), 16).unwrap();
        for tail in [true, false] {
            files.remove(ring(1, tail));
        }
        drop(files);
        assert_eq!(
            fs::read_dir(rings.path()).unwrap().count(),
            0,
            "nothing is left"
        );
    }

    #[test]
    fn rings_of_a_server_that_runs_are_neither_read_nor_moved_by_another() {
        let (rings, cache, copy) = (tempfile::tempdir().unwrap(), cache_dir(), cache_dir());
        let files = RingFiles::open(rings.path(), cache.path()).unwrap();
        files.open(ring(5, false), 16).unwrap();
        files.open(ring(5, true), 64).unwrap();
        let other = RingFiles::open(rings.path(), copy.path()).unwrap();
        let refused = other.find(ring(5, true)).expect_err("it is in use");
        assert!(
            refused.contains("--ring-dir") && refused.contains("is a copy"),
            "{refused}"
        );
        assert!(
            refused.contains(cache.path().to_str().unwrap()),
            "{refused}"
        );
        assert!(other.set_aside(ring(5, true)).is_err());
        drop(files);
        assert!(other.find(ring(5, true)).unwrap().is_some());
    }

    #[test]
    fn rings_put_aside_are_kept_in_a_bounded_number() {
        let (rings, cache) = (tempfile::tempdir().unwrap(), cache_dir());
        let files = RingFiles::open(rings.path(), cache.path()).unwrap();
        for session in 1..=20 {
            files.open(ring(session, true), 16).unwrap();
            let kept = files.set_aside(ring(session, true)).unwrap();
            let expected = usize::try_from(session).unwrap().min(ASIDE_MAX);
            assert_eq!((kept.count, kept.bytes), (expected, expected as u64 * 128));
            assert!(kept.place.ends_with(ASIDE));
        }
        assert!(files.list(HostId([9; 16])).is_empty());
    }

    #[test]
    fn rings_whose_cache_directory_is_gone_are_named_and_kept() {
        let rings = tempfile::tempdir().unwrap();
        let cache = cache_dir();
        let files = RingFiles::open(rings.path(), cache.path()).unwrap();
        files.open(ring(1, true), 64).unwrap();
        drop(files);
        let path = cache.path().to_owned();
        assert!(
            find_orphans(rings.path()).is_empty(),
            "its cache directory is there"
        );
        drop(cache);
        let found = find_orphans(rings.path());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].cache_dir, path);
        assert!(found[0].rings.is_dir());
    }
}
