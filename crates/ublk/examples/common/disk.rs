//! Plain files as a disk, in place: one, or several with the disk striped over them.
//!
//! Offsets on the disk are offsets in the files, so nothing is ever moved and plans need no pins.
//! What needs a system call that the ring does not make (durability, zeroing, giving space back)
//! is a job of one thread; many flushes that came meanwhile are one sync.

use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;

use blkmq::error::ErrorKind;
use blkmq::io::{
    Backend, FileId, Geometry, MoveError, MoveResult, Op, Piece, Place, Plan, SECTOR_BYTES, Step,
    StepOf,
};
use blkmq::{Device, DeviceOptions};
use reactor::DioAlign;
use rustix::fs::FallocateFlags;
use smallvec::SmallVec;
use ublk::Disk;
use ublk::spec::Discard;
use ublk::{BackendFile, BackendHandler};

use super::DiskService;
use super::options::{Arguments, size};

/// How files are opened and used.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The files.
    pub files: Vec<PathBuf>,
    /// All files are one disk, with this many bytes in a row on one before the next one's turn.
    pub stripe_bytes: Option<u64>,
    /// Past the page cache.
    pub direct: bool,
}

impl Layout {
    /// From `FILE... [--direct] [--stripe SIZE]`.
    pub fn from_arguments(arguments: &Arguments) -> Result<Layout, Box<dyn Error>> {
        if arguments.rest.is_empty() {
            return Err("give at least one FILE".into());
        }
        let stripe_bytes = arguments.text("--stripe").map(size).transpose()?;
        if stripe_bytes.is_some_and(|bytes| bytes == 0 || !bytes.is_multiple_of(4096)) {
            return Err("--stripe takes a multiple of 4096".into());
        }
        Ok(Layout {
            files: arguments.rest.iter().map(PathBuf::from).collect(),
            stripe_bytes,
            direct: arguments.has("--direct"),
        })
    }
}

/// A disk on files, and the device that its requests are admitted through.
pub struct StripedDisk {
    disk: Arc<FileDisk>,
    device: Arc<Device>,
}

impl StripedDisk {
    /// The disks that a layout means.
    pub fn open_all(layout: &Layout) -> io::Result<Vec<StripedDisk>> {
        let groups: Vec<&[PathBuf]> = match layout.stripe_bytes {
            Some(_) => vec![&layout.files],
            None => layout.files.chunks(1).collect(),
        };
        let open = |files: &[PathBuf]| {
            let disk = FileDisk::open(files, layout.stripe_bytes, layout.direct)?;
            Ok(StripedDisk::with_disk(disk))
        };
        groups.into_iter().map(open).collect()
    }

    /// A disk in memory.
    pub fn memory(bytes: u64) -> io::Result<StripedDisk> {
        let file = reactor::memfd(c"disk", bytes)?;
        let disk = FileDisk::on_files(vec![Arc::new(file)], bytes, None, DioAlign::NONE)?;
        Ok(StripedDisk::with_disk(disk))
    }

    fn with_disk(disk: Arc<FileDisk>) -> StripedDisk {
        StripedDisk {
            disk,
            device: Device::new("disk", DeviceOptions::default()),
        }
    }
}

impl DiskService for StripedDisk {
    type Handler = BackendHandler<FileDisk>;

    fn disk(&self) -> Disk {
        let geometry = self.disk.geometry();
        let bytes_max = 64 << 20;
        Disk {
            logical_block: geometry.logical_block,
            physical_block: geometry.physical_block.max(geometry.logical_block),
            discard: Some(Discard {
                granularity: 4096,
                bytes_max,
                zeroes_bytes_max: bytes_max,
            }),
            dma_alignment: Some(self.disk.align.memory.max(512)),
            ..Disk::new(geometry.bytes)
        }
    }

    fn handler(&self, _queue: u16, depth: u16) -> BackendHandler<FileDisk> {
        let files = self.disk.backend_files();
        BackendHandler::new(Arc::clone(&self.disk), &self.device, files, depth)
    }
}

/// Files as a disk.
pub struct FileDisk {
    bytes: u64,
    logical_block: u32,
    stripe_bytes: u64,
    files: Vec<Arc<OwnedFd>>,
    align: DioAlign,
    jobs: Arc<FileJobs>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl FileDisk {
    fn open(paths: &[PathBuf], stripe: Option<u64>, direct: bool) -> io::Result<Arc<FileDisk>> {
        let named = |path: &PathBuf, error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        let (mut files, mut align, mut smallest) = (Vec::new(), DioAlign::NONE, u64::MAX);
        for path in paths {
            let mut options = File::options();
            options.read(true).write(true);
            if direct {
                options.custom_flags(libc::O_DIRECT);
            }
            let mut file = options.open(path).map_err(|error| named(path, error))?;
            // Not what it says of itself: block devices have a size, too.
            smallest = smallest.min(file.seek(SeekFrom::End(0))?);
            if direct {
                let unknown = || io::Error::other("its direct I/O alignment is unknown");
                let known = DioAlign::of(&file)?
                    .ok_or_else(unknown)
                    .map_err(|error| named(path, error))?;
                align.memory = align.memory.max(known.memory);
                align.offset = align.offset.max(known.offset);
            }
            files.push(Arc::new(OwnedFd::from(file)));
        }
        FileDisk::on_files(files, smallest, stripe, align)
    }

    /// A disk on files of which each has `each` bytes or more.
    fn on_files(
        files: Vec<Arc<OwnedFd>>,
        each: u64,
        stripe: Option<u64>,
        align: DioAlign,
    ) -> io::Result<Arc<FileDisk>> {
        let logical_block = align.offset.max(SECTOR_BYTES as u32);
        let stripe_bytes = stripe.unwrap_or(u64::from(logical_block));
        let bytes = (each - each % stripe_bytes) * files.len() as u64;
        let jobs = Arc::<FileJobs>::default();
        let (for_worker, on) = (Arc::clone(&jobs), files.clone());
        let worker = std::thread::Builder::new()
            .name("file-jobs".into())
            .spawn(move || for_worker.work(&on))?;
        Ok(Arc::new(FileDisk {
            bytes,
            logical_block,
            stripe_bytes,
            files,
            align,
            jobs,
            worker: Mutex::new(Some(worker)),
        }))
    }

    /// The files as plans name them.
    fn backend_files(&self) -> Vec<BackendFile> {
        let served = self.files.iter().enumerate().map(|(at, fd)| BackendFile {
            id: FileId(at as u16),
            fd: Arc::clone(fd),
            align: self.align,
        });
        served.collect()
    }

    /// The parts of a range.
    fn parts(&self, sector: u64, sectors: u64) -> impl Iterator<Item = Part> {
        let (start, end) = (sector * SECTOR_BYTES, (sector + sectors) * SECTOR_BYTES);
        let (stripe, count) = (self.stripe_bytes, self.files.len() as u64);
        let mut at = start;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (file, offset, len) = if count == 1 {
                (0, at, end - at)
            } else {
                let (row, within) = (at / stripe, at % stripe);
                let offset = row / count * stripe + within;
                (row % count, offset, (stripe - within).min(end - at))
            };
            let part = Part {
                at: at - start,
                len,
                file: file as usize,
                offset,
            };
            at += len;
            Some(part)
        })
    }

    fn plan(&self, sector: u64, sectors: u32) -> Pieces {
        let piece = |part: Part| Piece {
            at: part.at as u32,
            len: part.len as u32,
            place: Place::At {
                file: FileId(part.file as u16),
                offset: part.offset,
            },
        };
        Pieces(self.parts(sector, u64::from(sectors)).map(piece).collect())
    }

    fn zero(&self, sector: u64, sectors: u64, keep: bool, waker: &Waker) -> StepOf<Self> {
        Step::Sync(self.jobs.push(
            FileJob::Zero {
                parts: self.parts(sector, sectors).collect(),
                keep,
            },
            waker,
        ))
    }
}

impl Drop for FileDisk {
    fn drop(&mut self) {
        self.jobs.state().closed = true;
        self.jobs.more.notify_all();
        let worker = self
            .worker
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(worker) = worker
            && worker.thread().id() != std::thread::current().id()
        {
            // It ends after the job at hand.
            let _ = worker.join();
        }
    }
}

/// A plan.
#[derive(Debug)]
pub struct Pieces(SmallVec<[Piece; 1]>);

/// A plan of a write that may have to be durable.
#[derive(Debug)]
pub struct WritePlan(Pieces, bool);

impl Plan for Pieces {
    fn pieces(&self) -> &[Piece] {
        &self.0
    }
}

impl Plan for WritePlan {
    fn pieces(&self) -> &[Piece] {
        self.0.pieces()
    }
}

impl Backend for FileDisk {
    type Read = Pieces;
    type Write = WritePlan;
    type Sync = Ticket;

    fn geometry(&self) -> Geometry {
        Geometry {
            bytes: self.bytes,
            logical_block: self.logical_block,
            physical_block: 4096,
            read_only: false,
        }
    }

    fn begin(&self, op: &Op, waker: &Waker) -> StepOf<Self> {
        match *op {
            Op::Read { sector, sectors } => Step::Read(self.plan(sector, sectors)),
            Op::Write {
                sector,
                sectors,
                fua,
            } => Step::Write(WritePlan(self.plan(sector, sectors), fua)),
            Op::Flush => Step::Sync(self.jobs.push(FileJob::Sync, waker)),
            Op::Discard {
                sector, sectors, ..
            } => self.zero(sector, sectors, false, waker),
            Op::WriteZeroes {
                sector, sectors, ..
            } => self.zero(sector, sectors, true, waker),
            Op::Prefetch { .. } => Step::Done(Ok(())),
            Op::Status { .. } => Step::Done(Err(ErrorKind::Unsupported)),
        }
    }

    fn read(&self, _: Pieces, moved: MoveResult, _: &Waker) -> StepOf<Self> {
        Step::Done(moved.map_err(ErrorKind::from))
    }

    fn written(&self, plan: WritePlan, moved: MoveResult, waker: &Waker) -> StepOf<Self> {
        if plan.1 && moved.is_ok() {
            return Step::Sync(self.jobs.push(FileJob::Sync, waker));
        }
        Step::Done(moved.map_err(ErrorKind::from))
    }

    fn poll_sync(&self, ticket: Ticket, waker: &Waker) -> StepOf<Self> {
        self.jobs.poll(ticket, waker)
    }

    fn on_request_failed(&self, _: &MoveError) {}
}

/// A part of a range that lies in one file.
struct Part {
    /// Where it begins in the range.
    at: u64,
    len: u64,
    file: usize,
    offset: u64,
}

enum FileJob {
    /// Everything written so far is to be durable.
    Sync,
    /// These parts read as zeroes and are durable so; `keep` keeps their space.
    Zero { parts: Vec<Part>, keep: bool },
}

/// A wait for a job.
#[derive(Debug)]
pub struct Ticket(u64);

#[derive(Default)]
struct State {
    pushed: u64,
    /// Jobs up to this one have ended.
    done: u64,
    failed: Vec<(u64, ErrorKind)>,
    /// A sync failed: what it should have covered is unknown for good (R10).
    poisoned: bool,
    queued: VecDeque<(u64, FileJob)>,
    waiting: Vec<Waker>,
    closed: bool,
}

/// What the worker is asked to do.
#[derive(Default)]
struct FileJobs {
    state: Mutex<State>,
    more: Condvar,
}

impl FileJobs {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: FileJob, waker: &Waker) -> Ticket {
        let mut state = self.state();
        state.pushed += 1;
        let number = state.pushed;
        state.queued.push_back((number, job));
        state.waiting.push(waker.clone());
        drop(state);
        self.more.notify_one();
        Ticket(number)
    }

    fn poll<R, W>(&self, ticket: Ticket, waker: &Waker) -> Step<R, W, Ticket> {
        let mut state = self.state();
        if state.done < ticket.0 {
            state.waiting.push(waker.clone());
            return Step::Sync(ticket);
        }
        let failed = state
            .failed
            .iter()
            .position(|(number, _)| *number == ticket.0);
        Step::Done(failed.map_or(Ok(()), |at| Err(state.failed.swap_remove(at).1)))
    }

    /// The worker: does what is asked until it is over.
    fn work(&self, files: &[Arc<OwnedFd>]) {
        loop {
            let mut state = self.state();
            while state.queued.is_empty() && !state.closed {
                state = self
                    .more
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if state.queued.is_empty() {
                return;
            }
            let poisoned = state.poisoned;
            let queued = std::mem::take(&mut state.queued);
            drop(state);
            let mut failed = Vec::new();
            let (mut last, mut syncs) = (0, Vec::new());
            for (number, job) in queued {
                last = number;
                match job {
                    FileJob::Sync => syncs.push(number),
                    FileJob::Zero { parts, keep } => {
                        if let Err(error) = zero(files, &parts, keep) {
                            failed.push((number, kind_of(&error)));
                        }
                    }
                }
            }
            let synced = syncs.is_empty()
                || !poisoned && files.iter().all(|file| rustix::fs::fdatasync(file).is_ok());
            if !synced {
                failed.extend(syncs.iter().map(|&number| (number, ErrorKind::Io)));
            }
            let mut state = self.state();
            state.poisoned |= !synced;
            state.failed.append(&mut failed);
            state.done = last;
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            waiting.iter().for_each(Waker::wake_by_ref);
        }
    }
}

fn zero(files: &[Arc<OwnedFd>], parts: &[Part], keep: bool) -> io::Result<()> {
    for part in parts {
        let how = if keep {
            FallocateFlags::ZERO_RANGE
        } else {
            FallocateFlags::PUNCH_HOLE
        };
        let file = &files[part.file];
        let how = how | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, how, part.offset, part.len)?;
        rustix::fs::fdatasync(file)?;
    }
    Ok(())
}

fn kind_of(error: &io::Error) -> ErrorKind {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => ErrorKind::Unsupported,
        Some(libc::ENOSPC) => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    }
}
