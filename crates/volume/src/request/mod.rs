//! A volume as transports see it: plan, move, commit (the hot path of the engine).
//!
//! Everything here answers from memory. What a request means is decided in [`Backend::begin`],
//! the one dispatch table that all transports share.

mod failed_read;
pub(crate) mod fork_base;
mod fork_point;
mod invariants;
mod kept_snapshots;
mod log_copies;
mod loose_layers;
pub(crate) mod parked;
mod plan;
pub(crate) mod points;
mod read;
pub(crate) mod space;
mod status;
pub(crate) mod tail;
pub(crate) mod watermark;
mod write;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Geometry, MoveError, MoveResult, Op, Park, SECTOR_BYTES, Step, StepOf};

pub use self::kept_snapshots::LogSnapshots;
use crate::driver::file_name;
use crate::engine::Engine;
use crate::failures::FailureKind;
use crate::log::ring::TailId;
pub use crate::request::plan::{ReadPlan, SyncWait, WritePlan};
use crate::request::tail::{Inner, Status, Tail};
use crate::request::watermark::Watermarks;
use crate::store::catalog::volume_spec::{VolumeInfo, VolumeOwner};
use crate::store::compact::state::VolumeSpace;
use crate::store::fetch::read_ahead;
use crate::sync::atomic::Ordering;
use crate::units::{Lsn, Span};

/// As much as a boot set holds, and a little more: 256 MiB.
const PREFETCH_SECTORS_MAX: u64 = 256 << 20 >> 9;

/// How often a write whose bytes could not be moved is tried at another place (R10).
const WRITE_TRIES: u8 = 3;

/// An open volume. Cheap to clone; all clones are the same volume.
#[derive(Clone)]
pub struct Volume {
    pub(crate) engine: Arc<Engine>,
    pub(crate) tail: Arc<Tail>,
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume")
            .field("name", &self.tail.name())
            .finish()
    }
}

/// The largest read or write: a larger write would starve others of log space. 32 MiB, NBD's limit.
const REQUEST_SECTORS_MAX: u32 = 65_536;

impl Volume {
    /// The volume's name.
    pub fn name(&self) -> &str {
        self.tail.name()
    }

    /// What the store says of it, as this host last wrote it; makes no request. Before the root was read: what this
    /// host's log says.
    pub fn info(&self) -> VolumeInfo {
        let info = match self.tail.upload.head() {
            Some(head) => VolumeInfo::of(&head.root),
            None => self.unchecked_info(),
        };
        // A root may be known before the log is told of the size that it has.
        VolumeInfo {
            bytes: self.tail.lock().geometry.bytes,
            ..info
        }
    }

    fn unchecked_info(&self) -> VolumeInfo {
        let (Volume { engine, tail }, size) = (self, self.tail.size());
        VolumeInfo {
            name: tail.name().to_owned(),
            id: tail.id().volume,
            bytes: size.bytes,
            block: size.block,
            epoch: tail.id().since,
            stored: tail.stored_lsn(),
            unix_ms: engine.jobs.now().unix_ms,
            owner: Some(VolumeOwner {
                host: engine.host,
                label: engine.label.clone(),
            }),
        }
    }

    /// Whether it serves before its root could be read: nothing of it is called stored until then.
    pub fn is_unchecked(&self) -> bool {
        self.tail.lock().status == Status::Unchecked
    }

    /// This host's hold of the volume: it has the same name as long as no other host, and no other log,
    /// goes between.
    pub fn hold(&self) -> TailId {
        self.tail.id()
    }

    /// Where the volume stands on the ladder.
    pub fn watermarks(&self) -> Watermarks {
        let now = self.engine.jobs.now();
        let (framed, stored) = (self.tail.framed_lsn(), self.tail.stored_lsn());
        let inner = self.tail.lock();
        let stored = inner.ages.watermark(stored, inner.newest, now);
        Watermarks {
            acked: inner.ages.watermark(inner.newest, inner.newest, now),
            flushed: inner
                .ages
                .watermark(framed.max(stored.lsn), inner.newest, now),
            stored,
            overdue_ms: stored
                .age_ms
                .saturating_sub(self.engine.rpo_ns() / 1_000_000),
        }
    }

    /// Why the last upload failed, if it did; it is being tried again.
    pub fn upload_error(&self) -> Option<String> {
        self.tail.upload.last_error()
    }

    /// Its snapshots that only the log of this host has, yet.
    pub fn log_snapshots(&self) -> LogSnapshots {
        self.tail.log_snapshots()
    }

    /// What is known of its packs in the store; none: it was not surveyed since it was opened.
    pub fn space(&self) -> Option<VolumeSpace> {
        self.engine.compaction.space(self.tail.id().volume)
    }

    /// Bytes sent to the store for this volume since it was opened: packs, index and roots.
    pub fn uploaded_bytes(&self) -> u64 {
        self.tail.upload.uploaded_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that were given up since it was opened, because the log could not be read: reads of them
    /// fail, here and elsewhere, until they are written again.
    pub fn damaged_bytes(&self) -> u64 {
        self.tail.upload.damaged_bytes.load(Ordering::Relaxed)
    }

    /// What was read first since it was opened, as ranges of sectors in their order: see
    /// [`Volume::prefetch`].
    pub fn boot_set(&self) -> Vec<Range<u64>> {
        self.tail.boot_set.ranges()
    }

    /// Fetches these sectors in this order, as far as the store has them and this host has not; behind
    /// whatever clients ask for meanwhile. At most `PREFETCH_SECTORS_MAX` of them, of those that the
    /// volume has: they come from a file that may be damaged.
    pub fn prefetch(&self, sectors: &[Range<u64>]) {
        let end = self.tail.lock().geometry.bytes / SECTOR_BYTES;
        let mut left = PREFETCH_SECTORS_MAX;
        let spans = sectors.iter().filter_map(|range| {
            let span = Span {
                start: range.start,
                end: range.end.min(end).min(range.start.saturating_add(left)),
            };
            (span.start < span.end).then(|| {
                left -= span.sectors();
                span
            })
        });
        read_ahead::start(&self.engine, &self.tail, spans.collect());
    }

    /// Whether requests complete here: not once another host has taken the volume over (S7), or
    /// it was closed.
    ///
    /// # Errors
    /// What requests end with.
    pub fn check_serving(&self) -> Result<(), ErrorKind> {
        self.tail.lock().check_serving()
    }

    /// The newest commit: the history of the volume up to now has this many.
    pub fn newest(&self) -> Lsn {
        self.tail.newest()
    }

    fn check(&self, inner: &Inner, sector: u64, sectors: u64) -> Result<Span, ErrorKind> {
        inner.check_serving()?;
        let unit = u64::from(inner.geometry.logical_block) / SECTOR_BYTES;
        let end = sector.checked_add(sectors).ok_or(ErrorKind::Invalid)?;
        let fits = end <= inner.geometry.bytes / SECTOR_BYTES;
        let aligned = sector.is_multiple_of(unit) && sectors.is_multiple_of(unit);
        if fits && aligned {
            Ok(Span { start: sector, end })
        } else {
            Err(ErrorKind::Invalid)
        }
    }

    fn begin_zeroes(&self, sector: u64, sectors: u64, fua: bool, waker: &Waker) -> StepOf<Self> {
        let Volume { engine, tail } = self;
        let lsn = {
            let mut inner = tail.lock();
            let checked = inner
                .writable()
                .and_then(|()| self.check(&inner, sector, sectors));
            let span = match checked {
                Ok(_) if engine.poisoned.load(Ordering::Acquire) => {
                    return Step::Done(Err(ErrorKind::Io));
                }
                Ok(span) if span.is_empty() => return Step::Done(Ok(())),
                Ok(span) => span,
                Err(error) => return Step::Done(Err(error)),
            };
            if !engine.has_extent_room() || !tail.reserve(&mut inner, 1) {
                engine.space.parked.wait(tail.id(), waker);
                if !engine.has_extent_room() || !tail.reserve(&mut inner, 1) {
                    drop(inner);
                    engine.committer().request_round(engine);
                    return Step::Park(Park::Space);
                }
            }
            // At most two more; the next tick counts anew.
            engine.extents.fetch_add(2, Ordering::Relaxed);
            tail.commit_zeroes(&engine.segments, &mut inner, span, engine.jobs.mono_ns())
        };
        engine.space.parked.wake_next(tail.id());
        self.finish_write(lsn, fua, waker)
    }

    /// Counts a failed move, and logs it with its cause unless one was logged a moment ago.
    #[cold]
    fn report_failed_move(&self, error: &MoveError, next: &str) {
        let jobs = &self.engine.jobs;
        let (Some(kind), Some(file)) = (FailureKind::of_move(error), error.file) else {
            tracing::error!(volume = self.name(), %error, next, "a plan was refused");
            return;
        };
        if let Some(unlogged) = jobs.failures.record(kind, jobs.mono_ns()) {
            tracing::warn!(
                volume = self.name(),
                operation = %error.direction,
                file = file_name(file),
                offset = error.offset,
                len = error.len,
                errno = error.errno,
                unlogged,
                next,
                "I/O of a request failed"
            );
        }
    }

    /// The commit is done; what is left is durability, if it was asked for.
    fn finish_write(&self, lsn: Lsn, fua: bool, waker: &Waker) -> StepOf<Self> {
        if fua && !canary::active!("drop_fua") {
            return self.poll_sync(SyncWait(lsn), waker);
        }
        Step::Done(Ok(()))
    }
}

impl Backend for Volume {
    type Read = ReadPlan;
    type Write = WritePlan;
    type Sync = SyncWait;

    fn geometry(&self) -> Geometry {
        self.tail.lock().geometry
    }

    fn begin(&self, op: &Op, waker: &Waker) -> StepOf<Self> {
        match *op {
            Op::Read { sector, sectors } if sectors <= REQUEST_SECTORS_MAX => {
                self.begin_read(sector, sectors, waker)
            }
            Op::Write {
                sector,
                sectors,
                fua,
            } if sectors <= REQUEST_SECTORS_MAX => {
                if sectors == 0 {
                    let checked = self.check_write(&self.tail.lock(), sector, sectors);
                    return Step::Done(checked.map(|_| ()));
                }
                self.begin_write((sector, sectors), fua, 0, waker)
            }
            Op::Read { .. } | Op::Write { .. } => Step::Done(Err(ErrorKind::Invalid)),
            Op::Flush => {
                let inner = self.tail.lock();
                match inner.check_serving() {
                    // What nobody writes to needs no log, and loses nothing with it.
                    Ok(())
                        if inner.geometry.read_only
                            && !canary::active!("snapshot_flush_asks_the_log") =>
                    {
                        Step::Done(Ok(()))
                    }
                    // Also with nothing new: a client must hear of it at its next FLUSH (R10).
                    Ok(()) if self.engine.poisoned.load(Ordering::Acquire) => {
                        Step::Done(Err(ErrorKind::Io))
                    }
                    Ok(()) => {
                        let newest = inner.newest;
                        drop(inner);
                        self.poll_sync(SyncWait(newest), waker)
                    }
                    Err(error) => Step::Done(Err(error)),
                }
            }
            Op::Discard {
                sector,
                sectors,
                fua,
            }
            | Op::WriteZeroes {
                sector,
                sectors,
                fua,
            } => self.begin_zeroes(sector, sectors, fua, waker),
            Op::Status { sector, sectors } => self.begin_status(sector, sectors, waker),
            Op::Prefetch { sector, sectors } => {
                let checked = self.check(&self.tail.lock(), sector, sectors);
                Step::Done(checked.map(|mut span| {
                    span.end = span.end.min(span.start + PREFETCH_SECTORS_MAX);
                    read_ahead::start_hint(&self.engine, &self.tail, vec![span]);
                }))
            }
        }
    }

    fn read(&self, plan: ReadPlan, moved: MoveResult, waker: &Waker) -> StepOf<Self> {
        self.finish_read(plan, moved, waker)
    }

    fn written(&self, mut plan: WritePlan, moved: MoveResult, waker: &Waker) -> StepOf<Self> {
        if let Err(error) = moved
            && !canary::active!("ignore_short_write")
        {
            let (span, fua, tries) = (plan.span, plan.fua, plan.tries + 1);
            drop(plan);
            if tries == WRITE_TRIES {
                self.report_failed_move(&error, "the request fails");
                return Step::Done(Err(error.into()));
            }
            self.report_failed_move(&error, "written elsewhere in the log");
            let place = (span.start, span.sectors() as u32);
            return self.begin_write(place, fua, tries, waker);
        }
        let Volume { engine, tail } = self;
        if engine.poisoned.load(Ordering::Acquire) {
            return Step::Done(Err(ErrorKind::Io));
        }
        if plan.planted {
            plan.lots.clear();
            return self.finish_write(tail.newest(), plan.fua, waker);
        }
        if canary::active!("request_that_comes_again_is_believed")
            && tail.has_from_before(plan.span)
        {
            let fua = plan.fua;
            drop(plan);
            return self.finish_write(tail.newest(), fua, waker);
        }
        let now_ns = engine.jobs.mono_ns();
        match tail.commit_lots(&engine.segments, &plan.lots, plan.slots, now_ns) {
            Ok(lsn) => {
                // The map names the bytes now: the plan gives nothing back, and unpins.
                plan.lots.clear();
                if engine.poisoned.load(Ordering::Acquire) {
                    // Poisoned meanwhile: a restart will not believe the ring (R10).
                    return Step::Done(Err(ErrorKind::Io));
                }
                self.finish_write(lsn, plan.fua, waker)
            }
            Err(error) => Step::Done(Err(error)),
        }
    }

    fn poll_sync(&self, sync: SyncWait, waker: &Waker) -> StepOf<Self> {
        let Volume { engine, tail } = self;
        let committer = engine.committer();
        let ended = || {
            if let Err(error) = tail.lock().check_serving() {
                return Some(Err(error));
            }
            let stored =
                !canary::active!("flush_waits_for_the_store") || tail.stored_lsn() >= sync.0;
            if tail.framed_lsn() >= sync.0 && stored {
                return Some(Ok(()));
            }
            committer.is_poisoned().then_some(Err(ErrorKind::Io))
        };
        // Checked before the waker is registered: a waker is kept until the next round,
        // and on an idle host there is none. A round that ends after the second wakes us.
        if let Some(result) = ended() {
            return Step::Done(result);
        }
        committer.wait(waker);
        if let Some(result) = ended() {
            return Step::Done(result);
        }
        committer.request_round_up_to(engine, tail, sync.0);
        Step::Sync(sync)
    }

    fn on_request_failed(&self, error: &MoveError) {
        self.report_failed_move(error, "the request fails");
    }
}
