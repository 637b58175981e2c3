//! Which slices are void: their LSNs were given out again by a later hold, and nobody was ever shown them. Pure.

use std::collections::BTreeSet;

use crate::object::pack::Slice;
use crate::units::{Epoch, Lsn};

/// Where epochs and holds of one volume began to give out LSNs, as far as slices say.
pub(super) struct HoldStarts(BTreeSet<(Epoch, Lsn)>);

impl HoldStarts {
    pub(super) fn of<'a>(slices: impl Iterator<Item = &'a Slice>) -> HoldStarts {
        // A hold that goes on over a restart has a new epoch, whose first LSN is above what the log holds by then; its
        // slices may begin before that.
        // A copy was no part of what a hold wrote, and one that a fork made knows nothing of the volume's holds.
        let slices = slices.filter(|it| !it.is_copy());
        let begun = slices.flat_map(|it| [(it.epoch, it.first), (it.since, it.begin)]);
        HoldStarts(begun.collect())
    }

    /// Whether the LSNs of the slice were given out again.
    pub(super) fn make_void(&self, slice: &Slice) -> bool {
        let newer = (Epoch(slice.epoch.0 + 1), Lsn::ZERO);
        let mut newer = self.0.range(newer..);
        newer.any(|(_, begun)| *begun <= slice.last)
    }
}
