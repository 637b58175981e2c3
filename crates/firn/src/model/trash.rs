//! The JSON documents of the trash.
//!
//! Types only; the names of fields and values are part of the API.

use serde::{Deserialize, Serialize};

/// Answer to `GET /v1/trash`: a part of the list, by name, and behind that those whose names others have taken, by id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TrashList {
    pub(crate) volumes: Vec<TrashedVolume>,
    /// Behind what the next part begins, as `after`; none: this is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// A volume in the trash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TrashedVolume {
    /// The name that it had.
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) size_bytes: u64,
    /// How many snapshots it has.
    pub(crate) snapshots: usize,
    pub(crate) deleted_unix_ms: u64,
    /// It is kept until then, and goes with the next pass of the garbage collector.
    pub(crate) until_unix_ms: u64,
}

/// Body of `POST /v1/trash/{id}/restore`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RestoreTrashed {
    /// The volume's name from then on; its own unless this is given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) name: Option<String>,
}
