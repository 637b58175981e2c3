//! Extensions of roots: what only some volumes have beside what every root says.
//!
//! Each has a tag, and says whether a reader that does not know it must refuse the root: so an older firn
//! never damages what it does not understand. Those that may be ignored are kept as they were found. The
//! table of tags is in docs/format.md "Root".

use super::FormatError;
use super::pack::{Ancestor, Lineage};
use crate::codec::{Reader, TruncatedInput, Writer};
use crate::units::{Epoch, Lsn, VolumeId};

const MUST_UNDERSTAND: u16 = 1;
/// The LSN up to which deltas were folded, u64. A writer that folded and did not know it would leave it
/// too low, so it must be understood.
const FOLDED: u16 = 1;
/// The volumes that it was forked from, the nearest first: volume id 16, LSN u64. Without it
/// content would be missing, so a reader must understand it.
const LINEAGE: u16 = 2;
const LINEAGE_BYTES: usize = 24;
/// It is a snapshot, which nobody writes to: number of labels u16, for each its key and value, as texts.
const SNAPSHOT: u16 = 3;
/// A deleted volume is in the trash: when it was deleted and until when it is kept, milliseconds since 1970, u64
/// each, and u8 1 if it is leaving. What it names is reachable, so whoever collects garbage must understand it.
const TRASH: u16 = 4;
const TRASH_BYTES: usize = 17;
/// A deleted root is a step of a renaming: see [`RenameMark`]. u8 the step, u64 an epoch, 16 bytes an identity, a name as a
/// text. Of the first two what the old name still holds is reachable, and neither name is free, so they must be
/// understood. Who does not know the last one takes it for any deleted root, and is right.
const RENAME: u16 = 5;
/// The hold of this epoch, u64, is for maintenance: nobody uses the volume, and whoever opens it takes it from its holder. Who
/// does not know it takes the volume for held, which it is.
const MAINTENANCE: u16 = 6;
const RENAME_KEPT: u8 = 1;
const RENAME_LEAVING: u8 = 2;
const RENAME_GONE: u8 = 3;

/// What an extension holds; kept as found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// What it is.
    pub tag: u16,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// What a snapshot was marked with: keys and values.
pub type Labels = Vec<(String, String)>;

/// That a deleted volume is in the trash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrashMark {
    /// When it was deleted, milliseconds since 1970.
    pub deleted_unix_ms: u64,
    /// Until when it is kept at least.
    pub until_unix_ms: u64,
    /// It is leaving: a part of it may be deleted already.
    pub is_going: bool,
}

/// What a root under one of the two names of a renaming is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameStep {
    /// Under the new name: it is kept for the volume, and holds nothing yet.
    Kept,
    /// Under the old name: the volume is on its way, and what it holds is held from here until it has arrived.
    Leaving,
    /// Under the old name: the volume has another one. The name is free.
    Gone,
}

/// That a deleted root is a step of a renaming.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenameMark {
    /// Which one.
    pub step: RenameStep,
    /// The other name.
    pub other: String,
    /// Kept, gone: the volume. Leaving: the identity of the root that keeps the new name, drawn for it alone.
    pub volume: VolumeId,
    /// Kept: the epoch of the volume whose root it may leave. Leaving: the epoch of the root that keeps the new name.
    pub epoch: Epoch,
}

/// All of one root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions(pub Vec<Extension>);

impl Extensions {
    /// The LSN up to which deltas were folded, if it is said.
    pub(super) fn folded_lsn(&self) -> Option<Lsn> {
        let bytes = self.find(FOLDED)?.try_into().ok()?;
        Some(Lsn(u64::from_le_bytes(bytes)))
    }

    pub(super) fn set_folded(&mut self, lsn: Lsn) {
        self.set(FOLDED, lsn.0.to_le_bytes().to_vec());
    }

    /// The volumes that it was forked from, the nearest first.
    pub(super) fn lineage(&self) -> Lineage {
        let bytes = self.find(LINEAGE).unwrap_or_default();
        let ancestors = bytes.chunks_exact(LINEAGE_BYTES).filter_map(|bytes| {
            let (volume, last) = bytes.split_first_chunk::<16>()?;
            Some(Ancestor {
                volume: VolumeId(*volume),
                last: Lsn(u64::from_le_bytes(last.try_into().ok()?)),
            })
        });
        ancestors.collect()
    }

    pub(super) fn set_lineage(&mut self, lineage: &[Ancestor]) {
        let mut bytes = Writer::new();
        for ancestor in lineage {
            bytes.raw(&ancestor.volume.0).u64(ancestor.last.0);
        }
        self.set(LINEAGE, bytes.finish());
    }

    /// What the snapshot was marked with; none if it is no snapshot.
    pub(super) fn labels(&self) -> Option<Labels> {
        let bytes = self.find(SNAPSHOT)?;
        Some(decode_labels(bytes).unwrap_or_default())
    }

    pub(super) fn set_labels(&mut self, labels: &[(String, String)]) {
        let mut bytes = Writer::new();
        bytes.u16(labels.len() as u16);
        for (key, value) in labels {
            bytes.text(key).text(value);
        }
        self.set(SNAPSHOT, bytes.finish());
    }

    /// That it is in the trash; none if it is not.
    pub(super) fn trash_mark(&self) -> Option<TrashMark> {
        decode_trash_mark(self.find(TRASH)?).ok()
    }

    pub(super) fn set_trash_mark(&mut self, mark: TrashMark) {
        let mut bytes = Writer::new();
        bytes.u64(mark.deleted_unix_ms).u64(mark.until_unix_ms);
        bytes.u8(u8::from(mark.is_going));
        self.set(TRASH, bytes.finish());
    }

    pub(super) fn clear_trash_mark(&mut self) {
        self.0.retain(|found| found.tag != TRASH);
    }

    /// Which step of a renaming it is; none if it is none.
    pub(super) fn rename_mark(&self) -> Option<RenameMark> {
        decode_rename_mark(self.find(RENAME)?).ok()
    }

    pub(super) fn set_rename_mark(&mut self, mark: &RenameMark) {
        let mut bytes = Writer::new();
        bytes.u8(match mark.step {
            RenameStep::Kept => RENAME_KEPT,
            RenameStep::Leaving => RENAME_LEAVING,
            RenameStep::Gone => RENAME_GONE,
        });
        bytes
            .u64(mark.epoch.0)
            .raw(&mark.volume.0)
            .text(&mark.other);
        self.set(RENAME, bytes.finish());
    }

    pub(super) fn clear_rename_mark(&mut self) {
        self.0.retain(|found| found.tag != RENAME);
    }

    /// The epoch whose hold is for maintenance, if one was.
    pub(super) fn maintained(&self) -> Option<Epoch> {
        let bytes = self.find(MAINTENANCE)?.try_into().ok()?;
        Some(Epoch(u64::from_le_bytes(bytes)))
    }

    pub(super) fn set_maintained(&mut self, epoch: Option<Epoch>) {
        match epoch {
            Some(epoch) => self.set(MAINTENANCE, epoch.0.to_le_bytes().to_vec()),
            None => self.0.retain(|found| found.tag != MAINTENANCE),
        }
    }

    fn find(&self, tag: u16) -> Option<&[u8]> {
        let found = self.0.iter().find(|found| found.tag == tag);
        found.map(|found| &found.bytes[..])
    }

    fn set(&mut self, tag: u16, bytes: Vec<u8>) {
        self.0.retain(|found| found.tag != tag);
        self.0.push(Extension { tag, bytes });
    }

    pub(super) fn encode(&self, body: &mut Writer) {
        body.u16(self.0.len() as u16);
        for extension in &self.0 {
            let flags = match must_understand(extension) {
                true => MUST_UNDERSTAND,
                false => 0,
            };
            body.u16(extension.tag)
                .u16(flags)
                .u32(extension.bytes.len() as u32)
                .raw(&extension.bytes);
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>, version: u16) -> Result<Extensions, FormatError> {
        let extensions = (0..r.u16()?).map(|_| decode_extension(r, version));
        extensions.collect::<Result<_, _>>().map(Extensions)
    }
}

/// Whether a reader that does not know it must refuse the root.
fn must_understand(extension: &Extension) -> bool {
    let is_gone = extension.tag == RENAME && extension.bytes.first() == Some(&RENAME_GONE);
    is_known(extension.tag) && !is_gone
}

fn is_known(tag: u16) -> bool {
    matches!(tag, FOLDED | LINEAGE | SNAPSHOT | TRASH | RENAME)
}

fn decode_extension(r: &mut Reader<'_>, version: u16) -> Result<Extension, FormatError> {
    let (tag, flags, len) = (r.u16()?, r.u16()?, r.u32()? as usize);
    if flags & MUST_UNDERSTAND != 0 && !is_known(tag) {
        return Err(FormatError::Newer(version));
    }
    let bytes = r.raw(len)?.to_vec();
    let is_marked = flags & MUST_UNDERSTAND != 0;
    let is_whole = match tag {
        FOLDED | MAINTENANCE => len == size_of::<u64>(),
        LINEAGE => len.is_multiple_of(LINEAGE_BYTES) && is_marked,
        SNAPSHOT => is_marked && decode_labels(&bytes).is_ok(),
        TRASH => is_marked && len == TRASH_BYTES && decode_trash_mark(&bytes).is_ok(),
        RENAME => {
            decode_rename_mark(&bytes).is_ok_and(|mark| is_marked || mark.step == RenameStep::Gone)
        }
        _ => true,
    };
    if !is_whole {
        return Err(FormatError::Corrupt(
            "an extension of the root is not whole",
        ));
    }
    Ok(Extension { tag, bytes })
}

fn decode_trash_mark(bytes: &[u8]) -> Result<TrashMark, TruncatedInput> {
    let mut r = Reader::new(bytes);
    let mark = TrashMark {
        deleted_unix_ms: r.u64()?,
        until_unix_ms: r.u64()?,
        is_going: r.u8()? != 0,
    };
    Ok(mark)
}

fn decode_rename_mark(bytes: &[u8]) -> Result<RenameMark, TruncatedInput> {
    let mut r = Reader::new(bytes);
    let step = match r.u8()? {
        RENAME_KEPT => RenameStep::Kept,
        RENAME_LEAVING => RenameStep::Leaving,
        RENAME_GONE => RenameStep::Gone,
        _ => return Err(TruncatedInput),
    };
    let (epoch, volume, other) = (Epoch(r.u64()?), VolumeId(r.array()?), r.text()?);
    let mark = RenameMark {
        step,
        other,
        volume,
        epoch,
    };
    match r.remaining() {
        0 => Ok(mark),
        _ => Err(TruncatedInput),
    }
}

fn decode_labels(bytes: &[u8]) -> Result<Labels, TruncatedInput> {
    let mut r = Reader::new(bytes);
    let labels = (0..r.u16()?)
        .map(|_| Ok((r.text()?, r.text()?)))
        .collect::<Result<_, TruncatedInput>>()?;
    match r.remaining() {
        0 => Ok(labels),
        _ => Err(TruncatedInput),
    }
}
