//! Loading a volume's index when it is opened: the directory, and all deltas over it.
//!
//! An object that is gone or damaged costs its own range and nothing else: the volume opens, reads of
//! that range are I/O errors, and what is written there again can be read. It must never turn into
//! zeroes or into what was there before.

use crate::engine::Engine;
use crate::error::OpenError;
use crate::map::index::{Index, delta_of};
use crate::object::FormatError;
use crate::object::pack::{TRAILER_BYTES, decode_footer};
use crate::object::page::decode_node;
use crate::object::root::Root;
use crate::store::objects::{IndexRead, read_exactly};

/// Loads all deltas and the directory.
pub(crate) async fn load_index(engine: &Engine, root: &Root) -> Result<Index, OpenError> {
    let mut index = Index::default();
    index.nodes.extend(root.nodes.iter().copied());
    for (node, block) in &root.nodes {
        let key = block.object.index_key();
        let read = read_exactly(engine, &key, block.offset.into(), block.bytes.into()).await?;
        match decode(&key, read, |data| decode_node(root.volume, *node, data))? {
            Ok(pages) => index.directory.extend(pages),
            Err(why) => {
                tracing::error!(
                    volume = root.name,
                    key,
                    why,
                    node,
                    "an object of the index is lost: reads of its part of the volume fail until it is \
                     put back"
                );
                index.lose_node(*node);
            }
        }
    }
    for delta in &root.deltas {
        let key = delta.pack.pack_key();
        let len = u64::from(delta.footer_bytes) + TRAILER_BYTES as u64;
        let read = read_exactly(engine, &key, delta.footer_offset, len).await?;
        match decode(&key, read, |data| decode_footer(delta.pack, data))? {
            Ok(sections) => {
                let own = sections
                    .iter()
                    .filter(|section| section.slice.origin == root.volume);
                for item in own.flat_map(|section| &section.items) {
                    let (span, delta) = delta_of(item);
                    index.apply_delta(span, delta);
                }
            }
            Err(why) => {
                tracing::error!(
                    volume = root.name,
                    key,
                    why,
                    first_sector = delta.span.start,
                    sectors = delta.span.sectors(),
                    "a pack is lost: reads of what it may hold fail until it is put back or they are \
                     written again"
                );
                index.lose_delta(delta.span);
            }
        }
    }
    Ok(index)
}

/// What an object says, or why it is lost. A newer format is neither.
fn decode<T>(
    key: &str,
    read: IndexRead,
    decode: impl FnOnce(&[u8]) -> Result<T, FormatError>,
) -> Result<Result<T, String>, OpenError> {
    let lost = match read {
        IndexRead::Lost(why) => why,
        IndexRead::Whole(data) => match decode(&data) {
            Ok(found) => return Ok(Ok(found)),
            Err(error @ FormatError::Newer(_)) => {
                return Err(OpenError::Corrupt(format!("{key}: {error}")));
            }
            Err(error) => error.to_string(),
        },
    };
    if canary::active!("lost_pack_keeps_volume_closed") {
        return Err(OpenError::Store(format!("{key}: {lost}")));
    }
    Ok(Err(lost))
}
