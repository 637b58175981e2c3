//! Why a pass removed nothing: something that it must read could not be read.

use super::candidates::CANDIDATES_KEY;
use crate::object::FormatError;
use crate::units::VolumeId;

/// Why a pass removed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectError {
    /// A root, or an object that a root names, is missing, so it is not known what that reached.
    Missing(String),
    /// An object is missing that a root names which was put aside in the trash: of this volume.
    MissingInTrash(String, VolumeId),
    /// A volume that a log names, a host serves, or an object belongs to has neither a root nor a tombstone.
    RootMissing(VolumeId),
    /// An object cannot be read.
    Unreadable(String, FormatError),
    /// The store did not answer about an object; the text has its last error.
    NoAnswer(String, String),
    /// A newer firn wrote the list of candidates.
    NewerCandidates(FormatError),
    /// Two sessions have the same random bits, so firn did not write one of the keys.
    TwoSessions,
    /// New volumes and pins appeared, or volumes got other names, faster than the pass read them.
    Moving,
}

impl std::fmt::Display for CollectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CollectError::Missing(key) => write!(
                f,
                "garbage collection removed nothing: {key} is not in the store, so what it names is not known; \
                 put it back, or delete the volume it belongs to"
            ),
            CollectError::MissingInTrash(key, volume) => write!(
                f,
                "garbage collection removed nothing: {key} is not in the store, and volume {volume} in the trash names it; \
                 put it back, or let that volume go: `firn trash empty {volume}`"
            ),
            CollectError::RootMissing(volume) => write!(
                f,
                "garbage collection removed nothing: the root of volume {volume} is not in the store, so what it \
                 names is not known; put it back, below volumes/, or make it anew from its packs: `firn check` has its name, and \
                 `firn check --rebuild NAME` does it; or say that the volume is gone for good: \
                 `firn volume forget {volume} --gone`"
            ),
            CollectError::Unreadable(key, error) => write!(
                f,
                "garbage collection removed nothing: {key}: {error}; put it back, or delete the volume it belongs to"
            ),
            CollectError::NoAnswer(key, error) => write!(
                f,
                "garbage collection ended: the store gives no answer about {key}, however often it is asked \
                 ({error}); see that this host may read it; it will be tried again"
            ),
            CollectError::NewerCandidates(error) => write!(
                f,
                "garbage collection removed nothing: {CANDIDATES_KEY}: {error}"
            ),
            CollectError::TwoSessions => f.write_str(
                "garbage collection removed nothing: two sessions have the same random bits: a key below packs/ \
                 or indexes/ was not written by firn; remove it",
            ),
            CollectError::Moving => f.write_str(
                "garbage collection removed nothing: volumes and forks came, or got other names, faster than they could be read; \
                 it will be tried again",
            ),
        }
    }
}

impl std::error::Error for CollectError {}
