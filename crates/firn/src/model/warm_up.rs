//! The JSON documents of a warm-up: what one server has at hand of a volume, and what another is to read before it has it.
//!
//! Types only; the names of fields and values are part of the API.

use serde::{Deserialize, Serialize};

/// Answer to `GET /v1/volumes/{name}/hints`: a part of what reads find here without asking the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HintList {
    /// In the order of the volume.
    pub(crate) ranges: Vec<HintRange>,
    /// For `from`, to have the next part; not there in the last one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) next: Option<u64>,
}

/// Bytes that are at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HintRange {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Written lately, or read more than once.
    pub(crate) is_hot: bool,
}

/// Body of `POST /v1/volumes/{name}/prepare`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PrepareRequest {
    /// What is to be read, in this order; nothing: the index.
    pub(crate) ranges: Vec<PrepareRange>,
}

/// Bytes that are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PrepareRange {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prepared {
    /// How many of the ranges are done: the others were not, for want of time.
    pub(crate) ranges: usize,
    /// Bytes of data that the store sent for them.
    pub(crate) fetched_bytes: u64,
}
