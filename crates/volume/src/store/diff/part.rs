//! The answer to a diff: what was compared, where it differs, and where it goes on.

use crate::units::{Lsn, VolumeId};

/// A state of a volume, or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffSide {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: VolumeId,
    /// The newest commit in it.
    pub lsn: Lsn,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Bytes that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedRange {
    /// The first one.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// On the newer side they are zeroes. False: that has content there, which may be zeroes as well.
    pub is_zeroed: bool,
}

/// A part of a diff.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffPart {
    /// What was before.
    pub from: DiffSide,
    /// What is now.
    pub to: DiffSide,
    /// Where `to` differs, in order, within its size. The first one may go on where the part before ended.
    pub ranges: Vec<ChangedRange>,
    /// Where the next part begins; none: this is the last.
    pub next: Option<DiffPlace>,
}

/// Where a diff goes on, and of which states it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiffPlace {
    /// The older side.
    pub from: (VolumeId, Lsn),
    /// The newer one.
    pub to: (VolumeId, Lsn),
    /// Up to here it was told, in sectors.
    pub sector: u64,
}
