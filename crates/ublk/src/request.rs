//! A request of the kernel, as a value that must complete (R6).
//!
//! Whoever has it decides its end, on whatever thread: answered, or (a bug that is made harmless)
//! dropped, which is answered with EIO and counted. One that was lost would hang the removal of
//! its device, and with it every control command of the host.
//!
//! Results that the driver would misunderstand cannot be said: a read or write of no bytes, more
//! bytes than asked for, an errno that is none.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use blkmq::SmallLock;
use blkmq::io::{Op, SECTOR_BYTES};
use reactor::Buf;

use crate::queue::Counters;
use crate::sys;

/// Where a request's bytes are.
#[derive(Debug)]
pub enum Data {
    /// Not here: it has none (flush, discard, zeroing), or it is a read of a get-data device and
    /// is to be answered with a buffer ([`Request::set_buffer`]).
    None,
    /// In a buffer slot of the ring that runs its queue, from the slot's first byte on.
    Fixed {
        /// The slot.
        slot: u16,
    },
    /// On the character device, from [`Request::window`] on.
    Window,
    /// Here: a write's bytes, or room for a read's (copy).
    Buffer(Buf),
}

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All of it was done.
    Done,
    /// Only this many bytes of a read or write, whole sectors and not none: the kernel asks for
    /// the rest anew.
    Part(u32),
    /// It failed with this errno (positive).
    Failed(i32),
    /// It stays with the driver, which issues it again to the next server or fails it, as the
    /// device's recovery flags say. For servers about to leave: its tag serves no more.
    Abandoned,
}

/// A request on its way back to its queue.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) tag: u16,
    pub(crate) answer: Answer,
    pub(crate) buf: Option<Buf>,
}

/// Where the requests of one queue return to.
#[derive(Debug)]
pub(crate) struct Home {
    returned: SmallLock<Vec<Returned>>,
    /// Wakes the queue's owner.
    waker: OnceLock<Waker>,
    counters: Arc<Counters>,
    /// The queue, where the device lets the bytes of its requests be copied.
    windows: Option<u16>,
}

impl Home {
    pub(crate) fn new(counters: Arc<Counters>, windows: Option<u16>) -> Arc<Home> {
        Arc::new(Home {
            returned: SmallLock::new("answered requests", Vec::new()),
            waker: OnceLock::new(),
            counters,
            windows,
        })
    }

    /// Says how the owner is woken; the first word counts.
    pub(crate) fn settle(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }

    fn put(&self, returned: Returned) {
        self.returned.lock().push(returned);
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Takes what returned. `into` is empty; its memory is swapped in.
    pub(crate) fn take(&self, into: &mut Vec<Returned>) {
        std::mem::swap(&mut *self.returned.lock(), into);
    }
}

/// What a queue says about a request when it hands it out.
pub(crate) struct Told {
    pub(crate) tag: u16,
    pub(crate) op: Op,
    pub(crate) keep_allocated: bool,
}

/// A request that is owed its answer.
struct Pending {
    home: Arc<Home>,
    told: Told,
    /// It asks for less than the kernel did.
    limited: bool,
    data: Data,
}

impl Pending {
    fn bytes(&self) -> u32 {
        match self.told.op {
            Op::Read { sectors, .. } | Op::Write { sectors, .. } => sectors * SECTOR_BYTES as u32,
            _ => 0,
        }
    }

    #[inline]
    fn returned(self, answer: Answer) -> (Arc<Home>, Returned) {
        let part = self.limited && answer == Answer::Done;
        let answer = if part {
            Answer::Part(self.bytes())
        } else {
            answer
        };
        let buf = match self.data {
            Data::Buffer(buf) => Some(buf),
            _ => None,
        };
        let tag = self.told.tag;
        (self.home, Returned { tag, answer, buf })
    }

    fn send(self, answer: Answer) {
        let (home, returned) = self.returned(answer);
        home.put(returned);
    }
}

/// A request of the kernel. It is answered exactly once.
pub struct Request {
    /// There until the value is answered or dropped.
    pending: ManuallyDrop<Pending>,
}

impl Request {
    #[inline]
    pub(crate) fn new(home: Arc<Home>, told: Told, data: Data) -> Request {
        Request {
            pending: ManuallyDrop::new(Pending {
                home,
                told,
                limited: false,
                data,
            }),
        }
    }

    /// Who calls this answers it.
    #[inline]
    fn into_pending(self) -> Pending {
        let mut request = ManuallyDrop::new(self);
        // SAFETY: `request` is not dropped, and not looked at after this.
        unsafe { ManuallyDrop::take(&mut request.pending) }
    }

    /// What is asked. Addresses and lengths are in sectors of 512 bytes.
    pub fn op(&self) -> &Op {
        &self.pending.told.op
    }

    /// Its tag in the hardware queue; nobody else's until it is answered.
    pub fn tag(&self) -> u16 {
        self.pending.told.tag
    }

    /// Bytes that a read or write carries; zero for the others.
    pub fn bytes(&self) -> u32 {
        self.pending.bytes()
    }

    /// Makes a read or write shorter: only its first `bytes`, whole sectors and not none, are
    /// served, and the kernel asks for the rest anew. Anything else leaves it as it is.
    pub fn limit(&mut self, bytes: u32) {
        let fewer = bytes / SECTOR_BYTES as u32;
        if fewer == 0 {
            return;
        }
        let pending = &mut *self.pending;
        match &mut pending.told.op {
            Op::Read { sectors, .. } | Op::Write { sectors, .. } if fewer < *sectors => {
                *sectors = fewer;
            }
            _ => return,
        }
        pending.limited = true;
        if let Data::Buffer(buf) = &mut pending.data {
            buf.truncate(fewer as usize * SECTOR_BYTES as usize);
        }
    }

    /// Of a zeroing: the range must keep its space.
    pub fn keeps_allocated(&self) -> bool {
        self.pending.told.keep_allocated
    }

    /// Where its bytes are.
    pub fn data(&self) -> &Data {
        &self.pending.data
    }

    /// Offset on the character device of its first byte, where the device lets it be copied there
    /// (also where the bytes are in a buffer slot).
    pub fn window(&self) -> Option<u64> {
        let queue = self.pending.home.windows?;
        (self.bytes() > 0).then(|| sys::data_offset(queue, self.tag(), 0))
    }

    /// Its bytes, or room for them.
    pub fn buffer_mut(&mut self) -> Option<&mut Buf> {
        match &mut self.pending.data {
            Data::Buffer(buf) => Some(buf),
            _ => None,
        }
    }

    /// Takes its buffer away, to move bytes. It is given back before the request is answered if
    /// it is a read; a device in copy mode wants it back for the next request in any case, and
    /// maps a new one where it does not come, which is dear.
    pub fn take_buffer(&mut self) -> Option<Buf> {
        match std::mem::replace(&mut self.pending.data, Data::None) {
            Data::Buffer(buf) => Some(buf),
            other => {
                self.pending.data = other;
                None
            }
        }
    }

    /// Gives it a buffer: what a read brought, or the one that was taken away.
    pub fn set_buffer(&mut self, buf: Buf) {
        self.pending.data = Data::Buffer(buf);
    }

    /// Answers it from any thread; its queue is woken. On the queue's own thread
    /// [`crate::queue::QueueCx::answer`] is the shorter way.
    pub fn answer(self, answer: Answer) {
        self.into_pending().send(answer);
    }

    /// All of it was done.
    pub fn complete(self) {
        self.answer(Answer::Done);
    }

    /// It failed with this errno (positive).
    pub fn fail(self, errno: i32) {
        self.answer(Answer::Failed(errno));
    }

    /// Ends it. If it belongs to this queue, its answer comes back at once, otherwise it goes where
    /// it belongs.
    #[inline]
    pub(crate) fn end_at(self, home: &Arc<Home>, answer: Answer) -> Option<Returned> {
        let (own, returned) = self.into_pending().returned(answer);
        if Arc::ptr_eq(&own, home) {
            return Some(returned);
        }
        own.put(returned);
        None
    }
}

impl Drop for Request {
    #[cold]
    fn drop(&mut self) {
        // SAFETY: the value is being dropped, and `pending` is not looked at through it after this.
        let pending = unsafe { ManuallyDrop::take(&mut self.pending) };
        pending.home.counters.count_dropped();
        pending.send(Answer::Failed(libc::EIO));
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("tag", &self.tag())
            .field("op", self.op())
            .field("data", self.data())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(home: &Arc<Home>, tag: u16) -> Request {
        let told = Told {
            tag,
            op: Op::Read {
                sector: 0,
                sectors: 8,
            },
            keep_allocated: false,
        };
        Request::new(Arc::clone(home), told, Data::None)
    }

    fn answers(home: &Home) -> Vec<(u16, Answer)> {
        let mut returned = Vec::new();
        home.take(&mut returned);
        returned.iter().map(|one| (one.tag, one.answer)).collect()
    }

    #[test]
    fn a_dropped_request_fails_and_is_counted() {
        let home = Home::new(Arc::default(), None);
        drop(request(&home, 3));
        assert_eq!(answers(&home), [(3, Answer::Failed(libc::EIO))]);
        assert_eq!(home.counters.stats().dropped, 1);
    }

    #[test]
    fn an_answered_request_returns_once() {
        let home = Home::new(Arc::default(), None);
        request(&home, 1).complete();
        request(&home, 2).fail(28);
        assert_eq!(answers(&home), [(1, Answer::Done), (2, Answer::Failed(28))]);
        assert_eq!(home.counters.stats().dropped, 0);
    }

    #[test]
    fn a_limited_request_is_done_in_part() {
        let home = Home::new(Arc::default(), None);
        let mut one = request(&home, 1);
        one.limit(1000);
        assert_eq!(one.bytes(), 512);
        one.limit(4096);
        one.limit(0);
        one.complete();
        let mut whole = request(&home, 2);
        whole.limit(4096);
        whole.complete();
        assert_eq!(answers(&home), [(1, Answer::Part(512)), (2, Answer::Done)]);
    }

    #[test]
    fn a_request_answered_through_another_queue_goes_home() {
        let (home, other) = (
            Home::new(Arc::default(), None),
            Home::new(Arc::default(), None),
        );
        let away = request(&home, 5).end_at(&other, Answer::Done);
        assert!(away.is_none());
        assert_eq!(answers(&home), [(5, Answer::Done)]);
        let own = request(&home, 6).end_at(&home, Answer::Part(512));
        assert_eq!(own.map(|one| one.answer), Some(Answer::Part(512)));
        assert!(answers(&home).is_empty());
    }

    #[test]
    fn a_request_can_be_answered_on_another_thread() {
        let home = Home::new(Arc::default(), None);
        let one = request(&home, 9);
        std::thread::spawn(move || one.complete()).join().unwrap();
        assert_eq!(answers(&home), [(9, Answer::Done)]);
    }
}
