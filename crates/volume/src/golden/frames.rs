//! The golden tests of frames.

use super::{ascending, assert_every_byte_is_checked, entries, fixture, host, other, tail};
use crate::log::frame::{self, FrameParse, FrameWriter, Part, Record, TailRecord};
use crate::log::ring::TailId;
use crate::log::session::{BootId, Sessions};
use crate::log::snapshot_record::SnapshotRecord;
use crate::units::{Epoch, Lsn, RootMark, VolumeId, VolumeSize};

fn fork() -> Record {
    Record::Snapshot {
        tail: tail(),
        snapshot: SnapshotRecord {
            id: VolumeId(ascending(0x60)),
            is_fork: true,
            name: "branch".into(),
            lsn: Lsn(6),
            bytes: 4 << 24,
            unix_ms: 123_456_790,
            labels: Vec::new(),
        },
    }
}

#[test]
fn frames_and_their_records_are_as_documented() {
    let bytes = fixture(include_str!("../../tests/fixtures/frame.hex"));
    let old = TailId {
        volume: other(),
        since: Epoch(1),
    };
    let state = |tail, name: &str, stored, [rescue, ring, unreported_loss]: [bool; 3]| {
        Record::Tail(TailRecord {
            tail,
            name: name.into(),
            stored: Lsn(stored),
            root: RootMark {
                sequence: 0x0101 * stored,
                nonce: 0x0202 * stored,
            },
            rescue,
            ring,
            unreported_loss,
            untouched: rescue,
            size: VolumeSize {
                bytes: stored << 24,
                block: 512,
            },
        })
    };
    let first = Sessions::default().begin(0x0102, BootId(1), false);
    let sessions = first.begin(0x0304, BootId::new(&[0xb0; 16]), true);
    let records = vec![
        Record::Sessions(sessions),
        state(tail(), "demo", 4, [false, true, false]),
        Record::Snapshot {
            tail: tail(),
            snapshot: SnapshotRecord {
                id: VolumeId(ascending(0x40)),
                is_fork: false,
                name: "demo@one".into(),
                lsn: Lsn(5),
                bytes: 4 << 24,
                unix_ms: 123_456_789,
                labels: vec![("why".into(), "test".into())],
            },
        },
        fork(),
        Record::Entries {
            tail: tail(),
            cut: Lsn(6),
            entries: entries().to_vec(),
        },
        state(old, "old", 2, [true, false, true]),
        Record::TailRemoved(old),
    ];
    let lap = (7 << 32) | 0x0102_0304;
    let whole = Part::Checkpoint {
        first: true,
        last: true,
    };
    let mut writer = FrameWriter::new(host());
    records.iter().for_each(|record| writer.record(record));
    assert!(writer.finish(whole, lap, 0) == bytes);
    // The reserved word of the header is outside the checksum.
    let ignored: Vec<usize> = (56..64).collect();
    let length = u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")) as usize;
    assert_every_byte_is_checked(&bytes[..64 + length], &ignored, |bytes| {
        matches!(frame::decode(bytes, host()), FrameParse::Frame(found) if found.records == records
            && (found.lap, found.number, found.bytes) == (lap, 0, 4096)
            && found.begins_checkpoint && found.ends_checkpoint && !found.round)
    });
}

#[test]
fn the_frame_of_a_group_commit_is_as_documented() {
    let bytes = fixture(include_str!("../../tests/fixtures/frame_round.hex"));
    let records = vec![
        Record::Entries {
            tail: tail(),
            cut: Lsn(6),
            entries: entries().to_vec(),
        },
        Record::SnapshotRemoved {
            tail: tail(),
            snapshot: VolumeId(ascending(0x50)),
        },
    ];
    let lap = (7 << 32) | 0x0102_0304;
    let mut writer = FrameWriter::new(host());
    records.iter().for_each(|record| writer.record(record));
    assert!(writer.finish(Part::Round, lap, 3) == bytes);
    let before = fixture(include_str!("../../tests/fixtures/frame_round_5.hex"));
    assert!(before != bytes);
    let FrameParse::Frame(read) = frame::decode(&before, host()) else {
        panic!("no frame of version 5")
    };
    assert_eq!(read.records, records);
    let FrameParse::Frame(found) = frame::decode(&bytes, host()) else {
        panic!("no frame")
    };
    assert!(found.round && !found.begins_checkpoint && !found.ends_checkpoint);
    assert_eq!(found.records, records);
    assert_eq!((found.lap, found.number), (lap, 3));
}
