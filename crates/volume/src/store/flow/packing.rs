//! Putting the content of a slice into packs: runs of neighbours become chunks, some megabytes of them
//! a pack. Each pack goes its own way, and repeats alone what fails.
//!
//! What could not be read from the log is named as damaged where it belongs, never left out: left out,
//! older content would show through.

use std::sync::Arc;

use blkmq::io::SECTOR_BYTES;
use bytes::Bytes;

use crate::driver::{ComputeKind, StoreOp};
use crate::engine::Engine;
use crate::hostlog::names::Digest;
use crate::map::ExtentMap;
use crate::map::index::delta_of;
use crate::map::layers::{DirtyExtent, LogAddr};
use crate::object::pack::{Effort, Pack, PackWriter, Slice};
use crate::object::root::DeltaRef;
use crate::request::tail::Tail;
use crate::store::endings::is_final;
use crate::store::flow::compute::compute;
use crate::store::flow::log_reads::{LogContent, read_log};
use crate::store::flow::repeats::{Repeats, ServiceEnded};
use crate::store::flow::slices::UploadedPack;
use crate::store::immutable::put;
use crate::units::{Lsn, Span};

/// What goes into one pack, in address order.
#[derive(Debug, Default)]
pub(super) struct PackPlan {
    items: Vec<PlannedItem>,
    /// Content of all runs.
    pub(super) bytes: u64,
}

#[derive(Debug)]
enum PlannedItem {
    Content(Run),
    Zeroes(Span, Lsn),
}

/// A run of content that becomes one chunk: neighbours in the volume, up to the chunk size.
#[derive(Debug)]
struct Run {
    span: Span,
    lsn: Lsn,
    parts: Vec<(Span, LogAddr)>,
}

/// A pack that is in the store, and what had to be given up for it.
pub(super) struct BroughtPack {
    pub(super) uploaded: UploadedPack,
    pub(super) damaged: Vec<Span>,
}

/// Divides what a slice holds into packs of about `pack_bytes` of content.
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
    fn places(&self) -> Vec<(Span, LogAddr)> {
        let runs = self.items.iter().filter_map(|item| match item {
            PlannedItem::Content(run) => Some(&run.parts),
            PlannedItem::Zeroes(..) => None,
        });
        runs.flatten().copied().collect()
    }
}

/// Gathers a pack's content, compresses it, and brings the pack to the store, however often that takes.
pub(super) async fn bring_pack(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    slice: Slice,
    plan: PackPlan,
) -> Result<BroughtPack, ServiceEnded> {
    let places = plan.places();
    let mut repeats = Repeats::new(engine, tail);
    let content = loop {
        match read_log(engine, &places).await {
            Ok(content) => break content,
            Err(error) => repeats.wait(error).await?,
        }
    };
    let (id, last) = (engine.next_object(), slice.last);
    let damaged = content.damaged();
    let cost = (ComputeKind::Pack, plan.bytes);
    let effort = if engine.space.is_pressed() {
        Effort::Least
    } else {
        Effort::Usual
    };
    let session = engine.session_name;
    let build = move || {
        let writer = PackWriter::with_effort(session, id.number, effort);
        let pack = build_pack(writer, &slice, &plan, &content);
        let digest = Digest::of(&pack.bytes);
        (pack, digest)
    };
    let (pack, digest) = compute(engine, tail, cost, build).await?;
    let uploaded = put_pack(engine, tail, pack, (digest, last)).await?;
    Ok(BroughtPack { uploaded, damaged })
}

fn build_pack(
    mut writer: PackWriter,
    slice: &Slice,
    plan: &PackPlan,
    content: &LogContent,
) -> Pack {
    let mut place = 0;
    let mut joined = Vec::new();
    for item in &plan.items {
        match item {
            PlannedItem::Zeroes(span, lsn) => writer.add_zeroes(slice, *span, *lsn),
            PlannedItem::Content(run) => {
                let places = place..place + run.parts.len();
                place = places.end;
                let damaged = content.damaged_in(places.clone());
                let bytes = content.bytes_of(places, &mut joined);
                add_run(&mut writer, slice, run, bytes, &damaged);
            }
        }
    }
    writer.finish()
}

/// One chunk, unless sectors are damaged: those are items of their own between chunks.
fn add_run(writer: &mut PackWriter, slice: &Slice, run: &Run, content: &[u8], damaged: &[Span]) {
    let mut at = run.span.start;
    let end = Span::new(run.span.end, 0);
    for lost in damaged.iter().chain([&end]) {
        let whole = Span {
            start: at,
            end: lost.start,
        };
        if !whole.is_empty() {
            let from = ((at - run.span.start) * SECTOR_BYTES) as usize;
            let bytes = &content[from..from + whole.bytes() as usize];
            writer.add(slice, whole, run.lsn, bytes);
        }
        if !lost.is_empty() {
            writer.add_damaged(slice, *lost, run.lsn);
        }
        at = lost.end;
    }
}

async fn put_pack(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    pack: Pack,
    (digest, last): (Digest, Lsn),
) -> Result<UploadedPack, ServiceEnded> {
    let key = pack.key();
    let items = pack.sections.iter().flat_map(|part| &part.items);
    let spans = items.map(|item| delta_of(item).0);
    let uploaded = UploadedPack {
        reference: DeltaRef {
            pack: pack.id,
            footer_offset: pack.footer_offset,
            footer_bytes: pack.footer_bytes,
            last,
            span: spans.reduce(Span::hull).unwrap_or_default(),
        },
        digest,
        sections: pack.sections,
    };
    let data = Bytes::from(pack.bytes);
    let mut repeats = Repeats::new(engine, tail);
    if canary::active!("root_before_packs") {
        // Asked for, not waited for: the root may be there first, or alone.
        drop(engine.port.store(StoreOp::Put { key, data }));
        return Ok(uploaded);
    }
    loop {
        match put(engine, tail, &key, &data).await {
            Ok(()) => {
                tail.upload.on_store_answer(false);
                return Ok(uploaded);
            }
            Err(error) if is_final(&error) => return Err(ServiceEnded),
            Err(error) => repeats.wait(error).await?,
        }
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
