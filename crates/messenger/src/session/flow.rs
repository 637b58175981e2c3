//! Messages, acknowledgements and keepalives on an open session.

use std::time::Duration;

use super::{Cx, Event, Phase, Session};
use crate::control::{Ack, ControlBody, Done, Keepalive2, Keepalive2Ack, Stamp};
use crate::env::Time;
use crate::fault::{CloseReason, Fault};
use crate::frame::{Frame, Tag};
use crate::message::{Header, Message, Payload, ReceivedMessage};
use crate::outqueue::Next;

const FLAG_MESSAGE_LOSSY: u8 = 1;

impl Session {
    pub(super) fn on_frame(&mut self, cx: &mut Cx<'_>, frame: &Frame) -> Result<(), Fault> {
        match (self.phase, frame.tag) {
            (Phase::Identify { .. }, _) => self.on_answer(cx, frame),
            (Phase::Open, Tag::Message) => self.on_message(cx, frame),
            (Phase::Open, Tag::Ack) => self.on_ack(Ack::from_frame(frame)?.0),
            (Phase::Open, Tag::Done) if self.tracks_done() => {
                self.on_done(cx, Done::from_frame(frame)?.0)
            }
            (Phase::Open, Tag::Keepalive2) => {
                self.keepalive.owed = Some(Keepalive2::from_frame(frame)?.0);
                Ok(())
            }
            (Phase::Open, Tag::Keepalive2Ack) => {
                Keepalive2Ack::from_frame(frame)?;
                if let Some(asked) = self.keepalive.asked.take() {
                    let round_trip = cx.env.now.saturating_sub(asked);
                    self.event(cx, Event::Alive { round_trip });
                }
                Ok(())
            }
            (_, tag) => Err(Fault::Unexpected {
                tag,
                during: "an open session",
            }),
        }
    }

    /// A frame as if it had come, for what a well-behaved encoder cannot make.
    #[cfg(test)]
    pub(crate) fn on_frame_for_test(&mut self, cx: &mut Cx<'_>, frame: &Frame) {
        self.on_frame(cx, frame)
            .expect("the test sends what is allowed");
    }

    /// Whether messages stay counted until the peer's application is done with them.
    pub(super) fn tracks_done(&self) -> bool {
        self.config.done_acks && !self.lossy
    }

    /// I1: what was seen is dropped, a gap is an error, and only what is in order counts.
    fn on_message(&mut self, cx: &mut Cx<'_>, frame: &Frame) -> Result<(), Fault> {
        let header = Header::decode(&frame.segments[0])?;
        if !self.lossy {
            self.on_ack(header.ack_seq)?;
        }
        let seen = header.seq <= self.in_seq;
        if seen && !canary::active!("deliver_twice") {
            return Ok(());
        }
        let expected = self.in_seq + 1;
        if header.seq > expected {
            return Err(Fault::Gap {
                expected,
                got: header.seq,
            });
        }
        self.in_seq = self.in_seq.max(header.seq);
        if frame.aborted {
            return Ok(());
        }
        let [_, front, middle, data] = frame.segments.clone();
        let received = ReceivedMessage {
            seq: header.seq,
            kind: header.kind,
            tid: header.tid,
            priority: header.priority,
            version: header.version,
            compat: header.compat,
            payload: Payload {
                front,
                middle,
                data,
            },
        };
        self.event(cx, Event::Message(received));
        Ok(())
    }

    fn on_ack(&mut self, acked: u64) -> Result<(), Fault> {
        if self.lossy {
            return Ok(());
        }
        if acked > self.out_staged {
            return Err(Fault::AckOfUnsent {
                acked,
                sent: self.out_staged,
            });
        }
        let mut out = std::mem::take(&mut self.acked);
        if acked > self.out_acked {
            self.owner.take_acked(acked, self.tracks_done(), &mut out);
            self.out_acked = acked;
        }
        out.clear();
        self.acked = out;
        Ok(())
    }

    fn on_done(&mut self, cx: &mut Cx<'_>, done: u64) -> Result<(), Fault> {
        // What is done was received.
        self.on_ack(done)?;
        let mut n = 0;
        while let Some(&(seq, tid)) = self.done.waiting.front()
            && seq <= done
        {
            self.done.waiting.pop_front();
            self.event(cx, Event::Done { tid, seq });
            n += 1;
        }
        self.owner.lock().release_count(n);
        Ok(())
    }

    /// Stages frames for the socket until enough wait or there is nothing to send.
    pub(crate) fn fill(&mut self, cx: &mut Cx<'_>) {
        while self.phase == Phase::Open {
            let staged_bytes_max = self.config.staged_bytes_max;
            if self.tx().is_none_or(|tx| tx.len() >= staged_bytes_max) {
                return;
            }
            let Some(frame) = self.next_frame(cx) else {
                return;
            };
            if let Some(io) = self.link.as_mut().and_then(|l| l.io.as_mut()) {
                io.emit(&frame);
            }
        }
    }

    /// The order on the wire: keepalive, message, ack.
    fn next_frame(&mut self, cx: &mut Cx<'_>) -> Option<Frame> {
        if let Some(stamp) = self.keepalive.owed.take() {
            return Some(Keepalive2Ack(stamp).frame());
        }
        if std::mem::take(&mut self.keepalive.on_open) {
            return Some(self.ask_keepalive(cx.env.now));
        }
        if std::mem::take(&mut self.done.owed) {
            return Some(Done(self.done.reported).frame());
        }
        match self.owner.take_next(&mut self.out_seq, !self.lossy) {
            Next::Close => {
                self.close(cx, CloseReason::ByOwner);
                None
            }
            Next::Keepalive => Some(self.ask_keepalive(cx.env.now)),
            Next::Done(_) if !self.tracks_done() => self.next_frame(cx),
            Next::Done(seq) => {
                // The application can only be done with what it was given.
                self.done.reported = self.done.reported.max(seq.min(self.in_seq));
                Some(Done(self.done.reported).frame())
            }
            Next::Message { seq, message } => Some(self.message_frame(seq, &message)),
            Next::Idle => self.ack_frame(),
        }
    }

    fn message_frame(&mut self, seq: u64, message: &Message) -> Frame {
        let first_time = self.done.waiting.back().is_none_or(|(last, _)| *last < seq);
        if self.tracks_done() && first_time && seq > self.out_acked {
            self.done.waiting.push_back((seq, message.tid));
        }
        self.out_staged = seq;
        let header = Header {
            seq,
            tid: message.tid,
            kind: message.kind,
            priority: message.priority,
            version: message.version,
            ack_seq: self.in_seq,
            flags: if self.lossy { FLAG_MESSAGE_LOSSY } else { 0 },
            compat: message.compat,
        };
        self.in_acked = self.in_seq;
        header.frame(message.encode(self.peer_features))
    }

    fn ack_frame(&mut self) -> Option<Frame> {
        if self.lossy || self.in_acked == self.in_seq {
            return None;
        }
        self.in_acked = self.in_seq;
        Some(Ack(self.in_seq).frame())
    }

    fn ask_keepalive(&mut self, now: Time) -> Frame {
        self.keepalive.asked.get_or_insert(now);
        let stamp = Stamp {
            sec: u32::try_from(now.as_secs()).unwrap_or(u32::MAX),
            nsec: now.subsec_nanos(),
        };
        Keepalive2(stamp).frame()
    }

    fn next_answer_time(&self) -> Option<Time> {
        self.keepalive
            .asked
            .map(|at| at + self.config.keepalive_timeout)
    }

    pub(super) fn keepalive_timer(&self) -> Option<Time> {
        match (self.next_answer_time(), self.keepalive.next) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    pub(super) fn keepalive_due(&mut self, cx: &mut Cx<'_>) {
        let now = cx.env.now;
        if self.next_answer_time().is_some_and(|at| at <= now) {
            self.fault(cx, Fault::KeepaliveTimeout);
            return;
        }
        if self.keepalive.next.is_some_and(|at| at <= now) {
            let interval = self.config.keepalive_interval.unwrap_or(Duration::MAX);
            self.keepalive.next = now.checked_add(interval);
            self.keepalive.on_open = true;
            self.flush(cx);
        }
    }
}
