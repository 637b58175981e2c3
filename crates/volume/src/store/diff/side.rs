//! One side of a diff: the state of a volume or snapshot as the store has it, and the index blocks that it names.
//!
//! Blocks that this host has in memory are taken from there; what is read for a diff does not go into the cache, where it
//! would drive out what clients need.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkmq::io::SECTOR_BYTES;

use crate::driver::{ComputeKind, Version};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::scan::read_beyond_root;
use crate::jobs::join_all;
use crate::object::FormatError;
use crate::object::SNAPSHOT_SIGN;
use crate::object::node::{Node, decode_node};
use crate::object::pack::Ancestor;
use crate::object::page::{BlockRef, Page, block_volume, decode_page};
use crate::object::root::Root;
use crate::store::diff::compare::Layers;
use crate::store::diff::part::DiffSide;
use crate::store::host_log::log_procedures::{KeyPrefixes, log_port, with_patience};
use crate::store::objects::{ATTEMPTS_MAX, IndexRead, read_exactly};
use crate::store::open::load_index::load_index;
use crate::store::roots::{read_any_root, read_root};
use crate::units::{Lsn, VolumeId};

/// How often a block is read whose checksum fails: the line may have done that.
const READS_MAX: u32 = 2;

/// A state of a volume, with all of its deltas in memory.
pub(super) struct Side {
    /// With what the log of its holder has beyond it.
    root: Root,
    version: Version,
    pub(super) nodes: BTreeMap<u64, BlockRef>,
    pub(super) layers: Layers,
}

/// A block, or why it is not to be had.
pub(super) type BlockRead<T> = Result<Arc<T>, String>;

impl Side {
    /// The volume as the store has it, or as it was in this state.
    pub(super) async fn read(
        engine: &Arc<Engine>,
        name: &str,
        state: Option<(VolumeId, Lsn)>,
    ) -> Result<Side, OpenError> {
        let (mut root, version) = read_whole(engine, name).await?;
        if let Some((volume, lsn)) = state {
            let is_past = root.folded_lsn().is_none_or(|folded| folded > lsn);
            if root.volume != volume || root.lsn < lsn || (root.lsn > lsn && is_past) {
                return Err(OpenError::StateGone(name.to_owned()));
            }
            root.deltas.retain(|delta| delta.last <= lsn);
            root.lsn = lsn;
        }
        let mut index = load_index(engine, &root).await?;
        let layers = index.freeze();
        Ok(Side {
            nodes: std::mem::take(&mut index.nodes),
            root,
            version,
            layers,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.root.name
    }

    pub(super) fn sectors(&self) -> u64 {
        self.root.bytes / SECTOR_BYTES
    }

    pub(super) fn describe(&self) -> DiffSide {
        DiffSide {
            name: self.root.name.clone(),
            id: self.root.volume,
            lsn: self.root.lsn,
            bytes: self.root.bytes,
        }
    }

    /// Whether one is a snapshot or fork of the other, or both are of a third.
    pub(super) fn shares_history_with(&self, other: &Side) -> bool {
        let volumes = |root: &Root| -> Vec<VolumeId> {
            let above = root.lineage();
            let above = above.iter().map(|ancestor| ancestor.volume);
            above.chain([root.volume]).collect()
        };
        let known = volumes(&self.root);
        let others = volumes(&other.root);
        others.iter().any(|volume| known.contains(volume))
    }

    /// Whether another root stands there by now.
    pub(super) async fn has_moved(&self, engine: &Engine) -> Result<bool, OpenError> {
        match read_any_root(engine, &self.root.name).await {
            Ok(standing) => Ok(standing.version != self.version),
            Err(OpenError::NoSuchVolume(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn read_node(
        &self,
        engine: &Engine,
        number: u64,
        block: BlockRef,
    ) -> Result<BlockRead<Node>, OpenError> {
        if let Some(found) = engine.blocks.node(block) {
            return Ok(Ok(found));
        }
        let read = self.read_block(engine, number, block, decode_node).await?;
        Ok(match read {
            Ok(node) => match engine.names.register(node.sessions()) {
                Ok(()) => Ok(Arc::new(node)),
                Err(error) => Err(error.to_string()),
            },
            Err(why) => Err(why),
        })
    }

    pub(super) async fn read_page(
        &self,
        engine: &Engine,
        number: u64,
        block: BlockRef,
    ) -> Result<BlockRead<Page>, OpenError> {
        if let Some(found) = engine.blocks.page(block) {
            return Ok(Ok(found));
        }
        let read = self.read_block(engine, number, block, decode_page).await?;
        Ok(read.map(Arc::new))
    }

    /// Pages, in their order. Those that lie one behind the other in an object come by one request.
    pub(super) async fn read_pages(
        &self,
        engine: &Engine,
        pages: &[(u64, BlockRef)],
    ) -> Result<Vec<BlockRead<Page>>, OpenError> {
        let goes_on = |(_, last): &(u64, BlockRef), (_, next): &(u64, BlockRef)| {
            let is_next = last.object == next.object
                && last.offset.checked_add(last.bytes) == Some(next.offset);
            let is_known = |block| engine.blocks.page(block).is_some();
            is_next && !is_known(*last) && !is_known(*next)
        };
        let runs = pages.chunk_by(goes_on);
        let reads = runs.map(|run| Box::pin(self.read_run(engine, run)));
        let read = join_all(reads.collect()).await.into_iter();
        let read = read.collect::<Result<Vec<_>, OpenError>>()?;
        Ok(read.into_iter().flatten().collect())
    }

    /// Pages that lie one behind the other. One that is not right is read by itself, which says why if it stays so.
    async fn read_run(
        &self,
        engine: &Engine,
        run: &[(u64, BlockRef)],
    ) -> Result<Vec<BlockRead<Page>>, OpenError> {
        let decoded = match run {
            [] | [_] => Vec::new(),
            [(_, first), ..] => self.decode_run(engine, *first, run).await?,
        };
        let mut decoded = decoded.into_iter();
        let mut pages = Vec::with_capacity(run.len());
        for (number, block) in run {
            pages.push(match decoded.next().flatten() {
                Some(page) => Ok(Arc::new(page)),
                None => self.read_page(engine, *number, *block).await?,
            });
        }
        Ok(pages)
    }

    /// What can be read of them by one request.
    async fn decode_run(
        &self,
        engine: &Engine,
        first: BlockRef,
        run: &[(u64, BlockRef)],
    ) -> Result<Vec<Option<Page>>, OpenError> {
        let Ok(key) = engine.names.index_key(first.object) else {
            return Ok(Vec::new());
        };
        let len = run.iter().map(|(_, block)| u64::from(block.bytes)).sum();
        let read = read_exactly(engine, &key, u64::from(first.offset), len).await?;
        let IndexRead::Whole(data) = read else {
            return Ok(Vec::new());
        };
        let (volume, lineage) = (self.root.volume, self.root.lineage());
        let run = run.to_vec();
        let work = move || {
            let mut rest = &data[..];
            let pages = run.iter().map(|(number, block)| {
                let (page, behind) = rest.split_at_checked(block.bytes as usize)?;
                rest = behind;
                decode_of(volume, &lineage, *number, page, decode_page).ok()
            });
            pages.collect()
        };
        Ok(engine.port.compute(ComputeKind::Decode, len, work).await?)
    }

    async fn read_block<T: Send + 'static>(
        &self,
        engine: &Engine,
        number: u64,
        block: BlockRef,
        decode: fn(VolumeId, u64, &[u8]) -> Result<T, FormatError>,
    ) -> Result<Result<T, String>, OpenError> {
        let key = match engine.names.index_key(block.object) {
            Ok(key) => key,
            Err(error) => return Ok(Err(format!("{}: {error}", block.object))),
        };
        let (volume, lineage) = (self.root.volume, self.root.lineage());
        let mut why = String::new();
        for _ in 0..READS_MAX {
            let (offset, len) = (u64::from(block.offset), u64::from(block.bytes));
            let data = match read_exactly(engine, &key, offset, len).await? {
                IndexRead::Whole(data) => data,
                IndexRead::Lost(why) => return Ok(Err(format!("{key}: {why}"))),
            };
            let lineage = Arc::clone(&lineage);
            let work = move || decode_of(volume, &lineage, number, &data, decode);
            match engine.port.compute(ComputeKind::Decode, len, work).await? {
                Ok(found) => return Ok(Ok(found)),
                Err(error) => why = format!("{key}: {error}"),
            }
        }
        Ok(Err(why))
    }
}

/// A block of a volume, or of one that it was forked from: a fork has blocks of those.
fn decode_of<T>(
    volume: VolumeId,
    lineage: &[Ancestor],
    number: u64,
    data: &[u8],
    decode: fn(VolumeId, u64, &[u8]) -> Result<T, FormatError>,
) -> Result<T, FormatError> {
    let said = block_volume(data);
    let is_ancestor = |said: &VolumeId| lineage.iter().any(|it| it.volume == *said);
    decode(said.filter(is_ancestor).unwrap_or(volume), number, data)
}

/// A root with what the log of its holder has beyond it.
async fn read_whole(engine: &Arc<Engine>, name: &str) -> Result<(Root, Version), OpenError> {
    for _ in 0..ATTEMPTS_MAX {
        let head = match read_root(engine, name).await {
            Err(OpenError::NoSuchVolume(name)) if name.contains(SNAPSHOT_SIGN) => {
                return Err(OpenError::NoSuchSnapshot(name));
            }
            head => head?,
        };
        let port = log_port(engine);
        let keys = KeyPrefixes::of_holder(&head.root);
        let read = async { Ok(read_beyond_root(&port, &head.root).await) };
        match with_patience(engine, name, keys, read).await? {
            Ok(found) => {
                let mut root = head.root;
                root.lsn = found.last;
                root.deltas
                    .extend(found.deltas.iter().map(|(_, delta)| *delta));
                let named = root.sessions.extend(found.sessions.iter());
                named.map_err(|error| OpenError::Corrupt(format!("{name}: {error}")))?;
                return Ok((root, head.version));
            }
            // Records go once the root has what they say.
            Err(error) => {
                tracing::warn!(
                    volume = name,
                    ?error,
                    "the log of its holder cannot be read"
                );
                engine.port.sleep(engine.options.retry_ns).await;
            }
        }
    }
    Err(OpenError::Store(format!(
        "{name}: the log of its holder cannot be read; the server's log says why: try again"
    )))
}
