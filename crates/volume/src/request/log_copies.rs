//! What a fork reads where its parent has it: chunks of which another volume has the bytes in this host's log.
//!
//! A chunk's bytes are where the volume that wrote it has a clean extent that its own readers would be sent to, and where
//! its index names this very chunk: a clean extent equals what the index names. That is looked at under that volume's
//! lock, and not under the reader's at the same time: the store says whose chunks a volume has, so nothing keeps two
//! volumes from taking each other's lock. The pins that are taken there keep the bytes in place. No map changes, and
//! nothing goes to the cache: once the log has no room for the bytes any more they come from the store.

use std::sync::Arc;

use blkmq::io::Pin;

use crate::cache::ChunkKey;
use crate::engine::Engine;
use crate::map::index::IndexEntry;
use crate::map::layers::{Location, LogAddr};
use crate::object::pack::Chunk;
use crate::request::tail::{Status, Tail};
use crate::store::fetch::table::{FetchTarget, chunk_key};
use crate::units::Span;

/// Chunks that are looked for, at most: each takes the lock of the volume that wrote it.
const CHUNKS_MAX: usize = 64;

/// Where the log has a part of a chunk for the volume that wrote it. The bytes stay there while this lives.
#[derive(Debug)]
struct LogCopy {
    writer: Arc<Tail>,
    of: ChunkKey,
    span: Span,
    addr: LogAddr,
    _pin: Pin,
}

/// Parts of chunks that the log has.
#[derive(Debug, Default)]
pub(super) struct LogCopies(Vec<LogCopy>);

impl LogCopies {
    /// Of those chunks of which the log has all that lies in `span`.
    pub(super) fn find(
        engine: &Engine,
        reader: &Tail,
        span: Span,
        wanted: &[FetchTarget],
    ) -> LogCopies {
        let mut copies: Vec<LogCopy> = Vec::new();
        for target in wanted.iter().take(CHUNKS_MAX) {
            match target {
                FetchTarget::Chunk(chunk) => {
                    // A volume's own clean extents were looked at; and each part of a chunk that is seen names it.
                    let is_known = copies.iter().any(|copy| copy.of == chunk_key(chunk));
                    if chunk.origin != reader.id().volume && !is_known {
                        find_copies(engine, chunk, chunk.span.intersect(span), &mut copies);
                    }
                }
                FetchTarget::Block(_) => {}
            }
        }
        LogCopies(copies)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Visits where the log has this part of a chunk, in order. Returns the volume for which it does; none: it has not.
    pub(super) fn visit(
        &self,
        chunk: &Chunk,
        part: Span,
        mut visit: impl FnMut(Span, LogAddr),
    ) -> Option<&Arc<Tail>> {
        let of = self.0.iter().filter(|copy| copy.of == chunk_key(chunk));
        let mut writer = None;
        for copy in of {
            let here = copy.span.intersect(part);
            if !here.is_empty() {
                writer = Some(&copy.writer);
                visit(here, copy.addr.skip(here.start - copy.span.start));
            }
        }
        writer
    }
}

/// Adds where the volume that wrote a chunk has this part of it in the log, if it has all of that.
fn find_copies(engine: &Engine, chunk: &Arc<Chunk>, part: Span, copies: &mut Vec<LogCopy>) {
    let Some(writer) = engine.newest_tail_of(chunk.origin) else {
        return;
    };
    let inner = writer.lock();
    if inner.status != Status::Live {
        return;
    }
    let mut is_chunk = true;
    let compare = &mut |_: Span, entry: IndexEntry<'_>| {
        is_chunk &= match entry {
            IndexEntry::Part { chunk: found, .. } => {
                chunk_key(found) == chunk_key(chunk) && found.span == chunk.span
            }
            _ => false,
        };
    };
    inner.index.lookup(part, &engine.blocks, compare);
    if !is_chunk && !canary::active!("log_copy_of_another_chunk") {
        return;
    }
    let (before, mut is_whole) = (copies.len(), true);
    inner.layers.lookup(part, &mut |span, found| match found {
        Location::Log(_) if !canary::active!("log_copy_of_what_is_newer") => is_whole = false,
        Location::Clean(addr) | Location::Log(addr) => copies.push(LogCopy {
            writer: Arc::clone(&writer),
            of: chunk_key(chunk),
            span,
            addr,
            _pin: engine.segments.pin(addr),
        }),
        Location::Zero | Location::Below => is_whole = false,
    });
    if !is_whole {
        copies.truncate(before);
    }
}
