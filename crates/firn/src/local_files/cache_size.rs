//! Changes the length of the read cache's file while it is in use.
//!
//! Nothing here knows what is in the file: who asks says when nothing is behind its new end.

use super::create::{CacheFile, allocate};
use crate::failure::{Failure, Result};
use crate::units::Size;

impl CacheFile {
    /// Makes the file longer, with its space where it goes through the page cache. After an error it has the length
    /// that it had. Blocks.
    pub(crate) fn lengthen(&self, from: Size, to: Size) -> Result<()> {
        let made = match self.align {
            Some(_) => self.file.set_len(to.0),
            None => allocate(&self.file, to.0),
        };
        made.map_err(|source| {
            // The space that it got is given back; the first error is the one to report.
            let _ = self.file.set_len(from.0);
            Failure::io(&format!("make the read cache {to}:"), &self.path, &source)
        })
    }

    /// Cuts the file. Blocks.
    pub(crate) fn cut(&self, to: Size) -> Result<()> {
        let cut = self.file.set_len(to.0);
        cut.map_err(|source| {
            Failure::io(&format!("cut the read cache to {to}:"), &self.path, &source)
        })
    }
}
