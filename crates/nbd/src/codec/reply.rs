//! Replies of the transmission phase: simple ones, and the chunks of structured and extended ones.
//!
//! Appends bytes to the caller's buffer and owns nothing. A chunk of data is only begun here: the
//! bytes follow it from wherever the caller has them, uncopied.

use blkmq::io::{Extents, SECTOR_BYTES};

use super::meta::{ContextSet, MetaContext};
use super::wire;

/// Length of a simple reply without data.
pub const SIMPLE_REPLY_BYTES: usize = 16;

/// How messages of the transmission phase look, as the handshake agreed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Headers {
    /// Requests of 28 bytes, simple replies.
    #[default]
    Simple,
    /// Requests of 28 bytes; reads and errors are answered in chunks.
    Structured,
    /// Requests and chunks of 32 bytes with lengths of 64 bits.
    Extended,
}

/// What the handshake agreed on for the transmission phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// How messages look.
    pub headers: Headers,
    /// What BLOCK_STATUS reports; nothing where none was selected for the export.
    pub contexts: ContextSet,
}

/// The request that a reply belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// Its cookie.
    pub cookie: u64,
    /// Its offset, which extended headers repeat.
    pub offset: u64,
}

/// Whether a chunk ends its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Others follow.
    Inner,
    /// It is the last one.
    Last,
}

/// The bytes of a simple reply; `error` 0 is success.
pub fn simple_reply(cookie: u64, error: u32) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut out = [0; SIMPLE_REPLY_BYTES];
    out[..4].copy_from_slice(&wire::SIMPLE_REPLY_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&error.to_be_bytes());
    out[8..].copy_from_slice(&cookie.to_be_bytes());
    out
}

impl Headers {
    /// Appends the header of a chunk of `kind` with `length` bytes of payload.
    fn push_chunk(
        self,
        out: &mut Vec<u8>,
        to: ReplyTo,
        position: Position,
        kind: u16,
        length: usize,
    ) {
        let flags = match position {
            Position::Inner => 0,
            Position::Last => wire::REPLY_FLAG_DONE,
        };
        let magic = match self {
            Headers::Extended => wire::EXTENDED_REPLY_MAGIC,
            Headers::Simple | Headers::Structured => wire::STRUCTURED_REPLY_MAGIC,
        };
        out.extend_from_slice(&magic.to_be_bytes());
        out.extend_from_slice(&flags.to_be_bytes());
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&to.cookie.to_be_bytes());
        if self == Headers::Extended {
            out.extend_from_slice(&to.offset.to_be_bytes());
            out.extend_from_slice(&(length as u64).to_be_bytes());
        } else {
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }

    /// Appends the reply to a request that succeeded and brings nothing.
    pub fn push_success(self, out: &mut Vec<u8>, to: ReplyTo) {
        match self {
            // Allowed, and the shortest, whatever was negotiated but extended headers.
            Headers::Simple | Headers::Structured => {
                out.extend_from_slice(&simple_reply(to.cookie, 0));
            }
            Headers::Extended => self.push_chunk(out, to, Position::Last, wire::REPLY_NONE, 0),
        }
    }

    /// Appends the reply to a request that failed: at byte `at` of the export, if that is known.
    pub fn push_error(
        self,
        out: &mut Vec<u8>,
        to: ReplyTo,
        error: u32,
        why: &str,
        at: Option<u64>,
    ) {
        if self == Headers::Simple {
            return out.extend_from_slice(&simple_reply(to.cookie, error));
        }
        let why = super::clip(why);
        let (kind, tail) = match at {
            Some(_) => (wire::REPLY_ERROR_OFFSET, 8),
            None => (wire::REPLY_ERROR, 0),
        };
        self.push_chunk(out, to, Position::Last, kind, 6 + why.len() + tail);
        out.extend_from_slice(&error.to_be_bytes());
        out.extend_from_slice(&(why.len() as u16).to_be_bytes());
        out.extend_from_slice(why.as_bytes());
        if let Some(at) = at {
            out.extend_from_slice(&at.to_be_bytes());
        }
    }

    /// Appends what comes before `length` bytes of data from byte `at` of the export on.
    pub fn push_data_header(
        self,
        out: &mut Vec<u8>,
        to: ReplyTo,
        position: Position,
        at: u64,
        length: usize,
    ) {
        self.push_chunk(out, to, position, wire::REPLY_OFFSET_DATA, 8 + length);
        out.extend_from_slice(&at.to_be_bytes());
    }

    /// Appends a chunk that says: zeroes, so many from byte `at` of the export on.
    pub fn push_hole(
        self,
        out: &mut Vec<u8>,
        to: ReplyTo,
        position: Position,
        at: u64,
        length: u32,
    ) {
        self.push_chunk(out, to, position, wire::REPLY_OFFSET_HOLE, 12);
        out.extend_from_slice(&at.to_be_bytes());
        out.extend_from_slice(&length.to_be_bytes());
    }

    /// Appends the chunks of a BLOCK_STATUS reply: one per selected context, each from the
    /// request's offset on; with `one` only the first extent of each.
    pub fn push_status(
        self,
        out: &mut Vec<u8>,
        to: ReplyTo,
        contexts: ContextSet,
        extents: &Extents,
        one: bool,
    ) {
        let mut left = contexts.iter().count();
        for context in contexts.iter() {
            left -= 1;
            let position = if left == 0 {
                Position::Last
            } else {
                Position::Inner
            };
            let mut described = describe(context, extents);
            if one {
                described.truncate(1);
            }
            self.push_descriptors(out, to, position, context, &described);
        }
    }

    fn push_descriptors(
        self,
        out: &mut Vec<u8>,
        to: ReplyTo,
        position: Position,
        context: MetaContext,
        described: &[(u64, u32)],
    ) {
        let count = described.len();
        if self == Headers::Extended {
            let kind = wire::REPLY_BLOCK_STATUS_EXT;
            self.push_chunk(out, to, position, kind, 8 + 16 * count);
            out.extend_from_slice(&context.id().to_be_bytes());
            out.extend_from_slice(&(count as u32).to_be_bytes());
            for (bytes, state) in described {
                out.extend_from_slice(&bytes.to_be_bytes());
                out.extend_from_slice(&u64::from(*state).to_be_bytes());
            }
            return;
        }
        let kind = wire::REPLY_BLOCK_STATUS;
        self.push_chunk(out, to, position, kind, 4 + 8 * count);
        out.extend_from_slice(&context.id().to_be_bytes());
        for (bytes, state) in described {
            // The request's length is of 32 bits, and no extent reaches beyond it.
            out.extend_from_slice(&(*bytes as u32).to_be_bytes());
            out.extend_from_slice(&state.to_be_bytes());
        }
    }
}

/// Lengths in bytes and states of what a context has to say; neighbours that are alike are one.
fn describe(context: MetaContext, extents: &Extents) -> Vec<(u64, u32)> {
    let mut described: Vec<(u64, u32)> = Vec::with_capacity(extents.len());
    for extent in extents.iter() {
        let (bytes, state) = (extent.sectors * SECTOR_BYTES, context.state(extent));
        match described.last_mut() {
            Some((length, before)) if *before == state => *length += bytes,
            _ => described.push((bytes, state)),
        }
    }
    described
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
