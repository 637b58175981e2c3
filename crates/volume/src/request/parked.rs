//! Writes that wait for room in the log: in which order they try again, and how many at once.
//!
//! Room may be there for one write or for all, and which of them it suits only they find out. So each
//! event wakes a few of every volume; one that gets room wakes the next of its volume, and one that gets
//! none goes to the end of its row. As many try as room admits, each volume for itself, and all of them in
//! turn. To wake all at each event would cost more the longer the log stays full.
//!
//! Nothing here decides who gets room. A wake may be lost on a write that ended otherwise; the next tick
//! of the bookkeeping wakes others, so no row stands still.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use crate::lock::lock;
use crate::log::ring::TailId;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// So many of a volume try again at one event: more than one, for what is too large for the room that
/// there is must not hold up what is not.
const AT_ONCE: usize = 2;

type Rows = BTreeMap<TailId, VecDeque<Waker>>;

/// The parked writes of all volumes.
#[derive(Debug, Default)]
pub(crate) struct ParkedWrites {
    rows: Mutex<Rows>,
    /// Of all rows; changed under their lock. Whoever is admitted looks at it without.
    waiting: AtomicUsize,
}

impl ParkedWrites {
    /// Keeps the waker. Callers look for room *after* this, so room made between look and wait is not
    /// missed.
    pub(crate) fn wait(&self, tail: TailId, waker: &Waker) {
        let mut rows = lock(&self.rows);
        let row = rows.entry(tail).or_default();
        if !row.iter().any(|known| known.will_wake(waker)) {
            row.push_back(waker.clone());
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// There may be room now.
    pub(crate) fn wake_some(&self) {
        let at_once = match canary::active!("all_parked_writes_are_woken") {
            true => usize::MAX,
            false => AT_ONCE,
        };
        self.wake(|rows| {
            let first = |row: &mut VecDeque<Waker>| {
                let row = row.drain(..at_once.min(row.len()));
                row.collect::<Vec<_>>()
            };
            rows.values_mut().flat_map(first).collect::<Vec<_>>()
        });
    }

    /// One of this volume got room: perhaps there is some for the next.
    pub(crate) fn wake_next(&self, tail: TailId) {
        if !self.is_empty() && !canary::active!("admitted_writes_wake_nobody") {
            self.wake(|rows| rows.get_mut(&tail).and_then(VecDeque::pop_front));
        }
    }

    /// They wait no more, whatever there is.
    pub(crate) fn wake_all(&self) {
        self.wake(|rows| std::mem::take(rows).into_values().flatten());
    }

    fn wake<W: IntoIterator<Item = Waker>>(&self, take: impl FnOnce(&mut Rows) -> W) {
        let woken: Vec<Waker> = {
            let mut rows = lock(&self.rows);
            let woken: Vec<_> = take(&mut rows).into_iter().collect();
            rows.retain(|_, row| !row.is_empty());
            self.waiting.fetch_sub(woken.len(), Ordering::Relaxed);
            woken
        };
        woken.into_iter().for_each(Waker::wake);
        if canary::active!("parked_writes_are_forgotten_after_they_woke") {
            lock(&self.rows).clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Epoch, VolumeId};
    use std::sync::Arc;
    use std::task::Wake;

    struct Write(usize, Arc<Mutex<Vec<usize>>>);

    impl Wake for Write {
        fn wake(self: Arc<Self>) {
            lock(&self.1).push(self.0);
        }
    }

    fn tail(volume: u8) -> TailId {
        TailId {
            volume: VolumeId([volume; 16]),
            since: Epoch(1),
        }
    }

    /// Ten writes of each of two volumes, 0 to 9 and 10 to 19, and who was woken.
    fn full() -> (ParkedWrites, impl Fn() -> Vec<usize>) {
        let (parked, woken) = (ParkedWrites::default(), Arc::default());
        for write in 0..20 {
            let waker = Waker::from(Arc::new(Write(write, Arc::clone(&woken))));
            parked.wait(tail((write / 10) as u8), &waker);
            parked.wait(tail((write / 10) as u8), &waker);
        }
        (parked, move || std::mem::take(&mut *lock(&woken)))
    }

    #[test]
    fn a_few_of_each_volume_try_again_at_each_event_and_all_in_turn() {
        let (parked, woken) = full();
        let mut all = Vec::new();
        for _ in 0..5 {
            parked.wake_some();
            let some = woken();
            assert_eq!(some.len(), 2 * AT_ONCE, "no volume waits behind another");
            all.extend(some);
        }
        assert!(parked.is_empty());
        for volume in [0..10, 10..20] {
            let own = all.iter().copied().filter(|write| volume.contains(write));
            assert!(own.eq(volume.clone()), "in order");
        }
        parked.wake_some();
        assert!(woken().is_empty());
    }

    #[test]
    fn each_write_that_gets_room_wakes_the_next_of_its_volume() {
        let (parked, woken) = full();
        for write in 10..20 {
            parked.wake_next(tail(1));
            assert_eq!(woken(), [write]);
        }
        parked.wake_next(tail(1));
        assert!(woken().is_empty() && !parked.is_empty());
    }

    #[test]
    fn an_end_wakes_every_parked_write() {
        let (parked, woken) = full();
        parked.wake_all();
        assert_eq!(woken(), Vec::from_iter(0..20));
        assert!(parked.is_empty());
    }

    #[test]
    fn each_planted_bug_is_seen() {
        let planted: [(_, fn()); 2] = [
            (
                "all_parked_writes_are_woken",
                a_few_of_each_volume_try_again_at_each_event_and_all_in_turn,
            ),
            (
                "admitted_writes_wake_nobody",
                each_write_that_gets_room_wakes_the_next_of_its_volume,
            ),
        ];
        for (bug, test) in planted {
            let seen = std::panic::catch_unwind(|| canary::with(bug, test));
            assert!(seen.is_err(), "{bug}");
        }
    }
}
