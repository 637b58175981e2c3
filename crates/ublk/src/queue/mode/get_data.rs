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
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::time::Duration;

use reactor::op::Command;
use reactor::{Buf, Need, Op, Port};

use super::Driver;
use crate::queue::Counters;
use crate::queue::token::{self, Kind};
use crate::sys;

/// Memory for the bytes of writes, where it is to come from elsewhere than the reactor's pool:
/// of an RPC framework, for example ([`Buf::from_foreign`]).
pub trait Pool: Send {
    /// A buffer of at least `bytes`, of which the first `bytes` are used, or `None` where there is
    /// none now: then `waker` is woken when it is worth asking again. Called on a ring thread: it
    /// must not wait. A pool keeps room for one request of the largest size, or its device can
    /// stall.
    ///
    /// One that panics, or lends less than was asked for, is taken for dry, counted, and asked again
    /// after a pause.
    fn take(&mut self, bytes: usize, waker: &Waker) -> Option<Buf>;
}

/// How long a pool of the user's that failed is left alone.
const FAILED_PAUSE: Duration = Duration::from_millis(100);

pub(in crate::queue) struct GetData {
    pool: Option<Box<dyn Pool>>,
    /// Tags whose writes wait for the given pool, in order, with the bytes they need.
    waiting: VecDeque<(u16, usize)>,
    /// It failed, and is asked again when a timer says so.
    pausing: bool,
    /// By tag: the buffer that its write's bytes are being copied to, at which nobody looks.
    fetching: Vec<Option<Buf>>,
}

/// Who is woken, and what is counted.
type Told<'a> = (&'a Waker, &'a Counters);

impl GetData {
    pub(super) fn new(depth: u16, pool: Option<Box<dyn Pool>>) -> GetData {
        GetData {
            pool,
            waiting: VecDeque::new(),
            pausing: false,
            fetching: (0..depth).map(|_| None).collect(),
        }
    }

    /// A buffer for a write, or its tag waits.
    pub(in crate::queue) fn take<P: Port>(
        &mut self,
        port: &mut P,
        told: Told<'_>,
        tag: u16,
        bytes: usize,
    ) -> Option<Buf> {
        if self.pool.is_none() {
            // A write may be parked for long with its bytes in hand: others must get on beside it.
            // The first one of a queue comes in any case, however large it is.
            return port.request_buffer(token::own(Kind::Buffer, tag), bytes, Need::Held);
        }
        let buf = if self.waiting.is_empty() {
            self.ask(port, told, bytes)
        } else {
            None
        };
        if buf.is_none() {
            self.waiting.push_back((tag, bytes));
        }
        buf
    }

    /// The given pool may have something again: the first in line that can go on.
    pub(in crate::queue) fn next_waiting<P: Port>(
        &mut self,
        port: &mut P,
        told: Told<'_>,
    ) -> Option<(u16, Buf)> {
        let &(tag, bytes) = self.waiting.front()?;
        let buf = self.ask(port, told, bytes)?;
        self.waiting.pop_front();
        Some((tag, buf))
    }

    /// It may be asked again.
    pub(in crate::queue) fn pause_over(&mut self) {
        self.pausing = false;
    }

    /// Asks the given pool. The driver will write `bytes` to what it lends.
    fn ask<P: Port>(
        &mut self,
        port: &mut P,
        (waker, counters): Told<'_>,
        bytes: usize,
    ) -> Option<Buf> {
        let pool = self.pool.as_mut().filter(|_| !self.pausing)?;
        let lent = catch_unwind(AssertUnwindSafe(|| pool.take(bytes, waker)));
        match lent {
            Ok(None) => return None,
            Ok(Some(mut buf)) if buf.len() >= bytes => {
                buf.truncate(bytes);
                return Some(buf);
            }
            Ok(Some(short)) => {
                counters.faults.one();
                tracing::error!(bytes, lent = short.len(), "a pool lent too little");
            }
            Err(_) => {
                counters.panics.one();
                tracing::error!("a pool panicked");
            }
        }
        self.pausing = true;
        let after = FAILED_PAUSE;
        port.submit(token::own(Kind::Pool, 0), Op::Timeout { after });
        None
    }

    /// The command that fetches a write's bytes, the only one that is legal while they are owed. The
    /// buffer stays here until it has ended.
    pub(in crate::queue) fn fetch(&mut self, driver: Driver, tag: u16, buf: Buf) -> Command {
        let address = buf.address();
        self.fetching[usize::from(tag)] = Some(buf);
        driver.naming(sys::IO_NEED_GET_DATA, tag, 0, address)
    }

    /// That command has ended: its buffer.
    pub(in crate::queue) fn fetched(&mut self, tag: u16) -> Option<Buf> {
        self.fetching[usize::from(tag)].take()
    }

    /// Every buffer that the driver may know.
    pub(super) fn leave(&mut self) -> Vec<Buf> {
        self.fetching.iter_mut().filter_map(Option::take).collect()
    }
}

/// Has a read's commit name its buffer, also if it failed: the driver reads `read` bytes of it while
/// it takes the command, and nothing after that. The address, or `None` where memory is short or
/// what the read brought is gone.
pub(super) fn read_address<P: Port>(port: &mut P, buf: Option<Buf>, read: usize) -> Option<u64> {
    let buf = match buf {
        Some(buf) if buf.len() >= read && !buf.is_empty() => buf,
        _ if read == 0 => Buf::allocate(1)?,
        _ => return None,
    };
    let address = buf.address();
    port.hold_until_submitted(buf);
    Some(address)
}
