//! How results go back to the driver, and what becomes of a command that it refuses.
//!
//! Every request that came gets exactly one result. Only a result that the driver would understand is
//! given: what a handler says that makes no sense is EIO, and is counted.

use std::time::Duration;

use blkmq::io::SECTOR_BYTES;
use reactor::{Buf, Op, Port};

use super::leaving::Leaving;
use super::{Hw, Kind, Sent, State, token};
use crate::request::{Answer, Returned};
use crate::sys;

/// A result that was refused this often becomes EIO.
const REFUSALS_MAX: u8 = 3;
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Hw {
    /// Answers a request that the handler never sees. EIO says that the driver asked for what makes no
    /// sense.
    #[cold]
    pub(super) fn refuse<P: Port>(&mut self, port: &mut P, tag: u16, errno: i32) {
        if errno == libc::EIO {
            self.counters.faults.one();
        }
        self.give(port, tag, -errno, None);
    }

    /// Takes a request's pages out of the slot that it was put into alone, where it was.
    #[cold]
    pub(super) fn empty_slot<P: Port>(&mut self, port: &mut P, tag: u16) {
        if let Some(slot) = self.tags.of(tag).slot.take() {
            let command = self
                .driver()
                .plain(sys::IO_UNREGISTER_BUFFER, tag, 0, u64::from(slot));
            port.submit(token::own(Kind::Unregister, slot), Op::Command(command));
        }
    }

    /// The driver did not take a command: the tag is ours, and its command is to be sent again.
    #[cold]
    pub(super) fn refused<P: Port>(&mut self, port: &mut P, tag: u16, raw: i32) {
        self.counters.rearms.one();
        let of = self.tags.of(tag);
        of.refused = of.refused.saturating_add(1);
        let refused = of.refused;
        if let Sent::Commit { result } = &mut of.sent
            && (refused > REFUSALS_MAX || raw == -libc::ENOMEM)
            && *result != -libc::EIO
        {
            *result = -libc::EIO;
            self.counters.commits_lost.one();
        }
        if refused == 1 {
            let (queue, sent) = (self.queue, of.sent);
            tracing::warn!(
                queue,
                tag,
                ?sent,
                errno = -raw,
                "the driver refused a command"
            );
            if sent == Sent::Fetch {
                self.watch.fetch_failed(self.queue, -raw);
            }
        }
        if self.leaving == Leaving::Stopping && self.tags.of(tag).sent == Sent::Fetch {
            return self.tags.set(tag, State::Left);
        }
        self.tags.set(tag, State::Pausing);
        let after = PAUSE_MIN * (1 << u32::from(refused.min(11) - 1));
        let after = after.min(PAUSE_MAX);
        port.submit(token::own(Kind::Pause, tag), Op::Timeout { after });
    }

    /// The pause is over.
    pub(in crate::queue) fn again<P: Port>(&mut self, port: &mut P, tag: u16) {
        if self.tags.state(tag) == State::Pausing {
            self.send(port, tag);
        }
    }

    /// An answered request.
    #[inline(always)]
    pub(in crate::queue) fn answered<P: Port>(&mut self, port: &mut P, returned: Returned) {
        let Returned { tag, answer, buf } = returned;
        let of = self.tags.of(tag);
        debug_assert_eq!(of.state, State::Served, "answered once");
        if of.state != State::Served {
            return;
        }
        if answer == Answer::Abandoned {
            return self.abandoned(port, tag, buf);
        }
        let (op, bytes) = (of.op, of.bytes);
        let result = self.result((op, bytes), answer, buf.as_ref());
        self.give(port, tag, result, buf);
    }

    #[cold]
    fn abandoned<P: Port>(&mut self, port: &mut P, tag: u16, buf: Option<Buf>) {
        self.mode.keep(tag, buf);
        self.leave_tag(port, tag);
    }

    /// What the driver is told of an answer.
    #[inline(always)]
    fn result(&self, (op, bytes): (u8, u32), answer: Answer, buf: Option<&Buf>) -> i32 {
        let moved = match answer {
            Answer::Done => bytes,
            Answer::Part(part) => {
                let sane =
                    part > 0 && part <= bytes && u64::from(part).is_multiple_of(SECTOR_BYTES);
                if !sane {
                    self.counters.faults.one();
                    return -libc::EIO;
                }
                part
            }
            Answer::Failed(errno @ 1..=4095) => return -errno,
            Answer::Failed(_) | Answer::Abandoned => return -libc::EIO,
        };
        let brought = buf.map_or(0, |buf| buf.len());
        let needs = op == sys::OP_READ && self.mode.reads_carry_buffers();
        if needs && brought < moved as usize {
            self.counters.faults.one();
            return -libc::EIO;
        }
        moved as i32
    }

    /// Gives a result to the driver, and the tag with it.
    #[inline(always)]
    pub(super) fn give<P: Port>(&mut self, port: &mut P, tag: u16, result: i32, buf: Option<Buf>) {
        self.counters.commits.one();
        let of = self.tags.of(tag);
        of.sent = Sent::Commit { result };
        of.refused = 0;
        if of.slot.is_some() {
            // Before the commit: what is in a slot keeps its request from ending.
            self.empty_slot(port, tag);
        }
        self.commit(port, tag, result, buf);
    }
}
