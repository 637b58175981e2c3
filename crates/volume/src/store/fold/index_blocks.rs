//! Index blocks: from memory, from the cache disk, from the store, in this order.
//!
//! A block that was read or written is decoded into memory, and its bytes are copied to the cache disk, so that
//! cached chunks of a volume can be found while the store is away (S10). Its checksum is verified wherever it
//! comes from (S8).

use std::sync::Arc;

use blkmq::error::ErrorKind;
use blkmq::io::FileId;

use crate::cache::blocks::{BlockKind, BlockTarget, IndexBlock, block_key};
use crate::driver::{ComputeError, ComputeKind};
use crate::engine::Engine;
use crate::jobs::join_all;
use crate::log::layout::BLOCK_BYTES;
use crate::object::FormatError;
use crate::object::node::decode_node;
use crate::object::page::{BlockRef, block_volume, decode_page};
use crate::request::tail::Tail;
use crate::store::fetch::table::FetchKey;
use crate::store::host_log::session_table::SessionTable;
use crate::store::objects::read_range;
use crate::units::VolumeId;

/// Reads of a block whose checksum fails.
const READS_OF_DAMAGED: u32 = 2;
/// Blocks loaded at once.
pub(crate) const LOADS_AT_ONCE: usize = 16;

/// Decodes a block, and registers the sessions of the objects that it names.
fn decode(
    names: &SessionTable,
    volume: VolumeId,
    target: BlockTarget,
    bytes: &[u8],
) -> Result<IndexBlock, FormatError> {
    match target.kind {
        BlockKind::Page => {
            let page = decode_page(volume, target.number, bytes)?;
            if !canary::active!("sessions_of_pages_are_not_learned") {
                names.register(page.sessions())?;
            }
            Ok(IndexBlock::Page(Arc::new(page)))
        }
        BlockKind::Node => {
            let node = decode_node(volume, target.number, bytes)?;
            names.register(node.sessions())?;
            Ok(IndexBlock::Node(Arc::new(node)))
        }
    }
}

/// Loads a block, and wakes the requests that wait for it.
pub(crate) async fn fetch(engine: Arc<Engine>, tail: Arc<Tail>, target: BlockTarget) {
    let result = match load(&engine, &tail, target).await {
        // The index has recorded the damage: waiters plan again and get the error from there.
        Err(ErrorKind::Corrupt) if target.kind == BlockKind::Node => Ok(()),
        result => result.map(drop),
    };
    let now = engine.jobs.now().mono_ns;
    let key = FetchKey::Block(block_key(target.block));
    engine.fetches.complete([(key, result)], now);
}

/// Loads a block from the nearest place that has it, into memory.
async fn load(
    engine: &Arc<Engine>,
    tail: &Tail,
    target: BlockTarget,
) -> Result<IndexBlock, ErrorKind> {
    let (found, bytes) = read(engine, tail, target).await?;
    engine.blocks.insert(target.block, found.clone());
    if let Some(bytes) = bytes {
        let copying = Arc::clone(engine);
        engine
            .jobs
            .spawn(async move { write_to_disk(&copying, target.block, bytes).await });
    }
    Ok(found)
}

/// Reads a block from the nearest place that has it. Also returns its bytes if only the store had it. Nothing is
/// kept in memory.
pub(crate) async fn read(
    engine: &Engine,
    tail: &Tail,
    target: BlockTarget,
) -> Result<(IndexBlock, Option<Vec<u8>>), ErrorKind> {
    if let Some(found) = find_in_memory(engine, target) {
        return Ok((found, None));
    }
    if let Some(found) = read_from_disk(engine, tail, target).await {
        return Ok((found, None));
    }
    let result = read_from_store(engine, tail, target).await;
    if result.as_ref().err() == Some(&ErrorKind::Corrupt) && target.kind == BlockKind::Node {
        tail.lock().index.mark_node_unreadable(target.number);
    }
    result.map(|(found, bytes)| (found, Some(bytes)))
}

fn find_in_memory(engine: &Engine, target: BlockTarget) -> Option<IndexBlock> {
    match target.kind {
        BlockKind::Page => engine.blocks.page(target.block).map(IndexBlock::Page),
        BlockKind::Node => engine.blocks.node(target.block).map(IndexBlock::Node),
    }
}

/// Decodes a block on a computing thread, and returns it with its bytes.
async fn decode_elsewhere<B: AsRef<[u8]> + Send + 'static>(
    engine: &Engine,
    tail: &Tail,
    target: BlockTarget,
    bytes: B,
) -> Result<(Result<IndexBlock, FormatError>, B), ComputeError> {
    let (volume, len) = (tail.id().volume, bytes.as_ref().len() as u64);
    let names = Arc::clone(&engine.names);
    let lineage = tail.upload.lineage();
    let work = move || {
        // A fork has blocks of its ancestors until it has folded them anew. The block itself says which volume it
        // belongs to, however many ancestors there are.
        let said = block_volume(bytes.as_ref());
        let is_ancestor = |said: &VolumeId| lineage.iter().any(|above| above.volume == *said);
        let origin = said.filter(is_ancestor).unwrap_or(volume);
        let block = decode(&names, origin, target, bytes.as_ref());
        (block, bytes)
    };
    engine.port.compute(ComputeKind::Decode, len, work).await
}

async fn read_from_disk(engine: &Engine, tail: &Tail, target: BlockTarget) -> Option<IndexBlock> {
    let key = block_key(target.block);
    let hit = engine.cache.find_block(key)?;
    let len = target.block.bytes as usize;
    let whole = len.next_multiple_of(BLOCK_BYTES as usize);
    let read = engine.port.read(FileId::CACHE, hit.offset, whole).await;
    drop(hit.pin);
    let found = match read {
        Ok(mut bytes) => {
            bytes.truncate(len);
            let (found, _) = decode_elsewhere(engine, tail, target, bytes).await.ok()?;
            found.map_err(|error| error.to_string())
        }
        Err(error) => Err(error.cause),
    };
    match found {
        Ok(found) => Some(found),
        Err(error) => {
            let object = target.block.object;
            tracing::warn!(%object, error, "the cache disk does not hold an index block that it should");
            engine.cache.mark_block_damaged(key);
            None
        }
    }
}

async fn read_from_store(
    engine: &Engine,
    tail: &Tail,
    target: BlockTarget,
) -> Result<(IndexBlock, Vec<u8>), ErrorKind> {
    let BlockRef {
        object,
        offset,
        bytes,
    } = target.block;
    let key = engine.names.index_key(object).map_err(|error| {
        tracing::error!(volume = tail.name(), %object, %error, "an index object has no name");
        ErrorKind::Corrupt
    })?;
    let (kind, number, volume) = (target.kind, target.number, tail.name());
    // A damaged block is read once more: it may have been damaged on its way, and a node that is given up stays
    // so.
    for attempt in 1..=READS_OF_DAMAGED {
        let read = read_range(engine, tail, key.clone(), offset.into(), bytes.into()).await?;
        let (found, read) = decode_elsewhere(engine, tail, target, read)
            .await
            .map_err(|_| ErrorKind::Io)?;
        match found {
            Ok(found) => return Ok((found, read)),
            Err(error) => {
                tracing::error!(volume, %object, ?kind, number, %error, attempt, "an index block is damaged");
            }
        }
        if canary::active!("damaged_blocks_are_read_once") {
            break;
        }
    }
    Err(ErrorKind::Corrupt)
}

/// Copies a block to the cache disk, unless nothing there may be evicted for it.
pub(crate) async fn write_to_disk(engine: &Engine, block: BlockRef, mut bytes: Vec<u8>) {
    if canary::active!("index_block_in_memory_only") {
        return;
    }
    let len = bytes.len() as u64;
    let now = engine.jobs.now().mono_ns;
    let Some(mut allocation) = engine.cache.allocate_block(block_key(block), len, now) else {
        return;
    };
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES as usize), 0);
    allocation.set_checksum(&bytes);
    match engine
        .port
        .write(FileId::CACHE, allocation.offset, bytes)
        .await
    {
        Ok(()) => engine.cache.fill(allocation, 0),
        Err(error) => {
            let now = engine.jobs.now().mono_ns;
            engine.cache.on_write_failed(allocation, error.is_full, now);
        }
    }
}

/// Loads the nodes of a volume that was just opened, as far as the budget has room. Nobody waits for that.
pub(crate) async fn load_nodes(engine: Arc<Engine>, tail: Arc<Tail>) {
    let nodes: Vec<(u64, BlockRef)> = {
        let inner = tail.lock();
        inner.index.nodes.iter().map(|(n, at)| (*n, *at)).collect()
    };
    for batch in nodes.chunks(LOADS_AT_ONCE) {
        let has_room = engine.blocks.bytes() < engine.options.index_bytes / 2;
        if !has_room || tail.lock().check_serving().is_err() {
            return;
        }
        let loads = batch.iter().map(|(number, block)| {
            let (kind, number, block) = (BlockKind::Node, *number, *block);
            let target = BlockTarget {
                kind,
                number,
                block,
            };
            Box::pin(load(&engine, &tail, target))
        });
        // A node that could not be loaded was logged, and is loaded again when a request needs it.
        drop(join_all(loads.collect()).await);
    }
}
