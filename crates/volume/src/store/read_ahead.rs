//! Read-ahead: what a sequential reader will ask for next is fetched before it asks.
//!
//! How far ahead is for [`super::streams`] to say. What is fetched here is no other than what a client's read
//! would fetch: a client that needs it meanwhile waits for that request and causes no second one.

use std::sync::Arc;
use std::task::Poll;

use crate::engine::Engine;
use crate::jobs::join_all;
use crate::map::index::IndexEntry;
use crate::map::layers::Location;
use crate::object::pack::Chunk;
use crate::request::tail::Tail;
use crate::store::fetch;
use crate::store::fetch_table::{FetchTarget, chunk_key};
use crate::sync::atomic::Ordering;
use crate::units::Span;

/// Sectors looked up under one hold of a tail's lock: 256 extents of a block.
const LOOKUP_SECTORS: u64 = 2048;
/// Chunks that are looked up before their requests begin, so that neighbours in a pack ride in one.
const CHUNKS_AT_ONCE: usize = 512;
/// The longest range of one request: short enough that a client's request does not wait long behind it.
const RANGE_BYTES_MAX: u64 = 1 << 20;

/// Starts to fetch what the store has of `spans` and this host has not, in their order.
pub(crate) fn start(engine: &Arc<Engine>, tail: &Arc<Tail>, spans: Vec<Span>) {
    let (engine, tail) = (Arc::clone(engine), Arc::clone(tail));
    engine.clone().jobs.spawn(async move {
        fetch_spans(&engine, &tail, spans).await;
    });
}

/// The same for a client's hint, of any length. A tail has one at a time: one that comes meanwhile is dropped,
/// so that no client makes the server keep more than that.
pub(crate) fn start_hint(engine: &Arc<Engine>, tail: &Arc<Tail>, spans: Vec<Span>) {
    let Some(hint) = Hint::begin(tail) else {
        return;
    };
    let engine = Arc::clone(engine);
    engine.clone().jobs.spawn(async move {
        fetch_spans(&engine, &hint.0, spans).await;
    });
}

/// The one hint that a tail's clients have under way, until it is dropped.
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
                // A span may be long, and all of it here: others go on in between.
                engine.port.pause().await;
            }
        }
    }
    fetch_all(engine, tail, found).await;
}

/// The chunks of `span` that are not here, once the index pages that name them are. None: the volume is
/// served no more, or its index cannot be read.
async fn find_missing(
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
        // What a client fetches by now may stand between two of them.
        let mut groups = fetch::grouped(missing, RANGE_BYTES_MAX).into_iter();
        let Some(first) = groups.next() else {
            engine.streams.on_fetched(true);
            continue;
        };
        let (engine, tail) = (Arc::clone(engine), Arc::clone(tail));
        engine.clone().jobs.spawn(async move {
            // All at once: a client may wait for any of them by now.
            let all = std::iter::once(first).chain(groups);
            let fetches = all.map(|group| Box::pin(fetch::fetch_chunks(&engine, &tail, group)));
            join_all(fetches.collect()).await;
            engine.streams.on_fetched(true);
        });
    }
}
