//! How results go back to the driver, and how a refused command is issued again.
//!
//! Every request gets exactly one result. A result that the driver would misunderstand is never
//! committed: an answer that makes no sense becomes EIO, and is counted.

use std::time::Duration;

use blkmq::io::SECTOR_BYTES;
use reactor::{Buf, Op, Port};

use super::HwQueue;
use super::phase::Phase;
use crate::queue::request::{Answer, ReturnedRequest};
use crate::queue::tags::{LastCommand, TagState};
use crate::queue::token::{self, OpKind};
use crate::sys;

/// A result that the driver refused this often becomes EIO.
const REFUSALS_MAX: u8 = 3;
const BACKOFF_MIN: Duration = Duration::from_millis(1);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

impl HwQueue {
    /// Fails a request that the handler does not see. EIO stands for a request that makes no sense.
    #[cold]
    pub(super) fn reject<P: Port>(&mut self, port: &mut P, tag: u16, errno: i32) {
        if errno == libc::EIO {
            self.counters.faults.increment();
        }
        self.commit(port, tag, -errno, None);
    }

    /// Takes a request's pages out of its own slot, if it has one.
    #[cold]
    pub(super) fn unregister_slot<P: Port>(&mut self, port: &mut P, tag: u16) {
        if let Some(slot) = self.tags.of(tag).slot.take() {
            let command = self
                .commands()
                .build(sys::IO_UNREGISTER_BUFFER, tag, 0, u64::from(slot));
            port.submit(
                token::queue_token(OpKind::Unregister, slot),
                Op::Command(command),
            );
        }
    }

    /// The driver refused a command: the server has the tag, and issues the command again later.
    #[cold]
    pub(super) fn on_refused<P: Port>(&mut self, port: &mut P, tag: u16, raw: i32) {
        self.counters.retries.increment();
        let of = self.tags.of(tag);
        of.refusals = of.refusals.saturating_add(1);
        let refusals = of.refusals;
        if let LastCommand::Commit { result } = &mut of.last_command
            && (refusals > REFUSALS_MAX || raw == -libc::ENOMEM)
            && *result != -libc::EIO
        {
            *result = -libc::EIO;
            self.counters.commits_lost.increment();
        }
        if refusals == 1 {
            let (device, queue, command) = (self.device, self.queue, of.last_command);
            tracing::warn!(
                device,
                queue,
                tag,
                ?command,
                errno = -raw,
                "ublk: the driver refused a command; it is issued again after a pause"
            );
            if command == LastCommand::Fetch {
                self.observer.on_fetch_failed(self.queue, tag, -raw);
            }
        }
        if self.phase == Phase::Stopping && self.tags.of(tag).last_command == LastCommand::Fetch {
            return self.tags.set(tag, TagState::Abandoned);
        }
        self.tags.set(tag, TagState::Backoff);
        let after = BACKOFF_MIN * (1 << u32::from(refusals.min(11) - 1));
        let after = after.min(BACKOFF_MAX);
        port.submit(
            token::queue_token(OpKind::RetryTimer, tag),
            Op::Timeout { after },
        );
    }

    /// The pause after a refusal is over.
    pub(in crate::queue) fn on_retry_timer<P: Port>(&mut self, port: &mut P, tag: u16) {
        if self.tags.state(tag) == TagState::Backoff {
            self.reissue(port, tag);
        }
    }

    /// A request was answered: commits its result.
    #[inline(always)]
    pub(in crate::queue) fn on_answered<P: Port>(
        &mut self,
        port: &mut P,
        returned: ReturnedRequest,
    ) {
        let ReturnedRequest { tag, answer, buf } = returned;
        let of = self.tags.of(tag);
        debug_assert_eq!(of.state, TagState::WithHandler, "answered once");
        if of.state != TagState::WithHandler {
            return;
        }
        if answer == Answer::Abandoned {
            return self.on_abandoned(port, tag, buf);
        }
        let (op, bytes) = (of.op, of.bytes);
        let result = self.result_code(op, bytes, answer, buf.as_ref());
        self.commit(port, tag, result, buf);
    }

    #[cold]
    fn on_abandoned<P: Port>(&mut self, port: &mut P, tag: u16, buf: Option<Buf>) {
        self.mode.put_back(tag, buf);
        self.abandon_tag(port, tag);
    }

    /// The result that is committed for an answer: bytes, or a negated errno.
    #[inline(always)]
    fn result_code(&self, op: u8, bytes: u32, answer: Answer, buf: Option<&Buf>) -> i32 {
        let moved = match answer {
            Answer::Done => bytes,
            Answer::Part(part) => {
                let is_valid =
                    part > 0 && part <= bytes && u64::from(part).is_multiple_of(SECTOR_BYTES);
                // Linux 7.3 takes any other short result for the whole request, and the rest
                // would be lost in silence. No feature tells which kernels ask for it again.
                let is_reissued = op == sys::OP_READ && self.mode.is_read_answered_with_buffer();
                if !is_valid || (part < bytes && !is_reissued) {
                    self.counters.faults.increment();
                    return -libc::EIO;
                }
                part
            }
            Answer::Failed(errno @ 1..=4095) => return -errno,
            Answer::Failed(_) | Answer::Abandoned => return -libc::EIO,
        };
        let filled = buf.map_or(0, |buf| buf.len());
        let needs_buffer = op == sys::OP_READ && self.mode.is_read_answered_with_buffer();
        if needs_buffer && filled < moved as usize {
            self.counters.faults.increment();
            return -libc::EIO;
        }
        moved as i32
    }

    /// Commits a result, which gives the tag back to the driver.
    #[inline(always)]
    pub(super) fn commit<P: Port>(
        &mut self,
        port: &mut P,
        tag: u16,
        result: i32,
        buf: Option<Buf>,
    ) {
        self.counters.commits.increment();
        let of = self.tags.of(tag);
        of.last_command = LastCommand::Commit { result };
        of.refusals = 0;
        if of.slot.is_some() {
            // Before the commit: pages in a slot keep the driver from completing the request.
            self.unregister_slot(port, tag);
        }
        self.issue_commit(port, tag, result, buf);
    }
}
