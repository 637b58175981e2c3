//! A pool for the writes of get-data queues, as a user may have one: so many bytes for all queues
//! that it is given to, lent as memory from elsewhere. Who found it dry is woken when bytes return.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use reactor::Buf;

use ublk::queue::Pool;

#[derive(Default)]
struct Inside {
    left: usize,
    lent: u64,
    dry: u64,
    waiting: Vec<Waker>,
}

/// A pool of so many bytes. Its clones are the same pool.
#[derive(Clone)]
pub struct Purse(Arc<Mutex<Inside>>);

impl Purse {
    /// One of so many bytes: at least as many as the largest request has.
    pub fn new(bytes: usize) -> Purse {
        Purse(Arc::new(Mutex::new(Inside {
            left: bytes,
            ..Inside::default()
        })))
    }

    /// Bytes that are not lent.
    pub fn left(&self) -> usize {
        self.inside().left
    }

    /// How often it lent a buffer.
    pub fn lent(&self) -> u64 {
        self.inside().lent
    }

    /// How often it had none.
    pub fn dry(&self) -> u64 {
        self.inside().dry
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        // Every change under the lock is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool for Purse {
    fn take(&mut self, bytes: usize, waker: &Waker) -> Option<Buf> {
        let mut inside = self.inside();
        let Some(left) = inside.left.checked_sub(bytes) else {
            inside.dry += 1;
            if !inside.waiting.iter().any(|one| one.will_wake(waker)) {
                inside.waiting.push(waker.clone());
            }
            return None;
        };
        let mut memory = Buf::allocate(bytes)?;
        let start = NonNull::from(&mut memory[..]).cast::<u8>();
        inside.left = left;
        inside.lent += 1;
        let lent = Lent {
            purse: self.clone(),
            bytes,
            _memory: memory,
        };
        // SAFETY: the bytes are those of `_memory`: aligned, initialised, and looked at by nobody
        // until it is dropped with its owner.
        Some(unsafe { Buf::from_foreign(start, bytes, Box::new(lent)) })
    }
}

/// A buffer that is lent: the owner of its memory.
struct Lent {
    purse: Purse,
    bytes: usize,
    _memory: Buf,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let waiting = {
            let mut inside = self.purse.inside();
            inside.left += self.bytes;
            std::mem::take(&mut inside.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for Purse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inside {
            left, lent, dry, ..
        } = &*self.inside();
        write!(
            f,
            "lent {lent} buffers, was dry {dry} times, {left} bytes left"
        )
    }
}
