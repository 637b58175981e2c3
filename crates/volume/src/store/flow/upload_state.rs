//! What the store has of a tail: the root that this host last knew, the LSN that is asked for, and the slices in
//! progress.
//!
//! Written by the flow of slices, by folds and by openings. It does no I/O.

use std::sync::{Arc, OnceLock};

use crate::driver::Version;
use crate::error::OpenError;
use crate::hostlog::names::Position;
use crate::jobs::Signal;
use crate::lock::lock;
use crate::object::pack::Lineage;
use crate::object::root::{DeltaRef, Root};
use crate::store::flow::recovery_point::RecoveryPoint;
use crate::store::flow::slices::{ReadySlice, Slices};
use crate::store::roots::turn::RootTurn;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::units::{Lsn, RootMark};

/// The root as this host last saw or wrote it.
#[derive(Clone, Debug)]
pub(crate) struct KnownRoot {
    pub(crate) root: Root,
    pub(crate) version: Version,
}

/// An owner's update that has not been sent, or whose outcome is not known.
#[derive(Clone, Debug)]
pub(crate) struct RootUpdate {
    /// The new root. It has everything that the host's log has up to its mark.
    pub(crate) root: Root,
    pub(in crate::store) known: KnownRoot,
    /// The number of packs of the log that it takes in.
    pub(in crate::store) packs: usize,
    /// The position of the host's next record.
    pub(in crate::store) next: Position,
}

/// What the host's log has of a volume beyond its root.
#[derive(Debug, Default)]
struct PublishedDeltas {
    last: Lsn,
    /// Oldest first.
    packs: Vec<DeltaRef>,
}

/// A tail's upload side.
#[derive(Debug, Default)]
pub(crate) struct UploadState {
    wanted: AtomicU64,
    /// The LSN up to which a client, or a write that waits for log space, needs everything stored.
    waited_for: AtomicU64,
    slices: Mutex<Slices>,
    /// The last upload of this tail succeeded. False before the first one: a process may live too shortly for
    /// more than one slice of each volume if all volumes upload at once.
    store_takes: AtomicBool,
    /// The size that the volume is to have, in bytes; a smaller one than it has asks for nothing.
    grow: AtomicU64,
    pub(in crate::store) changed: Signal,
    pub(in crate::store) turn: RootTurn,
    /// Whose turn it is to write pages anew: a fold's, or a compaction's. It is taken before the turn at the root.
    pub(in crate::store) index_turn: RootTurn,
    /// Of a fork that was opened before it had a root.
    first_lineage: OnceLock<Lineage>,
    head: Mutex<Option<KnownRoot>>,
    /// The root that this host wrote or saw last, known also before the volume is open.
    mark: Mutex<RootMark>,
    published: Mutex<PublishedDeltas>,
    /// The update that closes the volume, sent unchanged until the store answers.
    closing: Mutex<Option<RootUpdate>>,
    /// The closing update has won.
    is_closed: AtomicBool,
    /// Its slices are put into no record for now, because a request of this volume alone is waited for.
    is_held_back: AtomicBool,
    /// How often that happened since something of it was stored.
    held_back: AtomicU32,
    /// Its slices are for the record that ends its epoch, and for no other.
    is_kept_for_end: AtomicBool,
    /// A record ended the epoch.
    has_ended: AtomicBool,
    /// A fold was requested, so that overwritten data becomes garbage.
    fold_asked: AtomicBool,
    /// Why nothing more is stored: for good, or until something changes in the store.
    refusal: Mutex<Option<OpenError>>,
    error: Mutex<Option<String>>,
    pub(crate) uploaded_bytes: AtomicU64,
    pub(crate) recovery_point: RecoveryPoint,
    /// Bytes that were committed as damaged since the volume was opened.
    pub(crate) damaged_bytes: AtomicU64,
}

impl UploadState {
    /// Requests a fold that is not due yet; the next fold ends the request, even if it fails.
    pub(in crate::store) fn set_fold_asked(&self, is_asked: bool) {
        self.fold_asked.store(is_asked, Ordering::Release);
        self.changed.wake_all();
    }

    pub(in crate::store) fn is_fold_asked(&self) -> bool {
        self.fold_asked.load(Ordering::Acquire)
    }

    /// The LSN up to which everything is to be stored.
    pub(in crate::store) fn requested_lsn(&self) -> Lsn {
        Lsn(self.wanted.load(Ordering::Acquire))
    }

    /// See [`Slices::has_room`].
    pub(crate) fn has_room(&self, most_bytes: u64) -> bool {
        let takes = self.store_takes.load(Ordering::Acquire);
        lock(&self.slices).has_room(most_bytes, !takes)
    }

    /// Records whether a request to the store failed.
    pub(in crate::store) fn on_store_answer(&self, failed: bool) {
        self.store_takes.store(!failed, Ordering::Release);
        if !failed {
            self.changed.wake_all();
        }
    }

    pub(in crate::store) fn on_slice_cut(&self, last: Lsn, bytes: u64) {
        lock(&self.slices).push(last, bytes);
        self.changed.wake_all();
    }

    pub(in crate::store) fn on_slice_ready(&self, slice: ReadySlice) {
        lock(&self.slices).set_ready(slice);
        self.changed.wake_all();
    }

    pub(in crate::store) fn replace_ready(&self, slice: &Arc<ReadySlice>) {
        lock(&self.slices).replace_ready(slice);
    }

    pub(in crate::store) fn publishable(&self) -> Vec<Arc<ReadySlice>> {
        lock(&self.slices).publishable()
    }

    pub(in crate::store) fn has_publishable(&self) -> bool {
        self.first_ready().is_some()
    }

    /// The first slice that may be published now.
    pub(in crate::store) fn first_ready(&self) -> Option<Arc<ReadySlice>> {
        lock(&self.slices).first_ready()
    }

    /// Whether a slice in progress is not ready yet.
    pub(in crate::store) fn has_unready(&self) -> bool {
        lock(&self.slices).has_unready()
    }

    pub(in crate::store) fn on_published(&self, last: Lsn) {
        self.held_back.store(0, Ordering::Release);
        lock(&self.slices).on_published(last);
    }

    pub(in crate::store) fn set_error(&self, error: Option<&OpenError>) {
        *lock(&self.error) = error.map(ToString::to_string);
    }

    /// Asks for everything up to `lsn` to be uploaded.
    pub(crate) fn request(&self, lsn: Lsn) {
        if self.wanted.fetch_max(lsn.0, Ordering::AcqRel) < lsn.0 {
            self.changed.wake_all();
        }
    }

    /// The same, and the record is not to wait for slices of other volumes. Returns true if nobody had asked for
    /// that.
    pub(crate) fn request_now(&self, lsn: Lsn) -> bool {
        let is_new = self.waited_for.fetch_max(lsn.0, Ordering::AcqRel) < lsn.0;
        self.request(lsn);
        is_new
    }

    /// Whether a client waits for something that is not stored yet.
    pub(in crate::store) fn is_waited_for(&self, stored: Lsn) -> bool {
        let waited_for = Lsn(self.waited_for.load(Ordering::Acquire));
        waited_for > stored && !canary::active!("who_waits_waits_for_other_volumes")
    }

    /// Asks for the volume to become this large, with the next root.
    pub(crate) fn grow(&self, bytes: u64) {
        self.grow.fetch_max(bytes, Ordering::AcqRel);
        self.changed.wake_all();
    }

    /// The size that the next root is to have, if the present one has this.
    pub(in crate::store) fn grown_bytes(&self, bytes: u64) -> u64 {
        bytes.max(self.grow.load(Ordering::Acquire))
    }

    /// Whether the volume's root has to grow.
    pub(in crate::store) fn needs_grow(&self) -> bool {
        let to = self.grow.load(Ordering::Acquire);
        to > 0
            && lock(&self.head)
                .as_ref()
                .is_some_and(|head| head.root.bytes < to)
    }

    pub(crate) fn wake_all(&self) {
        self.changed.wake_all();
    }

    pub(crate) fn head(&self) -> Option<KnownRoot> {
        lock(&self.head).clone()
    }

    /// The volumes that this one was forked from; none unless it was.
    pub(crate) fn lineage(&self) -> Lineage {
        let head = lock(&self.head);
        head.as_ref()
            .map(|head| head.root.lineage())
            .or_else(|| self.first_lineage.get().cloned())
            .unwrap_or_default()
    }

    /// The same of a fork that has no root yet.
    pub(crate) fn set_first_lineage(&self, lineage: Lineage) {
        if !canary::active!("fork_without_a_root_has_no_ancestors") {
            // It has one beginning.
            drop(self.first_lineage.set(lineage));
        }
    }

    pub(crate) fn set_head(&self, head: KnownRoot) {
        self.set_mark(head.root.mark());
        *lock(&self.head) = Some(head);
    }

    pub(crate) fn mark(&self) -> RootMark {
        *lock(&self.mark)
    }

    pub(in crate::store) fn set_mark(&self, mark: RootMark) {
        *lock(&self.mark) = mark;
    }

    /// Adds packs that a record names, up to this LSN.
    pub(in crate::store) fn add_published(&self, last: Lsn, packs: impl Iterator<Item = DeltaRef>) {
        let mut published = lock(&self.published);
        published.last = last;
        published.packs.extend(packs);
    }

    /// The LSN up to which records have the volume, and the packs that its root lacks.
    pub(in crate::store) fn published(&self) -> (Lsn, Vec<DeltaRef>) {
        let published = lock(&self.published);
        (published.last, published.packs.clone())
    }

    /// Replaces the known root by one that has taken in so many packs of the log.
    pub(in crate::store) fn on_root_updated(&self, head: KnownRoot, packs: usize) {
        {
            let mut published = lock(&self.published);
            let taken = packs.min(published.packs.len());
            published.packs.drain(..taken);
        }
        self.set_head(head);
    }

    pub(in crate::store) fn closing(&self) -> Option<RootUpdate> {
        lock(&self.closing).clone()
    }

    pub(in crate::store) fn set_closing(&self, update: Option<RootUpdate>) {
        *lock(&self.closing) = update;
    }

    /// Holds its slices back until [`UploadState::release`]; returns how often that has happened.
    pub(in crate::store) fn hold_back(&self) -> u32 {
        self.is_held_back.store(true, Ordering::Release);
        self.held_back.fetch_add(1, Ordering::AcqRel)
    }

    pub(in crate::store) fn release(&self) {
        self.is_held_back.store(false, Ordering::Release);
    }

    pub(in crate::store) fn is_held_back(&self) -> bool {
        self.is_held_back.load(Ordering::Acquire) || self.is_kept_for_end()
    }

    /// Whether its slices are kept for the record that ends its epoch.
    pub(in crate::store) fn keep_for_end(&self, is_kept: bool) {
        self.is_kept_for_end.store(is_kept, Ordering::Release);
    }

    pub(in crate::store) fn is_kept_for_end(&self) -> bool {
        self.is_kept_for_end.load(Ordering::Acquire)
    }

    /// Whether the closing update has won.
    pub(in crate::store) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(in crate::store) fn set_closed(&self) {
        self.is_closed.store(true, Ordering::Release);
        *lock(&self.closing) = None;
    }

    pub(in crate::store) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    pub(in crate::store) fn set_ended(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    pub(in crate::store) fn refusal(&self) -> Option<OpenError> {
        lock(&self.refusal).clone()
    }

    /// Sets why nothing is stored. The reason that ended the service is kept: an update of the root that ends
    /// later does not change it.
    pub(in crate::store) fn set_refusal(&self, refusal: Option<OpenError>) {
        let mut known = lock(&self.refusal);
        let has_ended = known.as_ref().is_some_and(OpenError::is_end_of_service);
        let forgets = canary::active!("late_update_takes_the_reason")
            || canary::active!("first_reason_is_forgotten");
        if !has_ended || forgets {
            *known = refusal;
        }
    }

    /// Why the last request to the store failed, if it did.
    pub(in crate::store) fn store_failure(&self) -> Option<String> {
        match self.store_takes.load(Ordering::Acquire) {
            true => None,
            false => self.last_error(),
        }
    }

    /// Why the last upload failed, if it did.
    pub(crate) fn last_error(&self) -> Option<String> {
        lock(&self.error).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what_ended_a_volume_is_said_whatever_a_late_update_of_its_root_found() {
        let state = UploadState::default();
        let gone = OpenError::Deleted("demo".to_owned());
        state.set_refusal(Some(OpenError::RootMissing("demo".to_owned())));
        state.set_refusal(None);
        assert_eq!(state.refusal(), None, "its root is back");
        state.set_refusal(Some(gone.clone()));
        state.set_refusal(None);
        state.set_refusal(Some(OpenError::Fenced("demo".to_owned())));
        assert_eq!(state.refusal(), Some(gone));
    }

    #[test]
    fn what_ended_a_volume_is_said_and_the_planted_bug_is_seen() {
        what_ended_a_volume_is_said_whatever_a_late_update_of_its_root_found();
        let planted = || {
            let test = what_ended_a_volume_is_said_whatever_a_late_update_of_its_root_found;
            canary::with("late_update_takes_the_reason", test);
        };
        assert!(std::panic::catch_unwind(planted).is_err());
    }
}
