//! How operations end.
//!
//! The driver brings keys and raw results. They are kept as such until they are delivered to their
//! source, and are turned into completions only then: on the path of a request no completion is
//! stored or moved about. What ends without the driver (timers, refusals, buffers that a source waited
//! for) is stored as a completion and delivered first.

use std::io;
use std::time::Duration;

use crate::driver::Driver;
use crate::ids::{SourceId, Token};
use crate::op::Completion;

use super::armed::parse_key;
use super::{Core, Delivery};

impl Core {
    /// Submits what is queued, waits up to `timeout` for results, and takes them in.
    pub(crate) fn submit_and_wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let result = self.driver.wait(timeout, self.results.append_to());
        // What comes now belongs to the next turn.
        self.turn_time_ns = None;
        // Before anything else is begun: what is queued later was not part of that enter.
        self.release_held();
        result
    }

    /// Frees buffers that were held until the kernel had taken their commands.
    fn release_held(&mut self) {
        if !self.held_buffers.is_empty() && self.driver.all_submitted() {
            self.held_buffers.clear();
            self.held_foreign = false;
        }
    }

    /// The source of the next result. It may lead to no completion: a short transfer is continued.
    pub(crate) fn next_recipient(&mut self) -> Option<SourceId> {
        if let Some(delivery) = self.ready.front() {
            return Some(delivery.source);
        }
        loop {
            let (key, _) = self.results.first()?;
            if let Some(source) = self.source_of(key) {
                return Some(source);
            }
            self.results.pop();
        }
    }

    /// The source of the operation that a key names, if it is in flight.
    fn source_of(&mut self, key: u64) -> Option<SourceId> {
        match parse_key(key) {
            Some((slot, _)) => self.source_at(slot),
            None => self.ops.get(key).map(|op| op.source),
        }
    }

    /// The next completion, if it is this source's.
    #[inline]
    pub(crate) fn take_delivery(&mut self, of: SourceId) -> Option<(Token, Completion)> {
        if !self.ready.is_empty() {
            let delivery = self.ready.pop_front_if(|delivery| delivery.source == of)?;
            return Some((delivery.token, delivery.completion));
        }
        loop {
            let (key, raw) = self.results.first()?;
            if self.source_of(key).is_some_and(|source| source != of) {
                return None;
            }
            self.results.pop();
            if let Some(end) = self.resolve(key, raw) {
                return Some(end);
            }
        }
    }

    /// Puts a completion that was taken back in front of all others.
    pub(crate) fn requeue_first(&mut self, source: SourceId, token: Token, completion: Completion) {
        let delivery = Delivery {
            source,
            token,
            completion,
        };
        self.ready.push_front(delivery);
    }

    /// Puts a completion that came about without the driver behind all others of that kind.
    pub(super) fn push_ready(&mut self, source: SourceId, token: Token, completion: Completion) {
        let delivery = Delivery {
            source,
            token,
            completion,
        };
        self.ready.push_back(delivery);
    }

    /// Counts a delivery of this source as done; whether the source still wants its completion.
    #[inline]
    pub(crate) fn finish_delivery(&mut self, source: SourceId) -> bool {
        self.find_source(source).is_some_and(|state| {
            state.ops -= 1;
            !state.detaching
        })
    }

    /// Turns the raw result of an operation's last call into its completion; none where it is
    /// continued.
    #[inline]
    pub(super) fn resolve(&mut self, key: u64, raw: i32) -> Option<(Token, Completion)> {
        if let Some((slot, number)) = parse_key(key) {
            let source = self.source_at(slot)?;
            self.armed -= 1;
            let state = self.find_source(source)?;
            // It is a delivery now.
            state.ops += 1;
            state.armed -= 1;
            if state.armed == 0 {
                self.release_armed_file(source);
            }
            let token = Token(u64::from(number));
            return Some((token, Completion::ArmedCommand(number, raw)));
        }
        let op = self.ops.get(key)?;
        let Some(completion) = op.work.on_result(raw, op.cancelled) else {
            let call = op.work.call();
            let file = op.file.expect("only calls on a file are continued");
            let target = self.files.target(file);
            let target = target.expect("an operation keeps its file");
            // SAFETY: as in `begin`; it never left its slot.
            unsafe { self.driver.start(key, target, call) };
            return None;
        };
        let (token, file) = (op.token, op.file);
        self.ops.release(key);
        if let Some(closed) = file.and_then(|file| self.files.release(file)) {
            self.unregister(Some(closed));
        }
        Some((token, completion))
    }

    /// Resolves all results that are left, of which no source is called any more: what a completion
    /// owns (an accepted socket) is dropped with it.
    pub(crate) fn discard_results(&mut self) {
        while let Some((key, raw)) = self.results.first() {
            self.results.pop();
            self.finish_later(key, raw);
        }
    }

    /// Ends an operation, mostly a timer, whose completion is delivered later.
    pub(super) fn finish_later(&mut self, key: u64, raw: i32) {
        let Some(source) = self.source_of(key) else {
            return;
        };
        if let Some((token, completion)) = self.resolve(key, raw) {
            self.push_ready(source, token, completion);
        }
    }

    /// Ends an operation that needs no call.
    pub(super) fn finish_without_call(&mut self, key: u64) {
        let Some(op) = self.ops.take(key) else {
            return;
        };
        self.ops.release(key);
        let completion = op.work.into_completion(Ok(()));
        self.push_ready(op.source, op.token, completion);
        let closed = op.file.and_then(|file| self.files.release(file));
        self.unregister(closed);
    }
}
