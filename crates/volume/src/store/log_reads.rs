//! Reading the log for the store: in log order, neighbours in one read.
//!
//! A block that cannot be read must not keep everything else from the store. It is found out by
//! itself, tried again for a while, and then given up as damaged, but only while the log can be read
//! elsewhere: a disk that answers nothing at all is waited for, not given up block by block.

use blkmq::io::{FileId, SECTOR_BYTES};

use crate::driver::DiskError;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::log::layout::{BLOCK_BYTES, BLOCK_SECTORS};
use crate::map::layers::LogAddr;
use crate::units::Span;

/// The longest read of the log.
const READ_BYTES: u64 = 1 << 20;
/// How often a block that cannot be read is tried again before it is given up, with pauses that
/// double.
const RETRIES: u32 = 4;

/// What stands at one place of the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    /// Zeroes where it could not be read.
    pub(crate) bytes: Vec<u8>,
    /// Sectors of the volume whose bytes could not be read, ascending.
    pub(crate) damaged: Vec<Span>,
}

/// Reads many places.
pub(crate) async fn read_log(
    engine: &Engine,
    places: &[(Span, LogAddr)],
) -> Result<Vec<Content>, OpenError> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|i| places[*i].1);
    let mut contents = vec![Content::default(); places.len()];
    let mut failed = Vec::new();
    let mut rest = order.as_slice();
    while let Some((&first, _)) = rest.split_first() {
        let start = places[first].1.sector() / BLOCK_SECTORS * BLOCK_SECTORS;
        let end = |i: usize| places[i].1.sector() + places[i].0.sectors();
        let mut until = end(first);
        let mut count = 1;
        for &next in &rest[1..] {
            let near = places[next].1.sector() <= until.next_multiple_of(BLOCK_SECTORS);
            if !near || (end(next) - start) * SECTOR_BYTES > READ_BYTES {
                break;
            }
            until = until.max(end(next));
            count += 1;
        }
        let len = (until.next_multiple_of(BLOCK_SECTORS) - start) * SECTOR_BYTES;
        let data = engine
            .port
            .read(FileId::LOG, start * SECTOR_BYTES, len as usize)
            .await;
        for &i in &rest[..count] {
            match &data {
                Ok(data) => {
                    let at = ((places[i].1.sector() - start) * SECTOR_BYTES) as usize;
                    contents[i].bytes = data[at..at + places[i].0.bytes() as usize].to_vec();
                }
                Err(error) if canary::active!("unreadable_block_stops_uploads") => {
                    return Err(OpenError::Disk(error.0.clone()));
                }
                Err(_) => {
                    contents[i].bytes = vec![0; places[i].0.bytes() as usize];
                    failed.extend(blocks_of(i, places[i]));
                }
            }
        }
        rest = &rest[count..];
    }
    if !failed.is_empty() {
        isolate(engine, failed, &mut contents).await?;
    }
    Ok(contents)
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

async fn read_block(engine: &Engine, sector: u64) -> Result<Vec<u8>, DiskError> {
    let offset = sector * SECTOR_BYTES;
    engine
        .port
        .read(FileId::LOG, offset, BLOCK_BYTES as usize)
        .await
}

/// Reads block by block what could not be read in one; what cannot be read at all is damaged.
async fn isolate(
    engine: &Engine,
    mut failed: Vec<BlockPart>,
    contents: &mut [Content],
) -> Result<(), OpenError> {
    let mut delay = engine.options.retry_ns;
    let mut tries = 0;
    loop {
        let mut still = Vec::new();
        for part in failed {
            match read_block(engine, part.block).await {
                Ok(block) => {
                    let from = (part.skip * SECTOR_BYTES) as usize;
                    let len = part.span.bytes() as usize;
                    contents[part.place].bytes[part.at..part.at + len]
                        .copy_from_slice(&block[from..from + len]);
                }
                Err(_) => still.push(part),
            }
        }
        failed = still;
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
        contents[part.place].damaged.push(part.span);
    }
    Ok(())
}
