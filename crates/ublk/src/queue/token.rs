//! The names of a queue's operations and wakers. A token has the highest bit, a kind, and a tag or
//! slot; tokens without the highest bit are the handler's. A FETCH or COMMIT_AND_FETCH, which only the
//! queue issues, has a number instead. Waker keys are counted down from the highest.

use reactor::Token;

/// Waker key: the return queue has entries.
pub(super) const KEY_RETURN_QUEUE: u64 = u64::MAX;
/// Waker key: drain. The queue finishes the requests in hand, reports it, and holds new ones back.
pub(crate) const KEY_DRAIN: u64 = u64::MAX - 1;
/// Waker key: serve again after a drain.
pub(crate) const KEY_RESUME: u64 = u64::MAX - 2;
/// Waker key: detach after a drain, as soon as the driver has none of the queue's tags. The handler's
/// keys are below it.
pub(crate) const KEY_RELEASE: u64 = u64::MAX - 3;

/// Set in every token of the queue itself.
const OWN: u64 = 1 << 63;

/// Which command a tag has with the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandKind {
    /// FETCH or COMMIT_AND_FETCH: completes when a request arrives.
    Fetch = 0,
    /// NEED_GET_DATA: the driver copies a write's bytes to its buffer.
    GetData = 1,
}

/// The number of a tag's command.
#[inline]
pub(super) fn command_number(kind: CommandKind, tag: u16) -> u32 {
    (kind as u32) << 16 | u32::from(tag)
}

/// The command of this number, and its tag.
#[inline]
pub(super) fn parse_command_number(number: u32) -> (CommandKind, u16) {
    let kind = match number >> 16 {
        0 => CommandKind::Fetch,
        _ => CommandKind::GetData,
    };
    (kind, number as u16)
}

/// What an operation of the queue itself is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpKind {
    /// REGISTER_IO_BUF: a request's pages go into a slot.
    Register = 0,
    /// UNREGISTER_IO_BUF; its number is the slot.
    Unregister = 1,
    /// A buffer for a write.
    Buffer = 2,
    /// The pause before a refused command is sent again.
    RetryTimer = 3,
    /// The time that the remaining tags have after the driver aborted the first one.
    GraceTimer = 4,
    /// The pause before a user's pool that failed is asked again.
    PoolTimer = 5,
}

pub(super) fn queue_token(kind: OpKind, number: u16) -> Token {
    Token(OWN | (kind as u64) << 32 | u64::from(number))
}

/// A kind and number of the queue itself, or the handler's token.
pub(super) fn parse(token: Token) -> Result<(OpKind, u16), u64> {
    if token.0 & OWN == 0 {
        return Err(token.0);
    }
    let kind = match token.0 >> 32 & 0xff {
        0 => OpKind::Register,
        1 => OpKind::Unregister,
        2 => OpKind::Buffer,
        3 => OpKind::RetryTimer,
        4 => OpKind::GraceTimer,
        _ => OpKind::PoolTimer,
    };
    Ok((kind, token.0 as u16))
}

/// Panics if a handler's token has the highest bit.
pub(super) fn check_handler(token: Token) -> Token {
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
        use OpKind::*;
        for kind in [
            Register, Unregister, Buffer, RetryTimer, GraceTimer, PoolTimer,
        ] {
            assert_eq!(parse(queue_token(kind, 4095)), Ok((kind, 4095)));
        }
        assert_eq!(parse(Token(17)), Err(17));
        for kind in [CommandKind::Fetch, CommandKind::GetData] {
            assert_eq!(
                parse_command_number(command_number(kind, u16::MAX)),
                (kind, u16::MAX)
            );
        }
    }
}
