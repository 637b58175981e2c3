//! The frozen layers of a tail that no slice has: cutting the next slice of them, and merging them.
//!
//! Everything is one step under the tail's short lock. Neither a slice nor a merge may span a point that is held.

use std::sync::Arc;

use crate::map::ExtentMap;
use crate::map::layers::{DirtyExtent, FrozenLayer};
use crate::request::tail::{NotLive, Status, Tail};
use crate::store::flow::slices::CutSlice;
use crate::units::{Lsn, SECOND_NS};

impl Tail {
    /// Cuts the next slice, if more than what is cut is wanted; of it only what is at most `most`.
    pub(crate) fn cut_slice(
        &self,
        wanted: Lsn,
        most: Lsn,
        now_ns: u64,
    ) -> Result<Option<CutSlice>, NotLive> {
        let mut inner = self.lock();
        if inner.status != Status::Live {
            return Err(NotLive);
        }
        let most = most.min(inner.points.after(inner.cut));
        if wanted.min(most) <= inner.cut {
            return Ok(None);
        }
        let newest = inner.newest;
        if inner.loose_layers().is_empty() && newest <= most {
            inner.layers.freeze(newest);
        }
        let mut bytes = 0;
        let slice_bytes = inner.slice_bytes;
        let fitting = inner.loose_layers().iter().take_while(|layer| {
            let first = bytes == 0;
            bytes += layer.bytes.max(1);
            layer.last <= most && (first || bytes <= slice_bytes)
        });
        let layers: Vec<FrozenLayer> = fitting.cloned().collect();
        let last = match layers.last() {
            Some(layer) => layer.last,
            // Nothing is left of the commits but their numbers.
            None if inner.loose_layers().is_empty() && (inner.cut..=most).contains(&newest) => {
                newest
            }
            // The same up to a point, with layers above it.
            None if most < Lsn(u64::MAX)
                && most == inner.points.after(inner.cut)
                && inner.layers.count_up_to(most) == inner.layers.count_up_to(inner.cut) =>
            {
                most
            }
            None => return Ok(None),
        };
        if last == inner.cut {
            return Ok(None);
        }
        let begin = std::mem::replace(&mut inner.cut, last).next();
        Ok(Some(CutSlice {
            begin,
            last,
            layers,
            cut_ns: now_ns,
        }))
    }

    /// All layers that no slice has, if merging them may free log bytes. The top layer is frozen and among
    /// them if it has at least `worth` bytes, or none was frozen for a second: little may hide the last bytes of
    /// many segments.
    pub(crate) fn freeze_loose(&self, worth: u64, now_ns: u64) -> Option<Vec<FrozenLayer>> {
        let mut inner = self.lock();
        let above_others = !inner.mergeable_layers().is_empty();
        let always = canary::active!("cleaner_freezes_every_top");
        if inner.status == Status::Broken || !above_others {
            return None;
        }
        if inner.layers.top_has(worth) || now_ns >= inner.small_top_due_ns || always {
            inner.small_top_due_ns = now_ns + SECOND_NS;
            let newest = inner.newest;
            inner.layers.freeze(newest);
        }
        let loose = inner.mergeable_layers();
        let unmerged = loose.last().is_some_and(|layer| layer.last > inner.merged);
        (loose.len() > 1 && unmerged).then(|| loose.to_vec())
    }

    /// The oldest layers that no slice has, up to `most`, as long as they have at most `bytes` of content.
    pub(crate) fn oldest_loose(&self, most: Lsn, bytes: u64) -> Vec<FrozenLayer> {
        let inner = self.lock();
        let most = most.min(inner.points.after(inner.cut));
        let mut sum = 0;
        let fitting = inner.loose_layers().iter().take_while(|layer| {
            sum += layer.bytes;
            layer.last <= most && sum <= bytes
        });
        fitting.cloned().collect()
    }

    /// None of `layers`, which were loose, hides log bytes of another one any more.
    pub(crate) fn on_merged(&self, layers: &[FrozenLayer]) {
        let mut inner = self.lock();
        let (Some(first), Some(last)) = (layers.first(), layers.last()) else {
            return;
        };
        // A fence makes older layers loose again.
        let oldest = inner.mergeable_layers().first().map(|layer| layer.last);
        if oldest.is_some_and(|oldest| oldest >= first.last) {
            inner.merged = inner.merged.max(last.last);
        }
    }

    /// Puts one equal layer in place of `layers`, which no slice has, unless a slice has
    /// taken some meanwhile. What it replaced is returned, to be dropped elsewhere.
    pub(crate) fn replace_loose(
        &self,
        layers: &[FrozenLayer],
        merged: ExtentMap<DirtyExtent>,
    ) -> Option<Vec<FrozenLayer>> {
        let layer = FrozenLayer::new(merged, layers.last()?.last);
        let mut inner = self.lock();
        let loose = inner.loose_layers();
        let is_same = |a: &FrozenLayer, b: &FrozenLayer| Arc::ptr_eq(&a.map, &b.map);
        let at = loose.iter().position(|loose| is_same(loose, &layers[0]))?;
        let loose = &loose[at..];
        let same =
            loose.len() >= layers.len() && layers.iter().zip(loose).all(|(a, b)| is_same(a, b));
        if !same {
            return None;
        }
        let first = inner.layers.frozen.len() - loose.len();
        let replaced = first..first + layers.len();
        Some(inner.layers.frozen.splice(replaced, [layer]).collect())
    }
}
