//! Doubles that the queues under test are driven with: random choices, a transport, a control thread.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use blkmq::error::ErrorKind;
use blkmq::{CancelWork, Completer, ControlThread, Kick};

use super::queue_model::Id;

/// How a request ended.
pub(crate) type Outcome = Result<(), ErrorKind>;

/// A small generator (splitmix64): the same numbers on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

#[derive(Default)]
pub(crate) struct Transport {
    pub(crate) kicks: AtomicU64,
    pub(crate) done: Mutex<Vec<(Id, Outcome)>>,
}

impl Completer<Id> for Transport {
    fn complete(&self, id: Id, result: Outcome) {
        self.done.lock().unwrap().push((id, result));
    }
}

impl Kick for Transport {
    fn kick(&self) {
        self.kicks.fetch_add(1, SeqCst);
    }
}

#[derive(Default)]
pub(crate) struct PostedWork(pub(crate) Mutex<Vec<CancelWork>>);

impl ControlThread for PostedWork {
    fn post(&self, work: CancelWork) {
        self.0.lock().unwrap().push(work);
    }
}
