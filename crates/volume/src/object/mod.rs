//! The objects in the store: their names and their bytes (normative text: docs/format.md).
//!
//! [`pack`] holds data and the index of what it holds; [`page`] and [`node`] the base pages and the
//! directory into which deltas are folded; [`root`] the one small mutable object per volume. Packs
//! and index objects are immutable and their names are used once.

pub mod node;
pub mod pack;
pub mod page;
pub mod root;

use std::fmt;

/// Name of an immutable object: a number drawn at random by the process that writes it, and a
/// counter. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectId {
    /// Drawn when the writing process started.
    pub session: u64,
    /// Counts up within the session.
    pub number: u64,
}

impl ObjectId {
    /// Key of the pack with this id.
    pub fn pack_key(self) -> String {
        format!("packs/{self}")
    }

    /// Key of the index object with this id.
    pub fn index_key(self) -> String {
        format!("indexes/{self}")
    }

    pub(crate) fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.session.to_le_bytes());
        bytes[8..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}", self.session, self.number)
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Prefix of all roots.
pub const ROOT_PREFIX: &str = "volumes/";

/// Key of a volume's root.
pub fn root_key(name: &str) -> String {
    format!("{ROOT_PREFIX}{name}/root")
}

/// The volume whose root has this key.
pub fn volume_of_root_key(key: &str) -> Option<&str> {
    key.strip_prefix(ROOT_PREFIX)?.strip_suffix("/root")
}

/// Why an object was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatError {
    /// Not one of firn's objects, or another kind.
    Foreign,
    /// A format version that this code does not know.
    Newer(u16),
    /// Damaged: truncated, contradictory, or its checksum fails.
    Corrupt(&'static str),
}

impl From<crate::codec::Truncated> for FormatError {
    fn from(_: crate::codec::Truncated) -> FormatError {
        FormatError::Corrupt("it ends too early")
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormatError::Foreign => f.write_str("it is not an object of this kind"),
            FormatError::Newer(version) => {
                write!(
                    f,
                    "its format version {version} is not known here: use a newer firn"
                )
            }
            FormatError::Corrupt(why) => write!(f, "it is damaged: {why}"),
        }
    }
}

impl std::error::Error for FormatError {}
