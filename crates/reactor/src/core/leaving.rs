//! How what the core keeps leaves it: sources, one or thousands of them in a turn, and at the end the
//! ring with all that is in flight on it.
//!
//! Whoever leaves has its operations cancelled, and its slot is free only when the last of them has
//! ended. A look at all that is in flight is dear where many disks are served, so it is never made
//! once for each of those that leave together.

use crate::buf::Buf;
use crate::driver::Driver;
use crate::source::SourceId;

use super::{Core, SourceState};

impl Core {
    /// Detaches a source at the end of this turn.
    pub fn detach(&mut self, source: SourceId) {
        let Some(state) = self.source(source) else {
            return;
        };
        if std::mem::replace(&mut state.detaching, true) {
            return;
        }
        self.leaving.push(source);
        self.lending.forget(source);
    }

    /// Those that were detached in this turn, with all that they have in flight cancelled: also what
    /// they began after that.
    pub(crate) fn take_leaving(&mut self) -> Vec<SourceId> {
        let leaving = std::mem::take(&mut self.leaving);
        let in_flight = |id: &SourceId| self.sources[id.slot as usize].ops > 0;
        if !leaving.iter().any(in_flight) {
            return leaving;
        }
        let leaves = |id: SourceId| {
            let state = &self.sources[id.slot as usize];
            state.generation == id.generation && state.detaching
        };
        let ops = self
            .flights
            .ids_where(|flight| !flight.armed && !flight.cancelled && leaves(flight.source));
        for op in ops {
            self.cancel(op);
        }
        leaving
    }

    /// Frees a leaving source's id once nothing of it is in flight; false until then.
    pub(crate) fn release(&mut self, source: SourceId) -> bool {
        match self.source(source) {
            None => return true,
            Some(state) if state.ops > 0 || state.armed > 0 => return false,
            Some(_) => {}
        }
        for file in self.files.owned_by(source) {
            self.close(file);
        }
        self.buffer_slots.give_all_of(source);
        let Some(state) = self.source(source) else {
            return true;
        };
        let generation = state.generation.wrapping_add(1);
        *state = SourceState {
            generation,
            ..SourceState::default()
        };
        self.sources_free.push(source.slot);
        true
    }

    /// Closes the ring, in the thread that owns it, and returns memory that may be touched in that
    /// thread still, so it is free only when the thread has ended; that of armed commands is their
    /// sources'. What else is in flight does not end, so its memory is left behind. The second value is to be dropped
    /// last: the files.
    pub(crate) fn close_ring(self) -> (Vec<Buf>, impl Sized) {
        let Core {
            driver,
            mut flights,
            files,
            ready,
            timers,
            untaken,
            ..
        } = self;
        let mut memory = flights.disarm();
        memory.extend(untaken);
        if flights.len() > 0 && matches!(driver, Driver::Epoll(_)) {
            // A worker uses descriptors by number, and waiting for it could take for ever.
            Box::leak(Box::new((driver, files)));
            return (memory, (None, ready, timers));
        }
        drop(driver);
        (memory, (Some(files), ready, timers))
    }

    /// Cancels everything there is: the reactor's deadline has passed.
    pub(crate) fn cancel_all(&mut self) {
        let ops = self.flights.ids_where(|_| true);
        for op in ops {
            self.cancel(op);
        }
    }
}
