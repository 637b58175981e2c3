//! Frames: the durable record of commits, in the log's two journal halves.
//!
//! A half begins with a checkpoint (everything that is dirty, in one or more frames) and goes on
//! with one frame per group commit. When a half is full, a checkpoint is written to the other
//! half under the next lap number; until that is whole, the old half is the truth. Frames of a
//! lap are numbered without gap: the first one that is missing or damaged ends the replay.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `FIRNFRM\0` |
//! | 8 | 2 | version: 6, or 5, which has no forks |
//! | 10 | 2 | flags: bit 0 checkpoint begins, bit 1 checkpoint ends, bit 2 group commit |
//! | 12 | 4 | length of the records in bytes |
//! | 16 | 16 | host id |
//! | 32 | 8 | lap: a count in the upper 32 bits, bits drawn for this lap in the lower |
//! | 40 | 8 | number within the lap, from 0 |
//! | 48 | 8 | CRC-64/NVME of bytes 0..48 and the records |
//! | 56 | 8 | zero |
//! | 64 | | records, then zeroes up to a multiple of 4096 |
//!
//! Records: docs/format.md "Frame records".

use super::entry::{ENTRY_BYTES, Entry};
use super::layout::BLOCK_BYTES;
use super::ring::TailId;
use super::session::Sessions;
use super::snapshot_record::SnapshotRecord;
use crate::codec::{Reader, TruncatedInput, Writer, crc64};
use crate::hostlog::notes::LogState;
use crate::units::{Epoch, HostId, Lsn, RootMark, VolumeId, VolumeSize};

const MAGIC: [u8; 8] = *b"FIRNFRM\0";
/// The version of frames that this code writes.
pub(crate) const VERSION: u16 = 6;
/// The oldest one that it reads.
pub(crate) const VERSION_MIN: u16 = 5;
pub(crate) const HEADER: usize = 64;

const CHECKPOINT_BEGINS: u16 = 1;
const CHECKPOINT_ENDS: u16 = 2;
const GROUP_COMMIT: u16 = 4;

const TAG_TAIL: u8 = 1;
const TAG_ENTRIES: u8 = 2;
const TAG_SESSIONS: u8 = 3;
const TAG_TAIL_REMOVED: u8 = 4;
const TAG_LOG_STATE: u8 = 5;
const TAG_SNAPSHOT: u8 = 6;
const TAG_SNAPSHOT_REMOVED: u8 = 7;
const TAG_FORK: u8 = 8;

/// What a frame says about a tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TailRecord {
    pub(crate) tail: TailId,
    pub(crate) name: String,
    /// Everything up to here is in the store, by a committed root.
    pub(crate) stored: Lsn,
    /// The root that this host committed or saw last.
    pub(crate) root: RootMark,
    /// Kept only to be rescued: another host took the volume over.
    pub(crate) rescue: bool,
    /// It has a ring of the newest session: commits beyond the frames may be there.
    pub(crate) ring: bool,
    /// Its ring was lost, and nobody may have been told.
    pub(crate) unreported_loss: bool,
    /// The newest session continued it without a gap, and has neither served it nor read its root.
    pub(crate) untouched: bool,
    /// The volume's size: at least what anybody was told.
    pub(crate) size: VolumeSize,
}

impl TailRecord {
    const RESCUE: u8 = 1;
    const HAS_RING: u8 = 2;
    const UNREPORTED_LOSS: u8 = 4;
    const UNTOUCHED: u8 = 8;

    fn flags(&self) -> u8 {
        (u8::from(self.rescue) * Self::RESCUE)
            | (u8::from(self.ring) * Self::HAS_RING)
            | (u8::from(self.unreported_loss) * Self::UNREPORTED_LOSS)
            | (u8::from(self.untouched) * Self::UNTOUCHED)
    }

    /// None if a flag is not known here.
    fn decode(r: &mut Reader<'_>) -> Result<Option<TailRecord>, TruncatedInput> {
        let (tail, name, stored) = (tail_id(r)?, r.text()?, Lsn(r.u64()?));
        let (sequence, nonce) = (r.u64()?, r.u64()?);
        let flags = r.u8()?;
        let (bytes, block) = (r.u64()?, r.u32()?);
        let record = TailRecord {
            tail,
            name,
            stored,
            root: RootMark { sequence, nonce },
            rescue: flags & Self::RESCUE != 0,
            ring: flags & Self::HAS_RING != 0,
            unreported_loss: flags & Self::UNREPORTED_LOSS != 0,
            untouched: flags & Self::UNTOUCHED != 0,
            size: VolumeSize { bytes, block },
        };
        Ok((record.flags() == flags).then_some(record))
    }
}

/// One record of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A tail exists, and this is known of it.
    Tail(TailRecord),
    /// Commits of a tail. In a checkpoint: its dirty extents, with `cut` the newest commit they
    /// stand for. In a group commit: all commits from the last cut to `cut`, without gap.
    Entries {
        tail: TailId,
        cut: Lsn,
        entries: Vec<Entry>,
    },
    /// The log's sessions up to the one that writes this.
    Sessions(Sessions),
    /// The tail is empty and closed.
    TailRemoved(TailId),
    /// Where the host's log in the store stands.
    LogState(LogState),
    /// A tail's log keeps a snapshot or fork that the store does not have yet. A later one of the same id replaces it.
    Snapshot {
        tail: TailId,
        snapshot: SnapshotRecord,
    },
    /// A snapshot or fork of a tail has its root in the store, or was deleted before.
    SnapshotRemoved { tail: TailId, snapshot: VolumeId },
}

/// What a frame is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It states a part of what is dirty. Nothing of a checkpoint is awaited before the next.
    Checkpoint { first: bool, last: bool },
    /// It records a round, and is written only once all frames of its lap before it are durable.
    Round,
}

impl Part {
    fn flags(self) -> u16 {
        match self {
            Part::Checkpoint { first, last } => {
                (u16::from(first) * CHECKPOINT_BEGINS) | (u16::from(last) * CHECKPOINT_ENDS)
            }
            Part::Round => GROUP_COMMIT,
        }
    }
}

/// A frame as found on disk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) begins_checkpoint: bool,
    pub(crate) ends_checkpoint: bool,
    /// It records a round: that it is there proves that what precedes it in its lap was durable.
    pub(crate) round: bool,
    pub(crate) lap: u64,
    pub(crate) number: u64,
    pub(crate) records: Vec<Record>,
    /// Bytes on disk, padding included.
    pub(crate) bytes: u64,
}

/// Builds one frame.
#[derive(Debug)]
pub(crate) struct FrameWriter {
    w: Writer,
    empty: bool,
}

impl FrameWriter {
    pub(crate) fn new(host: HostId) -> FrameWriter {
        let mut w = Writer::new();
        w.raw(&MAGIC)
            .u16(VERSION)
            .u16(0)
            .u32(0)
            .raw(&host.0)
            .u64(0)
            .u64(0)
            .u64(0)
            .u64(0);
        FrameWriter { w, empty: true }
    }

    /// Nothing was put into it.
    pub(crate) fn is_empty(&self) -> bool {
        self.empty
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.w.len()
    }

    fn tail_id(&mut self, tail: TailId) {
        self.w.raw(&tail.volume.0).u64(tail.since.0);
    }

    pub(crate) fn record(&mut self, record: &Record) {
        self.empty = false;
        match record {
            Record::Tail(tail) => {
                self.w.u8(TAG_TAIL);
                self.tail_id(tail.tail);
                self.w.text(&tail.name).u64(tail.stored.0);
                self.w.u64(tail.root.sequence).u64(tail.root.nonce);
                self.w.u8(tail.flags());
                self.w.u64(tail.size.bytes).u32(tail.size.block);
            }
            Record::Entries { tail, cut, entries } => {
                self.entries(*tail, *cut, entries.iter().copied());
            }
            Record::Sessions(sessions) => {
                self.w.u8(TAG_SESSIONS);
                sessions.encode(&mut self.w);
            }
            Record::TailRemoved(tail) => {
                self.w.u8(TAG_TAIL_REMOVED);
                self.tail_id(*tail);
            }
            Record::LogState(state) => {
                self.w.u8(TAG_LOG_STATE);
                state.encode(&mut self.w);
            }
            Record::Snapshot { tail, snapshot } => {
                self.w.u8(match snapshot.is_fork {
                    true => TAG_FORK,
                    false => TAG_SNAPSHOT,
                });
                self.tail_id(*tail);
                snapshot.encode(&mut self.w);
            }
            Record::SnapshotRemoved { tail, snapshot } => {
                self.w.u8(TAG_SNAPSHOT_REMOVED);
                self.tail_id(*tail);
                self.w.raw(&snapshot.0);
            }
        }
    }

    /// Writes an `Entries` record without collecting it first.
    pub(crate) fn entries(&mut self, tail: TailId, cut: Lsn, entries: impl Iterator<Item = Entry>) {
        self.empty = false;
        self.w.u8(TAG_ENTRIES);
        self.tail_id(tail);
        self.w.u64(cut.0);
        let count_at = self.w.len();
        self.w.u32(0);
        let mut count = 0;
        for entry in entries {
            entry.encode(&mut self.w);
            count += 1;
        }
        self.w.put_u32_at(count_at, count);
    }

    /// The frame's bytes, a multiple of 4096.
    pub(crate) fn finish(mut self, part: Part, lap: u64, number: u64) -> Vec<u8> {
        let records = self.w.len() - HEADER;
        let len = u32::try_from(records).expect("a frame is bounded by a journal half");
        self.w
            .put_u32_at(8, u32::from(VERSION) | u32::from(part.flags()) << 16);
        self.w.put_u32_at(12, len);
        self.w.put_u64_at(32, lap);
        self.w.put_u64_at(40, number);
        let bytes = self.w.bytes();
        let crc = crc64(&[&bytes[..48], &bytes[HEADER..]]);
        self.w.put_u64_at(48, crc);
        self.w.pad_to_multiple(BLOCK_BYTES as usize);
        self.w.finish()
    }
}

/// What stands where a frame may begin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FrameParse {
    Frame(Frame),
    /// Not a whole frame of this host.
    NoFrame,
    /// It may be one, but it needs this many bytes from its begin to tell.
    Incomplete(usize),
    /// A whole frame of another format version, newer or older.
    Newer(u16),
}

/// Looks for a frame at the beginning of `bytes`.
pub(crate) fn decode(bytes: &[u8], host: HostId) -> FrameParse {
    match decode_header(bytes, host) {
        Ok(found) => found,
        Err(TruncatedInput) => FrameParse::NoFrame,
    }
}

fn decode_header(bytes: &[u8], host: HostId) -> Result<FrameParse, TruncatedInput> {
    let mut r = Reader::new(bytes);
    let magic = r.array::<8>()? == MAGIC;
    let version = r.u16()?;
    let flags = r.u16()?;
    let len = r.u32()? as usize;
    let ours = r.array::<16>()? == host.0;
    let (lap, number, crc) = (r.u64()?, r.u64()?, r.u64()?);
    r.u64()?;
    if !magic || !ours {
        return Ok(FrameParse::NoFrame);
    }
    if r.remaining() < len {
        return Ok(FrameParse::Incomplete(HEADER + len));
    }
    let records = r.raw(len)?;
    if crc != crc64(&[&bytes[..48], records]) {
        return Ok(FrameParse::NoFrame);
    }
    if !(VERSION_MIN..=VERSION).contains(&version) {
        return Ok(FrameParse::Newer(version));
    }
    let Some(records) = decode_records(records)? else {
        return Ok(FrameParse::NoFrame);
    };
    Ok(FrameParse::Frame(Frame {
        begins_checkpoint: flags & CHECKPOINT_BEGINS != 0,
        ends_checkpoint: flags & CHECKPOINT_ENDS != 0,
        round: flags & GROUP_COMMIT != 0,
        lap,
        number,
        records,
        bytes: (HEADER + len).next_multiple_of(BLOCK_BYTES as usize) as u64,
    }))
}

fn decode_records(bytes: &[u8]) -> Result<Option<Vec<Record>>, TruncatedInput> {
    let mut r = Reader::new(bytes);
    let mut records = Vec::new();
    while r.remaining() > 0 {
        let tag = r.u8()?;
        records.push(match tag {
            TAG_TAIL => match TailRecord::decode(&mut r)? {
                Some(tail) => Record::Tail(tail),
                None => return Ok(None),
            },
            TAG_ENTRIES => {
                let (tail, cut, count) = (tail_id(&mut r)?, Lsn(r.u64()?), r.u32()? as usize);
                // Checked before anything is allocated for them.
                let mut body = Reader::new(r.raw(count.saturating_mul(ENTRY_BYTES))?);
                let mut entries = Vec::with_capacity(count);
                for _ in 0..count {
                    let Some(entry) = Entry::decode(&mut body)? else {
                        return Ok(None);
                    };
                    entries.push(entry);
                }
                Record::Entries { tail, cut, entries }
            }
            TAG_SESSIONS => match Sessions::decode(&mut r)? {
                Some(sessions) => Record::Sessions(sessions),
                None => return Ok(None),
            },
            TAG_TAIL_REMOVED => Record::TailRemoved(tail_id(&mut r)?),
            TAG_LOG_STATE => match LogState::decode(&mut r)? {
                Some(state) => Record::LogState(state),
                None => return Ok(None),
            },
            TAG_SNAPSHOT | TAG_FORK => Record::Snapshot {
                tail: tail_id(&mut r)?,
                snapshot: SnapshotRecord::decode(&mut r, tag == TAG_FORK)?,
            },
            TAG_SNAPSHOT_REMOVED => Record::SnapshotRemoved {
                tail: tail_id(&mut r)?,
                snapshot: VolumeId(r.array()?),
            },
            _ => return Ok(None),
        });
    }
    Ok(Some(records))
}

fn tail_id(r: &mut Reader<'_>) -> Result<TailId, TruncatedInput> {
    Ok(TailId {
        volume: VolumeId(r.array()?),
        since: Epoch(r.u64()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostlog::names::{Digest, Position};
    use crate::log::session::BootId;
    use crate::map::layers::LogAddr;
    use crate::units::Span;

    const HOST: HostId = HostId([2; 16]);

    fn fork() -> SnapshotRecord {
        SnapshotRecord {
            id: VolumeId([6; 16]),
            is_fork: true,
            name: "branch".into(),
            lsn: Lsn(6),
            bytes: 64 << 20,
            unix_ms: 6,
            labels: Vec::new(),
        }
    }

    fn records() -> Vec<Record> {
        let tail = TailId {
            volume: VolumeId([1; 16]),
            since: Epoch(3),
        };
        let entry = |lsn| Entry {
            lsn: Lsn(lsn),
            span: Span::new(8 * lsn, 8),
            addr: LogAddr::new(lsn % 2 * 64),
            generation: 1,
        };
        vec![
            Record::Sessions(Sessions::default().begin(5, BootId(6), true)),
            Record::Tail(TailRecord {
                tail,
                name: "demo".into(),
                stored: Lsn(4),
                root: RootMark {
                    sequence: 7,
                    nonce: 11,
                },
                rescue: false,
                ring: true,
                unreported_loss: true,
                untouched: true,
                size: VolumeSize {
                    bytes: 64 << 20,
                    block: 4096,
                },
            }),
            Record::Entries {
                tail,
                cut: Lsn(6),
                entries: vec![entry(5), entry(6)],
            },
            Record::TailRemoved(tail),
            Record::LogState(LogState {
                next: Position(9),
                previous: Digest([7; 32]),
                unresolved: vec![Digest([8; 32]), Digest([9; 32])],
                has_low_mark: true,
                ended: vec![(VolumeId([1; 16]), Epoch(3))],
            }),
            Record::Snapshot {
                tail,
                snapshot: SnapshotRecord {
                    id: VolumeId([4; 16]),
                    is_fork: false,
                    name: "demo@one".into(),
                    lsn: Lsn(6),
                    bytes: 64 << 20,
                    unix_ms: 5,
                    labels: vec![("why".into(), "upgrade".into())],
                },
            },
            Record::SnapshotRemoved {
                tail,
                snapshot: VolumeId([5; 16]),
            },
            Record::Snapshot {
                tail,
                snapshot: fork(),
            },
        ]
    }

    fn frame() -> Vec<u8> {
        let mut writer = FrameWriter::new(HOST);
        records().iter().for_each(|record| writer.record(record));
        let part = Part::Checkpoint {
            first: true,
            last: false,
        };
        writer.finish(part, 7, 8)
    }

    #[test]
    fn a_frame_is_read_back_as_it_was_written() {
        let bytes = frame();
        let FrameParse::Frame(found) = decode(&bytes, HOST) else {
            panic!("no frame")
        };
        assert_eq!(found.records, records());
        assert_eq!((found.lap, found.number, found.bytes), (7, 8, 4096));
        assert!(found.begins_checkpoint && !found.ends_checkpoint && !found.round);
    }

    #[test]
    fn a_frame_with_any_flipped_bit_is_no_frame() {
        let bytes = frame();
        let used = bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .expect("not empty");
        for bit in (0..56 * 8).chain(64 * 8..used * 8) {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !matches!(
                    decode(&damaged, HOST),
                    FrameParse::Frame(_) | FrameParse::Newer(_)
                ),
                "{bit}"
            );
        }
    }

    #[test]
    fn a_frame_cut_short_or_of_another_host_is_no_frame() {
        let bytes = frame();
        assert_eq!(decode(&bytes, HostId([3; 16])), FrameParse::NoFrame);
        assert!(matches!(
            decode(&bytes[..100], HOST),
            FrameParse::Incomplete(_)
        ));
        assert_eq!(decode(&bytes[..50], HOST), FrameParse::NoFrame);
    }
}
