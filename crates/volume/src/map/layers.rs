//! The layers of a volume above the store.
//!
//! Newest first: `top` takes all writes; `frozen` layers no longer change and await upload;
//! `clean` holds log extents whose content the store has too. A point in time is taken by
//! pushing `top` onto `frozen`: a pointer swap, whatever its size.
//!
//! A fork that the store does not have yet has a base below all of these: the layers of its parent at the
//! point where it began.
//!
//! Invariants: an extent of a newer layer hides all older ones; LSNs ascend from layer to layer;
//! a clean extent equals the store's content for its sectors unless something above hides it; what a base names stays in
//! its place in the log while the base lives.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use blkmq::io::{Pin, SECTOR_BYTES};

use super::{Coverage, ExtentMap, SectorRun};
use crate::units::{Lsn, Span};

/// A position in the log, in sectors. Never zero: the log begins with its superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LogAddr(NonZeroU64);

impl LogAddr {
    pub(crate) fn new(sector: u64) -> Option<LogAddr> {
        NonZeroU64::new(sector).map(LogAddr)
    }

    pub(crate) fn sector(self) -> u64 {
        self.0.get()
    }

    pub(crate) fn byte_offset(self) -> u64 {
        self.0.get() * SECTOR_BYTES
    }

    pub(crate) fn skip(self, sectors: u64) -> LogAddr {
        LogAddr(self.0.saturating_add(sectors))
    }
}

/// Content that the store may not have yet. 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirtyExtent {
    /// Where the bytes are; none for zeroes (a discard or a write of zeroes).
    pub(crate) addr: Option<LogAddr>,
    /// The commit that put it there.
    pub(crate) lsn: Lsn,
}

impl DirtyExtent {
    fn location(&self) -> Location {
        self.addr.map_or(Location::Zero, Location::Log)
    }
}

impl SectorRun for DirtyExtent {
    fn skip(&self, sectors: u64) -> DirtyExtent {
        DirtyExtent {
            addr: self.addr.map(|addr| addr.skip(sectors)),
            lsn: self.lsn,
        }
    }
}

/// Log bytes that the store has too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CleanExtent(pub(crate) LogAddr);

impl SectorRun for CleanExtent {
    fn skip(&self, sectors: u64) -> CleanExtent {
        CleanExtent(self.0.skip(sectors))
    }
}

/// A layer that no longer changes.
#[derive(Clone, Debug)]
pub(crate) struct FrozenLayer {
    pub(crate) map: Arc<ExtentMap<DirtyExtent>>,
    /// The newest commit when it was frozen.
    pub(crate) last: Lsn,
    /// Content of the volume that it names in the log.
    pub(crate) bytes: u64,
}

impl FrozenLayer {
    pub(crate) fn new(map: ExtentMap<DirtyExtent>, last: Lsn) -> FrozenLayer {
        FrozenLayer {
            bytes: content_bytes(&map),
            map: Arc::new(map),
            last,
        }
    }
}

/// Content of the volume that a map names in the log.
pub(crate) fn content_bytes(map: &ExtentMap<DirtyExtent>) -> u64 {
    let content = map.iter().filter(|(_, dirty)| dirty.addr.is_some());
    content.map(|(span, _)| span.bytes()).sum()
}

/// The layers of a fork's parent up to the point where the fork began, which the fork reads below its own. They are
/// the parent's to bring to the store and to count; here they only keep their bytes in the log.
#[derive(Debug)]
pub(crate) struct BaseLayers {
    /// Oldest first.
    layers: Vec<FrozenLayer>,
    /// Of each segment that they name.
    _pins: Vec<Pin>,
}

impl BaseLayers {
    /// `pins` keep the segments that the layers name; taken under the lock under which the layers were found.
    pub(crate) fn new(layers: Vec<FrozenLayer>, pins: Vec<Pin>) -> BaseLayers {
        BaseLayers {
            layers,
            _pins: pins,
        }
    }
}

/// What the layers know about some sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// In the log, and perhaps nowhere else.
    Log(LogAddr),
    /// In the log, and in the store too.
    Clean(LogAddr),
    Zero,
    /// Nothing: the store decides.
    Below,
}

#[derive(Debug, Default)]
pub(crate) struct Layers {
    pub(crate) top: ExtentMap<DirtyExtent>,
    /// Content of the volume that the top layer names in the log.
    top_bytes: u64,
    /// Oldest first.
    pub(crate) frozen: Vec<FrozenLayer>,
    pub(crate) clean: ExtentMap<CleanExtent>,
    /// Of a fork that the store does not have yet.
    pub(crate) base: Option<Arc<BaseLayers>>,
}

impl Layers {
    /// Commits `value` at `span`. Log bytes of the top layer that it hides are given to `dead`.
    pub(crate) fn commit(
        &mut self,
        span: Span,
        value: DirtyExtent,
        mut dead: impl FnMut(LogAddr, u64),
    ) {
        let mut hidden = 0;
        self.top.insert(span, value, |part, old| {
            if let Some(addr) = old.addr {
                hidden += part.bytes();
                dead(addr, part.sectors());
            }
        });
        self.top_bytes = self.top_bytes.saturating_sub(hidden);
        if value.addr.is_some() {
            self.top_bytes += span.bytes();
        }
    }

    /// Content of the volume that the top layer names in the log.
    pub(crate) fn top_bytes(&self) -> u64 {
        self.top_bytes
    }

    /// Whether the top layer has at least so much, content or zeroes.
    pub(crate) fn top_has(&self, bytes: u64) -> bool {
        let mut sum = 0;
        self.top.iter().any(|(span, _)| {
            sum += span.bytes();
            sum >= bytes
        })
    }

    /// Freezes the top layer as of `last`. An empty one leaves nothing to freeze.
    pub(crate) fn freeze(&mut self, last: Lsn) {
        if !self.top.is_empty() {
            let map = Arc::new(std::mem::take(&mut self.top));
            let bytes = std::mem::take(&mut self.top_bytes);
            self.frozen.push(FrozenLayer { map, last, bytes });
        }
    }

    /// Walks `span` in order and visits each sector's location once.
    pub(crate) fn lookup(&self, span: Span, visit: &mut dyn FnMut(Span, Location)) {
        self.top.walk(span, |part, dirty| match dirty {
            Some(dirty) => visit(part, dirty.location()),
            None => self.lookup_frozen(0..self.frozen.len(), part, visit),
        });
    }

    /// Looks into what lies below the frozen layers: what is clean, and the base.
    fn lookup_below(&self, span: Span, visit: &mut dyn FnMut(Span, Location)) {
        self.clean
            .walk(span, |part, clean| match (clean, &self.base) {
                (Some(clean), _) => visit(part, Location::Clean(clean.0)),
                (None, Some(base)) => {
                    let below = &mut |part, visit: &mut dyn FnMut(Span, Location)| {
                        visit(part, Location::Below);
                    };
                    lookup_layers(&base.layers, part, visit, below);
                }
                (None, None) => visit(part, Location::Below),
            });
    }

    /// Visits the log bytes that readers find in the layers after `cut`, in order.
    pub(crate) fn lookup_after(&self, cut: Lsn, span: Span, visit: &mut dyn FnMut(Span, LogAddr)) {
        let after = self.count_up_to(cut)..self.frozen.len();
        let mut in_log = |part: Span, found: Location| {
            if let Location::Log(addr) = found {
                visit(part, addr);
            }
        };
        self.top.walk(span, |part, dirty| match dirty {
            Some(dirty) => in_log(part, dirty.location()),
            None => self.lookup_frozen(after.clone(), part, &mut in_log),
        });
    }

    /// How many extents of all layers begin in `span`, counted up to `most` of them.
    pub(crate) fn count_up_to_in(&self, span: Span, most: usize) -> usize {
        let mut count = self.clean.count_up_to(span, most);
        let frozen = self.frozen.iter().map(|layer| &*layer.map);
        for map in frozen.chain([&self.top]) {
            if count == most {
                break;
            }
            count += map.count_up_to(span, most - count);
        }
        count
    }

    /// How many frozen layers end at `cut` or before.
    pub(crate) fn count_up_to(&self, cut: Lsn) -> usize {
        self.frozen.partition_point(|layer| layer.last <= cut)
    }

    /// Looks into these frozen layers, the newest first, and then below them.
    fn lookup_frozen(
        &self,
        layers: Range<usize>,
        span: Span,
        visit: &mut dyn FnMut(Span, Location),
    ) {
        let below = &mut |part, visit: &mut dyn FnMut(Span, Location)| {
            self.lookup_below(part, visit);
        };
        lookup_layers(&self.frozen[layers], span, visit, below);
    }

    /// Drops dirty extents that the store has as of `stored`; returns the log bytes that they held.
    pub(crate) fn drop_stored(&mut self, stored: Lsn) -> Vec<(LogAddr, u64)> {
        let mut dead = Vec::new();
        for layer in &mut self.frozen {
            let old: Vec<Span> = layer
                .map
                .iter()
                .filter(|(_, dirty)| dirty.lsn <= stored)
                .map(|(span, _)| span)
                .collect();
            if old.is_empty() {
                continue;
            }
            let map = Arc::make_mut(&mut layer.map);
            for span in old {
                map.remove(span, |part, dirty| {
                    dead.extend(dirty.addr.map(|addr| (addr, part.sectors())));
                });
            }
            layer.bytes = content_bytes(&layer.map);
        }
        self.frozen.retain(|layer| !layer.map.is_empty());
        dead
    }

    /// Empties all layers; returns the log bytes that they held and whether as clean ones.
    pub(crate) fn clear(&mut self) -> Vec<(LogAddr, u64, bool)> {
        let mut dead = Vec::new();
        let frozen = std::mem::take(&mut self.frozen);
        let top = std::mem::take(&mut self.top);
        self.top_bytes = 0;
        for map in frozen.iter().map(|layer| &*layer.map).chain([&top]) {
            dead.extend(
                map.iter().filter_map(|(span, dirty)| {
                    dirty.addr.map(|addr| (addr, span.sectors(), false))
                }),
            );
        }
        let clean = std::mem::take(&mut self.clean);
        dead.extend(
            clean
                .iter()
                .map(|(span, clean)| (clean.0, span.sectors(), true)),
        );
        dead
    }

    /// Dirty extents of all layers (their number bounds checkpoint frames).
    pub(crate) fn dirty_extents(&self) -> usize {
        self.top.len()
            + self
                .frozen
                .iter()
                .map(|frozen| frozen.map.len())
                .sum::<usize>()
    }
}

/// Visits what is in none of some layers, with the visitor of what was.
type Below<'a> = &'a mut dyn FnMut(Span, &mut dyn FnMut(Span, Location));

/// Looks into layers, the newest of which is the last, and then below them. It calls itself only where a layer has a
/// part of `span`, with less than that: many layers need no deep stack.
fn lookup_layers(
    mut layers: &[FrozenLayer],
    span: Span,
    visit: &mut dyn FnMut(Span, Location),
    below: Below<'_>,
) {
    while let Some((newest, older)) = layers.split_last() {
        layers = older;
        let map = &newest.map;
        match map.find(span) {
            Coverage::Nothing => {}
            Coverage::Whole { value, skipped } => {
                return visit(span, value.skip(skipped).location());
            }
            Coverage::Parts => {
                return map.walk(span, |part, dirty| match dirty {
                    Some(dirty) => visit(part, dirty.location()),
                    None => lookup_layers(layers, part, visit, below),
                });
            }
        }
    }
    below(span, visit);
}

/// One map that equals `layers` (oldest first) seen from above. Log bytes hidden on the way are
/// given to `dead`.
pub(crate) fn merge<'a>(
    layers: impl Iterator<Item = &'a ExtentMap<DirtyExtent>>,
    mut dead: impl FnMut(LogAddr, u64),
) -> ExtentMap<DirtyExtent> {
    let mut merged: Option<ExtentMap<DirtyExtent>> = None;
    for layer in layers {
        match &mut merged {
            None => merged = Some(layer.clone()),
            Some(merged) => {
                for (span, value) in layer.iter() {
                    merged.insert(span, *value, |part, old| {
                        if let Some(addr) = old.addr {
                            dead(addr, part.sectors());
                        }
                    });
                }
            }
        }
    }
    merged.unwrap_or_default()
}
