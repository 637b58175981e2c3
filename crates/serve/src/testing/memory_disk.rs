//! A disk in memory that keeps the promises of `Backend`: each write gets a place of its own in
//! an anonymous file, a plan pins what it names, a place is reused only when it holds no live
//! sector and no plan names it. It can be told to misbehave as a real engine may: to park, to
//! make durability take time, to plan places that cannot be written, to cut plans into pieces.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use blkmq::error::ErrorKind;
use blkmq::io::{
    Backend, Extents, FileId, Geometry, MoveError, MoveResult, Op, Park, Piece, Place, Plan,
    SECTOR_BYTES, Step, StepOf,
};

use super::faults::Faults;

const BLOCK_BYTES: u64 = 4096;
const SECTORS_PER_BLOCK: u64 = BLOCK_BYTES / SECTOR_BYTES;

/// A file that no export has: a plan that names it cannot be carried out.
const NO_SUCH_FILE: FileId = FileId(99);

/// A place at which the file has no bytes.
const BEHIND_THE_END: u64 = 1 << 40;

#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    offset: u64,
    blocks: u64,
    live: u64,
    pins: u64,
}

struct State {
    /// Extent number plus one, and sector in it; zero is a hole.
    map: Vec<(u32, u32)>,
    extents: Vec<Extent>,
    vacant: Vec<u32>,
    /// Free places by their length in blocks.
    free: HashMap<u64, Vec<u64>>,
    end: u64,
    wakers: Vec<Waker>,
    sync_wakers: Vec<Waker>,
    issued: u64,
    durable: u64,
}

/// The disk.
pub struct MemoryDisk {
    sectors: u64,
    logical_block: u32,
    faults: Mutex<Faults>,
    state: Mutex<State>,
    begun: AtomicU64,
    writes: AtomicU64,
    /// Whether writes are refused.
    pub read_only: AtomicBool,
    this: Mutex<std::sync::Weak<MemoryDisk>>,
}

/// A read plan.
pub struct ReadPlan(ExtentPlan);
/// A write plan; dropped before it is committed it gives its place back.
pub struct WritePlan {
    planned: ExtentPlan,
    sector: u64,
    fua: bool,
}

struct ExtentPlan {
    disk: Arc<MemoryDisk>,
    extents: Vec<u32>,
    pieces: Vec<Piece>,
}

/// A wait for durability.
#[derive(Debug)]
pub struct SyncWait(u64);

impl Plan for ReadPlan {
    fn pieces(&self) -> &[Piece] {
        &self.0.pieces
    }
}

impl Plan for WritePlan {
    fn pieces(&self) -> &[Piece] {
        &self.planned.pieces
    }
}

impl fmt::Debug for ReadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.pieces.fmt(f)
    }
}

impl fmt::Debug for WritePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.planned.pieces.fmt(f)
    }
}

impl Drop for ExtentPlan {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        for &number in &self.extents {
            state.extents[number as usize].pins -= 1;
            state.reclaim(number);
        }
    }
}

impl State {
    fn reclaim(&mut self, number: u32) {
        let extent = self.extents[number as usize];
        if extent.live == 0 && extent.pins == 0 && extent.blocks > 0 {
            self.free
                .entry(extent.blocks)
                .or_default()
                .push(extent.offset);
            self.extents[number as usize].blocks = 0;
            self.vacant.push(number);
        }
    }

    fn allocate(&mut self, sectors: u64) -> u32 {
        let blocks = sectors.div_ceil(SECTORS_PER_BLOCK);
        let offset = self
            .free
            .get_mut(&blocks)
            .and_then(Vec::pop)
            .unwrap_or_else(|| {
                let offset = self.end;
                self.end += blocks * BLOCK_BYTES;
                offset
            });
        let extent = Extent {
            offset,
            blocks,
            live: 0,
            pins: 1,
        };
        match self.vacant.pop() {
            Some(number) => {
                self.extents[number as usize] = extent;
                number
            }
            None => {
                self.extents.push(extent);
                (self.extents.len() - 1) as u32
            }
        }
    }

    fn set(&mut self, sector: u64, to: Option<(u32, u32)>) {
        let new = to.map_or((0, 0), |(number, at)| (number + 1, at));
        let (old, _) = std::mem::replace(&mut self.map[sector as usize], new);
        if let Some((number, _)) = to {
            self.extents[number as usize].live += 1;
        }
        if old > 0 {
            self.extents[(old - 1) as usize].live -= 1;
            self.reclaim(old - 1);
        }
    }
}

impl fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDisk")
            .field("sectors", &self.sectors)
            .finish_non_exhaustive()
    }
}

impl MemoryDisk {
    /// A disk of `bytes` on a memory file of its own, and that file ([`FileId::LOG`]).
    pub fn new(bytes: u64, logical_block: u32, faults: Faults) -> (Arc<Self>, Arc<OwnedFd>) {
        // Sparse: only what is written costs memory.
        let file = reactor::memfd(c"disk", bytes * 8 + (64 << 20)).expect("a memory file");
        (
            Self::with_file_of_caller(bytes, logical_block, faults),
            Arc::new(file),
        )
    }

    /// A disk of `bytes` whose plans name places in a file of the caller's.
    pub fn with_file_of_caller(bytes: u64, logical_block: u32, faults: Faults) -> Arc<Self> {
        let sectors = bytes / SECTOR_BYTES;
        let state = State {
            map: vec![(0, 0); sectors as usize],
            extents: Vec::new(),
            vacant: Vec::new(),
            free: HashMap::new(),
            end: 0,
            wakers: Vec::new(),
            sync_wakers: Vec::new(),
            issued: 0,
            durable: 0,
        };
        let disk = Arc::new(MemoryDisk {
            sectors,
            logical_block,
            faults: Mutex::new(faults),
            state: Mutex::new(state),
            begun: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            read_only: AtomicBool::new(false),
            this: Mutex::default(),
        });
        *disk.this.lock().expect("no panic under the lock") = Arc::downgrade(&disk);
        disk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the lock")
    }

    fn arc(&self) -> Arc<MemoryDisk> {
        let this = self.this.lock().expect("no panic under the lock");
        this.upgrade().expect("called through a living disk")
    }

    /// Changes how it misbehaves.
    pub fn set_faults(&self, faults: Faults) {
        *self.faults.lock().expect("no panic under the lock") = faults;
    }

    /// Wakes everybody who is parked; how many.
    pub fn wake_all(&self) -> usize {
        let wakers = std::mem::take(&mut self.state().wakers);
        wakers.iter().for_each(Waker::wake_by_ref);
        wakers.len()
    }

    /// Makes everything issued durable, and wakes those that wait for it. Returns how many there were.
    pub fn make_durable(&self) -> usize {
        let mut state = self.state();
        state.durable = state.issued;
        let wakers = std::mem::take(&mut state.sync_wakers);
        drop(state);
        wakers.iter().for_each(Waker::wake_by_ref);
        wakers.len()
    }

    /// How often `begin` was called.
    pub fn begin_count(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Plans that live.
    pub fn pins(&self) -> u64 {
        self.state().extents.iter().map(|extent| extent.pins).sum()
    }

    /// Blocks in use, counted from the places and counted from the live extents.
    pub fn blocks(&self) -> (u64, u64) {
        let state = self.state();
        let free: u64 = state
            .free
            .iter()
            .map(|(len, places)| len * places.len() as u64)
            .sum();
        let used = state.extents.iter().map(|extent| extent.blocks).sum();
        (state.end / BLOCK_BYTES - free, used)
    }

    fn is_due(&self, every: u64, count: u64) -> bool {
        every > 0 && count.is_multiple_of(every)
    }

    /// What is mapped is dirty: there is no store.
    fn status(&self, sector: u64, sectors: u64) -> Extents {
        let state = self.state();
        let mut extents = Extents::default();
        for (number, _) in &state.map[sector as usize..(sector + sectors) as usize] {
            extents.push(blkmq::io::Extent {
                sectors: 1,
                allocated: *number > 0,
                dirty: *number > 0,
            });
        }
        extents
    }

    fn plan_read(&self, sector: u64, sectors: u64) -> ReadPlan {
        let faults = *self.faults.lock().expect("no panic under the lock");
        let limit = if faults.piece_sectors == 0 {
            u32::MAX.into()
        } else {
            faults.piece_sectors * SECTOR_BYTES
        };
        let mut state = self.state();
        let mut pieces: Vec<Piece> = Vec::new();
        let mut extents = Vec::new();
        for at in u64::from(faults.plan_gap)..sectors {
            let (number, index) = state.map[(sector + at) as usize];
            let place = if number == 0 {
                Place::Hole
            } else {
                let extent = &mut state.extents[(number - 1) as usize];
                if extents.last() != Some(&(number - 1)) {
                    extent.pins += 1;
                    extents.push(number - 1);
                }
                let offset = extent.offset + u64::from(index) * SECTOR_BYTES;
                Place::At {
                    file: FileId::LOG,
                    offset,
                }
            };
            let next = match pieces.last() {
                Some(last) if u64::from(last.len) < limit => match last.place {
                    Place::Hole => Some(Place::Hole),
                    Place::At { file, offset } => Some(Place::At {
                        file,
                        offset: offset + u64::from(last.len),
                    }),
                },
                _ => None,
            };
            match pieces.last_mut().filter(|_| next == Some(place)) {
                Some(last) => last.len += SECTOR_BYTES as u32,
                None => pieces.push(Piece {
                    at: (at * SECTOR_BYTES) as u32,
                    len: SECTOR_BYTES as u32,
                    place,
                }),
            }
        }
        drop(state);
        if faults.short_read {
            for piece in &mut pieces {
                piece.place = Place::At {
                    file: FileId::LOG,
                    offset: BEHIND_THE_END,
                };
            }
        }
        ReadPlan(ExtentPlan {
            disk: self.arc(),
            extents,
            pieces,
        })
    }

    fn plan_write(&self, sector: u64, sectors: u64, fua: bool) -> WritePlan {
        let faults = *self.faults.lock().expect("no panic under the lock");
        let limit = if faults.piece_sectors == 0 {
            sectors
        } else {
            faults.piece_sectors
        };
        let count = self.writes.fetch_add(1, Ordering::SeqCst) + 1;
        let fails = self.is_due(faults.fail_move, count);
        let mut state = self.state();
        let (mut extents, mut pieces) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < sectors {
            let len = limit.min(sectors - at);
            let number = state.allocate(len);
            extents.push(number);
            let file = if fails { NO_SUCH_FILE } else { FileId::LOG };
            let offset = state.extents[number as usize].offset;
            pieces.push(Piece {
                at: (at * SECTOR_BYTES) as u32,
                len: (len * SECTOR_BYTES) as u32,
                place: Place::At { file, offset },
            });
            at += len;
        }
        drop(state);
        WritePlan {
            planned: ExtentPlan {
                disk: self.arc(),
                extents,
                pieces,
            },
            sector,
            fua,
        }
    }

    fn durable(&self, waker: &Waker) -> Step<ReadPlan, WritePlan, SyncWait> {
        if !self
            .faults
            .lock()
            .expect("no panic under the lock")
            .slow_sync
        {
            return Step::Done(Ok(()));
        }
        let mut state = self.state();
        state.issued += 1;
        let ticket = state.issued;
        state.sync_wakers.push(waker.clone());
        Step::Sync(SyncWait(ticket))
    }
}

impl Backend for MemoryDisk {
    type Read = ReadPlan;
    type Write = WritePlan;
    type Sync = SyncWait;

    fn geometry(&self) -> Geometry {
        Geometry {
            bytes: self.sectors * SECTOR_BYTES,
            logical_block: self.logical_block,
            physical_block: 4096,
            read_only: self.read_only.load(Ordering::Relaxed),
        }
    }

    fn begin(&self, op: &Op, waker: &Waker) -> StepOf<Self> {
        // Read first: who saw the count may change them.
        let faults = *self.faults.lock().expect("no panic under the lock");
        let count = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        for (every, cause) in [
            (faults.park_space, Park::Space),
            (faults.park_fetch, Park::Fetch),
        ] {
            if self.is_due(every, count) && *op != Op::Flush {
                self.state().wakers.push(waker.clone());
                return Step::Park(cause);
            }
        }
        if self.read_only.load(Ordering::Relaxed) && op.changes() {
            return Step::Done(Err(ErrorKind::ReadOnly));
        }
        match *op {
            Op::Read { sector, sectors } => Step::Read(self.plan_read(sector, u64::from(sectors))),
            Op::Write {
                sector,
                sectors,
                fua,
            } => Step::Write(self.plan_write(sector, u64::from(sectors), fua)),
            Op::Flush => self.durable(waker),
            Op::Discard {
                sector,
                sectors,
                fua,
            }
            | Op::WriteZeroes {
                sector,
                sectors,
                fua,
            } => {
                let mut state = self.state();
                (sector..sector + sectors).for_each(|sector| state.set(sector, None));
                drop(state);
                if fua {
                    self.durable(waker)
                } else {
                    Step::Done(Ok(()))
                }
            }
            Op::Status { sector, sectors } => Step::Status(self.status(sector, sectors)),
            Op::Prefetch { .. } => Step::Done(Ok(())),
        }
    }

    fn read(&self, plan: ReadPlan, moved: MoveResult, _: &Waker) -> StepOf<Self> {
        drop(plan);
        Step::Done(moved.map_err(ErrorKind::from))
    }

    fn written(&self, plan: WritePlan, moved: MoveResult, waker: &Waker) -> StepOf<Self> {
        let (sector, fua) = (plan.sector, plan.fua);
        if moved.is_err() {
            let sectors = plan
                .planned
                .pieces
                .iter()
                .map(|piece| u64::from(piece.len))
                .sum::<u64>();
            return Step::Write(self.plan_write(sector, sectors / SECTOR_BYTES, fua));
        }
        let mut state = self.state();
        let mut at = sector;
        for (piece, &number) in plan.planned.pieces.iter().zip(&plan.planned.extents) {
            for index in 0..piece.len / SECTOR_BYTES as u32 {
                state.set(at, Some((number, index)));
                at += 1;
            }
        }
        drop(state);
        drop(plan);
        if fua {
            self.durable(waker)
        } else {
            Step::Done(Ok(()))
        }
    }

    fn poll_sync(&self, sync: SyncWait, waker: &Waker) -> StepOf<Self> {
        let mut state = self.state();
        if state.durable >= sync.0 {
            return Step::Done(Ok(()));
        }
        state.sync_wakers.push(waker.clone());
        Step::Sync(sync)
    }

    fn on_request_failed(&self, _: &MoveError) {}
}
