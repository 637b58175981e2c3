//! How the engine names its operations: a kind, and the request's tag and piece.
//!
//! A transport names its own operations with tokens of which [`is_engine_token`] is false.

use reactor::Token;

/// The clock of parked requests.
pub(crate) const TICK: Token = Token(0);

const PIECE: u64 = 1;
const BUFFER: u64 = 2;
const COPY: u64 = 3;

/// What an operation of the engine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tick,
    /// A file operation of this piece.
    Piece(u16, usize),
    /// A buffer, for the whole request or for a piece that bounces.
    Buffer(u16),
    /// Bytes between a buffer and the request's window.
    Copy(u16),
}

/// Whether this token is one of an engine's. All others are its transport's.
pub fn is_engine_token(token: Token) -> bool {
    token.0 >> 48 <= COPY
}

const fn of(kind: u64, tag: u16, piece: u32) -> Token {
    Token(kind << 48 | (tag as u64) << 32 | piece as u64)
}

pub(crate) fn piece(tag: u16, piece: u32) -> Token {
    of(PIECE, tag, piece)
}

pub(crate) fn buffer(tag: u16) -> Token {
    of(BUFFER, tag, 0)
}

pub(crate) fn copy(tag: u16) -> Token {
    of(COPY, tag, 0)
}

pub(crate) fn parse(token: Token) -> Kind {
    let tag = (token.0 >> 32) as u16;
    match token.0 >> 48 {
        PIECE => Kind::Piece(tag, (token.0 & u64::from(u32::MAX)) as usize),
        BUFFER => Kind::Buffer(tag),
        COPY => Kind::Copy(tag),
        _ => Kind::Tick,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_tells_its_tag_and_piece() {
        assert!(is_engine_token(TICK) && is_engine_token(copy(u16::MAX)));
        assert!(!is_engine_token(Token(1 << 56)));
        assert_eq!(parse(piece(4095, 77)), Kind::Piece(4095, 77));
        assert_eq!(parse(buffer(2)), Kind::Buffer(2));
        assert_eq!(parse(copy(3)), Kind::Copy(3));
        assert_eq!(parse(TICK), Kind::Tick);
    }
}
