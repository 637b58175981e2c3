//! Who waits for a buffer of the pool, and who gets what came back.
//!
//! Who gives its buffer back without waiting stands in one line with all such, and nobody overtakes
//! there. What may be held for long is asked for in a line of each source's own: its head waits for
//! the source's own buffers (see `pool`), and never for another source's.
//!
//! A buffer may come back on any thread. The reactor tries for those who wait at the end of every
//! turn, and has the pool watched from before it tries until the next turn begins: what comes back
//! after a vain try wakes it. In a turn nobody is woken, and nothing is paid while nobody waits.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use crate::buf::Buf;
use crate::handle::Handle;
use crate::op::{Completion, Token};
use crate::pool::{BufferPool, Need};
use crate::source::SourceId;

use super::Core;

/// How soon those who wait are looked after again where the system itself has no memory: no buffer
/// that comes back says when it has some.
const SHORT_RETRY: Duration = Duration::from_millis(10);

struct Waiter {
    source: SourceId,
    token: Token,
    len: usize,
    need: Need,
}

pub(super) struct Lending {
    progress: VecDeque<Waiter>,
    fresh: VecDeque<Waiter>,
    /// What may be held, by source. No line is empty.
    held: VecDeque<VecDeque<Waiter>>,
    looker: Waker,
    watched: bool,
}

impl Lending {
    pub(super) fn new(reactor: &Handle) -> Lending {
        Lending {
            progress: VecDeque::new(),
            fresh: VecDeque::new(),
            held: VecDeque::new(),
            looker: Waker::from(std::sync::Arc::clone(&reactor.shared)),
            watched: false,
        }
    }

    fn wanted(&self) -> bool {
        !(self.progress.is_empty() && self.fresh.is_empty() && self.held.is_empty())
    }

    /// The line in which this source waits for it.
    fn line(&mut self, source: SourceId, need: Need) -> Option<&mut VecDeque<Waiter>> {
        match need {
            Need::Progress => Some(&mut self.progress),
            Need::Fresh => Some(&mut self.fresh),
            Need::Held | Need::Client => self.held.iter_mut().find(|line| line[0].source == source),
        }
    }

    fn put(&mut self, waiter: Waiter) {
        match self.line(waiter.source, waiter.need) {
            Some(line) => line.push_back(waiter),
            None => self.held.push_back(VecDeque::from([waiter])),
        }
    }

    /// A source that leaves waits for nothing.
    pub(super) fn forget(&mut self, source: SourceId) {
        for line in [&mut self.progress, &mut self.fresh] {
            line.retain(|waiter| waiter.source != source);
        }
        self.held.retain(|line| line[0].source != source);
    }

    /// Those who can have their buffers now; those first who must get on.
    fn grant(&mut self, pool: &BufferPool) -> Vec<(Waiter, Buf)> {
        let mut granted = Vec::new();
        feed(&mut self.progress, pool, &mut granted);
        feed(&mut self.fresh, pool, &mut granted);
        let mut fed = VecDeque::new();
        for _ in 0..self.held.len() {
            let Some(mut line) = self.held.pop_front() else {
                break;
            };
            let before = granted.len();
            feed(&mut line, pool, &mut granted);
            match () {
                () if line.is_empty() => {}
                () if granted.len() > before => fed.push_back(line),
                () => self.held.push_back(line),
            }
        }
        // Who got something stands behind the others the next time.
        self.held.append(&mut fed);
        granted
    }
}

/// Lends to those who stand in a line until one has to wait.
fn feed(line: &mut VecDeque<Waiter>, pool: &BufferPool, granted: &mut Vec<(Waiter, Buf)>) {
    while let Some(head) = line.front()
        && let Some(buf) = pool.take_for(head.source.number(), head.len, head.need)
        && let Some(head) = line.pop_front()
    {
        granted.push((head, buf));
    }
}

impl Core {
    /// Whether somebody waits for a buffer: who sits on some for long should let go.
    pub fn has_buffer_waiters(&self) -> bool {
        self.lending.wanted()
    }

    #[inline]
    pub(crate) fn request_buffer(
        &mut self,
        source: SourceId,
        token: Token,
        len: usize,
        need: Need,
    ) -> Option<Buf> {
        if !self.lending.wanted()
            && let Some(buf) = self.pool.take_for(source.number(), len, need)
        {
            return Some(buf);
        }
        self.buffer_in_line(source, token, len, need)
    }

    #[cold]
    fn buffer_in_line(
        &mut self,
        source: SourceId,
        token: Token,
        len: usize,
        need: Need,
    ) -> Option<Buf> {
        if !self.is_live(source) {
            // Nothing would be told to it, and its place may be another's by then.
            return None;
        }
        // Nobody overtakes those who wait in the same line.
        let alone = self
            .lending
            .line(source, need)
            .is_none_or(|line| line.is_empty());
        if alone && let Some(buf) = self.pool.take_for(source.number(), len, need) {
            return Some(buf);
        }
        self.lending.put(Waiter {
            source,
            token,
            len,
            need,
        });
        None
    }

    /// Lends buffers to those who wait, in order; those who must get on come first. Whatever comes
    /// back after this wakes the reactor, if somebody still waits.
    pub(crate) fn grant_buffers(&mut self) {
        if !self.lending.wanted() {
            return;
        }
        self.pool.watch(&self.lending.looker);
        self.lending.watched = true;
        for (Waiter { source, token, .. }, buf) in self.lending.grant(&self.pool) {
            if let Some(state) = self.source(source) {
                state.ops += 1;
            }
            self.ready
                .push_back((source, token, Completion::Buffer(buf)));
        }
        if !self.lending.wanted() {
            self.watch_no_buffers();
        }
    }

    /// A turn begins, at whose end all that came back is looked at anyway.
    pub(crate) fn watch_no_buffers(&mut self) {
        if std::mem::take(&mut self.lending.watched) {
            self.pool.unwatch();
        }
    }

    /// When those who wait are to be looked after again, where nobody will say.
    pub(crate) fn retry_buffers(&self) -> Option<Duration> {
        (self.lending.wanted() && self.pool.is_short()).then_some(SHORT_RETRY)
    }
}
