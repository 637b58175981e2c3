//! What a host keeps in its local log about its log in the store: where it stands, what may be on its
//! way, which epochs it may have ended.
//!
//! A note is durable before the create goes out that it speaks of; so whatever happens to process and
//! machine, the next start knows what may still land. Of root updates nothing is noted: what only a root
//! is to name is named in the log before.

use super::names::{Digest, Position};
use crate::codec::{Reader, TruncatedInput, Writer};
use crate::units::{Epoch, VolumeId};

const DIGEST_BYTES: usize = 32;
const ENDED_BYTES: usize = 24;

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
    /// As a record of the local log's frames, see docs/format.md "Frame records".
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u64(self.next.0).raw(&self.previous.0);
        w.u8(u8::from(self.has_low_mark));
        w.u32(self.unresolved.len() as u32);
        for digest in &self.unresolved {
            w.raw(&digest.0);
        }
        w.u32(self.ended.len() as u32);
        for (volume, epoch) in &self.ended {
            w.raw(&volume.0).u64(epoch.0);
        }
    }

    /// None if it stands before the first record.
    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Option<LogState>, TruncatedInput> {
        let (next, previous) = (Position(r.u64()?), Digest(r.array()?));
        let has_low_mark = r.u8()? != 0;
        // Counts are checked before anything is allocated for them.
        let count = r.u32()? as usize;
        let mut body = Reader::new(r.raw(count.saturating_mul(DIGEST_BYTES))?);
        let unresolved = (0..count)
            .map(|_| Ok(Digest(body.array()?)))
            .collect::<Result<_, TruncatedInput>>()?;
        let count = r.u32()? as usize;
        let mut body = Reader::new(r.raw(count.saturating_mul(ENDED_BYTES))?);
        let ended = (0..count)
            .map(|_| Ok((VolumeId(body.array()?), Epoch(body.u64()?))))
            .collect::<Result<_, TruncatedInput>>()?;
        Ok((next >= Position::FIRST).then_some(LogState {
            next,
            previous,
            unresolved,
            has_low_mark,
            ended,
        }))
    }

    /// The record at `next` is known: the log goes on behind it.
    pub(super) fn pass(&mut self, digest: Digest) {
        self.next = self.next.next();
        self.previous = digest;
        self.unresolved.clear();
    }
}
