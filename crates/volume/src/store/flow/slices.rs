//! The slices of one volume in progress: which are cut, which are ready, in order.
//!
//! Memory only. A ready slice waits here until all before it are ready, so what is published is always a prefix
//! of the volume's history. When publishing fails, nothing that a slice has uploaded is forgotten.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::hostlog::names::Digest;
use crate::map::ExtentMap;
use crate::map::layers::{DirtyExtent, FrozenLayer, LogAddr};
use crate::object::pack::Section;
use crate::object::root::DeltaRef;
use crate::store::host_log::unnamed::UnnamedObject;
use crate::units::{Lsn, Span};

/// Slices of a volume in progress at once: enough that the others keep the store busy while one PUT is slow.
const IN_FLIGHT_MAX: usize = 8;

/// A slice as it was cut: layers that no other slice has.
#[derive(Debug)]
pub(crate) struct CutSlice {
    /// The first LSN: the one before it ends there.
    pub(crate) begin: Lsn,
    /// The last LSN.
    pub(crate) last: Lsn,
    /// Oldest first.
    pub(crate) layers: Vec<FrozenLayer>,
    pub(crate) cut_ns: u64,
}

/// A pack that is in the store.
#[derive(Debug)]
pub(crate) struct UploadedPack {
    pub(crate) reference: DeltaRef,
    /// The digest of its bytes.
    pub(crate) digest: Digest,
    pub(crate) sections: Vec<Section>,
    /// Held until an effective record or root names it.
    pub(crate) object: Arc<UnnamedObject>,
}

/// A slice whose packs are all in the store, up to a cut that a durable frame covers.
#[derive(Debug)]
pub(crate) struct ReadySlice {
    pub(crate) begin: Lsn,
    pub(crate) last: Lsn,
    pub(crate) cut_ns: u64,
    /// Its layers merged into one map.
    pub(crate) merged: Arc<ExtentMap<DirtyExtent>>,
    /// Log bytes of its layers that others of its layers hide.
    pub(crate) hidden: Vec<(LogAddr, u64)>,
    pub(crate) packs: Vec<UploadedPack>,
    /// Sectors that could not be read from the log and were given up.
    pub(crate) damaged: Vec<Span>,
}

/// The volume is not served any more, so its slices are not completed.
#[derive(Debug)]
pub(super) struct ServiceEnded;

#[derive(Debug)]
struct Slice {
    last: Lsn,
    /// Content of its layers.
    bytes: u64,
    ready: Option<Arc<ReadySlice>>,
}

/// Oldest first.
#[derive(Debug, Default)]
pub(crate) struct Slices {
    list: VecDeque<Slice>,
}

impl Slices {
    /// Whether another slice may be cut. The layers of slices in progress are not merged and may hold much of the
    /// log with little content: so they have at most about `most` bytes, and one slice is enough until the store
    /// has taken something, and while it fails.
    pub(crate) fn has_room(&self, most: u64, only_one: bool) -> bool {
        let held: u64 = self.list.iter().map(|slice| slice.bytes).sum();
        self.list.is_empty() || (!only_one && self.list.len() < IN_FLIGHT_MAX && held < most)
    }

    pub(crate) fn push(&mut self, last: Lsn, bytes: u64) {
        debug_assert!(self.list.back().is_none_or(|slice| slice.last < last));
        self.list.push_back(Slice {
            last,
            bytes,
            ready: None,
        });
    }

    pub(crate) fn set_ready(&mut self, ready: ReadySlice) {
        let slice = self.list.iter_mut().find(|slice| slice.last == ready.last);
        if let Some(slice) = slice {
            slice.ready = Some(Arc::new(ready));
        }
    }

    /// Replaces a slice by its ready form.
    pub(crate) fn replace_ready(&mut self, ready: &Arc<ReadySlice>) {
        let slice = self.list.iter_mut().find(|slice| slice.last == ready.last);
        if let Some(slice) = slice {
            slice.ready = Some(Arc::clone(ready));
        }
    }

    /// All slices that may be published now.
    pub(crate) fn publishable(&self) -> Vec<Arc<ReadySlice>> {
        if canary::active!("slices_are_published_out_of_order") {
            let first = self.list.iter().find_map(|slice| slice.ready.clone());
            return first.into_iter().collect();
        }
        let ready = self.list.iter().map_while(|slice| slice.ready.clone());
        ready.collect()
    }

    /// The first slice that may be published now.
    pub(crate) fn first_ready(&self) -> Option<Arc<ReadySlice>> {
        if canary::active!("slices_are_published_out_of_order") {
            return self.publishable().into_iter().next();
        }
        self.list.front()?.ready.clone()
    }

    pub(crate) fn has_unready(&self) -> bool {
        self.list.iter().any(|slice| slice.ready.is_none())
    }

    pub(crate) fn on_published(&mut self, last: Lsn) {
        self.list.retain(|slice| slice.last > last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(last: u64) -> ReadySlice {
        ReadySlice {
            begin: Lsn(last),
            last: Lsn(last),
            cut_ns: 0,
            merged: Arc::default(),
            hidden: Vec::new(),
            packs: Vec::new(),
            damaged: Vec::new(),
        }
    }

    fn last_lsns(slices: &Slices) -> Vec<u64> {
        let publishable = slices.publishable();
        publishable.iter().map(|slice| slice.last.0).collect()
    }

    #[test]
    fn slices_on_their_way_are_few_and_hold_a_bounded_part_of_the_log() {
        let mut slices = Slices::default();
        assert!(slices.has_room(0, true), "one always goes");
        slices.push(Lsn(1), 100);
        assert!(slices.has_room(101, false) && !slices.has_room(100, false));
        assert!(!slices.has_room(101, true), "the store fails");
        (2..9).for_each(|last| slices.push(Lsn(last), 0));
        assert!(!slices.has_room(u64::MAX, false));
    }

    #[test]
    fn what_may_be_published_is_always_a_prefix_of_the_history() {
        let mut slices = Slices::default();
        for last in [10, 20, 30] {
            slices.push(Lsn(last), 100);
        }
        slices.set_ready(ready(20));
        assert!(slices.first_ready().is_none());
        slices.set_ready(ready(10));
        assert_eq!(last_lsns(&slices), [10, 20]);
        // Publishing may fail any number of times.
        assert_eq!(last_lsns(&slices), [10, 20]);
        slices.on_published(Lsn(20));
        assert_eq!(last_lsns(&slices), [0_u64; 0]);
        slices.set_ready(ready(30));
        assert_eq!(last_lsns(&slices), [30]);
    }
}
