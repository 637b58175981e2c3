//! Putting the content of a tail into packs: runs of neighbours become chunks, a full pack is sent.
//!
//! What could not be read from the log is named as damaged where it belongs, never left out: left out,
//! older content would show through.

use std::sync::Arc;

use blkmq::io::SECTOR_BYTES;

use crate::driver::StoreOp;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::map::ExtentMap;
use crate::map::index::delta_of;
use crate::map::layers::{DirtyExtent, LogAddr};
use crate::object::pack::{Pack, PackWriter, Section, Slice};
use crate::object::root::DeltaRef;
use crate::request::tail::Tail;
use crate::store::log_reads::{Content, read_log};
use crate::store::objects::put;
use crate::units::{Lsn, Span};

/// Content gathered before it is compressed into the pack at hand.
const BATCH_BYTES: u64 = 8 << 20;
/// Content compressed between two pauses: about a millisecond's worth.
const PAUSE_BYTES: usize = 512 << 10;

/// A pack that is in the store.
pub(crate) struct UploadedPack {
    pub(crate) reference: DeltaRef,
    pub(crate) sections: Vec<Section>,
}

/// What one upload put into the store.
pub(crate) struct UploadedSlice {
    pub(crate) packs: Vec<UploadedPack>,
    /// What had to be given up.
    pub(crate) damaged: Vec<Span>,
}

/// A run of content that becomes one chunk: neighbours in the volume, up to the chunk size.
struct Run {
    span: Span,
    lsn: Lsn,
    parts: Vec<(Span, LogAddr)>,
}

/// Packs on their way.
struct Packing<'a> {
    engine: &'a Arc<Engine>,
    tail: &'a Tail,
    slice: &'a Slice,
    writer: PackWriter,
    uploaded: UploadedSlice,
}

/// Writes everything in `merged` into packs.
pub(crate) async fn write_packs(
    engine: &Arc<Engine>,
    tail: &Tail,
    slice: &Slice,
    merged: &ExtentMap<DirtyExtent>,
) -> Result<UploadedSlice, OpenError> {
    let mut packing = Packing {
        engine,
        tail,
        slice,
        writer: PackWriter::new(engine.next_object()),
        uploaded: UploadedSlice {
            packs: Vec::new(),
            damaged: Vec::new(),
        },
    };
    let chunk_sectors = u64::from(engine.options.chunk_bytes) / SECTOR_BYTES;
    let mut batch: Vec<Run> = Vec::new();
    let mut bytes = 0;
    for (span, dirty) in merged.iter() {
        let Some(addr) = dirty.addr else {
            packing.writer.add_zeroes(slice, span, dirty.lsn);
            continue;
        };
        append_run(&mut batch, span, addr, dirty.lsn, chunk_sectors);
        bytes += span.bytes();
        if bytes >= BATCH_BYTES {
            // The last run may still grow.
            let last = batch.pop();
            packing.add_batch(&batch).await?;
            batch = last.into_iter().collect();
            bytes = batch.iter().map(|run| run.span.bytes()).sum();
        }
    }
    packing.add_batch(&batch).await?;
    if !packing.writer.is_empty() {
        packing.send().await?;
    }
    Ok(packing.uploaded)
}

fn append_run(batch: &mut Vec<Run>, span: Span, addr: LogAddr, lsn: Lsn, most: u64) {
    let mut at = span.start;
    while at < span.end {
        let joins = batch
            .last()
            .filter(|run| run.span.end == at && run.span.sectors() < most);
        let room = joins.map_or(most, |run| most - run.span.sectors());
        let part = Span {
            start: at,
            end: span.end.min(at + room),
        };
        let place = (part, addr.skip(at - span.start));
        if joins.is_some() {
            let run = batch.last_mut().expect("it was just looked at");
            run.span.end = part.end;
            run.lsn = run.lsn.max(lsn);
            run.parts.push(place);
        } else {
            batch.push(Run {
                span: part,
                lsn,
                parts: vec![place],
            });
        }
        at = part.end;
    }
}

impl Packing<'_> {
    /// Reads the runs' bytes from the log and adds them to the pack; a full pack is put away.
    async fn add_batch(&mut self, batch: &[Run]) -> Result<(), OpenError> {
        let places: Vec<(Span, LogAddr)> = batch.iter().flat_map(|run| run.parts.clone()).collect();
        let contents = read_log(self.engine, &places).await?;
        let mut contents = contents.iter();
        let mut compressed = 0;
        for run in batch {
            let mut content = Vec::with_capacity(run.span.bytes() as usize);
            let mut damaged: Vec<Span> = Vec::new();
            for part in contents.by_ref().take(run.parts.len()) {
                let Content {
                    bytes,
                    damaged: lost,
                } = part;
                content.extend_from_slice(bytes);
                damaged.extend(lost);
            }
            self.add_run(run, &content, &damaged);
            compressed += content.len();
            if compressed >= PAUSE_BYTES {
                compressed = 0;
                self.engine.port.pause().await;
            }
            if self.writer.len() as u64 >= self.engine.options.pack_bytes {
                self.send().await?;
            }
        }
        Ok(())
    }

    /// One chunk, unless sectors are damaged: those are items of their own between chunks.
    fn add_run(&mut self, run: &Run, content: &[u8], damaged: &[Span]) {
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
                self.writer.add(self.slice, whole, run.lsn, bytes);
            }
            if !lost.is_empty() {
                self.writer.add_damaged(self.slice, *lost, run.lsn);
            }
            at = lost.end;
        }
        self.uploaded.damaged.extend(damaged);
    }

    async fn send(&mut self) -> Result<(), OpenError> {
        let next = PackWriter::new(self.engine.next_object());
        let pack = std::mem::replace(&mut self.writer, next).finish();
        let uploaded = put_pack(self.engine, self.tail, pack).await?;
        self.uploaded.packs.push(uploaded);
        Ok(())
    }
}

async fn put_pack(engine: &Engine, tail: &Tail, pack: Pack) -> Result<UploadedPack, OpenError> {
    let items = pack.sections.iter().flat_map(|part| &part.items);
    let spans = items.map(|item| delta_of(item).0);
    let reference = DeltaRef {
        pack: pack.id,
        footer_offset: pack.footer_offset,
        footer_bytes: pack.footer_bytes,
        span: spans.reduce(Span::hull).unwrap_or_default(),
    };
    if canary::active!("root_before_packs") {
        // Asked for, not waited for: the root may be there first, or alone.
        let (key, data) = (pack.id.pack_key(), pack.bytes);
        drop(engine.port.store(StoreOp::Put { key, data }));
    } else {
        put(engine, tail, pack.id.pack_key(), pack.bytes).await?;
    }
    Ok(UploadedPack {
        reference,
        sections: pack.sections,
    })
}
