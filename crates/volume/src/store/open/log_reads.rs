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
pub(in crate::store) struct LogRead {
    /// What the predecessor's log has.
    pub(in crate::store) chain: Option<Chain>,
    /// The durable mark of the host's own log.
    pub(in crate::store) mark: Position,
}

/// The claimed volumes that wait for the reading of logs.
#[derive(Debug, Default)]
pub(crate) struct LogReads {
    pub(in crate::store) waiting: Mutex<Vec<PendingLogRead>>,
    /// Rounds of reads in progress.
    pub(in crate::store) under_way: AtomicU32,
    pub(in crate::store) changed: Signal,
}

#[derive(Debug)]
pub(in crate::store) struct PendingLogRead {
    pub(in crate::store) claimed: VersionedRoot,
    pub(in crate::store) answer: AnswerSender<Result<LogRead, OpenError>>,
}
