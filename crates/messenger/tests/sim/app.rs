//! The applications on the two hosts, and the ledger.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::env::{Entropy, SeededEntropy};
use crate::fault::CloseReason;
use crate::message::{Message, ReceivedMessage};
use crate::outqueue::{Kick, OutQueue, Refusal, Ticket};
use crate::session::SessionId;

/// One direction of one session, as the two applications saw it.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// What the sender queued and did not revoke, in order.
    sent: Vec<u64>,
    /// How many of them the receiver was given.
    pub(super) delivered: usize,
    /// How many the receiving application called done, and how many the sender heard of.
    done_called: usize,
    done_received: usize,
    /// The sender's session ended.
    closed: bool,
}

/// Every stream of a run by its number, which each message carries.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    streams: BTreeMap<u64, Stream>,
    pub(super) messages: u64,
}

impl Ledger {
    fn on_received(&mut self, stream: u64, index: u64, expect: Option<u64>) -> Result<(), String> {
        if expect.is_some_and(|e| e != stream) {
            return Err(format!(
                "stream {stream} came in the session of stream {expect:?}"
            ));
        }
        let s = self
            .streams
            .get_mut(&stream)
            .ok_or("a message that nobody sent")?;
        let due = s.sent.get(s.delivered).copied();
        if due != Some(index) {
            return Err(format!(
                "stream {stream}: message {index} came, {due:?} was due"
            ));
        }
        s.delivered += 1;
        self.messages += 1;
        Ok(())
    }

    /// The sender's session ended: what it got back is the end of what it sent, and everything
    /// before that was delivered.
    fn on_closed(&mut self, stream: u64, unacknowledged: &[u64]) -> Result<(), String> {
        let s = self.streams.entry(stream).or_default();
        s.closed = true;
        let kept = s
            .sent
            .len()
            .checked_sub(unacknowledged.len())
            .ok_or("more back than was sent")?;
        if s.sent[kept..] != *unacknowledged {
            return Err(format!(
                "stream {stream}: given back {unacknowledged:?} of {:?}",
                s.sent
            ));
        }
        if s.delivered < kept {
            let n = s.delivered;
            return Err(format!(
                "stream {stream}: {kept} count as received, {n} were delivered"
            ));
        }
        Ok(())
    }

    fn done(&mut self, stream: u64, index: u64) -> Result<(), String> {
        let s = self
            .streams
            .get_mut(&stream)
            .ok_or("done in an unknown stream")?;
        if s.sent.get(s.done_received) != Some(&index) {
            return Err(format!("stream {stream}: done with {index} out of order"));
        }
        s.done_received += 1;
        if s.done_received > s.done_called {
            return Err(format!(
                "stream {stream}: done with {index} before the receiver was"
            ));
        }
        Ok(())
    }
}

/// One application's side of one session.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) queue: Arc<OutQueue>,
    /// Its own stream.
    stream: u64,
    /// The peer's stream, once a message came.
    peer_stream: Option<u64>,
    next_index: u64,
    /// Messages it still wants to send.
    pub(super) to_send: u64,
    last_ticket: Option<(Ticket, u64)>,
    last_seq: u64,
}

impl Endpoint {
    pub(super) fn new(
        queue: Arc<OutQueue>,
        stream: u64,
        to_send: u64,
        ledger: &mut Ledger,
    ) -> Self {
        ledger.streams.insert(stream, Stream::default());
        let (peer_stream, last_ticket) = (None, None);
        Self {
            queue,
            stream,
            peer_stream,
            next_index: 0,
            to_send,
            last_ticket,
            last_seq: 0,
        }
    }

    /// Sends one message if there is room; whether the worker is to be kicked.
    pub(super) fn send_one(&mut self, rng: &mut SeededEntropy, ledger: &mut Ledger) -> Kick {
        if self.to_send == 0 {
            return Kick::Nobody;
        }
        let index = self.next_index;
        match self.queue.try_send(make_message(self.stream, index, rng)) {
            Ok((ticket, kick)) => {
                self.next_index += 1;
                self.to_send -= 1;
                self.last_ticket = Some((ticket, index));
                if let Some(s) = ledger.streams.get_mut(&self.stream) {
                    s.sent.push(index);
                }
                kick
            }
            Err(e) => {
                assert!(matches!(e.reason, Refusal::Full | Refusal::Closed), "{e}");
                Kick::Nobody
            }
        }
    }

    pub(super) fn revoke_last(&mut self, ledger: &mut Ledger) -> bool {
        let Some((ticket, index)) = self.last_ticket.take() else {
            return false;
        };
        let revoked = self.queue.revoke(ticket).is_some();
        if revoked && let Some(s) = ledger.streams.get_mut(&self.stream) {
            let at = s
                .sent
                .iter()
                .rposition(|i| *i == index)
                .expect("it was sent");
            s.sent.remove(at);
        }
        revoked
    }

    pub(super) fn on_received(
        &mut self,
        m: &ReceivedMessage,
        ledger: &mut Ledger,
    ) -> Result<(), String> {
        let (stream, index) = read(m)?;
        ledger.on_received(stream, index, self.peer_stream)?;
        self.peer_stream = Some(stream);
        self.last_seq = m.seq;
        Ok(())
    }

    /// Calls done what was received.
    pub(super) fn call_done(&mut self, ledger: &mut Ledger) -> Kick {
        if let Some(s) = self.peer_stream.and_then(|h| ledger.streams.get_mut(&h)) {
            s.done_called = s.delivered;
        }
        if self.last_seq == 0 {
            return Kick::Nobody;
        }
        self.queue
            .acknowledge(self.last_seq)
            .unwrap_or(Kick::Nobody)
    }

    pub(super) fn on_done(&self, tid: u64, ledger: &mut Ledger) -> Result<(), String> {
        ledger.done(self.stream, tid)
    }

    pub(super) fn on_closed(
        &self,
        unacknowledged: &[Arc<Message>],
        ledger: &mut Ledger,
    ) -> Result<(), String> {
        let tids: Vec<u64> = unacknowledged.iter().map(|m| m.tid).collect();
        ledger.on_closed(self.stream, &tids)
    }

    /// Whether everything it wanted to send arrived.
    pub(super) fn is_complete(&self, ledger: &Ledger, done_acks: bool) -> bool {
        let s = &ledger.streams[&self.stream];
        let arrived = self.to_send == 0 && s.delivered == s.sent.len();
        arrived && (!done_acks || s.done_received == s.sent.len())
    }

    pub(super) fn describe(&self, ledger: &Ledger) -> String {
        let s = &ledger.streams[&self.stream];
        format!(
            "stream {}: {} to send, {} sent, {} delivered, {} done, closed {}, {:?} {:?}",
            self.stream,
            self.to_send,
            s.sent.len(),
            s.delivered,
            s.done_received,
            s.closed,
            self.queue.state(),
            self.queue.load()
        )
    }
}

/// A session that ended although nobody restarted or closed it is a finding.
pub(super) fn is_excused(reason: &CloseReason, restarts: u32) -> bool {
    match reason {
        CloseReason::PeerLostSession | CloseReason::PeerGone => restarts > 0,
        _ => false,
    }
}

fn make_message(stream: u64, index: u64, rng: &mut SeededEntropy) -> Message {
    let len = match rng.word() % 8 {
        0 => 0,
        1 => rng.word() % 5000,
        _ => rng.word() % 120,
    };
    let mut data = Vec::with_capacity(16 + usize::try_from(len).expect("small"));
    data.extend_from_slice(&stream.to_le_bytes());
    data.extend_from_slice(&index.to_le_bytes());
    data.extend((0..len).map(|i| pattern(stream, index, i)));
    Message::data(7, index, data)
}

fn pattern(stream: u64, index: u64, at: u64) -> u8 {
    (stream.wrapping_mul(31) ^ index.wrapping_mul(17) ^ at).to_le_bytes()[0]
}

fn read(m: &ReceivedMessage) -> Result<(u64, u64), String> {
    let data: &Bytes = &m.payload.data;
    let word = |at: usize| -> Option<u64> {
        Some(u64::from_le_bytes(data.get(at..at + 8)?.try_into().ok()?))
    };
    let (stream, index) = word(0).zip(word(8)).ok_or("a message is too short")?;
    let whole = data[16..]
        .iter()
        .zip(0..)
        .all(|(b, at)| *b == pattern(stream, index, at));
    if !whole || m.tid != index {
        return Err(format!(
            "stream {stream}: message {index} is not what was sent"
        ));
    }
    Ok((stream, index))
}

/// All sides of one host.
pub(super) type Endpoints = BTreeMap<SessionId, Endpoint>;
