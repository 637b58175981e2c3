//! Get-data: the driver hands a write over without its bytes. The queue takes a buffer of the right
//! size and sends NEED_GET_DATA, on which the driver copies the bytes there. A read is answered with
//! a buffer.
//!
//! Memory follows the bytes in flight (R5). Until the bytes were copied, NEED_GET_DATA is the only
//! command that the driver takes for that tag: whatever is to become of the write, its bytes are
//! copied first. Where the pool is empty, tags wait in the order in which their writes arrived.
//!
//! The first length in the descriptor only chooses the buffer: the driver may copy less (a fault in
//! the middle), and then shortens the length in the descriptor.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::time::Duration;

use reactor::op::Command;
use reactor::{Buf, BufferPurpose, Op, Port};

use super::driver::CommandBuilder;
use crate::queue::stats::Counters;
use crate::queue::token::{self, OpKind};
use crate::sys;

/// Memory for the bytes of writes from elsewhere than the reactor's pool: of an RPC framework, for
/// example ([`Buf::from_foreign`]).
pub trait Pool: Send {
    /// A buffer of at least `bytes`, of which the first `bytes` are used, or `None` where there is
    /// none now: then the pool wakes `waker` when it is worth asking again. Called on a ring's
    /// thread: it must not wait. A pool keeps room for one request of the largest size, or its
    /// device can stall.
    ///
    /// A pool that panics, or lends less than was asked for, is treated as empty, counted, and asked
    /// again after a pause.
    fn take(&mut self, bytes: usize, waker: &Waker) -> Option<Buf>;
}

/// How long the queue waits before it asks a pool again that failed.
const FAILED_PAUSE: Duration = Duration::from_millis(100);

pub(in crate::queue) struct GetData {
    pool: Option<Box<dyn Pool>>,
    /// Tags whose writes wait for the user's pool, in order, with the bytes they need.
    waiting: VecDeque<(u16, usize)>,
    /// The user's pool failed, and is not asked before a timer has elapsed.
    in_backoff: bool,
    /// By tag: the buffer that the driver copies a write's bytes to. Not accessed meanwhile.
    copying: Vec<Option<Buf>>,
}

/// What a call of the user's pool needs of its queue.
#[derive(Clone, Copy)]
pub(in crate::queue) struct PoolContext<'a> {
    pub(in crate::queue) waker: &'a Waker,
    pub(in crate::queue) counters: &'a Counters,
}

impl GetData {
    pub(super) fn new(depth: u16, pool: Option<Box<dyn Pool>>) -> GetData {
        GetData {
            pool,
            waiting: VecDeque::new(),
            in_backoff: false,
            copying: (0..depth).map(|_| None).collect(),
        }
    }

    /// A buffer for a write; without one its tag waits.
    pub(in crate::queue) fn take<P: Port>(
        &mut self,
        port: &mut P,
        context: PoolContext<'_>,
        tag: u16,
        bytes: usize,
    ) -> Option<Buf> {
        if self.pool.is_none() {
            // A write may be parked for long with its buffer: `Held` bounds these, so that other
            // queues get on. The first buffer of a queue is granted in any case.
            return port.request_buffer(
                token::queue_token(OpKind::Buffer, tag),
                bytes,
                BufferPurpose::Held,
            );
        }
        let buf = if self.waiting.is_empty() {
            self.ask_pool(port, context, bytes)
        } else {
            None
        };
        if buf.is_none() {
            self.waiting.push_back((tag, bytes));
        }
        buf
    }

    /// The user's pool may have memory again: a buffer for the first tag in line.
    pub(in crate::queue) fn next_waiting<P: Port>(
        &mut self,
        port: &mut P,
        context: PoolContext<'_>,
    ) -> Option<(u16, Buf)> {
        let &(tag, bytes) = self.waiting.front()?;
        let buf = self.ask_pool(port, context, bytes)?;
        self.waiting.pop_front();
        Some((tag, buf))
    }

    /// The user's pool may be asked again.
    pub(in crate::queue) fn end_backoff(&mut self) {
        self.in_backoff = false;
    }

    /// Asks the user's pool. The driver will write `bytes` to what it lends.
    fn ask_pool<P: Port>(
        &mut self,
        port: &mut P,
        context: PoolContext<'_>,
        bytes: usize,
    ) -> Option<Buf> {
        let pool = self.pool.as_mut().filter(|_| !self.in_backoff)?;
        let lent = catch_unwind(AssertUnwindSafe(|| pool.take(bytes, context.waker)));
        match lent {
            Ok(None) => return None,
            Ok(Some(mut buf)) if buf.len() >= bytes => {
                buf.truncate(bytes);
                return Some(buf);
            }
            Ok(Some(short)) => {
                context.counters.faults.increment();
                tracing::error!(
                    bytes,
                    lent = short.len(),
                    "ublk: a pool lent fewer bytes than it was asked for"
                );
            }
            Err(_) => {
                context.counters.panics.increment();
                tracing::error!("ublk: a pool panicked");
            }
        }
        self.in_backoff = true;
        let after = FAILED_PAUSE;
        port.submit(
            token::queue_token(OpKind::PoolTimer, 0),
            Op::Timeout { after },
        );
        None
    }

    /// NEED_GET_DATA for a write. Its buffer stays here until the command has completed.
    pub(in crate::queue) fn build_command(
        &mut self,
        commands: CommandBuilder,
        tag: u16,
        buf: Buf,
    ) -> Command {
        let address = buf.address();
        self.copying[usize::from(tag)] = Some(buf);
        commands.build(sys::IO_NEED_GET_DATA, tag, 0, address)
    }

    /// The buffer of a NEED_GET_DATA that has completed.
    pub(in crate::queue) fn take_copied(&mut self, tag: u16) -> Option<Buf> {
        self.copying[usize::from(tag)].take()
    }

    /// Takes every buffer that the driver may know.
    pub(super) fn take_driver_buffers(&mut self) -> Vec<Buf> {
        self.copying.iter_mut().filter_map(Option::take).collect()
    }
}

/// The address that a read's commit names, also for a read that failed: the driver reads `read` bytes
/// there while it takes the command, and nothing later. `None` where memory is short or the read's
/// buffer is gone.
pub(super) fn hold_read_buffer<P: Port>(
    port: &mut P,
    buf: Option<Buf>,
    read: usize,
) -> Option<u64> {
    let buf = match buf {
        Some(buf) if buf.len() >= read && !buf.is_empty() => buf,
        _ if read == 0 => Buf::allocate(1)?,
        _ => return None,
    };
    let address = buf.address();
    port.hold_until_submitted(buf);
    Some(address)
}
