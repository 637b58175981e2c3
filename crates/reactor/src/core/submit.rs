//! How operations begin, and how they are cancelled.
//!
//! An operation is put into its slot before the driver gets its first call, and its memory stays in
//! that slot until the last result is in.

use std::cmp::Reverse;
use std::io;
use std::time::{Duration, Instant};

use super::Core;
use crate::buf::Buf;
use crate::call::{Call, FixedDirection};
use crate::driver::Driver;
use crate::ids::{FileIndex, OpId, SourceId, Token};
use crate::op::{FixedTransfer, Op, Work};
use crate::op_table::ActiveOp;

impl Core {
    /// Begins an operation. The kinds that every request of a disk needs are dispatched first and
    /// each is inlined on its own, so that none of them moves data that only other kinds have.
    pub(crate) fn submit(&mut self, source: SourceId, token: Token, op: Op) -> OpId {
        match op {
            Op::Command(command) => {
                let call = Call::Command(command.call());
                self.begin(source, token, command.file(), Work::Command, Some(call))
            }
            Op::ReadFixed {
                file,
                offset,
                slot,
                at,
                len,
            } => self.begin_fixed(
                source,
                token,
                file,
                FixedTransfer::new(FixedDirection::Read, offset, slot, at, len),
            ),
            Op::WriteFixed {
                file,
                offset,
                slot,
                at,
                len,
            } => self.begin_fixed(
                source,
                token,
                file,
                FixedTransfer::new(FixedDirection::Write, offset, slot, at, len),
            ),
            Op::Timeout { after } => self.begin_timer(source, token, after),
            op => self.begin_other(source, token, op),
        }
    }

    #[inline(always)]
    fn begin_fixed(
        &mut self,
        source: SourceId,
        token: Token,
        file: FileIndex,
        fixed: FixedTransfer,
    ) -> OpId {
        let call = (!fixed.is_finished()).then(|| fixed.call());
        self.begin(source, token, file, Work::Fixed(fixed), call)
    }

    #[inline(never)]
    fn begin_other(&mut self, source: SourceId, token: Token, op: Op) -> OpId {
        let (file, mut work) = Work::new(op);
        let call = (!work.is_finished()).then(|| work.call());
        self.begin(source, token, file, work, call)
    }

    /// Begins an operation with its first call; without one it is complete already.
    #[inline(always)]
    fn begin(
        &mut self,
        source: SourceId,
        token: Token,
        file: FileIndex,
        work: Work,
        call: Option<Call>,
    ) -> OpId {
        if let Some(state) = self.find_source(source) {
            state.ops += 1;
        }
        let Some(target) = self.files.acquire(file) else {
            // Counted for the source until it is delivered, but never in flight.
            let closed = io::Error::from_raw_os_error(libc::EBADF);
            self.push_ready(source, token, work.into_completion(Err(closed)));
            return OpId(u64::MAX);
        };
        let key = self.ops.insert(ActiveOp {
            source,
            token,
            work,
            file: Some(file),
            cancelled: false,
        });
        match call {
            // SAFETY: the operation owns the memory, which does not move with it, and sits
            // untouched in its slot until the result of this key is out and resolved.
            Some(call) => unsafe { self.driver.start(key, target, call) },
            None => self.finish_without_call(key),
        }
        OpId(key)
    }

    fn begin_timer(&mut self, source: SourceId, token: Token, after: Duration) -> OpId {
        if let Some(state) = self.find_source(source) {
            state.ops += 1;
        }
        let key = self.ops.insert(ActiveOp {
            source,
            token,
            work: Work::Timeout,
            file: None,
            cancelled: false,
        });
        self.timers.push(Reverse((Instant::now() + after, key)));
        OpId(key)
    }

    /// Cancels an operation; its completion comes all the same. One that has ended is left alone.
    pub fn cancel(&mut self, id: OpId) {
        let Some(op) = self.ops.get(id.0) else {
            return;
        };
        if std::mem::replace(&mut op.cancelled, true) {
            return;
        }
        if matches!(op.work, Work::Timeout) {
            self.finish_later(id.0, -libc::ECANCELED);
        } else {
            self.driver.cancel(id.0);
        }
    }

    /// Keeps a buffer until the kernel has taken all that was submitted up to now.
    pub fn hold_until_submitted(&mut self, buf: Buf) {
        self.held_foreign |= self.pool.is_foreign(&buf);
        self.held_buffers.push(buf);
    }

    /// Queues the completions of timers that are due.
    pub(crate) fn fire_timers(&mut self) {
        if self.timers.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(&Reverse((at, key))) = self.timers.peek() {
            if at > now {
                return;
            }
            self.timers.pop();
            self.finish_later(key, 0);
        }
    }

    /// How long until the next timer is due. To be asked last before a wait: any call to a
    /// source may have set one.
    pub(crate) fn next_timer(&mut self) -> Option<Duration> {
        loop {
            let &Reverse((at, key)) = self.timers.peek()?;
            if self.ops.get(key).is_some() {
                return Some(at.saturating_duration_since(Instant::now()));
            }
            // Cancelled.
            self.timers.pop();
        }
    }

    /// Whether the next enter frees buffers that a source waits for, or that belong to another pool
    /// and may be waited for there: then that enter must not wait.
    pub(crate) fn enter_frees_buffers(&self) -> bool {
        !self.held_buffers.is_empty() && (self.held_foreign || self.has_buffer_waiters())
    }
}
