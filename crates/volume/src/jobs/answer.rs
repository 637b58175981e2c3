//! What procedures and their callers wait for: answers, signals, several futures at once.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::lock::lock;
use crate::sync::Mutex;

/// The result of a control operation, when it is there: a future, and pollable by hand.
pub struct Answer<T>(Arc<Mutex<AnswerState<T>>>);

struct AnswerState<T> {
    value: Option<T>,
    given: bool,
    waker: Option<Waker>,
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("given", &lock(&self.0).given)
            .finish()
    }
}

/// Gives the result of a control operation, once.
pub(crate) struct AnswerSender<T>(Arc<Mutex<AnswerState<T>>>);

impl<T> fmt::Debug for AnswerSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerSender").finish_non_exhaustive()
    }
}

impl<T> Answer<T> {
    pub(crate) fn channel() -> (AnswerSender<T>, Answer<T>) {
        let state = Arc::new(Mutex::new(AnswerState {
            value: None,
            given: false,
            waker: None,
        }));
        (AnswerSender(Arc::clone(&state)), Answer(state))
    }

    /// Takes the result if it is there.
    pub fn try_take(&self) -> Option<T> {
        lock(&self.0).value.take()
    }
}

impl<T> AnswerSender<T> {
    pub(crate) fn send(self, value: T) {
        let waker = {
            let mut state = lock(&self.0);
            state.value = Some(value);
            state.given = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Answer<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = lock(&self.0);
        match state.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Wakes all that wait for a change. A waiter must check its condition again.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    waiters: Mutex<Vec<Waker>>,
}

impl Signal {
    /// Keeps the waker until the next [`Signal::wake_all`]. Callers look at the condition *after*
    /// this, so a raise between look and wait is not missed.
    pub(crate) fn wait(&self, waker: &Waker) {
        let mut waiters = lock(&self.waiters);
        if !waiters.iter().any(|w| w.will_wake(waker)) {
            waiters.push(waker.clone());
        }
    }

    pub(crate) fn wake_all(&self) {
        let waiters = std::mem::take(&mut *lock(&self.waiters));
        waiters.into_iter().for_each(Waker::wake);
        if canary::active!("signal_forgets_after_it_woke") {
            lock(&self.waiters).clear();
        }
    }

    /// A future that ends when `condition` gives a value; looked at after each raise.
    pub(crate) async fn wait_until<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        std::future::poll_fn(|cx| {
            if let Some(value) = condition() {
                return Poll::Ready(value);
            }
            self.wait(cx.waker());
            if canary::active!("signal_is_looked_at_once") {
                return Poll::Pending;
            }
            condition().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Runs two futures side by side.
pub(crate) async fn join<A: Future, B: Future>(one: A, other: B) -> (A::Output, B::Output) {
    let (mut one, mut other) = (Box::pin(one), Box::pin(other));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(value) = one.as_mut().poll(cx)
        {
            first = Some(value);
        }
        if second.is_none()
            && let Poll::Ready(value) = other.as_mut().poll(cx)
        {
            second = Some(value);
        }
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (one, other) => {
                (first, second) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}

/// Runs the futures side by side and gives their results in order.
pub(crate) async fn join_all<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut results: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        let mut pending = false;
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none() {
                match Pin::new(future).poll(cx) {
                    Poll::Ready(value) => *result = Some(value),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    results.into_iter().flatten().collect()
}
