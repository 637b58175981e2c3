//! Creates the local files: each completely or not at all, and with its space allocated but for a
//! read cache with direct I/O, which takes space as it fills.
//!
//! The log is zero-filled before its first use: with unwritten extents, every sync would also have
//! to commit the file system's journal. A file gets its name only when it is complete, so that one
//! that a crash cut short is never taken for a log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind as Io, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use reactor::DioAlign;
use rustix::fs::{FallocateFlags, OFlags};

use crate::cli::args::LogIo;
use crate::config::Settings;
use crate::failure::{Failure, FailureCode, Result};
use crate::units::Size;

/// Bytes per write while the log is filled.
const FILL_BYTES: usize = 4 << 20;

/// The files hold the contents of disks: only the owner may read them.
const FILE_MODE: u32 = 0o600;

/// The largest alignment that the engine's 4 KiB units satisfy.
const ALIGN_MAX: u32 = 4096;

/// The log, opened once: direct and buffered I/O on one file must not mix.
#[derive(Clone, Debug)]
pub(crate) struct LogFile {
    pub(crate) file: Arc<File>,
    pub(crate) bytes: u64,
    /// The alignment of direct I/O; `None` if the log goes through the page cache.
    pub(crate) align: Option<DioAlign>,
    /// Why direct I/O is used or not, for the start message.
    pub(crate) reason: String,
}

/// The read cache, opened once like the log, with direct I/O where that is possible. Through the
/// page cache, a write that the disk refuses seems to succeed: the error comes later and reaches
/// nobody, and once the page is evicted, readers get the old bytes. So there its space is allocated
/// at the start, that no write is refused for want of it.
#[derive(Clone, Debug)]
pub(crate) struct CacheFile {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<File>,
    /// When it was opened.
    pub(crate) bytes: u64,
    /// The alignment of direct I/O; `None` if the file goes through the page cache.
    pub(crate) align: Option<DioAlign>,
}

impl CacheFile {
    /// Device and inode, which tell whether another file has taken its name.
    pub(crate) fn identity(&self) -> io::Result<(u64, u64)> {
        let metadata = self.file.metadata()?;
        Ok((metadata.dev(), metadata.ino()))
    }
}

/// Is told how far the creation of a new log has got.
pub(crate) trait Progress {
    /// Of a log of `total_bytes`, `done_bytes` are written.
    fn on_filled(&mut self, done_bytes: u64, total_bytes: u64);
}

/// Creates the log if there is none. Returns whether it did.
pub(super) fn log(dir: &Path, settings: &Settings, progress: &mut dyn Progress) -> Result<bool> {
    remove_if_exists(&dir.join("log.new"))?;
    if let Ok(metadata) = fs::metadata(dir.join("log")) {
        return check_size(metadata.len(), settings.log_size).map(|()| false);
    }
    new_log(dir, settings.new_log_bytes(), progress).map(|()| true)
}

/// Makes a log; it takes the place of one that is there.
pub(super) fn new_log(dir: &Path, bytes: u64, progress: &mut dyn Progress) -> Result<()> {
    let path = dir.join("log");
    let unfinished = dir.join("log.new");
    remove_if_exists(&unfinished)?;
    let made = fill(&unfinished, bytes, progress)
        .and_then(|()| fs::rename(&unfinished, &path))
        .and_then(|()| File::open(dir)?.sync_all());
    made.map_err(|source| {
        // Free the space of the incomplete file; the first error is the one to report.
        let _ = fs::remove_file(&unfinished);
        Failure::io(&format!("make a log of {} in", Size(bytes)), dir, &source)
    })
}

/// Opens the log, whose size its creation fixed.
pub(super) fn open_log(path: &Path, mode: LogIo) -> Result<LogFile> {
    let log_path = path.join("log");
    let failed = |source: &io::Error| Failure::io("open", &log_path, source);
    let (align, reason) = direct_io(&log_path, mode)?;
    let file = open_file(&log_path, align.is_some()).map_err(|source| failed(&source))?;
    let bytes = file.metadata().map_err(|source| failed(&source))?.len();
    Ok(LogFile {
        file: Arc::new(file),
        bytes,
        align,
        reason,
    })
}

fn fill(path: &Path, bytes: u64, progress: &mut dyn Progress) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(path)?;
    // A full disk is found here at once, instead of after minutes of writing.
    allocate(&file, bytes)?;
    let zeroes = vec![0; FILL_BYTES];
    let mut done = 0;
    while done < bytes {
        let step = FILL_BYTES.min(usize::try_from(bytes - done).unwrap_or(FILL_BYTES));
        file.write_all(&zeroes[..step])?;
        done += step as u64;
        progress.on_filled(done, bytes);
    }
    file.sync_all()
}

/// Opens the cache file. Creates it if it is missing or has another size: its contents can be
/// fetched again. With direct I/O it takes space as it fills; what there is no room for is not cached.
pub(super) fn cache(dir: &Path, settings: &Settings) -> Result<CacheFile> {
    let (path, found) = find_cache(dir)?;
    let wanted = match (found, settings.cache_size) {
        (Some(bytes), None) => bytes,
        _ => settings.new_cache_bytes(),
    };
    if found != Some(wanted) {
        remove_if_exists(&path)?;
    }
    let failed = |source: io::Error| {
        let _ = fs::remove_file(&path);
        Failure::io(
            &format!("make a cache of {} in", Size(wanted)),
            dir,
            &source,
        )
    };
    if found != Some(wanted) {
        name_cache(dir, wanted).map_err(failed)?;
    }
    let (file, align) = open_cache(&path, settings)?;
    if align.is_none() {
        allocate(&file, wanted).map_err(failed)?;
    }
    Ok(CacheFile {
        path,
        file: Arc::new(file),
        bytes: wanted,
        align,
    })
}

/// Opens the cache file that the program before used, with the size that it has: clients wait, and the space for another
/// size may not be there. Which one is configured is looked at when they are served. What space this one lacks costs the
/// cache, not the server.
pub(super) fn passed_cache(dir: &Path, settings: &Settings) -> Result<CacheFile> {
    let (path, found) = find_cache(dir)?;
    if found.is_none() {
        // Somebody removed it below the program before.
        name_cache(dir, 0).map_err(|source| Failure::io("make a cache in", dir, &source))?;
    }
    let mut bytes = found.unwrap_or(0);
    let (file, align) = open_cache(&path, settings)?;
    if align.is_none()
        && let Err(error) = allocate(&file, bytes)
    {
        tracing::warn!(%error, size = %Size(bytes), "the read cache has not the space that it needs without direct I/O, and is empty; make room, and set cache-size again");
        file.set_len(0)
            .map_err(|source| Failure::io("cut the read cache", &path, &source))?;
        bytes = 0;
    }
    Ok(CacheFile {
        path,
        file: Arc::new(file),
        bytes,
        align,
    })
}

/// Where the cache file is, and the size of the one that is there.
fn find_cache(dir: &Path) -> Result<(PathBuf, Option<u64>)> {
    remove_if_exists(&dir.join("cache.new"))?;
    let path = dir.join("cache");
    let found = fs::metadata(&path).ok().map(|metadata| metadata.len());
    Ok((path, found))
}

/// Makes a cache file. Its size is what the next server goes by, so it gets its name with that.
fn name_cache(dir: &Path, bytes: u64) -> io::Result<()> {
    let unfinished = dir.join("cache.new");
    open_file(&unfinished, false)?.set_len(bytes)?;
    fs::rename(&unfinished, dir.join("cache"))
}

/// Opens the cache file that is there; the alignment of direct I/O if it is open for that.
fn open_cache(path: &Path, settings: &Settings) -> Result<(File, Option<DioAlign>)> {
    let (align, _) = direct_io(path, settings.log_io)?;
    let file = open_file(path, align.is_some());
    let file = file.map_err(|source| Failure::io("open", path, &source))?;
    Ok((file, align))
}

/// Opens a file for reading and writing, with or without the page cache.
pub(super) fn open_file(path: &Path, direct: bool) -> io::Result<File> {
    let flags = if direct {
        OFlags::DIRECT
    } else {
        OFlags::empty()
    };
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(!direct)
        .truncate(false)
        .mode(FILE_MODE)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

/// Whether to use direct I/O on the file at `path`, and why.
pub(super) fn direct_io(path: &Path, mode: LogIo) -> Result<(Option<DioAlign>, String)> {
    if mode == LogIo::Buffered {
        return Ok((None, "buffered I/O was asked for".to_owned()));
    }
    match direct_io_alignment(path) {
        Ok(align) => {
            let what = format!("the file system takes multiples of {} bytes", align.offset);
            Ok((Some(align), what))
        }
        Err(why) if mode == LogIo::Auto => Ok((None, why)),
        Err(why) => Err(Failure::new(
            FailureCode::NoDirectIo,
            format!(
                "direct I/O on {} is not possible: {why}; use --log-io auto or buffered, or \
                 another file system",
                path.display()
            ),
        )),
    }
}

/// The alignment that direct I/O on this file needs, or why there is none.
fn direct_io_alignment(path: &Path) -> std::result::Result<DioAlign, String> {
    let file = open_file(path, true).map_err(|source| describe_refusal(&source))?;
    alignment(&file)
}

/// The alignment that direct I/O on a file in `dir` needs. Probes with a file without a name.
pub(crate) fn direct_io_alignment_in(dir: &Path) -> std::result::Result<DioAlign, String> {
    let flags = OFlags::TMPFILE | OFlags::DIRECT;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags.bits().cast_signed())
        .open(dir)
        .map_err(|source| describe_refusal(&source))?;
    alignment(&file)
}

fn describe_refusal(source: &io::Error) -> String {
    match source.kind() {
        Io::InvalidInput => "the file system has no direct I/O".to_owned(),
        _ => source.to_string(),
    }
}

fn alignment(file: &File) -> std::result::Result<DioAlign, String> {
    match DioAlign::of(file) {
        Ok(Some(align)) if align.offset <= ALIGN_MAX && align.memory <= ALIGN_MAX => Ok(align),
        Ok(Some(align)) => Err(format!("it needs multiples of {} bytes", align.offset)),
        Ok(None) => Err("the kernel does not say which alignment it needs".to_owned()),
        Err(source) => Err(source.to_string()),
    }
}

/// Replaces a small file atomically and durably.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = path.with_extension("new");
    let mut file = File::create(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    path.parent()
        .map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

pub(super) fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes),
        done => Ok(done?),
    }
}

pub(super) fn remove_if_exists(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != Io::NotFound => Err(Failure::io("remove", path, &source)),
        _ => Ok(()),
    }
}

fn check_size(found: u64, wanted: Option<Size>) -> Result<()> {
    match wanted {
        Some(wanted) if wanted.0 != found => Err(Failure::invalid(format!(
            "the log of this cache directory has {}, --log-size says {wanted}, and its size \
             cannot change while it is in use; leave --log-size out, or make it anew with \
             `firn rescue log --log-size {wanted}`",
            Size(found)
        ))),
        _ => Ok(()),
    }
}
