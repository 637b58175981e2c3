//! A snapshot or fork that the log keeps until it has a root of its own in the store.
//!
//! Knows its bytes alone. What is kept is the point in the volume's history and what the root will say; the content
//! is in the layers of the volume's tail, of which none spans the point.
//!
//! | bytes | field |
//! |---|---|
//! | 16 | id of the snapshot or fork, as its root will have it |
//! | 2, n | name: `VOLUME@SNAPSHOT`, or the fork's own |
//! | 8 | the volume's newest commit in it |
//! | 8 | the volume's size at that point, in bytes |
//! | 8 | when it was taken, in milliseconds since 1970 |
//! | 2 | number of labels |
//! | | for each: key (2, n) and value (2, n); a fork has none |
//!
//! Which of the two it is, the tag of its record says.

use crate::codec::{Reader, TruncatedInput, Writer};
use crate::object::extensions::Labels;
use crate::units::{Lsn, VolumeId};

/// See the module's description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotRecord {
    pub(crate) id: VolumeId,
    /// It is a volume of its own, which may be written to before the store has it.
    pub(crate) is_fork: bool,
    pub(crate) name: String,
    pub(crate) lsn: Lsn,
    pub(crate) bytes: u64,
    pub(crate) unix_ms: u64,
    pub(crate) labels: Labels,
}

impl SnapshotRecord {
    pub(super) fn encode(&self, w: &mut Writer) {
        w.raw(&self.id.0).text(&self.name);
        w.u64(self.lsn.0).u64(self.bytes).u64(self.unix_ms);
        w.u16(self.labels.len() as u16);
        for (key, value) in &self.labels {
            w.text(key).text(value);
        }
    }

    pub(super) fn decode(
        r: &mut Reader<'_>,
        is_fork: bool,
    ) -> Result<SnapshotRecord, TruncatedInput> {
        let (id, name) = (VolumeId(r.array()?), r.text()?);
        let (lsn, bytes, unix_ms) = (Lsn(r.u64()?), r.u64()?, r.u64()?);
        let count = r.u16()?;
        let mut labels = Labels::new();
        for _ in 0..count {
            labels.push((r.text()?, r.text()?));
        }
        Ok(SnapshotRecord {
            id,
            is_fork,
            name,
            lsn,
            bytes,
            unix_ms,
            labels,
        })
    }
}

/// Bytes that a snapshot or fork of this name takes in a frame, about.
pub(crate) fn record_bytes(name: &str, labels: &Labels) -> u64 {
    let labels = labels.iter();
    let labels: usize = labels.map(|(key, value)| key.len() + value.len() + 4).sum();
    (64 + name.len() + labels) as u64
}
