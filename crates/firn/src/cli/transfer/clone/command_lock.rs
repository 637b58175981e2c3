//! One command at a time makes a copy: the lock that it has on its directory, and the wait for what an earlier one left
//! running there.
//!
//! The server of a command that was killed ends by itself, once it has brought to the store what it has. It must never be
//! ended from here.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::failure::{Failure, FailureCode, Result};

/// How long the server of an earlier command may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Held until the command ends, however that is.
#[derive(Debug)]
pub(super) struct CommandLock {
    _file: File,
}

impl CommandLock {
    /// Of a command whose files are in `dir`.
    ///
    /// # Errors
    /// If another one has it, or the server of an earlier one does not end.
    pub(super) fn take(dir: &Path) -> Result<CommandLock> {
        let path = dir.join("command");
        let cannot = |error: std::io::Error| Failure::io("lock", &path, &error);
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true);
        let file = options.open(&path).map_err(cannot)?;
        match file.try_lock() {
            Ok(()) if is_file_at(&file, &path) => {}
            Err(TryLockError::Error(error)) => return Err(cannot(error)),
            // Its holder has just removed it with the directory.
            Ok(()) | Err(TryLockError::WouldBlock) => return Err(busy(&path, dir)),
        }
        let line = format!("{:<10}\n", std::process::id());
        file.write_all_at(line.as_bytes(), 0).map_err(cannot)?;
        wait_for_server(dir)?;
        Ok(CommandLock { _file: file })
    }
}

fn busy(path: &Path, dir: &Path) -> Failure {
    Failure::new(
        FailureCode::CacheInUse,
        format!(
            "another `firn clone` (process id {}) makes this copy, in {}: wait until it has ended, or end it; this command then \
             goes on from there",
            pid_in(path),
            dir.display()
        ),
    )
}

/// Waits until nobody has the cache directory of an earlier command any more.
fn wait_for_server(dir: &Path) -> Result<()> {
    let lock = dir.join("cache/lock");
    let begun = Instant::now();
    let mut is_said = false;
    while is_locked(&lock) {
        let holder = format!(
            "the server of an earlier clone (process id {})",
            pid_in(&lock)
        );
        if begun.elapsed() > END_TIMEOUT {
            return Err(Failure::new(
                FailureCode::CacheInUse,
                format!(
                    "{holder} does not end: look in {} what it says, end it (kill {}), and run this command again",
                    dir.join("server.log").display(),
                    pid_in(&lock)
                ),
            ));
        }
        if !is_said {
            eprintln!("firn: waiting for {holder} to end: it brings to the store what it has");
            is_said = true;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn is_locked(lock: &Path) -> bool {
    let tried = File::open(lock).map(|file| file.try_lock());
    matches!(tried, Ok(Err(TryLockError::WouldBlock)))
}

fn is_file_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.metadata()) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

/// What the lock's holder wrote into it, for people to read.
fn pid_in(lock: &Path) -> String {
    let text = fs::read_to_string(lock).unwrap_or_default();
    match text.trim() {
        "" => "unknown".to_owned(),
        pid => pid.to_owned(),
    }
}
