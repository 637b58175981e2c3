//! Kinds of I/O failure, and the one place that maps them to errno, NBD and HTTP codes.
//!
//! A kind says what the caller can do about it, not where it came from; where it came from is
//! told once, where the error is consumed, by the richer error that each crate keeps.

use std::fmt;

/// Why a request did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device or the store failed; the bytes are not known to be good.
    Io,
    /// Stored bytes failed their checksum; they are never served (S8).
    Corrupt,
    /// The request lies outside the volume, or is not aligned to its logical block.
    Invalid,
    /// The volume was opened read-only.
    ReadOnly,
    /// No space, and the volume is configured not to wait for it.
    NoSpace,
    /// Another host holds the volume now (S7); nothing more is completed here.
    Fenced,
    /// The request waited longer than its volume allows.
    TimedOut,
    /// The device is being taken away, or is gone.
    Closed,
    /// The operation is not offered.
    Unsupported,
}

impl ErrorKind {
    /// The positive Linux errno for this kind.
    pub fn errno(self) -> i32 {
        match self {
            ErrorKind::Io | ErrorKind::Corrupt => 5,
            ErrorKind::Invalid => 22,
            ErrorKind::ReadOnly => 30,
            ErrorKind::NoSpace => 28,
            // A client of a fenced volume must see a plain failure: it cannot know about hosts.
            ErrorKind::Fenced => 5,
            ErrorKind::TimedOut => 110,
            ErrorKind::Closed => 108,
            ErrorKind::Unsupported => 95,
        }
    }

    /// The NBD error value for this kind (the protocol fixes a small set).
    pub fn nbd(self) -> u32 {
        match self {
            ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Fenced | ErrorKind::TimedOut => 5,
            ErrorKind::Invalid => 22,
            ErrorKind::ReadOnly => 1,
            ErrorKind::NoSpace => 28,
            ErrorKind::Closed => 108,
            ErrorKind::Unsupported => 95,
        }
    }

    /// The HTTP status for this kind.
    pub fn http(self) -> u16 {
        match self {
            ErrorKind::Io | ErrorKind::Corrupt => 500,
            ErrorKind::Invalid => 400,
            ErrorKind::ReadOnly => 403,
            ErrorKind::NoSpace => 507,
            ErrorKind::Fenced => 409,
            ErrorKind::TimedOut => 504,
            ErrorKind::Closed => 410,
            ErrorKind::Unsupported => 501,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::Io => "input/output error",
            ErrorKind::Corrupt => "stored bytes fail their checksum",
            ErrorKind::Invalid => "request outside the volume or not aligned to its block size",
            ErrorKind::ReadOnly => "volume is read-only",
            ErrorKind::NoSpace => "no space in the log",
            ErrorKind::Fenced => "volume is held by another host",
            ErrorKind::TimedOut => "request waited longer than the volume allows",
            ErrorKind::Closed => "device is closed",
            ErrorKind::Unsupported => "operation is not supported",
        })
    }
}

impl std::error::Error for ErrorKind {}
