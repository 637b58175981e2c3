//! The golden tests of increments.

use super::{assert_every_byte_is_checked, fixture, other, volume};
use crate::increment::{IncrementBlock, IncrementHeader, IncrementWriter, Point, read_all};

fn header(has_base: bool) -> IncrementHeader {
    IncrementHeader {
        point: Point {
            id: volume(),
            name: "demo@b".into(),
            bytes: 8 << 20,
        },
        block: 512,
        taken_unix_ms: 1_700_000_000_000,
        base: has_base.then(|| Point {
            id: other(),
            name: "demo@a".into(),
            bytes: 4 << 20,
        }),
    }
}

#[test]
fn an_increment_is_as_documented() {
    let bytes = fixture(include_str!("../../tests/fixtures/increment.hex"));
    let (found, blocks) = read_all(&bytes).expect("an increment");
    assert_eq!(found, header(true));
    let [IncrementBlock::Content { offset, data }, zeroes] = &blocks[..] else {
        panic!("{blocks:?}");
    };
    assert_eq!(
        (*offset, data.len(), data[..2].to_vec()),
        (4096, 512, vec![0x6e, 0x34])
    );
    let expected = IncrementBlock::Zeroes {
        offset: 1 << 20,
        bytes: 65_536,
    };
    assert_eq!(zeroes, &expected);
    let (mut writer, mut written) = IncrementWriter::new(&header(true));
    written.extend(writer.content(4096, data));
    written.extend(writer.zeroes(1 << 20, 65_536));
    written.extend(writer.finish());
    assert_eq!(written, bytes);
    assert_every_byte_is_checked(&bytes, &[], |bytes| read_all(bytes).is_ok());
}

#[test]
fn an_increment_that_is_all_of_a_snapshot_and_compressed_is_as_documented() {
    let bytes = fixture(include_str!("../../tests/fixtures/increment_zstd.hex"));
    let (found, blocks) = read_all(&bytes).expect("an increment");
    assert_eq!(found, header(false));
    let expected = IncrementBlock::Content {
        offset: 0,
        data: vec![7; 512],
    };
    assert_eq!(blocks, [expected]);
    assert_every_byte_is_checked(&bytes, &[], |bytes| read_all(bytes).is_ok());
}
