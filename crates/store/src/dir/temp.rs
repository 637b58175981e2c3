//! Files on their way to becoming objects, and what a killed writer leaves of them.
//!
//! A writer locks its temporary file for as long as it lives; a file without a lock was left by a
//! dead writer and is removed when a store is opened. The remover may find a file between its
//! creation and its locking: the writer then sees that it is unlinked and makes another.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::direct::DirectBuffers;
use super::file::{PRIVATE_DIR, version_of};
use crate::Version;

/// A file that is being written, removed again unless it becomes an object.
#[derive(Debug)]
pub(super) struct TempFile {
    path: PathBuf,
    file: File,
    /// Whether `path` still names the file: renaming takes the name away.
    named: bool,
}

impl TempFile {
    pub(super) fn create(root: &Path) -> io::Result<Self> {
        let private = root.join(PRIVATE_DIR);
        let dir = private.join("tmp");
        // Never the root itself: where it has gone away, nothing may be made in its place.
        for dir in [&private, &dir] {
            match fs::create_dir(dir) {
                Err(source) if source.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
        }
        loop {
            let name = format!("{}-{:016x}", std::process::id(), fastrand::u64(..));
            let path = dir.join(name);
            let file = OpenOptions::new()
                .create_new(true)
                .write(true)
                .open(&path)?;
            file.lock()?;
            let linked = file.metadata()?.nlink() > 0;
            let temp = TempFile {
                path,
                file,
                named: linked,
            };
            if linked {
                return Ok(temp);
            }
        }
    }

    /// Writes the content, gives it its version and syncs both.
    pub(super) fn fill(&mut self, bytes: &[u8], buffers: &DirectBuffers) -> io::Result<Version> {
        buffers.write(&self.file, bytes)?;
        // The kernel's own time stamps are as coarse as a tick: two writes of identical content
        // within one would have the same version.
        self.file.set_modified(SystemTime::now())?;
        self.file.sync_all()?;
        // As the file system stored it: some keep less than nanoseconds.
        Ok(version_of(bytes, self.file.metadata()?.modified()?))
    }

    /// Puts the file in place of whatever `path` names.
    pub(super) fn rename_to(&mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.named = false;
        Ok(())
    }

    /// Gives the file the name `path` if that is free.
    pub(super) fn link_to(&mut self, path: &Path) -> io::Result<()> {
        fs::hard_link(&self.path, path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if self.named {
            // A failure leaves a leftover, which the next open removes.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes what killed writers left. Failures are not the caller's: nobody reads these files.
pub(super) fn remove_leftovers(root: &Path) {
    let Ok(entries) = fs::read_dir(root.join(PRIVATE_DIR).join("tmp")) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let Ok(file) = File::open(&path) else {
            continue;
        };
        if file.try_lock().is_ok() && fs::remove_file(&path).is_ok() {
            tracing::debug!(path = %path.display(), "removed what a killed writer left");
        }
    }
}
