//! The shared vocabulary: operations, extents, plans, and the [`Backend`] a transport serves.
//!
//! Every request on every transport takes the same four steps: *admit* (a tag in a hardware
//! queue), *plan* ([`Backend::begin`]: which file extents hold or take the bytes), *move* (the
//! transport's own way of carrying bytes between the request and the extents) and *commit*
//! ([`Backend::written`]). What an operation means is decided in `begin` alone, so all transports
//! share one dispatch table (R8). Nothing here does I/O or waits: where a backend cannot go on it
//! answers [`Step::Park`] or [`Step::Sync`] and wakes the given [`Waker`] later, from any thread.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use crate::error::ErrorKind;
use crate::sync::{AtomicU32, Ordering};

/// Bytes in a sector, the unit of all addresses, whatever the logical block size.
pub const SECTOR_BYTES: u64 = 512;

/// What a client asks of a device. Addresses and lengths are in 512-byte sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read `sectors` from `sector` on.
    Read {
        /// First sector.
        sector: u64,
        /// How many.
        sectors: u32,
    },
    /// Write `sectors` from `sector` on; with `fua` complete only once durable (S2).
    Write {
        /// First sector.
        sector: u64,
        /// How many.
        sectors: u32,
        /// Complete only once durable.
        fua: bool,
    },
    /// Make every write that completed before this was issued durable (S2).
    Flush,
    /// The range's content is no longer needed; it reads as zeroes afterwards.
    Discard {
        /// First sector.
        sector: u64,
        /// How many.
        sectors: u64,
        /// Complete only once durable.
        fua: bool,
    },
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// First sector.
        sector: u64,
        /// How many.
        sectors: u64,
        /// Complete only once durable.
        fua: bool,
    },
    /// What is known of the range without reading it: answered with [`Step::Status`].
    Status {
        /// First sector.
        sector: u64,
        /// How many are asked for; the answer may cover fewer.
        sectors: u64,
    },
    /// The range will be read soon. A hint: it completes before anything is fetched.
    Prefetch {
        /// First sector.
        sector: u64,
        /// How many.
        sectors: u64,
    },
}

impl Op {
    /// Whether it changes what is read afterwards.
    pub fn changes(&self) -> bool {
        match self {
            Op::Write { .. } | Op::Discard { .. } | Op::WriteZeroes { .. } => true,
            Op::Read { .. } | Op::Flush | Op::Status { .. } | Op::Prefetch { .. } => false,
        }
    }
}

/// What is known of some consecutive sectors without reading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many sectors; at least one.
    pub sectors: u64,
    /// Whether anything is kept for them. What is not reads as zeroes.
    pub allocated: bool,
    /// Whether the store may not have them as they are now.
    pub dirty: bool,
}

/// Extents in ascending order, each beginning where the one before it ends. Neighbours that are
/// alike are one extent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents(Vec<Extent>);

impl Extents {
    /// Appends an extent.
    pub fn push(&mut self, extent: Extent) {
        if extent.sectors == 0 {
            return;
        }
        match self.0.last_mut() {
            Some(last) if last.allocated == extent.allocated && last.dirty == extent.dirty => {
                last.sectors += extent.sectors;
            }
            _ => self.0.push(extent),
        }
    }
}

impl std::ops::Deref for Extents {
    type Target = [Extent];

    fn deref(&self) -> &[Extent] {
        &self.0
    }
}

/// A file that a plan may name. The transport holds the open file; the backend only its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u16);

impl FileId {
    /// The write-back log.
    pub const LOG: FileId = FileId(0);
    /// The read cache on the local disk.
    pub const CACHE: FileId = FileId(1);
    /// Fetched bytes on their way: an anonymous memory file.
    pub const MEMORY: FileId = FileId(2);
    /// A request's own bytes, where its transport gets at them through a file. Never in a plan.
    pub const WINDOW: FileId = FileId(u16::MAX);
}

/// Where the bytes of a [`Piece`] live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: the bytes are zeroes. Only in read plans.
    Hole,
    /// At this byte offset of this file.
    At {
        /// The file.
        file: FileId,
        /// Offset in bytes.
        offset: u64,
    },
}

/// One contiguous part of a request and the place of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the request's buffer, in bytes.
    pub at: u32,
    /// Length in bytes.
    pub len: u32,
    /// Where the bytes are, or are to go.
    pub place: Place,
}

/// Whether the pieces cover `len` bytes in order, without gap or overlap.
pub fn covers(pieces: &[Piece], len: usize) -> bool {
    let mut end = 0_u64;
    for piece in pieces {
        if u64::from(piece.at) != end || piece.len == 0 {
            return false;
        }
        end += u64::from(piece.len);
    }
    end == len as u64
}

/// A plan: pieces in ascending `at` that cover the request without gap or overlap.
///
/// While the plan lives, nothing that it names is recycled, evicted or moved.
pub trait Plan: Send + fmt::Debug {
    /// The pieces.
    fn pieces(&self) -> &[Piece];
}

/// Which way the bytes of a request go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the extents to the request.
    Read,
    /// From the request to the extents.
    Write,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Read => "read",
            Direction::Write => "write",
        })
    }
}

/// How the move of a request's bytes ended.
pub type MoveResult = Result<(), MoveError>;

/// Why the bytes of a request could not be moved: the first file operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveError {
    /// What was to be done to the file.
    pub direction: Direction,
    /// The file, or none where the plan itself does not fit its request: no I/O was done then.
    pub file: Option<FileId>,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
    /// The positive errno. I/O that stays short counts as `EIO`.
    pub errno: i32,
}

impl MoveError {
    const EIO: i32 = 5;
    const EINVAL: i32 = 22;

    /// A file operation for `piece` failed with `errno`.
    #[cold]
    pub fn of_piece(direction: Direction, piece: &Piece, errno: i32) -> MoveError {
        let (file, offset) = match piece.place {
            Place::Hole => (None, 0),
            Place::At { file, offset } => (Some(file), offset),
        };
        MoveError {
            direction,
            file,
            offset,
            len: piece.len,
            errno,
        }
    }

    /// The same, with the error of a call.
    #[cold]
    pub fn of_io(direction: Direction, piece: &Piece, error: &std::io::Error) -> MoveError {
        MoveError::of_piece(direction, piece, MoveError::errno_of(error))
    }

    /// The errno of a failed call. One without an errno is I/O that stayed short.
    #[cold]
    pub fn errno_of(error: &std::io::Error) -> i32 {
        error.raw_os_error().unwrap_or(MoveError::EIO)
    }

    /// Bytes of a request could not be copied from or to its own memory, at `offset` of the file
    /// through which its transport gets at it.
    #[cold]
    pub fn of_window(direction: Direction, offset: u64, len: u32, errno: i32) -> MoveError {
        MoveError {
            direction,
            file: Some(FileId::WINDOW),
            offset,
            len,
            errno,
        }
    }

    /// The plan does not fit its request.
    #[cold]
    pub fn of_plan(direction: Direction) -> MoveError {
        MoveError {
            direction,
            file: None,
            offset: 0,
            len: 0,
            errno: MoveError::EINVAL,
        }
    }
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MoveError {
            direction,
            offset,
            len,
            errno,
            ..
        } = self;
        match self.file {
            Some(FileId::WINDOW) => write!(
                f,
                "{direction} of {len} bytes at offset {offset} of the request's window: errno {errno}"
            ),
            Some(FileId(file)) => write!(
                f,
                "{direction} of {len} bytes at offset {offset} of file {file}: errno {errno}"
            ),
            None => write!(f, "{direction}: the plan does not fit the request"),
        }
    }
}

impl std::error::Error for MoveError {}

/// The client of a request whose bytes could not be moved learns no more than that.
impl From<MoveError> for ErrorKind {
    fn from(_: MoveError) -> ErrorKind {
        ErrorKind::Io
    }
}

/// A count of plans that name a segment or a slot; whoever recycles it first sees zero.
#[derive(Clone, Debug, Default)]
pub struct PinCount(Arc<AtomicU32>);

impl PinCount {
    /// Takes a pin. Callers do so under the lock under which the owner decides to recycle, so a
    /// recycle that saw zero cannot be followed by a pin of the old content.
    pub fn pin(&self) -> Pin {
        self.0.fetch_add(1, Ordering::Relaxed);
        Pin(Arc::clone(&self.0))
    }

    /// How many plans hold a pin. `Acquire`: who sees zero also sees all those plans' I/O done.
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

/// Held by a plan for each segment or slot that it names; released on drop.
#[derive(Debug)]
pub struct Pin(Arc<AtomicU32>);

impl Drop for Pin {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `PinCount::count`.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Why a request is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Park {
    /// The log or the index ring has no room for it yet.
    Space,
    /// Its bytes are being fetched from the store.
    Fetch,
}

/// What a request does next.
#[derive(Debug)]
pub enum Step<R, W, S> {
    /// Move these bytes into the request, then call [`Backend::read`].
    Read(R),
    /// Move the request's bytes to these extents, then call [`Backend::written`].
    Write(W),
    /// Nothing was done. The waker is woken when it is worth calling [`Backend::begin`] again.
    Park(Park),
    /// Done but for durability. When the waker is woken, call [`Backend::poll_sync`].
    Sync(S),
    /// Complete an [`Op::Status`] with these extents: at least one, from its first sector on.
    Status(Extents),
    /// Complete the request with this result.
    Done(Result<(), ErrorKind>),
}

/// The step type of a backend.
pub type StepOf<B> = Step<<B as Backend>::Read, <B as Backend>::Write, <B as Backend>::Sync>;

/// What a device looks like to its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes; a multiple of the logical block size.
    pub bytes: u64,
    /// Smallest unit of addressing in bytes: 512 or 4096.
    pub logical_block: u32,
    /// Unit that is written without partial updates, in bytes: 4096.
    pub physical_block: u32,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// What a transport serves: a volume, or in tests anything that keeps these promises.
///
/// All methods answer from memory: they never wait, and hold locks only for bounded work. They
/// may be called from any thread, and from several at once.
pub trait Backend: Send + Sync + 'static {
    /// Plan of a read.
    type Read: Plan;
    /// Plan of a write. Dropped without [`Backend::written`], it gives back what it reserved.
    type Write: Plan;
    /// A wait for durability.
    type Sync: Send + fmt::Debug;

    /// Size and block sizes. May grow while the device is live.
    fn geometry(&self) -> Geometry;

    /// The one dispatch table: what `op` means, and its first step.
    fn begin(&self, op: &Op, waker: &Waker) -> StepOf<Self>
    where
        Self: Sized;

    /// The bytes of a read are in place, or could not be moved. Answers `Done`, or `Park` where
    /// another copy of the bytes is worth trying (then begin again).
    fn read(&self, plan: Self::Read, moved: MoveResult, waker: &Waker) -> StepOf<Self>
    where
        Self: Sized;

    /// The bytes of a write are in place: commit. Or they could not be moved: then a new plan at
    /// another place is answered as long as that makes sense (R10), else the error.
    fn written(&self, plan: Self::Write, moved: MoveResult, waker: &Waker) -> StepOf<Self>
    where
        Self: Sized;

    /// Is it durable now? Answers `Sync` again (the waker is kept) or `Done`.
    fn poll_sync(&self, sync: Self::Sync, waker: &Waker) -> StepOf<Self>
    where
        Self: Sized;

    /// A request failed in its transport, outside of any move: its bytes could not be copied from or to its
    /// window, or its plan does not fit it. The backend counts and logs it here.
    fn on_request_failed(&self, error: &MoveError);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_extents_that_are_alike_are_one() {
        let extent = |sectors, allocated, dirty| Extent {
            sectors,
            allocated,
            dirty,
        };
        let mut extents = Extents::default();
        for next in [
            extent(8, true, true),
            extent(0, false, false),
            extent(8, true, true),
            extent(8, true, false),
            extent(8, false, false),
        ] {
            extents.push(next);
        }
        let want = [
            extent(16, true, true),
            extent(8, true, false),
            extent(8, false, false),
        ];
        assert_eq!(*extents, want);
    }

    #[test]
    fn a_failed_move_names_operation_file_offset_length_and_errno() {
        let piece = Piece {
            at: 512,
            len: 4096,
            place: Place::At {
                file: FileId::CACHE,
                offset: 8192,
            },
        };
        let error = MoveError::of_piece(Direction::Write, &piece, 28);
        let text = "write of 4096 bytes at offset 8192 of file 1: errno 28";
        assert_eq!(error.to_string(), text);
        let short = std::io::ErrorKind::UnexpectedEof.into();
        assert_eq!(MoveError::of_io(Direction::Read, &piece, &short).errno, 5);
        assert_eq!(MoveError::of_plan(Direction::Read).file, None);
    }
}
