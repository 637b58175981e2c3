//! Pooled buffers with a bound on the bytes lent, and one reserve.
//!
//! Memory follows bytes in flight (R5): nothing is lent per tag in advance, and only a small
//! part of what came back is kept. An empty pool answers `None`; the caller parks in order (R11).
//! The reserve is lent to one holder at a time, and only for [`BufferPurpose::Progress`]: requests that
//! already hold memory and cannot finish without a little more. As such a request gives the
//! reserve back before it asks again, the head of that queue always gets on.
//!
//! # Buffers that are held for long
//!
//! A request that its device parks may keep its buffer without a limit in time ([`BufferPurpose::Held`]). No
//! other device may wait for such a buffer, or one device's full log would stop all others. So:
//!
//! 1. Held buffers take at most half of the bytes, and leave room for the largest request besides:
//!    requests that give back without waiting ([`BufferPurpose::Fresh`]) make progress whatever is held.
//! 2. A holder gets no more than it leaves to the others: its own bytes and the new ones fit in what
//!    is left of that half. One takes half of it at most, two a third each, and so on.
//! 3. A holder that has none always gets one, beyond the bounds if necessary. So a holder that waits
//!    has a buffer, and waits only for its own to come back.
//!
//! The third rule costs at most one request's bytes for each holder. Holders are queues of devices,
//! whose number the server chooses. It does not choose the number of clients, so what clients get
//! beyond the bounds is bounded again ([`BufferPurpose::Client`]), but for one buffer, which may be larger than
//! that bound; a client that stalls is disconnected.

mod accounts;
pub(crate) mod ledger;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use crate::aligned::BUF_ALIGN;
use crate::buf::Buf;
use accounts::UNNAMED;
pub use ledger::BufferPurpose;
use ledger::{CLASSES, Ledger, LoanKind, class_of, lock};

/// A pool of page-aligned buffers. Its lock is small: memory only, never held over a wait.
pub struct BufferPool {
    ledger: Arc<Mutex<Ledger>>,
}

/// Figures of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes lent now within the bounds, without the reserve.
    pub lent: usize,
    /// Bytes lent beyond them, to holders that had none.
    pub beyond: usize,
    /// Bytes kept for reuse.
    pub kept: usize,
    /// Whether the reserve is lent.
    pub reserve_lent: bool,
}

impl BufferPool {
    /// A pool that lends at most `bytes_max`, and beyond that one reserve of `reserve_bytes`.
    /// `None` where the reserve cannot be allocated, or is larger than any buffer may be.
    pub fn new(bytes_max: usize, reserve_bytes: usize) -> Option<BufferPool> {
        let ledger = Ledger::new(bytes_max, reserve_bytes)?;
        Some(BufferPool {
            ledger: Arc::new(Mutex::new(ledger)),
        })
    }

    /// A buffer of `len` bytes with any content, or `None` where the pool is empty. See
    /// [`BufferPool::take_for`] for buffers that are held.
    pub fn take(&self, len: usize, need: BufferPurpose) -> Option<Buf> {
        self.take_for(UNNAMED, len, need)
    }

    /// The same for a holder, whose buffers for [`BufferPurpose::Held`] and [`BufferPurpose::Client`] count together.
    /// The lower half of its number is a slot, for each of which the pool keeps an account; the upper
    /// half is the generation of the slot's user.
    pub fn take_for(&self, holder: u64, len: usize, need: BufferPurpose) -> Option<Buf> {
        let (class, size) = class_of(len)?;
        let mut ledger = lock(&self.ledger);
        let (mut region, kind) = match ledger.lend(class, size, need, holder) {
            None if need == BufferPurpose::Progress => {
                (ledger.lend_reserve(len)?, LoanKind::Reserve)
            }
            other => other?,
        };
        drop(ledger);
        let whole =
            Arc::get_mut(&mut region).expect("a region that is not lent has no other users");
        whole.set_loan(&self.ledger, kind, holder);
        Some(Buf::from_region(region, len))
    }

    /// Wakes `waker` the next time that a buffer comes back, once, on any thread. To be called before
    /// the attempt to take a buffer that may fail, so that no return is missed.
    pub(crate) fn watch(&self, waker: &Waker) {
        lock(&self.ledger).watch = Some(waker.clone());
    }

    /// Ends [`BufferPool::watch`].
    pub(crate) fn unwatch(&self) {
        let watch = lock(&self.ledger).watch.take();
        drop(watch);
    }

    /// Whether the system had no memory when the pool last asked for some. Then waiting for a buffer
    /// to come back is not enough.
    pub(crate) fn is_short(&self) -> bool {
        lock(&self.ledger).short
    }

    /// The largest buffer that can be had, for any need.
    pub fn len_max(&self) -> usize {
        let most = lock(&self.ledger).bytes_max.min(BUF_ALIGN << (CLASSES - 1));
        // Sizes are powers of two.
        1 << most.ilog2()
    }

    /// The largest buffer that [`BufferPurpose::Progress`] is certain to get.
    pub fn reserve_len(&self) -> usize {
        lock(&self.ledger).reserve_len
    }

    /// Whether a buffer goes elsewhere when it is dropped: to another pool, or to a foreign owner.
    pub(crate) fn is_foreign(&self, buf: &Buf) -> bool {
        buf.region().is_foreign_to(&self.ledger)
    }

    /// Panics where the pool's books do not add up.
    pub(crate) fn assert_invariants(&self) {
        lock(&self.ledger).assert_invariants();
    }

    /// Figures for reports and tests.
    pub fn stats(&self) -> PoolStats {
        let ledger = lock(&self.ledger);
        let reserve_lent = ledger.reserve.is_none();
        PoolStats {
            lent: ledger.lent,
            beyond: ledger.beyond,
            kept: ledger.kept,
            reserve_lent,
        }
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    #[should_panic(expected = "against bytes allocated")]
    fn a_byte_that_is_lent_twice_is_seen() {
        let pool = BufferPool::new(64 << 10, 4096).unwrap();
        let _buf = pool.take(4096, BufferPurpose::Fresh).unwrap();
        pool.assert_invariants();
        lock(&pool.ledger).lent += 4096;
        pool.assert_invariants();
    }

    #[test]
    fn bytes_lent_are_bounded_and_come_back() {
        let pool = BufferPool::new(64 << 10, 4096).unwrap();
        let held: Vec<_> = (0..16)
            .map(|_| pool.take(4096, BufferPurpose::Fresh).unwrap())
            .collect();
        assert!(pool.take(1, BufferPurpose::Fresh).is_none());
        drop(held);
        assert_eq!(
            pool.stats(),
            PoolStats {
                kept: 64 << 10,
                ..PoolStats::default()
            }
        );
        assert_eq!(
            pool.take(60 << 10, BufferPurpose::Fresh).unwrap().len(),
            60 << 10
        );
    }

    #[test]
    fn the_reserve_serves_one_holder_that_must_get_on_and_no_fresh_request() {
        let pool = BufferPool::new(8192, 8192).unwrap();
        let _all = pool.take(8192, BufferPurpose::Fresh).unwrap();
        assert!(pool.take(512, BufferPurpose::Fresh).is_none());
        let reserve = pool.take(8192, BufferPurpose::Progress).unwrap();
        assert!(pool.stats().reserve_lent);
        assert!(pool.take(512, BufferPurpose::Progress).is_none());
        drop(reserve);
        assert!(pool.take(512, BufferPurpose::Progress).is_some());
    }

    #[test]
    fn what_is_held_is_at_most_half_and_leaves_room_for_the_largest_fresh_request() {
        for (bytes, reserve, half) in [(64 << 10, 4096, 32 << 10), (64 << 10, 64 << 10, 0)] {
            let pool = BufferPool::new(bytes, reserve).unwrap();
            let hold = |holder| pool.take_for(holder, 4096, BufferPurpose::Held).unwrap();
            let _held: Vec<_> = (0..100).map(hold).collect();
            let stats = pool.stats();
            assert_eq!(stats.lent + stats.beyond, 100 * 4096);
            assert!(stats.lent <= half, "{stats:?}");
            assert!(
                pool.take(pool.reserve_len(), BufferPurpose::Fresh)
                    .is_some()
            );
        }
    }

    #[test]
    fn a_holder_gets_no_more_than_it_leaves_to_the_others() {
        let pool = BufferPool::new(2 << 20, 4096).unwrap();
        let mut held = Vec::new();
        let mut hold = |holder| {
            let before = held.len();
            while let Some(buf) = pool.take_for(holder, 4096, BufferPurpose::Held) {
                held.push(buf);
            }
            (held.len() - before) * 4096
        };
        assert_eq!(
            [hold(1), hold(2), hold(3)],
            [512 << 10, 256 << 10, 128 << 10]
        );
        assert_eq!(hold(1), 0);
        drop(held);
        assert_eq!((pool.stats().lent, pool.stats().beyond), (0, 0));
        for holder in [1, 2, 3] {
            assert_eq!(lock(&pool.ledger).accounts.of(holder), 0);
        }
    }

    #[test]
    fn a_holder_that_has_nothing_waits_for_nobody_else() {
        let pool = BufferPool::new(4 << 20, 1 << 20).unwrap();
        let mut parked = Vec::new();
        for holder in 0..100 {
            let first = pool.take_for(holder, 1 << 20, BufferPurpose::Held);
            parked.push(first.expect("whatever the others hold"));
            while let Some(more) = pool.take_for(holder, 1 << 20, BufferPurpose::Held) {
                parked.push(more);
            }
        }
        // And one that has something waits for its own alone.
        assert!(pool.take_for(99, 512, BufferPurpose::Held).is_none());
        drop(parked.pop());
        let again = pool.take_for(99, pool.len_max(), BufferPurpose::Held);
        assert!(again.is_some());
        drop((parked, again));
        assert_eq!((pool.stats().lent, pool.stats().beyond), (0, 0));
    }

    #[test]
    fn what_clients_get_beyond_the_bounds_is_bounded_and_stops_no_queue() {
        let pool = BufferPool::new(4 << 20, 1 << 20).unwrap();
        let first = |client| pool.take_for(client, 1 << 20, BufferPurpose::Client);
        let held: Vec<_> = (0..100).map_while(first).collect();
        assert_eq!(held.len(), 4, "half of the pool, and as much again");
        assert!(pool.take_for(100, 1 << 20, BufferPurpose::Held).is_some());
        assert!(pool.take(1 << 20, BufferPurpose::Fresh).is_some());
        drop(held);
        assert!(first(0).is_some());
    }

    #[test]
    fn one_client_gets_on_whatever_the_pool_has() {
        for (bytes, reserve, len) in [
            (64 << 10, 1 << 20, 4096),
            (4 << 20, 1 << 20, 4 << 20),
            (5 << 20, 4 << 20, 4 << 20),
        ] {
            let pool = BufferPool::new(bytes, reserve).unwrap();
            let first = |client| pool.take_for(client, len, BufferPurpose::Client);
            let held: Vec<_> = (0..100).map_while(first).collect();
            assert!((1..100).contains(&held.len()), "{bytes} {reserve} {len}");
            drop(held);
            assert!(first(0).is_some(), "{bytes} {reserve} {len}");
        }
    }

    #[test]
    fn a_buffer_that_comes_back_wakes_who_watches_once() {
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let woken = || count.0.load(Ordering::SeqCst);
        let pool = BufferPool::new(64 << 10, 4096).unwrap();
        let lend = |need| pool.take(4096, need).unwrap();
        drop(lend(BufferPurpose::Fresh));
        assert_eq!(woken(), 0);
        let all = pool.take(64 << 10, BufferPurpose::Fresh).unwrap();
        let reserve = lend(BufferPurpose::Progress);
        let held = lend(BufferPurpose::Held);
        for (round, buf) in [reserve, held, all].into_iter().enumerate() {
            pool.watch(&waker);
            std::thread::scope(|scope| scope.spawn(|| drop(buf)).join().unwrap());
            assert_eq!(woken(), round + 1);
            drop(pool.take_for(1, 4096, BufferPurpose::Held));
            assert_eq!(woken(), round + 1, "nothing watches");
        }
        pool.watch(&waker);
        pool.unwatch();
        drop(lend(BufferPurpose::Fresh));
        assert_eq!(woken(), 3);
    }

    #[test]
    fn parts_that_go_at_once_on_two_threads_give_their_whole_back() {
        let pool = BufferPool::new(64 << 10, 4096).unwrap();
        let (parts, dropped) = std::sync::mpsc::sync_channel::<Buf>(0);
        let other = std::thread::spawn(move || dropped.into_iter().for_each(drop));
        for _ in 0..20_000 {
            let mut rest = pool.take(8192, BufferPurpose::Fresh).unwrap();
            parts.send(rest.split_to(4096)).unwrap();
            drop(rest);
        }
        drop(parts);
        other.join().unwrap();
        let stats = pool.stats();
        assert_eq!(stats.lent, 0);
        assert!(stats.kept <= 3 * 8192, "{stats:?}: allocated each time");
    }

    #[test]
    fn a_part_keeps_the_whole_lent() {
        let pool = BufferPool::new(64 << 10, 4096).unwrap();
        let mut buf = pool.take(16 << 10, BufferPurpose::Fresh).unwrap();
        let part = buf.split_to(512);
        drop(buf);
        assert_eq!(pool.stats().lent, 16 << 10);
        drop(part);
        assert_eq!(pool.stats().lent, 0);
    }

    #[test]
    fn idle_memory_is_bounded_and_outlives_no_pool() {
        let pool = BufferPool::new(64 << 20, 4096).unwrap();
        let held: Vec<_> = (0..32)
            .map(|_| pool.take(1 << 20, BufferPurpose::Fresh).unwrap())
            .collect();
        drop(held);
        assert_eq!(pool.stats().kept, ledger::KEPT_BYTES_MAX);
        let last = pool.take(4096, BufferPurpose::Fresh).unwrap();
        drop(pool);
        assert_eq!(last.len(), 4096);
    }

    #[test]
    fn what_no_class_holds_is_never_lent() {
        let pool = BufferPool::new(1 << 30, 4096).unwrap();
        assert!(pool.take((64 << 20) + 1, BufferPurpose::Fresh).is_none());
        assert!(pool.take(usize::MAX, BufferPurpose::Progress).is_none());
        assert_eq!(pool.len_max(), 64 << 20);
        let odd = BufferPool::new(100 << 10, 4096).unwrap();
        assert!(odd.take(odd.len_max(), BufferPurpose::Fresh).is_some());
        assert!(odd.take(odd.len_max() + 1, BufferPurpose::Fresh).is_none());
    }
}
