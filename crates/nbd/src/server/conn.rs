//! A connection: a source on one reactor, from the greeting to the close.
//!
//! States: *handshake* (one option at a time, under a deadline), *opening* (the control thread
//! makes the hardware queue, which may sleep), *serving*; `opening` has what comes before it serves. It ends
//! in two steps: *draining* (no new requests, what is outstanding is answered) and *cut* (the socket is shut,
//! parked requests end, and the connection detaches once no bytes move for it any more). A client that
//! breaks the protocol is drained: its earlier requests are answered, then it is closed. `handover` has the
//! other way to leave: the connection is drained and goes on elsewhere; `parking` how a handshake waits for an
//! export that is being opened.
//!
//! Back-pressure: nothing is received while the client has as many requests or payload bytes
//! outstanding as it may; a reply counts until the socket has taken it. Meanwhile the peer's end
//! is watched for by itself.

mod handover;
mod opening;
mod parking;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use blkmq::io::Backend;
use reactor::{Buf, Completion, Cx, FileIndex, Op, OpId, Source, Token};
use serve::RequestEngine;

use self::parking::Parking;
use super::Shared;
use super::export::Export;
use super::intake::{Intake, PayloadState};
use super::outbox::{Outbox, Weight};
use super::registry::{Membership, Wakers};
use super::tls::ClientIdentity;
use super::token;
use super::transport::{ConnectionCx, EndedRequests, PendingRequest, weight};
use crate::codec::{
    ConnectionState, Decoder, Event, Handshake, ParkEnd, Refusal, Request, Violation, wire,
};

/// Keys of a connection's wakers.
const KEY_RUN: u64 = 0;
const KEY_ENGINE_READY: u64 = 1;
pub(super) const KEY_DRAIN: u64 = 2;
pub(super) const KEY_CUT: u64 = 3;
const KEY_GIVE: u64 = 4;
const KEY_KEEP: u64 = 5;
const KEY_DECIDED: u64 = 6;

/// The request engine of one connection. Each connection has a hardware queue of its own. So a
/// connection that ends takes exactly its own tags and parked requests with it, its depth is the
/// bound on what a client may have outstanding, and no two connections share a dispatch list. The
/// price, a flag per connection that a quiesce must set, is paid on the rare side.
type Engine<B> = RequestEngine<B, PendingRequest>;

/// Where the control thread puts the engine that it made.
type Delivery<B> = Arc<Mutex<Option<Engine<B>>>>;

enum Phase<B: Backend> {
    Handshake(Handshake),
    /// Another server has served it up to here.
    Resuming(Arc<Export<B>>, ConnectionState),
    Opening {
        export: Arc<Export<B>>,
        delivery: Delivery<B>,
        ended: Arc<EndedRequests>,
    },
    Serving,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DrainState {
    No,
    /// It goes on elsewhere, once it is quiet.
    Giving,
    Draining,
    Cut,
    /// The socket is another's.
    Given,
}

/// What a connection serves once its handshake is over.
struct ServeState<B: Backend> {
    export: Arc<Export<B>>,
    engine: Engine<B>,
    ended: Arc<EndedRequests>,
}

pub(super) struct Connection<B: Backend> {
    shared: Arc<Shared<B>>,
    membership: Membership,
    socket: FileIndex,
    phase: Phase<B>,
    ending: DrainState,
    /// The receive in flight was cancelled here.
    is_receive_stopped: bool,
    intake: Intake,
    decoder: Decoder,
    serving: Option<ServeState<B>>,
    outbox: Outbox,
    /// Requests and bytes from header to sent reply.
    outstanding: Weight,
    handshake_timer: Option<OpId>,
    parking: Parking,
    hangup_watched: bool,
    ticking: bool,
    /// Who the client is, once it is known.
    identity: ClientIdentity,
    /// TLS begins once the answer to STARTTLS has left.
    tls_is_due: bool,
}

impl<B: Backend> Connection<B> {
    pub(super) fn new(
        cx: &mut Cx<'_>,
        shared: Arc<Shared<B>>,
        socket: impl Into<Arc<OwnedFd>>,
    ) -> Self {
        let membership = shared.registry.join(Wakers {
            give: cx.waker(KEY_GIVE),
            keep: cx.waker(KEY_KEEP),
            drain: cx.waker(KEY_DRAIN),
            cut: cx.waker(KEY_CUT),
            decided: cx.waker(KEY_DECIDED),
        });
        // One that comes while all are given away is closed before a byte of it is taken.
        let ending = match membership.is_late() {
            true => DrainState::Draining,
            false => DrainState::No,
        };
        Connection {
            membership,
            socket: cx.register(socket),
            phase: Phase::Handshake(Handshake::new(shared.options.tls_state())),
            identity: ClientIdentity::default(),
            tls_is_due: false,
            ending,
            is_receive_stopped: false,
            intake: Intake::new(),
            decoder: Decoder::default(),
            serving: None,
            outbox: Outbox::default(),
            outstanding: Weight::default(),
            handshake_timer: None,
            parking: Parking::default(),
            hangup_watched: false,
            ticking: false,
            shared,
        }
    }

    /// The end of every call: whatever became possible is done.
    fn finish_call(&mut self, cx: &mut Cx<'_>) {
        if let Some(serving) = &self.serving {
            serving.ended.answer_all(&mut self.outbox);
        }
        self.hand_over_if_quiet(cx);
        if self.ending < DrainState::Cut {
            let is_done = self.ending == DrainState::Draining
                && self.outstanding.requests == 0
                && self.is_quiet();
            if is_done && let Some(tls) = self.outbox.tls() {
                tls.close();
            }
            if is_done && self.is_quiet() {
                self.cut(cx);
            } else {
                if self.outbox.wants_flush() {
                    // One send for all that this turn brings.
                    cx.request_turn();
                }
                self.watch(cx);
            }
        }
        if self.ending >= DrainState::Cut && !self.is_moving() {
            if let Some(mut serving) = self.serving.take() {
                serving.engine.close_files(cx);
            }
            cx.detach();
        }
    }

    fn is_moving(&self) -> bool {
        let serving = self.serving.as_ref();
        serving.is_some_and(|serving| serving.engine.is_moving())
    }

    fn is_quiet(&self) -> bool {
        self.outbox.is_idle() && !self.is_moving()
    }

    fn drain(&mut self) {
        self.ending = self.ending.max(DrainState::Draining);
    }

    fn cut(&mut self, cx: &mut Cx<'_>) {
        if self.ending >= DrainState::Cut {
            return;
        }
        self.ending = DrainState::Cut;
        cx.shutdown(self.socket);
        cx.close(self.socket);
        if let Some(serving) = &mut self.serving {
            // Parked requests end, also those that wait for a buffer.
            serving.engine.retire();
            serving.engine.end_buffer_waiters();
            serving.ended.answer_all(&mut self.outbox);
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

    /// Watches for the peer's end where no receive would tell it, and keeps the clock by which a
    /// client that stalls is found.
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

    fn on_received(&mut self, cx: &mut Cx<'_>, buf: Buf, result: io::Result<usize>) {
        let was_stopped = std::mem::take(&mut self.is_receive_stopped)
            && matches!(&result, Err(error) if error.raw_os_error() == Some(libc::ECANCELED));
        match self.intake.on_received(buf, result, self.outbox.tls()) {
            Ok(goes_on) => self.cut_unless(cx, goes_on || was_stopped),
            Err(error) => self.on_tls_broken(&error),
        }
        if matches!(self.phase, Phase::Handshake(_))
            && let Some(tls) = self.outbox.tls()
        {
            self.identity = tls.identity();
        }
    }

    /// A client that does not send a payload it announced, or does not take its replies, keeps
    /// buffers. It may, as long as nobody else wants them.
    fn cut_if_stalled(&mut self, cx: &mut Cx<'_>) {
        let stalled = self
            .intake
            .payload_stalled_for()
            .max(self.outbox.stalled_for());
        if stalled > self.shared.options.stalled_within && cx.has_buffer_waiters() {
            tracing::warn!(
                ?stalled,
                "a client that stalls is cut off: others need its buffers"
            );
            self.cut(cx);
        }
    }

    /// Takes requests from what was received until something must be waited for.
    fn take_requests(&mut self, cx: &mut Cx<'_>) {
        if !matches!(self.phase, Phase::Serving) {
            return;
        }
        // A payload under way is part of what is outstanding, and is finished in a drain too.
        while self.ending == DrainState::No
            || (self.ending < DrainState::Cut && self.intake.expects_payload())
        {
            match self.intake.fill_payload(cx, self.socket, &mut self.decoder) {
                PayloadState::Pending => return,
                PayloadState::Complete(request, buf) => {
                    self.admit(cx, request, Some(buf));
                    continue;
                }
                PayloadState::None => {}
            }
            if self.is_full() || self.ending != DrainState::No {
                return;
            }
            let Some(serving) = &self.serving else {
                return;
            };
            let limits = serving.export.backend.geometry();
            let Some(input) = self.intake.unread(cx, self.socket) else {
                return;
            };
            let (consumed, event) = self.decoder.next(input, &limits);
            self.intake.consume(consumed);
            self.on_event(cx, event);
        }
    }

    fn on_event(&mut self, cx: &mut Cx<'_>, event: Event) {
        match event {
            Event::NeedMore | Event::Payload { .. } => {}
            Event::Request(request) => {
                let weight = weight(&request);
                self.outstanding.requests += weight.requests;
                self.outstanding.bytes += weight.bytes;
                if self.decoder.payload_bytes_left() > 0 {
                    self.intake.expect_payload(cx, request);
                } else {
                    self.admit(cx, request, None);
                }
            }
            Event::Refused(refusal) => self.refuse(refusal),
            Event::Disconnect => self.drain(),
            Event::Violated(violation) => {
                tracing::debug!(%violation, "client breaks the protocol");
                if let Violation::Oversized { to, .. } = violation {
                    let (error, why) = (wire::EINVAL, "a payload is of at most 32 MiB");
                    self.refuse(Refusal { to, error, why });
                }
                self.drain();
            }
        }
    }

    /// Brings a checked request to the engine.
    fn admit(&mut self, cx: &mut Cx<'_>, request: Request, payload: Option<Buf>) {
        if let Some(serving) = &mut self.serving {
            let outbox = &mut self.outbox;
            let request = PendingRequest::new(request, payload, outbox.session().headers);
            serving
                .engine
                .admit(&mut ConnectionCx { cx, outbox }, request);
        }
    }

    fn refuse(&mut self, refusal: Refusal) {
        let Refusal { to, error, why } = refusal;
        self.outstanding.requests += 1;
        self.outbox
            .push_with(|headers, out| headers.push_error(out, to, error, why, None));
        self.outbox.add_weight(Weight {
            requests: 1,
            bytes: 0,
        });
    }

    /// Goes on with whatever the phase allows.
    fn advance(&mut self, cx: &mut Cx<'_>) {
        self.advance_handshake(cx);
        self.take_requests(cx);
        if self.intake.is_at_end() {
            // A payload that is not whole never will be.
            self.cut_unless(cx, !self.intake.expects_payload());
            self.drain();
        }
        self.finish_call(cx);
    }

    fn on_sent(&mut self, cx: &mut Cx<'_>, goes_on: bool) {
        let weight = self.outbox.on_sent();
        self.outstanding.requests -= weight.requests;
        self.outstanding.bytes -= weight.bytes;
        self.cut_unless(cx, goes_on);
    }
}

impl<B: Backend> Source for Connection<B> {
    fn on_attached(&mut self, cx: &mut Cx<'_>) {
        self.begin(cx);
        self.finish_call(cx);
    }

    fn on_completion(&mut self, cx: &mut Cx<'_>, token: Token, completion: Completion) {
        if serve::is_engine_token(token) {
            if let Some(serving) = &mut self.serving {
                let outbox = &mut self.outbox;
                let mut cx = ConnectionCx { cx, outbox };
                serving.engine.on_completion(&mut cx, token, completion);
            }
            return self.finish_call(cx);
        }
        match (token, completion) {
            (token::RECV, Completion::Recv(buf, result)) => self.on_received(cx, buf, result),
            (token::PAYLOAD, Completion::Recv(buf, result)) => {
                let more = self
                    .intake
                    .on_payload_received(buf, result, &mut self.decoder);
                self.cut_unless(cx, more);
            }
            (token::PAYLOAD_BUFFER, Completion::Buffer(buf)) => self.intake.on_payload_buffer(buf),
            (token::SEND, Completion::Send(_, result)) => self.on_sent(cx, result.is_ok()),
            (token::HANDSHAKE_TIMER, Completion::Timeout(Ok(())))
                if self.handshake_timer.take().is_some() =>
            {
                tracing::debug!("client does not finish its handshake");
                self.cut(cx);
            }
            (token::PARK_TIMER, Completion::Timeout(Ok(()))) => self.on_park_timer(cx),
            (token::HANGUP, Completion::Poll(result)) => {
                self.hangup_watched = false;
                // A receive in flight reports the end, after the bytes before it.
                if result.is_ok() && !self.intake.is_receiving() {
                    self.cut(cx);
                }
            }
            (token::TICK, _) => {
                self.ticking = false;
                self.cut_if_stalled(cx);
            }
            _ => {}
        }
        self.advance(cx);
    }

    fn on_wake(&mut self, cx: &mut Cx<'_>, key: u64) {
        match key {
            KEY_RUN => {
                if let Some(serving) = &mut self.serving {
                    let outbox = &mut self.outbox;
                    serving.engine.run(&mut ConnectionCx { cx, outbox });
                }
                return self.finish_call(cx);
            }
            KEY_ENGINE_READY => self.on_engine_ready(cx),
            KEY_DRAIN => {
                self.give_up_parking(cx, ParkEnd::Stopping);
                self.drain();
            }
            KEY_DECIDED => self.on_export_decided(),
            KEY_GIVE => self.begin_handover(cx),
            KEY_KEEP => self.keep(),
            KEY_CUT => self.cut(cx),
            _ => {}
        }
        self.advance(cx);
    }

    fn on_turn(&mut self, cx: &mut Cx<'_>) {
        if self.ending < DrainState::Cut {
            let goes_on = self.outbox.flush(cx, self.socket, token::SEND);
            if !goes_on {
                self.cut(cx);
                self.finish_call(cx);
            }
        }
    }

    fn on_stop(&mut self, cx: &mut Cx<'_>) {
        self.drain();
        self.finish_call(cx);
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
