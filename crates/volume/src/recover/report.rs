//! What recovery reports to the driver: data for its log and its API. Nothing of the engine depends on it.

use crate::log::ring::{RetainedRings, RingId};
use crate::units::{LogSession, Lsn};

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
    /// It goes on with the rings and the journal of the process before, as that one left them.
    pub goes_on: bool,
    /// Volumes whose ring was gone although the host was not restarted: writes after their last
    /// flush may be lost.
    pub rings_lost: Vec<String>,
    /// Rings of earlier sessions of this log: it went on without what they hold, so they are never
    /// replayed.
    pub stale_rings: Vec<StaleRing>,
    /// Sessions that have rings under this log's identity, and are not its own: a copy of the cache
    /// directory was used here.
    pub foreign_sessions: Vec<LogSession>,
    /// Tails found.
    pub tails: Vec<TailReport>,
    /// The log is poisoned: reads only.
    pub poisoned: bool,
}

/// A ring that was put aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleRing {
    /// Which one.
    pub ring: RingId,
    /// Where it is kept now, or why it is still where it was.
    pub aside: Result<RetainedRings, String>,
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
