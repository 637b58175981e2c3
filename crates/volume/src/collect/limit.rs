//! When a pass gives up: requests for one key keep failing.
//!
//! The procedures below repeat a request until the store answers. That is right for what a server cannot do
//! without. But a pass can be made another time, and a collector that waits for ever is dead and says nothing.
//! Failures count by key, because answers about other keys say nothing about this one. Removals are not counted:
//! they are sent once, and reported as failed.

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

/// The store did not answer about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoAnswer {
    pub(crate) key: String,
    /// The error of the last attempt.
    pub(crate) error: String,
}

/// A port that gives up after a number of failures of a request in a row.
#[derive(Debug)]
pub(crate) struct LimitedPort<P> {
    port: P,
    failures_max: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Failures by key, of requests that are being repeated: as many as run in parallel.
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

    /// Runs `work`, which uses this port, until it ends or the limit is reached.
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
