//! Merging the frozen layers of a tail into one, away from the job thread.
//!
//! Owns the exchange of many layers for an equal one: reads look into fewer, and log bytes that newer layers
//! hide die. A slice may be cut of them meanwhile; then what was merged is dropped, never put in place.

use std::sync::Arc;

use blkmq::io::SECTOR_BYTES;

use crate::driver::ComputeKind;
use crate::engine::Engine;
use crate::log::entry::ENTRY_BYTES;
use crate::map::ExtentMap;
use crate::map::layers::{DirtyExtent, FrozenLayer, LogAddr, merge};
use crate::request::tail::Tail;

/// What layers are merged for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MergeFor {
    /// So that hidden bytes die. If none do, the layers stay, for each of them can be stored by itself; but
    /// the newest become one as long as they are no more than a slice, so that there is no end of them.
    Space,
    /// So that there are fewer.
    Reads,
}

/// Puts one equal layer in place of `layers`, if no slice has any of them by then. True if log bytes died of it.
pub(super) async fn merge_layers(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    layers: Vec<FrozenLayer>,
    purpose: MergeFor,
) -> bool {
    let Some((merged, dead, bytes)) = compute_merge(engine, &layers).await else {
        return false;
    };
    if purpose == MergeFor::Space && dead.is_empty() {
        tail.on_merged(&layers);
        merge_newest(engine, tail, layers).await;
        return false;
    }
    let has_died = !dead.is_empty();
    let Some(replaced) = tail.replace_loose(&layers, merged) else {
        return false;
    };
    if purpose == MergeFor::Space {
        tail.on_merged(&layers);
    }
    let (owner, tail) = (Arc::clone(engine), Arc::clone(tail));
    let released = engine.port.compute(ComputeKind::Release, bytes, move || {
        for (addr, sectors) in dead {
            tail.release_dirty(&owner.segments, addr, sectors);
        }
        drop((layers, replaced));
    });
    released.await.is_ok() && has_died
}

/// Puts one layer in place of the newest of `layers`, of which none hides log bytes of another.
async fn merge_newest(engine: &Arc<Engine>, tail: &Arc<Tail>, layers: Vec<FrozenLayer>) {
    let newest = newest_within(&layers, engine.options.slice_bytes());
    if newest.len() < 2 || canary::active!("cleaner_freezes_every_top") {
        return;
    }
    let Some((merged, _, bytes)) = compute_merge(engine, newest).await else {
        return;
    };
    let replaced = tail.replace_loose(newest, merged);
    let released = engine.port.compute(ComputeKind::Release, bytes, move || {
        drop((layers, replaced));
    });
    // A failure was reported where it happened.
    let _ = released.await;
}

/// The newest of `layers` that together are no more than a slice: bytes of content, or extents of a sector
/// each where there are that many.
fn newest_within(layers: &[FrozenLayer], slice_bytes: u64) -> &[FrozenLayer] {
    let mut sum = 0;
    let fitting = layers.iter().rev().take_while(|layer| {
        sum += layer.bytes.max(layer.map.len() as u64 * SECTOR_BYTES);
        sum <= slice_bytes
    });
    &layers[layers.len() - fitting.count()..]
}

type Merged = (ExtentMap<DirtyExtent>, Vec<(LogAddr, u64)>, u64);

/// The layer that equals `layers`, the log bytes that they hide of each other, and how much work that was.
/// Without a result reads are slower, and nothing else; the failure was reported where it happened.
async fn compute_merge(engine: &Arc<Engine>, layers: &[FrozenLayer]) -> Option<Merged> {
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
    let (merged, dead) = merging.await.ok()?;
    Some((merged, dead, bytes))
}
