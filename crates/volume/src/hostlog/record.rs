//! Records: the create-only objects of a host's log. One publishes slices of many volumes, ends epochs,
//! or is a fence that a taker put there.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `FIRNRECD` |
//! | 8 | 2 | version, 1 |
//! | 10 | 1 | kind: 1 slices, 2 fence |
//! | 11 | 5 | zero |
//! | 16 | 16 | host in whose log it is |
//! | 32 | 8 | position |
//! | 40 | 16, 8, 8 | who wrote it: host, session number, session bits |
//! | 72 | | body, see docs/format.md "Records" |
//! | end - 8 | 8 | CRC-64/NVME of all before it |
//!
//! A slice counts only if no fence and no end of its epoch precedes the record in the same log. The readers of
//! the log check that; it cannot be read off the record alone.

use super::names::{Digest, Position, SessionName};
use crate::codec::{Reader, TruncatedInput, Writer, crc64};
use crate::object::root::DeltaRef;
use crate::object::{FormatError, ObjectId};
use crate::units::{Epoch, HostId, LogSession, Lsn, Span, VolumeId};

const MAGIC: [u8; 8] = *b"FIRNRECD";
/// The version that this code writes and reads.
pub const VERSION: u16 = 1;
const KIND_SLICES: u8 = 1;
const KIND_FENCE: u8 = 2;
const CRC_BYTES: usize = 8;

/// Bytes of a row of the body, so that counts are checked before anything is allocated.
const PACK_BYTES: usize = 56;
const VOLUME_BYTES: usize = 24;
const SLICE_BYTES: usize = 32;
const END_BYTES: usize = 2;
const OBJECT_BYTES: usize = 12;
const POSITION_BYTES: usize = 8;

/// A pack that a record names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPack {
    /// Its number within its session.
    pub number: u64,
    /// The pack is of the session that this record ends, not of the writer's own.
    pub is_kept: bool,
    /// Where its footer begins.
    pub footer_offset: u32,
    /// Bytes of the footer, without the trailer.
    pub footer_bytes: u32,
    /// The digest of its bytes.
    pub digest: Digest,
}

/// A part of a volume's history, and the pack that holds it. A slice in several packs stands in several rows with
/// the same LSNs, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSlice {
    /// Index of the volume in the record's table.
    pub volume: u16,
    /// Index of the pack in the record's table.
    pub pack: u16,
    /// The first LSN.
    pub first: Lsn,
    /// The number of LSNs, at least 1.
    pub count: u32,
    /// The span of its extents in the pack: what is lost if the pack is.
    pub span: Span,
}

impl RecordSlice {
    /// The last LSN.
    pub fn last(&self) -> Lsn {
        Lsn(self.first.0 + u64::from(self.count) - 1)
    }
}

/// An object that only a root update will name. The record names it before the update is sent, so that a
/// collector run by a copy of the host, which shares the log, cannot remove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedObject {
    /// Index of the volume whose root is about to name it.
    pub volume: u16,
    /// It is an index object, not a pack.
    pub is_index: bool,
    /// As in [`RecordPack`].
    pub is_kept: bool,
    /// Its number within its session.
    pub number: u64,
}

/// The positions of a volume's records since its mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRow {
    /// Index of the volume in the record's table.
    pub volume: u16,
    /// Ascending, below the record's own position.
    pub positions: Vec<Position>,
}

/// What the owner of a log publishes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slices {
    /// Objects of the writing session below this number that nothing names are abandoned.
    pub floor: u64,
    /// Digest of the record before this one.
    pub previous: Digest,
    /// The session that this record ends, the writer's predecessor. Zero: none.
    pub ends_session: LogSession,
    /// The packs.
    pub packs: Vec<RecordPack>,
    /// Volumes with the epoch in which they are published.
    pub volumes: Vec<(VolumeId, Epoch)>,
    /// Slices: per volume in the order of its history.
    pub slices: Vec<RecordSlice>,
    /// Indexes of the volumes whose epoch ends here.
    pub ends: Vec<u16>,
    /// Objects of root updates to come.
    pub objects: Vec<NamedObject>,
    /// The table of volumes; only in the host's first record at or after each 64th position.
    pub table: Vec<TableRow>,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// It publishes slices, ends epochs, or both.
    Slices(Slices),
    /// Blocks the volumes' epochs below these; the volume with id 0 stands for all volumes of the host.
    Fence(Vec<(VolumeId, Epoch)>),
}

/// A record of a host's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The host in whose log it stands.
    pub log: HostId,
    /// Its position there.
    pub position: Position,
    /// Who wrote it.
    pub writer: SessionName,
    /// What it says.
    pub content: Content,
}

/// The volume that stands for all volumes of a host in a fence.
pub const WHOLE_HOST: VolumeId = VolumeId([0; 16]);

impl Record {
    /// Volumes that the record names by a slice, an end of an epoch, an object or a fence.
    pub(crate) fn named_volumes(&self) -> Vec<VolumeId> {
        let mut named: Vec<VolumeId> = match &self.content {
            Content::Fence(fences) => fences.iter().map(|(volume, _)| *volume).collect(),
            Content::Slices(slices) => {
                let of_slices = slices.slices.iter().map(|slice| slice.volume);
                let of_objects = slices.objects.iter().map(|object| object.volume);
                let ends = slices.ends.iter().copied();
                let named = of_slices.chain(of_objects).chain(ends);
                named.map(|at| slices.volumes[usize::from(at)].0).collect()
            }
        };
        named.retain(|volume| *volume != WHOLE_HOST);
        named
    }

    /// Whether slices of the volume's epoch stop counting after this record.
    pub fn blocks(&self, volume: VolumeId, epoch: Epoch) -> bool {
        match &self.content {
            Content::Fence(fences) => fences.iter().any(|(id, below)| {
                let is_below = epoch < *below || canary::active!("fence_blocks_every_epoch");
                (*id == volume || *id == WHOLE_HOST) && is_below
            }),
            Content::Slices(slices) => slices
                .ended_epochs()
                .any(|(id, ended)| id == volume && epoch <= ended),
        }
    }

    /// The session that wrote one of the record's packs.
    pub fn session_of(&self, pack: &RecordPack) -> SessionName {
        match &self.content {
            Content::Slices(slices) if pack.is_kept => SessionName {
                session: slices.ends_session,
                ..self.writer
            },
            _ => self.writer,
        }
    }

    /// The sessions that wrote the record's packs and objects. A fence has none: its writer may not be known by
    /// its random bits, because all hosts with a poisoned log fence as session zero.
    pub fn sessions(&self) -> impl Iterator<Item = SessionName> {
        let none = LogSession::default();
        let wrote = match &self.content {
            Content::Slices(slices) => [self.writer.session, slices.ends_session],
            Content::Fence(_) => [none; 2],
        };
        let is_one = move |session: &LogSession| {
            *session != none || canary::active!("sessions_of_fences_are_learned")
        };
        let host = self.writer.host;
        wrote
            .into_iter()
            .filter(is_one)
            .map(move |session| SessionName { host, session })
    }

    /// The slices of one volume's epoch, in order, each as a root names it.
    pub fn deltas_of(&self, volume: VolumeId, epoch: Epoch) -> Vec<(RecordSlice, DeltaRef)> {
        let Content::Slices(slices) = &self.content else {
            return Vec::new();
        };
        let delta = |slice: &RecordSlice, pack: &RecordPack| DeltaRef {
            pack: ObjectId {
                session: self.session_of(pack).session.random,
                number: pack.number,
            },
            footer_offset: u64::from(pack.footer_offset),
            footer_bytes: pack.footer_bytes,
            last: slice.last(),
            span: slice.span,
        };
        slices
            .of(volume, epoch)
            .map(|(slice, pack)| (*slice, delta(slice, pack)))
            .collect()
    }

    /// The object's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let kind = match self.content {
            Content::Slices(_) => KIND_SLICES,
            Content::Fence(_) => KIND_FENCE,
        };
        let SessionName { host, session } = self.writer;
        let mut w = Writer::new();
        w.raw(&MAGIC).u16(VERSION).u8(kind).raw(&[0; 5]);
        w.raw(&self.log.0).u64(self.position.0);
        w.raw(&host.0).u64(session.number).u64(session.random);
        match &self.content {
            Content::Slices(slices) => slices.encode(&mut w),
            Content::Fence(fences) => {
                w.u32(fences.len() as u32);
                encode_volumes(&mut w, fences);
            }
        }
        let crc = crc64(&[w.bytes()]);
        w.u64(crc);
        w.finish()
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If it is damaged, of a newer format, or no record.
    pub fn decode(bytes: &[u8]) -> Result<Record, FormatError> {
        let mut r = checked(bytes, MAGIC, VERSION)?;
        let kind = r.u8()?;
        r.raw(5)?;
        let (log, position) = (HostId(r.array()?), Position(r.u64()?));
        let writer = SessionName {
            host: HostId(r.array()?),
            session: decode_session(&mut r)?,
        };
        if position < Position::FIRST {
            return Err(FormatError::Corrupt("a record before the first"));
        }
        let content = match kind {
            KIND_SLICES => Content::Slices(Slices::decode(&mut r, position)?),
            KIND_FENCE => {
                let count = r.u32()? as usize;
                Content::Fence(decode_volumes(&mut r, count)?)
            }
            _ => return Err(FormatError::Corrupt("a record of no known kind")),
        };
        if r.remaining() != 0 {
            return Err(FormatError::Corrupt("bytes behind the record"));
        }
        Ok(Record {
            log,
            position,
            writer,
            content,
        })
    }
}

impl Slices {
    /// Volumes whose epoch ends here, with that epoch.
    pub fn ended_epochs(&self) -> impl Iterator<Item = (VolumeId, Epoch)> + '_ {
        let volumes = &self.volumes;
        self.ends.iter().map(|at| volumes[usize::from(*at)])
    }

    /// The slices of one volume's epoch, in order, each with its pack.
    pub fn of(
        &self,
        volume: VolumeId,
        epoch: Epoch,
    ) -> impl Iterator<Item = (&RecordSlice, &RecordPack)> {
        self.slices
            .iter()
            .filter(move |slice| self.volumes[usize::from(slice.volume)] == (volume, epoch))
            .map(|slice| (slice, &self.packs[usize::from(slice.pack)]))
    }

    fn encode(&self, w: &mut Writer) {
        w.u64(self.floor).raw(&self.previous.0);
        w.u64(self.ends_session.number)
            .u64(self.ends_session.random);
        let counts = [
            self.packs.len(),
            self.volumes.len(),
            self.slices.len(),
            self.ends.len(),
            self.objects.len(),
            self.table.len(),
        ];
        for count in counts {
            w.u32(count as u32);
        }
        for pack in &self.packs {
            w.u64(pack.number).u8(u8::from(pack.is_kept)).raw(&[0; 7]);
            w.u32(pack.footer_offset).u32(pack.footer_bytes);
            w.raw(&pack.digest.0);
        }
        encode_volumes(w, &self.volumes);
        for slice in &self.slices {
            w.u16(slice.volume).u16(slice.pack).u32(slice.count);
            w.u64(slice.first.0)
                .u64(slice.span.start)
                .u64(slice.span.end);
        }
        for end in &self.ends {
            w.u16(*end);
        }
        for object in &self.objects {
            w.u16(object.volume).u8(u8::from(object.is_index));
            w.u8(u8::from(object.is_kept)).u64(object.number);
        }
        for row in &self.table {
            w.u16(row.volume).u32(row.positions.len() as u32);
            for position in &row.positions {
                w.u64(position.0);
            }
        }
    }

    fn decode(r: &mut Reader<'_>, position: Position) -> Result<Slices, FormatError> {
        let (floor, previous) = (r.u64()?, Digest(r.array()?));
        let ends_session = decode_session(r)?;
        let mut counts = [0; 6];
        for count in &mut counts {
            *count = r.u32()? as usize;
        }
        let [packs, volumes, slices, ends, objects, table] = counts;
        let packs = rows(r, packs, PACK_BYTES, decode_pack)?;
        let volumes = decode_volumes(r, volumes)?;
        let slices = rows(r, slices, SLICE_BYTES, decode_slice)?;
        let ends = rows(r, ends, END_BYTES, |r| Ok(r.u16()?))?;
        let objects = rows(r, objects, OBJECT_BYTES, |r| {
            Ok(NamedObject {
                volume: r.u16()?,
                is_index: r.u8()? != 0,
                is_kept: r.u8()? != 0,
                number: r.u64()?,
            })
        })?;
        // Rows differ in length, and none is empty.
        let table = rows_of_any_length(r, table, |r| {
            let (volume, count) = (r.u16()?, r.u32()? as usize);
            let positions = rows(r, count, POSITION_BYTES, |r| Ok(Position(r.u64()?)))?;
            Ok(TableRow { volume, positions })
        })?;
        let found = Slices {
            floor,
            previous,
            ends_session,
            packs,
            volumes,
            slices,
            ends,
            objects,
            table,
        };
        found.check(position)?;
        Ok(found)
    }

    fn check(&self, position: Position) -> Result<(), FormatError> {
        let is_volume = |at: u16| usize::from(at) < self.volumes.len();
        let slices = self.slices.iter();
        let known = slices
            .clone()
            .all(|slice| is_volume(slice.volume) && usize::from(slice.pack) < self.packs.len())
            && self.ends.iter().all(|end| is_volume(*end))
            && self.objects.iter().all(|object| is_volume(object.volume))
            && self.table.iter().all(|row| is_volume(row.volume));
        if !known {
            return Err(FormatError::Corrupt("a record that names what it lacks"));
        }
        let possible = |slice: &RecordSlice| {
            let last = slice.first.0.checked_add(u64::from(slice.count));
            slice.first > Lsn::ZERO && slice.count > 0 && last.is_some()
        };
        if !slices.clone().all(possible) {
            return Err(FormatError::Corrupt("a slice of impossible LSNs"));
        }
        if !slices
            .clone()
            .all(|slice| slice.span.start <= slice.span.end)
        {
            return Err(FormatError::Corrupt("a slice of less than nothing"));
        }
        let is_earlier = |row: &TableRow| {
            row.positions.is_sorted_by(|a, b| a < b)
                && row
                    .positions
                    .iter()
                    .all(|at| (Position::FIRST..position).contains(at))
        };
        if !self.table.iter().all(is_earlier) {
            return Err(FormatError::Corrupt("a table of impossible positions"));
        }
        Ok(())
    }
}

fn encode_volumes(w: &mut Writer, volumes: &[(VolumeId, Epoch)]) {
    for (volume, epoch) in volumes {
        w.raw(&volume.0).u64(epoch.0);
    }
}

fn decode_volumes(r: &mut Reader<'_>, count: usize) -> Result<Vec<(VolumeId, Epoch)>, FormatError> {
    rows(r, count, VOLUME_BYTES, |r| {
        Ok((VolumeId(r.array()?), Epoch(r.u64()?)))
    })
}

fn decode_session(r: &mut Reader<'_>) -> Result<LogSession, TruncatedInput> {
    Ok(LogSession {
        number: r.u64()?,
        random: r.u64()?,
    })
}

fn decode_pack(r: &mut Reader<'_>) -> Result<RecordPack, FormatError> {
    let (number, is_kept) = (r.u64()?, r.u8()? != 0);
    r.raw(7)?;
    Ok(RecordPack {
        number,
        is_kept,
        footer_offset: r.u32()?,
        footer_bytes: r.u32()?,
        digest: Digest(r.array()?),
    })
}

fn decode_slice(r: &mut Reader<'_>) -> Result<RecordSlice, FormatError> {
    let (volume, pack, count) = (r.u16()?, r.u16()?, r.u32()?);
    Ok(RecordSlice {
        volume,
        pack,
        count,
        first: Lsn(r.u64()?),
        span: Span {
            start: r.u64()?,
            end: r.u64()?,
        },
    })
}

/// Reads `count` rows of this length. Their bytes must be present before memory is allocated for them.
fn rows<T>(
    r: &mut Reader<'_>,
    count: usize,
    row_bytes: usize,
    decode: impl Fn(&mut Reader<'_>) -> Result<T, FormatError>,
) -> Result<Vec<T>, FormatError> {
    let mut body = Reader::new(r.raw(count.saturating_mul(row_bytes))?);
    let mut found = Vec::with_capacity(count);
    for _ in 0..count {
        found.push(decode(&mut body)?);
    }
    Ok(found)
}

fn rows_of_any_length<T>(
    r: &mut Reader<'_>,
    count: usize,
    decode: impl Fn(&mut Reader<'_>) -> Result<T, FormatError>,
) -> Result<Vec<T>, FormatError> {
    (0..count).map(|_| decode(r)).collect()
}

/// Checks magic, version and the CRC at the end, and returns a reader behind magic and version.
pub(crate) fn checked(
    bytes: &[u8],
    magic: [u8; 8],
    version: u16,
) -> Result<Reader<'_>, FormatError> {
    let mut r = Reader::new(bytes);
    if r.array().map_err(|TruncatedInput| FormatError::Foreign)? != magic {
        return Err(FormatError::Foreign);
    }
    let found = r.u16()?;
    if found != version {
        return Err(FormatError::Newer(found));
    }
    let covered = bytes.len().saturating_sub(CRC_BYTES);
    let (body, crc) = bytes.split_at(covered);
    let same = Reader::new(crc).u64()? == crc64(&[body]);
    if !same || covered < magic.len() + 2 {
        return Err(FormatError::Corrupt("its checksum fails"));
    }
    let mut r = Reader::new(body);
    r.raw(magic.len() + 2)?;
    Ok(r)
}
