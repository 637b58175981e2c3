//! Takes a log out of use that holds nothing the store lacks, and makes another one in its place.
//!
//! Only `firn rescue log` does so, after it has given all volumes back, and while it has the directory
//! locked. A crash leaves the old log or the new one, never none.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use super::{CacheDir, Progress, create};
use crate::config::Settings;
use crate::failure::{Failure, Result};

/// What a log is called after everything in it was moved to another directory.
const RETIRED: &str = "log.rescued";

/// The two copies of the superblock with which a log begins (docs/format.md).
const SUPERBLOCKS_BYTES: u64 = 2 * 4096;

impl CacheDir {
    /// Refuses a directory with a log that a server has used. One that was only made, by a move that was
    /// cut short, is zeroes.
    pub(crate) fn check_unused(path: &Path) -> Result<()> {
        if !CacheDir::has_log(path) {
            return Ok(());
        }
        let log = path.join("log");
        let mut superblocks = Vec::new();
        let read = File::open(&log)
            .and_then(|file| file.take(SUPERBLOCKS_BYTES).read_to_end(&mut superblocks));
        read.map_err(|source| Failure::io("read", &log, &source))?;
        if superblocks.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        Err(Failure::invalid(format!(
            "{} has a log already that a server has used; name a new directory with --to, or leave --to \
             out to have the files made anew where they are",
            path.display()
        )))
    }

    /// Opens a directory with files of these sizes, whose log no server has used: they are made, or those
    /// that are there are taken, or made anew if they have other sizes.
    pub(crate) fn open_unused(settings: &Settings, progress: &mut dyn Progress) -> Result<Self> {
        if !CacheDir::has_log(&settings.cache) {
            return CacheDir::open(settings, progress);
        }
        let as_it_is = Settings {
            log_size: None,
            ..settings.clone()
        };
        let found = CacheDir::open(&as_it_is, progress)?;
        // Nobody else has it now.
        CacheDir::check_unused(&found.path)?;
        if found.log.bytes != settings.new_log_bytes() {
            found.replace_files(settings, progress)?;
        }
        Ok(found)
    }

    /// Makes log and read cache anew, with the sizes of `settings`.
    pub(crate) fn replace_files(
        &self,
        settings: &Settings,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        // It can be fetched again, and the new log may need its space.
        create::remove_if_exists(&self.path.join("cache"))?;
        create::new_log(&self.path, settings.new_log_bytes(), progress)?;
        create::cache(&self.path, settings).map(drop)
    }

    /// Gives the log another name: a server that is started on this directory by mistake must not
    /// take up again what has moved elsewhere.
    pub(crate) fn retire_log(&self) -> Result<()> {
        let log = self.path.join("log");
        fs::rename(&log, self.path.join(RETIRED))
            .and_then(|()| File::open(&self.path)?.sync_all())
            .map_err(|source| Failure::io("rename", &log, &source))
    }
}
