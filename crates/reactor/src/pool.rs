//! Pooled buffers with a bound on the bytes lent, and one reserve.
//!
//! Memory follows bytes in flight (R5): nothing is lent per tag in advance, and only a small
//! part of what came back is kept. A dry pool answers `None`; the caller parks in order (R11).
//! The reserve is lent to one holder at a time, and only for [`Need::Progress`]: requests that
//! already hold memory and cannot finish without a little more. As such a request gives the
//! reserve back before it asks again, the head of that queue always gets on.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::buf::{BUF_ALIGN, Buf, Region};

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
    /// The same, but held for as long as something outside makes the request wait (a payload
    /// that comes slowly, a log without space). Such holders get at most half of the bytes, so
    /// that requests which need not wait go on beside them.
    Held,
    /// A request that holds memory and needs this to finish. May use the reserve; holds no other
    /// buffer obtained for this need while it waits.
    Progress,
}

struct Inner {
    bytes_max: usize,
    lent: usize,
    /// The part of `lent` that is lent for [`Need::Held`].
    held: usize,
    kept: usize,
    reserve_len: usize,
    free: [Vec<Region>; CLASSES],
    reserve: Option<Region>,
}

/// Where a region returns to when its last part is dropped.
#[derive(Clone)]
pub(crate) struct Home {
    pool: Weak<Mutex<Inner>>,
    lent_as: LentAs,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LentAs {
    Ordinary,
    Held,
    Reserve,
}

/// A pool of page-aligned buffers. Its lock is small: memory only, never held over a wait.
pub struct Pool {
    inner: Arc<Mutex<Inner>>,
}

/// Figures of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes lent now, without the reserve.
    pub lent: usize,
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

impl Pool {
    /// A pool that lends at most `bytes_max`, and beyond that one reserve of `reserve_bytes`.
    pub fn new(bytes_max: usize, reserve_bytes: usize) -> Option<Pool> {
        // Untouched pages of the reserve cost no memory until it is needed.
        let (_, reserve_size) = class_of(reserve_bytes)?;
        let inner = Inner {
            bytes_max: bytes_max.max(reserve_size),
            lent: 0,
            held: 0,
            reserve_len: reserve_size,
            kept: 0,
            free: std::array::from_fn(|_| Vec::new()),
            reserve: Some(Region::allocate(reserve_size)?),
        };
        Some(Pool {
            inner: Arc::new(Mutex::new(inner)),
        })
    }

    /// A buffer of `len` bytes with any content, or `None` where the pool is dry.
    pub fn take(&self, len: usize, need: Need) -> Option<Buf> {
        let (class, size) = class_of(len)?;
        let mut inner = lock(&self.inner);
        let (region, lent_as) = match (inner.ordinary(class, size, need), need) {
            (Some(region), Need::Held) => (Some(region), LentAs::Held),
            (Some(region), _) => (Some(region), LentAs::Ordinary),
            (None, Need::Progress) => (inner.reserve_for(len), LentAs::Reserve),
            (None, _) => return None,
        };
        drop(inner);
        let mut region = region?;
        region.settle(Home {
            pool: Arc::downgrade(&self.inner),
            lent_as,
        });
        Some(Buf::whole(region, len))
    }

    /// The largest buffer that can ever be had, for whatever need.
    pub fn len_max(&self) -> usize {
        (lock(&self.inner).bytes_max / 2).min(BUF_ALIGN << (CLASSES - 1))
    }

    /// The largest buffer that is certain to come to who asks for [`Need::Progress`].
    pub fn reserve_len(&self) -> usize {
        lock(&self.inner).reserve_len
    }

    /// Figures for reports and tests.
    pub fn stats(&self) -> PoolStats {
        let inner = lock(&self.inner);
        let reserve_lent = inner.reserve.is_none();
        PoolStats {
            lent: inner.lent,
            kept: inner.kept,
            reserve_lent,
        }
    }
}

impl Inner {
    fn ordinary(&mut self, class: usize, size: usize, need: Need) -> Option<Region> {
        let too_much_held = need == Need::Held && self.held + size > self.bytes_max / 2;
        if too_much_held || self.lent + size > self.bytes_max {
            return None;
        }
        let region = match self.free[class].pop() {
            Some(region) => {
                self.kept -= size;
                region
            }
            None => Region::allocate(size)?,
        };
        self.lent += size;
        if need == Need::Held {
            self.held += size;
        }
        Some(region)
    }

    fn reserve_for(&mut self, len: usize) -> Option<Region> {
        self.reserve.take_if(|reserve| reserve.capacity() >= len)
    }
}

impl Home {
    /// Takes a region whose last part was dropped.
    pub(crate) fn take_back(&self, region: Region) {
        // A pool that is gone leaves the region to the allocator.
        let Some(pool) = self.pool.upgrade() else {
            return;
        };
        let size = region.capacity();
        let mut inner = lock(&pool);
        match self.lent_as {
            LentAs::Reserve => {
                inner.reserve = Some(region);
                return;
            }
            LentAs::Held => inner.held -= size,
            LentAs::Ordinary => {}
        }
        inner.lent -= size;
        if inner.kept + size > KEPT_BYTES_MAX {
            drop(inner);
            return;
        }
        if let Some((class, _)) = class_of(size) {
            inner.kept += size;
            inner.free[class].push(region);
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lent_are_bounded_and_come_back() {
        let pool = Pool::new(64 << 10, 4096).unwrap();
        let held: Vec<_> = (0..16)
            .map(|_| pool.take(4096, Need::Fresh).unwrap())
            .collect();
        assert!(pool.take(1, Need::Fresh).is_none());
        drop(held);
        assert_eq!(
            pool.stats(),
            PoolStats {
                lent: 0,
                kept: 64 << 10,
                reserve_lent: false
            }
        );
        assert_eq!(pool.take(60 << 10, Need::Fresh).unwrap().len(), 60 << 10);
    }

    #[test]
    fn the_reserve_serves_one_holder_that_must_get_on_and_no_fresh_request() {
        let pool = Pool::new(8192, 8192).unwrap();
        let _all = pool.take(8192, Need::Fresh).unwrap();
        assert!(pool.take(512, Need::Fresh).is_none());
        let reserve = pool.take(8192, Need::Progress).unwrap();
        assert!(pool.stats().reserve_lent);
        assert!(pool.take(512, Need::Progress).is_none());
        drop(reserve);
        assert!(pool.take(512, Need::Progress).is_some());
    }

    #[test]
    fn those_that_may_wait_long_get_at_most_half() {
        let pool = Pool::new(16 << 10, 4096).unwrap();
        let held = pool.take(8192, Need::Held).unwrap();
        assert!(pool.take(1, Need::Held).is_none());
        let _fresh = pool.take(8192, Need::Fresh).unwrap();
        drop(held);
        assert!(pool.take(4096, Need::Held).is_some());
    }

    #[test]
    fn a_part_keeps_the_whole_lent() {
        let pool = Pool::new(64 << 10, 4096).unwrap();
        let mut buf = pool.take(16 << 10, Need::Fresh).unwrap();
        let part = buf.split_to(512);
        drop(buf);
        assert_eq!(pool.stats().lent, 16 << 10);
        drop(part);
        assert_eq!(pool.stats().lent, 0);
    }

    #[test]
    fn idle_memory_is_bounded_and_outlives_no_pool() {
        let pool = Pool::new(64 << 20, 4096).unwrap();
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
        let pool = Pool::new(1 << 30, 4096).unwrap();
        assert!(pool.take((64 << 20) + 1, Need::Fresh).is_none());
        assert!(pool.take(usize::MAX, Need::Progress).is_none());
    }
}
