//! A volume as transports see it: plan, move, commit (the hot path of the engine).
//!
//! Everything here answers from memory. What a request means is decided in [`Backend::begin`],
//! the one dispatch table that all transports share.

pub(crate) mod fork_base;
mod fork_point;
mod invariants;
mod kept_snapshots;
mod loose_layers;
pub(crate) mod parked;
mod plan;
pub(crate) mod points;
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
use blkmq::io::{
    Backend, FileId, Geometry, MoveError, MoveResult, Op, Park, Piece, Place, SECTOR_BYTES, Step,
    StepOf,
};
use smallvec::SmallVec;

pub use self::kept_snapshots::LogSnapshots;
use crate::driver::file_name;
use crate::engine::Engine;
use crate::failures::FailureKind;
use crate::log::ring::TailId;
use crate::map::index::IndexEntry;
use crate::map::layers::Location;
use crate::request::plan::Pieces;
pub use crate::request::plan::{ReadPlan, SyncWait, WritePlan};
use crate::request::tail::{Inner, Status, Tail};
use crate::request::watermark::Watermarks;
use crate::store::catalog::volume_spec::{VolumeInfo, VolumeOwner};
use crate::store::compact::state::VolumeSpace;
use crate::store::fetch;
use crate::store::fetch::read_ahead;
use crate::store::fetch::table::{FetchTarget, chunk_key};
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

/// What a read needs that is not on this host.
#[derive(Default)]
struct MissingData {
    targets: Vec<FetchTarget>,
    /// Some of it is nowhere any more.
    damaged: bool,
    /// What the store has is not known.
    unknown: bool,
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

    fn begin_read(&self, sector: u64, sectors: u32, waker: &Waker) -> StepOf<Self> {
        let mut plan = ReadPlan {
            pieces: Pieces::new(),
            pins: SmallVec::new(),
            chunks: SmallVec::new(),
        };
        let mut needs = MissingData::default();
        let span = {
            let inner = self.tail.lock();
            let span = match self.check(&inner, sector, u64::from(sectors)) {
                Ok(span) if span.is_empty() => return Step::Done(Ok(())),
                Ok(span) => span,
                Err(error) => return Step::Done(Err(error)),
            };
            inner.layers.lookup(span, &mut |part, found| match found {
                Location::Log(addr) | Location::Clean(addr) => {
                    plan.pins.push(self.engine.segments.pin(addr));
                    let (file, offset) = (FileId::LOG, addr.byte_offset());
                    plan.add(span, part, Place::At { file, offset });
                }
                Location::Zero => plan.add(span, part, Place::Hole),
                Location::Below => self.lookup_index(&inner, span, part, &mut plan, &mut needs),
            });
            span
        };
        if needs.unknown {
            drop(plan);
            return match self.waits_for_root(waker) {
                true => Step::Park(Park::Fetch),
                false => self.begin_read(sector, sectors, waker),
            };
        }
        if needs.damaged {
            return Step::Done(Err(ErrorKind::Io));
        }
        let has_waited = !needs.targets.is_empty();
        if has_waited || !plan.chunks.is_empty() {
            self.observe_read(span, has_waited);
        }
        if needs.targets.is_empty() {
            // The cache's lock is everybody's: a read of the log alone has no business there.
            if !plan.chunks.is_empty() {
                self.engine.cache.mark_planned(&plan.chunks);
            }
            return Step::Read(plan);
        }
        drop(plan);
        match fetch::request(&self.engine, &self.tail, needs.targets, waker) {
            Ok(()) => Step::Park(Park::Fetch),
            Err(error) => Step::Done(Err(error)),
        }
    }

    /// Has the waker woken when the root has been read. False: it has been, or the service has ended, and the request
    /// is to be looked at again.
    fn waits_for_root(&self, waker: &Waker) -> bool {
        self.tail.checked.wait(waker);
        let inner = self.tail.lock();
        inner.index.is_unknown() && inner.check_serving().is_ok()
    }

    /// A client read what the store has, and perhaps had to wait for it.
    fn observe_read(&self, span: Span, has_waited: bool) {
        let Volume { engine, tail } = self;
        tail.boot_set.observe(span, engine.jobs.mono_ns());
        if let Some(ahead) = engine.streams.observe(tail.id(), span, has_waited) {
            read_ahead::start(engine, tail, vec![ahead]);
        }
    }

    fn lookup_index(
        &self,
        inner: &Inner,
        whole: Span,
        span: Span,
        plan: &mut ReadPlan,
        needs: &mut MissingData,
    ) {
        let Engine { cache, blocks, .. } = &*self.engine;
        inner
            .index
            .lookup(span, blocks, &mut |part, stored| match stored {
                IndexEntry::Hole => plan.add(whole, part, Place::Hole),
                IndexEntry::Unloaded(target) => needs.targets.push(FetchTarget::Block(target)),
                IndexEntry::Part { chunk, skip } => match cache.find(chunk_key(chunk)) {
                    Some(hit) => {
                        plan.pins.push(hit.pin);
                        plan.chunks.push(chunk_key(chunk));
                        let offset = hit.offset + u64::from(skip) * SECTOR_BYTES;
                        plan.add(
                            whole,
                            part,
                            Place::At {
                                file: hit.file,
                                offset,
                            },
                        );
                    }
                    None => {
                        let chunk = Arc::new(chunk.clone());
                        needs.targets.push(FetchTarget::Chunk(chunk));
                    }
                },
                IndexEntry::Damaged => needs.damaged = true,
                IndexEntry::Unknown => needs.unknown = true,
            });
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
        let from_cache_disk = |piece: &Piece| {
            matches!(
                piece.place,
                Place::At {
                    file: FileId::CACHE,
                    ..
                }
            )
        };
        let again = moved.is_err()
            && plan.pieces.iter().any(from_cache_disk)
            && self.engine.cache.mark_damaged_on_disk(&plan.chunks);
        drop(plan);
        if let Err(error) = &moved {
            let next = if again {
                "fetched from the store"
            } else {
                "the request fails"
            };
            self.report_failed_move(error, next);
        }
        if let Err(error) = self.tail.lock().check_serving() {
            return Step::Done(Err(error));
        }
        if again {
            // The store has those bytes too (S8). It ends: they are not looked for there again.
            waker.wake_by_ref();
            return Step::Park(Park::Fetch);
        }
        Step::Done(moved.map_err(ErrorKind::from))
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
