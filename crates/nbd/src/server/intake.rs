//! What a connection receives: a small staging buffer for headers, and payloads.
//!
//! One receive into the staging buffer usually brings several requests. A payload's first bytes
//! are copied from there; where much is left, the rest comes straight into the payload's own
//! aligned buffer. At most one receive is in flight.

use std::io;
use std::time::{Duration, Instant};

use reactor::{Buf, BufferPurpose, Cx, FileIndex, Op, OpId};

use super::tls::{TlsStream, TlsStreamError};
use super::token;
use crate::codec::{Decoder, Request};

/// What a connection receives into at first: 146 headers. A thousand idle ones cost this much each, whatever
/// the allocator makes of memory that others had before.
const STAGING_BYTES_MIN: usize = 4 << 10;

/// What it receives into while its client sends more than that at once: enough for 15 writes of 4 KiB. An idle
/// connection keeps it where a burst of writes was the last that came.
const STAGING_BYTES_MAX: usize = 64 << 10;

/// So many receives in a row that the small buffer would have held give the large one back.
const SMALL_RECEIVES_MIN: u32 = 64;

/// From this on the rest of a payload is received into its own buffer: one more call is then
/// cheaper than the copy.
const DIRECT_BYTES_MIN: usize = 16 << 10;

/// A WRITE whose payload is on its way.
#[derive(Debug)]
struct PendingWrite {
    request: Request,
    /// `None` while it is waited for, or while the kernel fills it.
    buf: Option<Buf>,
    filled: usize,
    /// Since when the client is waited for; not while the pool is.
    since: Option<Instant>,
}

/// The payload that is due.
#[derive(Debug)]
pub(super) enum PayloadState {
    /// None is due.
    None,
    /// It is not complete: a buffer or bytes are waited for.
    Pending,
    /// It is complete.
    Complete(Request, Buf),
}

#[derive(Debug)]
pub(super) struct Intake {
    /// `None` while a receive is in flight.
    staging: Option<Buf>,
    /// How large the next one is to be.
    staging_bytes: usize,
    /// The receives in a row that the small one would have held.
    small_receives: u32,
    start: usize,
    end: usize,
    incoming: Option<PendingWrite>,
    receiving: bool,
    /// The receive in flight, if it is one into the staging buffer that was not cancelled.
    staging_op: Option<OpId>,
    /// What was decrypted, where TLS is in use: `start` and `end` are places in it then.
    plain: Option<Vec<u8>>,
    /// The client has ended TLS: nothing follows what was received.
    has_ended: bool,
}

impl Intake {
    pub(super) fn new() -> Intake {
        Intake {
            staging: None,
            staging_bytes: STAGING_BYTES_MIN,
            small_receives: 0,
            start: 0,
            end: 0,
            incoming: None,
            receiving: false,
            staging_op: None,
            plain: None,
            has_ended: false,
        }
    }

    /// One that begins with bytes that another received; `None` without memory for them.
    pub(super) fn with_unread(unread: &[u8]) -> Option<Intake> {
        let mut intake = Intake::new();
        if !unread.is_empty() {
            let mut staging = Buf::allocate(unread.len())?;
            staging[..unread.len()].copy_from_slice(unread);
            intake.staging = Some(staging);
            intake.end = unread.len();
        }
        Some(intake)
    }

    /// Ends the receive that waits for the next requests. Bytes that come all the same are kept. One
    /// that brings a payload goes on. Whether there was one to end.
    pub(super) fn stop_receiving(&mut self, cx: &mut Cx<'_>) -> bool {
        if self.incoming.is_none()
            && let Some(op) = self.staging_op.take()
        {
            cx.cancel(op);
            return true;
        }
        false
    }

    /// What was received and not consumed, while no receive is in flight.
    pub(super) fn unconsumed_bytes(&self) -> &[u8] {
        let received = self.received_bytes().unwrap_or_default();
        received.get(self.start..self.end).unwrap_or_default()
    }

    /// TLS begins: what was received and not consumed is its first bytes.
    pub(super) fn begin_tls(&mut self, tls: &mut TlsStream) -> Result<(), TlsStreamError> {
        let mut plain = Vec::new();
        let staged = self.staging.as_deref_mut().unwrap_or_default();
        let rest = staged.get_mut(self.start..self.end).unwrap_or_default();
        let decrypted = tls.decrypt(rest, &mut plain);
        (self.start, self.end) = (0, plain.len());
        self.plain = Some(plain);
        self.note_end(decrypted)
    }

    /// The end of TLS is no failure: what came before it counts. Nothing comes after either.
    fn note_end(&mut self, decrypted: Result<(), TlsStreamError>) -> Result<(), TlsStreamError> {
        self.has_ended |= decrypted.is_err();
        match decrypted {
            Err(TlsStreamError::Closed) => Ok(()),
            other => other,
        }
    }

    /// The client has ended TLS, and all that it sent before was consumed.
    pub(super) fn is_at_end(&self) -> bool {
        self.has_ended && self.start == self.end
    }

    /// Whether a receive is in flight: it will also tell the peer's end.
    pub(super) fn is_receiving(&self) -> bool {
        self.receiving
    }

    /// Whether a WRITE's payload is under way.
    pub(super) fn expects_payload(&self) -> bool {
        self.incoming.is_some()
    }

    /// Received bytes that were not consumed. Where there are none, begins to receive some.
    pub(super) fn unread(&mut self, cx: &mut Cx<'_>, socket: FileIndex) -> Option<&[u8]> {
        if self.start == self.end {
            self.receive(cx, socket);
            return None;
        }
        self.received_bytes()?.get(self.start..self.end)
    }

    /// What was received, in the clear.
    fn received_bytes(&self) -> Option<&[u8]> {
        match &self.plain {
            Some(plain) => Some(plain),
            None => self.staging.as_deref(),
        }
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end, "consumed what was not received");
    }

    fn receive(&mut self, cx: &mut Cx<'_>, socket: FileIndex) {
        if self.receiving || self.has_ended {
            return;
        }
        let bytes = self.staging_bytes;
        let kept = self.staging.take().filter(|buf| buf.len() == bytes);
        let Some(buf) = kept.or_else(|| Buf::allocate(bytes)) else {
            // The connection stays as it is, and the peer's end is still watched for.
            tracing::error!(bytes, "no memory to receive into");
            return;
        };
        (self.start, self.end) = (0, 0);
        self.receiving = true;
        self.staging_op = Some(cx.submit(
            token::RECV,
            Op::Recv {
                file: socket,
                buf,
                at: 0,
                exact: false,
            },
        ));
    }

    /// Chooses the size of the staging buffer by what came: a client that fills the small one has more to say,
    /// and one that sent headers alone for a while needs no large one.
    fn fit_staging(&mut self, received: usize) {
        if received >= STAGING_BYTES_MIN {
            (self.staging_bytes, self.small_receives) = (STAGING_BYTES_MAX, 0);
            return;
        }
        self.small_receives = self.small_receives.saturating_add(1);
        if self.small_receives >= SMALL_RECEIVES_MIN {
            self.staging_bytes = STAGING_BYTES_MIN;
        }
    }

    /// A receive into the staging buffer has ended; false at the end of the stream.
    pub(super) fn on_received(
        &mut self,
        mut buf: Buf,
        result: io::Result<usize>,
        tls: Option<&mut TlsStream>,
    ) -> Result<bool, TlsStreamError> {
        self.receiving = false;
        self.staging_op = None;
        self.end = result.unwrap_or(0);
        self.fit_staging(self.end);
        let is_there = self.end > 0;
        let mut decrypted = Ok(());
        if let (Some(plain), Some(tls)) = (&mut self.plain, tls) {
            plain.clear();
            decrypted = tls.decrypt(&mut buf[..self.end], plain);
            self.end = plain.len();
        }
        self.staging = Some(buf);
        self.note_end(decrypted).map(|()| is_there)
    }

    /// A WRITE's header came: gets a buffer for its payload, now or later. The decoder has
    /// checked the length.
    pub(super) fn expect_payload(&mut self, cx: &mut Cx<'_>, request: Request) {
        let len = request.length as usize;
        let buf = cx.request_buffer(token::PAYLOAD_BUFFER, len, BufferPurpose::Client);
        let since = buf.is_some().then(Instant::now);
        self.incoming = Some(PendingWrite {
            request,
            buf,
            filled: 0,
            since,
        });
    }

    /// The buffer that was waited for.
    pub(super) fn on_payload_buffer(&mut self, buf: Buf) {
        if let Some(incoming) = &mut self.incoming {
            incoming.buf = Some(buf);
            incoming.since = Some(Instant::now());
        }
    }

    /// For how long a client has kept a buffer without sending the whole of its payload.
    pub(super) fn payload_stalled_for(&self) -> Duration {
        let since = self.incoming.as_ref().and_then(|incoming| incoming.since);
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// A receive into the payload's buffer has ended; false where it failed.
    pub(super) fn on_payload_received(
        &mut self,
        buf: Buf,
        result: io::Result<usize>,
        decoder: &mut Decoder,
    ) -> bool {
        self.receiving = false;
        let (Some(incoming), Ok(received)) = (&mut self.incoming, result) else {
            return false;
        };
        decoder.consume_payload(received as u32);
        incoming.filled += received;
        incoming.buf = Some(buf);
        true
    }

    /// Moves received bytes into the payload that is due, or begins to receive them.
    pub(super) fn fill_payload(
        &mut self,
        cx: &mut Cx<'_>,
        socket: FileIndex,
        decoder: &mut Decoder,
    ) -> PayloadState {
        let Some(mut incoming) = self.incoming.take() else {
            return PayloadState::None;
        };
        let Some(mut buf) = incoming.buf.take() else {
            self.incoming = Some(incoming);
            return PayloadState::Pending;
        };
        let there = self.end - self.start;
        let taken = there.min(buf.len() - incoming.filled);
        if let Some(received) = self.received_bytes().filter(|_| taken > 0) {
            let to = &mut buf[incoming.filled..incoming.filled + taken];
            to.copy_from_slice(&received[self.start..self.start + taken]);
            self.start += taken;
            incoming.filled += taken;
            decoder.consume_payload(taken as u32);
        }
        let left = buf.len() - incoming.filled;
        if left == 0 {
            return PayloadState::Complete(incoming.request, buf);
        }
        if left >= DIRECT_BYTES_MIN && !self.receiving && self.plain.is_none() {
            self.receiving = true;
            let at = incoming.filled;
            cx.submit(
                token::PAYLOAD,
                Op::Recv {
                    file: socket,
                    buf,
                    at,
                    exact: true,
                },
            );
        } else {
            incoming.buf = Some(buf);
            self.receive(cx, socket);
        }
        self.incoming = Some(incoming);
        PayloadState::Pending
    }
}
