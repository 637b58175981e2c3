//! Lending buffers of the pool to sources, at once or when one comes back.
//!
//! A buffer may come back on any thread. At the end of every turn the reactor tries to grant what
//! waits. From before that try until the next turn begins the pool is watched: a buffer that comes
//! back after a vain try wakes the reactor. During a turn nothing is woken, and nothing is paid while
//! no source waits.

use std::time::Duration;

use crate::buf::Buf;
use crate::ids::{SourceId, Token};
use crate::op::Completion;
use crate::pool::BufferPurpose;

use super::Core;
use super::waiters::Waiter;

/// How soon waiting requests are tried again where the system itself has no memory: no returned
/// buffer says when it has some.
const SHORT_RETRY: Duration = Duration::from_millis(10);

impl Core {
    /// Whether a source waits for a buffer. Sources that keep one for a slow client should give it back
    /// then.
    pub fn has_buffer_waiters(&self) -> bool {
        self.waiters.has_waiters()
    }

    #[inline]
    pub(crate) fn request_buffer(
        &mut self,
        source: SourceId,
        token: Token,
        len: usize,
        need: BufferPurpose,
    ) -> Option<Buf> {
        if !self.waiters.has_waiters()
            && let Some(buf) = self.pool.take_for(source.as_u64(), len, need)
        {
            return Some(buf);
        }
        self.request_buffer_in_order(source, token, len, need)
    }

    #[cold]
    fn request_buffer_in_order(
        &mut self,
        source: SourceId,
        token: Token,
        len: usize,
        need: BufferPurpose,
    ) -> Option<Buf> {
        if !self.is_live(source) {
            // No completion would reach it, and its slot may be another source's by then.
            return None;
        }
        // No request overtakes those that wait in the same queue.
        let is_first = self
            .waiters
            .find_queue(source, need)
            .is_none_or(|queue| queue.is_empty());
        if is_first && let Some(buf) = self.pool.take_for(source.as_u64(), len, need) {
            return Some(buf);
        }
        self.waiters.push(Waiter {
            source,
            token,
            len,
            need,
        });
        None
    }

    /// Lends buffers to waiting sources, in order; requests for [`BufferPurpose::Progress`] come first. If any
    /// still waits, a buffer that comes back after this wakes the reactor.
    pub(crate) fn grant_buffers(&mut self) {
        if !self.waiters.has_waiters() {
            return;
        }
        self.pool.watch(&self.waiters.turn_waker);
        self.waiters.is_watching = true;
        for (Waiter { source, token, .. }, buf) in self.waiters.grant(&self.pool) {
            if let Some(state) = self.find_source(source) {
                state.ops += 1;
            }
            self.push_ready(source, token, Completion::Buffer(buf));
        }
        if !self.waiters.has_waiters() {
            self.stop_buffer_watch();
        }
    }

    /// To be called when a turn begins: buffers that come back during it are found at its end anyway.
    pub(crate) fn stop_buffer_watch(&mut self) {
        if std::mem::take(&mut self.waiters.is_watching) {
            self.pool.unwatch();
        }
    }

    /// When waiting requests are to be tried again, where no returned buffer will cause that.
    pub(crate) fn buffer_retry_delay(&self) -> Option<Duration> {
        (self.waiters.has_waiters() && self.pool.is_short()).then_some(SHORT_RETRY)
    }
}
