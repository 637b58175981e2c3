//! How sources come and go, one or thousands of them in a turn, and how the ring is closed at the end
//! with all that is in flight on it.
//!
//! The operations of a source that leaves are cancelled, and its slot is free only when the last of
//! them has ended. A scan of all operations in flight is expensive where many disks are served, so it
//! is made once for all sources that leave together.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::source_state::SourceState;
use super::{Core, Cx, Source};
use crate::buf::Buf;
use crate::driver::AnyDriver;
use crate::ids::SourceId;

impl Core {
    /// Attaches the source that `build` makes.
    pub fn attach<S: Source>(&mut self, build: impl FnOnce(&mut Cx<'_>) -> S) -> SourceId {
        let slot = self.sources_free.pop().unwrap_or_else(|| {
            self.sources.push(SourceState::default());
            (self.sources.len() - 1) as u32
        });
        let state = &mut self.sources[slot as usize];
        state.present = true;
        let me = SourceId {
            slot,
            generation: state.generation,
        };
        let built = catch_unwind(AssertUnwindSafe(|| build(&mut Cx { core: self, me })));
        let source = match built {
            Ok(source) => source,
            Err(panic) => {
                // What it registered and began is released like that of any detached source.
                self.detach(me);
                resume_unwind(panic);
            }
        };
        self.arrivals.push((me, Box::new(source)));
        me
    }

    /// Detaches a source at the end of this turn.
    pub fn detach(&mut self, source: SourceId) {
        let Some(state) = self.find_source(source) else {
            return;
        };
        if std::mem::replace(&mut state.detaching, true) {
            return;
        }
        self.detached.push(source);
        self.waiters.remove_source(source);
    }

    /// The sources that were detached in this turn. All they have in flight is cancelled, also what
    /// they began after they were detached.
    pub(crate) fn take_detached(&mut self) -> Vec<SourceId> {
        let leaving = std::mem::take(&mut self.detached);
        let in_flight = |id: &SourceId| self.sources[id.slot as usize].ops > 0;
        if !leaving.iter().any(in_flight) {
            return leaving;
        }
        let leaves = |id: SourceId| {
            let state = &self.sources[id.slot as usize];
            state.generation == id.generation && state.detaching
        };
        let ops = self.ops.ids_where(|op| !op.cancelled && leaves(op.source));
        for op in ops {
            self.cancel(op);
        }
        leaving
    }

    /// Frees a detached source's slot once nothing of it is in flight; false until then.
    pub(crate) fn release_source(&mut self, source: SourceId) -> bool {
        match self.find_source(source) {
            None => return true,
            Some(state) if state.ops > 0 || state.armed > 0 => return false,
            Some(_) => {}
        }
        for file in self.files.owned_by(source) {
            self.close(file);
        }
        self.buffer_slots.release_all_of(source);
        let Some(state) = self.find_source(source) else {
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

    /// Closes the ring, in the thread that owns it.
    ///
    /// Returns memory that may still be touched in that thread and so may be freed only when the
    /// thread has ended (the memory of armed commands is their sources'), and what is to be dropped
    /// last: the files. Other operations in flight do not end any more; their memory is leaked.
    pub(crate) fn close_ring(self) -> (Vec<Buf>, impl Sized) {
        let Core {
            driver,
            ops,
            files,
            ready,
            timers,
            held_buffers,
            ..
        } = self;
        if ops.len() > 0 && matches!(driver, AnyDriver::Epoll(_)) {
            // A worker uses descriptors by number, and waiting for it may take for ever.
            Box::leak(Box::new((driver, files)));
            return (held_buffers, (None, ready, timers));
        }
        drop(driver);
        (held_buffers, (Some(files), ready, timers))
    }

    /// Cancels all operations: the reactor's deadline has passed.
    pub(crate) fn cancel_all(&mut self) {
        let ops = self.ops.ids_where(|_| true);
        for op in ops {
            self.cancel(op);
        }
    }
}
