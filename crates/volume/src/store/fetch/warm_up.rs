//! Warming up: what one host has at hand of a volume, another reads from the store before it takes the volume.
//!
//! [`hints`] lists the ranges that reads of an open volume find in the log or in the cache. [`prepare`] reads the index of a volume
//! that another host may have open, and such ranges. A hint is no more than that: what is fetched is named by chunk, never by
//! address, so one that is wrong or old costs its bytes and changes nothing that a read returns. Nothing here writes to the
//! store, and clients' reads go first.

use std::ops::Range;
use std::sync::Arc;

use blkmq::io::SECTOR_BYTES;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::scan::read_beyond_root;
use crate::jobs::{Answer, join_all};
use crate::map::index::{Index, IndexEntry};
use crate::map::layers::Location;
use crate::object::pack::Chunk;
use crate::object::root::Root;
use crate::request::tail::{Status, Tail};
use crate::store::catalog::volume_spec::check_name;
use crate::store::fetch;
use crate::store::fetch::read_ahead::{LOOKUP_SECTORS, RANGE_BYTES_MAX, find_missing};
use crate::store::fetch::table::chunk_key;
use crate::store::flow::upload_state::KnownRoot;
use crate::store::forks::open_snapshot::tail_of;
use crate::store::host_log::log_procedures::{KeyPrefixes, log_port, with_patience};
use crate::store::open::load_index::load_index;
use crate::store::open::prepared::KEPT_NS;
use crate::store::roots::read_root;
use crate::units::{SECOND_NS, Span};

/// Look-ups of one list, of a MiB of the volume each.
const LOOKUPS_MAX: usize = 16 << 10;
/// Look-ups between two pauses.
const LOOKUPS_AT_ONCE: usize = 16;
/// Chunks that are fetched before the next are looked up, so that neighbours in a pack share a request, and packs one wait.
const CHUNKS_AT_ONCE: usize = 2048;
/// Bytes of them in the store, at most about: they are in memory until the disk has them.
const BYTES_AT_ONCE: u64 = 16 << 20;
/// How long one call fetches: who asks hears how far it came, and asks again.
const FETCH_NS: u64 = 5 * SECOND_NS;

/// A part of a volume that this host can read without the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Where it is.
    pub sectors: Range<u64>,
    /// It was written lately, or read more than once.
    pub is_hot: bool,
}

/// A part of the list of hints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HintPart {
    /// In the order of the volume.
    pub hints: Vec<Hint>,
    /// The sector from which the next part goes on.
    pub next: Option<u64>,
}

/// How far a warm-up came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmUp {
    /// Of the ranges, in their order: those that are done.
    pub ranges: usize,
    /// Bytes read from the store for them, index and all.
    pub fetched_bytes: u64,
}

/// Lists what this host has at hand from this sector on, at most about so many ranges.
pub(crate) async fn hints(engine: &Engine, tail: &Tail, from: u64, most: usize) -> HintPart {
    let mut part = HintPart::default();
    let end = tail.lock().geometry.bytes / SECTOR_BYTES;
    let mut start = from;
    for nth in 1..=LOOKUPS_MAX {
        if start >= end || part.hints.len() >= most {
            break;
        }
        let span = Span {
            start,
            end: end.min(start.saturating_add(LOOKUP_SECTORS)),
        };
        look_up(engine, tail, span, &mut part.hints);
        start = span.end;
        if nth % LOOKUPS_AT_ONCE == 0 {
            engine.port.pause().await;
        }
    }
    part.next = (start < end).then_some(start);
    part
}

fn look_up(engine: &Engine, tail: &Tail, span: Span, hints: &mut Vec<Hint>) {
    let mut add = |part: Span, is_hot| match hints.last_mut() {
        Some(last) if last.sectors.end == part.start && last.is_hot == is_hot => {
            last.sectors.end = part.end;
        }
        _ => hints.push(Hint {
            sectors: part.start..part.end,
            is_hot,
        }),
    };
    let inner = tail.lock();
    inner.layers.lookup(span, &mut |part, found| match found {
        Location::Log(_) | Location::Clean(_) => add(part, true),
        Location::Zero => {}
        Location::Below => inner
            .index
            .lookup(part, &engine.blocks, &mut |part, stored| {
                if let IndexEntry::Part { chunk, .. } = stored
                    && let Some(is_hot) = engine.cache.find_use(chunk_key(chunk))
                {
                    add(part, is_hot);
                }
            }),
    });
}

/// Reads these ranges of a volume that is not open here; without any, its index up to now.
pub(crate) async fn prepare(
    engine: &Arc<Engine>,
    name: &str,
    ranges: &[Range<u64>],
) -> Result<WarmUp, OpenError> {
    check_name(name)?;
    let serves = |tail: &Arc<Tail>| {
        tail.name() == name && !tail.is_for_maintenance() && tail.lock().status.serves()
    };
    if engine.tails().iter().any(serves) {
        return Err(OpenError::InUse(name.to_owned()));
    }
    let known = match ranges.is_empty() {
        true => None,
        false => engine
            .indexes
            .prepared
            .take_named(name, engine.jobs.mono_ns()),
    };
    let (head, index) = match known {
        Some(known) => known,
        None => {
            let head = read_beyond(engine, read_root(engine, name).await?).await?;
            let index = load_index(engine, &head.root).await?;
            (head, index)
        }
    };
    let view = View(Arc::new(tail_of(head.clone(), index)));
    let warmed = fetch_ranges(engine, &view.0, ranges).await;
    let index = std::mem::take(&mut view.0.lock().index);
    keep(engine, head, index);
    Ok(warmed)
}

/// Keeps the index for a while.
fn keep(engine: &Arc<Engine>, head: KnownRoot, index: Index) {
    engine
        .indexes
        .prepared
        .keep(head, index, engine.jobs.mono_ns());
    let engine = Arc::clone(engine);
    engine.clone().jobs.spawn(async move {
        engine.port.sleep(KEPT_NS).await;
        engine.indexes.prepared.forget_old(engine.jobs.mono_ns());
    });
}

/// What is looked at of a volume that is not open here: no tail of this host's, and nobody writes to it.
struct View(Arc<Tail>);

impl Drop for View {
    fn drop(&mut self) {
        // Ends what is still fetched for it, if the store does not answer.
        self.0.lock().status = Status::Closed;
    }
}

/// The root with what its holder's log has beyond it. A log that cannot be read is none: whoever takes the volume says so.
async fn read_beyond(engine: &Arc<Engine>, head: KnownRoot) -> Result<KnownRoot, OpenError> {
    let port = log_port(engine);
    let keys = KeyPrefixes::of_holder(&head.root);
    let read = async { Ok(read_beyond_root(&port, &head.root).await) };
    let Ok(found) = with_patience(engine, &head.root.name, keys, read).await? else {
        return Ok(head);
    };
    let mut root = Root {
        lsn: found.last,
        ..head.root
    };
    root.deltas
        .extend(found.deltas.iter().map(|(_, delta)| *delta));
    let named = root.sessions.extend(found.sessions.iter());
    named.map_err(|error| OpenError::Corrupt(format!("{}: {error}", root.name)))?;
    Ok(KnownRoot { root, ..head })
}

/// Fetches the ranges in their order, as many as the time allows.
async fn fetch_ranges(engine: &Arc<Engine>, tail: &Arc<Tail>, ranges: &[Range<u64>]) -> WarmUp {
    let until_ns = engine.jobs.mono_ns() + FETCH_NS;
    let end = tail.lock().geometry.bytes / SECTOR_BYTES;
    let mut warmed = WarmUp::default();
    let (mut found, mut bytes) = (Vec::new(), 0);
    let (mut looked_at, mut lookups) = (0, 0);
    'ranges: for range in ranges {
        let mut start = range.start;
        let range_end = range.end.min(end);
        while start < range_end {
            let span = Span {
                start,
                end: range_end.min(start.saturating_add(LOOKUP_SECTORS)),
            };
            let Some(chunks) = find_missing(engine, tail, span).await else {
                break 'ranges;
            };
            bytes += chunks.iter().map(|one| u64::from(one.stored)).sum::<u64>();
            found.extend(chunks);
            start = span.end;
            lookups += 1;
            let is_full = found.len() >= CHUNKS_AT_ONCE || bytes >= BYTES_AT_ONCE;
            if is_full {
                bytes = 0;
                warmed.fetched_bytes += fetch(engine, tail, std::mem::take(&mut found)).await;
            }
            // Also where nothing is missing: a range may be as long as the volume.
            let is_long = lookups % LOOKUPS_AT_ONCE == 0;
            if is_long {
                engine.port.pause().await;
            }
            if (is_full || is_long) && engine.jobs.mono_ns() >= until_ns {
                break 'ranges;
            }
        }
        looked_at += 1;
    }
    warmed.fetched_bytes += fetch(engine, tail, found).await;
    warmed.ranges = looked_at;
    warmed
}

/// Fetches chunks, and ends when they are here. Returns how many bytes the store sent.
async fn fetch(engine: &Arc<Engine>, tail: &Arc<Tail>, chunks: Vec<Arc<Chunk>>) -> u64 {
    let keys: Vec<_> = chunks.iter().map(|chunk| chunk_key(chunk)).collect();
    let (mut answers, mut bytes) = (Vec::new(), 0);
    for group in fetch::grouped(chunks, RANGE_BYTES_MAX) {
        engine.streams.admit(&engine.fetches).await;
        let missing = engine
            .fetches
            .register_ahead(group, |key| engine.cache.contains(key));
        let groups = fetch::grouped(missing, RANGE_BYTES_MAX);
        let stored = groups.iter().flatten().map(|chunk| u64::from(chunk.stored));
        bytes += stored.sum::<u64>();
        let (sender, answer) = Answer::channel();
        let (engine, tail) = (Arc::clone(engine), Arc::clone(tail));
        engine.clone().jobs.spawn(async move {
            let fetches = groups.into_iter();
            let fetches = fetches.map(|group| Box::pin(fetch::fetch_chunks(&engine, &tail, group)));
            join_all(fetches.collect()).await;
            engine.streams.on_fetched(true);
            sender.send(());
        });
        answers.push(answer);
    }
    join_all(answers).await;
    // No reader waits for them, so they need not stay in memory: the disk has a copy.
    engine.cache.mark_planned(&keys);
    bytes
}
