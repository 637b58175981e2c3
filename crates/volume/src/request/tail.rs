//! The local tail of a volume: its layers, its newest LSN and its ring, under one short lock.
//!
//! A tail exists for every volume that is open here, and for every volume that a dead server
//! left here. It is *dormant* until it is opened (its index is not loaded), *unchecked* while it
//! serves before its root could be read, *live* while it serves after that, *fenced* once another
//! host has taken the volume over, *broken* after a panic under its lock, *closed* at the end.
//!
//! Invariants, under the lock: LSNs are dense (`newest` counts commits); an entry is in the ring
//! before it counts, and counts before its extent is in the map, so whatever a reader sees survives
//! the process, and frames of a broken tail are whole up to `newest`; a ring slot
//! is not written before its former entry is framed: `newest + reserved <= framed + entries`.

use std::sync::Arc;

use blkmq::error::ErrorKind;
use blkmq::io::Geometry;

use smallvec::SmallVec;

use crate::driver::DiskError;
use crate::jobs::Signal;
use crate::lock::lock;
use crate::log::entry::Entry;
use crate::log::frame::{FrameWriter, TailRecord};
use crate::log::ring::{Ring, RingRegion, TailId};
use crate::log::segments::{Lots, Segments};
use crate::map::ExtentMap;
use crate::map::index::Index;
use crate::map::layers::{DirtyExtent, FrozenLayer, Layers, LogAddr};
use crate::object::SNAPSHOT_SIGN;
use crate::request::points::Points;
use crate::request::space::Pace;
use crate::request::watermark::CommitAges;
use crate::store::fetch::boot_set::BootSet;
use crate::store::flow::upload_state::UploadState;
use crate::store::forks::known_names::KnownNames;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::units::{Lsn, Span, VolumeSize};

/// Extents that background work changes under one hold of the tail's lock.
pub(crate) const EXTENTS_PER_LOCK: usize = 256;
/// Extents that one commit takes out of the top layer under the lock, at most.
const HIDDEN_MAX: usize = 4096;

/// What a tail may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Recovered, not opened yet.
    Dormant,
    /// This start continued it, and its volume's root was not read yet: it serves what is here, and nothing of it
    /// goes to the store or is called stored.
    Unchecked,
    Live,
    /// Another host holds the volume: nothing is completed any more, the tail is kept (S7).
    Fenced,
    /// A panic left its map half changed: nothing is read from it any more. Ring and frames are
    /// whole, so a restart brings back everything that was acknowledged.
    Broken,
    /// Being closed, or closed.
    Closed,
}

impl Status {
    /// Whether clients use it.
    pub(crate) fn serves(self) -> bool {
        matches!(self, Status::Live | Status::Unchecked)
    }
}

/// The tail does not serve, so nothing more of it goes to the store.
#[derive(Debug)]
pub(crate) struct NotLive;

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) status: Status,
    pub(crate) geometry: Geometry,
    pub(crate) layers: Layers,
    /// The store's extents; empty while dormant.
    pub(crate) index: Index,
    pub(crate) newest: Lsn,
    /// The newest commit that recovery found: those above are of this process.
    pub(crate) recovered: Lsn,
    /// Ring slots promised to plans that have not committed.
    pub(crate) reserved: u64,
    pub(crate) ring: Option<Ring>,
    /// Slices are cut up to here: the layers below are theirs, and nobody merges them.
    pub(crate) cut: Lsn,
    /// Cuts that snapshots and forks wait for: nothing spans one.
    pub(crate) points: Points,
    /// No layer up to here hides log bytes of one that no slice has: merging them frees nothing.
    pub(crate) merged: Lsn,
    /// From then on a small top layer may be frozen for such a merge.
    pub(crate) small_top_due_ns: u64,
    /// A top layer with so much content is frozen, to become a slice.
    pub(crate) slice_bytes: u64,
    pub(crate) ages: CommitAges,
    /// The planted bug's entry that is written one commit too late.
    #[cfg(feature = "planted")]
    pub(crate) late: Option<Entry>,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Tail {
    id: TailId,
    name: String,
    inner: Mutex<Inner>,
    framed: AtomicU64,
    stored: AtomicU64,
    rescue: AtomicBool,
    /// Commits were lost with a ring, and whoever started the host may not have been told.
    unreported_loss: AtomicBool,
    /// The size that the log is told of: never below what anybody else is.
    size: Mutex<VolumeSize>,
    /// This start found all that the last one left of it in this boot's memory, and no client heard since what its
    /// root says.
    is_unbroken: AtomicBool,
    /// The root was read, or the service has ended: who waits to know what the store has looks again.
    pub(crate) checked: Signal,
    /// A check has the lock of the name: who comes meanwhile waits for its end, as he waits for the check.
    pub(crate) is_going_live: AtomicBool,
    /// Sectors of log that this tail's dirty extents and plans hold: its share of the log.
    dirty_sectors: AtomicU64,
    pub(crate) upload: UploadState,
    pub(crate) boot_set: BootSet,
    /// Of its snapshots.
    pub(crate) snapshot_names: KnownNames,
    /// What a client asked to have fetched ahead is under way.
    pub(crate) has_hint: AtomicBool,
    pub(crate) pace: Pace,
    /// See [`Tail::is_for_maintenance`].
    is_for_maintenance: AtomicBool,
}

impl Tail {
    pub(crate) fn new(
        id: TailId,
        name: String,
        rescue: bool,
        inner: Inner,
        (framed, stored): (Lsn, Lsn),
    ) -> Tail {
        Tail {
            id,
            name,
            inner: Mutex::new(inner),
            framed: AtomicU64::new(framed.0),
            stored: AtomicU64::new(stored.0),
            rescue: AtomicBool::new(rescue),
            unreported_loss: AtomicBool::new(false),
            size: Mutex::default(),
            is_unbroken: AtomicBool::new(false),
            checked: Signal::default(),
            is_going_live: AtomicBool::new(false),
            dirty_sectors: AtomicU64::new(0),
            upload: UploadState::default(),
            boot_set: BootSet::default(),
            snapshot_names: KnownNames::default(),
            has_hint: AtomicBool::new(false),
            pace: Pace::default(),
            is_for_maintenance: AtomicBool::new(false),
        }
    }

    /// Whether nobody may use it: the volume is open to be compacted. Nothing of it is in the log, so no start finds it there.
    pub(crate) fn is_for_maintenance(&self) -> bool {
        self.is_for_maintenance.load(Ordering::Acquire)
    }

    /// Before it goes live.
    pub(crate) fn set_for_maintenance(&self) {
        let is_silent = !canary::active!("maintained_volume_is_in_the_log");
        self.is_for_maintenance.store(is_silent, Ordering::Release);
    }

    pub(crate) fn id(&self) -> TailId {
        self.id
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is a snapshot that is served: nothing of it is in the log, and nobody writes to it.
    pub(crate) fn is_snapshot(&self) -> bool {
        self.name.contains(SNAPSHOT_SIGN)
    }

    pub(crate) fn is_rescue(&self) -> bool {
        self.rescue.load(Ordering::Acquire)
    }

    /// Another host's history has overtaken this tail: it is kept and never replayed.
    pub(crate) fn mark_rescue(&self) {
        self.rescue.store(true, Ordering::Release);
    }

    /// Whether a loss of commits is still to be reported; true once.
    pub(crate) fn take_unreported_loss(&self) -> bool {
        self.unreported_loss.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn set_unreported_loss(&self) {
        self.unreported_loss.store(true, Ordering::Release);
    }

    /// The volume's short lock: memory work only, never across a wait.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|panicked| {
            let mut inner = panicked.into_inner();
            inner.status = Status::Broken;
            inner
        })
    }

    /// See [`Status::Broken`].
    pub(crate) fn is_broken(&self) -> bool {
        self.lock().status == Status::Broken
    }

    /// The log is poisoned: the ring tells that to the next process.
    pub(crate) fn poison_ring(&self) {
        if let Some(ring) = &self.lock().ring {
            ring.poison();
        }
    }

    /// The next start must not serve the tail before its root was read: the ring tells it so.
    pub(crate) fn require_check(&self) {
        self.lock().require_check();
    }

    /// Whether it has a ring.
    pub(crate) fn has_ring(&self) -> bool {
        self.lock().ring.is_some()
    }

    /// Words of its ring, if it has one.
    pub(crate) fn ring_words(&self) -> Option<usize> {
        self.lock().ring.as_ref().map(Ring::words)
    }

    /// The ring goes on in another region.
    pub(crate) fn move_ring(&self, region: Arc<dyn RingRegion>) {
        if let Some(ring) = &mut self.lock().ring {
            ring.move_to(region);
        }
    }

    pub(crate) fn newest(&self) -> Lsn {
        self.lock().newest
    }

    /// Everything up to here survives loss of power.
    pub(crate) fn framed_lsn(&self) -> Lsn {
        Lsn(self.framed.load(Ordering::Acquire))
    }

    /// Everything up to here is in the store.
    pub(crate) fn stored_lsn(&self) -> Lsn {
        Lsn(self.stored.load(Ordering::Acquire))
    }

    pub(crate) fn set_stored(&self, lsn: Lsn) {
        self.stored.fetch_max(lsn.0, Ordering::AcqRel);
    }

    /// A frame up to `cut` is durable: ring slots up to there may be used again.
    pub(crate) fn set_framed(&self, cut: Lsn) {
        self.framed.fetch_max(cut.0, Ordering::AcqRel);
    }

    /// The same, of a round: the ring keeps it for the next process too.
    pub(crate) fn on_framed(&self, cut: Lsn) {
        if let Some(ring) = &self.lock().ring {
            ring.set_durable(cut);
        }
        self.set_framed(cut);
    }

    pub(crate) fn record(&self) -> TailRecord {
        let (tail, name, rescue) = (self.id, self.name.clone(), self.is_rescue());
        let ring = self.lock().ring.is_some();
        TailRecord {
            tail,
            name,
            stored: self.stored_lsn(),
            root: self.upload.mark(),
            rescue,
            ring,
            unreported_loss: self.unreported_loss.load(Ordering::Acquire),
            untouched: !ring && self.is_unbroken(),
            size: self.size(),
        }
    }

    /// Whether it may serve before its root is read.
    pub(crate) fn is_unbroken(&self) -> bool {
        self.is_unbroken.load(Ordering::Acquire)
    }

    /// False, for good: a client is about to hear what the store says of it.
    pub(crate) fn set_unbroken(&self, unbroken: bool) {
        self.is_unbroken.store(unbroken, Ordering::Release);
    }

    /// The volume's size as the log knows it, or is about to.
    pub(crate) fn size(&self) -> VolumeSize {
        *lock(&self.size)
    }

    /// What the log is told from now on. True: that is more than before.
    pub(crate) fn set_size(&self, size: VolumeSize) -> bool {
        lock(&self.size).grow_to(size)
    }

    /// Puts the entries after the last frame up to `cut` into a frame.
    ///
    /// # Errors
    /// If the ring does not hold one of them: then something has written to its memory.
    pub(crate) fn write_entries(&self, frame: &mut FrameWriter, cut: Lsn) -> Result<(), DiskError> {
        let inner = self.lock();
        let Some(ring) = &inner.ring else {
            return Ok(());
        };
        #[cfg(feature = "planted")]
        if let Some(late) = inner.late {
            ring.write(&late);
        }
        // Slots up to `cut` cannot be overwritten before they are framed; the lock is held only
        // because the ring itself may be exchanged when the volume is opened or closed.
        let mut reached = self.framed_lsn();
        let entries = (reached.0 + 1..=cut.0).map_while(|lsn| {
            let entry = ring.read(Lsn(lsn));
            reached = entry.map_or(reached, |entry| entry.lsn);
            entry
        });
        frame.entries(self.id, cut, entries);
        // More than the cut where the store had more than the log when the volume was opened.
        if reached >= cut {
            return Ok(());
        }
        Err(DiskError::new(format!(
            "the index ring of {} lost the commits after LSN {}: its memory was overwritten",
            self.name, reached.0
        )))
    }

    /// Freezes the top layer: a point in time. None if the tail is broken.
    pub(crate) fn freeze(&self) -> Option<(Lsn, Vec<FrozenLayer>)> {
        let mut inner = self.lock();
        if inner.status == Status::Broken {
            return None;
        }
        let cut = inner.newest;
        inner.layers.freeze(cut);
        Some((cut, inner.layers.frozen.clone()))
    }

    pub(crate) fn dirty_sectors(&self) -> u64 {
        self.dirty_sectors.load(Ordering::Relaxed)
    }

    pub(crate) fn add_dirty(&self, sectors: u64) {
        self.dirty_sectors.fetch_add(sectors, Ordering::Relaxed);
    }

    /// Takes these sectors out of the clean ones where they still stand at this place; whether any did.
    pub(crate) fn forget_clean(&self, segments: &Segments, span: Span, addr: LogAddr) -> bool {
        let mut inner = self.lock();
        let mut stale: SmallVec<[(Span, LogAddr); 4]> = SmallVec::new();
        inner.layers.clean.walk(span, |part, clean| {
            let here = addr.skip(part.start - span.start);
            if clean.is_some_and(|clean| clean.0 == here) {
                stale.push((part, here));
            }
        });
        for (part, here) in &stale {
            inner.layers.clean.remove(*part, |_, _| {});
            segments.release_clean(*here, part.sectors());
        }
        !stale.is_empty()
    }

    /// Dirty sectors are no longer named: superseded, uploaded, or their plan was dropped.
    pub(crate) fn release_dirty(&self, segments: &Segments, addr: LogAddr, sectors: u64) {
        self.dirty_sectors.fetch_sub(sectors, Ordering::Relaxed);
        segments.release_dirty(addr, sectors);
    }

    /// Promises `slots` ring slots to a plan. False: the ring is full until a frame is durable.
    pub(crate) fn reserve(&self, inner: &mut Inner, slots: u64) -> bool {
        let Some(ring) = &inner.ring else {
            return false;
        };
        let mut taken = inner.newest.0 + inner.reserved + slots;
        if canary::active!("ring_slot_promised_twice") {
            taken -= 1;
        }
        if taken > self.framed_lsn().0 + ring.entries() {
            return false;
        }
        inner.reserved += slots;
        true
    }

    /// Slots of a plan that does not commit.
    pub(crate) fn give_back_slots(&self, slots: u64) {
        let mut inner = self.lock();
        debug_assert!(inner.reserved >= slots, "slots are given back once");
        inner.reserved = inner.reserved.saturating_sub(slots);
    }

    /// Commits a write whose bytes are in place, one entry per lot. Of the `slots` that were promised
    /// to it, those that it does not need are free again.
    pub(crate) fn commit_lots(
        &self,
        segments: &Segments,
        lots: &Lots,
        slots: u64,
        now_ns: u64,
    ) -> Result<Lsn, ErrorKind> {
        let mut inner = self.lock();
        inner.writable()?;
        let before = inner.newest;
        for lot in lots {
            let (addr, generation) = (Some(lot.addr), lot.generation);
            self.commit(segments, &mut inner, lot.span, addr, generation);
        }
        let unused = slots.saturating_sub(lots.len() as u64);
        debug_assert!(inner.reserved >= unused, "slots are given back once");
        inner.reserved = inner.reserved.saturating_sub(unused);
        let newest = inner.newest;
        let first = match canary::active!("writes_begin_with_their_last_lot") {
            true => newest,
            false => before.next(),
        };
        inner.ages.on_acknowledged(first, now_ns);
        if inner.layers.top_bytes() >= inner.slice_bytes {
            inner.layers.freeze(newest);
        }
        Ok(newest)
    }

    /// Whether a server before this one committed just this range, and nothing was written there since: what the
    /// planted bug takes for a request that was issued again.
    pub(crate) fn has_from_before(&self, span: Span) -> bool {
        let inner = self.lock();
        let is_same = |map: &ExtentMap<DirtyExtent>| {
            let first = map.iter_from(span.start).next();
            first.is_some_and(|(found, dirty)| found == span && dirty.lsn <= inner.recovered)
        };
        let is_untouched = inner.layers.top.count_up_to(span, 1) == 0;
        is_untouched && inner.layers.frozen.iter().any(|layer| is_same(&layer.map))
    }

    /// Commits zeroes over `span`.
    pub(crate) fn commit_zeroes(
        &self,
        segments: &Segments,
        inner: &mut Inner,
        span: Span,
        now_ns: u64,
    ) -> Lsn {
        // What the range hides would be taken out of the top layer one by one, under the lock.
        // Where that is much, the layer is frozen instead, and hidden as a whole.
        if inner.layers.top.count_up_to(span, HIDDEN_MAX) == HIDDEN_MAX {
            let newest = inner.newest;
            inner.layers.freeze(newest);
        }
        self.commit(segments, inner, span, None, 0);
        let newest = inner.newest;
        inner.ages.on_acknowledged(newest, now_ns);
        newest
    }

    /// The commit: number, ring entry and map in one step, under the lock. It uses up one
    /// reserved ring slot.
    pub(crate) fn commit(
        &self,
        segments: &Segments,
        inner: &mut Inner,
        span: Span,
        addr: Option<LogAddr>,
        generation: u32,
    ) {
        let lsn = inner.newest.next();
        #[cfg_attr(
            not(feature = "planted"),
            allow(unused_mut, reason = "the planted bug swaps it")
        )]
        let mut entry = Some(Entry {
            lsn,
            span,
            addr,
            generation,
        });
        if canary::active!("ack_before_ring_entry") {
            #[cfg(feature = "planted")]
            std::mem::swap(&mut entry, &mut inner.late);
        }
        if let (Some(ring), Some(entry)) = (&inner.ring, entry) {
            ring.write(&entry);
        }
        inner.newest = lsn;
        inner.reserved = inner.reserved.saturating_sub(1);
        inner
            .layers
            .commit(span, DirtyExtent { addr, lsn }, |addr, sectors| {
                self.release_dirty(segments, addr, sectors);
            });
        debug_assert!(
            inner.is_whole_after_commit(span, self.framed_lsn()),
            "invariant: the commit of {span:?} left its extent or the ring's slots wrong"
        );
    }
}

impl Inner {
    /// Frozen layers that no slice has, oldest first.
    pub(crate) fn loose_layers(&self) -> &[FrozenLayer] {
        let frozen = &self.layers.frozen;
        &frozen[self.layers.count_up_to(self.cut)..]
    }

    /// Up to here layers stay as they are: slices have them, or points in time are to be stored.
    pub(crate) fn settled(&self) -> Lsn {
        self.cut.max(self.points.newest())
    }

    /// Frozen layers that may be merged with any of them, oldest first.
    pub(crate) fn mergeable_layers(&self) -> &[FrozenLayer] {
        let frozen = &self.layers.frozen;
        &frozen[self.layers.count_up_to(self.settled())..]
    }

    /// See [`Tail::require_check`]. Only a tail whose ring is there is ever served unchecked, so what the ring says
    /// lasts as long as it is needed.
    pub(crate) fn require_check(&self) {
        if let Some(ring) = &self.ring
            && !canary::active!("next_start_serves_what_ended")
        {
            ring.require_check();
        }
    }

    /// May a request complete here?
    pub(crate) fn check_serving(&self) -> Result<(), ErrorKind> {
        match self.status {
            Status::Live | Status::Unchecked => Ok(()),
            Status::Fenced => Err(ErrorKind::Fenced),
            Status::Broken => Err(ErrorKind::Io),
            Status::Dormant | Status::Closed => Err(ErrorKind::Closed),
        }
    }

    /// May a write complete here?
    pub(crate) fn writable(&self) -> Result<(), ErrorKind> {
        self.check_serving()?;
        if self.geometry.read_only {
            Err(ErrorKind::ReadOnly)
        } else {
            Ok(())
        }
    }
}
