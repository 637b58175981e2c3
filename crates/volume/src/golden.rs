//! Golden tests: the bytes of every structure, as docs/format.md gives them, never to change.
//!
//! The fixtures in `tests/fixtures/` were encoded from the document, not by this crate. Each is
//! decoded, compared with what it stands for, and encoded again to the same bytes (of compressed
//! bodies: to the same body, since compressors change). Every single byte of a fixture matters:
//! one that is changed must not decode to the same.

mod frames;
mod hostlog;
mod increment;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::hostlog::names::{Position, SessionName};
use crate::log::entry::Entry;
use crate::log::layout::{SegmentHeader, Superblock};
use crate::log::ring::{HeapRegion, Ring, RingId, RingRegion, TailId};
use crate::log::session::BootId;
use crate::map::layers::LogAddr;
use crate::object::ObjectId;
use crate::object::extensions::{Extension, Extensions};
use crate::object::node::{self, Node};
use crate::object::pack::{self, Chunk, Codec, Item, Slice};
use crate::object::pack_writer::PackWriter;
use crate::object::page::{self, BlockRef, Page};
use crate::object::root::{DeltaRef, Owner, Peer, Predecessor, Root};
use crate::object::sessions::SessionNames;
use crate::units::{Epoch, HostId, LogSession, Lsn, Span, VolumeId, VolumeSize};

/// Reads a fixture: hexadecimal bytes, `#` comments, and `pad N` for zeroes up to N bytes.
pub(crate) fn fixture(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(len) = line.strip_prefix("pad ") {
            bytes.resize(len.parse().expect("a number"), 0);
            continue;
        }
        let byte = |word: &str| u8::from_str_radix(word, 16).expect("two hexadecimal digits");
        bytes.extend(line.split_whitespace().map(byte));
    }
    bytes
}

macro_rules! fixture {
    ($name:literal) => {
        fixture(include_str!(concat!("../tests/fixtures/", $name, ".hex")))
    };
}

/// `same` tells whether bytes still decode to what the fixture stands for. Bytes in `ignored`
/// may be anything: the document says that readers do not look at them.
fn assert_every_byte_is_checked(bytes: &[u8], ignored: &[usize], same: impl Fn(&[u8]) -> bool) {
    assert!(same(bytes));
    for at in (0..bytes.len()).filter(|at| !ignored.contains(at)) {
        let mut changed = bytes.to_vec();
        changed[at] ^= 0x40;
        assert!(!same(&changed), "byte {at} may be anything");
    }
}

fn ascending<const N: usize>(first: u8) -> [u8; N] {
    std::array::from_fn(|i| first + i as u8)
}

fn host() -> HostId {
    HostId(ascending(0xa0))
}

fn volume() -> VolumeId {
    VolumeId(ascending(0x10))
}

fn other() -> VolumeId {
    VolumeId(ascending(0x30))
}

fn tail() -> TailId {
    TailId {
        volume: volume(),
        since: Epoch(3),
    }
}

fn session() -> SessionName {
    SessionName {
        host: host(),
        session: LogSession {
            number: 4,
            random: 0x1122_3344_5566_7788,
        },
    }
}

const OBJECT: ObjectId = ObjectId {
    session: 0x1122_3344_5566_7788,
    number: 5,
};

fn names() -> SessionNames {
    let mut names = SessionNames::default();
    names.insert(session()).expect("the first");
    names
}

fn entries() -> [Entry; 2] {
    [
        Entry {
            lsn: Lsn(5),
            span: Span::new(8, 16),
            addr: LogAddr::new(1000),
            generation: 9,
        },
        Entry {
            lsn: Lsn(6),
            span: Span::new(64, 128),
            addr: None,
            generation: 0,
        },
    ]
}

#[test]
fn the_superblock_is_as_documented() {
    let bytes = fixture!("superblock");
    let value = Superblock {
        host: host(),
        log_bytes: 4 << 20,
        segment_bytes: 64 << 10,
        poisoned: true,
    };
    assert!(value.encode() == bytes);
    assert_every_byte_is_checked(&bytes[..56], &[], |bytes| {
        Superblock::decode(bytes) == Ok(Some(value))
    });
}

#[test]
fn the_segment_header_is_as_documented() {
    let bytes = fixture!("segment_header");
    let value = SegmentHeader {
        host: host(),
        segment: 3,
        generation: 9,
    };
    assert!(value.encode() == bytes);
    assert_every_byte_is_checked(&bytes[..48], &[], |bytes| {
        SegmentHeader::generation(bytes, host(), 3) == Some(9)
    });
}

fn ring_id(tail: Option<TailId>) -> RingId {
    let session = LogSession {
        number: 4,
        random: 0x0807_0605_0403_0201,
    };
    RingId {
        host: host(),
        session,
        tail,
    }
}

fn region(bytes: &[u8]) -> Arc<HeapRegion> {
    let region = HeapRegion::new(bytes.len() / 8);
    for (word, bytes) in region.words().iter().zip(bytes.chunks_exact(8)) {
        let value = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        word.store(value, Ordering::Relaxed);
    }
    Arc::new(region)
}

#[test]
fn the_index_ring_is_as_documented() {
    let bytes = fixture!("ring");
    let (id, boot) = (ring_id(Some(tail())), BootId::new(&[0xb0; 16]));
    let found = |bytes: &[u8]| {
        let ring = Ring::open_existing(region(bytes), &id, boot)?;
        let entries = [ring.read(Lsn(5))?, ring.read(Lsn(6))?];
        Some((ring.durable(), ring.requires_check(), entries))
    };
    assert_every_byte_is_checked(&bytes, &[], |bytes| {
        found(bytes) == Some((Lsn(4), false, entries()))
    });
    let empty = Arc::new(HeapRegion::new(bytes.len() / 8));
    let ring = Ring::format(empty.clone(), &id, boot);
    entries().iter().for_each(|entry| ring.write(entry));
    ring.set_durable(Lsn(4));
    let word = |word: &AtomicU64| word.load(Ordering::Relaxed).to_le_bytes();
    let written = |region: &HeapRegion| region.words().iter().flat_map(word).collect::<Vec<u8>>();
    assert_eq!(written(&empty), bytes);
    assert!(!ring.is_poisoned());
    ring.poison();
    let marked = fixture!("ring_poisoned");
    assert_eq!(written(&empty), marked);
    let found = Ring::open_existing(region(&marked), &id, boot);
    assert!(found.is_some_and(|ring| ring.is_poisoned() && !ring.requires_check()));
    ring.require_check();
    let mut checked = marked;
    checked[104] = 1;
    assert_eq!(written(&empty), checked);
}

#[test]
fn the_region_of_a_session_is_as_documented() {
    let bytes = fixture!("ring_session");
    let (id, boot) = (ring_id(None), BootId::new(&[0xb0; 16]));
    // Of frames, and of a tail's service, a session's own region says nothing.
    let ignored: Vec<usize> = (104..120).collect();
    assert_every_byte_is_checked(&bytes, &ignored, |bytes| {
        Ring::open_existing(region(bytes), &id, boot).is_some_and(|ring| !ring.is_poisoned())
    });
    let made = Arc::new(HeapRegion::new(bytes.len() / 8));
    Ring::format(made.clone(), &id, boot);
    let word = |word: &AtomicU64| word.load(Ordering::Relaxed).to_le_bytes();
    assert!(made.words().iter().flat_map(word).eq(bytes));
}

fn random_bytes() -> Vec<u8> {
    (0..512_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

fn label(name: &str) -> pack::VolumeLabel {
    pack::VolumeLabel {
        name: name.into(),
        size: VolumeSize {
            bytes: 0x10_0000_0000,
            block: 4096,
        },
    }
}

#[test]
fn packs_are_as_documented() {
    let bytes = fixture!("pack");
    let mut writer = PackWriter::new(session(), OBJECT.number);
    let slice = Slice {
        origin: volume(),
        epoch: Epoch(3),
        first: Lsn(4),
        since: Epoch(2),
        begin: Lsn(5),
        last: Lsn(5),
        packs: 1,
        volume: label("demo"),
        lineage: pack::Lineage::default(),
    };
    let ancestor = pack::Ancestor {
        volume: volume(),
        last: Lsn(1),
    };
    let second = Slice {
        origin: other(),
        epoch: Epoch(7),
        first: Lsn(2),
        since: Epoch(7),
        begin: Lsn(6),
        last: Lsn(9),
        packs: 2,
        volume: label("a.fork"),
        lineage: [ancestor].into(),
    };
    writer.add(&slice, Span::new(8, 1), Lsn(5), &random_bytes());
    writer.add_zeroes(&second, Span::new(1 << 33, 1 << 32), Lsn(6));
    writer.add_damaged(&second, Span::new(40, 8), Lsn(8));
    let written = writer.finish();
    assert_eq!(written.bytes, bytes);
    assert_eq!((written.footer_offset, written.footer_bytes), (528, 438));
    // Readers do not look at the header's reserved bytes.
    let ignored: Vec<usize> = (10..16).collect();
    assert_every_byte_is_checked(&bytes, &ignored, |bytes| {
        let Ok(footer) = pack::decode(bytes) else {
            return false;
        };
        let content = match &footer.sections[0].items[..] {
            [Item::Chunk(chunk)] => chunk.open(&bytes[16..528]),
            _ => return false,
        };
        let is_named = (footer.session, footer.id) == (session(), OBJECT);
        is_named && footer.sections == written.sections && content == Ok(random_bytes())
    });
}

#[test]
fn compressed_chunks_are_as_documented() {
    let bytes = fixture!("pack_zstd");
    let sections = pack::decode(&bytes).expect("a pack").sections;
    let [Item::Chunk(chunk)] = sections[0].items.as_slice() else {
        panic!("one chunk: {sections:?}")
    };
    let stored = &bytes[chunk.offset as usize..][..chunk.stored as usize];
    let mut content = vec![7; 512];
    content[0] = 1;
    assert_every_byte_is_checked(stored, &[], |stored| {
        chunk.open(stored).as_ref() == Ok(&content)
    });
    assert_eq!((chunk.codec, chunk.origin), (Codec::Zstd, volume()));
    assert_eq!((chunk.span, chunk.lsn), (Span::new(16, 1), Lsn(7)));
}

#[test]
fn index_pages_are_as_documented() {
    let bytes = fixture!("page");
    let chunk = Chunk {
        pack: OBJECT,
        offset: 32,
        stored: 99,
        origin: other(),
        span: Span::new(8, 16),
        lsn: Lsn(5),
        codec: Codec::Zstd,
        checksum: 0x0102_0304_0506_0708,
    };
    let base = 2 * page::PAGE_SECTORS;
    let damaged = Chunk {
        offset: 0,
        stored: 0,
        span: Span::new(base + 48, 8),
        lsn: Lsn(6),
        codec: Codec::Damaged,
        checksum: 0,
        ..chunk.clone()
    };
    let value = [
        (Span::new(base, 4), chunk.clone(), 0),
        (Span::new(base + 40, 8), chunk, 8),
        (Span::new(base + 48, 8), damaged, 0),
    ];
    let same = |bytes: &[u8]| {
        page::decode_page(volume(), 2, bytes).is_ok_and(|page| {
            page.extents().eq(value.iter().cloned()) && page.sessions().eq([session()])
        })
    };
    assert_every_byte_is_checked(&bytes, &[], same);
    let extents = value
        .iter()
        .map(|(span, chunk, skip)| (*span, chunk, *skip));
    let again = Page::new(2, &names(), extents).expect("a known session");
    let again = page::encode_page(volume(), &again);
    assert!(same(&again));
    assert_eq!(again[..40], bytes[..40], "the header, but for the checksum");
    assert_eq!(page::body_of(&again), page::body_of(&bytes));
}

#[test]
fn index_nodes_are_as_documented() {
    let bytes = fixture!("node");
    let at = |offset| BlockRef {
        object: OBJECT,
        offset,
        bytes: 777,
    };
    let pages = [(1024, at(0)), (2047, at(4096))];
    let value = Node::new(1, &names(), pages.into_iter()).expect("a known session");
    assert_every_byte_is_checked(&bytes, &[], |bytes| {
        node::decode_node(volume(), 1, bytes).as_ref() == Ok(&value)
    });
    let again = node::encode_node(volume(), &value);
    assert_eq!(again[..40], bytes[..40], "the header, but for the checksum");
    assert_eq!(page::body_of(&again), page::body_of(&bytes));
}

#[test]
fn roots_are_as_documented() {
    let bytes = fixture!("root");
    let value = Root {
        volume: volume(),
        name: "demo".into(),
        bytes: 10 << 30,
        block: 512,
        epoch: Epoch(3),
        since: Epoch(2),
        first: Lsn(60),
        sequence: 7,
        nonce: 11,
        earlier: vec![10, 9],
        writer: SessionName {
            host: host(),
            session: LogSession {
                number: 4,
                random: 0x0102_0304_0506_0708,
            },
        },
        owner: Some(Owner {
            host: host(),
            label: "here".into(),
        }),
        claimant: Some(Owner {
            host: HostId(ascending(0xc0)),
            label: "there".into(),
        }),
        predecessor: Some(Predecessor {
            host: HostId(ascending(0xd0)),
            epoch: Epoch(2),
            mark: Position(40),
        }),
        mark: Position(41),
        peers: vec![Peer {
            host: HostId(ascending(0xe0)),
            incarnation: 12,
        }],
        deleted: false,
        lsn: Lsn(99),
        unix_ms: 1_234_567_890_123,
        deltas: vec![DeltaRef {
            pack: OBJECT,
            footer_offset: 544,
            footer_bytes: 160,
            last: Lsn(99),
            span: Span::new(8, 1),
        }],
        nodes: vec![(
            0,
            BlockRef {
                object: OBJECT,
                offset: 48,
                bytes: 777,
            },
        )],
        sessions: names(),
        extensions: Extensions(vec![Extension {
            tag: 77,
            bytes: vec![1, 2, 3],
        }]),
    };
    assert_eq!(value.encode(), bytes);
    assert_every_byte_is_checked(&bytes, &[], |bytes| {
        Root::decode(bytes).as_ref() == Ok(&value)
    });
}

#[test]
fn an_extension_that_must_be_understood_is_refused_as_a_newer_format() {
    let mut bytes = fixture!("root");
    let flags = bytes.len() - 3 - 4 - 2;
    bytes[flags] = 1;
    let crc = crate::codec::crc64(&[&bytes[..16], &bytes[24..]]);
    bytes[16..24].copy_from_slice(&crc.to_le_bytes());
    let refused = Root::decode(&bytes).expect_err("not known here");
    assert!(
        matches!(refused, crate::object::FormatError::Newer(_)),
        "{refused}"
    );
}

#[test]
fn keys_are_as_documented() {
    let under =
        "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf/0000000000000004-1122334455667788/0000000000000005";
    assert_eq!(names().pack_key(OBJECT), Ok(format!("packs/{under}")));
    assert_eq!(names().index_key(OBJECT), Ok(format!("indexes/{under}")));
    assert_eq!(crate::object::root_key("demo"), "volumes/demo/root");
    assert_eq!(
        crate::object::root_key("demo@monday"),
        "snapshots/demo/monday/root"
    );
}
