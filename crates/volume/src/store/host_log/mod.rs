//! This host's log in the store, as the engine holds it: the one publisher, the state of the log, and what
//! procedures ask of the next record.
//!
//! One procedure at a time uses the publisher. A procedure that is dropped while it waits inside the publisher
//! gives it back, and the digest of what it had sent tells later what became of that. Knows the engine only as a
//! [`LogEnvironment`]; [`log_procedures`] are the engine's side of it. [`low_marks`] raises marks, [`unnamed`] knows
//! what no record names yet, and [`session_table`] who wrote the objects.

pub(crate) mod log_procedures;
pub(crate) mod low_marks;
pub(crate) mod session_table;
pub(crate) mod unnamed;

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::{Arc, Weak};

use crate::collect::CollectPort;
use crate::driver::{ComputeError, ComputeKind, StoreError, StoreOp, StoreReply};
use crate::error::OpenError;
use crate::hostlog::names::SessionName;
use crate::hostlog::notes::LogState;
use crate::hostlog::port::{LocalLogUnavailable, LogPort};
use crate::hostlog::publisher::Publisher;
use crate::hostlog::recent_records::SharedRecords;
use crate::hostlog::record::NamedObject;
use crate::hostlog::stop::Stop;
use crate::jobs::{Answer, AnswerSender, Port, Signal};
use crate::lock::lock;
use crate::request::tail::Tail;
use crate::sync::Mutex;
use crate::units::{Epoch, LogSession, VolumeId};

/// What the host's log needs of the engine.
pub(crate) trait LogEnvironment: Send + Sync {
    /// Makes the state durable; false if the local log takes no writes any more.
    fn persist_state(
        self: Arc<Self>,
        state: LogState,
    ) -> Pin<Box<dyn Future<Output = bool> + Send>>;
    /// Has the state written with the next frame of the local log.
    fn stage_state(&self, state: LogState);
    /// Called when the store answered a request, or the request failed and will be repeated.
    fn on_store_answer(&self, key: &str, is_write: bool, error: Option<&StoreError>);
}

/// The host's log.
#[derive(Debug)]
pub(crate) struct HostLog {
    /// The newest state, persisted or staged: checkpoints record it.
    state: Mutex<LogState>,
    publisher: Mutex<Option<Publisher<HostPort>>>,
    /// What this process remembers of its records.
    records: Mutex<Option<SharedRecords>>,
    free: Signal,
    /// Raised when something is to be published.
    pub(in crate::store) changed: Signal,
    /// Raised when the log has a new record.
    pub(in crate::store) advanced: Signal,
    /// Volumes that were attached or detached; the next user of the publisher passes them on to it.
    changes: Mutex<Vec<VolumeChange>>,
    asked: Mutex<Vec<RecordRequest>>,
    failures: Mutex<Failures>,
    stopped: Mutex<Option<Stop>>,
}

/// A volume was attached or detached.
#[derive(Debug)]
enum VolumeChange {
    Attach(VolumeId, String, Epoch),
    Detach(VolumeId),
}

/// The least number of failing requests that are remembered; more than are sent in parallel.
const FAILING_KEPT: usize = 1024;

/// A request, as failures are counted: key, and whether it is a write. Reads and writes count apart, because a
/// read follows a write whose outcome is not known.
type RequestKey = (String, bool);

/// The failing requests of the log's procedures, until they are answered. They are counted by key, because a
/// repeated request concerns one object, and answers about other objects say nothing about it. Requests that are
/// no longer sent are forgotten when there are too many.
#[derive(Clone, Debug, Default)]
pub(in crate::store) struct Failures {
    in_a_row: BTreeMap<RequestKey, u64>,
    /// Requests that have not failed since the newer table was begun.
    older: BTreeMap<RequestKey, u64>,
    /// The error of the last failure.
    last: String,
}

impl Failures {
    /// Counts an answer, and returns how often in a row this request has failed.
    fn on_answer(&mut self, key: &str, is_write: bool, error: Option<&StoreError>) -> u64 {
        let request = (key.to_owned(), is_write);
        let before = self.older.remove(&request);
        let Some(error) = error else {
            self.in_a_row.remove(&request);
            if canary::active!("any_answer_is_every_keys") {
                self.in_a_row.clear();
            }
            return 0;
        };
        self.last = format!("{key}: {error:?}");
        if self.in_a_row.len() >= FAILING_KEPT && !canary::active!("failures_are_never_forgotten") {
            self.older = std::mem::take(&mut self.in_a_row);
        }
        let before = before.or_else(|| self.older.remove(&request));
        let in_a_row = self.in_a_row.entry(request).or_default();
        *in_a_row = before.unwrap_or(*in_a_row) + 1;
        *in_a_row
    }

    /// The failures of keys with one of these prefixes.
    pub(in crate::store) fn of(&self, prefixes: &[String]) -> Failures {
        let is_of = |key: &str| prefixes.iter().any(|prefix| key.starts_with(&**prefix));
        let all = self.in_a_row.iter().chain(&self.older);
        let in_a_row = all.filter(|((key, _), _)| is_of(key));
        Failures {
            in_a_row: in_a_row
                .map(|(request, count)| (request.clone(), *count))
                .collect(),
            older: BTreeMap::new(),
            last: self.last.clone(),
        }
    }

    /// The largest number of failures in a row of one of these requests since `before` was taken. Removes from
    /// `before` what was answered since.
    pub(in crate::store) fn max_failures_since(&self, before: &mut Failures) -> u64 {
        before.in_a_row.retain(|request, count| {
            let now = self.in_a_row.get(request);
            now.is_some_and(|now| now >= count)
        });
        let since = |(request, count): (&RequestKey, &u64)| {
            count - before.in_a_row.get(request).copied().unwrap_or(0)
        };
        self.in_a_row.iter().map(since).max().unwrap_or(0)
    }

    /// The error of the last failure.
    pub(in crate::store) fn last(&self) -> &str {
        &self.last
    }
}

/// What a record has to say besides slices.
#[derive(Debug)]
pub(in crate::store) struct RecordRequest {
    pub(in crate::store) tail: Arc<Tail>,
    pub(in crate::store) epoch: Epoch,
    /// Objects that a root update is about to name: index or pack, and the number.
    pub(in crate::store) objects: Vec<NamedObject>,
    /// The record ends the volume's epoch.
    pub(in crate::store) ends: bool,
    /// A record is sent for it at this time, unless one is sent before; zero: now.
    due_ns: u64,
    pub(in crate::store) answer: AnswerSender<Result<(), OpenError>>,
}

impl HostLog {
    pub(crate) fn new(state: LogState) -> HostLog {
        HostLog {
            state: Mutex::new(state),
            publisher: Mutex::new(None),
            records: Mutex::new(None),
            free: Signal::default(),
            changed: Signal::default(),
            advanced: Signal::default(),
            changes: Mutex::default(),
            asked: Mutex::default(),
            failures: Mutex::default(),
            stopped: Mutex::default(),
        }
    }

    /// Makes the publisher of this session. `before` is the previous session.
    pub(crate) fn begin(&self, port: HostPort, own: SessionName, before: LogSession) {
        let publisher = Publisher::new(port, own, before, self.state());
        *lock(&self.records) = Some(publisher.records().clone());
        *lock(&self.publisher) = Some(publisher);
    }

    /// What this process remembers of its records.
    pub(crate) fn records(&self) -> Option<SharedRecords> {
        lock(&self.records).clone()
    }

    /// The state of the log, for checkpoints.
    pub(crate) fn state(&self) -> LogState {
        lock(&self.state).clone()
    }

    /// Replaces the state of the log.
    pub(crate) fn set_state(&self, state: LogState) {
        *lock(&self.state) = state;
        self.advanced.wake_all();
    }

    /// Why this host has stopped, if it has.
    pub(in crate::store) fn stop_reason(&self) -> Option<Stop> {
        lock(&self.stopped).clone()
    }

    /// Refuses an operation that writes to the store if this host has stopped.
    pub(in crate::store) fn check_not_stopped(&self) -> Result<(), OpenError> {
        match self.stop_reason() {
            Some(stop) if !canary::active!("stopped_host_publishes") => {
                Err(OpenError::HostStopped(stop))
            }
            _ => Ok(()),
        }
    }

    /// Stops the host. Returns true if it had not stopped before. The first reason is kept: later ones may be
    /// consequences.
    pub(in crate::store) fn stop(&self, stop: &Stop) -> bool {
        let mut stopped = lock(&self.stopped);
        let is_first = stopped.is_none();
        stopped.get_or_insert_with(|| stop.clone());
        is_first
    }

    /// The failing requests of keys with one of these prefixes.
    pub(in crate::store) fn failures_of(&self, prefixes: &[String]) -> Failures {
        lock(&self.failures).of(prefixes)
    }

    /// Counts an answer of the store, and returns how often in a row the request has failed.
    pub(in crate::store) fn on_store_answer(
        &self,
        key: &str,
        is_write: bool,
        error: Option<&StoreError>,
    ) -> u64 {
        lock(&self.failures).on_answer(key, is_write, error)
    }

    /// Wakes the publisher: something is ready.
    pub(crate) fn wake(&self) {
        self.changed.wake_all();
    }

    /// Adds a volume that this host owns from now on. It does not wait, because the publisher may be waiting for
    /// the store.
    pub(in crate::store) fn attach(&self, volume: VolumeId, name: String, epoch: Epoch) {
        lock(&self.changes).push(VolumeChange::Attach(volume, name, epoch));
    }

    /// Removes a volume that this host does not own any more.
    pub(in crate::store) fn detach(&self, volume: VolumeId) {
        lock(&self.changes).push(VolumeChange::Detach(volume));
    }

    /// Waits until nobody else uses the publisher. On a host that has stopped, the publisher refuses everything,
    /// whatever procedure found the reason.
    pub(in crate::store) async fn publisher(&self) -> PublisherGuard<'_> {
        let take = || lock(&self.publisher).take();
        let mut publisher = self.free.wait_until(take).await;
        publisher.forget_checks();
        for change in std::mem::take(&mut *lock(&self.changes)) {
            match change {
                VolumeChange::Attach(volume, name, epoch) => publisher.attach(volume, name, epoch),
                VolumeChange::Detach(volume) => publisher.detach(volume),
            }
        }
        if let Err(OpenError::HostStopped(stop)) = self.check_not_stopped() {
            publisher.stop(&stop);
        }
        PublisherGuard {
            log: self,
            publisher: Some(publisher),
        }
    }

    /// Waits until an effective record names these objects of a volume, which only its root is to name. Until `due_ns` it
    /// waits for a record that is sent for something else.
    pub(in crate::store) async fn name_objects(
        &self,
        tail: &Arc<Tail>,
        epoch: Epoch,
        objects: &[NamedObject],
        due_ns: u64,
    ) -> Result<(), OpenError> {
        let asked = |answer| RecordRequest {
            tail: Arc::clone(tail),
            epoch,
            objects: objects.to_vec(),
            ends: false,
            due_ns,
            answer,
        };
        self.ask(asked).await
    }

    /// Waits until an effective record ends the volume's epoch.
    pub(in crate::store) async fn end_epoch(
        &self,
        tail: &Arc<Tail>,
        epoch: Epoch,
    ) -> Result<(), OpenError> {
        let asked = |answer| RecordRequest {
            tail: Arc::clone(tail),
            epoch,
            objects: Vec::new(),
            ends: true,
            due_ns: 0,
            answer,
        };
        self.ask(asked).await
    }

    fn ask(
        &self,
        request: impl FnOnce(AnswerSender<Result<(), OpenError>>) -> RecordRequest,
    ) -> Answer<Result<(), OpenError>> {
        let (sender, answer) = Answer::channel();
        lock(&self.asked).push(request(sender));
        self.changed.wake_all();
        answer
    }

    /// Has what procedures asked for published now.
    pub(in crate::store) fn hurry(&self) {
        if canary::active!("waiting_folds_are_not_hurried") {
            return;
        }
        lock(&self.asked)
            .iter_mut()
            .for_each(|asked| asked.due_ns = 0);
        self.changed.wake_all();
    }

    /// When a record is due for what procedures asked; zero: now. `None`: they asked for nothing.
    pub(in crate::store) fn asked_due_ns(&self) -> Option<u64> {
        lock(&self.asked).iter().map(|asked| asked.due_ns).min()
    }

    pub(in crate::store) fn take_record_requests(&self) -> Vec<RecordRequest> {
        std::mem::take(&mut *lock(&self.asked))
    }
}

/// Holds the publisher, and gives it back.
pub(in crate::store) struct PublisherGuard<'a> {
    log: &'a HostLog,
    /// `None` only while it is dropped.
    publisher: Option<Publisher<HostPort>>,
}

impl Deref for PublisherGuard<'_> {
    type Target = Publisher<HostPort>;

    fn deref(&self) -> &Publisher<HostPort> {
        self.publisher.as_ref().expect("held until the guard goes")
    }
}

impl DerefMut for PublisherGuard<'_> {
    fn deref_mut(&mut self) -> &mut Publisher<HostPort> {
        self.publisher.as_mut().expect("held until the guard goes")
    }
}

impl Drop for PublisherGuard<'_> {
    fn drop(&mut self) {
        *lock(&self.log.publisher) = self.publisher.take();
        self.log.free.wake_all();
    }
}

/// The environment of the log's procedures. The engine holds the publisher, so this must not hold the engine.
#[derive(Clone)]
pub(crate) struct HostPort {
    port: Port,
    pause_ns: u64,
    environment: Weak<dyn LogEnvironment>,
}

impl std::fmt::Debug for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostPort").finish_non_exhaustive()
    }
}

impl HostPort {
    pub(crate) fn new(
        port: Port,
        pause_ns: u64,
        environment: Weak<dyn LogEnvironment>,
    ) -> HostPort {
        HostPort {
            port,
            pause_ns,
            environment,
        }
    }
}

/// The collector's pause between two windows of requests, in units of the procedures' first pause.
const PACE: u64 = 2;

impl CollectPort for HostPort {
    async fn compute<T: Send + 'static>(
        &self,
        bytes: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ComputeError> {
        self.port.compute(ComputeKind::Decode, bytes, work).await
    }

    fn pace_ns(&self) -> u64 {
        self.pause_ns * PACE
    }
}

impl LogPort for HostPort {
    async fn store(&self, op: StoreOp) -> Result<StoreReply, StoreError> {
        let key = op.key().to_owned();
        let is_write = !op.is_read();
        let result = self.port.store(op).await;
        let error = result.as_ref().err();
        let failure = error.filter(|error| error.is_no_answer());
        if let Some(environment) = self.environment.upgrade() {
            environment.on_store_answer(&key, is_write, failure);
        }
        result
    }

    fn sleep(&self, ns: u64) -> impl Future<Output = ()> + Send {
        self.port.sleep(ns)
    }

    fn pause_ns(&self) -> u64 {
        self.pause_ns
    }

    async fn persist_state(&self, state: LogState) -> Result<(), LocalLogUnavailable> {
        let environment = self.environment.upgrade().ok_or(LocalLogUnavailable)?;
        match environment.persist_state(state).await {
            true => Ok(()),
            false => Err(LocalLogUnavailable),
        }
    }

    fn stage_state(&self, state: LogState) {
        if let Some(environment) = self.environment.upgrade() {
            environment.stage_state(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_key_and_by_what_came_since() {
        let error = StoreError::Unknown("no answer".into());
        let prefixes = ["hosts/a/".to_owned()];
        let mut failures = Failures::default();
        failures.on_answer("hosts/a/low", false, Some(&error));
        let mut before = failures.of(&prefixes);
        for _ in 0..3 {
            failures.on_answer("hosts/a/low", false, Some(&error));
            failures.on_answer("hosts/b/low", false, Some(&error));
            failures.on_answer("hosts/b/low", true, None);
        }
        assert_eq!(failures.of(&prefixes).max_failures_since(&mut before), 3);
        failures.on_answer("hosts/a/low", false, None);
        assert_eq!(failures.of(&prefixes).max_failures_since(&mut before), 0);
        // An answer resets the count.
        failures.on_answer("hosts/a/low", false, Some(&error));
        assert_eq!(failures.of(&prefixes).max_failures_since(&mut before), 1);
    }

    #[test]
    fn failures_of_requests_that_nobody_repeats_take_bounded_memory() {
        let error = StoreError::Denied("no right to delete".into());
        let mut failures = Failures::default();
        for nth in 0..20 * FAILING_KEPT {
            failures.on_answer(&format!("packs/{nth}"), true, Some(&error));
            // A request that is repeated is not forgotten among them.
            let in_a_row = failures.on_answer("hosts/a/low", false, Some(&error));
            assert_eq!(in_a_row, nth as u64 + 1);
        }
        let count = failures.of(&[String::new()]).in_a_row.len();
        assert!(count <= 2 * FAILING_KEPT, "{count} are kept");
        assert_eq!(failures.on_answer("hosts/a/low", false, None), 0);
    }

    #[test]
    #[should_panic(expected = "are kept")]
    fn failures_that_are_never_forgotten_are_seen() {
        canary::with(
            "failures_are_never_forgotten",
            failures_of_requests_that_nobody_repeats_take_bounded_memory,
        );
    }

    #[test]
    fn the_first_reason_why_a_host_stops_stays() {
        let log = HostLog::new(LogState::default());
        let (first, later) = (Stop::Cloned("first".into()), Stop::Cloned("later".into()));
        assert!(log.stop(&first));
        assert!(!log.stop(&later));
        assert_eq!(log.stop_reason(), Some(first));
    }
}
