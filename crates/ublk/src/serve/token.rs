//! How the mover names its operations: a kind, and the request's tag and piece.

use reactor::Token;

/// The clock of parked requests.
pub(super) const TICK: Token = Token(0);

const PIECE: u64 = 1;
const BOUNCE: u64 = 2;
const BUFFER: u64 = 3;
const COPY: u64 = 4;

/// What an operation of the mover is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    Tick,
    /// A file operation of this piece.
    Piece(u16, usize),
    /// A bounce buffer.
    Bounce(u16),
    /// A buffer for the whole request.
    Buffer(u16),
    /// Bytes between a buffer and the request's window.
    Copy(u16),
}

const fn of(kind: u64, tag: u16, piece: u32) -> Token {
    Token(kind << 48 | (tag as u64) << 32 | piece as u64)
}

pub(super) fn piece(tag: u16, piece: u32) -> Token {
    of(PIECE, tag, piece)
}

pub(super) fn bounce(tag: u16) -> Token {
    of(BOUNCE, tag, 0)
}

pub(super) fn buffer(tag: u16) -> Token {
    of(BUFFER, tag, 0)
}

pub(super) fn copy(tag: u16) -> Token {
    of(COPY, tag, 0)
}

pub(super) fn parse(token: Token) -> Named {
    let tag = (token.0 >> 32) as u16;
    match token.0 >> 48 {
        PIECE => Named::Piece(tag, (token.0 & u64::from(u32::MAX)) as usize),
        BOUNCE => Named::Bounce(tag),
        BUFFER => Named::Buffer(tag),
        COPY => Named::Copy(tag),
        _ => Named::Tick,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_tells_its_tag_and_piece() {
        assert_eq!(parse(piece(4095, 77)), Named::Piece(4095, 77));
        assert_eq!(parse(bounce(1)), Named::Bounce(1));
        assert_eq!(parse(buffer(2)), Named::Buffer(2));
        assert_eq!(parse(copy(3)), Named::Copy(3));
        assert_eq!(parse(TICK), Named::Tick);
    }
}
