//! What recovery reports to the driver.

use crate::units::Lsn;

/// What recovery found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The log was new.
    pub formatted: bool,
    /// Size of the log's segments: fixed when it was made, whatever the options say now.
    pub segment_bytes: u64,
    /// Frames replayed.
    pub frames: u64,
    /// Ring entries replayed.
    pub ring_entries: u64,
    /// Volumes whose ring was gone although the host was not restarted: writes after their last
    /// flush may be lost.
    pub rings_lost: Vec<String>,
    /// Tails found.
    pub tails: Vec<TailReport>,
    /// The log is poisoned: reads only.
    pub poisoned: bool,
}

/// A tail that recovery found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailReport {
    /// The volume's name.
    pub volume: String,
    /// The newest commit.
    pub newest: Lsn,
    /// Kept for rescue only: another host took the volume over.
    pub rescue: bool,
}
