//! The objects in the store: their names and their bytes (normative text: docs/format.md).
//!
//! [`pack`] holds data and the index of what it holds; [`page`] and [`node`] the base pages and the
//! directory into which deltas are folded; [`root`] the one small mutable object per volume, and [`extensions`]
//! what only some roots have; `name_table` what looks through all roots say; [`sessions`] who wrote what they name. Packs and index objects are immutable and their names are used once.

pub mod extensions;
pub(crate) mod name_table;
pub mod node;
pub mod pack;
pub mod pack_writer;
pub mod page;
pub mod root;
pub mod sessions;

use std::fmt;

/// An immutable object: who wrote it, and a counter. Never used twice. Its key has the whole name of the
/// session, see [`sessions::SessionNames`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectId {
    /// The random bits of the session that wrote it.
    pub session: u64,
    /// Counts up within the session.
    pub number: u64,
}

impl ObjectId {
    /// The object with this number of a session.
    pub fn new(session: crate::hostlog::names::SessionName, number: u64) -> ObjectId {
        ObjectId {
            session: session.session.random,
            number,
        }
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

/// Prefix of the roots of all volumes.
pub const ROOT_PREFIX: &str = "volumes/";
/// Prefix of the roots of all snapshots.
pub const SNAPSHOT_PREFIX: &str = "snapshots/";
/// Stands between the names of a volume and its snapshot.
pub const SNAPSHOT_SIGN: char = '@';

/// Key of the root of a volume, or of a snapshot `VOLUME@SNAPSHOT`.
pub fn root_key(name: &str) -> String {
    match name.split_once(SNAPSHOT_SIGN) {
        None => format!("{ROOT_PREFIX}{name}/root"),
        Some((volume, snapshot)) => format!("{}{snapshot}/root", snapshots_of(volume)),
    }
}

/// Prefix of the roots of a volume's snapshots.
pub fn snapshots_of(volume: &str) -> String {
    format!("{SNAPSHOT_PREFIX}{volume}/")
}

/// The volume whose root has this key.
pub fn volume_of_root_key(key: &str) -> Option<&str> {
    key.strip_prefix(ROOT_PREFIX)?.strip_suffix("/root")
}

/// The volume or snapshot whose root has this key.
pub(crate) fn name_of_root_key(key: &str) -> Option<String> {
    let volume = volume_of_root_key(key).map(str::to_owned);
    volume.or_else(|| snapshot_of_root_key(key))
}

/// The snapshot, `VOLUME@SNAPSHOT`, whose root has this key.
pub fn snapshot_of_root_key(key: &str) -> Option<String> {
    let rest = key.strip_prefix(SNAPSHOT_PREFIX)?.strip_suffix("/root")?;
    let (volume, snapshot) = rest.split_once('/')?;
    Some(format!("{volume}{SNAPSHOT_SIGN}{snapshot}"))
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

impl From<crate::codec::TruncatedInput> for FormatError {
    fn from(_: crate::codec::TruncatedInput) -> FormatError {
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
