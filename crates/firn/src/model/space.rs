//! What a volume takes in the store, as its server's compaction last found it.

use serde::{Deserialize, Serialize};

/// What a volume's pages reach of the packs that they name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct VolumeSpace {
    /// Stored bytes that they reach.
    pub(crate) live_bytes: u64,
    /// Bytes of the same packs that they do not reach.
    pub(crate) garbage_bytes: u64,
    /// Packs that are to be written anew.
    pub(crate) candidates: u64,
    /// Since when there are any, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) candidates_since_unix_ms: Option<u64>,
    /// When this was found, in milliseconds since 1970.
    pub(crate) surveyed_unix_ms: u64,
}

impl From<volume::VolumeSpace> for VolumeSpace {
    fn from(space: volume::VolumeSpace) -> VolumeSpace {
        VolumeSpace {
            live_bytes: space.live_bytes,
            garbage_bytes: space.garbage_bytes,
            candidates: space.candidates,
            candidates_since_unix_ms: space.candidates_since_unix_ms,
            surveyed_unix_ms: space.surveyed_unix_ms,
        }
    }
}
