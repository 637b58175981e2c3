//! Takes a log out of use that holds nothing the store lacks, and makes another one in its place.
//!
//! Only `firn rescue log` does so, after it has given all volumes back, and while it has the directory
//! locked. A crash leaves the old log or the new one, never none.

use std::fs;

use super::{CacheDir, Progress, create};
use crate::config::Settings;
use crate::failure::{Failure, Result};

/// What a log is called after everything in it was moved to another directory.
const RETIRED: &str = "log.rescued";

impl CacheDir {
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
            .map_err(|source| Failure::io("rename", &log, &source))
    }
}
