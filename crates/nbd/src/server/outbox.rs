//! Replies on their way out: gathered during a turn, sent with one call, accounted until the
//! socket has taken them.

use std::time::{Duration, Instant};

use reactor::{Buf, Cx, FileIndex, Op, SendPart, Token};

use super::tls::TlsStream;
use crate::codec::{Headers, Session, simple_reply};

/// Parts per send; below the kernel's limit on vectors.
const PARTS_PER_SEND: usize = 512;

/// What a reply accounts for until it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weight {
    /// Requests.
    pub(super) requests: usize,
    /// Payload bytes.
    pub(super) bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// How replies look.
    session: Session,
    /// Through which everything goes, once it was begun.
    tls: Option<TlsStream>,
    pending: Vec<SendPart>,
    pending_weight: Weight,
    /// The weight of the send in flight, and since when it is.
    sending: Option<(Weight, Instant)>,
}

impl Outbox {
    /// Nothing waits and nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.sending.is_none() && !self.has_pending()
    }

    fn has_pending(&self) -> bool {
        !self.pending.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.wants_send())
    }

    /// Everything from now on is encrypted; nothing waits to be sent in the clear.
    pub(super) fn set_tls(&mut self, tls: TlsStream) {
        debug_assert!(self.is_idle(), "what is in the clear was sent before");
        self.tls = Some(tls);
    }

    pub(super) fn tls(&mut self) -> Option<&mut TlsStream> {
        self.tls.as_mut()
    }

    /// Something waits and no send is in flight.
    pub(super) fn wants_flush(&self) -> bool {
        self.sending.is_none() && self.has_pending()
    }

    /// The handshake is over: replies look like this from now on.
    pub(super) fn set_session(&mut self, session: Session) {
        self.session = session;
    }

    pub(super) fn session(&self) -> Session {
        self.session
    }

    /// Bytes of the handshake.
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match self.pending.last_mut() {
            Some(SendPart::Bytes(last)) => last.extend_from_slice(bytes),
            _ => self.pending.push(SendPart::Bytes(bytes.to_vec())),
        }
    }

    /// Appends to the bytes that go out last, by one of the codec's functions.
    pub(super) fn push_with(&mut self, push: impl FnOnce(Headers, &mut Vec<u8>)) {
        if !matches!(self.pending.last(), Some(SendPart::Bytes(_))) {
            self.pending.push(SendPart::Bytes(Vec::new()));
        }
        if let Some(SendPart::Bytes(last)) = self.pending.last_mut() {
            push(self.session.headers, last);
        }
    }

    /// Bytes that belong to a chunk whose header was pushed.
    pub(super) fn push_data(&mut self, data: Buf) {
        self.pending.push(SendPart::Buf(data));
    }

    /// A reply was pushed in chunks: what its request accounts for.
    pub(super) fn add_weight(&mut self, weight: Weight) {
        self.pending_weight.requests += weight.requests;
        self.pending_weight.bytes += weight.bytes;
    }

    /// A simple reply; `data` follows it on success of a read.
    pub(super) fn push_reply(
        &mut self,
        cookie: u64,
        error: u32,
        data: Option<Buf>,
        weight: Weight,
    ) {
        self.push_bytes(&simple_reply(cookie, error));
        if let Some(data) = data {
            self.pending.push(SendPart::Buf(data));
        }
        self.add_weight(weight);
    }

    /// What the next send carries; none where TLS cannot go on.
    fn take_parts(&mut self) -> Option<Vec<SendPart>> {
        if let Some(tls) = &mut self.tls {
            return match tls.encrypt(&mut self.pending) {
                Ok(cipher) => Some(vec![SendPart::Bytes(cipher)]),
                Err(error) => {
                    tracing::debug!(%error, "nothing can be sent over TLS any more");
                    self.pending.clear();
                    None
                }
            };
        }
        let rest = self
            .pending
            .split_off(self.pending.len().min(PARTS_PER_SEND));
        Some(std::mem::replace(&mut self.pending, rest))
    }

    /// Sends what waits, unless a send is in flight: then its end calls this again. False: nothing can be sent
    /// any more, and replies are lost.
    pub(super) fn flush(&mut self, cx: &mut Cx<'_>, socket: FileIndex, token: Token) -> bool {
        if !self.wants_flush() {
            return true;
        }
        let Some(parts) = self.take_parts() else {
            return false;
        };
        // What is left over is accounted with the last send, never too early.
        let weight = if self.pending.is_empty() {
            std::mem::take(&mut self.pending_weight)
        } else {
            Weight::default()
        };
        self.sending = Some((weight, Instant::now()));
        cx.submit(
            token,
            Op::Send {
                file: socket,
                parts,
            },
        );
        true
    }

    /// The send in flight has ended: what it accounted for.
    pub(super) fn on_sent(&mut self) -> Weight {
        self.sending
            .take()
            .map(|(weight, _)| weight)
            .unwrap_or_default()
    }

    /// For how long the client has not taken the replies that are being sent.
    pub(super) fn stalled_for(&self) -> Duration {
        self.sending
            .map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_neighbouring_replies_share_a_part_and_data_keeps_its_place() {
        let mut outbox = Outbox::default();
        let one = Weight {
            requests: 1,
            bytes: 10,
        };
        outbox.push_reply(1, 0, None, one);
        outbox.push_reply(2, 0, Buf::allocate(512), one);
        outbox.push_reply(3, 5, None, one);
        outbox.push_reply(4, 0, None, one);
        let lens: Vec<_> = outbox.pending.iter().map(SendPart::len).collect();
        assert_eq!(lens, [32, 512, 32]);
        assert_eq!(
            outbox.pending_weight,
            Weight {
                requests: 4,
                bytes: 40
            }
        );
        assert!(!outbox.is_idle());
    }
}
