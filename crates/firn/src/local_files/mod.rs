//! The cache directory: its files, and the locks that exclude a second server.
//!
//! Owns the names and sizes of the local files; what the log and the cache contain is the engine's.
//! Layout:
//!
//! | name | what |
//! |---|---|
//! | `format` | one line that names this a firn cache directory, and its format version |
//! | `lock` | locked by the server that uses the directory; holds its process id |
//! | `log` | the write-back log: preallocated, zero-filled, of fixed size |
//! | `attached` | the volumes that a restarted server serves again; of reserved space |
//! | `starts` | what the last starts of a server were doing when they ended; of reserved space |
//! | `cache` | the read cache: takes space as it fills, up to its size |
//!
//! There are two locks, because I/O may outlive the process that started it. `lock` is released
//! when the process dies. The log's own lock belongs to its open file description, which requests in
//! flight keep alive: once a successor holds it, the dead process's last write has completed and can
//! no longer overwrite one of the successor's.

mod blocking_io;
mod cache_size;
mod create;
mod disk_watch;
mod free_space;
mod read_buffers;
mod replace;
mod reserved_file;
pub(crate) mod ring_dir;
mod ring_files;

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind as Io};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::config::Settings;
use crate::failure::{Failure, FailureCode, Result};

pub(crate) use blocking_io::{BlockingIo, PIECE_BYTES};
pub(crate) use create::direct_io_alignment_in;
pub(crate) use create::{CacheFile, LogFile, Progress};
pub(crate) use disk_watch::{DiskState, DiskWatch};
pub(crate) use reserved_file::ReservedFile;
pub(crate) use ring_files::{OrphanedRings, RingFiles, boot_id, find_orphans};

const FORMAT_PREFIX: &str = "firn cache directory, format ";
const FORMAT: u32 = 1;

/// Width of the process id in the file `lock`.
const LOCK_BYTES: usize = 20;

/// How long to wait for the lock: a restart right after a kill must not fail, and a second server
/// started by mistake must not hang.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// How long to wait for the I/O of a dead process: longer than a disk's own time-out.
const LOG_LOCK_TIMEOUT: Duration = Duration::from_secs(120);

/// The local files of a server, locked for it.
#[derive(Debug)]
pub(crate) struct CacheDir {
    pub(crate) path: PathBuf,
    pub(crate) log: LogFile,
    pub(crate) cache: CacheFile,
    /// Held for as long as the directory is in use.
    lock: File,
}

impl CacheDir {
    /// Whether a log is in the directory, so that a server has run on it before.
    pub(crate) fn has_log(path: &Path) -> bool {
        path.join("log").exists()
    }

    /// Watches whether the disk of this directory completes writes.
    pub(crate) fn watch_disk(&self) -> Result<DiskWatch> {
        let file = self.lock.try_clone();
        let watch = file.and_then(|file| DiskWatch::start(file, lock_content()));
        watch.map_err(|source| Failure::io("watch the disk of", &self.path, &source))
    }

    /// The server that has the directory locked, in words.
    pub(crate) fn holder(path: &Path) -> Option<String> {
        let file_path = path.join("lock");
        is_locked(&file_path).then(|| describe_holder(&file_path))
    }

    /// Its process id.
    pub(crate) fn holder_pid(path: &Path) -> Option<u32> {
        let file_path = path.join("lock");
        is_locked(&file_path).then(|| read_pid(&file_path))?
    }

    /// Locks the directory and opens its files, creating those that are missing.
    pub(crate) fn open(settings: &Settings, progress: &mut dyn Progress) -> Result<Self> {
        Self::open_locked(settings, None, progress)
    }

    /// The directory's lock, for the program that takes this one's place.
    pub(crate) fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// The same, with the lock that the program before has passed.
    pub(crate) fn open_locked(
        settings: &Settings,
        passed: Option<File>,
        progress: &mut dyn Progress,
    ) -> Result<Self> {
        let path = &settings.cache;
        // The files hold the contents of disks: only the owner may read them.
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|source| Failure::io("create the cache directory", path, &source))?;
        let path = path
            .canonicalize()
            .map_err(|source| Failure::io("open the cache directory", path, &source))?;
        check_format(&path)?;
        let passed = passed.filter(|lock| is_file_at(lock, &path.join("lock")));
        let is_passed = passed.is_some();
        let lock = passed.map_or_else(|| lock_directory(&path), Ok)?;
        write_format(&path)?;
        create::log(&path, settings, progress)?;
        let log = create::open_log(&path, settings.log_io)?;
        wait_for_inflight_io(&path, &log.file)?;
        let cache = match is_passed {
            true => create::passed_cache(&path, settings)?,
            false => create::cache(&path, settings)?,
        };
        Ok(CacheDir {
            path,
            log,
            cache,
            lock,
        })
    }
}

/// Refuses a directory of other files or of a newer format. Changes nothing.
fn check_format(path: &Path) -> Result<()> {
    let foreign = |text: String| {
        Err(Failure::new(
            FailureCode::ForeignFormat,
            format!("cache directory {}: {text}", path.display()),
        ))
    };
    match fs::read(path.join("format")) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            match text
                .trim_end()
                .strip_prefix(FORMAT_PREFIX)
                .map(str::parse::<u32>)
            {
                Some(Ok(FORMAT)) => Ok(()),
                Some(Ok(newer)) => foreign(format!(
                    "it has format {newer}, this firn knows only format {FORMAT}; use a newer firn"
                )),
                _ => foreign(
                    "its file `format` is damaged; restore it, or name a new directory".to_owned(),
                ),
            }
        }
        Err(source) if source.kind() == Io::NotFound => {
            let entries = fs::read_dir(path)
                .map_err(|source| Failure::io("read the cache directory", path, &source))?;
            for name in entries.flatten().map(|entry| entry.file_name()) {
                // The last is what a first start leaves that was killed as it wrote the file.
                if !["lock", "lost+found", "format.new"]
                    .iter()
                    .any(|own| name == *own)
                {
                    return foreign(format!(
                        "it is not empty (it has {}) and was not made by firn; name an empty or \
                         new directory",
                        name.display()
                    ));
                }
            }
            Ok(())
        }
        Err(source) => Err(Failure::io("read", &path.join("format"), &source)),
    }
}

fn write_format(path: &Path) -> Result<()> {
    let file = path.join("format");
    if file.exists() {
        return Ok(());
    }
    // A FLUSH promises that data survives loss of power, so the new directories must survive too.
    // A directory above that this user may not open existed before.
    for above in path.ancestors().skip(1) {
        match File::open(above).and_then(|dir| dir.sync_all()) {
            Err(source) if source.kind() != Io::PermissionDenied => {
                return Err(Failure::io("sync", above, &source));
            }
            _ => {}
        }
    }
    create::write_atomically(&file, format!("{FORMAT_PREFIX}{FORMAT}\n").as_bytes())
        .map_err(|source| Failure::io("write", &file, &source))
}

/// Locks the directory for this process, or fails with the holder's process id.
fn lock_directory(path: &Path) -> Result<File> {
    let file_path = path.join("lock");
    let failed = |source| Failure::io("lock", &file_path, &source);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&file_path)
        .map_err(failed)?;
    if !lock_within(&file, LOCK_TIMEOUT).map_err(failed)? {
        let holder = describe_holder(&file_path);
        return Err(Failure::new(
            FailureCode::CacheInUse,
            format!(
                "cache directory {} is in use by {holder}; stop it, or give this one a directory \
                 of its own with --cache",
                path.display()
            ),
        ));
    }
    // In place, at a fixed width: the block of the last server's id stays this file's, so that a
    // full disk cannot keep a server from starting. The id only helps people.
    if let Err(error) = file.write_all_at(&lock_content(), 0) {
        tracing::warn!(path = %file_path.display(), %error, "the process id is not in the lock file");
    }
    Ok(file)
}

fn is_file_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.metadata()) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

/// What the file `lock` holds while this process has it.
fn lock_content() -> Vec<u8> {
    format!("{:<LOCK_BYTES$}\n", std::process::id()).into_bytes()
}

fn is_locked(lock: &Path) -> bool {
    let tried = File::open(lock).map(|file| file.try_lock());
    matches!(tried, Ok(Err(TryLockError::WouldBlock)))
}

fn read_pid(lock: &Path) -> Option<u32> {
    fs::read_to_string(lock).ok()?.trim().parse().ok()
}

/// Who has this file locked, and whether it is about to end.
fn describe_holder(lock: &Path) -> String {
    let Some(pid) = read_pid(lock) else {
        return "another server".to_owned();
    };
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    match state.map(str::trim).and_then(|state| state.chars().next()) {
        Some('D') => format!(
            "the server with process id {pid}, which waits for a disk and ends only when that answers; \
             see the kernel log"
        ),
        Some('Z' | 'X') => format!("the server with process id {pid}, which is dying"),
        _ => format!("the server with process id {pid}"),
    }
}

fn lock_within(file: &File, timeout: Duration) -> io::Result<bool> {
    let started = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if started.elapsed() >= timeout => return Ok(false),
            // The kernel has no file lock with a time-out; this loop runs at start only.
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            Err(TryLockError::Error(source)) => return Err(source),
        }
    }
}

fn wait_for_inflight_io(path: &Path, log: &File) -> Result<()> {
    let log_path = path.join("log");
    if lock_within(log, Duration::ZERO).is_ok_and(|locked| !locked) {
        tracing::warn!("waiting until the I/O of a dead process on the log has completed");
    }
    match lock_within(log, LOG_LOCK_TIMEOUT) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::new(
            FailureCode::CacheInUse,
            format!(
                "the log {} still has I/O in flight from a process that died {} s ago or more; \
                 see the kernel log for the disk's errors, then start again",
                log_path.display(),
                LOG_LOCK_TIMEOUT.as_secs()
            ),
        )),
        Err(source) => Err(Failure::io("lock", &log_path, &source)),
    }
}
