//! The outcome of one request, shared by the executor that sets it and the procedure that awaits it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::driver::Outcome;
use crate::lock::lock;
use crate::sync::Mutex;

#[derive(Default)]
pub(super) struct ReplyCell {
    state: Mutex<(Option<Outcome>, Option<Waker>)>,
}

impl ReplyCell {
    /// Gives the outcome and wakes the procedure.
    pub(super) fn set(&self, outcome: Outcome) {
        let waker = {
            let mut state = lock(&self.state);
            state.0 = Some(outcome);
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The outcome of a request, when it is there. Dropping it leaves the request to run its course.
pub(super) struct Reply(pub(super) Arc<ReplyCell>);

impl Future for Reply {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = lock(&self.0.state);
        match state.0.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.1 = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
