//! What a page's extents cost in memory, measured: half of what they cost as a tree of shared chunks.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use volume::hostlog::names::SessionName;
use volume::object::ObjectId;
use volume::object::pack::{Chunk, Codec};
use volume::object::page::{PAGE_SECTORS, Page, decode_page, encode_page};
use volume::object::sessions::SessionNames;
use volume::units::{Lsn, Span, VolumeId};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What an extent cost before.
const TREE_BYTES: f64 = 159.0;

#[test]
fn an_extent_of_a_page_costs_less_than_half_of_what_it_costs_in_a_tree() {
    let volume = VolumeId([7; 16]);
    // 4 KiB writes in random order: each block is a chunk of its own, from one of 64 packs.
    let chunks: Vec<Chunk> = (0..PAGE_SECTORS / 8)
        .map(|block| Chunk {
            pack: ObjectId {
                session: 0,
                number: block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58,
            },
            offset: (block * 3001) as u32,
            stored: 3000,
            origin: volume,
            span: Span::new(block * 8, 8),
            lsn: Lsn(block * 7919 % 4096 + 1),
            codec: Codec::Zstd,
            checksum: block.wrapping_mul(0x2545_f491_4f6c_dd1d),
        })
        .collect();
    let extents = chunks.iter().map(|chunk| (chunk.span, chunk, 0));
    let mut names = SessionNames::default();
    names.insert(SessionName::default()).expect("the first");
    let page = Page::new(0, &names, extents).expect("a known session");
    let block = encode_page(volume, &page);
    let region = Region::new(ALLOCATOR);
    let page = decode_page(volume, 0, &block).expect("it was just written");
    let change = region.change();
    let bytes = (change.bytes_allocated - change.bytes_deallocated) as f64;
    let per_extent = bytes / page.len() as f64;
    println!(
        "{per_extent:.1} bytes for an extent of a page in memory, {:.1} in the store",
        block.len() as f64 / page.len() as f64
    );
    assert!(per_extent <= TREE_BYTES / 2.0, "{per_extent:.1} bytes");
    assert!(
        per_extent >= 32.0,
        "{per_extent:.1}: the measurement is off"
    );
    assert_eq!(page.memory_bytes() as f64, bytes + size_of::<Page>() as f64);
}
