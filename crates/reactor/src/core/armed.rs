//! Armed commands: commands that wait in a device until the device has something to say, and may wait
//! for as long as the ring exists.
//!
//! They are what a device's server mostly has in flight, thousands of them, so they have no slot in
//! the table of operations: a command's key names its source and the number that the source gave it,
//! and its memory is the source's. All of a source's go to one file, of which they are one user
//! together.

use super::{Core, Delivery};
#[cfg(test)]
use crate::call::Call;
use crate::driver::Driver;
#[cfg(test)]
use crate::ids::FileIndex;
use crate::ids::{SourceId, Token};
use crate::op::{Command, Completion};

/// Set in the keys of armed commands, and in no other.
const ARMED: u64 = 1 << 63;

/// The key of an armed command. No generation is needed: a source's slot is not given to another
/// while one is in flight.
fn armed_key(source: SourceId, number: u32) -> u64 {
    debug_assert!(source.slot < u32::MAX >> 1, "below the driver's own keys");
    ARMED | u64::from(source.slot) << 32 | u64::from(number)
}

/// The slot of the source whose armed command this key names, and the command's number.
#[inline]
pub(super) fn parse_key(key: u64) -> Option<(u32, u32)> {
    let slot = (key & !ARMED) >> 32;
    (key & ARMED != 0).then_some((slot as u32, key as u32))
}

impl Delivery {
    /// Whether it is that of an armed command of this source.
    fn is_armed_of(&self, source: SourceId) -> bool {
        self.source == source && matches!(self.completion, Completion::ArmedCommand(..))
    }
}

impl Core {
    /// Begins an armed command.
    #[inline(always)]
    pub(crate) fn arm(&mut self, source: SourceId, number: u32, command: Command) {
        // A source arms while it is called, and so while it is attached.
        let state = &mut self.sources[source.slot as usize];
        debug_assert!(state.present && state.generation == source.generation);
        let Some((file, Some(target))) = state.armed_file else {
            return self.arm_first(source, number, command.duplicate());
        };
        assert!(
            file == command.file(),
            "a source's armed commands go to one file"
        );
        state.armed += 1;
        self.armed += 1;
        let key = armed_key(source, number);
        // SAFETY: the maker of the command promised that what it names is valid until the command or
        // the ring's thread has ended: it is its source's, which is not dropped before the result is
        // delivered, and hands its memory over where the ring is closed first.
        unsafe { self.driver.command(key, target, command.call()) };
    }

    /// Begins the first armed command of a source, or the first after all had ended: all of them
    /// together are one user of their file. On a closed file the command is refused: a completion of
    /// the source that never was in flight.
    #[cold]
    fn arm_first(&mut self, source: SourceId, number: u32, command: Command) {
        let before = self.find_source(source).and_then(|state| state.armed_file);
        let same = before.is_none_or(|(file, _)| file == command.file());
        assert!(same, "a source's armed commands go to one file");
        if let Some(target) = self.files.acquire(command.file()) {
            if let Some(state) = self.find_source(source) {
                state.armed_file = Some((command.file(), Some(target)));
            }
            return self.arm(source, number, command);
        }
        if let Some(state) = self.find_source(source) {
            state.ops += 1;
        }
        let end = Completion::ArmedCommand(number, -libc::EBADF);
        let token = Token(u64::from(number));
        self.push_ready(source, token, end);
    }

    /// Whether the result of an armed command of this source is next.
    pub(crate) fn is_armed_next(&self, of: SourceId) -> bool {
        match self.ready.front() {
            Some(delivery) => delivery.is_armed_of(of),
            None => {
                let next = self.results.first().and_then(|(key, _)| parse_key(key));
                next.is_some_and(|(slot, _)| slot == of.slot)
            }
        }
    }

    /// The result of an armed command, if it is next, this source's, and to be delivered in this turn.
    /// The same as [`Core::take_delivery`] and [`Core::finish_delivery`], for the hot path.
    #[inline(always)]
    pub(crate) fn next_armed(&mut self, of: SourceId) -> Option<(u32, i32)> {
        while self.deliveries_left > 0 {
            if !self.ready.is_empty() {
                return self.next_armed_refused(of);
            }
            let (key, raw) = self.results.first()?;
            let (slot, number) = parse_key(key)?;
            if slot != of.slot {
                return None;
            }
            self.results.pop();
            self.deliveries_left -= 1;
            self.armed -= 1;
            // A source with commands in flight is attached.
            let state = &mut self.sources[slot as usize];
            debug_assert!(state.present && state.generation == of.generation);
            state.armed -= 1;
            let wanted = !state.detaching;
            if state.armed == 0 {
                self.release_armed_file(of);
            }
            if wanted {
                return Some((number, raw));
            }
        }
        None
    }

    /// The same where something completed without the driver: that goes first.
    #[cold]
    fn next_armed_refused(&mut self, of: SourceId) -> Option<(u32, i32)> {
        let mine = self
            .ready
            .pop_front_if(|delivery| delivery.is_armed_of(of))?;
        let Completion::ArmedCommand(number, raw) = mine.completion else {
            return None;
        };
        self.deliveries_left -= 1;
        self.finish_delivery(of).then_some((number, raw))
    }

    /// To be called when no armed command of a source is in flight any more: ends their use of their
    /// file.
    #[cold]
    pub(super) fn release_armed_file(&mut self, source: SourceId) {
        let state = self.find_source(source);
        if let Some((file, _)) = state.and_then(|state| state.armed_file.take()) {
            let closed = self.files.release(file);
            self.unregister(closed);
        }
    }

    /// Begins a poll as an armed command, for tests on hosts without a device whose commands stay in
    /// flight.
    #[cfg(test)]
    pub(crate) fn arm_poll(&mut self, source: SourceId, number: u32, file: FileIndex) {
        let target = self.files.acquire(file).expect("the file is open");
        let state = self.find_source(source).expect("the source is attached");
        state.armed_file = Some((file, Some(target)));
        state.armed += 1;
        self.armed += 1;
        let events = libc::POLLIN as u32;
        // SAFETY: a poll names no memory.
        unsafe {
            let key = armed_key(source, number);
            self.driver.start(key, target, Call::Poll { events });
        }
    }
}
