//! The reactor's state that sources work with: operations in flight, files, timers, buffers.
//!
//! Owned by the reactor's thread alone. Invariants: an operation's slot is taken until its last
//! raw result is in, so memory that the kernel may touch is always held here; each operation
//! ends with exactly one completion; a source's count of operations is exact, so it can be
//! dropped when the count is zero. How operations end is in `ending`, how sources and the ring leave
//! in `leaving`, who waits for a buffer in `lending`.

mod ending;
mod leaving;
mod lending;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buf::Buf;
use crate::driver::{BackendKind, Call, Drive, Driver};
use crate::files::{FileIndex, FileTable, Removed, Target};
use crate::flights::{Flights, InFlight};
use crate::handle::Handle;
use crate::op::{Command, Completion, Fixed, Op, OpId, Token, Way, Work};
use crate::pool::BufferPool;
use crate::run::Parking;
use crate::slots::BufferSlots;
use crate::source::{Cx, Source, SourceId};
use ending::Results;
use lending::Lending;

#[derive(Default)]
struct SourceState {
    generation: u32,
    present: bool,
    detaching: bool,
    turn_requested: bool,
    /// Operations in flight and completions not delivered yet, without what the next one counts.
    ops: u32,
    /// Armed commands that the kernel has, or whose ends nobody has looked at yet.
    armed: u32,
    /// Their file, which they use together, and how the driver names it unless it is being closed.
    armed_on: Option<(FileIndex, Option<Target>)>,
}

/// In the keys of armed commands, and in no other.
const ARMED: u64 = 1 << 63;

/// The key of an armed command. No generation is needed: a source's slot is not given to another
/// while one is in flight.
fn armed_key(source: SourceId, number: u32) -> u64 {
    debug_assert!(source.slot < u32::MAX >> 1, "below the driver's own keys");
    ARMED | u64::from(source.slot) << 32 | u64::from(number)
}

/// The slot of the source whose armed command this key names, and the command's number.
#[inline]
fn armed_of(key: u64) -> Option<(u32, u32)> {
    let slot = (key & !ARMED) >> 32;
    (key & ARMED != 0).then_some((slot as u32, key as u32))
}

/// What the core knows of a source, if it is here.
#[inline]
fn state_of(sources: &mut [SourceState], id: SourceId) -> Option<&mut SourceState> {
    let state = sources.get_mut(id.slot as usize)?;
    (state.present && state.generation == id.generation).then_some(state)
}

/// A source on its way into the reactor.
pub(crate) type Arrival = (SourceId, Box<dyn Source>);

/// Figures of a reactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoreStats {
    /// Operations in flight.
    pub ops: usize,
    /// Those of them that end by their driver's will only.
    pub armed: usize,
    /// Buffer slots that nobody holds.
    pub slots: usize,
    /// Registered descriptors.
    pub files: usize,
    /// Attached sources.
    pub sources: usize,
    /// Sources that panicked and were detached.
    pub panics: u64,
    /// Calls of io_uring_enter, each of which hands over all that was begun in a turn.
    pub enters: u64,
}

/// The part of a reactor that its sources talk to.
pub struct Core {
    driver: Driver,
    handle: Handle,
    flights: Flights,
    /// Armed commands that the kernel has.
    armed: usize,
    /// Buffers that are held until the kernel has taken what was begun.
    untaken: Vec<Buf>,
    /// Whether somebody may wait for one of them whom this reactor does not know.
    untaken_elsewhere: bool,
    buffer_slots: BufferSlots,
    files: FileTable,
    timers: BinaryHeap<Reverse<(Instant, u64)>>,
    pool: BufferPool,
    lending: Lending,
    sources: Vec<SourceState>,
    sources_free: Vec<u32>,
    ready: VecDeque<(SourceId, Token, Completion)>,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) turns: Vec<SourceId>,
    pub(crate) leaving: Vec<SourceId>,
    pub(crate) stop_by: Option<Instant>,
    pub(crate) stop_asked: Option<Instant>,
    /// Who wants the thread to wait between the end of its work and that of its ring.
    pub(crate) parking: Option<Parking>,
    pub(crate) panics: u64,
    results: Results,
    /// How many completions are still delivered in this turn.
    pub(crate) deliveries: usize,
}

impl Core {
    pub(crate) fn new(driver: Driver, handle: Handle, pool: BufferPool) -> Core {
        let lending = Lending::new(&handle);
        Core {
            driver,
            handle,
            flights: Flights::default(),
            armed: 0,
            untaken: Vec::new(),
            untaken_elsewhere: false,
            buffer_slots: BufferSlots::default(),
            files: FileTable::default(),
            timers: BinaryHeap::new(),
            pool,
            lending,
            sources: Vec::new(),
            sources_free: Vec::new(),
            ready: VecDeque::new(),
            arrivals: Vec::new(),
            turns: Vec::new(),
            leaving: Vec::new(),
            stop_by: None,
            stop_asked: None,
            parking: None,
            panics: 0,
            results: Results::default(),
            deliveries: 0,
        }
    }

    /// What carries out the calls.
    pub fn backend(&self) -> BackendKind {
        self.driver.kind()
    }

    /// This reactor for other threads.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The buffers of this reactor.
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Whether the reactor is to stop.
    pub fn is_stopping(&self) -> bool {
        self.stop_by.is_some()
    }

    /// Figures for reports and tests.
    pub fn stats(&self) -> CoreStats {
        CoreStats {
            ops: self.flights.len() + self.armed,
            armed: self.flights.armed() + self.armed,
            slots: self.buffer_slots.left(),
            files: self.files.len(),
            sources: self.sources.len() - self.sources_free.len(),
            panics: self.panics,
            enters: self.driver.enters(),
        }
    }

    /// Makes a descriptor usable here, until it is closed. Several reactors may register the
    /// same one. See [`Cx::register`] for one that belongs to a source.
    pub fn register(&mut self, fd: impl Into<Arc<OwnedFd>>) -> FileIndex {
        self.register_for(None, fd.into())
    }

    pub(crate) fn register_for(&mut self, owner: Option<SourceId>, fd: Arc<OwnedFd>) -> FileIndex {
        let index = self.files.insert(fd, owner);
        let target = self
            .files
            .target(index)
            .expect("the descriptor was just put in");
        if self.driver.register(index.slot, target.fd) {
            self.files.set_fixed(index);
        }
        index
    }

    /// Cancels what is in flight on a descriptor and closes it after that; where others share
    /// it, only this reactor's use of it ends.
    pub fn close(&mut self, file: FileIndex) {
        if let Some(removed) = self.files.close(file) {
            // Nothing is in flight on it, and so nothing is looked for among all that is.
            return self.forget(Some(removed));
        }
        for state in &mut self.sources {
            if let Some((_, target)) = state.armed_on.as_mut().filter(|on| on.0 == file) {
                *target = None;
            }
        }
        for op in self.flights.ids_where(|flight| flight.file == Some(file)) {
            self.cancel(op);
        }
    }

    /// Ends both directions of a connection: what is in flight on it completes.
    pub fn shutdown(&mut self, socket: FileIndex) {
        if let Some(target) = self.files.target(socket) {
            // SAFETY: the table keeps the descriptor open for the length of this call.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(target.fd) };
            // The peer may have gone already; then there is nothing to end.
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
        }
    }

    /// Asks for the early end of an operation; its completion comes as ever. One that has ended
    /// is left alone.
    pub fn cancel(&mut self, op: OpId) {
        let Some(flight) = self.flights.get(op.0) else {
            return;
        };
        if flight.armed {
            return;
        }
        if std::mem::replace(&mut flight.cancelled, true) {
            return;
        }
        if matches!(flight.work, Work::Timeout) {
            self.end_unasked(op.0, -libc::ECANCELED);
        } else {
            self.driver.cancel(op.0);
        }
    }

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
                // What it registered and began goes the way of any source that leaves.
                self.detach(me);
                resume_unwind(panic);
            }
        };
        self.arrivals.push((me, Box::new(source)));
        me
    }

    pub(crate) fn request_turn(&mut self, source: SourceId) {
        if let Some(state) = self.source(source)
            && !std::mem::replace(&mut state.turn_requested, true)
        {
            self.turns.push(source);
        }
    }

    /// A requested turn is being given.
    pub(crate) fn turn_begins(&mut self, source: SourceId) {
        if let Some(state) = self.source(source) {
            state.turn_requested = false;
        }
    }

    /// Begins an operation. What every request of a disk needs is told apart first: each of these
    /// calls becomes code of its own, which moves nothing about that only other kinds have.
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
                Fixed::new(Way::In, offset, slot, at, len),
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
                Fixed::new(Way::Out, offset, slot, at, len),
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
        fixed: Fixed,
    ) -> OpId {
        let call = (!fixed.empty()).then(|| fixed.call());
        self.begin(source, token, file, Work::Fixed(fixed), call)
    }

    /// Begins a command that ends by its driver's will only.
    #[inline(always)]
    pub(crate) fn arm(&mut self, source: SourceId, number: u32, command: Command) {
        // A source arms while it is called, and so while it is here.
        let state = &mut self.sources[source.slot as usize];
        debug_assert!(state.present && state.generation == source.generation);
        let Some((file, Some(target))) = state.armed_on else {
            return self.arm_first(source, number, command.same());
        };
        assert!(
            file == command.file(),
            "a source's armed commands go to one file"
        );
        state.armed += 1;
        self.armed += 1;
        let key = armed_key(source, number);
        // SAFETY: who made the command promised that what it names is good until it has ended, or
        // until the ring's thread has: it is its source's, which is not dropped before that end is
        // told, and hands its memory over where the ring is closed first.
        unsafe { self.driver.command(key, target, command.call()) };
    }

    /// Begins the first armed command of a source, or the first after all had ended: all of them
    /// together are one user of their file. One that is closed refuses, which is counted in for the
    /// source and never in flight.
    #[cold]
    fn arm_first(&mut self, source: SourceId, number: u32, command: Command) {
        let before = self.source(source).and_then(|state| state.armed_on);
        let same = before.is_none_or(|(file, _)| file == command.file());
        assert!(same, "a source's armed commands go to one file");
        if let Some(target) = self.files.begin(command.file()) {
            if let Some(state) = self.source(source) {
                state.armed_on = Some((command.file(), Some(target)));
            }
            return self.arm(source, number, command);
        }
        if let Some(state) = self.source(source) {
            state.ops += 1;
        }
        let end = Completion::ArmedCommand(number, -libc::EBADF);
        let token = Token(u64::from(number));
        self.ready.push_back((source, token, end));
    }

    /// Keeps a buffer until the kernel has taken all that was begun up to now.
    pub fn hold_until_submitted(&mut self, buf: Buf) {
        self.untaken_elsewhere |= self.pool.is_strange(&buf);
        self.untaken.push(buf);
    }

    #[inline(never)]
    fn begin_other(&mut self, source: SourceId, token: Token, op: Op) -> OpId {
        let (file, mut work) = Work::new(op);
        let call = (!work.empty()).then(|| work.call());
        self.begin(source, token, file, work, call)
    }

    /// Begins an operation with its first call; without one there is nothing to do.
    #[inline(always)]
    fn begin(
        &mut self,
        source: SourceId,
        token: Token,
        file: FileIndex,
        work: Work,
        call: Option<Call>,
    ) -> OpId {
        if let Some(state) = self.source(source) {
            state.ops += 1;
        }
        let Some(target) = self.files.begin(file) else {
            // Counted in for the source, never in flight.
            let closed = io::Error::from_raw_os_error(libc::EBADF);
            self.ready.push_back((source, token, work.end(Err(closed))));
            return OpId(u64::MAX);
        };
        let key = self.flights.insert(InFlight {
            source,
            token,
            work,
            file: Some(file),
            cancelled: false,
            armed: false,
        });
        match call {
            // SAFETY: the operation owns the memory, which does not move with it, and sits
            // untouched in its slot until its end is judged, after the result of this key is out.
            Some(call) => unsafe { self.driver.start(key, target, call) },
            None => self.end_uncalled(key),
        }
        OpId(key)
    }

    fn begin_timer(&mut self, source: SourceId, token: Token, after: Duration) -> OpId {
        if let Some(state) = self.source(source) {
            state.ops += 1;
        }
        let key = self.flights.insert(InFlight {
            source,
            token,
            work: Work::Timeout,
            file: None,
            cancelled: false,
            armed: false,
        });
        self.timers.push(Reverse((Instant::now() + after, key)));
        OpId(key)
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
            self.end_unasked(key, 0);
        }
    }

    /// How long until the next timer is due. To be asked last before a wait: any call to a
    /// source may have set one.
    pub(crate) fn next_timer(&mut self) -> Option<Duration> {
        loop {
            let &Reverse((at, key)) = self.timers.peek()?;
            if self.flights.get(key).is_some() {
                return Some(at.saturating_duration_since(Instant::now()));
            }
            // Cancelled.
            self.timers.pop();
        }
    }

    /// Whether the next enter lets buffers go that somebody waits for, or may wait for where they are
    /// not this pool's: it must not wait then.
    pub(crate) fn enter_frees(&self) -> bool {
        !self.untaken.is_empty() && (self.untaken_elsewhere || self.has_buffer_waiters())
    }

    /// Has the kernel make the table of buffer slots, once. An error where there is no ring, or
    /// where the kernel is older than such tables (Linux 5.19).
    pub fn enable_buffer_slots(&mut self) -> io::Result<()> {
        if !self.buffer_slots.enabled() {
            self.driver.register_slots(BufferSlots::COUNT)?;
            self.buffer_slots.enable();
        }
        Ok(())
    }

    /// `count` buffer slots, or none where so many are not left. See [`Cx::take_buffer_slots`] for such
    /// that belong to a source.
    pub fn take_buffer_slots(&mut self, count: usize) -> Option<Vec<u16>> {
        self.buffer_slots.take(count, None)
    }

    pub(crate) fn take_buffer_slots_for(
        &mut self,
        source: SourceId,
        count: usize,
    ) -> Option<Vec<u16>> {
        self.buffer_slots.take(count, Some(source))
    }

    /// Gives buffer slots back. Nothing of the kernel's may be in them: the next holder's memory
    /// would not go in.
    pub fn release_buffer_slots(&mut self, slots: &[u16]) {
        self.buffer_slots.give(slots);
    }

    /// Whether a source is attached and not on its way out.
    pub(crate) fn is_live(&mut self, source: SourceId) -> bool {
        self.source(source).is_some_and(|state| !state.detaching)
    }

    /// The source that has a slot.
    fn source_in(&self, slot: u32) -> Option<SourceId> {
        let state = self.sources.get(slot as usize)?;
        let generation = state.generation;
        state.present.then_some(SourceId { slot, generation })
    }

    #[inline]
    fn source(&mut self, id: SourceId) -> Option<&mut SourceState> {
        state_of(&mut self.sources, id)
    }

    fn forget(&mut self, removed: Option<Removed>) {
        use std::os::fd::AsRawFd;
        let Some(Removed { slot, fixed, fd }) = removed else {
            return;
        };
        self.driver.unregister(slot, fd.as_raw_fd(), fixed);
        if let Some(fd) = Arc::into_inner(fd) {
            self.driver.close(fd);
        }
    }

    /// See [`Flights::arm`].
    #[cfg(test)]
    pub(crate) fn arm_any(&mut self, op: OpId) {
        self.flights.arm(op.0);
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
