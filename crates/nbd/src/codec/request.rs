//! The transmission phase: request headers in, checked requests out, simple replies back.
//!
//! A header is 28 bytes: magic u32, command flags u16, command u16, cookie u64, offset u64,
//! length u32. Only WRITE is followed by `length` payload bytes. A simple reply is 16 bytes:
//! magic u32, error u32, cookie u64; a successful READ's data follows it.
//!
//! Everything that can be refused without the backend is refused here, so that what comes out
//! is inside the export, aligned, and of a known command with known flags.

use super::{PAYLOAD_BYTES_MAX, wire};
use blkmq::io::{Geometry, Op, SECTOR_BYTES};

const HEADER_BYTES: usize = 28;

/// Length of a simple reply without data.
pub const SIMPLE_REPLY_BYTES: usize = 16;

/// What the checks need to know of the export. Taken anew for each call: an export may grow.
pub type Limits = Geometry;

/// The commands that reach a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Answer with the bytes.
    Read,
    /// Take the payload that follows.
    Write,
    /// Make completed writes durable.
    Flush,
    /// The range is no longer needed.
    Trim,
    /// The range reads as zeroes.
    WriteZeroes,
}

/// A request that passed every check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's name for it, to be echoed.
    pub cookie: u64,
    /// What to do.
    pub command: Command,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
    /// Complete only once durable. Ignored by the protocol where it has no meaning.
    pub fua: bool,
}

impl Request {
    /// The same in the vocabulary that all transports share.
    ///
    /// NO_HOLE does not survive: a log has no preallocated place to keep, and the protocol asks
    /// a server to accept the flag, not to reserve space.
    pub fn op(&self) -> Op {
        let sector = self.offset / SECTOR_BYTES;
        let sectors = self.length / SECTOR_BYTES as u32;
        let fua = self.fua;
        match self.command {
            Command::Read => Op::Read { sector, sectors },
            Command::Write => Op::Write {
                sector,
                sectors,
                fua,
            },
            Command::Flush => Op::Flush,
            Command::Trim => Op::Discard {
                sector,
                sectors: u64::from(sectors),
                fua,
            },
            Command::WriteZeroes => Op::WriteZeroes {
                sector,
                sectors: u64::from(sectors),
                fua,
            },
        }
    }
}

/// A request that gets an error reply while the session goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The request's cookie.
    pub cookie: u64,
    /// The protocol's error value.
    pub error: u32,
}

/// Why a session cannot go on: after it nothing in the stream can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The header does not start with the request magic; there is no cookie to answer.
    #[error("request starts with {0:#010x} instead of the request magic")]
    Magic(u32),
    /// A WRITE announces more payload than was advertised. It is answered, then closed: reading
    /// the payload to throw it away would let a client keep the server busy for nothing.
    #[error("write of {length} bytes is larger than the advertised maximum")]
    Oversized {
        /// The request's cookie.
        cookie: u64,
        /// Announced length.
        length: u32,
    },
}

/// What the decoder saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request. After a WRITE the payload follows as [`Event::Payload`] or is taken past the
    /// decoder with [`Decoder::consume_payload`].
    Request(Request),
    /// Answer this error. Payload that belongs to it is skipped.
    Refused(Refusal),
    /// The next `bytes` of the input, not yet consumed, are payload of the last WRITE.
    Payload {
        /// How many of the input's bytes.
        bytes: usize,
    },
    /// The client is done: finish what is in flight, then close.
    Disconnect,
    /// Everything given is consumed.
    NeedMore,
    /// Close; answer first where there is a cookie. The decoder answers the same from now on.
    Violated(Violation),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Header,
    Payload { left: u32 },
    Skip { left: u32 },
    Ended(Event),
}

/// The resumable decoder of one session's requests.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
    partial: [u8; HEADER_BYTES],
    filled: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder::new()
    }
}

impl Decoder {
    /// A decoder at the start of the transmission phase.
    pub fn new() -> Self {
        Decoder {
            state: State::Header,
            partial: [0; HEADER_BYTES],
            filled: 0,
        }
    }

    /// Payload bytes of the last WRITE that have not been seen yet.
    pub fn payload_bytes_left(&self) -> u32 {
        match self.state {
            State::Payload { left } => left,
            _ => 0,
        }
    }

    /// The caller took `bytes` of payload, from the input it was shown or straight from the
    /// socket. Never more than [`Decoder::payload_bytes_left`].
    pub fn consume_payload(&mut self, bytes: u32) {
        let left = self.payload_bytes_left();
        assert!(
            bytes <= left,
            "took {bytes} payload bytes where {left} were due"
        );
        if let State::Payload { left } = &mut self.state {
            *left -= bytes;
            if *left == 0 {
                self.state = State::Header;
            }
        }
    }

    /// The next event in `input` and how many bytes of it were consumed.
    ///
    /// Payload bytes are not consumed: they are the caller's ([`Decoder::consume_payload`]).
    pub fn next(&mut self, input: &[u8], limits: &Limits) -> (usize, Event) {
        let mut consumed = 0;
        loop {
            let rest = input.get(consumed..).unwrap_or_default();
            match self.state {
                State::Ended(event) => return (consumed, event),
                State::Payload { left } => {
                    let bytes = rest.len().min(left as usize);
                    let event = if bytes == 0 {
                        Event::NeedMore
                    } else {
                        Event::Payload { bytes }
                    };
                    return (consumed, event);
                }
                State::Skip { left } => {
                    let skipped = rest.len().min(left as usize);
                    consumed += skipped;
                    let left = left - skipped as u32;
                    if left > 0 {
                        self.state = State::Skip { left };
                        return (consumed, Event::NeedMore);
                    }
                    self.state = State::Header;
                }
                State::Header => {
                    let taken = rest.len().min(HEADER_BYTES - self.filled);
                    let (head, _) = rest.split_at(taken);
                    self.partial[self.filled..self.filled + taken].copy_from_slice(head);
                    self.filled += taken;
                    consumed += taken;
                    if self.filled < HEADER_BYTES {
                        return (consumed, Event::NeedMore);
                    }
                    self.filled = 0;
                    let (state, event) = decode(&self.partial, limits);
                    self.state = state;
                    return (consumed, event);
                }
            }
        }
    }
}

fn be<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Judges one whole header.
fn decode(bytes: &[u8; HEADER_BYTES], limits: &Limits) -> (State, Event) {
    let magic = u32::from_be_bytes(be(bytes, 0));
    let flags = u16::from_be_bytes(be(bytes, 4));
    let code = u16::from_be_bytes(be(bytes, 6));
    let cookie = u64::from_be_bytes(be(bytes, 8));
    let offset = u64::from_be_bytes(be(bytes, 16));
    let length = u32::from_be_bytes(be(bytes, 24));
    if magic != wire::REQUEST_MAGIC {
        let event = Event::Violated(Violation::Magic(magic));
        return (State::Ended(event), event);
    }
    if code == wire::CMD_WRITE && length > PAYLOAD_BYTES_MAX {
        let event = Event::Violated(Violation::Oversized { cookie, length });
        return (State::Ended(event), event);
    }
    let payload = if code == wire::CMD_WRITE { length } else { 0 };
    let refuse = |error| {
        let state = if payload > 0 {
            State::Skip { left: payload }
        } else {
            State::Header
        };
        (state, Event::Refused(Refusal { cookie, error }))
    };
    let command = match code {
        wire::CMD_READ => Command::Read,
        wire::CMD_WRITE => Command::Write,
        wire::CMD_FLUSH => Command::Flush,
        wire::CMD_TRIM => Command::Trim,
        wire::CMD_WRITE_ZEROES => Command::WriteZeroes,
        wire::CMD_DISC => return (State::Ended(Event::Disconnect), Event::Disconnect),
        _ => return refuse(wire::EINVAL),
    };
    if let Err(error) = check(command, flags, offset, length, limits) {
        return refuse(error);
    }
    let fua = flags & wire::CMD_FLAG_FUA != 0;
    let state = if payload > 0 {
        State::Payload { left: payload }
    } else {
        State::Header
    };
    (
        state,
        Event::Request(Request {
            cookie,
            command,
            offset,
            length,
            fua,
        }),
    )
}

/// The checks that need no backend, in the order in which clients expect their errors.
fn check(
    command: Command,
    flags: u16,
    offset: u64,
    length: u32,
    limits: &Limits,
) -> Result<(), u32> {
    // FUA is legal on every command and ignored where it means nothing.
    let known = match command {
        Command::WriteZeroes => {
            wire::CMD_FLAG_FUA | wire::CMD_FLAG_NO_HOLE | wire::CMD_FLAG_FAST_ZERO
        }
        _ => wire::CMD_FLAG_FUA,
    };
    if flags & !known != 0 {
        return Err(wire::EINVAL);
    }
    if command == Command::Flush {
        return if offset == 0 && length == 0 {
            Ok(())
        } else {
            Err(wire::EINVAL)
        };
    }
    let changes = command != Command::Read;
    if changes && limits.read_only {
        return Err(wire::EPERM);
    }
    if command == Command::Read && length > PAYLOAD_BYTES_MAX {
        return Err(wire::EINVAL);
    }
    let inside = offset
        .checked_add(u64::from(length))
        .is_some_and(|end| end <= limits.bytes)
        && length > 0;
    if !inside {
        let grows = matches!(command, Command::Write | Command::WriteZeroes) && length > 0;
        return Err(if grows { wire::ENOSPC } else { wire::EINVAL });
    }
    let block = u64::from(limits.logical_block.max(SECTOR_BYTES as u32));
    if !offset.is_multiple_of(block) || !u64::from(length).is_multiple_of(block) {
        return Err(wire::EINVAL);
    }
    Ok(())
}

/// The bytes of a simple reply; `error` 0 is success.
pub fn simple_reply(cookie: u64, error: u32) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut out = [0; SIMPLE_REPLY_BYTES];
    out[..4].copy_from_slice(&wire::SIMPLE_REPLY_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&error.to_be_bytes());
    out[8..].copy_from_slice(&cookie.to_be_bytes());
    out
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
