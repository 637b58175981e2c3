//! The host-wide budget of memory for content on its way to the store.
//!
//! A job that gathers content into a pack holds a permit for its bytes until the pack is in the store. Permits
//! are granted in the order of the requests, and one volume gets at most half of the budget, so that a volume
//! whose PUTs hang holds up no other. A pack larger than that is admitted when its volume has nothing else in
//! progress, so every request is granted in the end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::jobs::Signal;
use crate::lock::lock;
use crate::log::ring::TailId;
use crate::sync::Mutex;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Budget {
    total: u64,
    state: Mutex<State>,
    freed: Signal,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    /// Bytes that each volume holds.
    held: BTreeMap<TailId, u64>,
    /// Waiting requests, the oldest first.
    waiting: VecDeque<BudgetRequest>,
    asks: u64,
}

#[derive(Clone, Copy, Debug)]
struct BudgetRequest {
    number: u64,
    tail: TailId,
    bytes: u64,
}

impl State {
    fn fits(&self, ask: BudgetRequest, total: u64) -> bool {
        let held = self.held.get(&ask.tail).copied().unwrap_or(0);
        let own = canary::active!("one_volume_takes_all_memory")
            || held == 0
            || held + ask.bytes <= total / 2;
        own && (self.used == 0 || self.used + ask.bytes <= total)
    }

    /// Whether this request can be granted: no older request waits for nothing but the bytes in use.
    fn take(&mut self, number: u64, total: u64) -> bool {
        let mut waiting = self.waiting.iter().copied();
        let Some(place) = waiting.position(|ask| ask.number == number) else {
            return false;
        };
        let ask = self.waiting[place];
        let kept_by_itself = |other: &BudgetRequest| {
            let held = self.held.get(&other.tail).copied().unwrap_or(0);
            held > 0 && held + other.bytes > total / 2
        };
        let first = self.waiting.range(..place).all(kept_by_itself);
        if !first || !self.fits(ask, total) {
            return false;
        }
        self.waiting.remove(place);
        self.used += ask.bytes;
        *self.held.entry(ask.tail).or_default() += ask.bytes;
        true
    }
}

/// The right to hold so many bytes. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Permit {
    budget: Arc<Budget>,
    tail: TailId,
    bytes: u64,
}

/// A request that is withdrawn if it is dropped before it was granted.
struct Pending<'a> {
    budget: &'a Budget,
    number: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.budget.state);
        state.waiting.retain(|ask| ask.number != self.number);
    }
}

impl Budget {
    pub(crate) fn new(total: u64) -> Arc<Budget> {
        Arc::new(Budget {
            total,
            state: Mutex::default(),
            freed: Signal::default(),
        })
    }

    /// Waits until the bytes may be held.
    pub(crate) async fn acquire(self: &Arc<Self>, tail: TailId, bytes: u64) -> Permit {
        let pending = {
            let mut state = lock(&self.state);
            let number = state.asks;
            state.asks += 1;
            state.waiting.push_back(BudgetRequest {
                number,
                tail,
                bytes,
            });
            Pending {
                budget: self,
                number,
            }
        };
        let taken = || {
            let mut state = lock(&self.state);
            state.take(pending.number, self.total).then_some(())
        };
        self.freed.wait_until(taken).await;
        // The next request may fit, too.
        self.freed.wake_all();
        Permit {
            budget: Arc::clone(self),
            tail,
            bytes,
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.budget.state);
            state.used -= self.bytes;
            if let Some(held) = state.held.get_mut(&self.tail) {
                *held -= self.bytes;
                if *held == 0 {
                    state.held.remove(&self.tail);
                }
            }
        }
        self.budget.freed.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::units::{Epoch, VolumeId};

    fn tail(n: u8) -> TailId {
        TailId {
            volume: VolumeId([n; 16]),
            since: Epoch(1),
        }
    }

    fn try_acquire(budget: &Arc<Budget>, n: u8, bytes: u64) -> Option<Permit> {
        let mut cx = Context::from_waker(Waker::noop());
        match pin!(budget.acquire(tail(n), bytes)).poll(&mut cx) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_volume_holds_at_most_half_and_none_is_refused_for_ever() {
        let budget = Budget::new(100);
        let large = try_acquire(&budget, 1, 90).expect("alone, however large");
        assert!(try_acquire(&budget, 1, 1).is_none());
        assert!(try_acquire(&budget, 2, 20).is_none(), "too little is left");
        let small = try_acquire(&budget, 2, 10).expect("fits");
        drop(large);
        assert!(try_acquire(&budget, 2, 41).is_none(), "more than half");
        let more = try_acquire(&budget, 2, 40).expect("half of it");
        drop((small, more));
        assert!(try_acquire(&budget, 3, 1000).is_some());
    }

    #[test]
    fn who_has_waited_longest_is_first_unless_it_waits_for_itself() {
        let budget = Budget::new(100);
        let mut cx = Context::from_waker(Waker::noop());
        let held = try_acquire(&budget, 1, 50).expect("fits");
        let other = try_acquire(&budget, 3, 30).expect("fits");
        let mut own = pin!(budget.acquire(tail(1), 10));
        assert!(own.as_mut().poll(&mut cx).is_pending());
        let mut long = pin!(budget.acquire(tail(2), 40));
        assert!(long.as_mut().poll(&mut cx).is_pending());
        assert!(try_acquire(&budget, 4, 10).is_none(), "it would overtake");
        drop(other);
        assert!(long.as_mut().poll(&mut cx).is_ready());
        drop(held);
        assert!(own.as_mut().poll(&mut cx).is_ready());
    }
}
