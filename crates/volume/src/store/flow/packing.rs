//! Packs the content of a slice as planned. Each pack is uploaded by itself, and repeats by itself what fails.
//!
//! Sectors that could not be read from the log are recorded as damaged, never left out: otherwise older content
//! would show through.

use std::sync::Arc;

use blkmq::io::SECTOR_BYTES;
use bytes::Bytes;

use crate::driver::{ComputeKind, StoreOp};
use crate::engine::Engine;
use crate::hostlog::names::Digest;
use crate::map::delta::span_of;
use crate::map::layers::LogAddr;
use crate::object::pack::Slice;
use crate::object::pack_writer::{CompressionEffort, Pack, PackWriter};
use crate::object::root::DeltaRef;
use crate::request::tail::{Status, Tail};
use crate::store::flow::compute::compute;
use crate::store::flow::log_content::LogContent;
use crate::store::flow::log_reads::read_log;
use crate::store::flow::pack_plan::{PackPlan, PackUpload, PlannedItem, Run};
use crate::store::flow::repeats::Repeats;
use crate::store::flow::slices::{ServiceEnded, UploadedPack};
use crate::store::host_log::unnamed::UnnamedObject;
use crate::store::immutable::put;
use crate::store::open::endings::is_final;
use crate::units::{Lsn, Span};

/// Checksums that are remembered under one hold of the tail's lock.
const CHECKSUMS_PER_LOCK: usize = 256;

/// Reads a pack's content, compresses it and uploads the pack, and repeats what fails.
pub(super) async fn upload_pack(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    (slice, plan): (Slice, PackPlan),
    object: UnnamedObject,
) -> Result<PackUpload, ServiceEnded> {
    let content = read_content(engine, tail, &plan).await?;
    let (object, last) = (Arc::new(object), slice.last);
    let number = object.id().number;
    let damaged = content.damaged();
    let cost = (ComputeKind::Pack, plan.bytes);
    let effort = effort(engine);
    let session = object.session();
    let build = move || {
        let mut writer = PackWriter::with_effort(session, number, effort);
        add_items(&mut writer, &slice, &plan, &content);
        let pack = writer.finish();
        let digest = Digest::of(&pack.bytes);
        (pack, digest)
    };
    let (pack, digest) = compute(engine, tail, cost, build).await?;
    let uploaded = put_pack(engine, tail, (pack, object), (digest, last)).await?;
    Ok(PackUpload { uploaded, damaged })
}

/// Reads a pack's content from the log, and repeats that until it succeeds.
pub(super) async fn read_content(
    engine: &Arc<Engine>,
    tail: &Tail,
    plan: &PackPlan,
) -> Result<LogContent, ServiceEnded> {
    let places = plan.places();
    let mut repeats = Repeats::new(engine, tail);
    loop {
        match read_log(engine, &places).await {
            Ok(content) => {
                remember_checksums(engine, tail, places, &content).await?;
                return Ok(content);
            }
            Err(error) => repeats.wait(error).await?,
        }
    }
}

/// Remembers checksums of what was read to be packed: it stays in the log, where a scrub proves it.
async fn remember_checksums(
    engine: &Arc<Engine>,
    tail: &Tail,
    places: Vec<(Span, LogAddr)>,
    content: &LogContent,
) -> Result<(), ServiceEnded> {
    if engine.scrub_interval.ns() == 0 {
        return Ok(());
    }
    let bytes = places.iter().map(|(span, _)| span.bytes()).sum();
    let read = content.clone();
    let sum = move || read.checksums(&places);
    let checksums = compute(engine, tail, (ComputeKind::Pack, bytes), sum).await?;
    for some in checksums.chunks(CHECKSUMS_PER_LOCK) {
        let inner = tail.lock();
        // As long as it is live, its slices keep the log from being written anew there.
        if inner.status == Status::Live {
            engine.segments.checksums.add(some);
        }
    }
    Ok(())
}

/// The cheapest compression where writers wait for slices.
pub(super) fn effort(engine: &Engine) -> CompressionEffort {
    match engine.space.is_pressed() {
        true => CompressionEffort::Least,
        false => CompressionEffort::Usual,
    }
}

/// Adds the planned items of a slice to a pack.
pub(super) fn add_items(
    writer: &mut PackWriter,
    slice: &Slice,
    plan: &PackPlan,
    content: &LogContent,
) {
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
                add_run(writer, slice, run, bytes, &damaged);
            }
        }
    }
}

/// One slice's part of a pack, as a root is to name it.
pub(super) fn uploaded_part(
    (pack, object): (&Pack, &Arc<UnnamedObject>),
    digest: Digest,
    at: usize,
) -> UploadedPack {
    let section = &pack.sections[at];
    let spans = section.items.iter().map(span_of);
    let footer = pack.parts[at];
    UploadedPack {
        reference: DeltaRef {
            pack: pack.id,
            footer_offset: footer.offset,
            footer_bytes: footer.bytes,
            last: section.slice.last,
            span: spans.reduce(Span::hull).unwrap_or_default(),
        },
        digest,
        sections: vec![section.clone()],
        object: Arc::clone(object),
    }
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
    (pack, object): (Pack, Arc<UnnamedObject>),
    (digest, last): (Digest, Lsn),
) -> Result<UploadedPack, ServiceEnded> {
    let key = pack.key();
    let items = pack.sections.iter().flat_map(|part| &part.items);
    let spans = items.map(span_of);
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
        object,
    };
    let data = Bytes::from(pack.bytes);
    let mut repeats = Repeats::new(engine, tail);
    if canary::active!("root_before_packs") {
        // The PUT is not waited for, so the root may land first, or alone.
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
