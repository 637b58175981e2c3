//! What to write anew. Pure: from what a survey found to packs and pages.

use std::collections::{BTreeMap, BTreeSet};

use crate::object::ObjectId;
use crate::options::CompactOptions;

/// What a pack takes beside its chunks: it would be no smaller if it were written anew.
const PACK_BYTES: u64 = 512;

/// What a survey knows of a pack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackUse {
    /// Stored bytes that the volume's pages reach, with their entries in footers.
    pub(super) live: u64,
    /// Sectors of the volume that pages have from it.
    pub(super) sectors: u64,
    /// The size of the object; none: not known.
    pub(super) size: Option<u64>,
    /// Content of a volume from which this one was forked is in it, which keeps it as well.
    pub(super) is_shared: bool,
    /// Not all of it is in pages yet.
    pub(super) is_unfolded: bool,
}

impl PackUse {
    fn garbage(&self) -> u64 {
        self.size.map_or(0, |size| size.saturating_sub(self.live))
    }

    /// Less than so many hundredths of it are alive.
    pub(super) fn is_mostly_garbage(&self, live_percent: u64) -> bool {
        let most = u128::from(self.size.unwrap_or(0)) * u128::from(live_percent);
        u128::from(self.live + PACK_BYTES) * 100 < most
    }
}

/// What a survey found.
#[derive(Debug, Default)]
pub(crate) struct SurveyResult {
    pub(super) packs: BTreeMap<ObjectId, PackUse>,
    /// Pages that would be read with many requests, and are not written to.
    pub(super) scattered: BTreeSet<u64>,
    /// Pages that were read.
    pub(super) pages: u64,
    /// Other pages are scattered, and may be written to yet.
    pub(super) is_warm: bool,
}

impl SurveyResult {
    /// Stored bytes that pages reach.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.packs.values().map(|pack| pack.live).sum()
    }

    /// Bytes of the packs that pages name, which these pages do not reach; of what forks share not known.
    pub(crate) fn garbage_bytes(&self) -> u64 {
        let own = self.packs.values().filter(|pack| !pack.is_shared);
        own.map(PackUse::garbage).sum()
    }
}

/// What is to be written anew.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    /// Packs of which everything that is alive goes elsewhere.
    pub(super) packs: BTreeSet<ObjectId>,
    /// Pages of which the scattered windows go into one place.
    pub(super) pages: BTreeSet<u64>,
    /// Packs that are left alone, for something of them cannot be read.
    pub(super) unreadable: BTreeSet<ObjectId>,
    /// There was more than one pass takes.
    pub(super) has_more: bool,
}

impl Selection {
    pub(super) fn is_empty(&self) -> bool {
        self.packs.is_empty() && self.pages.is_empty()
    }
}

/// Packs with so much garbage that what is alive of them may be written anew.
pub(super) fn candidates(
    options: &CompactOptions,
    surveyed: &SurveyResult,
    unreadable: &BTreeSet<ObjectId>,
) -> BTreeSet<ObjectId> {
    let is_candidate = |pack: &PackUse| {
        !pack.is_shared && !pack.is_unfolded && pack.is_mostly_garbage(options.live_percent)
    };
    let packs = surveyed.packs.iter();
    packs
        .filter(|(id, pack)| is_candidate(pack) && !unreadable.contains(id))
        .map(|(id, _)| *id)
        .collect()
}

/// Chooses of the candidates by how much garbage goes for a byte that is copied, up to a pass's bytes, and then pages.
pub(super) fn choose(
    options: &CompactOptions,
    surveyed: &SurveyResult,
    candidates: &BTreeSet<ObjectId>,
    unreadable: &BTreeSet<ObjectId>,
) -> Selection {
    let mut chosen = Selection {
        unreadable: unreadable.clone(),
        ..Selection::default()
    };
    let packs = surveyed.packs.iter();
    let mut candidates: Vec<_> = packs.filter(|(id, _)| candidates.contains(id)).collect();
    // Garbage per live byte, the most first, without a division.
    candidates.sort_by(|(_, one), (_, other)| {
        let of =
            |pack: &PackUse, by: &PackUse| u128::from(pack.garbage()) * u128::from(by.live + 1);
        of(other, one).cmp(&of(one, other))
    });
    let mut bytes = 0;
    for (id, pack) in candidates {
        if bytes >= options.pass_bytes {
            chosen.has_more = true;
            break;
        }
        bytes += pack.live;
        chosen.packs.insert(*id);
    }
    if !chosen.has_more {
        chosen.pages = surveyed.scattered.clone();
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> ObjectId {
        ObjectId { session: 1, number }
    }

    fn surveyed(packs: &[(u64, u64)]) -> SurveyResult {
        let of = |(nth, (live, size)): (usize, &(u64, u64))| {
            let pack = PackUse {
                live: *live,
                size: Some(*size),
                ..PackUse::default()
            };
            (id(nth as u64), pack)
        };
        SurveyResult {
            packs: packs.iter().enumerate().map(of).collect(),
            ..SurveyResult::default()
        }
    }

    fn choose_of_all(
        options: &CompactOptions,
        surveyed: &SurveyResult,
        unreadable: &BTreeSet<ObjectId>,
    ) -> Selection {
        let all = candidates(options, surveyed, unreadable);
        choose(options, surveyed, &all, unreadable)
    }

    fn options(pass_bytes: u64) -> CompactOptions {
        CompactOptions {
            live_percent: 50,
            pass_bytes,
            ..CompactOptions::default()
        }
    }

    #[test]
    fn packs_with_the_most_garbage_for_a_byte_go_first_and_those_that_are_mostly_alive_stay() {
        let found = surveyed(&[
            (50_000, 100_000),
            (49_000, 100_000),
            (1000, 1_000_000),
            (90, 1000),
            (0, 2000),
        ]);
        let all = choose_of_all(&options(1 << 30), &found, &BTreeSet::new());
        assert!(all.packs.iter().eq(&[id(1), id(2), id(4)]), "{all:?}");
        assert!(!all.has_more);
        let few = choose_of_all(&options(1), &found, &BTreeSet::new());
        assert!(few.packs.iter().eq(&[id(2), id(4)]), "{few:?}");
        assert!(few.has_more);
    }

    #[test]
    fn what_cannot_be_read_what_forks_share_and_what_is_not_folded_stays() {
        let mut found = surveyed(&[(1, 10_000), (1, 10_000), (1, 10_000), (1, 10_000)]);
        found.packs.get_mut(&id(1)).expect("there").is_shared = true;
        found.packs.get_mut(&id(2)).expect("there").is_unfolded = true;
        found.packs.get_mut(&id(3)).expect("there").size = None;
        let chosen = choose_of_all(&options(1 << 30), &found, &[id(0)].into());
        assert!(chosen.is_empty(), "{chosen:?}");
    }
}
