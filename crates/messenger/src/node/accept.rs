//! Connections that peers made: authentication, then the claim on a session, new or old.
//!
//! Here the four refusals of a reconnect are given: reset (the session is not known), retry (its
//! connect sequence is used up), retry global (its global sequence is), wait (no room now).

use std::net::SocketAddr;

use super::{Node, Timer, cx};
use crate::control::{
    ClientIdent, ControlBody, FLAG_LOSSY, MissingFeatures, Reconnect, Reset, Retry, RetryGlobal,
    Wait,
};
use crate::env::Env;
use crate::fault::{CloseReason, Fault};
use crate::frame::{Frame, Tag, TxBuf};
use crate::link::{Link, Step};
use crate::session::{ClaimedLink, Cx, LinkId, Output, Session, SessionId};

/// How often one connection may retry with other sequence numbers.
const ATTEMPTS_MAX: u32 = 8;

/// An accepted connection that has not named a session.
#[derive(Debug)]
pub(super) struct Pending {
    link: Link,
    attempts: u32,
    /// Refused: what is staged is sent, then the connection is dropped.
    refused: bool,
}

impl Pending {
    pub(super) fn tx(&mut self) -> &mut TxBuf {
        &mut self.link.tx
    }

    pub(super) fn is_drained(&self) -> bool {
        self.refused && self.link.tx.is_empty()
    }
}

/// What is answered to a claim.
enum Verdict {
    Attached(SessionId),
    /// Try again on this connection, with other numbers.
    Retry(Frame),
    /// No; the connection ends.
    Refuse(Frame),
}

impl Node {
    /// A peer connected. `None`: too many connections are not authenticated; close it.
    pub fn on_accepted(&mut self, mut env: Env<'_>, remote: SocketAddr) -> Option<LinkId> {
        if self.pending.len() >= self.config.handshakes_max {
            self.stats.handshakes_refused += 1;
            // The first, then ever more rarely: a flood must not fill the log.
            if self.stats.handshakes_refused.is_power_of_two() {
                let n = self.stats.handshakes_refused;
                tracing::warn!(%remote, handshakes_refused = n, "too many connections in handshake");
            }
            return None;
        }
        self.counters.links += 1;
        let id = LinkId(self.counters.links);
        let link = Link::accepting(&mut env, &self.credentials, remote);
        self.pending.insert(
            id,
            Pending {
                link,
                attempts: 0,
                refused: false,
            },
        );
        self.arm(
            Timer::Pending(id),
            Some(env.now + self.config.handshake_timeout),
        );
        self.outputs.push_back(Output::Flush { link: id });
        Some(id)
    }

    pub(super) fn on_pending_bytes(&mut self, env: &mut Env<'_>, id: LinkId, input: &[u8]) {
        let mut input = input;
        while let Some(pending) = self.pending.get_mut(&id) {
            if pending.refused {
                input = &[];
                break;
            }
            let claim = match pending.link.step(env, &mut input) {
                Ok(None) => break,
                Ok(Some(Step::Ready)) => Ok(()),
                Ok(Some(Step::Frame(frame))) => self.on_claim(env, id, &frame),
                Err(fault) => Err(fault),
            };
            if let Err(fault) = claim {
                self.refuse(id, &fault);
            }
        }
        self.outputs.push_back(Output::Flush { link: id });
        if !input.is_empty() && !self.pending.contains_key(&id) {
            // The peer sent more behind its claim, and the session has the connection now.
            let env = Env {
                now: env.now,
                entropy: &mut *env.entropy,
            };
            self.on_bytes(env, id, input);
        }
    }

    /// The connection is at fault: what is staged, a refusal at most, is sent before it is dropped.
    fn refuse(&mut self, id: LinkId, fault: &Fault) {
        let Some(mut pending) = self.pending.remove(&id) else {
            return;
        };
        if !pending.refused {
            self.fail_pending(&pending, fault);
            pending.refused = true;
        }
        self.pending.insert(id, pending);
    }

    pub(super) fn fail_pending(&mut self, pending: &Pending, fault: &Fault) {
        if pending.refused {
            return;
        }
        self.stats.handshakes_failed += 1;
        let (peer, name) = (pending.link.remote(), pending.link.peer_name());
        if fault.is_transient() {
            tracing::debug!(%peer, name, "a connection ended before it named a session: {fault}");
        } else {
            tracing::warn!(%peer, name, "refused a connection: {fault}");
        }
    }

    fn on_claim(&mut self, env: &mut Env<'_>, id: LinkId, frame: &Frame) -> Result<(), Fault> {
        let Some(mut pending) = self.pending.remove(&id) else {
            return Ok(());
        };
        pending.attempts += 1;
        let over = pending.attempts > ATTEMPTS_MAX;
        // A claim that cannot be read leaves the connection where it was, to be refused.
        let claim = match frame.tag {
            _ if over => Err(Fault::TooManyAttempts),
            Tag::ClientIdent => ClientIdent::from_frame(frame)
                .map(SessionClaim::Ident)
                .map_err(Fault::from),
            Tag::SessionReconnect => Reconnect::from_frame(frame)
                .map(SessionClaim::Reconnect)
                .map_err(Fault::from),
            tag => Err(Fault::Unexpected {
                tag,
                during: "the naming of a session",
            }),
        };
        let claim = match claim {
            Ok(claim) => claim,
            Err(fault) => {
                self.pending.insert(id, pending);
                return Err(fault);
            }
        };
        let (verdict, link) = match claim {
            SessionClaim::Ident(ident) => self.check_ident(env, id, pending.link, &ident),
            SessionClaim::Reconnect(asked) => self.check_reconnect(env, id, pending.link, &asked),
        };
        match (verdict, link) {
            (Verdict::Attached(session), _) => {
                self.arm(Timer::Pending(id), None);
                self.update_tables(session);
            }
            (Verdict::Retry(answer), Some(mut link)) => {
                link.emit(&answer);
                self.pending.insert(id, Pending { link, ..pending });
            }
            (Verdict::Refuse(answer), Some(mut link)) => {
                link.emit(&answer);
                self.pending.insert(
                    id,
                    Pending {
                        link,
                        refused: true,
                        ..pending
                    },
                );
            }
            (_, None) => {}
        }
        Ok(())
    }

    fn check_ident(
        &mut self,
        env: &mut Env<'_>,
        id: LinkId,
        link: Link,
        ident: &ClientIdent,
    ) -> (Verdict, Option<Link>) {
        let missing = self
            .config
            .missing_features(ident.supported, ident.required);
        if missing != 0 {
            return (
                Verdict::Refuse(MissingFeatures(missing).frame()),
                Some(link),
            );
        }
        let lossy = ident.flags & FLAG_LOSSY != 0;
        let lane = ident.addrs.first().map_or(0, |a| a.nonce);
        let key = (link.peer_name().to_owned(), lane);
        let claimed = ClaimedLink {
            id,
            link,
            global_seq: ident.global_seq,
        };
        let existing = if lossy {
            None
        } else {
            self.by_peer.get(&key).copied()
        };
        if let Some(session) = existing.and_then(|s| self.sessions.get_mut(&s)) {
            let newest = session.peer_global_seq();
            if ident.global_seq <= newest {
                self.stats.refused_retry_global += 1;
                return (
                    Verdict::Retry(RetryGlobal(newest).frame()),
                    Some(claimed.link),
                );
            }
            if session.is_unanswered(ident.cookie) {
                return self.attach(env, session_id(existing), claimed, |s, cx, claimed| {
                    s.attach_ident(cx, claimed);
                });
            }
            // The peer starts anew in this lane: it has lost the session that was here.
            let lost = session_id(existing);
            self.with_session(env, lost, |s, cx| s.close(cx, CloseReason::PeerLostSession));
        }
        if self.sessions.len() >= self.config.sessions_max {
            self.stats.refused_wait += 1;
            return (Verdict::Refuse(Wait.frame()), Some(claimed.link));
        }
        let new = self.new_session_id();
        let mut cx = cx!(self, env);
        let session = Session::accept(new, &self.config, claimed, ident, &mut cx);
        self.sessions.insert(new, session);
        if !lossy {
            self.by_peer.insert(key, new);
        }
        (Verdict::Attached(new), None)
    }

    fn check_reconnect(
        &mut self,
        env: &mut Env<'_>,
        id: LinkId,
        link: Link,
        asked: &Reconnect,
    ) -> (Verdict, Option<Link>) {
        let lane = asked.addrs.first().map_or(0, |a| a.nonce);
        let key = (link.peer_name().to_owned(), lane);
        let known = self.by_peer.get(&key).copied();
        let session = known.and_then(|s| self.sessions.get(&s));
        let Some(session) =
            session.filter(|s| s.has_cookies(asked.client_cookie, asked.server_cookie))
        else {
            self.stats.refused_reset += 1;
            return (Verdict::Refuse(Reset { full: true }.frame()), Some(link));
        };
        if asked.global_seq <= session.peer_global_seq() {
            self.stats.refused_retry_global += 1;
            let newest = session.peer_global_seq();
            return (Verdict::Retry(RetryGlobal(newest).frame()), Some(link));
        }
        if asked.connect_seq <= session.connect_seq() {
            self.stats.refused_retry += 1;
            let newest = session.connect_seq();
            return (Verdict::Retry(Retry(newest).frame()), Some(link));
        }
        let claimed = ClaimedLink {
            id,
            link,
            global_seq: asked.global_seq,
        };
        self.attach(env, session_id(known), claimed, |s, cx, claimed| {
            if let Err(fault) = s.attach_reconnect(cx, claimed, asked) {
                s.fault(cx, fault);
            }
        })
    }

    fn attach(
        &mut self,
        env: &mut Env<'_>,
        id: SessionId,
        claimed: ClaimedLink,
        f: impl FnOnce(&mut Session, &mut Cx<'_>, ClaimedLink),
    ) -> (Verdict, Option<Link>) {
        self.with_session(env, id, |session, cx| f(session, cx, claimed));
        (Verdict::Attached(id), None)
    }
}

enum SessionClaim {
    Ident(ClientIdent),
    Reconnect(Reconnect),
}

fn session_id(known: Option<SessionId>) -> SessionId {
    known.expect("the session was found under this id a moment ago")
}
