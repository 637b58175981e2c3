//! A connection: a source on one reactor, from the greeting to the close.
//!
//! States: *handshake* (one option at a time, under a deadline), *opening* (the control thread
//! makes the hardware queue, which may sleep), *serving*. Ending has two steps: *draining* (no
//! new requests, what is outstanding is answered) and *cut* (the socket is shut, parked requests
//! end, and the connection leaves once no bytes move for it any more). A client that breaks the
//! protocol is drained: its earlier requests are answered, then it is closed.
//!
//! Back-pressure: nothing is received while the client has as many requests or payload bytes
//! outstanding as it may; a reply counts until the socket has taken it. Meanwhile the peer's end
//! is watched for by itself.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Instant;

use blkmq::io::Backend;
use blkmq::{Kick, Queue};
use reactor::{Completion, Cx, FileIndex, Op, OpId, Source, Token};

use super::Shared;
use super::export::{Export, Lookup};
use super::intake::{Intake, Took};
use super::lane::{Ended, Job, Lane, weight};
use super::outbox::{Outbox, Weight};
use super::registry::Membership;
use super::token;
use crate::codec::{Decoder, Event, Handshake, Progress, Violation, wire};

/// Keys of a connection's wakers.
const KEY_RUN: u64 = 0;
const KEY_OPENED: u64 = 1;
pub(super) const KEY_DRAIN: u64 = 2;
pub(super) const KEY_CUT: u64 = 3;

/// Where the control thread leaves a finished queue.
type Delivery<B> = Arc<Mutex<Option<Queue<Job<B>>>>>;

enum Phase<B: Backend> {
    Handshake(Handshake),
    Opening {
        export: Arc<Export<B>>,
        delivery: Delivery<B>,
        ended: Arc<Ended<B>>,
    },
    Serving,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    No,
    Draining,
    Cut,
}

/// Calls the connection's run when its queue is kicked.
struct Doorbell(Waker);

impl Kick for Doorbell {
    fn kick(&self) {
        self.0.wake_by_ref();
    }
}

pub(super) struct Connection<B: Backend> {
    shared: Arc<Shared<B>>,
    membership: Membership,
    socket: FileIndex,
    phase: Phase<B>,
    ending: Ending,
    intake: Intake,
    decoder: Decoder,
    lane: Option<Lane<B>>,
    out: Outbox,
    /// Requests and bytes from header to sent reply.
    outstanding: Weight,
    handshake_timer: Option<OpId>,
    hangup_watched: bool,
    ticking: bool,
    began: Instant,
}

impl<B: Backend> Connection<B> {
    pub(super) fn new(cx: &mut Cx<'_>, shared: Arc<Shared<B>>, socket: OwnedFd) -> Self {
        let membership = shared.registry.join(cx.waker(KEY_DRAIN), cx.waker(KEY_CUT));
        Connection {
            membership,
            socket: cx.register(socket),
            phase: Phase::Handshake(Handshake::new()),
            ending: Ending::No,
            intake: Intake::new(),
            decoder: Decoder::new(),
            lane: None,
            out: Outbox::default(),
            outstanding: Weight::default(),
            handshake_timer: None,
            hangup_watched: false,
            ticking: false,
            began: Instant::now(),
            shared,
        }
    }

    /// The end of every call: whatever became possible is done.
    fn settle(&mut self, cx: &mut Cx<'_>) {
        if let Some(lane) = &mut self.lane {
            lane.answer_ended(&mut self.out);
        }
        if self.ending < Ending::Cut {
            if self.ending == Ending::Draining && self.outstanding.requests == 0 && self.quiet() {
                self.cut(cx);
            } else {
                if self.out.wants_flush() {
                    // One send for all that this turn brings.
                    cx.request_turn();
                }
                self.watch(cx);
            }
        }
        if self.ending == Ending::Cut && !self.lane.as_ref().is_some_and(Lane::is_moving) {
            if let Some(mut lane) = self.lane.take() {
                lane.close_files(cx);
            }
            cx.detach();
        }
    }

    fn quiet(&self) -> bool {
        self.out.is_idle() && !self.lane.as_ref().is_some_and(Lane::is_moving)
    }

    fn drain(&mut self) {
        self.ending = self.ending.max(Ending::Draining);
    }

    fn cut(&mut self, cx: &mut Cx<'_>) {
        if self.ending == Ending::Cut {
            return;
        }
        self.ending = Ending::Cut;
        cx.shutdown(self.socket);
        cx.close(self.socket);
        if let Some(lane) = &mut self.lane {
            lane.retire();
            lane.answer_ended(&mut self.out);
        }
    }

    /// Cuts the connection unless the stream goes on.
    fn cut_unless(&mut self, cx: &mut Cx<'_>, goes_on: bool) {
        if !goes_on {
            self.cut(cx);
        }
    }

    fn is_full(&self) -> bool {
        let options = &self.shared.options;
        self.outstanding.requests >= usize::from(options.requests_max)
            || self.outstanding.bytes >= options.bytes_max
    }

    /// Watches for the peer's end where no receive would tell it, and keeps the clock of parked
    /// requests.
    fn watch(&mut self, cx: &mut Cx<'_>) {
        let listening = self.intake.is_receiving();
        if !listening && !self.hangup_watched {
            self.hangup_watched = true;
            let events = libc::POLLRDHUP as u32;
            cx.submit(
                token::HANGUP,
                Op::Poll {
                    file: self.socket,
                    events,
                },
            );
        }
        if self.outstanding.requests > 0 && !self.ticking {
            self.ticking = true;
            cx.submit(
                token::TICK,
                Op::Timeout {
                    after: self.shared.options.tick,
                },
            );
        }
    }

    fn handshake(&mut self, cx: &mut Cx<'_>) {
        // One answer at a time: a client that does not read is not served on.
        while self.ending == Ending::No && self.out.is_idle() {
            let Phase::Handshake(handshake) = &mut self.phase else {
                return;
            };
            let Some(input) = self.intake.unread(cx, self.socket) else {
                return;
            };
            let mut answer = Vec::new();
            let lookup = Lookup(&*self.shared.exports);
            let (consumed, progress) = handshake.receive(input, &lookup, &mut answer);
            self.intake.consume(consumed);
            self.out.push_bytes(&answer);
            match progress {
                Progress::NeedMore => {}
                Progress::Close(reason) => {
                    tracing::debug!(%reason, "handshake ended");
                    self.drain();
                }
                Progress::Transmission(export) => return self.open(cx, export),
            }
        }
    }

    /// Has the control thread make the hardware queue: adding one takes the device's mutex,
    /// which a reactor thread never does (R4).
    fn open(&mut self, cx: &mut Cx<'_>, export: Arc<Export<B>>) {
        if let Some(timer) = self.handshake_timer.take() {
            cx.cancel(timer);
        }
        self.membership.name(&export.name);
        let delivery = Delivery::<B>::default();
        let ended = Arc::new(Ended::new());
        let (to, device) = (Arc::clone(&delivery), Arc::clone(&export.device));
        let completer = Arc::clone(&ended);
        let doorbell = Arc::new(Doorbell(cx.waker(KEY_RUN)));
        let opened = cx.waker(KEY_OPENED);
        let depth = self.shared.options.requests_max;
        let made = self.shared.control.run(move || {
            let queue = device.add_queue(depth, completer, doorbell);
            *to.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
            opened.wake();
        });
        if !made {
            return self.cut(cx);
        }
        self.phase = Phase::Opening {
            export,
            delivery,
            ended,
        };
    }

    fn opened(&mut self, cx: &mut Cx<'_>) {
        let Phase::Opening {
            export,
            delivery,
            ended,
        } = &self.phase
        else {
            return;
        };
        let queue = delivery
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(queue) = queue else { return };
        if self.ending != Ending::Cut {
            let (export, ended) = (Arc::clone(export), Arc::clone(ended));
            self.lane = Some(Lane::new(cx, export, queue, ended));
        }
        self.phase = Phase::Serving;
    }

    /// A client that does not send a payload it announced, or does not take its replies, keeps
    /// buffers. It may, as long as nobody else wants them.
    fn let_go_if_stalled(&mut self, cx: &mut Cx<'_>) {
        let stalled = self.intake.payload_stalled().max(self.out.stalled());
        if stalled > self.shared.options.stalled_within && cx.has_buffer_waiters() {
            tracing::warn!(
                ?stalled,
                "a client that stalls is cut off: others need its buffers"
            );
            self.cut(cx);
        }
    }

    /// Takes requests from what was received until something must be waited for.
    fn serve(&mut self, cx: &mut Cx<'_>) {
        if self.lane.is_none() || !matches!(self.phase, Phase::Serving) {
            return;
        }
        // A payload under way is part of what is outstanding, and is finished in a drain too.
        while self.ending == Ending::No
            || (self.ending == Ending::Draining && self.intake.expects_payload())
        {
            match self.intake.fill_payload(cx, self.socket, &mut self.decoder) {
                Took::Waiting => return,
                Took::Payload(request, buf) => {
                    if let Some(lane) = &mut self.lane {
                        lane.admit(cx, &mut self.out, request, Some(buf));
                    }
                    continue;
                }
                Took::NoPayload => {}
            }
            if self.is_full() || self.ending != Ending::No {
                return;
            }
            let Some(lane) = &mut self.lane else { return };
            let limits = lane.export.backend.geometry();
            let Some(input) = self.intake.unread(cx, self.socket) else {
                return;
            };
            let (consumed, event) = self.decoder.next(input, &limits);
            self.intake.consume(consumed);
            self.event(cx, event);
        }
    }

    fn event(&mut self, cx: &mut Cx<'_>, event: Event) {
        match event {
            Event::NeedMore | Event::Payload { .. } => {}
            Event::Request(request) => {
                let weight = weight(&request);
                self.outstanding.requests += weight.requests;
                self.outstanding.bytes += weight.bytes;
                if self.decoder.payload_left() > 0 {
                    self.intake.expect_payload(cx, request);
                } else if let Some(lane) = &mut self.lane {
                    lane.admit(cx, &mut self.out, request, None);
                }
            }
            Event::Refused(refusal) => self.refuse(refusal.cookie, refusal.error),
            Event::Disconnect => self.drain(),
            Event::Violated(violation) => {
                tracing::debug!(%violation, "client breaks the protocol");
                if let Violation::Oversized { cookie, .. } = violation {
                    self.refuse(cookie, wire::EINVAL);
                }
                self.drain();
            }
        }
    }

    fn refuse(&mut self, cookie: u64, error: u32) {
        let weight = Weight {
            requests: 1,
            bytes: 0,
        };
        self.outstanding.requests += 1;
        self.out.push_reply(cookie, error, None, weight);
    }

    /// Goes on with whatever the phase allows.
    fn advance(&mut self, cx: &mut Cx<'_>) {
        self.handshake(cx);
        self.serve(cx);
        self.settle(cx);
    }

    fn sent(&mut self, cx: &mut Cx<'_>, goes_on: bool) {
        let weight = self.out.sent();
        self.outstanding.requests -= weight.requests;
        self.outstanding.bytes -= weight.bytes;
        self.cut_unless(cx, goes_on);
    }
}

impl<B: Backend> Source for Connection<B> {
    fn on_attached(&mut self, cx: &mut Cx<'_>) {
        let after = self.shared.options.handshake_within;
        self.handshake_timer = Some(cx.submit(token::HANDSHAKE_TIMER, Op::Timeout { after }));
        self.out.push_bytes(&Handshake::greeting());
        self.settle(cx);
    }

    fn on_completion(&mut self, cx: &mut Cx<'_>, token: Token, completion: Completion) {
        if token::is_of_request(token) {
            if let Some(lane) = &mut self.lane {
                match completion {
                    Completion::Buffer(buf) => lane.buffer_granted(cx, &mut self.out, token, buf),
                    other => lane.piece_moved(cx, &mut self.out, token, other),
                }
            }
            return self.settle(cx);
        }
        match (token, completion) {
            (token::RECV, Completion::Recv(buf, result)) => {
                let more = self.intake.received(buf, result);
                self.cut_unless(cx, more);
            }
            (token::PAYLOAD, Completion::Recv(buf, result)) => {
                let more = self.intake.payload_received(buf, result, &mut self.decoder);
                self.cut_unless(cx, more);
            }
            (token::PAYLOAD_BUFFER, Completion::Buffer(buf)) => self.intake.payload_buffer(buf),
            (token::SEND, Completion::Send(_, result)) => self.sent(cx, result.is_ok()),
            (token::HANDSHAKE_TIMER, Completion::Timeout(Ok(()))) => {
                tracing::debug!("client does not finish its handshake");
                self.cut(cx);
            }
            (token::HANGUP, Completion::Poll(result)) => {
                self.hangup_watched = false;
                // A receive in flight tells the end after the bytes before it.
                if result.is_ok() && !self.intake.is_receiving() {
                    self.cut(cx);
                }
            }
            (token::TICK, _) => {
                self.ticking = false;
                self.let_go_if_stalled(cx);
                if let Some(lane) = &mut self.lane {
                    lane.expire(self.began.elapsed());
                }
            }
            _ => {}
        }
        self.advance(cx);
    }

    fn on_wake(&mut self, cx: &mut Cx<'_>, key: u64) {
        match key {
            KEY_RUN => {
                if let Some(lane) = &mut self.lane {
                    lane.run(cx, &mut self.out);
                }
                return self.settle(cx);
            }
            KEY_OPENED => self.opened(cx),
            KEY_DRAIN => self.drain(),
            KEY_CUT => self.cut(cx),
            _ => {}
        }
        self.advance(cx);
    }

    fn on_turn(&mut self, cx: &mut Cx<'_>) {
        if self.ending < Ending::Cut {
            self.out.flush(cx, self.socket, token::SEND);
        }
    }

    fn on_stop(&mut self, cx: &mut Cx<'_>) {
        self.drain();
        self.settle(cx);
    }
}

impl<B: Backend> fmt::Debug for Connection<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("ending", &self.ending)
            .field("outstanding", &self.outstanding)
            .finish_non_exhaustive()
    }
}
