//! Messages: what the application sends and receives, and the header that carries their sequence.
//!
//! Owns the 41 bytes of the header and the rule that a payload is built, encoded and freed outside
//! every lock. A message has no sequence number of its own: that is given when it is taken from
//! the out-queue.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::frame::{Frame, Tag};
use crate::lockcheck::FreeGuard;
use crate::wire::{Put, Reader, WireError};

/// The three payload segments of a message. They are refcounted: sending copies nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payload {
    /// The fixed part of a message, by convention.
    pub front: Bytes,
    /// Rarely used.
    pub middle: Bytes,
    /// Bulk bytes.
    pub data: Bytes,
}

impl Payload {
    /// Bytes of all three.
    pub fn len(&self) -> usize {
        self.front.len() + self.middle.len() + self.data.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Builds a payload for a peer with these feature bits.
pub type Encoder = dyn Fn(u64) -> Payload + Send + Sync;

#[derive(Clone)]
enum Body {
    Fixed(Payload),
    /// Built when it is taken from the queue, and again after a reconnect to a peer that changed.
    PerPeer {
        encoder: Arc<Encoder>,
        size: usize,
    },
}

/// A message to send.
pub struct Message {
    /// What the message is; the application's numbering.
    pub kind: u16,
    /// The application's own identifier; [`crate::Event::Done`] names it.
    pub tid: u64,
    /// Priority as the receiver may use it; the order of sending does not depend on it.
    pub priority: u16,
    /// Version of the encoding.
    pub version: u16,
    /// Oldest version that understands the encoding.
    pub compat: u16,
    body: Body,
    _freed: FreeGuard,
}

/// The priority Ceph gives to ordinary messages.
const PRIORITY_DEFAULT: u16 = 127;

impl Message {
    /// A message with a payload that suits every peer.
    pub fn new(kind: u16, tid: u64, payload: Payload) -> Self {
        Self::with_body(kind, tid, Body::Fixed(payload))
    }

    /// A message of bulk bytes alone.
    pub fn data(kind: u16, tid: u64, data: impl Into<Bytes>) -> Self {
        Self::new(
            kind,
            tid,
            Payload {
                data: data.into(),
                ..Payload::default()
            },
        )
    }

    /// A message whose payload depends on the peer's features. `encoder` runs on the I/O thread,
    /// outside every lock. `size` is what the message counts against the queue's bound.
    pub fn per_peer(kind: u16, tid: u64, size: usize, encoder: Arc<Encoder>) -> Self {
        Self::with_body(kind, tid, Body::PerPeer { encoder, size })
    }

    fn with_body(kind: u16, tid: u64, body: Body) -> Self {
        let _freed = FreeGuard;
        Self {
            kind,
            tid,
            priority: PRIORITY_DEFAULT,
            version: 1,
            compat: 1,
            body,
            _freed,
        }
    }

    /// What the message counts against the queue's bound.
    pub fn size(&self) -> usize {
        match &self.body {
            Body::Fixed(payload) => payload.len(),
            Body::PerPeer { size, .. } => *size,
        }
    }

    /// The payload for a peer with these features.
    pub fn encode(&self, features: u64) -> Payload {
        crate::lockcheck::assert_none_held("a message was encoded");
        match &self.body {
            Body::Fixed(payload) => payload.clone(),
            Body::PerPeer { encoder, .. } => encoder(features),
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut s = f.debug_struct("Message");
        s.field("kind", &self.kind)
            .field("tid", &self.tid)
            .field("size", &self.size())
            .finish()
    }
}

/// A message received, in order and once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// Its place in the session. [`crate::Connection::acknowledge`] takes it.
    pub seq: u64,
    /// What the message is; the application's numbering.
    pub kind: u16,
    /// The sender's identifier.
    pub tid: u64,
    /// As the sender set it.
    pub priority: u16,
    /// Version of the encoding.
    pub version: u16,
    /// Oldest version that understands the encoding.
    pub compat: u16,
    /// The bytes.
    pub payload: Payload,
}

/// Bytes of a message header.
pub const HEADER_LEN: usize = 41;

/// The header in a message frame's control segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// Place in the session; 0 only in sessions without sequence numbers.
    pub seq: u64,
    /// The sender's identifier.
    pub tid: u64,
    /// What the message is.
    pub kind: u16,
    /// Priority.
    pub priority: u16,
    /// Version of the encoding.
    pub version: u16,
    /// Everything up to here is received: the acknowledgement that rides along.
    pub ack_seq: u64,
    /// Bit 0: the session is lossy.
    pub flags: u8,
    /// Oldest version that understands the encoding.
    pub compat: u16,
}

impl Header {
    /// The 41 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN);
        out.put_u64(self.seq);
        out.put_u64(self.tid);
        out.put_u16(self.kind);
        out.put_u16(self.priority);
        out.put_u16(self.version);
        out.put_u32(0); // padding before the data segment
        out.put_u16(0); // the data's offset in its page
        out.put_u64(self.ack_seq);
        out.put_u8(self.flags);
        out.put_u16(self.compat);
        out.put_u16(0);
        out
    }

    /// Reads a header.
    pub fn decode(control: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(control);
        let mut header = Self {
            seq: r.u64("message sequence")?,
            ..Self::default()
        };
        header.tid = r.u64("message tid")?;
        header.kind = r.u16("message type")?;
        header.priority = r.u16("message priority")?;
        header.version = r.u16("message version")?;
        r.u32("data padding")?;
        r.u16("data offset")?;
        header.ack_seq = r.u64("acknowledged sequence")?;
        header.flags = r.u8("message flags")?;
        header.compat = r.u16("message compat version")?;
        r.u16("reserved")?;
        Ok(header)
    }

    /// The frame of a message with this header.
    pub fn frame(&self, payload: Payload) -> Frame {
        let Payload {
            front,
            middle,
            data,
        } = payload;
        let segments = [Bytes::from(self.encode()), front, middle, data];
        Frame {
            tag: Tag::Message,
            aborted: false,
            segments,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_the_documented_bytes() {
        let header = Header {
            seq: 0x0102,
            tid: 3,
            kind: 42,
            priority: 127,
            version: 8,
            ack_seq: 0x0908,
            flags: 1,
            compat: 3,
        };
        let mut golden = vec![0; HEADER_LEN];
        golden[..2].copy_from_slice(&[2, 1]);
        golden[8] = 3;
        golden[16] = 42;
        golden[18] = 127;
        golden[20] = 8;
        golden[28..30].copy_from_slice(&[8, 9]);
        golden[36] = 1;
        golden[37] = 3;
        assert_eq!(header.encode(), golden);
        assert_eq!(Header::decode(&golden), Ok(header));
        assert!(Header::decode(&golden[..40]).is_err());
    }
}
