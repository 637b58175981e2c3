//! Quantities that must not be confused: sequence numbers, epochs, identities, times, ranges.
//!
//! All addresses are in 512-byte sectors; all conversions to bytes are named.

use std::fmt;

use blkmq::io::SECTOR_BYTES;

/// Position of a commit in a volume's history. The first commit has LSN 1; no number below the
/// newest is ever missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Before the first commit.
    pub const ZERO: Lsn = Lsn(0);

    /// The next number.
    #[must_use]
    pub fn next(self) -> Lsn {
        Lsn(self.0 + 1)
    }
}

/// Which opening of a volume: taken by conditional update of its root, so at most one holder
/// can commit to the store (S7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Identity of a volume, drawn at random when it is created. A name may be used again after its
/// volume was deleted; an id never is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VolumeId(pub [u8; 16]);

/// Identity of a host's log: drawn when the log is formatted. A cache directory that was lost
/// comes back as another host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HostId(pub [u8; 16]);

/// One start of a server on a log. Each start raises the number and draws the rest at random, so
/// that two logs that were one once (a copied cache directory) never have a session in common after
/// they parted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogSession {
    /// Counts the starts, from 1.
    pub number: u64,
    /// Drawn for this start.
    pub random: u64,
}

impl fmt::Display for LogSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.number, self.random)
    }
}

impl fmt::Debug for LogSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which commit of a root: its number, and what was drawn for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootMark {
    /// Counts commits of the root.
    pub sequence: u64,
    /// Drawn for this one.
    pub nonce: u64,
}

/// How large a volume is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeSize {
    /// Bytes. It only grows.
    pub bytes: u64,
    /// The logical block in bytes. Zero: nothing is known.
    pub block: u32,
}

impl VolumeSize {
    /// True: that is more than before.
    pub(crate) fn grow_to(&mut self, size: VolumeSize) -> bool {
        let grows = size.bytes > self.bytes;
        if grows {
            *self = size;
        }
        grows
    }
}

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

macro_rules! hex_identity {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(f, &self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(f, &self.0)
            }
        }
    };
}
hex_identity!(VolumeId);
hex_identity!(HostId);

/// Reads what `Display` of an identity writes.
pub fn parse_hex_identity(text: &str) -> Option<[u8; 16]> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = digits.then(|| u128::from_str_radix(text, 16).ok())?;
    number.map(u128::to_be_bytes)
}

/// A moment: monotonic for deadlines, wall clock only to be shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Nanoseconds on a clock that never goes back.
    pub mono_ns: u64,
    /// Milliseconds since 1970, for display.
    pub unix_ms: u64,
}

/// One second in the unit of [`Now::mono_ns`].
pub const SECOND_NS: u64 = 1_000_000_000;

/// A half-open range of sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// First sector.
    pub start: u64,
    /// One past the last sector.
    pub end: u64,
}

impl Span {
    /// `sectors` from `start` on. The sum must not overflow; callers check against the volume.
    pub fn new(start: u64, sectors: u64) -> Span {
        Span {
            start,
            end: start + sectors,
        }
    }

    /// How many sectors.
    pub fn sectors(self) -> u64 {
        self.end - self.start
    }

    /// How many bytes.
    pub fn bytes(self) -> u64 {
        self.sectors() * SECTOR_BYTES
    }

    /// No sectors at all?
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// The smallest range that holds both.
    #[must_use]
    pub fn hull(self, other: Span) -> Span {
        Span {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }

    /// The common part, empty if there is none.
    #[must_use]
    pub fn intersect(self, other: Span) -> Span {
        let start = self.start.max(other.start);
        Span {
            start,
            end: self.end.min(other.end).max(start),
        }
    }
}
