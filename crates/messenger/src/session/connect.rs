//! Making a connection, naming the session on it, and what follows from a fault.

use std::sync::Arc;
use std::time::Duration;

use super::{AttachedLink, Config, Cx, Event, LinkId, Output, Phase, Role, Session, SessionId};
use crate::addr::{AddrKind, EntityAddr};
use crate::control::{
    ClientIdent, ControlBody, FLAG_LOSSY, MissingFeatures, Reconnect, ReconnectOk, Reset, Retry,
    RetryGlobal, ServerIdent,
};
use crate::fault::{CloseReason, Fault};
use crate::frame::{Frame, Tag};
use crate::link::Link;
use crate::outqueue::{OutQueue, State};

/// How often one connection may retry with other sequence numbers.
const ATTEMPTS_MAX: u32 = 4;

/// What an accepting node learned before it knew the session.
#[derive(Debug)]
pub(crate) struct ClaimedLink {
    pub(crate) id: LinkId,
    pub(crate) link: Link,
    pub(crate) global_seq: u64,
}

impl Session {
    /// A session that a peer asked for, on its first connection.
    pub(crate) fn accept(
        id: SessionId,
        config: &Arc<Config>,
        claimed: ClaimedLink,
        ident: &ClientIdent,
        cx: &mut Cx<'_>,
    ) -> Self {
        let lossy = ident.flags & FLAG_LOSSY != 0;
        let remote = claimed.link.remote();
        let (_, owner) = OutQueue::new(config.bounds);
        let mut session = Self::new(id, config, Role::Acceptor { remote }, lossy, owner);
        session.peer_features = ident.supported;
        if !lossy {
            session.client_cookie = ident.cookie;
            session.server_cookie = super::nonzero(cx);
        }
        cx.out.push_back(Output::Accepted {
            session: id,
            queue: Arc::clone(session.queue()),
            peer: claimed.link.peer_name().to_owned(),
            remote,
            lane: ident.addrs.first().map_or(0, |a| a.nonce),
            lossy,
        });
        session.attach_ident(cx, claimed);
        session
    }

    /// The peer names the session anew, because our first answer to it was lost.
    pub(crate) fn attach_ident(&mut self, cx: &mut Cx<'_>, claimed: ClaimedLink) {
        let answer = ServerIdent {
            addrs: vec![our_addr(&claimed.link, 0)],
            global_id: 0,
            global_seq: claimed.global_seq,
            supported: self.config.offered_features(),
            required: self.config.required_features(),
            flags: if self.lossy { FLAG_LOSSY } else { 0 },
            cookie: self.server_cookie,
        };
        self.attach(cx, claimed, 0, &answer.frame());
    }

    /// The peer continues the session; it has received everything up to `msg_seq`.
    pub(crate) fn attach_reconnect(
        &mut self,
        cx: &mut Cx<'_>,
        claimed: ClaimedLink,
        asked: &Reconnect,
    ) -> Result<(), Fault> {
        if asked.msg_seq > self.out_seq {
            cx.out.push_back(Output::HangUp { link: claimed.id });
            return Err(Fault::AckOfUnsent {
                acked: asked.msg_seq,
                sent: self.out_seq,
            });
        }
        self.connect_seq = asked.connect_seq;
        let answer = ReconnectOk(self.in_seq).frame();
        self.attach(cx, claimed, asked.msg_seq, &answer);
        Ok(())
    }

    fn attach(&mut self, cx: &mut Cx<'_>, claimed: ClaimedLink, acked: u64, answer: &Frame) {
        if self.link.is_some() {
            self.detach(cx, Fault::Replaced);
        }
        self.peer_global_seq = claimed.global_seq;
        self.peer_name = claimed.link.peer_name().to_owned();
        self.role = Role::Acceptor {
            remote: claimed.link.remote(),
        };
        let mut link = claimed.link;
        link.emit(answer);
        self.link = Some(AttachedLink {
            id: claimed.id,
            io: Some(link),
        });
        self.forget_acked(acked);
        self.become_open(cx);
    }

    /// Whether a peer that names itself anew with this cookie may have this session: it has never
    /// got an answer, so nothing can have been exchanged.
    pub(crate) fn is_unanswered(&self, cookie: u64) -> bool {
        self.client_cookie == cookie && self.in_seq == 0 && self.connect_seq == 0
    }

    pub(crate) fn has_cookies(&self, client: u64, server: u64) -> bool {
        !self.lossy && self.client_cookie == client && self.server_cookie == server
    }

    pub(crate) fn peer_global_seq(&self) -> u64 {
        self.peer_global_seq
    }

    pub(crate) fn connect_seq(&self) -> u64 {
        self.connect_seq
    }

    pub(super) fn dial(&mut self, cx: &mut Cx<'_>) {
        cx.counters.links += 1;
        let id = LinkId(cx.counters.links);
        let addr = self.remote();
        self.link = Some(AttachedLink { id, io: None });
        self.phase = Phase::Dialing {
            deadline: cx.env.now + self.config.handshake_timeout,
        };
        cx.out.push_back(Output::Dial { link: id, addr });
    }

    /// The connection is made: the handshake begins.
    pub(crate) fn on_connected(&mut self, cx: &mut Cx<'_>) {
        let remote = self.remote();
        let Role::Initiator {
            target,
            credentials,
        } = &self.role
        else {
            return;
        };
        let Some(link) = self.link.as_mut().filter(|l| l.io.is_none()) else {
            return;
        };
        link.io = Some(Link::connecting(
            &mut cx.env,
            credentials,
            target.global_id,
            remote,
        ));
        self.phase = Phase::Handshake {
            deadline: cx.env.now + self.config.handshake_timeout,
        };
        self.flush(cx);
    }

    /// The peer is authenticated: names the session, new or old.
    pub(super) fn identify(&mut self, cx: &mut Cx<'_>) -> Result<(), Fault> {
        let deadline = cx.env.now + self.config.handshake_timeout;
        cx.counters.global_seq += 1;
        self.connect_seq += u64::from(self.server_cookie != 0);
        self.phase = Phase::Identify {
            deadline,
            attempts: 0,
        };
        self.ask(cx);
        Ok(())
    }

    fn ask(&mut self, cx: &mut Cx<'_>) {
        let Role::Initiator { target, .. } = &self.role else {
            return;
        };
        let Some(link) = self.link.as_mut().and_then(|l| l.io.as_mut()) else {
            return;
        };
        let addrs = vec![our_addr(link, target.lane)];
        let global_seq = cx.counters.global_seq;
        let global_id = link.global_id().max(target.global_id);
        let frame = if self.server_cookie == 0 {
            let ident = ClientIdent {
                addrs,
                target: target.addr,
                global_id: i64::try_from(global_id).unwrap_or(0),
                global_seq,
                supported: self.config.offered_features(),
                required: self.config.required_features(),
                flags: if self.lossy { FLAG_LOSSY } else { 0 },
                cookie: self.client_cookie,
            };
            ident.frame()
        } else {
            let reconnect = Reconnect {
                addrs,
                client_cookie: self.client_cookie,
                server_cookie: self.server_cookie,
                global_seq,
                connect_seq: self.connect_seq,
                msg_seq: self.in_seq,
            };
            reconnect.frame()
        };
        link.emit(&frame);
    }

    /// An answer to ident or reconnect.
    pub(super) fn on_answer(&mut self, cx: &mut Cx<'_>, frame: &Frame) -> Result<(), Fault> {
        let reconnecting = self.server_cookie != 0;
        match frame.tag {
            Tag::ServerIdent if !reconnecting => {
                self.on_server_ident(cx, &ServerIdent::from_frame(frame)?)
            }
            Tag::SessionReconnectOk if reconnecting => {
                let ReconnectOk(acked) = ReconnectOk::from_frame(frame)?;
                if acked > self.out_seq {
                    return Err(Fault::AckOfUnsent {
                        acked,
                        sent: self.out_seq,
                    });
                }
                self.forget_acked(acked);
                self.become_open(cx);
                Ok(())
            }
            Tag::SessionRetry if reconnecting => {
                let Retry(theirs) = Retry::from_frame(frame)?;
                self.connect_seq = self.connect_seq.max(theirs) + 1;
                self.ask_again(cx)
            }
            Tag::SessionRetryGlobal => {
                let RetryGlobal(theirs) = RetryGlobal::from_frame(frame)?;
                cx.counters.global_seq = cx.counters.global_seq.max(theirs) + 1;
                self.ask_again(cx)
            }
            Tag::SessionReset if reconnecting => {
                Reset::from_frame(frame)?;
                self.close(cx, CloseReason::PeerLostSession);
                Ok(())
            }
            Tag::Wait => Err(Fault::AskedToWait),
            Tag::IdentMissingFeatures => {
                let MissingFeatures(missing) = MissingFeatures::from_frame(frame)?;
                Err(Fault::MissingFeatures { missing })
            }
            tag => Err(Fault::Unexpected {
                tag,
                during: "the answer to ident",
            }),
        }
    }

    fn ask_again(&mut self, cx: &mut Cx<'_>) -> Result<(), Fault> {
        match &mut self.phase {
            Phase::Identify { attempts, .. } if *attempts < ATTEMPTS_MAX => *attempts += 1,
            _ => return Err(Fault::TooManyAttempts),
        }
        self.ask(cx);
        Ok(())
    }

    fn on_server_ident(&mut self, cx: &mut Cx<'_>, ident: &ServerIdent) -> Result<(), Fault> {
        let missing = self
            .config
            .missing_features(ident.supported, ident.required);
        if missing != 0 {
            return Err(Fault::MissingFeatures { missing });
        }
        if !self.lossy {
            if ident.flags & FLAG_LOSSY != 0 || ident.cookie == 0 {
                return Err(Fault::LossyGranted);
            }
            self.server_cookie = ident.cookie;
        }
        self.peer_features = ident.supported;
        if let Some(link) = self.link.as_ref().and_then(|l| l.io.as_ref()) {
            self.peer_name = link.peer_name().to_owned();
        }
        self.become_open(cx);
        Ok(())
    }

    /// Removes messages that went back into the queue and that the peer had after all.
    fn forget_acked(&mut self, acked: u64) {
        let keep_count = self.tracks_done();
        let mut out = std::mem::take(&mut self.acked);
        self.owner.lock().take_requeued(acked, keep_count, &mut out);
        self.out_acked = self.out_acked.max(acked);
        out.clear();
        self.acked = out;
    }

    fn become_open(&mut self, cx: &mut Cx<'_>) {
        let limits = self.config.limits();
        let Some(link) = self.link.as_mut().and_then(|l| l.io.as_mut()) else {
            return;
        };
        link.open(limits);
        let global_id = link.global_id();
        self.phase = Phase::Open;
        self.backoff = self.config.backoff_min;
        self.in_acked = self.in_seq;
        self.out_staged = self.out_acked;
        self.done.owed = self.done.reported > 0;
        self.keepalive.asked = None;
        self.keepalive.owed = None;
        self.keepalive.next = self.config.keepalive_interval.map(|i| cx.env.now + i);
        self.owner.lock().set_state(State::Open);
        self.event(
            cx,
            Event::Opened {
                peer: self.peer_name.clone(),
                global_id,
            },
        );
        self.flush(cx);
    }

    /// The current connection is lost, or the peer broke the protocol on it.
    pub(crate) fn fault(&mut self, cx: &mut Cx<'_>, fault: Fault) {
        if self.phase == Phase::Closed {
            return;
        }
        if self.lossy || !fault.is_transient() {
            self.close(cx, CloseReason::Fault(fault));
            return;
        }
        self.detach(cx, fault);
    }

    /// Drops the connection and keeps the session.
    fn detach(&mut self, cx: &mut Cx<'_>, fault: Fault) {
        let was_open = self.phase == Phase::Open;
        self.count_too_early();
        // A keepalive was requested and is unanswered: that is a reason to reconnect.
        self.keepalive.on_open |= self.keepalive.asked.take().is_some();
        self.hang_up(cx);
        let initiator = matches!(self.role, Role::Initiator { .. });
        let mut both = self.owner.lock();
        both.requeue();
        let parked = initiator && was_open && !self.keepalive.on_open && both.park_if_idle();
        if !parked {
            both.set_state(State::Connecting);
        }
        drop(both);
        let now = cx.env.now;
        self.phase = if parked {
            self.keepalive.next = self.config.keepalive_interval.map(|i| now + i);
            Phase::Standby
        } else if initiator {
            Phase::Backoff {
                until: now + self.pause(cx),
            }
        } else {
            Phase::Detached {
                until: now + self.config.reattach_timeout,
            }
        };
        if was_open {
            let (peer, name) = (self.remote(), &self.peer_name);
            tracing::info!(%peer, name, parked, "connection lost: {fault}");
            self.event(cx, Event::Interrupted { fault, parked });
        } else {
            tracing::debug!(peer = %self.remote(), "connection attempt failed: {fault}");
        }
    }

    /// The pause before the next attempt: between half of the current one and all of it, so that
    /// many sessions to one peer do not come back at the same moment.
    fn pause(&mut self, cx: &mut Cx<'_>) -> Duration {
        let current = self.backoff;
        self.backoff = (current * 2).min(self.config.backoff_max);
        let half = u64::try_from((current / 2).as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(half + cx.env.entropy.word() % half.max(1))
    }

    /// Only for a canary: counts a message whose payload is still on the way.
    fn count_too_early(&mut self) {
        #[cfg(test)]
        if canary::active!("ack_before_in_order_receipt")
            && let Some(io) = self.link.as_ref().and_then(|l| l.io.as_ref())
            && io.is_mid_message()
        {
            self.in_seq += 1;
        }
    }
}

/// Our address as the peer sees it, with the lane as its nonce. Nobody connects to it.
fn our_addr(link: &Link, lane: u32) -> EntityAddr {
    let mut addr = link.our_addr.unwrap_or_else(|| EntityAddr::blank(0));
    if let Some(socket) = &mut addr.socket {
        socket.set_port(0);
    }
    EntityAddr {
        kind: AddrKind::Any,
        nonce: lane,
        ..addr
    }
}
