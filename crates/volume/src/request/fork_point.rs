//! Taking what a fork begins with from its parent's tail.
//!
//! Under the tail's lock in one step, so layers and index are of one state. It must never take what is newer than the
//! point.

use crate::log::segments::Segments;
use crate::map::layers::BaseLayers;
use crate::object::pack::Ancestor;
use crate::request::fork_base::{UnsortedBase, sort_pins};
use crate::request::tail::Tail;
use crate::units::Lsn;

impl Tail {
    /// What the volume is at a point that was just taken. None if a part of its index cannot be read.
    pub(crate) fn base_at(&self, point: Lsn, segments: &Segments) -> Option<UnsortedBase> {
        let parent = Ancestor {
            volume: self.id().volume,
            last: point,
        };
        let above = self.upload.lineage();
        let lineage = [parent].into_iter().chain(above.iter().copied());
        let lineage = lineage.collect();
        let mut inner = self.lock();
        let index = inner.index.snapshot()?;
        let count = inner.layers.count_up_to(point);
        Some(UnsortedBase {
            layers: inner.layers.frozen[..count].to_vec(),
            pins: segments.pin_dirty(),
            index,
            block: inner.geometry.logical_block,
            lineage,
        })
    }

    /// The layers up to a point that the store may not have, as far as they are still here: recovery cuts layers at points.
    pub(crate) fn layers_at(&self, point: Lsn, segments: &Segments) -> BaseLayers {
        let (layers, pins) = {
            let inner = self.lock();
            let count = inner.layers.count_up_to(point);
            (inner.layers.frozen[..count].to_vec(), segments.pin_dirty())
        };
        let pins = sort_pins(segments, &layers, pins);
        BaseLayers::new(layers, pins)
    }
}
