//! What the compaction of this host has done, and what it knows of the volumes that are open. It does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::choose::{Selection, SurveyResult};
use super::hold::MaintenanceHold;
use crate::lock::lock;
use crate::object::ObjectId;
use crate::object::page::BlockRef;
use crate::sync::Mutex;
use crate::units::{Lsn, VolumeId};

/// What compaction has done since this process began, and what is left to do in the volumes that are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionReport {
    /// Steps: each wrote one pack, and replaced one root.
    pub steps: u64,
    /// Bytes that were read to be written anew, index included.
    pub read_bytes: u64,
    /// Bytes that were written: packs and index objects.
    pub written_bytes: u64,
    /// Bytes of packs that no page of their volume names any more, because what was alive of them is elsewhere.
    pub freed_bytes: u64,
    /// Chunks that could not be read, and stay where they are.
    pub unreadable_chunks: u64,
    /// Looks at a volume, or steps, that failed.
    pub failures: u64,
    /// Volumes that nobody had open, and that were opened to be compacted.
    pub maintained: u64,
}

/// What is known of a volume's packs, as of its last survey.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeSpace {
    /// Stored bytes that its pages reach.
    pub live_bytes: u64,
    /// Bytes of the packs that its pages name, which they do not reach. What snapshots reach of them is no garbage.
    pub garbage_bytes: u64,
    /// Packs that are to be written anew.
    pub candidates: u64,
    /// Since when there are any, in milliseconds since 1970.
    pub candidates_since_unix_ms: Option<u64>,
    /// When it was surveyed, in milliseconds since 1970.
    pub surveyed_unix_ms: u64,
}

/// A volume with so many pages is surveyed at every second look, one with more less often: a survey may read each page
/// from the store.
const PAGES_PER_INTERVAL: u64 = 4096;

/// The time after a survey in which there is no other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SurveyRest {
    /// By the monotonic clock.
    pub(super) since_ns: u64,
    /// Pages that were surveyed.
    pub(super) pages: u64,
}

impl SurveyRest {
    /// Whether it is still that time, for looks at an interval that may have changed since.
    pub(super) fn goes_on(self, interval_ns: u64, now_ns: u64) -> bool {
        let rest_ns = (interval_ns / PAGES_PER_INTERVAL).saturating_mul(self.pages);
        now_ns < self.since_ns.saturating_add(rest_ns)
    }
}

/// What is remembered of a volume between two looks.
#[derive(Clone, Debug, Default)]
pub(super) struct VolumeFacts {
    /// What was stored at the last look.
    pub(super) visited: Option<Lsn>,
    /// What was stored when the last survey began: what is older is cold.
    pub(super) surveyed: Option<Lsn>,
    pub(super) rest: SurveyRest,
    /// The nodes in which a survey found nothing to do.
    pub(super) settled: Option<Vec<(u64, BlockRef)>>,
    /// Packs of which something could not be read.
    pub(super) unreadable: BTreeSet<ObjectId>,
    /// Of packs with an ancestor's content, whether this volume has written them itself.
    pub(super) is_own: BTreeMap<ObjectId, bool>,
    /// Packs that were chosen and that pages still named when the volume was surveyed last, with their sizes.
    leaving: BTreeMap<ObjectId, u64>,
    space: Option<VolumeSpace>,
}

/// The state of this process's compaction.
#[derive(Debug, Default)]
pub(crate) struct CompactionState {
    report: Mutex<CompactionReport>,
    volumes: Mutex<BTreeMap<VolumeId, VolumeFacts>>,
    /// The closed volume that is open to be compacted.
    pub(crate) maintained: Arc<MaintenanceHold>,
}

impl CompactionState {
    pub(crate) fn report(&self) -> CompactionReport {
        *lock(&self.report)
    }

    /// What the last survey of a volume found; none: there was none.
    pub(crate) fn space(&self, volume: VolumeId) -> Option<VolumeSpace> {
        lock(&self.volumes).get(&volume)?.space
    }

    pub(super) fn facts(&self, volume: VolumeId) -> VolumeFacts {
        let volumes = lock(&self.volumes);
        volumes.get(&volume).cloned().unwrap_or_default()
    }

    fn with(&self, volume: VolumeId, change: impl FnOnce(&mut VolumeFacts)) {
        change(lock(&self.volumes).entry(volume).or_default());
    }

    /// Forgets volumes that are not served any more, except for what could not be read of them: it is not tried again.
    pub(super) fn keep_only(&self, served: &[VolumeId]) {
        lock(&self.volumes).retain(|volume, facts| {
            let is_served = served.contains(volume);
            if !is_served {
                let unreadable = std::mem::take(&mut facts.unreadable);
                *facts = VolumeFacts {
                    unreadable,
                    ..VolumeFacts::default()
                };
            }
            is_served || !facts.unreadable.is_empty()
        });
    }

    pub(super) fn set_visited(&self, volume: VolumeId, stored: Lsn) {
        self.with(volume, |facts| facts.visited = Some(stored));
    }

    pub(super) fn set_surveyed(&self, volume: VolumeId, stored: Lsn, rest: SurveyRest) {
        self.with(volume, |facts| {
            facts.surveyed = Some(stored);
            facts.rest = rest;
        });
    }

    pub(super) fn set_settled(&self, volume: VolumeId, nodes: Option<Vec<(u64, BlockRef)>>) {
        self.with(volume, |facts| facts.settled = nodes);
    }

    pub(super) fn on_surveyed(
        &self,
        volume: VolumeId,
        surveyed: &SurveyResult,
        chosen: &Selection,
        unix_ms: u64,
    ) {
        let mut freed = 0;
        self.with(volume, |facts| {
            let is_named = |pack: &ObjectId| surveyed.packs.contains_key(pack);
            let gone = facts.leaving.extract_if(.., |pack, _| !is_named(pack));
            freed = gone.map(|(_, bytes)| bytes).sum();
            let chosen_now = chosen.packs.iter();
            let sizes =
                chosen_now.filter_map(|pack| Some((*pack, surveyed.packs.get(pack)?.size?)));
            facts.leaving.extend(sizes);
            let before = facts.space.and_then(|space| space.candidates_since_unix_ms);
            let candidates = chosen.packs.len() as u64;
            facts.space = Some(VolumeSpace {
                live_bytes: surveyed.live_bytes(),
                garbage_bytes: surveyed.garbage_bytes(),
                candidates,
                candidates_since_unix_ms: (candidates > 0).then(|| before.unwrap_or(unix_ms)),
                surveyed_unix_ms: unix_ms,
            });
        });
        lock(&self.report).freed_bytes += freed;
    }

    pub(super) fn set_own(&self, volume: VolumeId, pack: ObjectId, is_own: bool) {
        self.with(volume, |facts| {
            facts.is_own.insert(pack, is_own);
        });
    }

    pub(super) fn on_unreadable(&self, volume: VolumeId, pack: ObjectId) {
        lock(&self.report).unreadable_chunks += 1;
        self.with(volume, |facts| {
            facts.unreadable.insert(pack);
        });
    }

    pub(super) fn on_step(&self, read: u64, written: u64) {
        let mut report = lock(&self.report);
        report.steps += 1;
        report.read_bytes += read;
        report.written_bytes += written;
    }

    pub(super) fn on_maintained(&self) {
        lock(&self.report).maintained += 1;
    }

    pub(super) fn on_failure(&self) {
        lock(&self.report).failures += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_survey_of_many_pages_is_followed_by_a_rest_that_the_interval_of_now_decides() {
        const HOUR_NS: u64 = 3600 * 1_000_000_000;
        let rest = SurveyRest {
            since_ns: HOUR_NS,
            pages: 100 * PAGES_PER_INTERVAL,
        };
        assert!(rest.goes_on(HOUR_NS, 100 * HOUR_NS));
        assert!(!rest.goes_on(HOUR_NS, 102 * HOUR_NS));
        assert!(!rest.goes_on(HOUR_NS / 100, 3 * HOUR_NS));
        assert!(rest.goes_on(u64::MAX, u64::MAX - 1));
        assert!(!SurveyRest::default().goes_on(HOUR_NS, 0), "none before");
    }
}
