//! The server's side of the NBD protocol as two state machines: [`Handshake`] until an export is
//! chosen, then [`Decoder`] for the requests. Bytes go in, events and reply bytes come out.
//!
//! Neither allocates on a length that it has not checked, neither panics on any input, and both
//! may be fed one byte at a time. Reference: the protocol document of the NBD project
//! (doc/proto.md and its extension for extended headers), fixed newstyle. Answers are
//! simple replies, or the chunks of structured replies or extended headers ([`Headers`]).

mod directory;
mod handed;
mod handshake;
mod meta;
mod options;
mod reply;
mod request;
pub mod wire;

pub use directory::{Directory, ExportEntry, ExportState};
pub use handed::{ConnectionState, ExportMismatch, HandedError};
pub use handshake::{CloseReason, Handshake, ParkEnd, Progress, Tls};
pub use meta::{ContextSet, MetaContext};
pub use reply::{Headers, Position, ReplyTo, SIMPLE_REPLY_BYTES, Session, simple_reply};
pub use request::{Command, Decoder, Event, Limits, Refusal, Request, Violation};

use blkmq::io::Geometry;

/// Largest payload of one READ or WRITE; advertised as the maximum block size.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Longest export name or description in bytes (the protocol's own limit for strings).
pub const NAME_BYTES_MAX: usize = 4096;

/// What the handshake tells a client about an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// The name under which it is found.
    pub name: String,
    /// A line for people; empty for none.
    pub description: String,
    /// Size and block sizes.
    pub geometry: Geometry,
}

impl ExportInfo {
    /// The transmission flags of this export.
    ///
    /// Several connections see one cache-coherent device (S5) and a flush on one covers the
    /// writes completed on all, hence `CAN_MULTI_CONN`. Zeroing is an entry in an index, never
    /// a write of zeroes, hence `SEND_FAST_ZERO`.
    pub fn flags(&self, headers: Headers) -> u16 {
        let mut common = wire::FLAG_HAS_FLAGS
            | wire::FLAG_SEND_FLUSH
            | wire::FLAG_SEND_FUA
            | wire::FLAG_SEND_CACHE
            | wire::FLAG_CAN_MULTI_CONN;
        if headers != Headers::Simple {
            common |= wire::FLAG_SEND_DF;
        }
        if self.geometry.read_only {
            return common | wire::FLAG_READ_ONLY;
        }
        common | wire::FLAG_SEND_TRIM | wire::FLAG_SEND_WRITE_ZEROES | wire::FLAG_SEND_FAST_ZERO
    }
}

/// At most what the protocol allows of a string, cut between characters.
fn clip(text: &str) -> &str {
    &text[..text.floor_char_boundary(NAME_BYTES_MAX)]
}
