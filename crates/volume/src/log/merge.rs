//! Merging the frozen layers of a tail into one, away from the job thread.
//!
//! Owns the exchange of many layers for an equal one: reads look into fewer, and log bytes that newer layers
//! hide die. A slice may be cut of them meanwhile; then what was merged is dropped, never put in place.

use std::sync::Arc;

use crate::driver::ComputeKind;
use crate::engine::Engine;
use crate::log::entry::ENTRY_BYTES;
use crate::map::layers::{FrozenLayer, merge};
use crate::request::tail::Tail;

/// What layers are merged for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MergeFor {
    /// So that hidden bytes die. If none do, the layers stay: each can be stored by itself.
    Space,
    /// So that there are fewer.
    Reads,
}

/// Puts one equal layer in place of `layers`, if they are still the oldest of their tail that no slice has
/// by then. True if log bytes died of it.
pub(super) async fn merge_layers(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    layers: Vec<FrozenLayer>,
    purpose: MergeFor,
) -> bool {
    let extents: usize = layers.iter().map(|layer| layer.map.len()).sum();
    let bytes = (extents * ENTRY_BYTES) as u64;
    let maps: Vec<_> = layers.iter().map(|layer| Arc::clone(&layer.map)).collect();
    let merging = engine.port.compute(ComputeKind::Merge, bytes, move || {
        let mut dead = Vec::new();
        let merged = merge(maps.iter().map(|map| &**map), |addr, sectors| {
            dead.push((addr, sectors));
        });
        (merged, dead)
    });
    // Without a result reads are slower, and nothing else; the failure was reported where it happened.
    let Ok((merged, dead)) = merging.await else {
        return false;
    };
    let has_died = !dead.is_empty();
    if purpose == MergeFor::Space && !has_died {
        return false;
    }
    let Some(replaced) = tail.replace_loose(&layers, merged) else {
        return false;
    };
    let (owner, tail) = (Arc::clone(engine), Arc::clone(tail));
    let released = engine.port.compute(ComputeKind::Release, bytes, move || {
        for (addr, sectors) in dead {
            tail.release_dirty(&owner.segments, addr, sectors);
        }
        drop((layers, replaced));
    });
    released.await.is_ok() && has_died
}
