//! What recovery tells whoever started the host.

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
    /// Tails found, by volume name: the newest commit, and whether they are kept for rescue only.
    pub tails: Vec<(String, Lsn, bool)>,
    /// The log is poisoned: reads only.
    pub poisoned: bool,
}
