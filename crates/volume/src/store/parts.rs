//! Lists of roots a part at a time: however many there are, no more than a part of them is in memory.
//!
//! Reads only. Names are told in their own order, which is not that of keys: `a-b/root` stands before `a/root`. It must
//! tell each name once that stands from the first part to the last, whatever comes and goes meanwhile.

use std::collections::{BTreeSet, VecDeque};

use crate::driver::{StoreOp, StoreReply};
use crate::engine::Engine;
use crate::error::OpenError;
use crate::jobs::join_all;
use crate::object::{ROOT_PREFIX, SNAPSHOT_SIGN, snapshots_of};
use crate::store::flow::upload_state::KnownRoot;
use crate::store::objects::{store_error, store_with_retry};
use crate::store::roots::{READS_AT_ONCE, read_any_root};

/// Keys that are listed at once: what a store answers to one request.
pub(in crate::store) const KEYS_AT_ONCE: usize = 1000;

/// Roots that are looked at for one part, if it is not larger: most may be tombstones.
const LOOKED_AT_MAX: usize = 1024;

/// Which part of a list is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPlace {
    /// What the part before said as `next`, or any name; none: from the first on.
    pub after: Option<String>,
    /// So many at most; one at least.
    pub limit: usize,
}

/// A part of a list, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPart<T> {
    /// What it has: perhaps less than was asked for, also where there are more.
    pub items: Vec<T>,
    /// Behind what the next part begins; none: this is the last one.
    pub next: Option<String>,
}

/// A part that is being made.
pub(in crate::store) struct PartBuilder<T> {
    part: ListPart<T>,
    limit: usize,
    looked_at: usize,
    last: Option<String>,
}

impl<T> PartBuilder<T> {
    pub(in crate::store) fn new(limit: usize) -> PartBuilder<T> {
        PartBuilder {
            part: ListPart {
                items: Vec::new(),
                next: None,
            },
            limit: limit.max(1),
            looked_at: 0,
            last: None,
        }
    }

    /// How many roots are worth reading: one more than fit says that there is a next part.
    pub(in crate::store) fn wanted(&self) -> usize {
        self.limit + 1 - self.part.items.len()
    }

    /// Takes what stands at the next place, or that nothing of the list does; false: the part is complete.
    pub(in crate::store) fn add(&mut self, place: &str, item: Option<T>) -> bool {
        match item {
            Some(_) if self.part.items.len() == self.limit => {
                self.part.next = match canary::active!("a_list_goes_on_behind_what_did_not_fit") {
                    true => Some(place.to_owned()),
                    false => self.last.take(),
                };
                return false;
            }
            item => self.part.items.extend(item),
        }
        self.pass(place);
        self.looked_at += 1;
        if self.looked_at >= LOOKED_AT_MAX.max(self.limit + 1) {
            self.part.next = self.last.take();
            return false;
        }
        true
    }

    /// Nothing more comes up to this place.
    pub(in crate::store) fn pass(&mut self, place: &str) {
        self.last = Some(place.to_owned());
    }

    pub(in crate::store) fn finish(self) -> ListPart<T> {
        self.part
    }
}

/// The first keys below a prefix that are behind a place, at most [`KEYS_AT_ONCE`].
pub(in crate::store) async fn list_part(
    engine: &Engine,
    prefix: &str,
    after: &str,
) -> Result<Vec<String>, OpenError> {
    let op = StoreOp::ListPart {
        prefix: prefix.to_owned(),
        after: after.to_owned(),
        limit: KEYS_AT_ONCE,
    };
    match store_with_retry(engine, op).await {
        Ok(StoreReply::Keys(keys)) => Ok(keys.into_iter().map(|(key, _)| key).collect()),
        Ok(_) => Err(OpenError::Store("the store's list does not fit".into())),
        Err(error) => Err(store_error("list", prefix, &error)),
    }
}

/// How far a walk through names has got.
struct Names {
    /// What their keys begin with.
    prefix: String,
    /// What was told up to here.
    after: String,
    /// Behind this key goes the next list; empty: from the first on.
    place: String,
    is_done: bool,
}

impl Names {
    fn new(prefix: String, after: Option<&str>) -> Names {
        Names {
            place: after.map_or(String::new(), |after| format!("{prefix}{after}")),
            after: after.unwrap_or_default().to_owned(),
            prefix,
            is_done: false,
        }
    }

    /// The next names in order, of the keys that stand behind `place`: at most `limit`, fewer are the last ones. Of some
    /// it is not known whether there is a root.
    fn take(&mut self, keys: &[String], limit: usize) -> Vec<String> {
        self.is_done = keys.len() < limit;
        let below = |key: &'_ str| key.strip_prefix(&self.prefix).map(str::to_owned);
        let mut names: BTreeSet<String> = keys
            .iter()
            .filter_map(|key| below(key)?.strip_suffix("/root").map(str::to_owned))
            .collect();
        if let Some(last) = keys.last().filter(|_| !self.is_done) {
            let last_name = below(last).unwrap_or_default();
            names.extend(overtaken(last_name.split('/').next().unwrap_or_default()));
            self.place.clone_from(last);
        }
        names.retain(|name| *name > self.after);
        if let Some(last) = names.last() {
            // Everything behind this name has its key behind this place.
            self.place = format!("{}{last}", self.prefix);
            self.after.clone_from(last);
        }
        names.into_iter().collect()
    }
}

/// Names that do not stand behind this one, and whose roots' keys may stand behind a key of it: those that it goes on
/// from with a character that is less than a slash; and itself, if that key is of something else.
fn overtaken(name: &str) -> impl Iterator<Item = String> + '_ {
    let ends = name.bytes().enumerate().skip(1);
    let ends = ends.filter(|(_, byte)| *byte < b'/').map(|(end, _)| end);
    let ends = ends.chain([name.len()]);
    ends.filter_map(|end| name.get(..end).map(str::to_owned))
}

/// A walk through roots in the order of their names.
pub(in crate::store) struct RootWalk<'a> {
    engine: &'a Engine,
    names: Names,
    /// Stands before each of these names in the name of its root.
    volume: String,
    waiting: VecDeque<String>,
}

impl<'a> RootWalk<'a> {
    /// Through volumes, behind this name.
    pub(in crate::store) fn of_volumes(engine: &'a Engine, after: Option<&str>) -> RootWalk<'a> {
        RootWalk {
            engine,
            names: Names::new(ROOT_PREFIX.to_owned(), after),
            volume: String::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Through snapshots under the name of a volume, behind this one; an earlier volume of the name may have left some.
    pub(in crate::store) fn of_snapshots(
        engine: &'a Engine,
        volume: &str,
        after: Option<&str>,
    ) -> RootWalk<'a> {
        RootWalk {
            engine,
            names: Names::new(snapshots_of(volume), after),
            volume: format!("{volume}{SNAPSHOT_SIGN}"),
            waiting: VecDeque::new(),
        }
    }

    /// The next roots, tombstones with them: perhaps none at all where there are more; none: that was the last one.
    pub(in crate::store) async fn next(
        &mut self,
        roots_max: usize,
    ) -> Result<Option<Vec<KnownRoot>>, OpenError> {
        let found = self.next_each(roots_max).await?;
        found.map(|found| found.into_iter().collect()).transpose()
    }

    /// The same, with an error of its own for each that cannot be read.
    pub(in crate::store) async fn next_each(
        &mut self,
        roots_max: usize,
    ) -> Result<Option<Vec<Result<KnownRoot, OpenError>>>, OpenError> {
        while self.waiting.is_empty() {
            if self.names.is_done {
                return Ok(None);
            }
            let keys = list_part(self.engine, &self.names.prefix, &self.names.place).await?;
            self.waiting.extend(self.names.take(&keys, KEYS_AT_ONCE));
        }
        let count = roots_max.clamp(1, READS_AT_ONCE).min(self.waiting.len());
        let names: Vec<String> = self.waiting.drain(..count).collect();
        let names: Vec<String> = names
            .iter()
            .map(|name| format!("{}{name}", self.volume))
            .collect();
        let reads = names
            .iter()
            .map(|name| Box::pin(read_any_root(self.engine, name)));
        let found = join_all(reads.collect()).await.into_iter();
        let is_there =
            |read: &Result<KnownRoot, OpenError>| !matches!(read, Err(OpenError::NoSuchVolume(_)));
        Ok(Some(found.filter(is_there).collect()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All names of a walk over these keys, which are listed so many at a time.
    fn walk(keys: &BTreeSet<String>, limit: usize, after: Option<&str>) -> Vec<String> {
        let mut names = Names::new("volumes/".to_owned(), after);
        let (mut told, mut lists) = (Vec::new(), 0);
        while !names.is_done {
            let behind = keys.iter().filter(|key| **key > names.place);
            let listed: Vec<String> = behind.take(limit).cloned().collect();
            let found = names.take(&listed, limit);
            let is_there = |name: &String| keys.contains(&format!("volumes/{name}/root"));
            told.extend(found.into_iter().filter(is_there));
            lists += 1;
            assert!(lists <= 3 * keys.len() + 1, "it goes on");
        }
        told
    }

    proptest! {
        #[test]
        fn names_are_told_once_and_in_order_however_few_keys_are_listed_at_a_time(
            names in proptest::collection::btree_set("[ab][ab.-]{0,4}", 0..40),
            foreign in proptest::collection::btree_set("[ab][.-]{0,2}/[!r]x?", 0..4),
            limit in 1_usize..12,
            after in proptest::option::of("[ab][ab.-]{0,4}"),
        ) {
            let keys = names.iter().map(|name| format!("volumes/{name}/root"));
            let foreign = foreign.iter().map(|key| format!("volumes/{key}"));
            let keys: BTreeSet<String> = keys.chain(foreign).collect();
            let is_behind = |name: &&String| after.as_ref().is_none_or(|after| *name > after);
            let expected: Vec<String> = names.iter().filter(is_behind).cloned().collect();
            prop_assert_eq!(walk(&keys, limit, after.as_deref()), expected);
        }
    }

    #[test]
    fn a_part_says_that_there_are_more_only_if_there_are() {
        let part = |count: usize, limit| {
            let mut part = PartBuilder::new(limit);
            for number in 0..count {
                if !part.add(&format!("v{number}"), (number != 1).then_some(number)) {
                    break;
                }
            }
            part.finish()
        };
        assert_eq!((part(3, 2).items, part(3, 2).next), (vec![0, 2], None));
        let cut = part(4, 2);
        assert_eq!((cut.items, cut.next.as_deref()), (vec![0, 2], Some("v2")));
        assert_eq!(part(2, 1).next, None, "what is behind it is no item");
        assert_eq!(part(3, 1).next.as_deref(), Some("v1"));
    }
}
