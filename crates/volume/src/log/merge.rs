//! Merging the frozen layers of a tail into one, away from the job thread.
//!
//! Owns the exchange of many layers for an equal one: reads look into fewer, log bytes that newer layers
//! hide die, and what is written over again and again is stored once. A slice may be cut of them meanwhile;
//! then what was merged is dropped, never put in place.

use std::sync::Arc;

use blkmq::io::SECTOR_BYTES;

use crate::driver::ComputeKind;
use crate::engine::Engine;
use crate::log::entry::ENTRY_BYTES;
use crate::map::layers::{DirtyExtent, FrozenLayer, LogAddr, merge};
use crate::map::{Coverage, ExtentMap};
use crate::request::tail::Tail;
use crate::units::Lsn;

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
    let (first, last) = (layers.first().cloned(), layers.last().cloned());
    let ends: Vec<FrozenLayer> = first.into_iter().chain(last).collect();
    if !install_merged_layer(engine, tail, layers, (merged, dead, bytes)).await {
        return false;
    }
    if purpose == MergeFor::Space {
        tail.on_merged(&ends);
    }
    has_died
}

/// Puts a layer in place of those that it equals, unless a slice has some of them by then; what it hides of
/// them dies.
async fn install_merged_layer(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    layers: Vec<FrozenLayer>,
    (merged, dead, bytes): MergedLayers,
) -> bool {
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
    released.await.is_ok()
}

/// Extents of a layer that are looked at to find out how much of older ones it hides.
const SAMPLES: usize = 64;

/// Before a slice is cut: puts one layer in place of the oldest loose ones up to `most` that hide much of each
/// other, so that what is written over again and again is stored once and not once a slice. They are one part
/// of the history then, which is stored whole or not at all. True if layers were replaced.
pub(crate) async fn merge_before_cut(engine: &Arc<Engine>, tail: &Arc<Tail>, most: Lsn) -> bool {
    if canary::active!("hot_sets_are_stored_once_a_slice") {
        return false;
    }
    let layers = tail.oldest_loose(most, engine.options.cut_bytes());
    if layers.len() < 2 {
        return false;
    }
    let extents: usize = layers.iter().map(|layer| layer.map.len()).sum();
    let bytes = (extents * ENTRY_BYTES) as u64;
    let maps: Vec<_> = layers.iter().map(|layer| Arc::clone(&layer.map)).collect();
    let hides = engine.port.compute(ComputeKind::Merge, bytes / 8, move || {
        has_much_overlap(&maps)
    });
    if !matches!(hides.await, Ok(true)) {
        return false;
    }
    let Some(merged) = compute_merge(engine, &layers).await else {
        return false;
    };
    install_merged_layer(engine, tail, layers, merged).await
}

/// Whether a quarter of the newer layers hides something of older ones.
fn has_much_overlap(layers: &[Arc<ExtentMap<DirtyExtent>>]) -> bool {
    let (mut looked_at, mut hiding) = (0, 0);
    for (nth, layer) in layers.iter().enumerate().skip(1) {
        let step = layer.len().div_ceil(SAMPLES).max(1);
        for (span, _) in layer.iter().step_by(step) {
            looked_at += 1;
            hiding += usize::from(
                layers[..nth]
                    .iter()
                    .any(|older| !matches!(older.find(span), Coverage::Nothing)),
            );
        }
    }
    hiding * 4 > looked_at
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

type MergedLayers = (ExtentMap<DirtyExtent>, Vec<(LogAddr, u64)>, u64);

/// The layer that equals `layers`, the log bytes that they hide of each other, and how much work that was.
/// Without a result reads are slower, and nothing else; the failure was reported where it happened.
async fn compute_merge(engine: &Arc<Engine>, layers: &[FrozenLayer]) -> Option<MergedLayers> {
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
