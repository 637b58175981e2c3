//! How a connection names its operations: a kind, and for those of a request its tag and piece.

use reactor::Token;

/// Bytes into the staging buffer.
pub(super) const RECV: Token = Token(1 << 56);
/// A buffer for a payload.
pub(super) const PAYLOAD_BUFFER: Token = Token(2 << 56);
/// A payload straight into its buffer.
pub(super) const PAYLOAD: Token = Token(3 << 56);
/// Replies.
pub(super) const SEND: Token = Token(4 << 56);
/// The handshake's deadline.
pub(super) const HANDSHAKE_TIMER: Token = Token(5 << 56);
/// The peer's end while nothing is received.
pub(super) const HANGUP: Token = Token(6 << 56);
/// The clock of parked requests.
pub(super) const TICK: Token = Token(7 << 56);
/// A connection to be accepted.
pub(super) const ACCEPT: Token = Token(8 << 56);
/// The pause after a failed accept.
pub(super) const ACCEPT_PAUSE: Token = Token(9 << 56);

const PIECE: u64 = 16;
const BOUNCE: u64 = 17;
const READ_BUFFER: u64 = 18;

fn of(kind: u64, tag: u16, piece: u32) -> Token {
    Token(kind << 56 | u64::from(tag) << 32 | u64::from(piece))
}

/// A file operation for a piece of a request.
pub(super) fn piece(tag: u16, piece: u32) -> Token {
    of(PIECE, tag, piece)
}

/// A bounce buffer for a request.
pub(super) fn bounce(tag: u16) -> Token {
    of(BOUNCE, tag, 0)
}

/// A buffer for a read.
pub(super) fn read_buffer(tag: u16) -> Token {
    of(READ_BUFFER, tag, 0)
}

/// Whether the token belongs to a request.
pub(super) fn is_of_request(token: Token) -> bool {
    token.0 >> 56 >= PIECE
}

/// The request's tag.
pub(super) fn tag(token: Token) -> u16 {
    (token.0 >> 32) as u16
}

/// The piece's number.
pub(super) fn piece_number(token: Token) -> usize {
    (token.0 & u64::from(u32::MAX)) as usize
}
