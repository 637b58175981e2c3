//! How a listener and a connection name their own operations. All others are the request engine's
//! (`serve::is_engine_token`).

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
/// How long a connection may wait for an export that is being opened.
pub(super) const PARK_TIMER: Token = Token(10 << 56);
