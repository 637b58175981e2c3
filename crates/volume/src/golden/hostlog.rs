//! Golden tests of what stands in a host's log in the store, and beside it.

use super::{ascending, assert_every_byte_is_checked, fixture, host, other, volume};
use crate::hostlog::marks::{LowMark, Pin};
use crate::hostlog::names::{self, Digest, Position, SessionName};
use crate::hostlog::record::{
    Content, NamedObject, Record, RecordPack, RecordSlice, Slices, TableRow, WHOLE_HOST,
};
use crate::object::FormatError;
use crate::object::root::Root;
use crate::units::{Epoch, HostId, LogSession, Lsn, Span};

fn session() -> SessionName {
    SessionName {
        host: host(),
        session: LogSession {
            number: 4,
            random: 0x0102_0304_0506_0708,
        },
    }
}

fn slices() -> Slices {
    let slice = |volume, pack, first, count, span| RecordSlice {
        volume,
        pack,
        first: Lsn(first),
        count,
        span,
    };
    let pack = |number, is_kept, footer_offset, footer_bytes, digest| RecordPack {
        number,
        is_kept,
        footer_offset,
        footer_bytes,
        digest: Digest(ascending(digest)),
    };
    let object = |is_index, is_kept, number| NamedObject {
        volume: 0,
        is_index,
        is_kept,
        number,
    };
    Slices {
        floor: 3,
        previous: Digest(ascending(0x40)),
        ends_session: LogSession {
            number: 3,
            random: 0x1112_1314_1516_1718,
        },
        packs: vec![
            pack(7, false, 544, 160, 0x60),
            pack(9, true, 600, 112, 0x80),
        ],
        volumes: vec![(volume(), Epoch(3)), (other(), Epoch(8))],
        slices: vec![
            slice(0, 0, 5, 2, Span::new(8, 8)),
            slice(0, 1, 5, 2, Span::new(64, 16)),
            slice(1, 0, 9, 1, Span::new(0, 0)),
        ],
        ends: vec![1],
        objects: vec![object(true, false, 11), object(false, true, 12)],
        table: vec![TableRow {
            volume: 0,
            positions: vec![Position(17), Position(40)],
        }],
    }
}

fn record(content: Slices) -> Record {
    Record {
        log: host(),
        position: Position(65),
        writer: session(),
        content: Content::Slices(content),
    }
}

#[test]
fn records_are_as_documented() {
    let bytes = fixture(include_str!("../../tests/fixtures/record.hex"));
    let value = record(slices());
    assert_eq!(value.encode(), bytes);
    assert_every_byte_is_checked(&bytes, &[], |bytes| {
        Record::decode(bytes).as_ref() == Ok(&value)
    });
    assert!(value.blocks(other(), Epoch(8)) && !value.blocks(other(), Epoch(9)));
    assert!(!value.blocks(volume(), Epoch(3)), "its epoch goes on");
}

#[test]
fn fences_are_as_documented() {
    let bytes = fixture(include_str!("../../tests/fixtures/record_fence.hex"));
    let value = Record {
        log: host(),
        position: Position(66),
        writer: SessionName {
            host: HostId(ascending(0xc0)),
            session: LogSession {
                number: 1,
                random: 5,
            },
        },
        content: Content::Fence(vec![(volume(), Epoch(4)), (WHOLE_HOST, Epoch(u64::MAX))]),
    };
    assert_eq!(value.encode(), bytes);
    assert_every_byte_is_checked(&bytes, &[], |bytes| {
        Record::decode(bytes).as_ref() == Ok(&value)
    });
    assert!(
        value.blocks(other(), Epoch(1 << 40)),
        "the whole host is blocked"
    );
    let one = Record {
        content: Content::Fence(vec![(volume(), Epoch(4))]),
        ..value
    };
    assert!(one.blocks(volume(), Epoch(3)) && !one.blocks(volume(), Epoch(4)));
    assert!(!one.blocks(other(), Epoch(3)));
}

#[test]
fn low_marks_and_pins_are_as_documented() {
    let bytes = fixture(include_str!("../../tests/fixtures/low.hex"));
    let low = LowMark {
        host: host(),
        position: Position(65),
    };
    assert_eq!(low.encode(), bytes);
    assert_every_byte_is_checked(&bytes, &[], |bytes| LowMark::decode(bytes) == Ok(low));

    let bytes = fixture(include_str!("../../tests/fixtures/pin.hex"));
    let pin = Pin {
        parent: other(),
        child: volume(),
        writer: session(),
        root: Root::decode(&fixture(include_str!("../../tests/fixtures/root.hex")))
            .expect("a root"),
    };
    assert_eq!(pin.encode(), bytes);
    assert_every_byte_is_checked(&bytes, &[], |bytes| Pin::decode(bytes).as_ref() == Ok(&pin));
}

#[test]
fn a_record_that_cannot_be_true_is_refused_whatever_its_checksum() {
    let with = |change: fn(&mut Slices)| {
        let mut content = slices();
        change(&mut content);
        record(content)
    };
    let wrong = [
        with(|slices| slices.slices[0].volume = 2),
        with(|slices| slices.slices[0].pack = 2),
        with(|slices| slices.slices[0].first = Lsn::ZERO),
        with(|slices| slices.slices[0].first = Lsn(u64::MAX)),
        with(|slices| slices.slices[0].count = 0),
        with(|slices| slices.slices[0].span = Span { start: 2, end: 1 }),
        with(|slices| slices.ends[0] = 2),
        with(|slices| slices.objects[0].volume = 2),
        with(|slices| slices.table[0].volume = 2),
        with(|slices| slices.table[0].positions.reverse()),
        with(|slices| slices.table[0].positions[1] = Position(65)),
        with(|slices| slices.table[0].positions[0] = Position(0)),
        Record {
            position: Position(0),
            ..with(|slices| slices.table.clear())
        },
    ];
    for (number, wrong) in wrong.iter().enumerate() {
        let refused = Record::decode(&wrong.encode());
        assert!(matches!(refused, Err(FormatError::Corrupt(_))), "{number}");
    }
}

#[test]
fn keys_of_hosts_are_as_documented() {
    let host_text = "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf";
    let under = format!("{host_text}/0000000000000004-0102030405060708/0000000000000005");
    assert_eq!(session().pack_key(5), format!("packs/{under}"));
    assert_eq!(session().index_key(5), format!("indexes/{under}"));
    assert_eq!(
        names::record_key(host(), Position(65)),
        format!("hosts/{host_text}/log/0000000000000041")
    );
    assert_eq!(names::low_key(host()), format!("hosts/{host_text}/low"));
    assert_eq!(
        names::pin_key(volume(), other()),
        "pins/101112131415161718191a1b1c1d1e1f/303132333435363738393a3b3c3d3e3f"
    );
    assert_eq!(
        names::restore_pin_key(volume(), other(), 9),
        "pins/101112131415161718191a1b1c1d1e1f/303132333435363738393a3b3c3d3e3f-0000000000000009"
    );
}
