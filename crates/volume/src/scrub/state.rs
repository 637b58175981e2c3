//! What the scrub of this process has read and found. It does no I/O.

use crate::lock::lock;
use crate::sync::Mutex;

/// What the scrub has done since this process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Passes over all that there are checksums of: they came to their end, began with the first place, and left none out.
    pub passes: u64,
    /// When the last one did, in milliseconds since 1970.
    pub last_pass_unix_ms: Option<u64>,
    /// Bytes that were read.
    pub read_bytes: ScrubCounts,
    /// Places that were damaged, and are read from the store since.
    pub damaged: ScrubCounts,
}

/// A count for each part of what is scrubbed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubCounts {
    /// Chunks in the cache file.
    pub chunks: u64,
    /// Index blocks in the cache file.
    pub index: u64,
    /// Blocks of the log whose bytes the store has, too.
    pub log: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScrubPart {
    Chunks,
    Index,
    Log,
}

impl ScrubCounts {
    fn add(&mut self, part: ScrubPart, count: u64) {
        match part {
            ScrubPart::Chunks => self.chunks += count,
            ScrubPart::Index => self.index += count,
            ScrubPart::Log => self.log += count,
        }
    }
}

/// The state of this process's scrub.
#[derive(Debug, Default)]
pub(crate) struct ScrubState(Mutex<ScrubReport>);

impl ScrubState {
    pub(crate) fn report(&self) -> ScrubReport {
        *lock(&self.0)
    }

    pub(super) fn on_read(&self, part: ScrubPart, bytes: u64) {
        lock(&self.0).read_bytes.add(part, bytes);
    }

    pub(super) fn on_damaged(&self, part: ScrubPart) {
        lock(&self.0).damaged.add(part, 1);
    }

    pub(super) fn on_pass(&self, unix_ms: u64) {
        let mut report = lock(&self.0);
        report.passes += 1;
        report.last_pass_unix_ms = Some(unix_ms);
    }
}
