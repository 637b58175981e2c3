//! Frames of msgr2 revision 2.1, in crc mode and in secure mode (AES-128-GCM).
//!
//! Owns the bytes between two peers and nothing above them: what a control segment says is
//! `control`, when a frame may be sent is `link` and `session`. It must never allocate for a length
//! that it has not checked, and never wait: decoding is state that resumes with the next bytes,
//! so nothing is lost when input stops in the middle of a frame.
//!
//! ```text
//! preamble, 32 bytes:  tag u8 | segments u8 | 4 x { length u32, align u16 } | flags u8 | 0 u8 | crc u32
//! crc mode:    preamble | control | crc u32 | [ front | middle | data | epilogue 13 ]
//! secure mode: gcm(preamble | first 48 of control) 96 | [ gcm(rest of control) ] | [ gcm(segments, epilogue) ]
//! ```
//! Parts in brackets are there only when there is something in them. Trailing empty segments are
//! dropped. Every integer is little-endian. Revision 2.0 is refused: its frames authenticate
//! less, and it is deprecated for that reason.

mod banner;
mod decode;
mod encode;
mod preamble;
mod secure;
mod txbuf;

use bytes::Bytes;
use thiserror::Error;

pub use banner::{BANNER_LEN, Banner, BannerDecoder, FEATURE_REVISION_1};
pub use decode::Decoder;
pub use encode::Sealer;
pub use preamble::{PREAMBLE_LEN, Preamble};
pub use secure::{CONNECTION_SECRET_LEN, GcmStream, SecureKeys};
pub use txbuf::TxBuf;

/// What a frame is, as its preamble says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the protocol's own")]
pub enum Tag {
    Hello = 1,
    AuthRequest = 2,
    AuthBadMethod = 3,
    AuthReplyMore = 4,
    AuthRequestMore = 5,
    AuthDone = 6,
    AuthSignature = 7,
    ClientIdent = 8,
    ServerIdent = 9,
    IdentMissingFeatures = 10,
    SessionReconnect = 11,
    SessionReset = 12,
    SessionRetry = 13,
    SessionRetryGlobal = 14,
    SessionReconnectOk = 15,
    Wait = 16,
    Message = 17,
    Keepalive2 = 18,
    Keepalive2Ack = 19,
    Ack = 20,
    /// Ours: the application's own acknowledgement. Sent only to a peer that offered it.
    Done = 64,
}

impl Tag {
    /// All of them.
    pub const ALL: [Tag; 21] = [
        Tag::Hello,
        Tag::AuthRequest,
        Tag::AuthBadMethod,
        Tag::AuthReplyMore,
        Tag::AuthRequestMore,
        Tag::AuthDone,
        Tag::AuthSignature,
        Tag::ClientIdent,
        Tag::ServerIdent,
        Tag::IdentMissingFeatures,
        Tag::SessionReconnect,
        Tag::SessionReset,
        Tag::SessionRetry,
        Tag::SessionRetryGlobal,
        Tag::SessionReconnectOk,
        Tag::Wait,
        Tag::Message,
        Tag::Keepalive2,
        Tag::Keepalive2Ack,
        Tag::Ack,
        Tag::Done,
    ];

    fn from_wire(v: u8) -> Result<Self, FrameError> {
        Self::ALL
            .into_iter()
            .find(|t| *t as u8 == v)
            .ok_or(FrameError::Tag(v))
    }
}

/// A frame has at most this many segments.
pub const SEGMENTS_MAX: usize = 4;

/// Upper bounds of the four segments, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits(pub [u32; SEGMENTS_MAX]);

impl Limits {
    /// While the peer is not authenticated: one small control segment.
    pub const HANDSHAKE: Self = Self([4096, 0, 0, 0]);
    /// In an open session: what the kernel's client accepts of front, middle and data, and a
    /// control segment far above any that is defined.
    pub const OPEN: Self = Self([64 << 10, 16 << 20, 16 << 20, 64 << 20]);

    /// The same bounds with every message segment cut to `max` bytes.
    pub fn with_segment_max(self, max: u32) -> Self {
        let [control, rest @ ..] = self.0;
        let [front, middle, data] = rest.map(|n| n.min(max));
        Self([control, front, middle, data])
    }
}

/// One whole, checked frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What the frame is.
    pub tag: Tag,
    /// The sender gave the frame up half way: control is good, the other segments are not there.
    pub aborted: bool,
    /// Control, front, middle, data; absent ones are empty.
    pub segments: [Bytes; SEGMENTS_MAX],
}

impl Frame {
    /// A frame with a control segment alone.
    pub fn control(tag: Tag, control: Vec<u8>) -> Self {
        let segments = [
            Bytes::from(control),
            Bytes::new(),
            Bytes::new(),
            Bytes::new(),
        ];
        Self {
            tag,
            aborted: false,
            segments,
        }
    }
}

/// Why bytes from a peer are no frame. Every one of these ends the connection.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The first bytes are not those of msgr2.
    #[error("the peer does not speak msgr2 (its first bytes are {got:02x?})")]
    NotMsgr2 {
        /// The first bytes it sent.
        got: Vec<u8>,
    },
    /// The peer speaks an older revision, or requires something this version does not offer.
    #[error(
        "the peer supports msgr2 features {supported:#x} and requires {required:#x}; revision 2.1 \
         (bit 0) and nothing more is offered here"
    )]
    Revision {
        /// What it supports.
        supported: u64,
        /// What it requires.
        required: u64,
    },
    /// An unknown frame type.
    #[error("frame type {0} is not one of msgr2.1")]
    Tag(u8),
    /// The number of segments, or an empty last one.
    #[error("a frame of {count} segments, the last {last} bytes long, is malformed")]
    Segments {
        /// How many there are.
        count: u8,
        /// How long the last one is.
        last: u32,
    },
    /// A segment above its bound; nothing was allocated for it.
    #[error("segment {segment} announces {len} bytes, more than the {max} allowed here")]
    TooLong {
        /// Which segment.
        segment: usize,
        /// The announced length.
        len: u32,
        /// The bound.
        max: u32,
    },
    /// Flags of frames that this version does not speak (compression).
    #[error("frame flags {0:#x} were not negotiated")]
    Flags(u8),
    /// A checksum that does not match.
    #[error("checksum of the {part} does not match: sent {sent:#010x}, computed {computed:#010x}")]
    Checksum {
        /// What it covers.
        part: &'static str,
        /// As sent.
        sent: u32,
        /// As computed here.
        computed: u32,
    },
    /// A secure frame whose tag does not verify.
    #[error("the authentication tag of the {part} does not verify")]
    Authentication {
        /// What it covers.
        part: &'static str,
    },
    /// An epilogue that says neither complete nor aborted.
    #[error("late status {0:#x} is neither complete nor aborted")]
    LateStatus(u8),
    /// Bytes after an error.
    #[error("the connection already failed")]
    Failed,
}

/// crc-32c as msgr2 uses it: started at -1 and not inverted at the end.
pub(crate) fn crc(data: &[u8]) -> u32 {
    !crc_fast::crc32_iscsi(data)
}

/// What [`crc`] gives for as many zero bytes as a preamble's checksum covers. The checksum is an
/// affine function of its start value, so `crc(data) ^ CRC_ZEROS_28` is the checksum started at 0.
const CRC_ZEROS_28: u32 = 0x0836_3896;

/// The preamble's checksum: started at 0, not inverted.
pub(crate) fn preamble_crc(data: &[u8; 28]) -> u32 {
    crc(data) ^ CRC_ZEROS_28
}

const LATE_COMPLETE: u8 = 0xe;
const LATE_ABORTED: u8 = 0x1;
const EPILOGUE_CRC_LEN: usize = 13;
const GCM_BLOCK: usize = 16;
const GCM_TAG: usize = 16;
/// How much of a control segment rides in the first secure block.
const INLINE: usize = 48;

fn pad_block(n: usize) -> usize {
    n.div_ceil(GCM_BLOCK) * GCM_BLOCK
}

#[cfg(test)]
mod tests;
