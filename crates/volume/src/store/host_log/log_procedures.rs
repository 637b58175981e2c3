//! How the engine serves its host's log: it makes the log's state durable, provides the mark for roots, and ends
//! volumes, or the whole host, when the log says so.
//!
//! A stop of the host is final: after it nothing of any volume is completed or stored.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use crate::driver::StoreError;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::hostlog::names::{HOST_PREFIX, Position, host_prefix};
use crate::hostlog::notes::LogState;
use crate::hostlog::publisher::{Progress, Publisher};
use crate::hostlog::stop::Stop;
use crate::object::root::Root;
use crate::object::{root_key, volume_of_root_key};
use crate::request::tail::Status;
use crate::store::host_log::{HostPort, LogEnvironment};
use crate::store::objects::store_error;
use crate::store::open::endings;
use crate::units::HostId;

/// Failures of a request in a row that end an operation which a client waits for.
const FAILURES_MAX: u64 = 8;

impl LogEnvironment for Engine {
    fn persist_state(
        self: Arc<Self>,
        state: LogState,
    ) -> Pin<Box<dyn Future<Output = bool> + Send>> {
        self.host_log.set_state(state.clone());
        let round = self.committer().note_log_state(&self, state);
        Box::pin(async move { self.committer().durable(&self, round).await })
    }

    fn stage_state(&self, state: LogState) {
        self.host_log.set_state(state.clone());
        self.committer().jot_log_state(state);
    }

    fn on_store_answer(&self, key: &str, is_write: bool, error: Option<&StoreError>) {
        let in_a_row = self.host_log.on_store_answer(key, is_write, error);
        let Some(error) = error else {
            return;
        };
        // In an outage every request is repeated many times; the first, second, fourth... failure of a row is
        // logged.
        if !in_a_row.is_power_of_two() {
            return;
        }
        let error = store_error("request", key, error);
        tracing::warn!(%error, "a request of the host's log failed and will be tried again");
        // An error about one volume's root or pack concerns that volume alone: its own procedures report it.
        let of_volume = volume_of_root_key(key);
        let is_of_all = key.starts_with(HOST_PREFIX) || canary::active!("one_key_is_everybodys");
        for tail in self.tails() {
            let is_concerned = is_of_all || of_volume == Some(tail.name());
            if is_concerned && tail.upload.has_publishable() {
                tail.upload.set_error(Some(&error));
                tail.upload.on_store_answer(true);
            }
        }
    }
}

/// The first pause of the log's procedures is this part of the pause after a failed upload: many volumes wait for
/// each of their requests, and none of the requests is large.
const PAUSE_PART: u64 = 10;

/// The port of the host's log.
pub(crate) fn log_port(engine: &Arc<Engine>) -> HostPort {
    let environment = Arc::downgrade(engine);
    let pause_ns = engine.options.retry_ns / PAUSE_PART;
    HostPort::new(engine.port.clone(), pause_ns, environment)
}

/// Reads the host's log up to its end. Returns the mark there, which is durable, for volumes that are opened now.
pub(in crate::store) async fn catch_up(engine: &Arc<Engine>) -> Result<Position, OpenError> {
    let mut publisher = engine.host_log.publisher().await;
    if !canary::active!("copy_is_not_looked_for") {
        let found = publisher.catch_up().await;
        on_progress(engine, found)?;
    }
    mark(engine, &mut publisher).await
}

/// The mark for a root update. A poisoned log cannot record the mark, but it publishes no record any more that
/// could stand below it.
pub(in crate::store) async fn mark(
    engine: &Arc<Engine>,
    publisher: &mut Publisher<HostPort>,
) -> Result<Position, OpenError> {
    match publisher.mark().await {
        Ok(mark) => Ok(mark),
        Err(Stop::LocalLog) => Ok(publisher.state().next.previous()),
        Err(stop) => Err(stop_host(engine, &stop)),
    }
}

/// Ends the volumes that other hosts have taken.
pub(in crate::store) fn on_progress(
    engine: &Arc<Engine>,
    found: Result<Progress, Stop>,
) -> Result<Progress, OpenError> {
    let progress = found.map_err(|stop| stop_host(engine, &stop))?;
    for volume in &progress.fenced {
        let tails = engine.tails().into_iter();
        for tail in tails.filter(|tail| tail.id().volume == *volume) {
            let live = tail.lock().status == Status::Live;
            if live {
                let error = OpenError::Fenced(tail.name().to_owned());
                endings::end(engine, &tail, &error);
            }
        }
    }
    Ok(progress)
}

/// Stops the host: it stores and completes nothing more. A poisoned log is no reason for that: its volumes
/// continue without it.
pub(in crate::store) fn stop_host(engine: &Arc<Engine>, stop: &Stop) -> OpenError {
    if *stop == Stop::LocalLog {
        return OpenError::Poisoned;
    }
    let error = OpenError::HostStopped(stop.clone());
    // Before any client hears of it: the next start must not serve, without asking the store, what this one knows
    // to have ended.
    engine.tails().iter().for_each(|tail| tail.require_check());
    engine.require_check_of_untouched();
    if engine.host_log.stop(stop) {
        tracing::error!(%error, "this host stops: it completes and stores nothing more");
    }
    for tail in engine.tails() {
        let live = tail.lock().status.serves();
        if live {
            endings::end(engine, &tail, &error);
        }
    }
    error
}

/// The prefixes of the keys whose requests a procedure depends on.
#[derive(Clone, Debug, Default)]
pub(in crate::store) struct KeyPrefixes(Vec<String>);

impl KeyPrefixes {
    /// Adds the volume's root.
    pub(in crate::store) fn with_root(mut self, name: &str) -> KeyPrefixes {
        self.0.push(root_key(name));
        self
    }

    /// Prefixes of the objects of the host that holds the volume, or held it last.
    pub(in crate::store) fn of_holder(root: &Root) -> KeyPrefixes {
        let owner = root.owner.as_ref().map(|owner| owner.host);
        let holder = owner.or(root.predecessor.map(|before| before.host));
        holder
            .into_iter()
            .fold(KeyPrefixes::default(), KeyPrefixes::with_host)
    }

    /// Adds the objects of the host's log.
    pub(in crate::store) fn with_host(mut self, host: HostId) -> KeyPrefixes {
        self.0.push(host_prefix(host));
        self
    }
}

/// Runs `work`, and gives up when requests under these prefixes have failed too often in a row, so that the
/// caller hears of the outage. Dropping a take-over or an update has the effect of a crash: what it sent may
/// still take effect.
pub(in crate::store) async fn with_patience<T>(
    engine: &Engine,
    what: &str,
    keys: KeyPrefixes,
    work: impl Future<Output = Result<T, OpenError>>,
) -> Result<T, OpenError> {
    let mut begun = engine.host_log.failures_of(&keys.0);
    let mut sleep = engine.port.sleep(engine.options.retry_ns);
    let mut work = pin!(work);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(result) = work.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        while Pin::new(&mut sleep).poll(cx).is_ready() {
            let failures = engine.host_log.failures_of(&keys.0);
            if failures.max_failures_since(&mut begun) >= FAILURES_MAX {
                return Poll::Ready(Err(OpenError::Store(format!(
                    "{what}: the store gives no answer that would tell what became of it ({}); try \
                     again when it can be reached",
                    failures.last()
                ))));
            }
            sleep = engine.port.sleep(engine.options.retry_ns);
        }
        Poll::Pending
    })
    .await
}
