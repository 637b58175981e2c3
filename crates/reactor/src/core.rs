//! The part of a reactor that its sources talk to, and what a source is.
//!
//! [`Core`] holds the reactor's state: operations in flight, files, timers, buffers. [`Source`]s are
//! what it calls, and [`Cx`] is what they have during a call; the three name each other and so are
//! in one file. What the core does is in the files beside this one: `submit` begins operations,
//! `completions` ends them, `armed` and `buffer_slots` serve the commands of devices, `buffers` lends
//! memory, `attach` lets sources in and out.
//!
//! Owned by the reactor's thread alone. Invariants: an operation's slot is taken until its last raw
//! result is in, so memory that the kernel may touch is always held here; each operation ends with
//! exactly one completion; a source's count of operations is exact, so it can be dropped when the
//! count is zero.

mod armed;
mod attach;
mod buffers;
mod completions;
mod invariants;
mod result_queue;
mod source_state;
mod submit;
mod waiters;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use crate::buf::Buf;
use crate::buffer_slots::BufferSlots;
use crate::clock::monotonic_ns;
use crate::driver::{AnyDriver, BackendKind, Driver};
use crate::files::{ClosedFile, FileTable};
use crate::ids::{FileIndex, OpId, SourceId, Token};
use crate::inbox::Inbox;
use crate::op::{Command, Completion, Op};
use crate::op_table::OpTable;
use crate::pool::{BufferPool, BufferPurpose};
use crate::stop::StopRequest;
use result_queue::ResultQueue;
use source_state::SourceState;
use waiters::BufferWaiters;

/// Work posted to the reactor's thread.
pub(crate) type PostedWork = Box<dyn FnOnce(&mut Core) + Send>;

/// Where other threads put what a reactor is to do.
pub(crate) type Mailbox = Inbox<PostedWork>;

/// A source on its way into the reactor.
pub(crate) type Arrival = (SourceId, Box<dyn Source>);

/// Something that lives on a reactor's thread. No method may wait (R1).
///
/// A source that panics is detached; the others go on. When a source is detached, its operations
/// are cancelled and no completion reaches it any more, but the value is dropped only after the
/// last of its operations has ended: what it holds for them (plans, pins) outlives them.
pub trait Source: 'static {
    /// The source is attached and may begin operations.
    fn on_attached(&mut self, _cx: &mut Cx<'_>) {}

    /// An operation has ended.
    fn on_completion(&mut self, cx: &mut Cx<'_>, token: Token, completion: Completion);

    /// Armed commands have ended; [`Cx::next_armed`] returns them one by one. This is called again for
    /// those that were not taken; where none was, the first is passed to [`Source::on_completion`].
    fn on_armed_completions(&mut self, cx: &mut Cx<'_>) {
        while let Some((number, raw)) = cx.next_armed() {
            self.on_completion(cx, Token(u64::from(number)), Completion::Command(raw));
        }
    }

    /// The ring is about to be closed: returns the memory that this source's armed commands name.
    /// Their device may touch it until the ring's thread has ended, and it is kept until then. No
    /// other method is called after this one.
    fn release_armed_memory(&mut self) -> Vec<Buf> {
        Vec::new()
    }

    /// A waker with this key was woken. Wakes may be spurious.
    fn on_wake(&mut self, _cx: &mut Cx<'_>, _key: u64) {}

    /// All completions of this turn are delivered. Called once per turn for a source that asked
    /// ([`Cx::request_turn`]) or that wants every turn ([`Source::wants_every_turn`]).
    fn on_turn(&mut self, _cx: &mut Cx<'_>) {}

    /// Whether [`Source::on_turn`] is called each turn: for owners of work that others produce.
    fn wants_every_turn(&self) -> bool {
        false
    }

    /// The reactor is to stop: finish what is in flight and detach.
    fn on_stop(&mut self, cx: &mut Cx<'_>) {
        cx.detach();
    }
}

/// A source's view of its reactor during a call.
#[derive(Debug)]
pub struct Cx<'a> {
    pub(crate) core: &'a mut Core,
    pub(crate) me: SourceId,
}

impl Cx<'_> {
    /// The source being called.
    pub fn source_id(&self) -> SourceId {
        self.me
    }

    /// Begins an operation. It ends with exactly one completion, also where it is refused.
    pub fn submit(&mut self, token: Token, op: Op) -> OpId {
        self.core.submit(self.me, token, op)
    }

    /// Begins an armed command: one that ends only when its device ends it, or with the ring. It does
    /// not keep a reactor from stopping, and cannot be cancelled (devices offer no such thing). Its
    /// result reaches [`Source::on_armed_completions`] with this number. All armed commands of a source
    /// go to one file, and their memory is the source's: it stays where it is until the result is
    /// delivered, or is handed over by [`Source::release_armed_memory`].
    #[inline(always)]
    pub fn arm(&mut self, number: u32, command: Command) {
        self.core.arm(self.me, number, command);
    }

    /// The next armed command of this source that has ended: its number and its raw result. For use in
    /// [`Source::on_armed_completions`]; elsewhere it mostly returns `None`.
    #[inline]
    pub fn next_armed(&mut self) -> Option<(u32, i32)> {
        self.core.next_armed(self.me)
    }

    /// A buffer of `len` bytes now, or later as [`Completion::Buffer`], in the order of requests
    /// (for [`BufferPurpose::Held`] and [`BufferPurpose::Client`], of this source's requests).
    /// `len` beyond [`crate::BufferPool::len_max`] never comes: check it before.
    pub fn request_buffer(&mut self, token: Token, len: usize, need: BufferPurpose) -> Option<Buf> {
        self.core.request_buffer(self.me, token, len, need)
    }

    /// Makes a descriptor usable here until this source closes it or is gone, however it ends.
    pub fn register(&mut self, fd: impl Into<Arc<OwnedFd>>) -> FileIndex {
        self.core.register_for(Some(self.me), fd.into())
    }

    /// `count` buffer slots or none, this source's until it gives them back or is gone.
    pub fn take_buffer_slots(&mut self, count: usize) -> Option<Vec<u16>> {
        self.core.take_buffer_slots_for(self.me, count)
    }

    /// Asks for a call of [`Source::on_turn`] at the end of this turn.
    pub fn request_turn(&mut self) {
        self.core.request_turn(self.me);
    }

    /// Leaves the reactor at the end of this turn.
    pub fn detach(&mut self) {
        self.core.detach(self.me);
    }

    /// A waker that calls [`Source::on_wake`] of this source with `key`, from any thread.
    pub fn waker(&self, key: u64) -> Waker {
        Inbox::source_waker(&self.core.mailbox, self.me, key)
    }
}

impl Deref for Cx<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        self.core
    }
}

impl DerefMut for Cx<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        self.core
    }
}

/// Figures of a reactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoreStats {
    /// Operations in flight.
    pub ops_in_flight: usize,
    /// Those of them that are armed: only their device or the end of the ring ends them.
    pub armed_commands: usize,
    /// Free buffer slots.
    pub free_buffer_slots: usize,
    /// Registered descriptors.
    pub files: usize,
    /// Attached sources.
    pub sources: usize,
    /// Sources that panicked and were detached.
    pub panics: u64,
    /// Calls of io_uring_enter, each of which hands over all that was begun in a turn.
    pub enters: u64,
}

/// A completion on its way to its source.
pub(crate) struct Delivery {
    source: SourceId,
    token: Token,
    completion: Completion,
}

/// The part of a reactor that its sources talk to.
pub struct Core {
    driver: AnyDriver,
    pub(crate) mailbox: Arc<Mailbox>,
    ops: OpTable,
    /// Armed commands that the kernel has.
    armed: usize,
    /// Buffers that are held until the kernel has taken what was submitted.
    held_buffers: Vec<Buf>,
    /// Whether one of them is another pool's, where requests may wait that this reactor does not know.
    held_foreign: bool,
    buffer_slots: BufferSlots,
    files: FileTable,
    timers: BinaryHeap<Reverse<(Instant, u64)>>,
    pool: BufferPool,
    waiters: BufferWaiters,
    sources: Vec<SourceState>,
    sources_free: Vec<u32>,
    /// Completions that came about without the driver: refusals, timers, buffers. They go first.
    ready: VecDeque<Delivery>,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) turns: Vec<SourceId>,
    pub(crate) detached: Vec<SourceId>,
    pub(crate) stop: Option<StopRequest>,
    pub(crate) panics: u64,
    results: ResultQueue,
    /// When this turn's clock was read; none before it is asked for.
    turn_time_ns: Option<u64>,
    /// How many more completions are delivered in this turn.
    pub(crate) deliveries_left: usize,
}

impl Core {
    pub(crate) fn new(driver: AnyDriver, mailbox: Arc<Mailbox>, pool: BufferPool) -> Core {
        let waiters = BufferWaiters::new(Inbox::turn_waker(&mailbox));
        Core {
            driver,
            mailbox,
            ops: OpTable::default(),
            armed: 0,
            held_buffers: Vec::new(),
            held_foreign: false,
            buffer_slots: BufferSlots::default(),
            files: FileTable::default(),
            timers: BinaryHeap::new(),
            pool,
            waiters,
            sources: Vec::new(),
            sources_free: Vec::new(),
            ready: VecDeque::new(),
            arrivals: Vec::new(),
            turns: Vec::new(),
            detached: Vec::new(),
            stop: None,
            panics: 0,
            results: ResultQueue::default(),
            turn_time_ns: None,
            deliveries_left: 0,
        }
    }

    /// The kind of driver that carries out the calls.
    pub fn backend(&self) -> BackendKind {
        self.driver.kind()
    }

    /// The buffers of this reactor.
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// The time of this turn: the clock is read once for all that ask.
    #[inline]
    pub(crate) fn turn_time_ns(&mut self) -> u64 {
        *self.turn_time_ns.get_or_insert_with(monotonic_ns)
    }

    /// Whether the reactor is to stop.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_some()
    }

    /// Figures for reports and tests.
    pub fn stats(&self) -> CoreStats {
        CoreStats {
            ops_in_flight: self.ops.len() + self.armed,
            armed_commands: self.armed,
            free_buffer_slots: self.buffer_slots.free_count(),
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
        if let Some(closed) = self.files.close(file) {
            // Nothing is in flight on it: no scan of the operations is needed.
            return self.unregister(Some(closed));
        }
        for state in &mut self.sources {
            if let Some((_, target)) = state.armed_file.as_mut().filter(|on| on.0 == file) {
                *target = None;
            }
        }
        for op in self.ops.ids_where(|op| op.file == Some(file)) {
            self.cancel(op);
        }
    }

    /// A share of an open file, which outlives this reactor's use of it: for one that is given away. Takes no further
    /// descriptor. None where the index names no file.
    pub fn share(&mut self, file: FileIndex) -> Option<Arc<OwnedFd>> {
        self.files.share(file)
    }

    /// Ends both directions of a connection: what is in flight on it completes.
    pub fn shutdown(&mut self, socket: FileIndex) {
        if let Some(target) = self.files.target(socket) {
            // SAFETY: the table keeps the descriptor open for the length of this call.
            let fd = unsafe { BorrowedFd::borrow_raw(target.fd) };
            // The peer may have gone already; then there is nothing to end.
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
        }
    }

    /// Has the kernel make the table of buffer slots, once. An error where there is no ring, or
    /// where the kernel is older than such tables (Linux 5.19).
    pub fn enable_buffer_slots(&mut self) -> io::Result<()> {
        if !self.buffer_slots.is_enabled() {
            self.driver.register_buffer_slots(BufferSlots::COUNT)?;
            self.buffer_slots.enable();
        }
        Ok(())
    }

    /// `count` buffer slots, or none where fewer are free. See [`Cx::take_buffer_slots`] for slots
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

    /// Gives buffer slots back. They must be empty: the kernel refuses to put the next holder's memory
    /// into a slot that is in use.
    pub fn release_buffer_slots(&mut self, slots: &[u16]) {
        self.buffer_slots.release(slots);
    }

    pub(crate) fn request_turn(&mut self, source: SourceId) {
        if let Some(state) = self.find_source(source)
            && !std::mem::replace(&mut state.turn_requested, true)
        {
            self.turns.push(source);
        }
    }

    /// To be called before a requested turn: the next request is a new one.
    pub(crate) fn clear_turn_request(&mut self, source: SourceId) {
        if let Some(state) = self.find_source(source) {
            state.turn_requested = false;
        }
    }

    /// Whether a source is attached and not detached since.
    pub(crate) fn is_live(&mut self, source: SourceId) -> bool {
        self.find_source(source)
            .is_some_and(|state| !state.detaching)
    }

    /// The source that has a slot.
    #[inline]
    fn source_at(&self, slot: u32) -> Option<SourceId> {
        let state = self.sources.get(slot as usize)?;
        let generation = state.generation;
        state.present.then_some(SourceId { slot, generation })
    }

    #[inline]
    fn find_source(&mut self, id: SourceId) -> Option<&mut SourceState> {
        source_state::find(&mut self.sources, id)
    }

    /// Removes a closed descriptor from the driver, and closes it where no other reactor shares it.
    fn unregister(&mut self, closed: Option<ClosedFile>) {
        let Some(ClosedFile { slot, fixed, fd }) = closed else {
            return;
        };
        self.driver.unregister(slot, fd.as_raw_fd(), fixed);
        if let Some(fd) = Arc::into_inner(fd) {
            self.driver.close(fd);
        }
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
