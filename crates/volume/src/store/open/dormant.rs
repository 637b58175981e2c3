//! Tails that nobody has opened yet: what recovery found in the log, and what only the store has.
//!
//! Makes them, and no more: whether one continues its volume's root is judged elsewhere.

use blkmq::io::{Geometry, SECTOR_BYTES};

use crate::log::ring::TailId;
use crate::map::index::Index;
use crate::map::layers::Layers;
use crate::object::root::Root;
use crate::recover::layering::RecoveredTail;
use crate::request::points::{KeptSnapshot, Points};
use crate::request::tail::{Inner, Status, Tail};
use crate::request::watermark::CommitAges;
use crate::units::Lsn;

/// A recovered tail that is not open yet.
pub(crate) fn dormant_tail(id: TailId, found: RecoveredTail) -> Tail {
    let dirty: u64 = found
        .layers
        .iter()
        .map(|layer| layer.bytes / SECTOR_BYTES)
        .sum();
    let mut layers = Layers::default();
    layers.frozen = found.layers;
    let mut points = Points::default();
    for record in found.snapshots {
        points.keep(KeptSnapshot {
            record,
            is_durable: true,
            may_be_stored: true,
            failure: None,
            sent_unheld: false,
            base: None,
        });
    }
    let inner = Inner {
        status: Status::Dormant,
        geometry: Geometry {
            bytes: 0,
            logical_block: 512,
            physical_block: 4096,
            read_only: true,
        },
        layers,
        index: Index::default(),
        newest: found.newest,
        recovered: found.newest,
        reserved: 0,
        ring: None,
        cut: Lsn::ZERO,
        points,
        merged: Lsn::ZERO,
        small_top_due_ns: 0,
        slice_bytes: u64::MAX,
        ages: CommitAges::default(),
        #[cfg(feature = "planted")]
        late: None,
    };
    let tail = Tail::new(
        id,
        found.name,
        found.rescue,
        inner,
        (found.framed, found.stored),
    );
    tail.upload.set_mark(found.root);
    tail.set_size(found.size);
    tail.set_unbroken(found.is_unbroken);
    if found.unreported_loss {
        tail.set_unreported_loss();
    }
    tail.add_dirty(dirty);
    tail
}

/// A tail that is not open yet, of which the store has everything.
pub(crate) fn stored_tail(root: &Root) -> Tail {
    let id = TailId {
        volume: root.volume,
        since: root.since,
    };
    let none = RecoveredTail {
        name: root.name.clone(),
        stored: root.lsn,
        root: root.mark(),
        rescue: false,
        unreported_loss: false,
        size: root.size(),
        is_unbroken: false,
        newest: root.lsn,
        framed: root.lsn,
        layers: Vec::new(),
        snapshots: Vec::new(),
    };
    dormant_tail(id, none)
}
