//! The requests that the engine hands to its driver, and the outcomes that the driver gives back.
//!
//! The engine does no I/O: it emits [`Request`]s and takes [`Outcome`]s, in any order, from any
//! thread. Disk requests name files by [`FileId`]; store requests name objects by key; a [`Computation`] is
//! long computing, which must not hold up the thread that runs the engine's procedures.

use std::fmt;

use blkmq::io::FileId;
use bytes::Bytes;

pub use crate::computation::{Computation, ComputeError, ComputeKind};

/// The driver's wake-up: called when the engine has something for it to do. Called from any thread,
/// also under engine locks: must not block and must not call the engine back.
pub trait Notify: Send + Sync {
    /// `take_commit_requests` has something; latency matters.
    fn commit_ready(&self);
    /// `run_jobs` or `take_requests` has something.
    fn jobs_ready(&self);
}

/// Names a request until its outcome is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Something to be done, exactly once; its outcome goes to [`crate::Host::complete`].
#[derive(Debug)]
pub struct Request {
    /// Names it in the outcome.
    pub id: RequestId,
    /// What to do.
    pub op: RequestOp,
}

/// Where a request goes.
#[derive(Debug)]
pub enum RequestOp {
    /// To a local file.
    Disk(DiskOp),
    /// To the object store.
    Store(StoreOp),
    /// To a thread that may be busy for long; those that a client waits for first.
    Compute(Computation),
}

/// An operation on a local file. Offsets and lengths are multiples of 4096 unless the file is
/// [`FileId::MEMORY`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskOp {
    /// Read exactly `len` bytes; fewer is an error.
    Read {
        /// The file.
        file: FileId,
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: usize,
    },
    /// Write all of `data`; fewer is an error.
    Write {
        /// The file.
        file: FileId,
        /// Byte offset.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
    },
    /// Write `len` zero bytes, truly allocating them (an unwritten extent would turn each later
    /// sync into a journal commit of the file system below).
    Zero {
        /// The file.
        file: FileId,
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Make every write to the file that completed before this was issued durable.
    Sync {
        /// The file.
        file: FileId,
    },
}

impl DiskOp {
    /// The bytes that it moves; none for a sync.
    pub fn bytes(&self) -> u64 {
        self.place().len
    }

    /// The operation and its place.
    pub fn place(&self) -> DiskPlace {
        let (operation, file, offset, len) = match *self {
            DiskOp::Read { file, offset, len } => ("read", file, offset, len as u64),
            DiskOp::Write {
                file,
                offset,
                ref data,
            } => ("write", file, offset, data.len() as u64),
            DiskOp::Zero { file, offset, len } => ("zero-fill", file, offset, len),
            DiskOp::Sync { file } => ("sync", file, 0, 0),
        };
        DiskPlace {
            operation,
            file,
            offset,
            len,
        }
    }
}

/// A disk operation without its bytes, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskPlace {
    operation: &'static str,
    file: FileId,
    offset: u64,
    len: u64,
}

impl fmt::Display for DiskPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DiskPlace {
            operation,
            offset,
            len,
            ..
        } = self;
        let file = file_name(self.file);
        match *operation {
            "sync" => write!(f, "sync of {file}"),
            _ => write!(f, "{operation} of {len} bytes at offset {offset} of {file}"),
        }
    }
}

/// What a file is called in messages.
pub fn file_name(file: FileId) -> &'static str {
    match file {
        FileId::LOG => "the log",
        FileId::CACHE => "the cache file",
        FileId::MEMORY => "the memory file",
        FileId::WINDOW => "the request's window",
        _ => "an unknown file",
    }
}

/// Why a disk operation failed: the cause alone, with its errno. The engine puts operation, file,
/// offset and length before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskError {
    /// In words.
    pub cause: String,
    /// The file system has no space for it: a write that takes none may succeed.
    pub is_full: bool,
}

impl DiskError {
    /// Anything but a lack of space.
    pub fn new(cause: impl Into<String>) -> DiskError {
        DiskError {
            cause: cause.into(),
            is_full: false,
        }
    }

    /// A lack of space.
    pub fn full(cause: impl Into<String>) -> DiskError {
        DiskError {
            is_full: true,
            ..DiskError::new(cause)
        }
    }

    /// The same, with what failed.
    pub(crate) fn at(self, place: DiskPlace) -> DiskError {
        DiskError {
            cause: format!("{place}: {}", self.cause),
            ..self
        }
    }
}

/// The store's name for one version of an object (an entity tag).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(pub String);

/// An operation on the object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreOp {
    /// Read a whole object and its version.
    Get {
        /// Object key.
        key: String,
    },
    /// Read exactly this range.
    GetRange {
        /// Object key.
        key: String,
        /// Byte offset.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Write a pack or an index object, only if no such object exists: its name is used once, so whatever
    /// stands there is this very object, or a stranger's.
    Put {
        /// Object key.
        key: String,
        /// Content.
        data: Bytes,
    },
    /// Write only if no such object exists.
    Create {
        /// Object key.
        key: String,
        /// Content.
        data: Vec<u8>,
    },
    /// Write only if the object still has this version.
    Update {
        /// Object key.
        key: String,
        /// Content.
        data: Vec<u8>,
        /// The version it must have.
        version: Version,
    },
    /// Delete; a missing object is no error.
    Delete {
        /// Object key.
        key: String,
    },
    /// List keys under a prefix.
    List {
        /// Key prefix.
        prefix: String,
    },
    /// List the first keys under a prefix that are behind a place; fewer than `limit`: there are no more.
    ListPart {
        /// Key prefix.
        prefix: String,
        /// The place: empty, or a key, of an object or of none.
        after: String,
        /// How many keys.
        limit: usize,
    },
}

impl StoreOp {
    /// Whether it changes nothing.
    pub(crate) fn is_read(&self) -> bool {
        matches!(
            self,
            StoreOp::Get { .. }
                | StoreOp::GetRange { .. }
                | StoreOp::List { .. }
                | StoreOp::ListPart { .. }
        )
    }
}

/// What the store answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreReply {
    /// To `Get`.
    Object {
        /// Content.
        data: Vec<u8>,
        /// Its version.
        version: Version,
    },
    /// To `GetRange`.
    Range(Vec<u8>),
    /// To `Put`, `Create` and `Update`.
    Written {
        /// The new version.
        version: Version,
    },
    /// To `Delete`.
    Deleted,
    /// To `List` and `ListPart`: keys, and the sizes of their objects in bytes.
    Keys(Vec<(String, u64)>),
}

/// Why a store operation failed. The texts name operation, object, cause and remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreError {
    /// No such object.
    NotFound,
    /// The object ends before the range of a `GetRange` does: it is not what whoever named it wrote.
    OutOfRange,
    /// The condition of a `Create` or `Update` did not hold.
    PreconditionFailed,
    /// It may or may not have happened: read back before deciding.
    Unknown(String),
    /// It did not happen, or a read failed; worth trying again later.
    Unavailable(String),
    /// The store refuses this host; trying again will not help.
    Denied(String),
}

impl StoreOp {
    /// The object that it is about; of a list its prefix.
    pub(crate) fn key(&self) -> &str {
        match self {
            StoreOp::Get { key }
            | StoreOp::GetRange { key, .. }
            | StoreOp::Put { key, .. }
            | StoreOp::Create { key, .. }
            | StoreOp::Update { key, .. }
            | StoreOp::Delete { key } => key,
            StoreOp::List { prefix } | StoreOp::ListPart { prefix, .. } => prefix,
        }
    }
}

impl StoreError {
    /// The store did not say what it has, or what became of the request.
    pub(crate) fn is_no_answer(&self) -> bool {
        !matches!(
            self,
            StoreError::NotFound | StoreError::OutOfRange | StoreError::PreconditionFailed
        )
    }
}

/// How a request ended.
#[derive(Debug)]
pub enum Outcome {
    /// Of a disk operation; the bytes only for `Read`.
    Disk(Result<Bytes, DiskError>),
    /// Of a store operation.
    Store(Result<StoreReply, StoreError>),
    /// Of a computation; its procedure has the result already.
    Compute(Result<(), ComputeError>),
}

impl Outcome {
    /// Which kind of request it is of, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Outcome::Disk(_) => "disk",
            Outcome::Store(_) => "store",
            Outcome::Compute(_) => "compute",
        }
    }
}
