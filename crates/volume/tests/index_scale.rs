//! The index of a large volume: how long until the first read, what it takes in memory, and how long a diff is.
//!
//! The index is generated: all pages have the same extents, and come into being when they are asked for. Root,
//! nodes and footers are of full size. Time is virtual: 30 ms a request, as many at once as are asked for; only what a
//! diff computes is timed by a clock.

#![allow(
    clippy::disallowed_methods,
    reason = "what a diff computes takes no virtual time"
)]

mod support;

use std::alloc::System;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use blkmq::io::FileId;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::points::snapshot;
use support::{Environment, World, options};
use volume::hostlog::names::{INDEX_PREFIX, SessionName, object_of_key};
use volume::object::ObjectId;
use volume::object::node::{Node, encode_node};
use volume::object::pack::{Chunk, Item, Lineage, Slice, VolumeLabel};
use volume::object::pack_writer::PackWriter;
use volume::object::page::{BlockRef, NODE_PAGES, PAGE_SECTORS, Page, encode_page};
use volume::object::root::{DeltaRef, Root};
use volume::object::sessions::SessionNames;
use volume::units::{Epoch, HostId, LogSession, Lsn, Span, VolumeId, VolumeSize};
use volume::{Options, Volume};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const TIB: u64 = 1 << 40;
const BYTES: u64 = 10 * TIB;
const PAGES: u64 = BYTES / 512 / PAGE_SECTORS;
/// In each page, so that there are 100 million.
const EXTENTS: u64 = 153;
const EXTENT_SECTORS: u64 = 208;
/// Deltas that were not folded yet, and extents in each.
const DELTAS: u64 = 128;
const DELTA_EXTENTS: u64 = 8192;
const SESSION: SessionName = SessionName {
    host: HostId([7; 16]),
    session: LogSession {
        number: 7,
        random: 77,
    },
};

fn id(number: u64) -> ObjectId {
    ObjectId::new(SESSION, number)
}

fn names() -> SessionNames {
    let mut names = SessionNames::default();
    names.insert(SESSION).expect("the first");
    names
}

fn slice(origin: VolumeId, lsn: u64) -> Slice {
    Slice {
        origin,
        epoch: Epoch(1),
        first: Lsn(lsn),
        since: Epoch(1),
        begin: Lsn(lsn),
        last: Lsn(lsn),
        packs: 1,
        volume: VolumeLabel {
            name: "demo".into(),
            size: VolumeSize {
                bytes: 1 << 30,
                block: 512,
            },
        },
        lineage: Lineage::default(),
    }
}

fn allocated(region: &Region<'_, System>) -> u64 {
    let change = region.change();
    (change.bytes_allocated - change.bytes_deallocated) as u64
}

/// The chunks of each page, in one pack: content of the first sectors of a volume, written by one commit.
fn pack_of_pages(volume: VolumeId, lsn: u64, objects: &mut Vec<(String, Vec<u8>)>) -> Vec<Chunk> {
    let mut writer = PackWriter::new(SESSION, (1 << 40) + lsn);
    for nth in 0..EXTENTS {
        let content = vec![nth as u8 + lsn as u8; EXTENT_SECTORS as usize * 512];
        let span = Span::new(nth * EXTENT_SECTORS, EXTENT_SECTORS);
        writer.add(&slice(volume, lsn), span, Lsn(lsn), &content);
    }
    let pack = writer.finish();
    objects.push((pack.key(), pack.bytes));
    let items = pack.sections.into_iter().flat_map(|part| part.items);
    items
        .map(|item| match item {
            Item::Chunk(chunk) => chunk,
            zeroes @ Item::Zeroes { .. } => panic!("{zeroes:?}"),
        })
        .collect()
}

fn page(number: u64, chunks: &[Chunk]) -> Page {
    let first = number * PAGE_SECTORS;
    let extents = chunks.iter().map(|chunk| {
        let span = Span::new(first + chunk.span.start, chunk.span.sectors());
        (span, chunk, 0)
    });
    Page::new(number, &names(), extents).expect("a known session")
}

/// Footers of packs whose extents lie anywhere in the second half of the volume.
fn delta(volume: VolumeId, nth: u64, objects: &mut Vec<(String, Vec<u8>)>) -> DeltaRef {
    let mut random = fastrand::Rng::with_seed(nth);
    let mut writer = PackWriter::new(SESSION, (2 << 40) + nth);
    for _ in 0..DELTA_EXTENTS {
        let block = random.u64(BYTES / 2 / 4096..BYTES / 4096);
        writer.add_damaged(&slice(volume, 1), Span::new(block * 8, 8), Lsn(1));
    }
    let pack = writer.finish();
    let delta = DeltaRef {
        pack: pack.id,
        footer_offset: pack.footer_offset,
        footer_bytes: pack.footer_bytes,
        last: Lsn(1),
        span: Span::new(0, BYTES / 512),
    };
    objects.push((pack.key(), pack.bytes));
    delta
}

/// A store with a closed volume of 10 TiB and so many deltas.
fn large_volume(options: &Options, deltas: u64) -> Environment {
    let mut world = World::try_start(Environment::default(), options.clone())
        .unwrap_or_else(|error| panic!("{}", error.0));
    world.create("large", BYTES);
    let mut objects = world.kill().objects;
    let (bytes, _) = &objects["volumes/large/root"];
    let mut root = Root::decode(bytes).expect("a root");
    let volume = root.volume;
    let mut more = Vec::new();
    let chunks = pack_of_pages(volume, 1, &mut more);
    root.deltas = (0..deltas)
        .map(|nth| delta(volume, nth, &mut more))
        .collect();
    let page_bytes = encode_page(volume, &page(0, &chunks)).len() as u64;
    for number in 0..PAGES / NODE_PAGES {
        let pages = (0..NODE_PAGES).map(|page| {
            let block = block(number, page, page_bytes);
            (number * NODE_PAGES + page, block)
        });
        let node = Node::new(number, &names(), pages).expect("a known session");
        let block = encode_node(volume, &node);
        let at = BlockRef {
            object: id(number),
            offset: 0,
            bytes: block.len() as u32,
        };
        root.nodes.push((number, at));
        more.push((SESSION.index_key(number), block));
    }
    root.lsn = Lsn(1);
    root.sessions = names();
    more.push(("volumes/large/root".into(), root.encode()));
    objects.extend(more.into_iter().map(|(key, bytes)| (key, (bytes, 1))));
    println!(
        "{PAGES} pages of {EXTENTS} extents and {page_bytes} bytes; root of {} KiB",
        root.encode().len() >> 10
    );
    let generate = move |key: &str, offset: u64, len: u64| {
        let at = offset.checked_sub(1 << 20)?;
        let (_, node) = object_of_key(key).filter(|_| key.starts_with(INDEX_PREFIX))?;
        let number = node * NODE_PAGES + at / page_bytes;
        let block = encode_page(volume, &page(number, &chunks));
        (block.len() as u64 == len).then_some(block)
    };
    Environment {
        objects,
        versions: 9000,
        generated: Some(Box::new(generate)),
        ..Environment::default()
    }
}

/// The first extent of a page, and what is in it.
fn read_page(world: &mut World, volume: &Volume, page: u64) {
    let nth = page % EXTENTS;
    let sector = page * PAGE_SECTORS + nth * EXTENT_SECTORS;
    assert_eq!(world.read_fill(volume, sector, 4096), nth as u8 + 1);
}

/// Bytes of the files of a world, its cache and its memory file, which lie in this process's memory.
const FILE_BYTES: u64 = 2 * (16 << 20);

struct Measured {
    /// From the request to open until the first read has its bytes.
    first_read_ms: u64,
    /// Allocated when the first read was answered, and after all reads.
    opened_bytes: u64,
    all_bytes: u64,
}

/// Opens the volume at 30 ms a request, reads one page, and then so many anywhere.
fn open_and_read(index_bytes: u64, reads: u64) -> Measured {
    // What is allocated is counted for the whole process.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let options = Options {
        index_bytes,
        cache_bytes: 16 << 20,
        memory_bytes: 16 << 20,
        deltas_max: 256,
        ..options()
    };
    let mut env = large_volume(&options, DELTAS);
    env.store_ms = 30;
    let mut world = World::try_start(env, options).unwrap_or_else(|error| panic!("{}", error.0));
    let region = Region::new(ALLOCATOR);
    // A vector that grows as it is written takes up to twice as much.
    let cache = world.env.files.entry(FileId::CACHE).or_default();
    cache.reserve_exact(16 << 20);
    let begun = world.now_ns;
    let volume = world.open("large");
    read_page(&mut world, &volume, PAGES / 3);
    let first_read_ms = (world.now_ns - begun) / 1_000_000;
    let opened_bytes = allocated(&region);
    // What a node's worth of reads, and nodes that load behind, leave in memory.
    world.pass(2000);
    let mut random = fastrand::Rng::with_seed(1);
    world.env.store_ms = 0;
    for _ in 0..reads {
        read_page(&mut world, &volume, random.u64(0..PAGES / 2));
    }
    let all_bytes = allocated(&region);
    println!(
        "first read after {first_read_ms} ms; {} MiB then, of {} extents in deltas; {} MiB after {reads} \
         reads, with a budget of {} MiB for index blocks and {} MiB of files",
        opened_bytes >> 20,
        DELTAS * DELTA_EXTENTS,
        all_bytes >> 20,
        index_bytes >> 20,
        FILE_BYTES >> 20,
    );
    Measured {
        first_read_ms,
        opened_bytes,
        all_bytes,
    }
}

#[test]
fn the_first_read_of_ten_tebibytes_comes_within_a_second_and_the_index_keeps_to_its_budget() {
    let found = open_and_read(24 << 20, 3000);
    assert!(found.first_read_ms <= 1000, "{} ms", found.first_read_ms);
    // Beside the budget: deltas, the test's own files (cache and memory), and what both caches note.
    assert!(
        found.all_bytes <= found.opened_bytes + (24 << 20) + FILE_BYTES + (8 << 20),
        "{} bytes",
        found.all_bytes
    );
}

#[test]
fn at_the_default_budget_the_index_of_ten_tebibytes_takes_less_than_256_mebibytes() {
    let found = open_and_read(Options::default().index_bytes, 15_000);
    let index = found.all_bytes - FILE_BYTES;
    assert!(index <= 256 << 20, "{index} bytes");
}

/// Where a page is in an object.
fn block(object: u64, nth: u64, bytes: u64) -> BlockRef {
    BlockRef {
        object: id(object),
        offset: (1 << 20) + (nth * bytes) as u32,
        bytes: bytes as u32,
    }
}

/// Objects from this number on are of the newer state.
const NEWER: u64 = 1 << 20;

/// Which pages a newer state has anew.
#[derive(Clone, Copy)]
struct Changes {
    what: &'static str,
    is_changed: fn(u64) -> bool,
}

/// Pages of 100 GiB that lie together, about.
const TOGETHER: u64 = 6400;

const CHANGES: [Changes; 4] = [
    Changes {
        what: "100 GiB that lie together",
        is_changed: |page| page < TOGETHER,
    },
    Changes {
        what: "one page in each 16 GiB",
        is_changed: |page| page.is_multiple_of(NODE_PAGES),
    },
    Changes {
        what: "each 100th page",
        is_changed: |page| page.is_multiple_of(100),
    },
    Changes {
        what: "each 10th page",
        is_changed: |page| page.is_multiple_of(10),
    },
];

/// A large volume, its snapshot `large@a`, and since then one extent of each page that has changed.
fn changed_volume(options: &Options, changes: Changes) -> (Environment, Arc<AtomicU64>) {
    let env = large_volume(options, 0);
    let mut world =
        World::try_start(env, options.clone()).unwrap_or_else(|error| panic!("{}", error.0));
    let taken = snapshot(&mut world, "large@a").expect("a snapshot");
    assert_eq!(taken.lsn, Lsn(1));
    let mut env = world.kill();
    let (bytes, _) = &env.objects["volumes/large/root"];
    let mut root = Root::decode(bytes).expect("a root");
    let volume = root.volume;
    let mut more = Vec::new();
    let older = pack_of_pages(volume, 1, &mut Vec::new());
    let mut newer = older.clone();
    newer[0] = pack_of_pages(volume, 2, &mut more).swap_remove(0);
    let page_bytes = encode_page(volume, &page(0, &older)).len() as u64;
    let newer_bytes = encode_page(volume, &page(0, &newer)).len() as u64;
    // A fold writes the pages of a node one behind the other.
    let mut changed = Vec::new();
    for (number, at) in &mut root.nodes {
        let pages = *number * NODE_PAGES..(*number + 1) * NODE_PAGES;
        let of_node: Vec<u64> = pages
            .clone()
            .filter(|page| (changes.is_changed)(*page))
            .collect();
        let place = |page: u64| match of_node.binary_search(&page) {
            Ok(nth) => block(NEWER + *number, nth as u64, newer_bytes),
            Err(_) => block(*number, page % NODE_PAGES, page_bytes),
        };
        if !of_node.is_empty() {
            let pages = pages.map(|page| (page, place(page)));
            let node = Node::new(*number, &names(), pages).expect("a known session");
            let encoded = encode_node(volume, &node);
            *at = BlockRef {
                object: id(NEWER + *number),
                offset: 0,
                bytes: encoded.len() as u32,
            };
            more.push((SESSION.index_key(NEWER + *number), encoded));
        }
        changed.push(of_node);
    }
    root.lsn = Lsn(2);
    more.push(("volumes/large/root".into(), root.encode()));
    env.objects
        .extend(more.into_iter().map(|(key, bytes)| (key, (bytes, 9001))));
    let generating_ns = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&generating_ns);
    env.generated = Some(Box::new(move |key: &str, offset: u64, len: u64| {
        let began = Instant::now();
        let at = offset.checked_sub(1 << 20)?;
        let (_, object) = object_of_key(key).filter(|_| key.starts_with(INDEX_PREFIX))?;
        let node = object % NEWER;
        let (chunks, bytes) = match object >= NEWER {
            true => (&newer, newer_bytes),
            false => (&older, page_bytes),
        };
        let blocks = (at / bytes..(at + len) / bytes).flat_map(|nth| {
            let number = match object >= NEWER {
                true => changed[node as usize][nth as usize],
                false => node * NODE_PAGES + nth,
            };
            encode_page(volume, &page(number, chunks))
        });
        let blocks: Vec<u8> = blocks.collect();
        let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        counted.fetch_add(took, Ordering::Relaxed);
        (blocks.len() as u64 == len).then_some(blocks)
    }));
    (env, generating_ns)
}

/// Ranges of a part, as the server has them.
const PART_RANGES: usize = 10_000;

/// What a diff of all of it took.
struct DiffTime {
    ranges: usize,
    /// In a store that takes so long for each request, computing left out.
    virtual_ms: u64,
    /// What it computed, on one thread, but for making the pages up.
    computed_ms: u64,
}

fn diff(changes: Changes, store_ms: u64) -> DiffTime {
    let options = Options {
        cache_bytes: 16 << 20,
        memory_bytes: 16 << 20,
        ..options()
    };
    let (mut env, generating_ns) = changed_volume(&options, changes);
    env.store_ms = store_ms;
    let mut world = World::try_start(env, options).unwrap_or_else(|error| panic!("{}", error.0));
    let (begun_ns, began) = (world.now_ns, Instant::now());
    let (mut ranges, mut place) = (0, None);
    loop {
        let answer = world.host.diff("large@a", "large", place, PART_RANGES);
        let part = world.wait(|_| answer.try_take()).expect("told");
        ranges += part.ranges.len();
        place = part.next;
        if place.is_none() {
            break;
        }
    }
    let computed = began.elapsed().as_nanos() as u64 - generating_ns.load(Ordering::Relaxed);
    DiffTime {
        ranges,
        virtual_ms: (world.now_ns - begun_ns) / 1_000_000,
        computed_ms: computed / 1_000_000,
    }
}

#[test]
fn a_diff_of_ten_tebibytes_waits_at_most_five_seconds_for_a_store_thirty_ms_away() {
    let changes = CHANGES[1];
    let found = diff(changes, 30);
    let pages = (0..PAGES).filter(|page| (changes.is_changed)(*page));
    assert_eq!(found.ranges, pages.count());
    assert!(found.virtual_ms <= 5000, "{} ms", found.virtual_ms);
}

/// The figures of `docs/benchmarks/forks.md`. What is computed is timed by a clock, so a busy machine shows.
#[test]
#[ignore = "takes a minute; cargo xtask bench forks --only diff runs it"]
fn a_diff_of_ten_tebibytes_reads_the_index_blocks_that_differ() {
    for changes in CHANGES {
        let pages = (0..PAGES)
            .filter(|page| (changes.is_changed)(*page))
            .count();
        for store_ms in [0, 30] {
            let found = diff(changes, store_ms);
            println!(
                "| {} | {pages} | {} | {store_ms} ms | {:.2} | {:.2} |",
                changes.what,
                found.ranges,
                found.virtual_ms as f64 / 1e3,
                found.computed_ms as f64 / 1e3
            );
            assert_eq!(found.ranges, pages);
        }
    }
}
