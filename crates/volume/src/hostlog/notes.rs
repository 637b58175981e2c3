//! What a host's local log records about its log in the store: the next position, creates that may still land,
//! epochs that a record may have ended.
//!
//! The state is durable before the create that it describes is sent. So whatever happens to the process and the
//! machine, the next start knows which creates may still land. Root updates are not recorded here: the log names
//! the objects of a root update before the update is sent.

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
    /// Digests of all creates at `next` that may still land, including those of earlier starts.
    pub unresolved: Vec<Digest>,
    /// The low mark was created. If it is missing now, the host was retired.
    pub has_low_mark: bool,
    /// Epochs that a record may have ended. This host takes their volumes over from itself.
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

    /// The record at `next` is resolved: the next record goes behind it.
    pub(super) fn pass(&mut self, digest: Digest) {
        self.next = self.next.next();
        self.previous = digest;
        self.unresolved.clear();
    }
}
