//! The write-back log: one preallocated file per cache directory.
//!
//! [`layout`] says which bytes are what, [`segments`] owns which segment is free, open, sealed or
//! dying and who may write where, [`entry`] is one commit as ring and frames record it, [`ring`]
//! the memory that outlives the process, [`session`] tells one start of a server from the next,
//! [`frame`] is the record on disk, and [`committer`] the
//! group commit that makes both meet.

pub(crate) mod checkpoint;
pub(crate) mod checksums;
pub(crate) mod committer;
pub(crate) mod entry;
pub(crate) mod frame;
pub(crate) mod layout;
pub(crate) mod merge;
pub(crate) mod reclaim;
pub(crate) mod ring;
pub(crate) mod segments;
pub(crate) mod session;
pub(crate) mod session_gate;
pub(crate) mod snapshot_record;

/// Versions of what this program writes to a log and its rings: superblock, segment header, frame, ring. It reads
/// no others.
pub const FORMATS: [u16; 4] = [
    layout::SUPER_VERSION,
    layout::SEGMENT_VERSION,
    frame::VERSION,
    ring::VERSION,
];
