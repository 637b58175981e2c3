//! What the engine asks of the world, and what the world answers.
//!
//! The engine does no I/O: it emits [`Request`]s and takes [`Outcome`]s, in any order, from any
//! thread. Disk requests name files by [`FileId`]; store requests name objects by key.

use blkmq::io::FileId;

/// Told when the engine has something to be done by whoever drives it. Called from any thread,
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

/// What went wrong with a disk operation. The text names operation, file and cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskError(pub String);

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
    /// Write an object whose name is used once only; writing it again writes the same bytes.
    Put {
        /// Object key.
        key: String,
        /// Content.
        data: Vec<u8>,
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
    /// To `List`.
    Keys(Vec<String>),
}

/// Why a store operation failed. The texts name operation, object, cause and remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreError {
    /// No such object.
    NotFound,
    /// The condition of a `Create` or `Update` did not hold.
    PreconditionFailed,
    /// It may or may not have happened: read back before deciding.
    Unknown(String),
    /// It did not happen, or a read failed; worth trying again later.
    Unavailable(String),
    /// The store refuses this host; trying again will not help.
    Denied(String),
}

/// How a request ended.
#[derive(Debug)]
pub enum Outcome {
    /// Of a disk operation; the bytes only for `Read`.
    Disk(Result<Vec<u8>, DiskError>),
    /// Of a store operation.
    Store(Result<StoreReply, StoreError>),
}
