//! Whoever waits is woken: signals, writes parked for space, and the executor's jobs.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use shuttle::future::block_on;
use shuttle::thread;

use super::check;
use crate::driver::Notify;
use crate::jobs::{Jobs, Signal};
use crate::log::ring::TailId;
use crate::request::parked::ParkedWrites;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::{Epoch, VolumeId};

const TAIL: TailId = TailId {
    volume: VolumeId([1; 16]),
    since: Epoch(1),
};
/// Writes that are parked, one more than try again at one event.
const WRITES: u64 = 3;

#[derive(Default)]
struct Level {
    reached: AtomicU64,
    changed: Signal,
}

impl Level {
    fn raise(&self) {
        self.reached.fetch_add(1, Ordering::Release);
        self.changed.wake_all();
    }

    fn wait_for(&self, level: u64) {
        let is_there = || (self.reached.load(Ordering::Acquire) >= level).then_some(());
        block_on(self.changed.wait_until(is_there));
    }
}

#[test]
pub(super) fn whoever_waits_for_a_signal_sees_every_change() {
    check(2000, || {
        let level = Arc::new(Level::default());
        let waiters = [(); 2].map(|()| {
            let level = Arc::clone(&level);
            thread::spawn(move || (1..=2).for_each(|reached| level.wait_for(reached)))
        });
        level.raise();
        level.raise();
        waiters
            .into_iter()
            .for_each(|waiter| waiter.join().unwrap());
    });
}

/// Room for some writes, and the writes that wait for it.
#[derive(Default)]
struct Room {
    left: AtomicU64,
    parked: ParkedWrites,
    ended: AtomicU64,
}

impl Room {
    fn take(&self) -> bool {
        let one_less = |left: u64| left.checked_sub(1);
        let taken = self
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
        taken.is_ok()
    }

    /// As `Volume::begin_write` does it.
    fn write(&self) {
        block_on(poll_fn(|cx| {
            let mut has_room = self.take();
            if !has_room {
                self.parked.wait(TAIL, cx.waker());
                has_room = self.take();
            }
            if !has_room {
                return Poll::Pending;
            }
            self.parked.wake_next(TAIL);
            Poll::Ready(())
        }));
        self.ended.fetch_add(1, Ordering::AcqRel);
    }
}

#[test]
pub(super) fn every_parked_write_gets_the_room_that_is_made_for_it() {
    check(2000, || {
        let room = Arc::new(Room::default());
        let writes: Vec<_> = (0..WRITES)
            .map(|_| {
                let room = Arc::clone(&room);
                thread::spawn(move || room.write())
            })
            .collect();
        for _ in 0..WRITES {
            room.left.fetch_add(1, Ordering::AcqRel);
            room.parked.wake_some();
        }
        // The bookkeeping's ticks: a wake may have gone to a write that had room already.
        while room.ended.load(Ordering::Acquire) < WRITES {
            room.parked.wake_some();
            thread::yield_now();
        }
        writes.into_iter().for_each(|write| write.join().unwrap());
        assert_eq!(room.left.load(Ordering::Acquire), 0);
    });
}

/// Threads look for jobs by themselves here.
struct NoopNotify;

impl Notify for NoopNotify {
    fn commit_ready(&self) {}
    fn jobs_ready(&self) {}
}

#[test]
pub(super) fn a_job_goes_on_however_its_wake_meets_the_end_of_a_run() {
    check(2000, || {
        let jobs = Jobs::new(Arc::new(NoopNotify));
        let level = Arc::new(Level::default());
        let ended = Arc::new(AtomicU64::new(0));
        let (seen, end) = (Arc::clone(&level), Arc::clone(&ended));
        jobs.spawn(async move {
            for reached in 1..=2 {
                let is_there = || (seen.reached.load(Ordering::Acquire) >= reached).then_some(());
                seen.changed.wait_until(is_there).await;
            }
            end.store(1, Ordering::Release);
        });
        let threads = [(); 2].map(|()| {
            let (jobs, level) = (Arc::clone(&jobs), Arc::clone(&level));
            thread::spawn(move || {
                level.raise();
                while jobs.run(|| true) {}
            })
        });
        while jobs.run(|| true) {}
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_eq!(
            ended.load(Ordering::Acquire),
            1,
            "it is ready, and nobody runs it"
        );
    });
}
