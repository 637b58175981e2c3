//! What is to go into a pack of a slice: runs of neighbours that become chunks, some megabytes of them.
//!
//! Plans only: nothing is read, compressed or sent here (`packing.rs` does that).

use blkmq::io::SECTOR_BYTES;

use crate::map::ExtentMap;
use crate::map::layers::{DirtyExtent, LogAddr};
use crate::store::flow::slices::UploadedPack;
use crate::units::{Lsn, Span};

/// The bytes of an item in the footers of a pack, its own and that of all slices.
const FOOTER_BYTES_PER_ITEM: u64 = 128;

/// The content of one pack, in address order.
#[derive(Debug, Default)]
pub(super) struct PackPlan {
    pub(super) items: Vec<PlannedItem>,
    /// Content of all runs.
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) enum PlannedItem {
    Content(Run),
    Zeroes(Span, Lsn),
}

/// A run of content that becomes one chunk: neighbours in the volume, up to the chunk size.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) span: Span,
    pub(super) lsn: Lsn,
    pub(super) parts: Vec<(Span, LogAddr)>,
}

/// A pack that is in the store, and the sectors that could not be read for it.
#[derive(Debug)]
pub(super) struct PackUpload {
    pub(super) uploaded: UploadedPack,
    pub(super) damaged: Vec<Span>,
}

/// Divides a slice's content into packs of about `pack_bytes`.
pub(super) fn plan_packs(
    extents: &ExtentMap<DirtyExtent>,
    chunk_bytes: u64,
    pack_bytes: u64,
) -> Vec<PackPlan> {
    let chunk_sectors = chunk_bytes / SECTOR_BYTES;
    let mut plans = Vec::new();
    let mut plan = PackPlan::default();
    for (span, dirty) in extents.iter() {
        let Some(addr) = dirty.addr else {
            plan.items.push(PlannedItem::Zeroes(span, dirty.lsn));
            continue;
        };
        let mut rest = (span, addr);
        while !rest.0.is_empty() {
            // A run that may still grow is not cut in two.
            if plan.bytes >= pack_bytes && !plan.can_grow(rest.0.start, chunk_sectors) {
                plans.push(std::mem::take(&mut plan));
            }
            rest = plan.add(rest, dirty.lsn, chunk_sectors);
        }
    }
    if !plan.items.is_empty() {
        plans.push(plan);
    }
    plans
}

impl PackPlan {
    /// Whether anything is left of the slice.
    pub(super) fn has_items(&self) -> bool {
        !self.items.is_empty()
    }

    /// The approximate size in a pack: a slice of many small pieces, or of trims alone, has a large footer.
    pub(super) fn size_bytes(&self) -> u64 {
        self.bytes + FOOTER_BYTES_PER_ITEM * self.items.len() as u64
    }

    fn can_grow(&self, at: u64, chunk_sectors: u64) -> bool {
        matches!(
            self.items.last(),
            Some(PlannedItem::Content(run))
                if run.span.end == at && run.span.sectors() < chunk_sectors
        )
    }

    /// Adds content up to the end of a chunk; what is left of it.
    fn add(
        &mut self,
        (span, addr): (Span, LogAddr),
        lsn: Lsn,
        chunk_sectors: u64,
    ) -> (Span, LogAddr) {
        if !self.can_grow(span.start, chunk_sectors) {
            self.items.push(PlannedItem::Content(Run {
                span: Span::new(span.start, 0),
                lsn,
                parts: Vec::new(),
            }));
        }
        let Some(PlannedItem::Content(run)) = self.items.last_mut() else {
            return (Span::new(span.end, 0), addr);
        };
        let sectors = span.sectors().min(chunk_sectors - run.span.sectors());
        let part = Span::new(span.start, sectors);
        run.span.end = part.end;
        run.lsn = run.lsn.max(lsn);
        run.parts.push((part, addr));
        self.bytes += part.bytes();
        let rest = Span {
            start: part.end,
            end: span.end,
        };
        (rest, addr.skip(sectors))
    }

    /// All places of the log that hold it, in the order of the runs.
    pub(super) fn places(&self) -> Vec<(Span, LogAddr)> {
        let runs = self.items.iter().filter_map(|item| match item {
            PlannedItem::Content(run) => Some(&run.parts),
            PlannedItem::Zeroes(..) => None,
        });
        runs.flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(plans: &[PackPlan]) -> Vec<Vec<(u64, u64)>> {
        let of_item = |item: &PlannedItem| match item {
            PlannedItem::Content(run) => (run.span.start, run.span.end),
            PlannedItem::Zeroes(span, _) => (span.start, span.end),
        };
        plans
            .iter()
            .map(|plan| plan.items.iter().map(of_item).collect())
            .collect()
    }

    #[test]
    fn neighbours_share_chunks_and_a_pack_ends_between_two_of_them() {
        let mut extents = ExtentMap::default();
        let mut put = |start, sectors, addr| {
            let dirty = DirtyExtent {
                addr: LogAddr::new(addr),
                lsn: Lsn(start + 1),
            };
            extents.insert(Span::new(start, sectors), dirty, |_, _| {});
        };
        put(0, 8, 1000);
        put(8, 20, 16);
        put(40, 8, 0);
        put(48, 40, 4096);
        // Chunks of 16 sectors, packs of 32.
        let plans = plan_packs(&extents, 16 * SECTOR_BYTES, 32 * SECTOR_BYTES);
        assert_eq!(
            spans(&plans),
            [
                vec![(0, 16), (16, 28), (40, 48), (48, 64)],
                vec![(64, 80), (80, 88)]
            ]
        );
        assert_eq!(
            plans[0].places()[..3],
            [
                (Span::new(0, 8), LogAddr::new(1000).expect("not 0")),
                (Span::new(8, 8), LogAddr::new(16).expect("not 0")),
                (Span::new(16, 12), LogAddr::new(24).expect("not 0")),
            ]
        );
        assert_eq!(plans.iter().map(|plan| plan.bytes).sum::<u64>(), 68 * 512);
    }
}
