//! What the procedures of this module need from their environment: requests to the store, time, and durable state
//! in the local log.
//!
//! They know nothing else of the engine, so that tests and the simulator run the same code over a store and a
//! disk of their own.

use std::future::Future;

use super::names::{Digest, Position, record_key};
use super::notes::LogState;
use super::record::Record;
use crate::driver::{StoreError, StoreOp, StoreReply, Version};
use crate::object::FormatError;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The longest pause, in units of the first.
const PAUSE_MAX: u64 = 30;

/// The local log takes no writes any more, so nothing may be sent that needs durable state first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalLogUnavailable;

/// The environment of the procedures.
pub trait LogPort: Send + Sync {
    /// Carries out a request to the store.
    fn store(&self, op: StoreOp) -> impl Future<Output = Result<StoreReply, StoreError>> + Send;

    /// Waits for `ns` nanoseconds.
    fn sleep(&self, ns: u64) -> impl Future<Output = ()> + Send;

    /// First pause before a request is tried again; it doubles up to thirty times this.
    fn pause_ns(&self) -> u64;

    /// Makes the state of the host's log durable, and with it all commits of all volumes up to this call.
    ///
    /// # Errors
    ///
    /// If the local log takes no writes any more.
    fn persist_state(
        &self,
        state: LogState,
    ) -> impl Future<Output = Result<(), LocalLogUnavailable>> + Send;

    /// Has the state written with the next frame of the local log. A crash before that loses it.
    fn stage_state(&self, state: LogState);
}

/// Pauses between attempts, longer and longer.
#[derive(Debug)]
pub(super) struct Pauses {
    /// In units of the first.
    next: u64,
}

impl Pauses {
    pub(super) fn new() -> Pauses {
        Pauses { next: 1 }
    }

    pub(super) async fn wait(&mut self, port: &impl LogPort) {
        port.sleep(self.next * port.pause_ns()).await;
        self.next = (self.next * 2).min(PAUSE_MAX);
    }
}

/// Failed reads of a single volume's object before the read is given up.
const LOOKS_MAX: u32 = 5;

/// When a read of a single volume's object is given up, so that no volume holds up the others: the store answers
/// requests about the host, and keeps failing this one.
#[derive(Debug, Default)]
pub(super) struct LookLimit {
    /// The store has answered a request about the host. Until then a failure may be an outage.
    is_answered: AtomicBool,
    /// There is no limit: the caller needs an answer.
    is_off: bool,
}

impl LookLimit {
    /// A limit that applies, or one that is never reached.
    pub(super) fn of(has_limit: bool) -> LookLimit {
        LookLimit {
            is_off: !has_limit,
            ..LookLimit::default()
        }
    }

    pub(super) fn set_answered(&self) {
        self.is_answered.store(true, Ordering::Release);
    }

    /// Counts a failed read, and tells whether it is to be given up.
    fn is_reached(&self, failures: &mut u32) -> bool {
        let is_on = !self.is_off && self.is_answered.load(Ordering::Acquire);
        if is_on && !canary::active!("looks_have_no_limit") {
            *failures += 1;
        }
        *failures >= LOOKS_MAX
    }
}

/// The store did not answer within the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoAnswer;

/// Reads a single volume's object, until the limit is reached.
pub(super) async fn read_within_limit(
    port: &impl LogPort,
    op: &StoreOp,
    limit: &LookLimit,
) -> Result<Option<StoreReply>, NoAnswer> {
    let mut pauses = Pauses::new();
    let mut failures = 0;
    loop {
        match port.store(op.clone()).await {
            Ok(reply) => return Ok(Some(reply)),
            Err(StoreError::NotFound) => return Ok(None),
            Err(_) if limit.is_reached(&mut failures) => return Err(NoAnswer),
            Err(error) => tracing::debug!(?op, ?error, "a look is tried again"),
        }
        pauses.wait(port).await;
    }
}

/// Reads an object, and repeats that until the store answers. `None`: there is no such object.
pub(crate) async fn read(port: &impl LogPort, key: &str) -> Option<(Vec<u8>, Version)> {
    let mut pauses = Pauses::new();
    loop {
        let op = StoreOp::Get {
            key: key.to_owned(),
        };
        match port.store(op).await {
            Ok(StoreReply::Object { data, version }) => return Some((data, version)),
            Err(StoreError::NotFound) => return None,
            answer => tracing::debug!(key, ?answer, "a read of the store is tried again"),
        }
        pauses.wait(port).await;
    }
}

/// Reads of an object that cannot be decoded before it counts as damaged in the store. One read may be damaged on
/// its way, and what hosts conclude from these objects cannot be taken back.
const DAMAGED_READS_MAX: u32 = 5;

/// Reads an object and decodes it. `None`: there is no such object.
///
/// # Errors
/// If what stands there cannot be decoded, however often it is read.
pub(crate) async fn read_decoded<T>(
    port: &impl LogPort,
    key: &str,
    decode: impl Fn(&[u8]) -> Result<T, FormatError>,
) -> Result<Option<(T, Version)>, FormatError> {
    let mut pauses = Pauses::new();
    let mut reads = 0;
    loop {
        let Some((data, version)) = read(port, key).await else {
            return Ok(None);
        };
        match decode(&data) {
            Ok(found) => return Ok(Some((found, version))),
            Err(error) if is_damaged_at_rest(&mut reads) => return Err(error),
            Err(error) => tracing::debug!(key, %error, "read again"),
        }
        pauses.wait(port).await;
    }
}

/// Counts a read that could not be decoded, and tells whether the object counts as damaged in the store.
fn is_damaged_at_rest(reads: &mut u32) -> bool {
    *reads += 1;
    *reads >= DAMAGED_READS_MAX || canary::active!("one_damaged_read_is_believed")
}

/// The result of reading a single volume's object.
pub(super) enum ReadOutcome<T> {
    Found(T),
    Missing,
    Unreadable(FormatError),
    NoAnswer,
}

/// Reads a single volume's object within the limit, and decodes it.
pub(super) async fn read_decoded_within_limit<T>(
    port: &impl LogPort,
    key: &str,
    limit: &LookLimit,
    decode: impl Fn(&[u8]) -> Result<T, FormatError>,
) -> ReadOutcome<T> {
    let op = StoreOp::Get {
        key: key.to_owned(),
    };
    let mut pauses = Pauses::new();
    let mut reads = 0;
    loop {
        let data = match read_within_limit(port, &op, limit).await {
            Ok(Some(StoreReply::Object { data, .. })) => data,
            Ok(None) => return ReadOutcome::Missing,
            Ok(Some(_)) | Err(NoAnswer) => return ReadOutcome::NoAnswer,
        };
        match decode(&data) {
            Ok(found) => return ReadOutcome::Found(found),
            Err(error) if is_damaged_at_rest(&mut reads) => return ReadOutcome::Unreadable(error),
            Err(error) => tracing::debug!(key, %error, "read again"),
        }
        pauses.wait(port).await;
    }
}

/// Keys below a prefix, and the sizes of their objects.
pub(crate) async fn list(port: &impl LogPort, prefix: &str) -> Vec<(String, u64)> {
    let mut pauses = Pauses::new();
    loop {
        let op = StoreOp::List {
            prefix: prefix.to_owned(),
        };
        if let Ok(StoreReply::Keys(keys)) = port.store(op).await {
            return keys;
        }
        pauses.wait(port).await;
    }
}

/// A record as it stands in the store.
#[derive(Clone, Debug)]
pub(crate) struct StoredRecord {
    pub(crate) record: Record,
    pub(crate) digest: Digest,
}

/// Reads the record at a position of a host's log. `None`: there is no record.
///
/// # Errors
/// If what stands there is no record of that position.
pub(crate) async fn read_record(
    port: &impl LogPort,
    host: crate::units::HostId,
    position: Position,
) -> Result<Option<StoredRecord>, FormatError> {
    let decode = |data: &[u8]| {
        let record = Record::decode(data)?;
        if (record.log, record.position) != (host, position) {
            return Err(FormatError::Corrupt("a record under the name of another"));
        }
        let digest = Digest::of(data);
        Ok(StoredRecord { record, digest })
    };
    let found = read_decoded(port, &record_key(host, position), decode).await?;
    Ok(found.map(|(found, _)| found))
}
