//! Volumes that were claimed and wait for the reading of hosts' logs: the state of [`super::take_together`].
//!
//! It does not know the engine, which owns it.

use crate::error::OpenError;
use crate::hostlog::names::Position;
use crate::hostlog::root_updates::VersionedRoot;
use crate::hostlog::scan::Chain;
use crate::jobs::{AnswerSender, Signal};
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU32;

/// What the logs have of a claimed volume.
#[derive(Clone, Debug)]
pub(super) struct LogRead {
    /// What the predecessor's log has.
    pub(super) chain: Option<Chain>,
    /// The durable mark of the host's own log.
    pub(super) mark: Position,
}

/// The claimed volumes that wait for the reading of logs.
#[derive(Debug, Default)]
pub(crate) struct LogReads {
    pub(super) waiting: Mutex<Vec<PendingLogRead>>,
    /// Rounds of reads in progress.
    pub(super) under_way: AtomicU32,
    pub(super) changed: Signal,
}

#[derive(Debug)]
pub(super) struct PendingLogRead {
    pub(super) claimed: VersionedRoot,
    pub(super) answer: AnswerSender<Result<LogRead, OpenError>>,
}
