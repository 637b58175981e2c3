//! The extent map: which sectors' newest content lives where.
//!
//! [`ExtentMap`] is the ordered map of one layer; [`layers::Layers`] stacks them: a mutable top,
//! frozen layers on their way to the store, clean log extents that the store has too, and below
//! them (owned by `index`) the store itself.

pub(crate) mod index;
mod invariants;
pub(crate) mod layers;

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::units::Span;

/// A value that stands for a run of sectors and can be cut.
pub(crate) trait SectorRun: Clone {
    /// The value of what follows the first `sectors` of the run.
    #[must_use]
    fn skip(&self, sectors: u64) -> Self;
}

/// Non-overlapping extents in address order.
///
/// Memory: 24 bytes plus the value per extent, in B-tree nodes that are between half and wholly
/// full; measured in `tests/memory.rs`.
#[derive(Clone, Debug)]
pub(crate) struct ExtentMap<V> {
    /// First sector -> (one past the last, value).
    extents: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for ExtentMap<V> {
    fn default() -> Self {
        ExtentMap {
            extents: BTreeMap::new(),
        }
    }
}

impl<V: SectorRun> ExtentMap<V> {
    pub(crate) fn len(&self) -> usize {
        self.extents.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Span, &V)> {
        self.extents
            .iter()
            .map(|(&start, (end, value))| (Span { start, end: *end }, value))
    }

    /// How many extents begin in `span`, counted up to `most`.
    pub(crate) fn count_up_to(&self, span: Span, most: usize) -> usize {
        self.extents.range(span.start..span.end).take(most).count()
    }

    /// The extents that begin at or after a sector.
    pub(crate) fn iter_from(&self, from: u64) -> impl Iterator<Item = (Span, &V)> {
        self.extents
            .range(from..)
            .map(|(&start, (end, value))| (Span { start, end: *end }, value))
    }

    /// Whether there is anything in `span`.
    pub(crate) fn overlaps(&self, span: Span) -> bool {
        let before_end = self.extents.range(..span.end).next_back();
        before_end.is_some_and(|(_, (end, _))| *end > span.start)
    }

    /// Puts `value` at `span`. What stood there goes to `old`, cut to size.
    pub(crate) fn insert(&mut self, span: Span, value: V, mut old: impl FnMut(Span, V)) {
        debug_assert!(!span.is_empty());
        // Extents do not overlap: the last that begins before the span's end says whether anything
        // is in the span, and whether it is just that. A hot disk writes again what was written
        // so before, or what was not written for a while; both take no second look.
        if let Some((&start, same)) = self.extents.range_mut(..span.end).next_back()
            && same.0 > span.start
        {
            if start == span.start && same.0 == span.end {
                let before = std::mem::replace(&mut same.1, value);
                return old(span, before);
            }
            self.remove(span, old);
        }
        self.extents.insert(span.start, (span.end, value));
    }

    /// Takes everything out of `span`; what stood there goes to `old`, cut to size.
    pub(crate) fn remove(&mut self, span: Span, mut old: impl FnMut(Span, V)) {
        if span.is_empty() {
            return;
        }
        // An extent that begins before the span: cut off its tail.
        if let Some((&start, entry)) = self
            .extents
            .range_mut(..span.start)
            .next_back()
            .filter(|(_, e)| e.0 > span.start)
        {
            let (end, value) = entry.clone();
            if !canary::active!("overlapping_extent") {
                entry.0 = span.start;
            }
            let cut = Span {
                start: span.start,
                end: end.min(span.end),
            };
            old(cut, value.skip(span.start - start));
            if end > span.end {
                self.extents
                    .insert(span.end, (end, value.skip(span.end - start)));
            }
        }
        while let Some((&start, _)) = self.extents.range(span.start..span.end).next() {
            let Some((end, value)) = self.extents.remove(&start) else {
                break;
            };
            if end > span.end {
                self.extents
                    .insert(span.end, (end, value.skip(span.end - start)));
            }
            old(
                Span {
                    start,
                    end: end.min(span.end),
                },
                value,
            );
        }
    }

    /// Walks `span` in order, gaps included.
    pub(crate) fn walk(&self, span: Span, mut visit: impl FnMut(Span, Option<&V>)) {
        if span.is_empty() {
            return;
        }
        let mut at = span.start;
        let before = self.extents.range(..=span.start).next_back();
        // Most often all of it is in one extent: one search, and no second one for what follows.
        if let Some((&start, (end, value))) = before
            && *end >= span.end
        {
            return match span.start - start {
                0 => visit(span, Some(value)),
                skipped => visit(span, Some(&value.skip(skipped))),
            };
        }
        let inside = self
            .extents
            .range((Bound::Excluded(span.start), Bound::Excluded(span.end)));
        for (&start, (end, value)) in before.into_iter().chain(inside) {
            let part = Span { start, end: *end }.intersect(span);
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
            if part.start == start {
                visit(part, Some(value));
            } else {
                visit(part, Some(&value.skip(part.start - start)));
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
