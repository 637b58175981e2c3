//! How a queue names its operations: the highest bit, a kind, and a tag or slot. Tokens without
//! the highest bit are the handler's. Armed commands, which are all the queue's, have numbers.

use reactor::Token;

/// Set in every token of the queue's own.
const OWN: u64 = 1 << 63;

/// What an armed command of a tag is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Armed {
    /// A fetch or commit; ends with a request.
    Command = 0,
    /// A write's data are being copied to its buffer.
    GetData = 1,
}

/// The number of an armed command.
#[inline]
pub(super) fn armed(kind: Armed, tag: u16) -> u32 {
    (kind as u32) << 16 | u32::from(tag)
}

/// What an armed command of this number is for, and its tag.
#[inline]
pub(super) fn parse_armed(number: u32) -> (Armed, u16) {
    let kind = match number >> 16 {
        0 => Armed::Command,
        _ => Armed::GetData,
    };
    (kind, number as u16)
}

/// What an operation of the queue's own is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A request's pages are being put into a slot.
    Register = 0,
    /// They are being taken out; named by the slot.
    Unregister = 1,
    /// A buffer for a write.
    Buffer = 2,
    /// The pause before a refused command is sent again.
    Pause = 3,
    /// The time that a queue which lost a tag waits for the rest.
    Grace = 4,
    /// The pause before a pool of the user's that failed is asked again.
    Pool = 5,
}

pub(super) fn own(kind: Kind, number: u16) -> Token {
    Token(OWN | (kind as u64) << 32 | u64::from(number))
}

/// Whose token it is: a kind and number of the queue's own, or the handler's.
pub(super) fn parse(token: Token) -> Result<(Kind, u16), u64> {
    if token.0 & OWN == 0 {
        return Err(token.0);
    }
    let kind = match token.0 >> 32 & 0xff {
        0 => Kind::Register,
        1 => Kind::Unregister,
        2 => Kind::Buffer,
        3 => Kind::Pause,
        4 => Kind::Grace,
        _ => Kind::Pool,
    };
    Ok((kind, token.0 as u16))
}

/// A handler's token must leave the highest bit alone.
pub(super) fn of_handler(token: Token) -> Token {
    assert!(
        token.0 & OWN == 0,
        "token {:#x} is not a handler's",
        token.0
    );
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_tells_its_kind_and_number() {
        use Kind::*;
        for kind in [Register, Unregister, Buffer, Pause, Grace, Pool] {
            assert_eq!(parse(own(kind, 4095)), Ok((kind, 4095)));
        }
        assert_eq!(parse(Token(17)), Err(17));
        for kind in [Armed::Command, Armed::GetData] {
            assert_eq!(parse_armed(armed(kind, u16::MAX)), (kind, u16::MAX));
        }
    }
}
