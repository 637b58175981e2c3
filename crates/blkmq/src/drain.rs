//! The wakers of those who wait until a device has nothing in flight.
//!
//! A thread that completes a request while a flag is set wakes all of them, and each checks again.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::may_block::{SmallLock, may_block};

/// The waiters for a drain of one device.
pub(crate) struct DrainWaiters(SmallLock<WakerList>);

#[derive(Default)]
struct WakerList {
    next_key: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl DrainWaiters {
    pub(crate) fn new() -> DrainWaiters {
        DrainWaiters(SmallLock::new("drain waiters", WakerList::default()))
    }

    /// Registers a waker under the caller's key; assigns the key the first time.
    pub(crate) fn register(&self, key: &mut Option<u64>, waker: &Waker) {
        let mut list = self.0.lock();
        let key = *key.get_or_insert(list.next_key);
        list.next_key = list.next_key.max(key + 1);
        list.wakers.insert(key, waker.clone());
    }

    pub(crate) fn remove(&self, key: u64) {
        self.0.lock().wakers.remove(&key);
    }

    pub(crate) fn wake_all(&self) {
        let wakers = std::mem::take(&mut self.0.lock().wakers);
        if canary::active!("sleep_under_a_small_lock") {
            let _list = self.0.lock();
            may_block("a planted bug");
        }
        // Outside the lock: a waker runs code of others.
        wakers.into_values().for_each(Waker::wake);
    }
}
