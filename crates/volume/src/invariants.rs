//! What holds across the engine's structures between any two steps: of tails, their maps and
//! rings, the segments that they name, the group commit and the cache.
//!
//! Read only, and only while nothing else uses the engine: the simulator looks after every step,
//! so a structure that goes wrong is seen where it happens and not where a client notices.

use crate::engine::Engine;
use crate::log::segments::invariants::NamedSectors;
use crate::request::tail::{Inner, Status};

/// The first invariant that does not hold.
pub(crate) fn check(engine: &Engine) -> Result<(), String> {
    let layout = &engine.layout;
    let mut named = vec![NamedSectors::default(); layout.segments as usize];
    for tail in engine.tails() {
        let inner = tail.lock();
        // Nothing is read from a broken tail, and its counters stay until the restart.
        if inner.status == Status::Broken {
            return Ok(());
        }
        let whole = inner.invariants(tail.framed_lsn());
        whole.map_err(|error| format!("tail {}: {error}", tail.name()))?;
        let dirty = count_named(engine, &inner, &mut named);
        let (share, name) = (tail.dirty_sectors(), tail.name());
        if share < dirty {
            return Err(format!(
                "tail {name}: its share is {share} sectors, its maps name {dirty}"
            ));
        }
    }
    engine.segments.invariants(&named)?;
    engine.committer().invariants(layout.half_bytes)?;
    engine.cache.invariants()
}

/// Adds what the maps of a tail name to its segments; the sum of the dirty sectors.
fn count_named(engine: &Engine, inner: &Inner, named: &mut [NamedSectors]) -> u64 {
    let mut sum = 0;
    let segment = |sector| {
        let found = engine.layout.segment_of(sector);
        found.expect("maps name places in segments") as usize
    };
    let layers = &inner.layers;
    let frozen = layers.frozen.iter().map(|layer| &*layer.map);
    for (span, dirty) in frozen.chain([&layers.top]).flat_map(|map| map.iter()) {
        if let Some(addr) = dirty.addr {
            named[segment(addr.sector())].dirty += span.sectors();
            sum += span.sectors();
        }
    }
    for (span, clean) in layers.clean.iter() {
        named[segment(clean.0.sector())].clean += span.sectors();
    }
    sum
}
