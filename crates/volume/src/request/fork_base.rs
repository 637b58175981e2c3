//! What a fork reads of its parent until the store has the fork: the parent's layers at the point where it began,
//! and the parent's index at that moment.
//!
//! Nothing of it changes once it was taken (`fork_point`). It costs the parent nothing but the log segments that it
//! keeps from being used again: each that its layers name must be pinned.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkmq::io::Pin;

use crate::log::segments::Segments;
use crate::map::index::Index;
use crate::map::layers::{BaseLayers, FrozenLayer};
use crate::object::pack::Lineage;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct ForkBase {
    pub(crate) layers: Arc<BaseLayers>,
    pub(crate) index: Index,
    /// The size of a logical block, in bytes.
    pub(crate) block: u32,
    /// Of the fork: index blocks of these volumes are its.
    pub(crate) lineage: Lineage,
}

/// The same before it is known which segments its layers name: it keeps all that any map names.
#[derive(Debug)]
pub(crate) struct UnsortedBase {
    pub(super) layers: Vec<FrozenLayer>,
    pub(super) pins: BTreeMap<u32, Pin>,
    pub(super) index: Index,
    pub(super) block: u32,
    pub(super) lineage: Lineage,
}

impl UnsortedBase {
    /// Bytes of extents that [`UnsortedBase::sort`] walks, about.
    pub(crate) fn bytes(&self) -> u64 {
        let extents = self.layers.iter().map(|layer| layer.map.len() as u64);
        extents.sum::<u64>() * 32
    }

    /// Lets the segments go that the layers do not name.
    pub(crate) fn sort(self, segments: &Segments) -> ForkBase {
        let pins = sort_pins(segments, &self.layers, self.pins);
        ForkBase {
            layers: Arc::new(BaseLayers::new(self.layers, pins)),
            index: self.index,
            block: self.block,
            lineage: self.lineage,
        }
    }
}

/// The pins of the segments that the layers name.
pub(super) fn sort_pins(
    segments: &Segments,
    layers: &[FrozenLayer],
    mut pins: BTreeMap<u32, Pin>,
) -> Vec<Pin> {
    let mut named = Vec::new();
    if canary::active!("fork_base_pins_nothing") {
        return named;
    }
    for (_, extent) in layers.iter().flat_map(|layer| layer.map.iter()) {
        let segment = extent.addr.and_then(|addr| segments.segment_of(addr));
        named.extend(segment.and_then(|segment| pins.remove(&segment)));
    }
    named
}
