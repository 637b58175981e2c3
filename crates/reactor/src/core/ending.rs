//! How operations end.
//!
//! What the driver brings are keys and raw results. They wait as such until their source is about to
//! be told, and only then is it decided what they mean: a completion is never kept or moved
//! about on the way of a request. What ends without the driver (timers, refusals, buffers that were
//! waited for) waits as a completion, and goes first.

use std::io;
use std::time::Duration;

use crate::driver::Drive;
use crate::op::{Completion, Token};
use crate::source::SourceId;

use super::{Core, armed_of};

/// Raw results in the order in which they came, by key.
#[derive(Default)]
pub(super) struct Results {
    raw: Vec<(u64, i32)>,
    /// How many of them were taken.
    taken: usize,
}

impl Results {
    fn first(&self) -> Option<(u64, i32)> {
        self.raw.get(self.taken).copied()
    }

    fn drop_first(&mut self) {
        self.taken += 1;
    }

    /// Where the driver appends; what was taken is forgotten.
    fn append_to(&mut self) -> &mut Vec<(u64, i32)> {
        self.raw.drain(..self.taken);
        self.taken = 0;
        &mut self.raw
    }
}

impl Core {
    /// Has the driver begin what is queued, waits as told, and takes in what it brings.
    pub(crate) fn drive(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let result = self.driver.wait(timeout, self.results.append_to());
        // Before anything else is begun: what is queued later was not part of that enter.
        self.release_taken();
        result
    }

    /// Lets buffers go that were held until the kernel had taken their commands.
    fn release_taken(&mut self) {
        if !self.untaken.is_empty() && self.driver.all_taken() {
            self.untaken.clear();
            self.untaken_elsewhere = false;
        }
    }

    /// Whose completion is next. Nothing may come of it yet: a short transfer goes on.
    pub(crate) fn next_delivery(&mut self) -> Option<SourceId> {
        if let Some(&(source, ..)) = self.ready.front() {
            return Some(source);
        }
        loop {
            let (key, _) = self.results.first()?;
            if let Some(source) = self.source_of(key) {
                return Some(source);
            }
            self.results.drop_first();
        }
    }

    /// Whose operation a key names, if it is in flight.
    fn source_of(&mut self, key: u64) -> Option<SourceId> {
        match armed_of(key) {
            Some((slot, _)) => self.source_in(slot),
            None => self.flights.get(key).map(|flight| flight.source),
        }
    }

    /// Whether the end of an armed command of this source's is next.
    pub(crate) fn armed_is_next(&self, of: SourceId) -> bool {
        match self.ready.front() {
            Some((source, _, end)) => *source == of && matches!(end, Completion::ArmedCommand(..)),
            None => {
                let next = self.results.first().and_then(|(key, _)| armed_of(key));
                next.is_some_and(|(slot, _)| slot == of.slot)
            }
        }
    }

    /// The end of an armed command, if it is next, this source's, and to be told in this turn.
    /// [`Core::take_delivery`] and [`Core::count_out`] by a shorter way.
    #[inline(always)]
    pub(crate) fn next_armed(&mut self, of: SourceId) -> Option<(u32, i32)> {
        while self.deliveries > 0 {
            if !self.ready.is_empty() {
                return self.next_armed_ready(of);
            }
            let (key, raw) = self.results.first()?;
            let (slot, number) = armed_of(key)?;
            if slot != of.slot {
                return None;
            }
            self.results.drop_first();
            self.deliveries -= 1;
            self.armed -= 1;
            // Who has commands in flight is here.
            let state = &mut self.sources[slot as usize];
            debug_assert!(state.present && state.generation == of.generation);
            state.armed -= 1;
            let told = !state.detaching;
            if state.armed == 0 {
                self.last_disarmed(of);
            }
            if told {
                return Some((number, raw));
            }
        }
        None
    }

    /// The same where something ended without the driver: that goes first.
    #[cold]
    fn next_armed_ready(&mut self, of: SourceId) -> Option<(u32, i32)> {
        let mine = |(source, _, end): &mut (SourceId, Token, Completion)| {
            *source == of && matches!(end, Completion::ArmedCommand(..))
        };
        let Some((_, _, Completion::ArmedCommand(number, raw))) = self.ready.pop_front_if(mine)
        else {
            return None;
        };
        self.deliveries -= 1;
        self.count_out(of).then_some((number, raw))
    }

    /// No armed command of a source is in flight any more, and none uses their file.
    #[cold]
    fn last_disarmed(&mut self, source: SourceId) {
        let state = self.source(source);
        if let Some((file, _)) = state.and_then(|state| state.armed_on.take()) {
            let removed = self.files.end(file);
            self.forget(removed);
        }
    }

    /// The next completion, if it is this source's.
    #[inline]
    pub(crate) fn take_delivery(&mut self, of: SourceId) -> Option<(Token, Completion)> {
        if !self.ready.is_empty() {
            let (_, token, completion) = self.ready.pop_front_if(|(source, ..)| *source == of)?;
            return Some((token, completion));
        }
        loop {
            let (key, raw) = self.results.first()?;
            if self.source_of(key).is_some_and(|source| source != of) {
                return None;
            }
            self.results.drop_first();
            if let Some(end) = self.judged(key, raw) {
                return Some(end);
            }
        }
    }

    /// Puts a completion that was taken back in front of all others.
    pub(crate) fn tell_first(&mut self, of: SourceId, token: Token, completion: Completion) {
        self.ready.push_front((of, token, completion));
    }

    /// A delivery of this source's is at its end; whether the source is still to be told.
    #[inline]
    pub(crate) fn count_out(&mut self, source: SourceId) -> bool {
        self.source(source).is_some_and(|state| {
            state.ops -= 1;
            !state.detaching
        })
    }

    /// What the raw result of an operation's last call means: its end, or none where it goes on.
    #[inline]
    fn judged(&mut self, key: u64, raw: i32) -> Option<(Token, Completion)> {
        if let Some((slot, number)) = armed_of(key) {
            let source = self.source_in(slot)?;
            self.armed -= 1;
            let state = self.source(source)?;
            // It waits to be delivered now.
            state.ops += 1;
            state.armed -= 1;
            if state.armed == 0 {
                self.last_disarmed(source);
            }
            return Some((
                Token(u64::from(number)),
                Completion::ArmedCommand(number, raw),
            ));
        }
        let flight = self.flights.get(key)?;
        let Some(completion) = flight.work.judge(raw, flight.cancelled) else {
            let call = flight.work.call();
            let file = flight.file.expect("only calls on a file are continued");
            let target = self.files.target(file);
            let target = target.expect("an operation keeps its file");
            // SAFETY: as in `begin`; it never left its slot.
            unsafe { self.driver.start(key, target, call) };
            return None;
        };
        let (token, file) = (flight.token, flight.file);
        self.flights.free(key);
        if let Some(removed) = file.and_then(|file| self.files.end(file)) {
            self.forget(Some(removed));
        }
        Some((token, completion))
    }

    /// Judges all that came, for nobody is to be told any more: what an end brings (a socket that was
    /// accepted) is let go with it.
    pub(crate) fn judge_rest(&mut self) {
        while let Some((key, raw)) = self.results.first() {
            self.results.drop_first();
            self.end_unasked(key, raw);
        }
    }

    /// Ends an operation, a timer mostly, whose source is told later.
    pub(super) fn end_unasked(&mut self, key: u64, raw: i32) {
        let Some(source) = self.source_of(key) else {
            return;
        };
        if let Some((token, completion)) = self.judged(key, raw) {
            self.ready.push_back((source, token, completion));
        }
    }

    /// Ends an operation that needs no call.
    pub(super) fn end_uncalled(&mut self, key: u64) {
        let Some(flight) = self.flights.take(key) else {
            return;
        };
        self.flights.free(key);
        let completion = flight.work.end(Ok(()));
        self.ready
            .push_back((flight.source, flight.token, completion));
        let removed = flight.file.and_then(|file| self.files.end(file));
        self.forget(removed);
    }
}
