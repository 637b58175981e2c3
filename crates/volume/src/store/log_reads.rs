//! Volumes that were claimed and wait for what hosts' logs say of them: the state of [`super::take_together`].
//!
//! Knows no engine, which holds it.

use crate::error::OpenError;
use crate::hostlog::names::Position;
use crate::hostlog::root_updates::VersionedRoot;
use crate::hostlog::scan::Chain;
use crate::jobs::{AnswerSender, Signal};
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU32;

/// What logs say of a volume that was claimed.
#[derive(Clone, Debug)]
pub(super) struct LogRead {
    /// Of its predecessor's log.
    pub(super) chain: Option<Chain>,
    /// Where the own log stands, durably.
    pub(super) mark: Position,
}

/// Volumes that were claimed, and wait for what logs say of them.
#[derive(Debug, Default)]
pub(crate) struct LogReads {
    pub(super) waiting: Mutex<Vec<PendingLogRead>>,
    /// Rounds of reads.
    pub(super) under_way: AtomicU32,
    pub(super) changed: Signal,
}

#[derive(Debug)]
pub(super) struct PendingLogRead {
    pub(super) claimed: VersionedRoot,
    pub(super) answer: AnswerSender<Result<LogRead, OpenError>>,
}
