//! Sources: what is attached to a reactor and gets its completions. A listener, a connection, a
//! device's queue, a committer. The reactor knows none of them.

use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use crate::buf::Buf;
use crate::core::Core;
use crate::files::FileIndex;
use crate::op::{Command, Completion, Op, OpId, Token};
use crate::pool::Need;

/// Names an attached source; never names another one later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl SourceId {
    /// As one number.
    pub(crate) fn number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }
}

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

    /// Armed commands have ended: [`Cx::next_armed`] tells which. What is left there is told anew; where
    /// none is taken, the first comes to [`Source::on_completion`].
    fn on_armed_completions(&mut self, cx: &mut Cx<'_>) {
        while let Some((number, raw)) = cx.next_armed() {
            self.on_completion(cx, Token(u64::from(number)), Completion::Command(raw));
        }
    }

    /// The ring is about to be closed: the memory that this source's armed commands name. Their
    /// driver may touch it until the ring's thread has ended, and it is kept until then. No other
    /// method is called after this one.
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
    pub fn me(&self) -> SourceId {
        self.me
    }

    /// Begins an operation. It ends with exactly one completion, also where it is refused.
    pub fn submit(&mut self, token: Token, op: Op) -> OpId {
        self.core.submit(self.me, token, op)
    }

    /// Begins a command that ends by its driver's will only, or with the ring: it does not keep a
    /// stopping reactor, and cannot be cancelled by itself (drivers know no such thing). Its end is
    /// told to [`Source::on_armed_completions`] with this number. All of a source's go to one file, and their
    /// memory is the source's: it stays where it is until the end is told, or is handed over by
    /// [`Source::release_armed_memory`].
    #[inline(always)]
    pub fn arm(&mut self, number: u32, command: Command) {
        self.core.arm(self.me, number, command);
    }

    /// The next armed command of this source's that has ended, with its driver's raw answer. For
    /// [`Source::on_armed_completions`]: outside there is mostly none.
    #[inline]
    pub fn next_armed(&mut self) -> Option<(u32, i32)> {
        self.core.next_armed(self.me)
    }

    /// A buffer of `len` bytes now, or later as [`Completion::Buffer`], in the order of asking
    /// (for [`Need::Held`] and [`Need::Client`], of this source's asking).
    /// `len` beyond [`crate::BufferPool::len_max`] never comes: check it before.
    pub fn request_buffer(&mut self, token: Token, len: usize, need: Need) -> Option<Buf> {
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
        self.core.handle().waker(self.me, key)
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
