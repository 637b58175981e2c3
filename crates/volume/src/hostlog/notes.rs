//! What a host keeps in its local log about its log in the store: where it stands, what may be on its
//! way, which epochs it may have ended.
//!
//! A note is durable before the create goes out that it speaks of; so whatever happens to process and
//! machine, the next start knows what may still land. Of root updates nothing is noted: what only a root
//! is to name is named in the log before.

use super::names::{Digest, Position};
use crate::units::{Epoch, VolumeId};

/// Where a host's log in the store stands, as the host knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogState {
    /// The position of the next record.
    pub next: Position,
    /// Digest of the record before it.
    pub previous: Digest,
    /// Digests of all creates of `next` that may be on their way, also those of earlier starts.
    pub unresolved: Vec<Digest>,
    /// The low mark exists, or existed once: where it is missing now, the host was retired.
    pub has_low_mark: bool,
    /// Epochs that a record may have ended. Their volumes are taken over from this host by itself.
    pub ended: Vec<(VolumeId, Epoch)>,
}

impl Default for LogState {
    fn default() -> LogState {
        LogState {
            next: Position::FIRST,
            previous: Digest::NONE,
            unresolved: Vec::new(),
            has_low_mark: false,
            ended: Vec::new(),
        }
    }
}

impl LogState {
    /// The record at `next` is known: the log goes on behind it.
    pub(super) fn pass(&mut self, digest: Digest) {
        self.next = self.next.next();
        self.previous = digest;
        self.unresolved.clear();
    }
}
