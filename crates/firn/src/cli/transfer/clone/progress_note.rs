//! What a command notes in its directory of how far it is, for the moments in which the other store cannot say it: before the
//! copy has its mark, and after it lost it.
//!
//! A note that is lost costs a message to the user, never a copy: a volume that is taken for the copy by it is looked at, too.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

/// The file, and what is in it.
pub(super) struct ProgressNote {
    path: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NoteContent {
    /// The snapshot that is copied last.
    pub(super) moment: String,
    /// The size that the copy has, or gets when it is made.
    pub(super) size_bytes: u64,
    /// The identity of the copy, once it is whole.
    pub(super) whole: Option<String>,
}

impl ProgressNote {
    pub(super) fn new(dir: &Path) -> ProgressNote {
        ProgressNote {
            path: dir.join("progress.json"),
        }
    }

    pub(super) fn is_at(&self, path: &Path) -> bool {
        self.path == path
    }

    /// What an earlier command left.
    pub(super) fn read(&self) -> Option<NoteContent> {
        let text = fs::read(&self.path).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// There is nothing to go on with.
    pub(super) fn remove(&self) -> Result<()> {
        let removed = fs::remove_file(&self.path);
        removed.map_err(|error| Failure::io("remove", &self.path, &error))
    }

    pub(super) fn write(&self, noted: &NoteContent) -> Result<()> {
        let cannot = |error: std::io::Error| Failure::io("write", &self.path, &error);
        let text = serde_json::to_vec(noted);
        let text = text.map_err(|error| Failure::internal(error.to_string()))?;
        let partial = self.path.with_extension("partial");
        fs::write(&partial, text).map_err(cannot)?;
        fs::rename(&partial, &self.path).map_err(cannot)
    }
}
