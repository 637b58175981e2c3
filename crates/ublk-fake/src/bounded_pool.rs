//! A buffer pool for the writes of get-data queues, as a user of ublk may have one: a fixed number
//! of bytes for all queues, lent as memory that the pool owns. A queue that found it exhausted is
//! woken when bytes return.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use reactor::Buf;

use ublk::queue::Pool;

#[derive(Default)]
struct PoolState {
    bytes_free: usize,
    lent: u64,
    exhausted: u64,
    buffer_waiters: Vec<Waker>,
}

/// A pool of a fixed number of bytes. Clones share it.
#[derive(Clone)]
pub struct BoundedPool(Arc<Mutex<PoolState>>);

impl BoundedPool {
    /// A pool of this many bytes: at least as many as the largest request has.
    pub fn new(bytes: usize) -> BoundedPool {
        BoundedPool(Arc::new(Mutex::new(PoolState {
            bytes_free: bytes,
            ..PoolState::default()
        })))
    }

    /// Bytes that are not lent.
    pub fn bytes_free(&self) -> usize {
        self.state().bytes_free
    }

    /// How often it lent a buffer.
    pub fn lent(&self) -> u64 {
        self.state().lent
    }

    /// How often it had too few bytes.
    pub fn exhausted(&self) -> u64 {
        self.state().exhausted
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        // Every change under the lock is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool for BoundedPool {
    fn take(&mut self, bytes: usize, waker: &Waker) -> Option<Buf> {
        let mut state = self.state();
        let Some(left) = state.bytes_free.checked_sub(bytes) else {
            state.exhausted += 1;
            if !state.buffer_waiters.iter().any(|one| one.will_wake(waker)) {
                state.buffer_waiters.push(waker.clone());
            }
            return None;
        };
        let mut memory = Buf::allocate(bytes)?;
        let start = NonNull::from(&mut memory[..]).cast::<u8>();
        state.bytes_free = left;
        state.lent += 1;
        let lent = LentBuffer {
            bounded_pool: self.clone(),
            bytes,
            _memory: memory,
        };
        // SAFETY: the bytes are those of `_memory`: aligned, initialised, and looked at by nobody
        // until it is dropped with its owner.
        Some(unsafe { Buf::from_foreign(start, bytes, Box::new(lent)) })
    }
}

/// A buffer that is lent: the owner of its memory.
struct LentBuffer {
    bounded_pool: BoundedPool,
    bytes: usize,
    _memory: Buf,
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.bounded_pool.state();
            state.bytes_free += self.bytes;
            std::mem::take(&mut state.buffer_waiters)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for BoundedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PoolState {
            bytes_free,
            lent,
            exhausted,
            ..
        } = &*self.state();
        write!(
            f,
            "lent {lent} buffers, was exhausted {exhausted} times, {bytes_free} bytes free"
        )
    }
}
