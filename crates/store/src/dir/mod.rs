//! The directory store: objects are plain files, with a conditional update of its own.
//!
//! Owns one directory, which any number of processes may use at once and in which each may be
//! killed at any moment. What it must never do is show a torn object, let two conditional writers
//! both win, or answer a write that a power cut could undo.
//!
//! Layout: the object `a/b` is the file `a/b`, byte for byte, so that a store can be inspected and
//! copied with ordinary tools. `.firn-store/` holds what is private: `format` (says what this
//! directory is), `lock/` (see `lock`) and `tmp/` (see `temp`). A version is the content's hash
//! and the file's modification time, which every write sets to the nanosecond: so versions need no
//! second file that could disagree with the first, and identical content does not alias.
//!
//! A write makes a complete, synced file in `tmp/`, then takes the key's lock, checks its
//! condition, moves the file into place in one step (`link(2)` or `rename(2)`) and syncs the
//! directory before it lets go. Readers take no lock: they open one file, old or new. Who reads a whole
//! object syncs its directory first: the writer may have been killed before it could, or may be doing it
//! still, and whoever does not know whether a write of its own went in believes what it reads.

mod direct;
mod file;
mod format;
mod lock;
mod mount;
mod part;
mod temp;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::key::check_prefix;
use crate::{Error, Kind, Op, Result, Store, Version, check_key};
pub use mount::mount_point;

use direct::DirectBuffers;
use file::{PRIVATE_DIR, io_error, read, sync_dir};
use temp::TempFile;

/// Calls at a time. Whoever gives up waiting for one leaves its thread behind in the call, for as
/// long as a file system that has gone away (NFS) keeps it there: those must not become all the
/// threads that the runtime has for calls that block.
const CALLS_MAX: usize = 96;

/// A store in a directory.
#[derive(Clone, Debug)]
pub struct DirStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    root: PathBuf,
    /// Directories whose own entry this process has seen made durable.
    durable_dirs: Mutex<HashSet<PathBuf>>,
    calls: Arc<Semaphore>,
    buffers: DirectBuffers,
    /// Makes a directory's entries durable.
    sync_dir: fn(&Path) -> io::Result<()>,
}

/// What must hold for a write to go in.
enum Condition {
    None,
    Absent,
    Is(Version),
}

impl DirStore {
    /// Opens the store in `root`, which is created when missing. A directory that holds anything
    /// else, or a store of a newer format, is refused. Blocks on file-system calls.
    pub fn open(root: &Path) -> Result<Self> {
        let failed = |source| io_error(Op::Open, &format!("store {}", root.display()), source);
        fs::create_dir_all(root).map_err(failed)?;
        let root = root.canonicalize().map_err(failed)?;
        let buffers = DirectBuffers::new();
        format::check_or_create(&root, &buffers)?;
        temp::remove_leftovers(&root);
        Ok(DirStore {
            shared: Arc::new(Shared {
                root,
                durable_dirs: Mutex::new(HashSet::new()),
                calls: Arc::new(Semaphore::new(CALLS_MAX)),
                buffers,
                sync_dir,
            }),
        })
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.shared.root
    }

    async fn blocking<T: Send + 'static>(
        &self,
        op: Op,
        key: &str,
        work: impl FnOnce(&Shared, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = Arc::clone(&self.shared);
        let owned = key.to_owned();
        // Never closed; were it, going on without a permit is right.
        let permit = Arc::clone(&self.shared.calls).acquire_owned().await;
        let call = move || {
            // Given back by the call itself, however long it takes.
            let _permit = permit;
            shared.check_present(op, &owned)?;
            let result = work(&shared, &owned);
            // It may have gone away meanwhile; then what seemed missing or changed was not.
            if let Err(error) = &result
                && matches!(error.kind(), Kind::NotFound | Kind::PreconditionFailed)
            {
                shared.check_present(op, &owned)?;
            }
            result
        };
        match tokio::task::spawn_blocking(call).await {
            Ok(result) => result,
            Err(source) => {
                let kind = if op.writes() {
                    Kind::Unknown
                } else {
                    Kind::Unavailable
                };
                Err(Error::new(
                    kind,
                    op,
                    key,
                    "the file-system call did not return; look for a panic in the log",
                )
                .with_source(source))
            }
        }
    }

    async fn write(&self, op: Op, key: &str, bytes: Bytes, on: Condition) -> Result<Version> {
        check_key(op, key)?;
        self.blocking(op, key, move |shared, key| {
            shared.write(op, key, &bytes, &on)
        })
        .await
    }
}

#[async_trait]
impl Store for DirStore {
    async fn get(&self, key: &str) -> Result<(Bytes, Version)> {
        check_key(Op::Get, key)?;
        self.blocking(Op::Get, key, |shared, key| shared.read(key))
            .await
    }

    async fn get_range(&self, key: &str, offset: u64, len: u64) -> Result<Bytes> {
        check_key(Op::GetRange, key)?;
        self.blocking(Op::GetRange, key, move |shared, key| {
            shared.read_range(key, offset, len)
        })
        .await
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<Version> {
        self.write(Op::Put, key, bytes, Condition::None).await
    }

    async fn create(&self, key: &str, bytes: Bytes) -> Result<Version> {
        self.write(Op::Create, key, bytes, Condition::Absent).await
    }

    async fn update(&self, key: &str, bytes: Bytes, version: &Version) -> Result<Version> {
        self.write(Op::Update, key, bytes, Condition::Is(version.clone()))
            .await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        check_key(Op::Delete, key)?;
        self.blocking(Op::Delete, key, |shared, key| shared.delete(key))
            .await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>> {
        check_prefix(Op::List, prefix)?;
        self.blocking(Op::List, prefix, |shared, prefix| {
            let mut found = Vec::new();
            let dir = prefix.trim_end_matches('/');
            walk(&shared.path(dir), dir, &mut found)
                .map_err(|source| io_error(Op::List, prefix, source))?;
            found.sort_unstable();
            Ok(found)
        })
        .await
    }

    async fn list_part(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, u64)>> {
        check_prefix(Op::List, prefix)?;
        if !after.is_empty() {
            check_key(Op::List, after)?;
        }
        let after = after.to_owned();
        self.blocking(Op::List, prefix, move |shared, prefix| {
            let dir = prefix.trim_end_matches('/');
            part::part(&shared.path(dir), dir, &after, limit)
                .map_err(|source| io_error(Op::List, prefix, source))
        })
        .await
    }

    fn name(&self) -> String {
        format!("directory {}", self.shared.root.display())
    }

    fn describe_hazard(&self) -> Option<String> {
        mount::hazard(&self.shared.root)
    }
}

impl Shared {
    /// The file of a checked key: checking is what keeps it inside the root.
    fn path(&self, key: &str) -> PathBuf {
        self.root.join(key)
    }

    /// Is the store there at all? An unmounted or moved directory must look like an outage, never
    /// like a store without objects: its volumes would seem lost to somebody else.
    fn check_present(&self, op: Op, key: &str) -> Result<()> {
        let marker = self.root.join(PRIVATE_DIR).join("format");
        fs::metadata(marker).map(drop).map_err(|source| {
            let detail = format!(
                "the store's directory {} is not there: was it unmounted or moved?",
                self.root.display()
            );
            Error::new(Kind::Unavailable, op, key, detail).with_source(source)
        })
    }

    /// A whole object, once a power cut cannot take it away again.
    fn read(&self, key: &str) -> Result<(Bytes, Version)> {
        let path = self.path(key);
        let failed = |source| io_error(Op::Get, key, source);
        let found = read(&path).map_err(failed)?;
        if !canary::active!("directory_shows_what_is_not_durable") {
            // After the read: what has come into its place since is not shown.
            (self.sync_dir)(path.parent().unwrap_or(&self.root)).map_err(failed)?;
        }
        Ok(found)
    }

    fn read_range(&self, key: &str, offset: u64, len: u64) -> Result<Bytes> {
        let failed = |source| io_error(Op::GetRange, key, source);
        let file = File::open(self.path(key)).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let inside = offset.checked_add(len).is_some_and(|end| end <= size);
        let buffer = usize::try_from(len).ok().filter(|_| inside);
        let Some(buffer) = buffer else {
            let detail = format!("bytes {offset}+{len} leave the object, which has {size}");
            return Err(Error::new(Kind::OutOfRange, Op::GetRange, key, detail));
        };
        let mut bytes = vec![0; buffer];
        file.read_exact_at(&mut bytes, offset).map_err(failed)?;
        Ok(bytes.into())
    }

    fn write(&self, op: Op, key: &str, bytes: &[u8], on: &Condition) -> Result<Version> {
        let path = self.path(key);
        let failed = |source| io_error(op, key, source);
        let mut temp = TempFile::create(&self.root).map_err(failed)?;
        let version = temp.fill(bytes, &self.buffers).map_err(failed)?;
        let parent = path.parent().unwrap_or(&self.root);
        self.make_dirs(parent).map_err(failed)?;

        let _lock = lock::lock_key(&self.root, key).map_err(failed)?;
        let precondition_failed = |detail| Error::new(Kind::PreconditionFailed, op, key, detail);
        match on {
            Condition::None => temp.rename_to(&path).map_err(failed)?,
            Condition::Absent => match temp.link_to(&path) {
                Err(source) if source.kind() == Io::AlreadyExists => {
                    return Err(precondition_failed("the object exists"));
                }
                linked => linked.map_err(failed)?,
            },
            Condition::Is(expected) => {
                let (_, now) = read(&path).map_err(failed)?;
                if now != *expected {
                    return Err(precondition_failed(
                        "another writer changed the object first; read it again",
                    ));
                }
                temp.rename_to(&path).map_err(failed)?;
            }
        }
        (self.sync_dir)(parent).map_err(|source| applied_but_unsynced(op, key, source))?;
        Ok(version)
    }

    fn delete(&self, key: &str) -> Result<()> {
        let path = self.path(key);
        let failed = |source| io_error(Op::Delete, key, source);
        let _lock = lock::lock_key(&self.root, key).map_err(failed)?;
        let parent = path.parent().unwrap_or(&self.root);
        if let Err(source) = fs::remove_file(&path) {
            let error = failed(source);
            if error.kind() != Kind::NotFound {
                return Err(error);
            }
            if !parent.is_dir() {
                return Ok(());
            }
            // Who removed it may have been killed before that was durable.
        }
        (self.sync_dir)(parent).map_err(|source| applied_but_unsynced(Op::Delete, key, source))
    }

    /// Makes `dir` and the directories above it, durably. A directory that was there already
    /// counts as durable only once this process has synced its parent: who made it may have been
    /// killed before it could.
    fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        let known = || {
            self.durable_dirs
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if dir == self.root || known().contains(dir) {
            return Ok(());
        }
        let parent = dir.parent().unwrap_or(&self.root);
        self.make_dirs(parent)?;
        match fs::create_dir(dir) {
            Err(source) if source.kind() == Io::AlreadyExists && dir.is_dir() => {}
            made => made?,
        }
        (self.sync_dir)(parent)?;
        known().insert(dir.to_owned());
        Ok(())
    }
}

fn walk(dir: &Path, key: &str, found: &mut Vec<(String, u64)>) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(source) if matches!(source.kind(), Io::NotFound | Io::NotADirectory) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
            continue;
        };
        let below = if key.is_empty() {
            name
        } else {
            format!("{key}/{name}")
        };
        // Private names, and anything else that no key could have made, are not objects.
        if check_key(Op::List, &below).is_err() {
            continue;
        }
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => walk(&entry.path(), &below, found)?,
            Ok(metadata) => found.push((below, metadata.len())),
            Err(source) if source.kind() == Io::NotFound => {}
            Err(source) => return Err(source),
        }
    }
    Ok(())
}

/// The step that makes the change visible was done, the sync after it failed.
fn applied_but_unsynced(op: Op, key: &str, source: io::Error) -> Error {
    Error::new(
        Kind::Unknown,
        op,
        key,
        "it is in place, but its directory could not be synced; check the disk",
    )
    .with_source(source)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Whether directories cannot be synced, for the one test that asks for it.
    static BROKEN: AtomicBool = AtomicBool::new(false);

    fn sync_dir_unless_broken(dir: &Path) -> io::Result<()> {
        match BROKEN.load(Ordering::SeqCst) {
            true => Err(io::Error::from_raw_os_error(5)),
            false => sync_dir(dir),
        }
    }

    fn an_object_is_shown_only_once_its_name_is_durable() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = DirStore::open(dir.path()).unwrap();
        let shared = Arc::get_mut(&mut store.shared).unwrap();
        shared.sync_dir = sync_dir_unless_broken;
        BROKEN.store(false, Ordering::SeqCst);
        let first = shared.write(Op::Create, "a/b", b"1", &Condition::Absent);
        let first = first.unwrap();
        BROKEN.store(true, Ordering::SeqCst);
        let second = shared.write(Op::Update, "a/b", b"2", &Condition::Is(first));
        assert_eq!(second.unwrap_err().kind(), Kind::Unknown);
        // It is in place, and a power cut may take it away again: nobody may take it for written.
        let unsure = shared.read("a/b").map(|(bytes, _)| bytes);
        assert_eq!(unsure.unwrap_err().kind(), Kind::Unavailable);
        BROKEN.store(false, Ordering::SeqCst);
        assert_eq!(&shared.read("a/b").unwrap().0[..], b"2");
        // The same for what was removed.
        BROKEN.store(true, Ordering::SeqCst);
        assert_eq!(shared.delete("a/b").unwrap_err().kind(), Kind::Unknown);
        let gone = shared.delete("a/b").map_err(|error| error.kind());
        assert_eq!(gone, Err(Kind::Unknown), "it could come back");
        BROKEN.store(false, Ordering::SeqCst);
        shared.delete("a/b").unwrap();
        shared.delete("c/d").unwrap();
    }

    /// One test after the other: they share how directories are synced.
    #[test]
    fn names_are_durable_before_they_are_believed_and_the_planted_bug_is_seen() {
        an_object_is_shown_only_once_its_name_is_durable();
        let planted = || {
            canary::with(
                "directory_shows_what_is_not_durable",
                an_object_is_shown_only_once_its_name_is_durable,
            );
        };
        assert!(std::panic::catch_unwind(planted).is_err());
    }
}
