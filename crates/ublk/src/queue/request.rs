//! A request of the kernel, as a value that must complete (R6).
//!
//! Its owner answers it, on any thread. A request that is dropped instead (a bug) is answered with EIO
//! and counted. A request that got no answer at all would hang the removal of its device, and with it
//! every control command of the host.
//!
//! [`Answer`] has no value for a result that the driver would misunderstand without the queue
//! noticing: the queue replaces a length or an errno that makes no sense by EIO.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use blkmq::SmallLock;
use blkmq::io::{Op, SECTOR_BYTES};
use reactor::Buf;

use crate::queue::stats::Counters;
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
    /// Answers that all of it was done.
    Done,
    /// Only this many bytes of a read whose answer carries its bytes (copy, get-data), whole sectors
    /// and not none: the kernel asks for the rest again. Any other request fails with EIO, because
    /// Linux 7.3 takes its short result for the whole.
    Part(u32),
    /// It failed with this errno (positive).
    Failed(i32),
    /// It is not completed: the driver issues it again to the next server or fails it, depending on
    /// the device's recovery flags. For servers about to exit: its tag is not used again.
    Abandoned,
}

/// An answered request on its way back to its queue.
#[derive(Debug)]
pub(crate) struct ReturnedRequest {
    pub(crate) tag: u16,
    pub(crate) answer: Answer,
    pub(crate) buf: Option<Buf>,
}

/// The answered requests of one queue, from any thread. The queue takes them on its own thread.
#[derive(Debug)]
pub(crate) struct ReturnQueue {
    entries: SmallLock<Vec<ReturnedRequest>>,
    /// Wakes the queue's owner.
    waker: OnceLock<Waker>,
    counters: Arc<Counters>,
    /// The queue's number, where its device has user copy: the base of [`Request::window`].
    user_copy_queue: Option<u16>,
}

impl ReturnQueue {
    pub(crate) fn new(counters: Arc<Counters>, user_copy_queue: Option<u16>) -> Arc<ReturnQueue> {
        Arc::new(ReturnQueue {
            entries: SmallLock::new("answered requests", Vec::new()),
            waker: OnceLock::new(),
            counters,
            user_copy_queue,
        })
    }

    /// Sets the waker of the queue. Only the first call has an effect.
    pub(crate) fn set_waker(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }

    fn push(&self, returned: ReturnedRequest) {
        self.entries.lock().push(returned);
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Takes all entries. `into` is empty; its memory is swapped in.
    pub(crate) fn swap(&self, into: &mut Vec<ReturnedRequest>) {
        std::mem::swap(&mut *self.entries.lock(), into);
    }
}

/// What a queue knows of a request when it hands it to the handler.
pub(crate) struct RequestHeader {
    pub(crate) tag: u16,
    pub(crate) op: Op,
}

/// The state of a request that is not answered.
struct Inner {
    return_queue: Arc<ReturnQueue>,
    header: RequestHeader,
    /// [`Request::limit`] made it shorter.
    truncated: bool,
    data: Data,
}

impl Inner {
    fn bytes(&self) -> u32 {
        match self.header.op {
            Op::Read { sectors, .. } | Op::Write { sectors, .. } => sectors * SECTOR_BYTES as u32,
            _ => 0,
        }
    }

    #[inline]
    fn into_returned(self, answer: Answer) -> (Arc<ReturnQueue>, ReturnedRequest) {
        let part = self.truncated && answer == Answer::Done;
        let answer = if part {
            Answer::Part(self.bytes())
        } else {
            answer
        };
        let buf = match self.data {
            Data::Buffer(buf) => Some(buf),
            _ => None,
        };
        let tag = self.header.tag;
        (self.return_queue, ReturnedRequest { tag, answer, buf })
    }

    fn send(self, answer: Answer) {
        let (return_queue, returned) = self.into_returned(answer);
        return_queue.push(returned);
    }
}

/// A request of the kernel. It is answered exactly once.
pub struct Request {
    /// There until the value is answered or dropped.
    inner: ManuallyDrop<Inner>,
}

impl Request {
    #[inline]
    pub(crate) fn new(
        return_queue: Arc<ReturnQueue>,
        header: RequestHeader,
        data: Data,
    ) -> Request {
        Request {
            inner: ManuallyDrop::new(Inner {
                return_queue,
                header,
                truncated: false,
                data,
            }),
        }
    }

    /// The caller answers it.
    #[inline]
    fn into_inner(self) -> Inner {
        let mut request = ManuallyDrop::new(self);
        // SAFETY: `request` is not dropped, and not looked at after this.
        unsafe { ManuallyDrop::take(&mut request.inner) }
    }

    /// The operation. Addresses and lengths are in sectors of 512 bytes.
    pub fn op(&self) -> &Op {
        &self.inner.header.op
    }

    /// Its tag in the hardware queue; no other request has it until this one is answered.
    pub fn tag(&self) -> u16 {
        self.inner.header.tag
    }

    /// Bytes that a read or write carries; zero for the others.
    pub fn bytes(&self) -> u32 {
        self.inner.bytes()
    }

    /// Makes a read or write shorter: only its first `bytes`, whole sectors and not none, are
    /// served. What happens to the rest is said at [`Answer::Part`]. Any other length has no effect.
    pub fn limit(&mut self, bytes: u32) {
        let fewer = bytes / SECTOR_BYTES as u32;
        if fewer == 0 {
            return;
        }
        let inner = &mut *self.inner;
        match &mut inner.header.op {
            Op::Read { sectors, .. } | Op::Write { sectors, .. } if fewer < *sectors => {
                *sectors = fewer;
            }
            _ => return,
        }
        inner.truncated = true;
        if let Data::Buffer(buf) = &mut inner.data {
            buf.truncate(fewer as usize * SECTOR_BYTES as usize);
        }
    }

    /// Where its bytes are.
    pub fn data(&self) -> &Data {
        &self.inner.data
    }

    /// Offset on the character device of its first byte, where the device lets it be copied there
    /// (also where the bytes are in a buffer slot).
    pub fn window(&self) -> Option<u64> {
        let queue = self.inner.return_queue.user_copy_queue?;
        (self.bytes() > 0).then(|| sys::data_offset(queue, self.tag(), 0))
    }

    /// Its bytes, or room for them.
    pub fn buffer_mut(&mut self) -> Option<&mut Buf> {
        match &mut self.inner.data {
            Data::Buffer(buf) => Some(buf),
            _ => None,
        }
    }

    /// Takes its buffer away, to move bytes. It is given back before the request is answered if
    /// it is a read; a device in copy mode wants it back for the next request in any case, and
    /// maps a new one where it does not come, which is dear.
    pub fn take_buffer(&mut self) -> Option<Buf> {
        match std::mem::replace(&mut self.inner.data, Data::None) {
            Data::Buffer(buf) => Some(buf),
            other => {
                self.inner.data = other;
                None
            }
        }
    }

    /// Gives it a buffer: with the bytes of a read, or the one that was taken.
    pub fn set_buffer(&mut self, buf: Buf) {
        self.inner.data = Data::Buffer(buf);
    }

    /// Answers it from any thread and wakes its queue. On the queue's own thread
    /// [`crate::queue::QueueCx::answer`] is the shorter way.
    pub fn answer(self, answer: Answer) {
        self.into_inner().send(answer);
    }

    /// Answers that all of it was done.
    pub fn complete(self) {
        self.answer(Answer::Done);
    }

    /// Answers that it failed with this errno (positive).
    pub fn fail(self, errno: i32) {
        self.answer(Answer::Failed(errno));
    }

    /// Answers it on the thread of the queue with this return queue. If the request is of that queue
    /// it is returned at once, otherwise it goes to its own return queue.
    #[inline]
    pub(crate) fn answer_on(
        self,
        return_queue: &Arc<ReturnQueue>,
        answer: Answer,
    ) -> Option<ReturnedRequest> {
        let (own, returned) = self.into_inner().into_returned(answer);
        if Arc::ptr_eq(&own, return_queue) {
            return Some(returned);
        }
        own.push(returned);
        None
    }
}

impl Drop for Request {
    #[cold]
    fn drop(&mut self) {
        // SAFETY: the value is being dropped, and `inner` is not looked at through it after this.
        let inner = unsafe { ManuallyDrop::take(&mut self.inner) };
        inner.return_queue.counters.count_dropped();
        inner.send(Answer::Failed(libc::EIO));
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

    fn request(return_queue: &Arc<ReturnQueue>, tag: u16) -> Request {
        let header = RequestHeader {
            tag,
            op: Op::Read {
                sector: 0,
                sectors: 8,
            },
        };
        Request::new(Arc::clone(return_queue), header, Data::None)
    }

    fn answers(return_queue: &ReturnQueue) -> Vec<(u16, Answer)> {
        let mut returned = Vec::new();
        return_queue.swap(&mut returned);
        returned.iter().map(|one| (one.tag, one.answer)).collect()
    }

    #[test]
    fn a_dropped_request_fails_and_is_counted() {
        let return_queue = ReturnQueue::new(Arc::default(), None);
        drop(request(&return_queue, 3));
        assert_eq!(answers(&return_queue), [(3, Answer::Failed(libc::EIO))]);
        assert_eq!(return_queue.counters.stats().dropped, 1);
    }

    #[test]
    fn an_answered_request_returns_once() {
        let return_queue = ReturnQueue::new(Arc::default(), None);
        request(&return_queue, 1).complete();
        request(&return_queue, 2).fail(28);
        assert_eq!(
            answers(&return_queue),
            [(1, Answer::Done), (2, Answer::Failed(28))]
        );
        assert_eq!(return_queue.counters.stats().dropped, 0);
    }

    #[test]
    fn a_truncated_request_is_done_in_part() {
        let return_queue = ReturnQueue::new(Arc::default(), None);
        let mut one = request(&return_queue, 1);
        one.limit(1000);
        assert_eq!(one.bytes(), 512);
        one.limit(4096);
        one.limit(0);
        one.complete();
        let mut whole = request(&return_queue, 2);
        whole.limit(4096);
        whole.complete();
        assert_eq!(
            answers(&return_queue),
            [(1, Answer::Part(512)), (2, Answer::Done)]
        );
    }

    #[test]
    fn a_request_answered_through_another_queue_goes_home() {
        let (return_queue, other) = (
            ReturnQueue::new(Arc::default(), None),
            ReturnQueue::new(Arc::default(), None),
        );
        let away = request(&return_queue, 5).answer_on(&other, Answer::Done);
        assert!(away.is_none());
        assert_eq!(answers(&return_queue), [(5, Answer::Done)]);
        let own = request(&return_queue, 6).answer_on(&return_queue, Answer::Part(512));
        assert_eq!(own.map(|one| one.answer), Some(Answer::Part(512)));
        assert!(answers(&return_queue).is_empty());
    }

    #[test]
    fn a_request_can_be_answered_on_another_thread() {
        let return_queue = ReturnQueue::new(Arc::default(), None);
        let one = request(&return_queue, 9);
        std::thread::spawn(move || one.complete()).join().unwrap();
        assert_eq!(answers(&return_queue), [(9, Answer::Done)]);
    }
}
