//! The layers of a recovered tail: those of the checkpoint as they were, and layers cut anew of the commits since.
//!
//! Each layer but the newest can be stored by itself, so a server that is killed again and again still gets on
//! with what it found. A layer is a state of the volume only while the log holds all its bytes: where a segment
//! was reused since, because what it held had died of a merge with newer layers, these are merged again. No layer
//! spans the point of a snapshot that the log keeps: up to there the layers are the snapshot.
//! Memory only; the generations of segments are `mod.rs`'s to read.

use crate::log::entry::Entry;
use crate::log::layout::Layout;
use crate::log::snapshot_record::SnapshotRecord;
use crate::map::layers::{DirtyExtent, FrozenLayer};
use crate::map::{ExtentMap, SectorRun};
use crate::options::Options;
use crate::recover::replay::TailReplay;
use crate::units::{Lsn, RootMark, Span, VolumeSize};

/// A tail as recovered.
#[derive(Debug)]
pub(crate) struct RecoveredTail {
    pub(crate) name: String,
    pub(crate) stored: Lsn,
    pub(crate) root: RootMark,
    pub(crate) rescue: bool,
    /// Its ring was lost, and nobody may have been told.
    pub(crate) unreported_loss: bool,
    pub(crate) size: VolumeSize,
    /// All that the last session left of it was found.
    pub(crate) is_unbroken: bool,
    pub(crate) newest: Lsn,
    /// The newest commit that a frame has.
    pub(crate) framed: Lsn,
    /// The oldest first.
    pub(crate) layers: Vec<FrozenLayer>,
    /// Snapshots that the store does not have yet.
    pub(crate) snapshots: Vec<SnapshotRecord>,
}

/// A dirty extent with the generation it was recorded under.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplayedExtent {
    pub(super) dirty: DirtyExtent,
    pub(super) generation: u32,
}

impl SectorRun for ReplayedExtent {
    fn skip(&self, sectors: u64) -> ReplayedExtent {
        ReplayedExtent {
            dirty: self.dirty.skip(sectors),
            generation: self.generation,
        }
    }
}

/// A layer whose extents still say under which generation they were recorded.
#[derive(Debug, Default)]
pub(super) struct ReplayedLayer {
    pub(super) last: Lsn,
    pub(super) map: ExtentMap<ReplayedExtent>,
    /// Content that it names in the log.
    bytes: u64,
}

impl ReplayedLayer {
    fn insert(&mut self, entry: &Entry) {
        let dirty = DirtyExtent {
            addr: entry.addr,
            lsn: entry.lsn,
        };
        let generation = entry.generation;
        self.insert_extent(entry.span, ReplayedExtent { dirty, generation });
    }

    fn insert_extent(&mut self, span: Span, extent: ReplayedExtent) {
        let content = |span: Span, extent: &ReplayedExtent| match extent.dirty.addr {
            Some(_) => span.bytes(),
            None => 0,
        };
        self.bytes += content(span, &extent);
        let mut hidden = 0;
        self.map
            .insert(span, extent, |part, old| hidden += content(part, &old));
        self.bytes -= hidden;
    }

    /// The same for commits that follow each other, whose order is lost. Most logs have many that overlap nothing: in the
    /// order of their sectors these take no search, and leaves of the map are full.
    fn insert_all(&mut self, commits: &mut Vec<Entry>) {
        if self.map.is_empty() && commits.len() > 1 {
            commits.sort_unstable_by_key(|entry| entry.span.start);
            let is_apart = |pair: &[Entry]| pair[0].span.end <= pair[1].span.start;
            if !commits.windows(2).all(is_apart) {
                commits.sort_unstable_by_key(|entry| entry.lsn);
            }
        }
        commits.drain(..).for_each(|entry| self.insert(&entry));
    }

    /// What it becomes with the layer above it.
    fn merge(&mut self, newer: &ReplayedLayer) {
        for (span, extent) in newer.map.iter() {
            self.insert_extent(span, *extent);
        }
        self.last = newer.last;
    }
}

/// What says where layers are cut and which of their bytes are gone.
pub(super) struct Layering<'a> {
    pub(super) layout: &'a Layout,
    /// Content of a layer that becomes a slice.
    pub(super) slice_bytes: u64,
    /// The generation that each segment has now.
    pub(super) generations: &'a [Option<u32>],
}

impl<'a> Layering<'a> {
    pub(super) fn new(
        layout: &'a Layout,
        options: &Options,
        generations: &'a [Option<u32>],
    ) -> Layering<'a> {
        Layering {
            layout,
            slice_bytes: options.slice_bytes(),
            generations,
        }
    }

    /// The layers of a tail, each of which is a state that the volume had, over those before.
    pub(super) fn layers(&self, tail: &TailReplay) -> Vec<ReplayedLayer> {
        let mut layers = Vec::new();
        for found in &tail.layers {
            let mut layer = ReplayedLayer {
                last: found.last,
                ..ReplayedLayer::default()
            };
            let unstored = found.extents.iter().filter(|entry| entry.lsn > tail.stored);
            unstored.for_each(|entry| layer.insert(entry));
            layers.push(layer);
        }
        layers.extend(self.cut(&tail.commits, &tail.points()));
        layers.retain(|layer| !layer.map.is_empty());
        if canary::active!("recovered_tail_is_one_layer") {
            return merge_all(layers, &tail.points());
        }
        self.merge_stale(layers)
    }

    /// Commits as layers, each about a slice, of which none spans a point.
    fn cut(&self, commits: &[Entry], points: &[Lsn]) -> Vec<ReplayedLayer> {
        let mut layers = Vec::new();
        let mut top = ReplayedLayer::default();
        // Commits that are not in the layer yet, and at least as much content as it has with them.
        let (mut next, mut bytes_most) = (Vec::new(), 0);
        for commit in commits {
            next.push(*commit);
            bytes_most += commit.span.bytes();
            let is_point = points.contains(&commit.lsn);
            if bytes_most < self.slice_bytes && !is_point {
                continue;
            }
            top.insert_all(&mut next);
            top.last = commit.lsn;
            bytes_most = top.bytes;
            let is_slice = top.bytes >= self.slice_bytes && !self.may_continue(commit);
            if is_slice || is_point {
                layers.push(std::mem::take(&mut top));
                bytes_most = 0;
            }
        }
        top.insert_all(&mut next);
        if let Some(newest) = commits.last() {
            top.last = newest.lsn;
        }
        layers.push(top);
        layers
    }

    /// A write that is longer than what is left of a segment goes on in the next one, as a commit of its own:
    /// nothing is cut between the two.
    fn may_continue(&self, commit: &Entry) -> bool {
        commit.addr.is_some_and(|addr| {
            let after = addr.skip(commit.span.sectors()).sector();
            self.layout.segment_of(after) != self.layout.segment_of(addr.sector())
        })
    }

    /// Merges each layer that names bytes which are gone with newer ones, until these hide them. What no layer
    /// hides stays, for the caller to refuse.
    fn merge_stale(&self, layers: Vec<ReplayedLayer>) -> Vec<ReplayedLayer> {
        let mut whole: Vec<ReplayedLayer> = Vec::new();
        // What the newest of them names and the log does not hold any more.
        let mut stale: Vec<Span> = Vec::new();
        for layer in layers {
            let extents = layer.map.iter();
            let gone = extents.filter(|(_, extent)| self.is_stale(extent));
            let gone: Vec<Span> = gone.map(|(span, _)| span).collect();
            match whole.last_mut() {
                Some(below) if !stale.is_empty() => below.merge(&layer),
                _ => whole.push(layer),
            }
            stale.extend(gone);
            stale.retain(|span| self.refers_to_stale_segment(whole.last(), *span));
        }
        whole
    }

    fn refers_to_stale_segment(&self, layer: Option<&ReplayedLayer>, span: Span) -> bool {
        let mut found = false;
        if let Some(layer) = layer {
            layer.map.walk(span, |_, extent| {
                found |= extent.is_some_and(|extent| self.is_stale(extent));
            });
        }
        found
    }

    /// Recorded under another generation than its segment has now.
    fn is_stale(&self, extent: &ReplayedExtent) -> bool {
        let addr = extent.dirty.addr;
        let segment = addr.and_then(|addr| self.layout.segment_of(addr.sector()));
        segment.is_some_and(|segment| {
            self.generations[segment as usize] != Some(extent.generation)
                && !canary::active!("layers_outlive_their_bytes")
        })
    }
}

/// One layer that equals `layers`, or one between two points.
pub(super) fn merge_all(layers: Vec<ReplayedLayer>, points: &[Lsn]) -> Vec<ReplayedLayer> {
    let mut merged: Vec<ReplayedLayer> = Vec::new();
    for layer in layers {
        match merged.last_mut() {
            Some(below) if !is_point_between(points, below.last, layer.last) => {
                below.merge(&layer);
            }
            _ => merged.push(layer),
        }
    }
    merged
}

/// Whether a layer that ends at `below` and the next one, which ends at `last`, have a point between them.
fn is_point_between(points: &[Lsn], below: Lsn, last: Lsn) -> bool {
    points.iter().any(|point| (below..last).contains(point))
}

/// Of the snapshots that the log keeps those that can still be told: nothing was merged over their points. They
/// are dropped if another host has gone on without this tail.
fn snapshots_of(replay: &TailReplay, layers: &[ReplayedLayer]) -> Vec<SnapshotRecord> {
    let kept = replay.snapshots.iter().filter(|snapshot| {
        // One whose record is durable and whose commits are not was never acknowledged.
        let is_reached = snapshot.lsn <= replay.newest;
        let is_whole = is_reached && !is_spanned(layers, replay.stored, snapshot.lsn);
        if is_reached && !is_whole {
            tracing::error!(
                snapshot = snapshot.name,
                "what the log kept of it for the store was written over: there is no such snapshot"
            );
        }
        is_whole && !replay.rescue
    });
    kept.cloned().collect()
}

/// Whether commits up to the point are in one layer with later ones. Of what is stored no layer says anything.
fn is_spanned(layers: &[ReplayedLayer], stored: Lsn, point: Lsn) -> bool {
    let at = layers.partition_point(|layer| layer.last < point);
    let below = at
        .checked_sub(1)
        .map_or(Lsn::ZERO, |below| layers[below].last);
    let reached = below.max(stored);
    reached < point && layers.get(at).is_some_and(|layer| layer.last > point)
}

/// The tail that goes on with these layers.
pub(super) fn finish(replay: TailReplay, layers: Vec<ReplayedLayer>) -> RecoveredTail {
    let snapshots = snapshots_of(&replay, &layers);
    let frozen = layers
        .into_iter()
        .map(|layer| FrozenLayer::new(layer.map.convert(|extent| extent.dirty), layer.last));
    RecoveredTail {
        layers: frozen.collect(),
        name: replay.name,
        stored: replay.stored,
        root: replay.root,
        rescue: replay.rescue,
        unreported_loss: replay.unreported_loss,
        size: replay.size,
        is_unbroken: replay.is_unbroken && !replay.rescue,
        newest: replay.newest,
        framed: replay.framed.unwrap_or(replay.newest),
        snapshots,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::layers::LogAddr;

    const SLICE_BYTES: u64 = 64 << 10;

    /// A commit of some blocks among the first `blocks`, now and then of zeroes.
    fn commit(lsn: u64, blocks: u64, random: u64) -> Entry {
        let start = random % blocks;
        let is_zeroes = (random >> 32).is_multiple_of(8);
        Entry {
            lsn: Lsn(lsn),
            span: Span::new(start * 8, 8 * (1 + (random >> 40) % 3)),
            addr: LogAddr::new(if is_zeroes { 0 } else { lsn * 64 }),
            generation: 1,
        }
    }

    /// Last commits and extents of the layers that come of taking each commit by itself.
    fn cut_one_by_one(layering: &Layering<'_>, commits: &[Entry], points: &[Lsn]) -> Vec<String> {
        let mut layers = vec![ReplayedLayer::default()];
        for commit in commits {
            let top = layers.last_mut().expect("never empty");
            top.insert(commit);
            top.last = commit.lsn;
            let is_slice = top.bytes >= SLICE_BYTES && !layering.may_continue(commit);
            if is_slice || points.contains(&commit.lsn) {
                layers.push(ReplayedLayer::default());
            }
        }
        describe(&layers)
    }

    fn describe(layers: &[ReplayedLayer]) -> Vec<String> {
        let layers = layers.iter().filter(|layer| !layer.map.is_empty());
        let describe = |layer: &ReplayedLayer| {
            let extents: Vec<_> = layer.map.iter().collect();
            format!("{} {} {extents:?}", layer.last.0, layer.bytes)
        };
        layers.map(describe).collect()
    }

    #[test]
    fn commits_become_the_same_layers_as_if_each_was_taken_by_itself() {
        let layout = Layout::new(8 << 20, 64 << 10).expect("valid");
        let layering = Layering {
            layout: &layout,
            slice_bytes: SLICE_BYTES,
            generations: &[],
        };
        let mut random = 1_u64;
        let mut next = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            random >> 12
        };
        // Few blocks are written again and again, of many hardly any twice.
        for blocks in [4, 40, 4000] {
            for count in [0, 1, 7, 300] {
                let commits: Vec<Entry> =
                    (1..=count).map(|lsn| commit(lsn, blocks, next())).collect();
                for points in [vec![], vec![Lsn(5), Lsn(6), Lsn(200)]] {
                    let found = describe(&layering.cut(&commits, &points));
                    let expected = cut_one_by_one(&layering, &commits, &points);
                    assert_eq!(found, expected, "{count} commits to {blocks} blocks");
                }
            }
        }
    }
}
