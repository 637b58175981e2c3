//! This host's log in the store, as the engine holds it: the one publisher, where the log stands, and what
//! procedures ask of the next record.
//!
//! The publisher is used by one procedure at a time. It must never be left half used: whoever is dropped
//! while he waits inside it gives it back, and what it had sent is found by its digest. Knows the engine only as a
//! [`LogEnvironment`].

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
use crate::hostlog::record::NamedObject;
use crate::hostlog::stop::Stop;
use crate::jobs::{Answer, AnswerSender, Port, Signal};
use crate::lock::lock;
use crate::object::ObjectId;
use crate::request::tail::Tail;
use crate::sync::Mutex;
use crate::units::{Epoch, LogSession, VolumeId};

/// What the host's log needs of the engine around it.
pub(crate) trait LogEnvironment: Send + Sync {
    /// Makes it durable; false if the local log takes nothing more.
    fn persist_state(
        self: Arc<Self>,
        state: LogState,
    ) -> Pin<Box<dyn Future<Output = bool> + Send>>;
    /// Leaves it to the next durable note.
    fn stage_state(&self, state: LogState);
    /// A request to the store was answered, or failed and will be sent again.
    fn on_store_answer(&self, key: &str, is_write: bool, error: Option<&StoreError>);
}

/// The host's log.
#[derive(Debug)]
pub(crate) struct HostLog {
    /// The newest state, persisted or staged: checkpoints record it.
    state: Mutex<LogState>,
    publisher: Mutex<Option<Publisher<HostPort>>>,
    free: Signal,
    /// Something is to be published.
    pub(super) changed: Signal,
    /// The log went on.
    pub(super) advanced: Signal,
    /// Volumes that come and go; whoever takes the publisher next tells it.
    changes: Mutex<Vec<VolumeChange>>,
    asked: Mutex<Vec<RecordRequest>>,
    failures: Mutex<Failures>,
    stopped: Mutex<Option<Stop>>,
}

/// A volume that this host owns from now on, or no more.
#[derive(Debug)]
enum VolumeChange {
    Attach(VolumeId, String, Epoch),
    Detach(VolumeId),
}

/// Of so many requests at least it is known how often in a row they fail: more than are asked side by side.
const FAILING_KEPT: usize = 1024;

/// A request, as failures are counted: reads and writes apart, for a write whose outcome is not known is followed by
/// a read.
type RequestKey = (String, bool);

/// Requests of the log's procedures that fail, until they are answered: by key, for what is asked again and again is
/// one object, and answers about others say nothing of it. Those that nobody asks any more are forgotten when there
/// are too many.
#[derive(Clone, Debug, Default)]
pub(super) struct Failures {
    in_a_row: BTreeMap<RequestKey, u64>,
    /// Those that have not failed since the others were begun to be counted.
    older: BTreeMap<RequestKey, u64>,
    /// What the last one ended with.
    last: String,
}

impl Failures {
    /// How often in a row this request has failed now.
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

    /// Those of keys that begin with one of these.
    pub(super) fn of(&self, prefixes: &[String]) -> Failures {
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

    /// How often one of these requests has failed in a row since they stood like that, at most. Forgets of
    /// `before` what was answered since.
    pub(super) fn max_failures_since(&self, before: &mut Failures) -> u64 {
        before.in_a_row.retain(|request, count| {
            let now = self.in_a_row.get(request);
            now.is_some_and(|now| now >= count)
        });
        let since = |(request, count): (&RequestKey, &u64)| {
            count - before.in_a_row.get(request).copied().unwrap_or(0)
        };
        self.in_a_row.iter().map(since).max().unwrap_or(0)
    }

    /// What the last one ended with.
    pub(super) fn last(&self) -> &str {
        &self.last
    }
}

/// What a record is to say beside slices.
#[derive(Debug)]
pub(super) struct RecordRequest {
    pub(super) tail: Arc<Tail>,
    pub(super) epoch: Epoch,
    /// Objects that a root update is about to name: index or pack, and the number.
    pub(super) objects: Vec<NamedObject>,
    /// It ends the volume's epoch.
    pub(super) ends: bool,
    pub(super) answer: AnswerSender<Result<(), OpenError>>,
}

impl HostLog {
    pub(crate) fn new(state: LogState) -> HostLog {
        HostLog {
            state: Mutex::new(state),
            publisher: Mutex::new(None),
            free: Signal::default(),
            changed: Signal::default(),
            advanced: Signal::default(),
            changes: Mutex::default(),
            asked: Mutex::default(),
            failures: Mutex::default(),
            stopped: Mutex::default(),
        }
    }

    /// Makes the publisher of this session. `before`: the session before it.
    pub(crate) fn begin(&self, port: HostPort, own: SessionName, before: LogSession) {
        let publisher = Publisher::new(port, own, before, self.state());
        *lock(&self.publisher) = Some(publisher);
    }

    /// Where the log stands, for checkpoints.
    pub(crate) fn state(&self) -> LogState {
        lock(&self.state).clone()
    }

    /// Replaces where the log stands.
    pub(crate) fn set_state(&self, state: LogState) {
        *lock(&self.state) = state;
        self.advanced.wake_all();
    }

    /// Why this host does nothing more.
    pub(super) fn stop_reason(&self) -> Option<Stop> {
        lock(&self.stopped).clone()
    }

    /// Refuses what would write to the store for a host that has stopped.
    pub(super) fn check_not_stopped(&self) -> Result<(), OpenError> {
        match self.stop_reason() {
            Some(stop) if !canary::active!("stopped_host_publishes") => {
                Err(OpenError::HostStopped(stop))
            }
            _ => Ok(()),
        }
    }

    /// True: it had not stopped before. The first reason stays: those behind it may be its consequences.
    pub(super) fn stop(&self, stop: &Stop) -> bool {
        let mut stopped = lock(&self.stopped);
        let is_first = stopped.is_none();
        stopped.get_or_insert_with(|| stop.clone());
        is_first
    }

    /// What fails of keys that begin with one of these.
    pub(super) fn failures_of(&self, prefixes: &[String]) -> Failures {
        lock(&self.failures).of(prefixes)
    }

    /// How often in a row the request has failed now.
    pub(super) fn on_store_answer(
        &self,
        key: &str,
        is_write: bool,
        error: Option<&StoreError>,
    ) -> u64 {
        lock(&self.failures).on_answer(key, is_write, error)
    }

    /// Something is ready to be published.
    pub(crate) fn wake(&self) {
        self.changed.wake_all();
    }

    /// The volume is owned from now on. Waits for nobody: the publisher may wait for the store.
    pub(super) fn attach(&self, volume: VolumeId, name: String, epoch: Epoch) {
        lock(&self.changes).push(VolumeChange::Attach(volume, name, epoch));
    }

    /// It is not owned any more.
    pub(super) fn detach(&self, volume: VolumeId) {
        lock(&self.changes).push(VolumeChange::Detach(volume));
    }

    /// The publisher, when nobody else uses it. On a host that has stopped it refuses everything, whoever found
    /// out why.
    pub(super) async fn publisher(&self) -> PublisherGuard<'_> {
        let take = || lock(&self.publisher).take();
        let mut publisher = self.free.wait_until(take).await;
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

    /// Ends when a record that counts names these index objects of a volume.
    pub(super) async fn name_index_objects(
        &self,
        tail: &Arc<Tail>,
        epoch: Epoch,
        objects: &[ObjectId],
    ) -> Result<(), OpenError> {
        let name = |object: &ObjectId| NamedObject {
            volume: 0,
            is_index: true,
            is_kept: false,
            number: object.number,
        };
        let objects = objects.iter().map(name).collect();
        self.ask(tail, epoch, objects, false).await
    }

    /// Ends when a record that counts ends the volume's epoch.
    pub(super) async fn end_epoch(&self, tail: &Arc<Tail>, epoch: Epoch) -> Result<(), OpenError> {
        self.ask(tail, epoch, Vec::new(), true).await
    }

    fn ask(
        &self,
        tail: &Arc<Tail>,
        epoch: Epoch,
        objects: Vec<NamedObject>,
        ends: bool,
    ) -> Answer<Result<(), OpenError>> {
        let (sender, answer) = Answer::channel();
        lock(&self.asked).push(RecordRequest {
            tail: Arc::clone(tail),
            epoch,
            objects,
            ends,
            answer: sender,
        });
        self.changed.wake_all();
        answer
    }

    pub(super) fn has_asked(&self) -> bool {
        !lock(&self.asked).is_empty()
    }

    pub(super) fn take_record_requests(&self) -> Vec<RecordRequest> {
        std::mem::take(&mut *lock(&self.asked))
    }
}

/// Holds the publisher, and gives it back.
pub(super) struct PublisherGuard<'a> {
    log: &'a HostLog,
    /// None only while it is dropped.
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

/// What the procedures of the host's log ask for. The engine holds the publisher, so this does not hold
/// the engine.
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

/// Of the first pause of the procedures, the collector's between two windows of requests is so many times that.
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
        let is_read = matches!(
            op,
            StoreOp::Get { .. } | StoreOp::GetRange { .. } | StoreOp::List { .. }
        );
        let is_write = !is_read;
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
        // What was answered begins anew.
        failures.on_answer("hosts/a/low", false, Some(&error));
        assert_eq!(failures.of(&prefixes).max_failures_since(&mut before), 1);
    }

    #[test]
    fn failures_of_requests_that_nobody_repeats_take_bounded_memory() {
        let error = StoreError::Denied("no right to delete".into());
        let mut failures = Failures::default();
        for nth in 0..20 * FAILING_KEPT {
            failures.on_answer(&format!("packs/{nth}"), true, Some(&error));
            // One that is asked again and again is not forgotten among them.
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
