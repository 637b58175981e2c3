//! Pooled buffers with a bound on the bytes lent, and one reserve.
//!
//! Memory follows bytes in flight (R5): nothing is lent per tag in advance, and only a small
//! part of what came back is kept. A dry pool answers `None`; the caller parks in order (R11).
//! The reserve is lent to one holder at a time, and only for [`Need::Progress`]: requests that
//! already hold memory and cannot finish without a little more. As such a request gives the
//! reserve back before it asks again, the head of that queue always gets on.
//!
//! # Buffers that are held for long
//!
//! A request that its device parks may keep its buffer for ever ([`Need::Held`]). Nobody must wait
//! for such a buffer of somebody else, or one device's full log would stop all others. So:
//!
//! 1. They take at most half of the bytes, and leave room for the largest request besides: who
//!    gives back without waiting ([`Need::Fresh`]) gets on whatever is held.
//! 2. A holder gets no more than it leaves to the others: its own bytes and the new ones fit in what
//!    is left of that half. One takes half of it at most, two a third each, and so on.
//! 3. A holder that has none always gets one, beyond the bounds where need be. So who waits has a
//!    buffer, and waits for its own to come back and for nothing else.
//!
//! The third costs at most one request's bytes for each holder, which only queues of devices are:
//! their number is the server's own choice. That of clients is not, so all that clients get beyond
//! the bounds is bounded again ([`Need::Client`]); what they stop over is cut off instead.

mod accounts;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use crate::buf::{BUF_ALIGN, Buf, Region};
use accounts::{Accounts, NOBODY};

/// Size classes are powers of two times [`BUF_ALIGN`]; the largest is 64 MiB.
const CLASSES: usize = 15;

/// Returned memory that is kept for the next request instead of given back to the system: enough
/// for a deep queue of 1 MiB requests, far below what an idle server would be blamed for.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// What memory is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A request that holds no memory yet, and gives this back without waiting for anybody.
    Fresh,
    /// The same, but held for as long as the device makes the request wait (a log without space).
    /// Each holder gets a part of the bytes, and one buffer in any case.
    Held,
    /// The same for a client that may come slowly with what is to be put in, and of whom there may
    /// be any number: one buffer in any case only as far as all such take as much again.
    Client,
    /// A request that holds memory and needs this to finish. May use the reserve; holds no other
    /// buffer obtained for this need while it waits.
    Progress,
}

struct Inner {
    bytes_max: usize,
    /// Bytes within the bounds.
    lent: usize,
    /// The part of `lent` that is lent for [`Need::Held`] and [`Need::Client`], and its bound.
    held: usize,
    held_max: usize,
    /// Bytes lent beyond the bounds, and those of them that clients have.
    beyond: usize,
    beyond_clients: usize,
    /// What each holder has of all these.
    accounts: Accounts,
    kept: usize,
    reserve_len: usize,
    /// Each with the count of its parts, which are none.
    free: [Vec<Arc<Region>>; CLASSES],
    reserve: Option<Arc<Region>>,
    /// The system had no memory when it was last asked.
    short: bool,
    /// Somebody waits: to be woken by the next buffer that comes back.
    watch: Option<Waker>,
}

/// Where a region returns to when its last part is dropped. It stays with the region while that is
/// kept for the next one.
pub(crate) struct Home {
    pool: Weak<Mutex<Inner>>,
    lent_as: LentAs,
    holder: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LentAs {
    Ordinary,
    Held,
    Beyond,
    BeyondClient,
    Reserve,
}

/// A pool of page-aligned buffers. Its lock is small: memory only, never held over a wait.
pub struct BufferPool {
    inner: Arc<Mutex<Inner>>,
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

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    // Every change under the lock is complete before anything can panic.
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The class that holds `len` bytes and its size.
fn class_of(len: usize) -> Option<(usize, usize)> {
    let size = len.max(BUF_ALIGN).checked_next_power_of_two()?;
    let class = (size / BUF_ALIGN).trailing_zeros() as usize;
    (class < CLASSES).then_some((class, size))
}

impl BufferPool {
    /// A pool that lends at most `bytes_max`, and beyond that one reserve of `reserve_bytes`.
    pub fn new(bytes_max: usize, reserve_bytes: usize) -> Option<BufferPool> {
        // Untouched pages of the reserve cost no memory until it is needed.
        let (_, reserve_size) = class_of(reserve_bytes)?;
        let bytes_max = bytes_max.max(reserve_size);
        let inner = Inner {
            bytes_max,
            lent: 0,
            held: 0,
            held_max: (bytes_max / 2).min(bytes_max - reserve_size),
            beyond: 0,
            beyond_clients: 0,
            accounts: Accounts::default(),
            reserve_len: reserve_size,
            kept: 0,
            free: std::array::from_fn(|_| Vec::new()),
            reserve: Some(Arc::new(Region::allocate(reserve_size)?)),
            short: false,
            watch: None,
        };
        Some(BufferPool {
            inner: Arc::new(Mutex::new(inner)),
        })
    }

    /// A buffer of `len` bytes with any content, or `None` where the pool is dry. See
    /// [`BufferPool::take_for`] for what is held.
    pub fn take(&self, len: usize, need: Need) -> Option<Buf> {
        self.take_for(NOBODY, len, need)
    }

    /// The same for a holder, of whom all buffers for [`Need::Held`] and [`Need::Client`] count
    /// together. The lower half of its number is its place, of which the pool keeps an account each,
    /// and the upper one tells apart who has it after each other.
    pub fn take_for(&self, holder: u64, len: usize, need: Need) -> Option<Buf> {
        let (class, size) = class_of(len)?;
        let mut inner = lock(&self.inner);
        let (region, lent_as) = match inner.ordinary(class, size, need, holder) {
            None if need == Need::Progress => (inner.reserve_for(len)?, LentAs::Reserve),
            other => other?,
        };
        drop(inner);
        let mut region = region;
        let whole = Arc::get_mut(&mut region).expect("nobody has a part of what is not lent");
        match whole.home_mut() {
            Some(home) => (home.lent_as, home.holder) = (lent_as, holder),
            none => {
                *none = Some(Home {
                    pool: Arc::downgrade(&self.inner),
                    lent_as,
                    holder,
                });
            }
        }
        Some(Buf::whole(region, len))
    }

    /// Wakes this the next time that a buffer comes back, once, from whatever thread. Who waits
    /// asks for it before it tries to take one in vain.
    pub(crate) fn watch(&self, waker: &Waker) {
        lock(&self.inner).watch = Some(waker.clone());
    }

    /// Nobody waits any more, or who does looks anyway.
    pub(crate) fn unwatch(&self) {
        let watch = lock(&self.inner).watch.take();
        drop(watch);
    }

    /// Whether the system had no memory when it was last asked for some: no buffer that comes back
    /// says when it has.
    pub(crate) fn is_short(&self) -> bool {
        lock(&self.inner).short
    }

    /// The largest buffer that can ever be had, for whatever need.
    pub fn len_max(&self) -> usize {
        let most = lock(&self.inner).bytes_max.min(BUF_ALIGN << (CLASSES - 1));
        // Sizes are powers of two.
        1 << most.ilog2()
    }

    /// The largest buffer that is certain to come to who asks for [`Need::Progress`].
    pub fn reserve_len(&self) -> usize {
        lock(&self.inner).reserve_len
    }

    /// Whether a buffer goes elsewhere when it is dropped: to another pool, or to an owner of its own.
    pub(crate) fn is_strange(&self, buf: &Buf) -> bool {
        let ours = |home: &Home| std::ptr::eq(home.pool.as_ptr(), Arc::as_ptr(&self.inner));
        buf.has_owner() || buf.home().is_some_and(|home| !ours(home))
    }

    /// Figures for reports and tests.
    pub fn stats(&self) -> PoolStats {
        let inner = lock(&self.inner);
        let reserve_lent = inner.reserve.is_none();
        PoolStats {
            lent: inner.lent,
            beyond: inner.beyond,
            kept: inner.kept,
            reserve_lent,
        }
    }
}

impl Inner {
    fn ordinary(
        &mut self,
        class: usize,
        size: usize,
        need: Need,
        holder: u64,
    ) -> Option<(Arc<Region>, LentAs)> {
        let lent_as = self.way(size, need, holder)?;
        let region = match self.free[class].pop() {
            Some(region) => {
                self.kept -= size;
                region
            }
            None => {
                let region = Region::allocate(size).map(Arc::new);
                self.short = region.is_none();
                region?
            }
        };
        match lent_as {
            LentAs::Ordinary | LentAs::Reserve => self.lent += size,
            LentAs::Held => (self.lent, self.held) = (self.lent + size, self.held + size),
            LentAs::Beyond => self.beyond += size,
            LentAs::BeyondClient => {
                self.beyond += size;
                self.beyond_clients += size;
            }
        }
        if lent_as != LentAs::Ordinary {
            self.accounts.add(holder, size);
        }
        Some((region, lent_as))
    }

    /// How so many bytes can be lent now, if they can.
    fn way(&self, size: usize, need: Need, holder: u64) -> Option<LentAs> {
        let fits = self.lent + size <= self.bytes_max;
        if matches!(need, Need::Fresh | Need::Progress) {
            return fits.then_some(LentAs::Ordinary);
        }
        let own = self.accounts.of(holder);
        if fits && own + size <= self.held_max - self.held {
            return Some(LentAs::Held);
        }
        match need {
            _ if own > 0 => None,
            Need::Client if self.beyond_clients + size > self.held_max => None,
            Need::Client => Some(LentAs::BeyondClient),
            _ => Some(LentAs::Beyond),
        }
    }

    fn reserve_for(&mut self, len: usize) -> Option<Arc<Region>> {
        self.reserve.take_if(|reserve| reserve.capacity() >= len)
    }

    /// Takes what was lent back, and returns what is not kept.
    fn take_back(
        &mut self,
        region: Arc<Region>,
        lent_as: LentAs,
        holder: u64,
    ) -> Option<Arc<Region>> {
        let size = region.capacity();
        match lent_as {
            LentAs::Reserve => {
                self.reserve = Some(region);
                return None;
            }
            LentAs::Ordinary => self.lent -= size,
            LentAs::Held => (self.lent, self.held) = (self.lent - size, self.held - size),
            LentAs::Beyond => self.beyond -= size,
            LentAs::BeyondClient => {
                self.beyond -= size;
                self.beyond_clients -= size;
            }
        }
        if lent_as != LentAs::Ordinary {
            self.accounts.take(holder, size);
        }
        match class_of(size) {
            Some((class, _)) if self.kept + size <= KEPT_BYTES_MAX => {
                self.kept += size;
                self.free[class].push(region);
                None
            }
            _ => Some(region),
        }
    }
}

impl Home {
    /// Takes a region whose last part was dropped, and which has none itself.
    pub(crate) fn take_back(self, region: Arc<Region>) {
        // A pool that is gone leaves the region to the allocator.
        if let Some(pool) = self.pool.upgrade() {
            take_back(&pool, region, self.lent_as, self.holder);
        }
    }

    /// The same as it is, with its home.
    #[inline]
    pub(crate) fn take_back_settled(region: Arc<Region>) {
        let Some(home) = region.home() else {
            return;
        };
        let (lent_as, holder) = (home.lent_as, home.holder);
        if let Some(pool) = home.pool.upgrade() {
            take_back(&pool, region, lent_as, holder);
        } else {
            leave(region);
        }
    }
}

fn take_back(pool: &Mutex<Inner>, region: Arc<Region>, lent_as: LentAs, holder: u64) {
    let mut inner = lock(pool);
    let surplus = inner.take_back(region, lent_as, holder);
    let watch = inner.watch.take();
    drop(inner);
    if let Some(region) = surplus {
        leave(region);
    }
    if let Some(waker) = watch {
        waker.wake();
    }
}

/// Leaves a region to the allocator.
#[cold]
fn leave(mut region: Arc<Region>) {
    if let Some(whole) = Arc::get_mut(&mut region) {
        *whole.home_mut() = None;
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
    fn bytes_lent_are_bounded_and_come_back() {
        let pool = BufferPool::new(64 << 10, 4096).unwrap();
        let held: Vec<_> = (0..16)
            .map(|_| pool.take(4096, Need::Fresh).unwrap())
            .collect();
        assert!(pool.take(1, Need::Fresh).is_none());
        drop(held);
        assert_eq!(
            pool.stats(),
            PoolStats {
                kept: 64 << 10,
                ..PoolStats::default()
            }
        );
        assert_eq!(pool.take(60 << 10, Need::Fresh).unwrap().len(), 60 << 10);
    }

    #[test]
    fn the_reserve_serves_one_holder_that_must_get_on_and_no_fresh_request() {
        let pool = BufferPool::new(8192, 8192).unwrap();
        let _all = pool.take(8192, Need::Fresh).unwrap();
        assert!(pool.take(512, Need::Fresh).is_none());
        let reserve = pool.take(8192, Need::Progress).unwrap();
        assert!(pool.stats().reserve_lent);
        assert!(pool.take(512, Need::Progress).is_none());
        drop(reserve);
        assert!(pool.take(512, Need::Progress).is_some());
    }

    #[test]
    fn what_is_held_is_at_most_half_and_leaves_room_for_the_largest_fresh_request() {
        for (bytes, reserve, half) in [(64 << 10, 4096, 32 << 10), (64 << 10, 64 << 10, 0)] {
            let pool = BufferPool::new(bytes, reserve).unwrap();
            let hold = |holder| pool.take_for(holder, 4096, Need::Held).unwrap();
            let _held: Vec<_> = (0..100).map(hold).collect();
            let stats = pool.stats();
            assert_eq!(stats.lent + stats.beyond, 100 * 4096);
            assert!(stats.lent <= half, "{stats:?}");
            assert!(pool.take(pool.reserve_len(), Need::Fresh).is_some());
        }
    }

    #[test]
    fn a_holder_gets_no_more_than_it_leaves_to_the_others() {
        let pool = BufferPool::new(2 << 20, 4096).unwrap();
        let mut held = Vec::new();
        let mut hold = |holder| {
            let before = held.len();
            while let Some(buf) = pool.take_for(holder, 4096, Need::Held) {
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
            assert_eq!(lock(&pool.inner).accounts.of(holder), 0);
        }
    }

    #[test]
    fn a_holder_that_has_nothing_waits_for_nobody_else() {
        let pool = BufferPool::new(4 << 20, 1 << 20).unwrap();
        let mut parked = Vec::new();
        for holder in 0..100 {
            let first = pool.take_for(holder, 1 << 20, Need::Held);
            parked.push(first.expect("whatever the others hold"));
            while let Some(more) = pool.take_for(holder, 1 << 20, Need::Held) {
                parked.push(more);
            }
        }
        // And one that has something waits for its own alone.
        assert!(pool.take_for(99, 512, Need::Held).is_none());
        drop(parked.pop());
        let again = pool.take_for(99, pool.len_max(), Need::Held);
        assert!(again.is_some());
        drop((parked, again));
        assert_eq!((pool.stats().lent, pool.stats().beyond), (0, 0));
    }

    #[test]
    fn what_clients_get_beyond_the_bounds_is_bounded_and_stops_no_queue() {
        let pool = BufferPool::new(4 << 20, 1 << 20).unwrap();
        let first = |client| pool.take_for(client, 1 << 20, Need::Client);
        let held: Vec<_> = (0..100).map_while(first).collect();
        assert_eq!(held.len(), 4, "half of the pool, and as much again");
        assert!(pool.take_for(100, 1 << 20, Need::Held).is_some());
        assert!(pool.take(1 << 20, Need::Fresh).is_some());
        drop(held);
        assert!(first(0).is_some());
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
        drop(lend(Need::Fresh));
        assert_eq!(woken(), 0);
        let all = pool.take(64 << 10, Need::Fresh).unwrap();
        let reserve = lend(Need::Progress);
        let held = lend(Need::Held);
        for (round, buf) in [reserve, held, all].into_iter().enumerate() {
            pool.watch(&waker);
            std::thread::scope(|scope| scope.spawn(|| drop(buf)).join().unwrap());
            assert_eq!(woken(), round + 1);
            drop(pool.take_for(1, 4096, Need::Held));
            assert_eq!(woken(), round + 1, "nobody watches");
        }
        pool.watch(&waker);
        pool.unwatch();
        drop(lend(Need::Fresh));
        assert_eq!(woken(), 3);
    }

    #[test]
    fn parts_that_go_at_once_on_two_threads_give_their_whole_back() {
        let pool = BufferPool::new(64 << 10, 4096).unwrap();
        let (parts, dropped) = std::sync::mpsc::sync_channel::<Buf>(0);
        let other = std::thread::spawn(move || dropped.into_iter().for_each(drop));
        for _ in 0..20_000 {
            let mut rest = pool.take(8192, Need::Fresh).unwrap();
            parts.send(rest.split_to(4096)).unwrap();
            drop(rest);
        }
        drop(parts);
        other.join().unwrap();
        let stats = pool.stats();
        assert_eq!(stats.lent, 0);
        assert!(stats.kept <= 3 * 8192, "{stats:?}: made anew each time");
    }

    #[test]
    fn a_part_keeps_the_whole_lent() {
        let pool = BufferPool::new(64 << 10, 4096).unwrap();
        let mut buf = pool.take(16 << 10, Need::Fresh).unwrap();
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
            .map(|_| pool.take(1 << 20, Need::Fresh).unwrap())
            .collect();
        drop(held);
        assert_eq!(pool.stats().kept, KEPT_BYTES_MAX);
        let last = pool.take(4096, Need::Fresh).unwrap();
        drop(pool);
        assert_eq!(last.len(), 4096);
    }

    #[test]
    fn what_no_class_holds_is_never_lent() {
        let pool = BufferPool::new(1 << 30, 4096).unwrap();
        assert!(pool.take((64 << 20) + 1, Need::Fresh).is_none());
        assert!(pool.take(usize::MAX, Need::Progress).is_none());
        assert_eq!(pool.len_max(), 64 << 20);
        let odd = BufferPool::new(100 << 10, 4096).unwrap();
        assert!(odd.take(odd.len_max(), Need::Fresh).is_some());
        assert!(odd.take(odd.len_max() + 1, Need::Fresh).is_none());
    }
}
