//! The extent map: which sectors' newest content lives where.
//!
//! [`ExtentMap`] is the ordered map of one layer; [`layers::Layers`] stacks them: a mutable top,
//! frozen layers on their way to the store, clean log extents that the store has too, and below
//! them (owned by `index`) the store itself.

pub(crate) mod delta;
pub(crate) mod index;
mod invariants;
pub(crate) mod layers;
mod sorted;

use crate::units::Span;
use sorted::{Extent, Position, SortedExtents};

/// A value that stands for a run of sectors and can be cut.
pub(crate) trait SectorRun: Clone {
    /// The value of what follows the first `sectors` of the run.
    #[must_use]
    fn skip(&self, sectors: u64) -> Self;
}

/// Non-overlapping extents in address order.
///
/// Memory: 16 bytes plus the value per extent, in leaves that are between half and wholly full where extents
/// only came (measured in `tests/memory.rs`), and a quarter full at least, by and large, where many went again.
#[derive(Clone, Debug)]
pub(crate) struct ExtentMap<V> {
    extents: SortedExtents<V>,
}

/// What one search says of a span.
pub(crate) enum Coverage<'a, V> {
    /// Nothing is in it.
    Nothing,
    /// All of it is in one extent, `skipped` sectors behind its start.
    Whole { value: &'a V, skipped: u64 },
    /// Anything else.
    Parts,
}

impl<V> Default for ExtentMap<V> {
    fn default() -> Self {
        ExtentMap {
            extents: SortedExtents::default(),
        }
    }
}

fn span_of<V>(extent: &Extent<V>) -> Span {
    Span {
        start: extent.start,
        end: extent.end,
    }
}

impl<V: SectorRun> ExtentMap<V> {
    pub(crate) fn len(&self) -> usize {
        self.extents.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.extents.len() == 0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Span, &V)> {
        let extents = self.extents.iter();
        extents.map(|extent| (span_of(extent), &extent.value))
    }

    /// The same extents, standing for something else. Takes no search.
    pub(crate) fn convert<W>(self, to: impl Fn(V) -> W) -> ExtentMap<W> {
        ExtentMap {
            extents: self.extents.convert(&to),
        }
    }

    /// How many extents begin in `span`, counted up to `most`.
    pub(crate) fn count_up_to(&self, span: Span, most: usize) -> usize {
        let from = self.iter_from(span.start).take(most);
        from.take_while(|(found, _)| found.start < span.end).count()
    }

    /// The extents that begin at or after a sector.
    pub(crate) fn iter_from(&self, from: u64) -> impl Iterator<Item = (Span, &V)> {
        let extents = self.extents.iter_at(self.extents.first_from(from));
        extents.map(|extent| (span_of(extent), &extent.value))
    }

    /// Looks for `span`, which is not empty, with one search: that is all that most requests need.
    #[inline]
    pub(crate) fn find(&self, span: Span) -> Coverage<'_, V> {
        debug_assert!(!span.is_empty());
        // Extents do not overlap: the last that begins before the span's end decides.
        let Some(at) = self.extents.last_before(span.end) else {
            return Coverage::Nothing;
        };
        let extent = self.extents.get(at);
        if extent.end <= span.start {
            return Coverage::Nothing;
        }
        if extent.start <= span.start && extent.end >= span.end {
            return Coverage::Whole {
                value: &extent.value,
                skipped: span.start - extent.start,
            };
        }
        Coverage::Parts
    }

    /// Puts `value` at `span`. What stood there goes to `old`, cut to size.
    pub(crate) fn insert(&mut self, span: Span, value: V, mut old: impl FnMut(Span, V)) {
        debug_assert!(!span.is_empty());
        // Extents do not overlap: the last that begins before the span's end says whether anything
        // is in the span, and whether it is just that. A hot disk writes again what was written
        // so before, or what was not written for a while; both take no second look.
        let mut before = self.extents.last_before(span.end);
        if let Some(at) = before {
            let found = self.extents.get_mut(at);
            if found.start == span.start && found.end == span.end {
                let replaced = std::mem::replace(&mut found.value, value);
                return old(span, replaced);
            }
            if found.end > span.start {
                self.remove(span, old);
                before = self.extents.last_before(span.start);
            }
        }
        self.insert_behind(before, span.start, span.end, value);
    }

    fn insert_behind(&mut self, before: Option<Position>, start: u64, end: u64, value: V) {
        let extent = Extent { start, end, value };
        self.extents.insert_behind(before, extent);
    }

    /// Takes everything out of `span`; what stood there goes to `old`, cut to size.
    pub(crate) fn remove(&mut self, span: Span, mut old: impl FnMut(Span, V)) {
        if span.is_empty() {
            return;
        }
        // An extent that begins before the span: cut off its tail.
        if let Some(at) = self.extents.last_before(span.start) {
            let extent = self.extents.get_mut(at);
            let (start, end) = (extent.start, extent.end);
            if end > span.start {
                let value = extent.value.clone();
                if !canary::active!("overlapping_extent") {
                    extent.end = span.start;
                }
                let cut = Span {
                    start: span.start,
                    end: end.min(span.end),
                };
                old(cut, value.skip(span.start - start));
                if end > span.end {
                    let value = value.skip(span.end - start);
                    self.insert_behind(Some(at), span.end, end, value);
                }
            }
        }
        while let Some(at) = self.extents.first_from(span.start)
            && self.extents.get(at).start < span.end
        {
            let Extent { start, end, value } = self.extents.remove(at);
            if end > span.end {
                let before = self.extents.last_before(span.end);
                self.insert_behind(before, span.end, end, value.skip(span.end - start));
            }
            let cut = Span {
                start,
                end: end.min(span.end),
            };
            old(cut, value);
        }
    }

    /// Walks `span` in order, gaps included.
    #[inline]
    pub(crate) fn walk(&self, span: Span, mut visit: impl FnMut(Span, Option<&V>)) {
        if span.is_empty() {
            return;
        }
        match self.find(span) {
            Coverage::Nothing => visit(span, None),
            Coverage::Whole { value, skipped: 0 } => visit(span, Some(value)),
            Coverage::Whole { value, skipped } => visit(span, Some(&value.skip(skipped))),
            Coverage::Parts => self.walk_parts(span, visit),
        }
    }

    fn walk_parts(&self, span: Span, mut visit: impl FnMut(Span, Option<&V>)) {
        let mut at = span.start;
        let before = self.extents.last_before(span.start);
        let from = before.or_else(|| self.extents.first_from(span.start));
        for extent in self.extents.iter_at(from) {
            if extent.start >= span.end {
                break;
            }
            let part = span_of(extent).intersect(span);
            if part.is_empty() {
                continue;
            }
            if at < part.start {
                visit(
                    Span {
                        start: at,
                        end: part.start,
                    },
                    None,
                );
            }
            match part.start - extent.start {
                0 => visit(part, Some(&extent.value)),
                skipped => visit(part, Some(&extent.value.skip(skipped))),
            }
            at = part.end;
        }
        if at < span.end {
            visit(
                Span {
                    start: at,
                    end: span.end,
                },
                None,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::{ExtentMap, SectorRun};
    use crate::units::Span;

    #[derive(Clone, Debug, PartialEq)]
    struct Run(u64);
    impl SectorRun for Run {
        fn skip(&self, sectors: u64) -> Run {
            Run(self.0 + sectors)
        }
    }

    #[derive(Clone, Debug)]
    enum Change {
        Insert(Span, u64),
        Remove(Span),
    }

    fn change() -> impl Strategy<Value = Change> {
        let span = (0_u64..48, 1_u64..16).prop_map(|(start, len)| Span::new(start, len));
        prop_oneof![
            3 => (span.clone(), 0_u64..1000).prop_map(|(s, v)| Change::Insert(s, v * 100)),
            1 => span.prop_map(Change::Remove),
        ]
    }

    proptest! {
        #[test]
        fn the_map_equals_a_map_of_single_sectors(
            changes in prop::collection::vec(change(), 1..40),
        ) {
            let mut map = ExtentMap::default();
            let mut model: BTreeMap<u64, u64> = BTreeMap::new();
            for change in changes {
                let (span, value) = match change {
                    Change::Insert(span, value) => (span, Some(value)),
                    Change::Remove(span) => (span, None),
                };
                let mut gone = BTreeMap::new();
                let mut old = |part: Span, run: Run| {
                    for sector in part.start..part.end {
                        gone.insert(sector, run.0 + sector - part.start);
                    }
                };
                match value {
                    Some(value) => map.insert(span, Run(value), &mut old),
                    None => map.remove(span, &mut old),
                }
                let mut expected = BTreeMap::new();
                for sector in span.start..span.end {
                    if let Some(old) = model.remove(&sector) {
                        expected.insert(sector, old);
                    }
                    if let Some(value) = value {
                        model.insert(sector, value + sector - span.start);
                    }
                }
                prop_assert_eq!(&gone, &expected);
                let mut seen = BTreeMap::new();
                let mut at = 3;
                map.walk(Span { start: 3, end: 60 }, |part, run| {
                    assert_eq!(part.start, at);
                    at = part.end;
                    if let Some(run) = run {
                        for sector in part.start..part.end {
                            seen.insert(sector, run.0 + sector - part.start);
                        }
                    }
                });
                prop_assert_eq!(at, 60);
                let want: BTreeMap<_, _> =
                    model.range(3..60).map(|(k, v)| (*k, *v)).collect();
                prop_assert_eq!(seen, want);
            }
        }
    }
}
