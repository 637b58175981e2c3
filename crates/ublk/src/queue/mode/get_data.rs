//! Get-data: a write comes without its bytes; a buffer of the right size is found, and the driver
//! asked to copy them there. A read is answered with a buffer.
//!
//! Memory follows the bytes in flight (R5). While a write's bytes are owed, asking for them is the
//! only command that the driver takes for that tag: whatever is to become of the write, its bytes
//! are fetched first. Where the pool is dry, tags wait in the order in which their writes came.
//!
//! The length that was announced chose the buffer, and is forgotten then: the driver may have
//! copied less (a fault in the middle), and says so in the descriptor.

use std::collections::VecDeque;
use std::task::Waker;

use reactor::op::{Command, Hold};
use reactor::{Buf, Need, Port};

use super::Driver;
use crate::queue::token::{self, Kind};
use crate::sys;

/// Memory for the bytes of writes, where it is to come from elsewhere than the reactor's pool:
/// of an RPC framework, for example ([`Buf::foreign`]).
pub trait Pool: Send {
    /// A buffer of exactly `bytes`, or `None` where there is none now: then `waker` is woken when
    /// it is worth asking again. Called on a ring thread: it must not wait. A pool keeps room for
    /// one request of the largest size, or its device can stall.
    fn take(&mut self, bytes: usize, waker: &Waker) -> Option<Buf>;
}

pub(in crate::queue) struct GetData {
    pool: Option<Box<dyn Pool>>,
    /// Tags whose writes wait for the given pool, in order, with the bytes they need.
    waiting: VecDeque<(u16, usize)>,
}

impl GetData {
    pub(super) fn new(pool: Option<Box<dyn Pool>>) -> GetData {
        GetData {
            pool,
            waiting: VecDeque::new(),
        }
    }

    /// A buffer for a write, or its tag waits.
    pub(in crate::queue) fn take<P: Port>(
        &mut self,
        port: &mut P,
        waker: &Waker,
        tag: u16,
        bytes: usize,
    ) -> Option<Buf> {
        let Some(pool) = &mut self.pool else {
            if bytes > port.reserve_len() {
                // It might never come: this one is the allocator's.
                return Buf::allocate(bytes);
            }
            // A write may be parked for long with its bytes in hand: reads must get on beside it.
            return port.buffer(token::own(Kind::Buffer, tag), bytes, Need::Held);
        };
        let buf = if self.waiting.is_empty() {
            pool.take(bytes, waker)
        } else {
            None
        };
        if buf.is_none() {
            self.waiting.push_back((tag, bytes));
        }
        buf
    }

    /// The given pool may have something again: the first in line that can go on.
    pub(in crate::queue) fn next_waiting(&mut self, waker: &Waker) -> Option<(u16, Buf)> {
        let &(tag, bytes) = self.waiting.front()?;
        let buf = self.pool.as_mut()?.take(bytes, waker)?;
        self.waiting.pop_front();
        Some((tag, buf))
    }
}

/// The only command that is legal while a write's bytes are owed.
pub(in crate::queue) fn fetch_data(driver: Driver, tag: u16, buf: Buf) -> Command {
    driver
        .plain(sys::IO_NEED_GET_DATA, tag, 0, 0)
        .armed()
        .buffer(buf, sys::IO_COMMAND_ADDR, Hold::UntilDone)
}

/// Gives the commit of a read its buffer. A read's commit must name one, also if it failed; the
/// driver reads `read` bytes of it while it takes the command, and nothing after that.
pub(super) fn dress_read(plain: Command, buf: Option<Buf>, read: usize) -> Option<Command> {
    let buf = match buf {
        Some(buf) if buf.len() >= read && !buf.is_empty() => buf,
        _ if read == 0 => Buf::allocate(1)?,
        _ => return None,
    };
    Some(plain.buffer(buf, sys::IO_COMMAND_ADDR, Hold::UntilTaken))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    struct Little(Arc<Mutex<usize>>);

    impl Pool for Little {
        fn take(&mut self, bytes: usize, _: &Waker) -> Option<Buf> {
            let mut left = self.0.lock().unwrap();
            *left = left.checked_sub(bytes)?;
            Buf::allocate(bytes)
        }
    }

    #[test]
    fn a_dry_pool_of_the_users_is_waited_for_in_order() {
        let left = Arc::new(Mutex::new(0));
        let mut get_data = GetData::new(Some(Box::new(Little(Arc::clone(&left)))));
        get_data.waiting = VecDeque::from([(3, 8192), (1, 512)]);
        let waker = Waker::noop();
        assert!(get_data.next_waiting(waker).is_none());
        *left.lock().unwrap() = 512;
        // Enough for the second, which does not overtake.
        assert!(get_data.next_waiting(waker).is_none());
        *left.lock().unwrap() = 8704;
        let mut order = Vec::new();
        while let Some((tag, buf)) = get_data.next_waiting(waker) {
            order.push((tag, buf.len()));
        }
        assert_eq!(order, [(3, 8192), (1, 512)]);
    }
}
