//! What folds write, for what a page gathers between them.

use volume::hostlog::names::SessionName;
use volume::object::ObjectId;
use volume::object::pack::{Chunk, Codec};
use volume::object::page::{PAGE_SECTORS as PAGE, Page, encode_page};
use volume::object::sessions::SessionNames;
use volume::units::{Lsn, Span, VolumeId};

const GIB: u64 = 1 << 30;

/// Puts 4 KiB at a place of a page that is kept as its extents.
fn put(extents: &mut Vec<(Span, Chunk, u32)>, span: Span, chunk: Chunk) {
    let mut merged = Vec::with_capacity(extents.len() + 2);
    let mut chunk = Some(chunk);
    for (old, of, skip) in extents.drain(..) {
        let before = Span {
            start: old.start,
            end: old.end.min(span.start),
        };
        let behind = Span {
            start: old.start.max(span.end),
            end: old.end,
        };
        if !before.is_empty() {
            merged.push((before, of.clone(), skip));
        }
        if old.end > span.start
            && let Some(chunk) = chunk.take()
        {
            merged.push((span, chunk, 0));
        }
        if !behind.is_empty() {
            let skipped = (behind.start - old.start) as u32;
            merged.push((behind, of, skip + skipped));
        }
    }
    *extents = merged;
}

/// Index bytes that folds write for each byte of random 4 KiB writes, an hour of 6,000 a second over 1 TiB that
/// was written in sequence before, when each page gathers so many extents between two folds.
fn fold_bytes_per_byte(gathered: u64) -> f64 {
    const HOUR: u64 = 330;
    let id = |number| ObjectId { session: 0, number };
    let mut names = SessionNames::default();
    names.insert(SessionName::default()).expect("the first");
    let mut random = fastrand::Rng::with_seed(gathered);
    let (mut bytes, mut writes) = (0, 0);
    for number in 0..8_u64 {
        let first = number * PAGE;
        let mut chunk = |offset: &mut u32, span: Span, pack: u64, lsn: u64| {
            let stored = (span.bytes() / 2) as u32 + random.u32(0..span.bytes() as u32 / 4);
            *offset += stored;
            Chunk {
                pack: id(pack),
                offset: *offset - stored,
                stored,
                origin: VolumeId([7; 16]),
                span,
                lsn: Lsn(lsn),
                codec: Codec::Zstd,
                checksum: random.u64(..),
            }
        };
        let mut offset = 0;
        let mut extents: Vec<(Span, Chunk, u32)> = (0..PAGE / 128)
            .map(|nth| {
                let span = Span::new(first + nth * 128, 128);
                (span, chunk(&mut offset, span, number / 2, nth), 0)
            })
            .collect();
        for nth in 0..HOUR {
            let mut place = nth as u32 * 97_000 % (30 << 20);
            let block = fastrand::Rng::with_seed(number * 1000 + nth).u64(0..PAGE / 8);
            let span = Span::new(first + block * 8, 8);
            // A pack holds 8,192 of them, an eighth of an extent for each page.
            let one = chunk(&mut place, span, 1000 + nth * 8, 1_000_000 + nth * 65_536);
            put(&mut extents, span, one);
            if nth % gathered == gathered - 1 {
                let rows = extents
                    .iter()
                    .map(|(span, chunk, skip)| (*span, chunk, *skip));
                let page = Page::new(number, &names, rows).expect("a known session");
                bytes += encode_page(VolumeId([7; 16]), &page).len() as u64;
            }
        }
        writes += HOUR;
    }
    bytes as f64 / (writes * 4096) as f64
}

#[test]
fn what_folds_write_falls_with_what_a_page_gathers_between_them() {
    let mut before = f64::MAX;
    for gathered in [4, 8, 16, 32] {
        let written = fold_bytes_per_byte(gathered);
        let extents = gathered * 1024 * GIB / 512 / PAGE;
        println!(
            "{gathered} extents a page ({extents} in all) between folds: {written:.3} bytes a byte"
        );
        assert!(written < before);
        before = written;
    }
}
