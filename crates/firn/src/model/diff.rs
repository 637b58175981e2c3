//! The JSON documents of a diff.
//!
//! Types only; the names of fields and values are part of the API.

use serde::{Deserialize, Serialize};

/// Answer to `GET /v1/volumes/{name}/diff`: a part of where `to` differs from `from`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Diff {
    pub(crate) from: DiffSide,
    pub(crate) to: DiffSide,
    /// In order, within the size of `to`. The first may go on where the part before ended.
    pub(crate) ranges: Vec<DiffRange>,
    /// For `after`, to have the next part; not there in the last one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) next: Option<String>,
}

/// A volume or snapshot as it was compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiffSide {
    /// `VOLUME` or `VOLUME@SNAPSHOT`.
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) size_bytes: u64,
    /// The newest write in it.
    pub(crate) lsn: u64,
}

/// Bytes that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiffRange {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) kind: DiffKind,
}

/// What is there now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DiffKind {
    /// Something that was written, perhaps what was there before, perhaps zeroes.
    Data,
    /// Zeroes, which take no space.
    Zero,
}

impl DiffKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            DiffKind::Data => "data",
            DiffKind::Zero => "zero",
        }
    }
}
