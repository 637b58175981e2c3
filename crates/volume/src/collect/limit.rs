//! When a pass gives up: one key of the store gives no answer, however often it is asked.
//!
//! Procedures below ask until they are answered. That is right for what a server cannot do without; a pass can be
//! made another time, and one that waits for ever is a collector that is dead and says nothing. Counts by key, since
//! answers about others say nothing of it. Never counts removals: those are asked for once, and are said as failed.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use super::CollectPort;
use crate::driver::{ComputeError, StoreError, StoreOp, StoreReply};
use crate::hostlog::notes::LogState;
use crate::hostlog::port::{LocalLogUnavailable, LogPort};
use crate::lock::lock;
use crate::sync::Mutex;

/// The store gave no answer about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoAnswer {
    pub(crate) key: String,
    /// What the last attempt ended with.
    pub(crate) error: String,
}

/// A port whose requests fail so often in a row, and no more.
#[derive(Debug)]
pub(crate) struct LimitedPort<P> {
    port: P,
    failures_max: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of keys that are asked again: as many as there are requests side by side.
    in_a_row: BTreeMap<String, u32>,
    no_answer: Option<NoAnswer>,
}

impl<P> LimitedPort<P> {
    pub(crate) fn new(port: P, failures_max: u32) -> LimitedPort<P> {
        LimitedPort {
            port,
            failures_max,
            state: Mutex::default(),
        }
    }

    /// The result of `work`, which asks this port, unless the limit is reached before.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, NoAnswer> {
        let mut work = pin!(work);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(result) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(result));
            }
            // Requests fail while the work is polled, and at no other time.
            match lock(&self.state).no_answer.clone() {
                Some(no_answer) => Poll::Ready(Err(no_answer)),
                None => Poll::Pending,
            }
        })
        .await
    }

    fn on_answer(&self, key: String, error: Option<&StoreError>) {
        let mut state = lock(&self.state);
        let Some(error) = error else {
            state.in_a_row.remove(&key);
            return;
        };
        let in_a_row = state.in_a_row.entry(key.clone()).or_default();
        *in_a_row += 1;
        if *in_a_row >= self.failures_max && !canary::active!("a_pass_never_gives_up") {
            let error = format!("{error:?}");
            state.no_answer.get_or_insert(NoAnswer { key, error });
        }
    }
}

impl<P: LogPort> LogPort for LimitedPort<P> {
    async fn store(&self, op: StoreOp) -> Result<StoreReply, StoreError> {
        let key = match &op {
            StoreOp::Delete { .. } => None,
            op => Some(op.key().to_owned()),
        };
        let result = self.port.store(op).await;
        if let Some(key) = key {
            let error = result.as_ref().err();
            self.on_answer(key, error.filter(|error| error.is_no_answer()));
        }
        result
    }

    fn sleep(&self, ns: u64) -> impl Future<Output = ()> + Send {
        self.port.sleep(ns)
    }

    fn pause_ns(&self) -> u64 {
        self.port.pause_ns()
    }

    fn persist_state(
        &self,
        state: LogState,
    ) -> impl Future<Output = Result<(), LocalLogUnavailable>> + Send {
        self.port.persist_state(state)
    }

    fn stage_state(&self, state: LogState) {
        self.port.stage_state(state);
    }
}

impl<P: CollectPort> CollectPort for LimitedPort<P> {
    fn compute<T: Send + 'static>(
        &self,
        bytes: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, ComputeError>> + Send {
        self.port.compute(bytes, work)
    }

    fn pace_ns(&self) -> u64 {
        self.port.pace_ns()
    }
}
