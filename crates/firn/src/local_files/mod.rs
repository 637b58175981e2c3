//! The cache directory: what lies in it, who may use it, and how its files are made.
//!
//! Owns the names and sizes of the local files and the exclusion of a second server; never what
//! is in the log or the cache (that is the engine's). Layout:
//!
//! | name | what |
//! |---|---|
//! | `format` | one line that says that this is a firn cache directory, and of which format |
//! | `lock` | locked by the server that uses the directory; holds its process id |
//! | `log` | the write-back log: preallocated, zero-filled, of fixed size |
//! | `attached` | the volumes that a restarted server serves again |
//! | `cache` | the read cache: preallocated, of fixed size |
//!
//! Two locks, because death is not the end of I/O. `lock` goes with the process. The log's own
//! lock belongs to its open file description, which requests in flight keep alive: a successor
//! that has it knows that the dead process's last write has landed (else that write could land
//! on top of the successor's).

mod blocking_io;
mod create;
mod ring_files;

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind as Io, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use reactor::DioAlign;

use crate::cli::args::LogIo;
use crate::config::Settings;
use crate::failure::{Failure, FailureCode, Result};

pub(crate) use blocking_io::Disk;
pub(crate) use create::offered_in as direct_io_offered;
pub(crate) use create::{Progress, write_whole};
pub(crate) use ring_files::{RingFiles, boot_id, orphans};

const FORMAT_PREFIX: &str = "firn cache directory, format ";
const FORMAT: u32 = 1;

/// How long a server that is about to die is waited for: a restart right after a kill must not
/// fail, a second server started by mistake must not hang.
const DYING_PATIENCE: Duration = Duration::from_secs(3);

/// How long the I/O of a dead process is waited for. Longer than a disk's own time-out.
const LANDING_PATIENCE: Duration = Duration::from_secs(120);

/// The local files of a server, locked for it.
#[derive(Debug)]
pub(crate) struct CacheDir {
    pub(crate) path: PathBuf,
    pub(crate) log: LogFile,
    pub(crate) cache: CacheFile,
    /// Whether the log was made just now: then no index ring can belong to it.
    pub(crate) fresh: bool,
    /// Held for as long as the directory is in use.
    _lock: File,
}

/// The log and how it is read and written. It is opened once: direct and buffered I/O on one
/// file do not mix.
#[derive(Clone, Debug)]
pub(crate) struct LogFile {
    pub(crate) file: Arc<File>,
    pub(crate) bytes: u64,
    /// What direct I/O asks for; `None` where the log goes through the page cache.
    pub(crate) align: Option<DioAlign>,
    /// Why it is as it is, for `firn doctor` and the start message.
    pub(crate) reason: String,
}

/// The read cache, opened once like the log, and directly where that is offered. Through the page
/// cache a write that the disk refuses looks done: the error comes later and to nobody, and when
/// the page goes, readers find what was there before.
#[derive(Clone, Debug)]
pub(crate) struct CacheFile {
    pub(crate) file: Arc<File>,
    pub(crate) bytes: u64,
    /// What direct I/O asks for; `None` where it goes through the page cache.
    pub(crate) align: Option<DioAlign>,
}

impl CacheDir {
    /// Locks the directory and opens its files, making what is missing.
    pub(crate) fn open(settings: &Settings, progress: &mut dyn Progress) -> Result<Self> {
        let path = &settings.cache;
        // What is below was on somebody's disk: nobody else's to read.
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|source| Failure::io("create the cache directory", path, &source))?;
        let path = path
            .canonicalize()
            .map_err(|source| Failure::io("open the cache directory", path, &source))?;
        check_format(&path)?;
        let lock = lock_directory(&path)?;
        write_format(&path)?;
        let fresh = create::log(&path, settings, progress)?;
        let log = open_log(&path, settings.log_io)?;
        wait_for_landing(&path, &log.file)?;
        let cache = create::cache(&path, settings)?;
        Ok(CacheDir {
            path,
            log,
            cache,
            fresh,
            _lock: lock,
        })
    }
}

/// Refuses a directory that holds something else, or a newer format. Changes nothing.
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
                if name != "lock" && name != "lost+found" {
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
    // A FLUSH promises that loss of power takes nothing: not the new directories either. Those
    // above that this user may not open were there before.
    for above in path.ancestors().skip(1) {
        match File::open(above).and_then(|dir| dir.sync_all()) {
            Err(source) if source.kind() != Io::PermissionDenied => {
                return Err(Failure::io("sync", above, &source));
            }
            _ => {}
        }
    }
    write_whole(&file, format!("{FORMAT_PREFIX}{FORMAT}\n").as_bytes())
        .map_err(|source| Failure::io("write", &file, &source))
}

/// Takes the directory for this process, or says who has it.
fn lock_directory(path: &Path) -> Result<File> {
    let file_path = path.join("lock");
    let failed = |source| Failure::io("lock", &file_path, &source);
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&file_path)
        .map_err(failed)?;
    if !lock_within(&file, DYING_PATIENCE).map_err(failed)? {
        let holder = match fs::read_to_string(&file_path)
            .ok()
            .as_deref()
            .map(str::trim)
        {
            Some(pid) if !pid.is_empty() => format!("the server with process id {pid}"),
            _ => "another server".to_owned(),
        };
        return Err(Failure::new(
            FailureCode::CacheInUse,
            format!(
                "cache directory {} is in use by {holder}; stop it, or give this one a directory \
                 of its own with --cache",
                path.display()
            ),
        ));
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed)?;
    Ok(file)
}

fn lock_within(file: &File, patience: Duration) -> io::Result<bool> {
    let started = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if started.elapsed() >= patience => return Ok(false),
            // There is no lock with a time-out, and this happens at start only.
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            Err(TryLockError::Error(source)) => return Err(source),
        }
    }
}

fn wait_for_landing(path: &Path, log: &File) -> Result<()> {
    let log_path = path.join("log");
    if lock_within(log, Duration::ZERO).is_ok_and(|locked| !locked) {
        tracing::warn!("waiting until the I/O of a process that died has landed in the log");
    }
    match lock_within(log, LANDING_PATIENCE) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::new(
            FailureCode::CacheInUse,
            format!(
                "the log {} still has I/O in flight from a process that died {} s ago or more; \
                 see the kernel log for the disk's errors, then start again",
                log_path.display(),
                LANDING_PATIENCE.as_secs()
            ),
        )),
        Err(source) => Err(Failure::io("lock", &log_path, &source)),
    }
}

fn open_log(path: &Path, mode: LogIo) -> Result<LogFile> {
    let log_path = path.join("log");
    let failed = |source: &io::Error| Failure::io("open", &log_path, source);
    let (align, reason) = create::direct_io(&log_path, mode)?;
    let file = create::open_file(&log_path, align.is_some()).map_err(|source| failed(&source))?;
    let bytes = file.metadata().map_err(|source| failed(&source))?.len();
    Ok(LogFile {
        file: Arc::new(file),
        bytes,
        align,
        reason,
    })
}
