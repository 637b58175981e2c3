//! Reading the log for the store: in log order, neighbours in one read.
//!
//! A block that cannot be read must not keep everything else from the store. It is found by reading block
//! by block, tried again for a while, and then given up as damaged, but only while the log can be read
//! elsewhere: a disk that answers nothing at all is waited for, not given up block by block.

use blkmq::io::{FileId, SECTOR_BYTES};
use bytes::{Bytes, BytesMut};

use crate::driver::DiskError;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::jobs::join_all;
use crate::log::layout::{BLOCK_BYTES, BLOCK_SECTORS};
use crate::map::layers::LogAddr;
use crate::store::flow::log_content::{LogContent, PlaceContent};
use crate::units::Span;

/// The longest read of the log.
const READ_BYTES: u64 = 1 << 20;
/// What lies between two places and nobody asked for is read along up to here: it takes less time than
/// another read.
const GAP_BYTES: u64 = 32 << 10;
/// Reads in flight. The writes of volumes that write at the same time alternate in the log, so most
/// reads are as short as a write: one after the other they take longer than all the rest.
const READS_AT_ONCE: usize = 16;
/// How often a block that cannot be read is tried again before it is given up, with pauses that
/// double.
const RETRIES: u32 = 4;

/// Reads many places.
pub(super) async fn read_log(
    engine: &Engine,
    places: &[(Span, LogAddr)],
) -> Result<LogContent, OpenError> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|i| places[*i].1);
    let mut content = LogContent {
        buffers: Vec::new(),
        places: vec![PlaceContent::default(); places.len()],
    };
    let mut failed = Vec::new();
    let at_once = if canary::active!("log_is_read_one_place_at_a_time") {
        1
    } else {
        READS_AT_ONCE
    };
    for runs in runs_of(places, &order).chunks(at_once) {
        let reads = runs.iter().map(|run| {
            let (offset, len) = (run.first * SECTOR_BYTES, run.sectors * SECTOR_BYTES);
            Box::pin(engine.port.read(FileId::LOG, offset, len as usize))
        });
        for (run, data) in runs.iter().zip(join_all(reads.collect()).await) {
            let is_patched = data.is_err();
            let data = match data {
                Err(error) if canary::active!("unreadable_block_stops_uploads") => {
                    return Err(OpenError::Disk(error.cause));
                }
                data => data.ok(),
            };
            if data.is_none() {
                let parts = run.places.iter().flat_map(|&i| blocks_of(i, places[i]));
                failed.extend(parts);
            }
            let zeroes = || vec![0; (run.sectors * SECTOR_BYTES) as usize].into();
            content.buffers.push(data.unwrap_or_else(zeroes));
            for &i in run.places {
                content.places[i] = PlaceContent {
                    buffer: content.buffers.len() - 1,
                    at: ((places[i].1.sector() - run.first) * SECTOR_BYTES) as usize,
                    len: places[i].0.bytes() as usize,
                    is_patched,
                    damaged: Vec::new(),
                };
            }
        }
    }
    if !failed.is_empty() {
        read_block_by_block(engine, failed, &mut content).await?;
    }
    Ok(content)
}

/// Places near each other in the log that one read brings.
struct Run<'a> {
    /// First sector, of a whole block.
    first: u64,
    /// Sectors, whole blocks.
    sectors: u64,
    places: &'a [usize],
}

/// The reads of places in log order: whole blocks, neighbours in one.
fn runs_of<'a>(places: &[(Span, LogAddr)], order: &'a [usize]) -> Vec<Run<'a>> {
    let mut runs = Vec::new();
    let mut rest = order;
    while let Some((&first, _)) = rest.split_first() {
        let start = places[first].1.sector() / BLOCK_SECTORS * BLOCK_SECTORS;
        let end = |i: usize| places[i].1.sector() + places[i].0.sectors();
        let mut until = end(first);
        let mut count = 1;
        for &next in &rest[1..] {
            let gap = places[next].1.sector().saturating_sub(until) * SECTOR_BYTES;
            if canary::active!("log_is_read_one_place_at_a_time") {
                break;
            }
            if gap > GAP_BYTES || (end(next) - start) * SECTOR_BYTES > READ_BYTES {
                break;
            }
            until = until.max(end(next));
            count += 1;
        }
        let (places, others) = rest.split_at(count);
        runs.push(Run {
            first: start,
            sectors: until.next_multiple_of(BLOCK_SECTORS) - start,
            places,
        });
        rest = others;
    }
    runs
}

/// The part of a place that lies in one block of the log.
#[derive(Clone, Copy)]
struct BlockPart {
    /// Which place.
    place: usize,
    /// The part's sectors in the volume.
    span: Span,
    /// Where its bytes belong in the place's.
    at: usize,
    /// First sector of the block.
    block: u64,
    /// Sectors of the block before the part.
    skip: u64,
}

fn blocks_of(place: usize, (span, addr): (Span, LogAddr)) -> Vec<BlockPart> {
    let mut parts = Vec::new();
    let mut done = 0;
    while done < span.sectors() {
        let sector = addr.sector() + done;
        let block = sector / BLOCK_SECTORS * BLOCK_SECTORS;
        let len = (block + BLOCK_SECTORS - sector).min(span.sectors() - done);
        parts.push(BlockPart {
            place,
            span: Span::new(span.start + done, len),
            at: (done * SECTOR_BYTES) as usize,
            block,
            skip: sector - block,
        });
        done += len;
    }
    parts
}

async fn read_block(engine: &Engine, sector: u64) -> Result<Bytes, DiskError> {
    let offset = sector * SECTOR_BYTES;
    engine
        .port
        .read(FileId::LOG, offset, BLOCK_BYTES as usize)
        .await
}

/// Reads block by block what could not be read in one; what cannot be read at all is damaged.
async fn read_block_by_block(
    engine: &Engine,
    mut failed: Vec<BlockPart>,
    content: &mut LogContent,
) -> Result<(), OpenError> {
    let mut delay = engine.options.retry_ns;
    let mut tries = 0;
    loop {
        let mut unread = Vec::new();
        for part in failed {
            match read_block(engine, part.block).await {
                Ok(block) => {
                    let from = (part.skip * SECTOR_BYTES) as usize;
                    let len = part.span.bytes() as usize;
                    let place = &content.places[part.place];
                    let at = place.at + part.at;
                    let buffer = &mut content.buffers[place.buffer];
                    let mut bytes = BytesMut::from(std::mem::take(buffer));
                    bytes[at..at + len].copy_from_slice(&block[from..from + len]);
                    *buffer = bytes.freeze();
                }
                Err(_) => unread.push(part),
            }
        }
        failed = unread;
        if failed.is_empty() {
            return Ok(());
        }
        if tries == RETRIES {
            break;
        }
        tries += 1;
        engine.port.sleep(delay).await;
        delay *= 2;
    }
    // The superblock is always there: a log that does not even give that is no log at the moment.
    read_block(engine, 0).await?;
    if canary::active!("unreadable_block_is_zeroes") {
        return Ok(());
    }
    for part in failed {
        content.places[part.place].damaged.push(part.span);
    }
    Ok(())
}
