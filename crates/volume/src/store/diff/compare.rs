//! Whether two sides of a diff hold the same, sector by sector, and what became of those that do not.
//!
//! Pure: it reads nothing. Two sectors are the same only if they are zeroes on both sides, or the same sector of the same
//! chunk: one commit of one volume at one place, with one checksum, in whatever pack a compaction put it. An LSN of a volume
//! is given out once, so that is proof. Bytes that were written again are told as changed, also where they are equal, and so
//! is what a compaction cut out of a chunk.

use std::sync::Arc;

use crate::map::delta::Delta;
use crate::map::index::{DeltaMap, walk_layers};
use crate::object::pack::{Chunk, Codec};
use crate::object::page::Page;
use crate::units::{Lsn, Span, VolumeId};

/// Deltas over base pages, the oldest layer first; they change no more.
pub(super) type Layers = Vec<Arc<DeltaMap>>;

/// What the bytes of some sectors are a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredAt {
    origin: VolumeId,
    checksum: u64,
    stored: u32,
    codec: Codec,
    lsn: Lsn,
    /// The sector of the volume at which the whole chunk would begin.
    begins: u64,
}

/// What some sectors of one side are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Zeroes,
    Stored(StoredAt),
    /// What the base pages say, which are not looked at.
    Base,
    /// Of a pack whose footer cannot be read.
    Lost,
}

/// A run of sectors that hold one thing.
pub(super) type Run = (Span, Content);

/// Sectors that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChangedSpan {
    pub(super) span: Span,
    /// The newer side reads as zeroes.
    pub(super) is_zeroed: bool,
}

fn stored_at(part: Span, chunk: &Chunk, skip: u32) -> Content {
    Content::Stored(StoredAt {
        origin: chunk.origin,
        checksum: chunk.checksum,
        stored: chunk.stored,
        codec: chunk.codec,
        lsn: chunk.lsn,
        begins: part.start.wrapping_sub(u64::from(skip)),
    })
}

fn of_delta(part: Span, delta: &Delta) -> Content {
    match delta {
        Delta::Part(found) => stored_at(part, &found.chunk(part.start), found.skip),
        Delta::Zeroes => Content::Zeroes,
        Delta::Lost => Content::Lost,
    }
}

/// What the deltas say of a span, in order, each sector once.
fn delta_runs(layers: &Layers, span: Span) -> Vec<Run> {
    let mut runs = Vec::new();
    walk_layers(layers, span, &mut |part, delta| {
        runs.push((
            part,
            delta.map_or(Content::Base, |delta| of_delta(part, delta)),
        ));
    });
    runs
}

/// What deltas and the page below them, if there is one, say of a span within the page.
pub(super) fn page_runs(layers: &Layers, page: Option<&Page>, span: Span) -> Vec<Run> {
    let mut runs = Vec::new();
    walk_layers(layers, span, &mut |part, delta| match (delta, page) {
        (Some(delta), _) => runs.push((part, of_delta(part, delta))),
        (None, None) => runs.push((part, Content::Zeroes)),
        (None, Some(page)) => page.walk(part, |part, found| {
            let content = found.map_or(Content::Zeroes, |(chunk, skip)| {
                stored_at(part, chunk, skip)
            });
            runs.push((part, content));
        }),
    });
    runs
}

/// Visits where two descriptions of one span differ, with what both say; true ends it.
fn each_difference(
    older: &[Run],
    newer: &[Run],
    mut visit: impl FnMut(Span, Content, Content) -> bool,
) {
    let (mut one, mut other) = (0, 0);
    while let (Some((older_span, before)), Some((newer_span, after))) =
        (older.get(one), newer.get(other))
    {
        let part = older_span.intersect(*newer_span);
        if !part.is_empty() && before != after && visit(part, *before, *after) {
            return;
        }
        if older_span.end <= newer_span.end {
            one += 1;
        }
        if newer_span.end <= older_span.end {
            other += 1;
        }
    }
}

/// Whether deltas alone leave open that both sides hold the same, where their base pages are the same.
pub(super) fn deltas_differ(older: &Layers, newer: &Layers, span: Span) -> bool {
    if older.is_empty() && newer.is_empty() {
        return false;
    }
    let mut differ = false;
    each_difference(
        &delta_runs(older, span),
        &delta_runs(newer, span),
        |_, _, _| {
            differ = true;
            true
        },
    );
    differ
}

/// Whether something of the base pages is to be seen below the deltas.
pub(super) fn needs_base(layers: &Layers, span: Span) -> bool {
    let mut needed = false;
    walk_layers(layers, span, &mut |_, delta| needed |= delta.is_none());
    needed
}

/// Appends what differs, put together where it is of one kind. The first sectors of which one side is not known are
/// the error.
pub(super) fn compare(
    older: &[Run],
    newer: &[Run],
    changed: &mut Vec<ChangedSpan>,
) -> Result<(), Span> {
    let mut unknown = None;
    each_difference(older, newer, |part, before, after| {
        let is_known = |content| !matches!(content, Content::Lost | Content::Base);
        if !is_known(before) || !is_known(after) {
            unknown = Some(part);
            return true;
        }
        push(changed, part, after == Content::Zeroes);
        false
    });
    match unknown {
        None => Ok(()),
        Some(part) => Err(part),
    }
}

/// Appends a span behind those that are there.
pub(super) fn push(changed: &mut Vec<ChangedSpan>, span: Span, is_zeroed: bool) {
    match changed.last_mut() {
        Some(last) if last.span.end == span.start && last.is_zeroed == is_zeroed => {
            last.span.end = span.end;
        }
        _ => changed.push(ChangedSpan { span, is_zeroed }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(number: u64, begins: u64) -> Content {
        Content::Stored(StoredAt {
            origin: VolumeId([1; 16]),
            checksum: number,
            stored: 100,
            codec: Codec::Plain,
            lsn: Lsn(3),
            begins,
        })
    }

    fn changes(older: &[Run], newer: &[Run]) -> Vec<(u64, u64, bool)> {
        let mut changed = Vec::new();
        compare(older, newer, &mut changed).expect("all is known");
        let plain = |it: &ChangedSpan| (it.span.start, it.span.sectors(), it.is_zeroed);
        changed.iter().map(plain).collect()
    }

    #[test]
    fn the_same_bytes_cut_differently_are_the_same_and_another_place_in_them_is_not() {
        let whole = [(Span::new(0, 16), stored(1, 0))];
        let cut = [
            (Span::new(0, 3), stored(1, 0)),
            (Span::new(3, 13), stored(1, 0)),
        ];
        assert_eq!(changes(&whole, &cut), []);
        let moved = [
            (Span::new(0, 3), stored(1, 0)),
            (Span::new(3, 13), stored(1, 3)),
        ];
        assert_eq!(changes(&whole, &moved), [(3, 13, false)]);
    }

    #[test]
    fn what_differs_is_put_together_by_kind_and_zeroes_of_any_cause_are_the_same() {
        let older = [
            (Span::new(0, 4), Content::Zeroes),
            (Span::new(4, 4), stored(1, 4)),
            (Span::new(8, 8), stored(2, 8)),
        ];
        let newer = [
            (Span::new(0, 2), Content::Zeroes),
            (Span::new(2, 4), stored(3, 2)),
            (Span::new(6, 2), stored(4, 6)),
            (Span::new(8, 3), Content::Zeroes),
            (Span::new(11, 5), Content::Zeroes),
        ];
        assert_eq!(changes(&older, &newer), [(2, 6, false), (8, 8, true)]);
    }

    #[test]
    fn sectors_that_are_lost_on_one_side_are_never_called_the_same_nor_changed() {
        let lost = [(Span::new(0, 8), Content::Lost)];
        let zeroes = [(Span::new(0, 8), Content::Zeroes)];
        let mut changed = Vec::new();
        assert_eq!(compare(&lost, &zeroes, &mut changed), Err(Span::new(0, 8)));
        assert_eq!(compare(&zeroes, &lost, &mut changed), Err(Span::new(0, 8)));
    }
}
