//! Read-ahead: fetches what a sequential reader will ask for next.
//!
//! [`super::streams`] decides how far ahead. The fetches are those that a client's read would cause: a client
//! that needs a chunk meanwhile waits for the same request.

use std::sync::Arc;
use std::task::Poll;

use crate::engine::Engine;
use crate::jobs::join_all;
use crate::map::index::IndexEntry;
use crate::map::layers::Location;
use crate::object::pack::Chunk;
use crate::request::tail::Tail;
use crate::store::fetch;
use crate::store::fetch::table::{FetchTarget, chunk_key};
use crate::sync::atomic::Ordering;
use crate::units::Span;

/// Sectors looked up under one hold of a tail's lock: 256 extents of a block.
pub(super) const LOOKUP_SECTORS: u64 = 2048;
/// Chunks that are looked up before their requests begin, so that neighbours in a pack share one.
const CHUNKS_AT_ONCE: usize = 512;
/// The longest range of one request: short enough that a client's request does not wait long behind it.
pub(super) const RANGE_BYTES_MAX: u64 = 1 << 20;

/// Starts to fetch those parts of `spans` that only the store has, in their order.
pub(crate) fn start(engine: &Arc<Engine>, tail: &Arc<Tail>, spans: Vec<Span>) {
    let (engine, tail) = (Arc::clone(engine), Arc::clone(tail));
    engine.clone().jobs.spawn(async move {
        fetch_spans(&engine, &tail, spans).await;
    });
}

/// The same for a client's hint, of any length. A tail has one hint at a time, and further ones are dropped,
/// which bounds what clients can make the server keep.
pub(crate) fn start_hint(engine: &Arc<Engine>, tail: &Arc<Tail>, spans: Vec<Span>) {
    let Some(hint) = Hint::begin(tail) else {
        return;
    };
    let engine = Arc::clone(engine);
    engine.clone().jobs.spawn(async move {
        fetch_spans(&engine, &hint.0, spans).await;
    });
}

/// Marks a tail as having a hint in progress, until it is dropped.
struct Hint(Arc<Tail>);

impl Hint {
    fn begin(tail: &Arc<Tail>) -> Option<Hint> {
        let is_free =
            !tail.has_hint.swap(true, Ordering::AcqRel) || canary::active!("each_hint_is_a_job");
        is_free.then(|| Hint(Arc::clone(tail)))
    }
}

impl Drop for Hint {
    fn drop(&mut self) {
        self.0.has_hint.store(false, Ordering::Release);
    }
}

async fn fetch_spans(engine: &Arc<Engine>, tail: &Arc<Tail>, spans: Vec<Span>) {
    let mut found = Vec::new();
    for span in spans {
        let mut start = span.start;
        while start < span.end {
            let end = span.end.min(start + LOOKUP_SECTORS);
            let Some(chunks) = find_missing(engine, tail, Span { start, end }).await else {
                return;
            };
            found.extend(chunks);
            start = end;
            if found.len() >= CHUNKS_AT_ONCE {
                fetch_all(engine, tail, std::mem::take(&mut found)).await;
            }
            if start < span.end {
                // A span may be long and wholly cached: other jobs run in between.
                engine.port.pause().await;
            }
        }
    }
    fetch_all(engine, tail, found).await;
}

/// Finds the chunks of `span` that are not cached, and loads the index pages for that. `None`: the volume is not
/// served any more, or its index cannot be read.
pub(super) async fn find_missing(
    engine: &Arc<Engine>,
    tail: &Arc<Tail>,
    span: Span,
) -> Option<Vec<Arc<Chunk>>> {
    std::future::poll_fn(|cx| {
        let (mut chunks, mut pages) = (Vec::new(), Vec::new());
        {
            let inner = tail.lock();
            if inner.check_serving().is_err() {
                return Poll::Ready(None);
            }
            inner.layers.lookup(span, &mut |part, found| {
                if found != Location::Below {
                    return;
                }
                let blocks = &engine.blocks;
                inner
                    .index
                    .lookup(part, blocks, &mut |_, stored| match stored {
                        IndexEntry::Part { chunk, .. }
                            if !engine.cache.contains(chunk_key(chunk)) =>
                        {
                            chunks.push(Arc::new(chunk.clone()));
                        }
                        IndexEntry::Unloaded(target) => pages.push(FetchTarget::Block(target)),
                        IndexEntry::Part { .. }
                        | IndexEntry::Hole
                        | IndexEntry::Unknown
                        | IndexEntry::Damaged => {}
                    });
            });
        }
        if pages.is_empty() {
            return Poll::Ready(Some(chunks));
        }
        match fetch::request(engine, tail, pages, cx.waker()) {
            Ok(()) => Poll::Pending,
            Err(_) => Poll::Ready(None),
        }
    })
    .await
}

async fn fetch_all(engine: &Arc<Engine>, tail: &Arc<Tail>, chunks: Vec<Arc<Chunk>>) {
    for group in fetch::grouped(chunks, RANGE_BYTES_MAX) {
        engine.streams.admit(&engine.fetches).await;
        let missing = engine
            .fetches
            .register_ahead(group, |key| engine.cache.contains(key));
        // Chunks that a client fetches by now may lie between two of these.
        let mut groups = fetch::grouped(missing, RANGE_BYTES_MAX).into_iter();
        let Some(first) = groups.next() else {
            engine.streams.on_fetched(true);
            continue;
        };
        let (engine, tail) = (Arc::clone(engine), Arc::clone(tail));
        engine.clone().jobs.spawn(async move {
            // All are requested at once, because a client may wait for any of them by now.
            let all = std::iter::once(first).chain(groups);
            let fetches = all.map(|group| Box::pin(fetch::fetch_chunks(&engine, &tail, group)));
            join_all(fetches.collect()).await;
            engine.streams.on_fetched(true);
        });
    }
}
