//! Which rings of dead processes are believed, what they hold, and what becomes of the others.
//!
//! A ring is believed only if the last session of this log made it, in this boot: then it continues
//! exactly what the frames say. Any other may have been left behind by a start that did not find it,
//! and the log went on without it: what it holds is no part of the history any more. It is never
//! replayed, and never deleted before the log is known to have all that it held.

use std::collections::{BTreeMap, BTreeSet};

use super::journal::LOST_FRAME_REMEDY;
use super::replay::{TailReplay, replay_commit};
use super::report::{RecoveryReport, StaleRing};
use crate::error::OpenError;
use crate::log::ring::{Ring, RingId, Rings, TailId, region_words};
use crate::log::session::{BootId, Sessions};
use crate::units::{HostId, LogSession, Lsn};

/// What the last session of a log may have left in memory.
#[derive(Clone, Copy)]
pub(crate) struct PreviousRings<'a> {
    pub(crate) rings: &'a dyn Rings,
    pub(crate) host: HostId,
    pub(crate) boot: BootId,
    pub(crate) session: LogSession,
}

type Replay = BTreeMap<TailId, TailReplay>;

/// The rings of a stopped process that its successor goes on with: all that frames name, and the session's own region.
#[derive(Debug)]
pub(crate) struct ContinuedRings {
    pub(crate) of_tails: BTreeMap<TailId, Ring>,
    pub(crate) own: Ring,
}

/// Those that are there and are believed. Each was looked for once, because to find one takes longer than to read it.
#[derive(Debug)]
pub(super) struct FoundRings {
    of_tails: BTreeMap<TailId, Ring>,
    own: Option<Ring>,
}

impl PreviousRings<'_> {
    fn id(&self, tail: Option<TailId>) -> RingId {
        RingId {
            host: self.host,
            session: self.session,
            tail,
        }
    }

    /// The ring of a tail, or the session's own region.
    fn find(&self, tail: Option<TailId>) -> Result<Option<Ring>, OpenError> {
        let mut id = self.id(tail);
        if canary::active!("believe_stale_rings") {
            let left = self.rings.list(self.host).into_iter();
            let same = left.rev().find(|ring| ring.tail == tail);
            id = same.unwrap_or(id);
        }
        let region = self.rings.find(id).map_err(OpenError::Disk)?;
        Ok(region.and_then(|region| Ring::open_existing(region, &id, self.boot)))
    }

    /// Looks for the rings of all these tails, and for the session's own region.
    pub(super) fn look(&self, replay: &Replay) -> Result<FoundRings, OpenError> {
        let own = self.find(None)?;
        let mut of_tails = BTreeMap::new();
        for id in replay.keys() {
            if let Some(ring) = self.find(Some(*id))? {
                of_tails.insert(*id, ring);
            }
        }
        Ok(FoundRings { of_tails, own })
    }

    /// Says in memory that the log is poisoned, for the next process: the log of this session must
    /// not be taken for durable. For a start that failed before it served.
    pub(crate) fn poison(&self, tails: impl Iterator<Item = TailId>) {
        for tail in tails {
            if let Ok(Some(ring)) = self.find(Some(tail)) {
                ring.poison();
            }
        }
        match self.rings.open(self.id(None), region_words(0)) {
            Ok(region) => Ring::format(region, &self.id(None), self.boot).poison(),
            Err(error) => tracing::error!(error, "the poisoned log cannot be marked in memory"),
        }
    }
}

impl FoundRings {
    /// Refuses a journal that ends before what was durable once: rings are told of each frame before
    /// anybody else is.
    pub(super) fn check_frames(&self, replay: &Replay) -> Result<(), OpenError> {
        for (id, tail) in replay.iter().filter(|(_, tail)| tail.ring) {
            let ring = self.of_tails.get(id);
            let durable = ring.map_or(Lsn::ZERO, |ring| ring.durable());
            if durable > tail.newest && !canary::active!("believe_short_journal") {
                return Err(OpenError::Corrupt(format!(
                    "the log's journal has commits of volume {} up to LSN {}, but its index ring \
                     says that those up to LSN {} were durable: a frame of the journal is damaged, \
                     or this cache directory is a copy from before; {LOST_FRAME_REMEDY}",
                    tail.name, tail.newest.0, durable.0
                )));
            }
        }
        Ok(())
    }

    /// Whether any ring says that the log was poisoned: the dead process may not have got as far
    /// as to say so on disk.
    pub(super) fn is_poisoned(&self) -> bool {
        let mut all = self.of_tails.values().chain(&self.own);
        all.any(Ring::is_poisoned)
    }

    /// The rings of a poisoned log are not replayed (R10), of no tail. What they held is lost, and reported.
    pub(super) fn report_unreplayed(
        &self,
        replay: &mut Replay,
        same_boot: bool,
        report: &mut RecoveryReport,
    ) -> BTreeSet<TailId> {
        let expected = |tail: &TailReplay| tail.ring && same_boot;
        for (id, tail) in replay.iter_mut().filter(|(_, tail)| expected(tail)) {
            let ring = self.of_tails.get(id);
            if ring.is_none_or(|ring| ring.read(tail.newest.next()).is_some()) {
                tail.unreported_loss = true;
            }
        }
        report_losses(replay, report);
        BTreeSet::new()
    }

    /// Replays what the rings hold beyond the frames. Answers of which tails.
    pub(super) fn replay(
        &self,
        replay: &mut Replay,
        same_boot: bool,
        report: &mut RecoveryReport,
    ) -> BTreeSet<TailId> {
        let mut found = BTreeSet::new();
        // Also for rescue: the checkpoint that says so may be of a moment before the tail's last commits.
        let expected = |tail: &TailReplay| {
            tail.ring && !(tail.rescue && canary::active!("lost_tails_lose_their_rings"))
        };
        self.continue_untouched(replay);
        for (id, tail) in replay.iter_mut().filter(|(_, tail)| expected(tail)) {
            if let Some(ring) = self.of_tails.get(id) {
                let framed = tail.newest;
                let entries = replay_ring(tail, ring);
                tail.framed = (entries > 0).then_some(framed);
                report.ring_entries += entries;
                tail.is_unbroken = !ring.requires_check();
                found.insert(*id);
            } else if same_boot {
                // The host did not go down, and yet the ring is gone (its file was removed, or
                // this start looks for it in another directory): say so.
                tracing::error!(
                    volume = tail.name,
                    after_lsn = tail.newest.0,
                    "the index ring is gone though the host was not restarted: writes after the \
                     last flush may be lost"
                );
                tail.unreported_loss = true;
            }
        }
        report_losses(replay, report);
        found
    }

    /// Continues the tails that the last session found whole, and did not touch: it has all of them in its frames. A
    /// session without a region of its own, in this boot's memory, may have learned anything of them.
    fn continue_untouched(&self, replay: &mut Replay) {
        let requires_check = match &self.own {
            Some(ring) => ring.requires_check(),
            None => !canary::active!("silent_session_is_trusted"),
        };
        if requires_check || canary::active!("untouched_tail_waits") {
            return;
        }
        for tail in replay.values_mut().filter(|tail| !tail.ring) {
            tail.is_unbroken = tail.untouched;
        }
    }

    /// What a process may go on with whose own these rings become: all that frames name, as large as it wants them.
    pub(super) fn continued(mut self, replay: &Replay, entries: u32) -> Option<ContinuedRings> {
        self.of_tails.retain(|id, _| replay[id].ring);
        let fits = |ring: &Ring| ring.entries() == u64::from(entries);
        let is_whole = self.of_tails.values().all(fits);
        let own = self.own.filter(|_| is_whole)?;
        Some(ContinuedRings {
            of_tails: self.of_tails,
            own,
        })
    }
}

/// Also those that a start found which ended before it could say so.
fn report_losses(replay: &Replay, report: &mut RecoveryReport) {
    let lost = replay.values().filter(|tail| tail.unreported_loss);
    report.rings_lost.extend(lost.map(|tail| tail.name.clone()));
}

/// Commits of a ring that follow the frames without a gap; tells how many.
fn replay_ring(tail: &mut TailReplay, ring: &Ring) -> u64 {
    let next = |newest: Lsn| {
        let entry = ring.read(newest.next());
        if canary::active!("replay_past_hole") {
            return entry.or_else(|| ring.read(newest.next().next()));
        }
        entry
    };
    let mut count = 0;
    while let Some(entry) = next(tail.newest) {
        replay_commit(tail, &entry);
        count += 1;
    }
    count
}

/// Removes the rings of which the log has everything since the last start: that start ended before
/// it could. Later ones could not tell any more.
pub(super) fn remove_read_rings(rings: &dyn Rings, host: HostId, sessions: &Sessions) {
    let left = rings.list(host).into_iter();
    left.filter(|ring| sessions.has_read_rings_of(ring.session))
        .for_each(|ring| rings.remove(ring));
}

/// The rings that a recovered log leaves behind, once what it found is durable.
pub(crate) struct ObsoleteRings<'a> {
    pub(crate) rings: &'a dyn Rings,
    pub(crate) host: HostId,
    /// The sessions before this one.
    pub(crate) sessions: &'a Sessions,
    /// The one under whose name this one's rings are.
    pub(crate) own: LogSession,
    /// Tails whose rings were replayed.
    pub(crate) read: &'a BTreeSet<TailId>,
    /// How far the log knows each tail.
    pub(crate) newest: BTreeMap<TailId, Lsn>,
}

impl ObsoleteRings<'_> {
    /// Removes those that hold nothing the log does not have, puts those aside that this log went
    /// on without, and leaves those alone that another log made.
    pub(crate) fn clear(&self, report: &mut RecoveryReport) {
        let (mut foreign, mut done) = (BTreeSet::new(), Vec::new());
        let rings = self.rings.list(self.host).into_iter();
        for ring in rings.filter(|ring| ring.session != self.own) {
            if !self.sessions.is_own(ring.session) {
                foreign.insert(ring.session);
            } else if self.has_unlogged_commits(ring) {
                let aside = self.rings.set_aside(ring);
                report.stale_rings.push(StaleRing { ring, aside });
            } else {
                done.push(ring);
            }
        }
        self.rings.remove_many(done);
        report.foreign_sessions.extend(foreign);
    }

    /// Whether it may hold commits that the log never had.
    fn has_unlogged_commits(&self, id: RingId) -> bool {
        let Some(tail) = id.tail else {
            return false;
        };
        let last = id.session == self.sessions.ring_session();
        if last && (self.read.contains(&tail) || !self.newest.contains_key(&tail)) {
            // Replayed; or the frames say that the tail was closed, or was never used.
            return false;
        }
        match self.rings.find(id) {
            Ok(None) => false,
            Err(_) => true,
            Ok(Some(region)) => {
                let boot = Ring::boot_of(&*region);
                match Ring::open_existing(region, &id, boot) {
                    None => true,
                    Some(ring) if last => ring.read(self.newest[&tail].next()).is_some(),
                    Some(ring) => !ring.is_unused(),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::log::entry::Entry;
    use crate::log::ring::{HeapRegion, RetainedRings, RingRegion};
    use crate::units::{Epoch, Span, VolumeId};

    const HOST: HostId = HostId([1; 16]);
    const BOOT: BootId = BootId(3);
    const TAIL: TailId = TailId {
        volume: VolumeId([2; 16]),
        since: Epoch(1),
    };

    /// One ring at most.
    #[derive(Default)]
    struct OneRing(Mutex<Option<Arc<HeapRegion>>>);

    impl Rings for OneRing {
        fn find(&self, _: RingId) -> Result<Option<Arc<dyn RingRegion>>, String> {
            let ring = self.0.lock().unwrap().clone();
            Ok(ring.map(|region| region as _))
        }

        fn open(&self, _: RingId, words: usize) -> Result<Arc<dyn RingRegion>, String> {
            let region = Arc::new(HeapRegion::new(words));
            *self.0.lock().unwrap() = Some(Arc::clone(&region));
            Ok(region)
        }

        fn remove(&self, _: RingId) {
            *self.0.lock().unwrap() = None;
        }

        fn list(&self, _: HostId) -> Vec<RingId> {
            Vec::new()
        }

        fn set_aside(&self, _: RingId) -> Result<RetainedRings, String> {
            Err("nothing is put aside here".into())
        }
    }

    /// A tail that the frames have up to LSN 1, and its ring up to LSN 2.
    fn replayed_tail(rescue: bool) -> TailReplay {
        let rings = OneRing::default();
        let left = PreviousRings {
            rings: &rings,
            host: HOST,
            boot: BOOT,
            session: LogSession::default(),
        };
        let id = left.id(Some(TAIL));
        let region = rings.open(id, region_words(4)).unwrap();
        let ring = Ring::format(region, &id, BOOT);
        for lsn in [1, 2] {
            ring.write(&Entry {
                lsn: Lsn(lsn),
                span: Span::new(8 * lsn, 8),
                addr: None,
                generation: 0,
            });
        }
        let tail = TailReplay {
            rescue,
            ring: true,
            newest: Lsn(1),
            ..TailReplay::default()
        };
        let mut replay = Replay::from([(TAIL, tail)]);
        let mut report = RecoveryReport::default();
        let rings = left.look(&replay).unwrap();
        let found = rings.replay(&mut replay, true, &mut report);
        assert!(found.contains(&TAIL) && report.rings_lost.is_empty());
        replay.remove(&TAIL).unwrap()
    }

    #[test]
    fn a_ring_is_replayed_of_a_tail_that_waits_for_its_volume_and_of_one_for_rescue() {
        for rescue in [false, true] {
            assert_eq!(replayed_tail(rescue).newest, Lsn(2), "rescue: {rescue}");
        }
        let bug = "lost_tails_lose_their_rings";
        let seen = std::panic::catch_unwind(|| canary::with(bug, || replayed_tail(true)));
        assert!(seen.is_err(), "planted and not seen");
    }
}
