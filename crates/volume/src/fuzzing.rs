//! The entry point for fuzzers: one call decodes given bytes as one structure of the store or the log,
//! and asserts what must hold whatever they are. It panics only where a decoder is wrong.
//!
//! A fuzzer does not guess checksums. So each call decodes its input twice: as it is, and as the
//! body of a structure whose header and checksum are right.

use crate::codec::{Reader, Writer, crc64};
use crate::hostlog::marks::{LowMark, Pin};
use crate::hostlog::names::{Digest, Position, SessionName};
use crate::hostlog::record::{
    Content, NamedObject, Record as HostRecord, RecordPack, RecordSlice, Slices, TableRow,
};
use crate::increment::{self, IncrementBlock, IncrementHeader, IncrementWriter, Point};
use crate::log::entry::Entry;
use crate::log::frame::{self, FrameParse, FrameWriter, Part, Record};
use crate::log::layout::{SegmentHeader, Superblock};
use crate::log::ring::TailId;
use crate::log::session::{BootId, Sessions};
use crate::map::layers::LogAddr;
use crate::object::ObjectId;
use crate::object::node::{self, Node};
use crate::object::pack::{self, Ancestor, Item, Slice, VolumeLabel};
use crate::object::pack_writer::PackWriter;
use crate::object::page::{self, Page};
use crate::object::root::{DeltaRef, Peer, Predecessor, Root};
use crate::object::sessions::SessionNames;
use crate::units::{Epoch, HostId, LogSession, Lsn, RootMark, Span, VolumeId, VolumeSize};

const VOLUME: VolumeId = VolumeId([9; 16]);
const HOST: HostId = HostId([2; 16]);
const PACK: ObjectId = ObjectId {
    session: 5,
    number: 6,
};

fn writer() -> PackWriter {
    PackWriter::new(session_name(), PACK.number)
}

fn names() -> SessionNames {
    let mut names = SessionNames::default();
    names.insert(session_name()).expect("the first");
    names
}

/// A pack: its footer alone, the whole object, and each chunk that the footer names.
pub fn pack(input: &[u8]) {
    let _ = pack::decode_footer(PACK, input);
    let _ = pack::decode(input);

    let empty = writer().finish().bytes;
    let mut object = Writer::new();
    let count = u32::try_from(input.len() / pack::ENTRY_BYTES).expect("inputs are short");
    // Header and name are right.
    object.raw(&empty[..pack::HEADER_BYTES + pack::NAME_BYTES]);
    object.raw(&VOLUME.0).u64(1).u64(1).u64(1);
    object.u32(0).u32(count).u32(0);
    object.raw(input);
    object.u64(pack::HEADER_BYTES as u64).u32(count).u32(1);
    let crc = crc64(&[&object.bytes()[pack::HEADER_BYTES..]]);
    object.u64(crc).raw(&empty[empty.len() - 8..]);
    let object = object.finish();
    let Ok(footer) = pack::decode(&object) else {
        return;
    };
    assert_eq!(footer.id, PACK, "the pack is the one that was asked for");
    let items: Vec<Item> = footer
        .sections
        .into_iter()
        .flat_map(|part| part.items)
        .collect();
    assert_eq!(items.len() as u64, u64::from(count), "one item per entry");
    for item in items {
        let (Item::Chunk(pack::Chunk { span, .. }) | Item::Zeroes { span, .. }) = item;
        assert!(span.start < span.end, "an empty extent");
        if let Item::Chunk(chunk) = item {
            assert!(chunk.span.bytes() <= pack::CHUNK_BYTES_MAX, "a long chunk");
            // Wrong bytes for this checksum, except by a chance that no one has.
            assert!(chunk.open(&object).is_err(), "content out of thin air");
        }
    }
}

/// A block of an index object: a page or a node.
pub fn index_block(input: &[u8]) {
    let _ = page::decode_page(VOLUME, 0, input);
    let _ = node::decode_node(VOLUME, 0, input);

    let models = [
        page::encode_page(
            VOLUME,
            &Page::new(0, &names(), std::iter::empty()).expect("none"),
        ),
        node::encode_node(
            VOLUME,
            &Node::new(0, &names(), std::iter::empty()).expect("none"),
        ),
    ];
    for model in models {
        let stored = zstd::bulk::compress(input, 1).expect("compression into memory cannot fail");
        let mut block = Writer::new();
        block
            .raw(&model[..12])
            .u32(u32::try_from(input.len()).expect("inputs are short"))
            .raw(&model[16..40]);
        let crc = crc64(&[block.bytes(), &stored]);
        block.u64(crc).raw(&stored);
        let block = block.finish();
        if let Ok(page) = page::decode_page(VOLUME, 0, &block) {
            let mut free = 0;
            for (span, chunk, skip) in page.extents() {
                assert!(
                    free <= span.start && span.end <= page::PAGE_SECTORS,
                    "{span:?}"
                );
                let end = u64::from(skip) + span.sectors();
                assert!(end <= chunk.span.sectors(), "outside of its chunk");
                free = span.end;
            }
            let whole = Span::new(0, page::PAGE_SECTORS);
            let mut at = 0;
            page.walk(whole, |part, _| {
                assert_eq!(part.start, at, "a walk leaves nothing out");
                at = part.end;
            });
            assert_eq!(at, whole.end);
            let again = page::decode_page(VOLUME, 0, &page::encode_page(VOLUME, &page));
            assert_eq!(again, Ok(page), "changed on its way");
        }
        if let Ok(node) = node::decode_node(VOLUME, 0, &block) {
            assert!(node.pages().all(|(page, _)| page < page::NODE_PAGES));
            let again = node::decode_node(VOLUME, 0, &node::encode_node(VOLUME, &node));
            assert_eq!(again, Ok(node));
        }
    }
}

/// A volume's root.
pub fn root(input: &[u8]) {
    let _ = Root::decode(input);
    let mut object = Writer::new();
    object.raw(b"FIRNROOT").u16(1).u16(0);
    object.u32(u32::try_from(input.len()).expect("inputs are short"));
    let crc = crc64(&[object.bytes(), input]);
    object.u64(crc).raw(input);
    if let Ok(root) = Root::decode(object.bytes()) {
        assert_eq!(Root::decode(&root.encode()), Ok(root));
    }
}

/// What stands in a host's log in the store and beside it: records, low marks, pins.
pub fn host_log(input: &[u8]) {
    check_host_log(input);
    for model in host_log_models() {
        // Behind magic, version and kind: the kind of a record is the model's.
        let mut object = Writer::new();
        object.raw(&model[..16]).raw(input);
        let crc = crc64(&[object.bytes()]);
        object.u64(crc);
        check_host_log(object.bytes());
    }
}

fn check_host_log(bytes: &[u8]) {
    if let Ok(record) = HostRecord::decode(bytes) {
        assert_eq!(HostRecord::decode(&record.encode()), Ok(record.clone()));
        if let Content::Slices(slices) = record.content {
            assert_eq!(slices.ended_epochs().count(), slices.ends.len());
            for (volume, epoch) in &slices.volumes {
                for (slice, _) in slices.of(*volume, *epoch) {
                    assert!(slice.first <= slice.last(), "an empty slice");
                }
            }
        }
    }
    if let Ok(mark) = LowMark::decode(bytes) {
        assert_eq!(LowMark::decode(&mark.encode()), Ok(mark));
    }
    if let Ok(pin) = Pin::decode(bytes) {
        assert_eq!(Pin::decode(&pin.encode()), Ok(pin));
    }
}

/// The log's blocks: a frame, the superblock, a segment header, an entry of the ring.
pub fn log(input: &[u8]) {
    let _ = Superblock::decode(input);
    let _ = SegmentHeader::generation(input, HOST, 0);
    check_frame(input);
    let mut block = input.to_vec();
    block.resize(input.len().max(56), 0);
    let model = FrameWriter::new(HOST).finish(Part::Round, 1, 1);
    block[..8].copy_from_slice(&model[..8]);
    block[16..32].copy_from_slice(&HOST.0);
    check_frame(&block);

    let model = FrameWriter::new(HOST).finish(Part::Round, 7, 8);
    let mut sealed = model[..64].to_vec();
    let len = u32::try_from(input.len()).expect("inputs are short");
    sealed[12..16].copy_from_slice(&len.to_le_bytes());
    let crc = crc64(&[&sealed[..48], input]);
    sealed[48..56].copy_from_slice(&crc.to_le_bytes());
    sealed.extend(input);
    if let Some(frame) = check_frame(&sealed) {
        let mut writer = FrameWriter::new(HOST);
        frame
            .records
            .iter()
            .for_each(|record| writer.record(record));
        let again = writer.finish(Part::Round, 7, 8);
        let FrameParse::Frame(again) = frame::decode(&again, HOST) else {
            panic!("what was just written is not read");
        };
        // Its length may be another: what is no UTF-8 in a name is replaced, which takes more room.
        let bytes = frame.bytes;
        assert_eq!(frame::Frame { bytes, ..again }, frame);
    }

    let mut r = Reader::new(input);
    while let Ok(entry) = Entry::decode(&mut r) {
        let Some(entry) = entry else { continue };
        assert!(entry.span.start < entry.span.end && entry.lsn.0 > 0);
        assert_eq!(Entry::from_words(entry.words()), Some(entry));
    }
}

fn check_frame(bytes: &[u8]) -> Option<frame::Frame> {
    match frame::decode(bytes, HOST) {
        FrameParse::Frame(frame) => {
            for record in &frame.records {
                if let Record::Entries { entries, .. } = record {
                    assert!(
                        entries
                            .iter()
                            .all(|entry| entry.span.start < entry.span.end)
                    );
                }
            }
            Some(frame)
        }
        FrameParse::Incomplete(bytes_needed) => {
            assert!(bytes_needed > bytes.len(), "it asks for what it has");
            None
        }
        FrameParse::NoFrame | FrameParse::Newer(_) => None,
    }
}

/// Valid inputs to begin with, by the name of the function that takes them.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut seeds = object_seeds();
    seeds.extend(log_seeds());
    for object in host_log_models() {
        seeds.push(("host_log", object[16..object.len() - 8].to_vec()));
        seeds.push(("host_log", object));
    }
    let (beginning, all) = increment_model();
    // Blocks as the fuzzer makes them: without their checksums.
    let zeroes = [&[3, 0, 0, 0, 0, 0, 0, 0][..], &[0; 9], &[2], &[0; 6]].concat();
    seeds.push(("increment", all));
    seeds.push(("increment", beginning));
    seeds.push(("increment", zeroes));
    seeds
}

fn session_name() -> SessionName {
    SessionName {
        host: HOST,
        session: LogSession {
            number: 4,
            random: 5,
        },
    }
}

/// An increment: as it is, and as the blocks of one whose checksums are right.
pub fn increment(input: &[u8]) {
    let check = |bytes: &[u8]| {
        let Ok((header, blocks)) = increment::read_all(bytes) else {
            return;
        };
        let mut end = 0;
        for block in blocks {
            let (offset, bytes) = match block {
                IncrementBlock::Content { offset, data } => (offset, data.len() as u64),
                IncrementBlock::Zeroes { offset, bytes } => (offset, bytes),
                IncrementBlock::End => panic!("it is not given"),
            };
            assert!(offset >= end && bytes > 0);
            end = offset + bytes;
        }
        assert!(end <= header.point.bytes);
    };
    check(input);
    let (mut bytes, mut rest) = (increment_model().0, input);
    for number in 0.. {
        let Some((head, behind)) = rest.split_at_checked(24) else {
            break;
        };
        let stored = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let (stored, behind) = behind.split_at(stored.min(behind.len()));
        bytes.extend(increment::block_of(VOLUME, number, head, stored));
        rest = behind;
    }
    check(&bytes);
}

/// The beginning of an increment, and all of it.
fn increment_model() -> (Vec<u8>, Vec<u8>) {
    let point = |name: &str| Point {
        id: VOLUME,
        name: name.into(),
        bytes: 1 << 20,
    };
    let header = IncrementHeader {
        point: point("demo@b"),
        block: 512,
        taken_unix_ms: 7,
        base: Some(point("demo@a")),
    };
    let (mut writer, beginning) = IncrementWriter::new(&header);
    let mut all = beginning.clone();
    all.extend(writer.content(0, &[7; 1024]));
    all.extend(writer.zeroes(4096, 512));
    all.extend(writer.finish());
    (beginning, all)
}

/// One object of each kind.
fn host_log_models() -> Vec<Vec<u8>> {
    let record = |content| HostRecord {
        log: HOST,
        position: Position(65),
        writer: session_name(),
        content,
    };
    let slices = Slices {
        floor: 3,
        packs: vec![RecordPack {
            number: 6,
            is_kept: false,
            footer_offset: 8,
            footer_bytes: 80,
            digest: Digest([1; 32]),
        }],
        volumes: vec![(VOLUME, Epoch(3))],
        slices: vec![RecordSlice {
            volume: 0,
            pack: 0,
            first: Lsn(4),
            count: 2,
            span: Span::new(0, 8),
        }],
        ends: vec![0],
        objects: vec![NamedObject {
            volume: 0,
            is_index: true,
            is_kept: false,
            number: 7,
        }],
        table: vec![TableRow {
            volume: 0,
            positions: vec![Position(64)],
        }],
        ..Slices::default()
    };
    let low = LowMark {
        host: HOST,
        position: Position(9),
    };
    let pin = Pin {
        parent: VOLUME,
        child: VolumeId([8; 16]),
        writer: session_name(),
        root: sample_root(),
    };
    vec![
        record(Content::Slices(slices)).encode(),
        record(Content::Fence(vec![(VOLUME, Epoch(3))])).encode(),
        low.encode(),
        pin.encode(),
    ]
}

/// A root with a predecessor and a delta.
fn sample_root() -> Root {
    Root {
        volume: VOLUME,
        name: "demo".into(),
        bytes: 10 << 30,
        block: 512,
        epoch: Epoch(3),
        since: Epoch(2),
        first: Lsn(60),
        sequence: 7,
        nonce: 11,
        earlier: vec![10],
        writer: session_name(),
        owner: None,
        claimant: None,
        predecessor: Some(Predecessor {
            host: HOST,
            epoch: Epoch(2),
            mark: Position(6),
        }),
        mark: Position(7),
        peers: vec![Peer {
            host: HOST,
            incarnation: 1,
        }],
        deleted: false,
        lsn: Lsn(99),
        unix_ms: 123,
        deltas: vec![DeltaRef {
            pack: PACK,
            footer_offset: 8,
            footer_bytes: 80,
            last: Lsn(99),
            span: Span::new(0, 8),
        }],
        nodes: Vec::new(),
        sessions: names(),
        extensions: Default::default(),
    }
}

fn object_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut writer = writer();
    let slice = Slice {
        origin: VOLUME,
        epoch: Epoch(3),
        first: Lsn(1),
        since: Epoch(1),
        begin: Lsn(1),
        last: Lsn(3),
        packs: 1,
        volume: VolumeLabel {
            name: "demo".into(),
            size: VolumeSize {
                bytes: 1 << 30,
                block: 512,
            },
        },
        lineage: [Ancestor {
            volume: VolumeId([8; 16]),
            last: Lsn(1),
        }]
        .into(),
    };
    writer.add(&slice, Span::new(0, 8), Lsn(1), &[7; 4096]);
    writer.add_zeroes(&slice, Span::new(64, 8), Lsn(2));
    writer.add_damaged(&slice, Span::new(80, 8), Lsn(3));
    let pack = writer.finish();
    let at = usize::try_from(pack.footer_offset).expect("it is in memory");
    let entries = at + pack.footer_bytes as usize - 3 * pack::ENTRY_BYTES;
    let entries = entries..at + pack.footer_bytes as usize;
    let chunks = pack.sections[0].items.iter().filter_map(|item| match item {
        Item::Chunk(chunk) => Some((chunk.span, chunk, 0)),
        Item::Zeroes { .. } => None,
    });
    let page = Page::new(0, &names(), chunks).expect("a known session");
    let page = page::encode_page(VOLUME, &page);
    let page_body = zstd::bulk::decompress(&page[48..], 1 << 20).expect("it was just written");
    let root = sample_root().encode();
    vec![
        ("pack", pack.bytes[entries].to_vec()),
        ("pack", pack.bytes),
        ("index_block", page_body),
        ("index_block", page),
        ("root", root[24..].to_vec()),
        ("root", root),
    ]
}

fn log_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let tail = TailId {
        volume: VOLUME,
        since: Epoch(3),
    };
    let mut writer = FrameWriter::new(HOST);
    writer.record(&Record::Sessions(Sessions::default().begin(
        5,
        BootId(6),
        true,
    )));
    writer.record(&Record::Tail(frame::TailRecord {
        tail,
        name: "demo".into(),
        stored: Lsn(4),
        root: RootMark {
            sequence: 7,
            nonce: 11,
        },
        rescue: false,
        ring: true,
        unreported_loss: false,
        untouched: false,
        size: VolumeSize {
            bytes: 64 << 20,
            block: 512,
        },
    }));
    let entry = Entry {
        lsn: Lsn(5),
        span: Span::new(8, 8),
        addr: LogAddr::new(64),
        generation: 1,
    };
    writer.record(&Record::Entries {
        tail,
        cut: Lsn(5),
        entries: vec![entry],
    });
    writer.record(&Record::TailRemoved(tail));
    let frame = writer.finish(Part::Round, 1, 1);
    let superblock = Superblock {
        host: HOST,
        log_bytes: 1 << 20,
        segment_bytes: 1 << 16,
        poisoned: false,
    };
    let segment = SegmentHeader {
        host: HOST,
        segment: 0,
        generation: 1,
    };
    let records = usize::try_from(u32::from_le_bytes([
        frame[12], frame[13], frame[14], frame[15],
    ]))
    .expect("a frame is short");
    vec![
        ("log", frame[64..64 + records].to_vec()),
        ("log", frame[..64 + records].to_vec()),
        ("log", superblock.encode()[..56].to_vec()),
        ("log", segment.encode()[..48].to_vec()),
    ]
}
