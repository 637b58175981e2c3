//! The transmission phase: request headers in, checked requests out.
//!
//! A header is 28 bytes: magic u32, command flags u16, command u16, cookie u64, offset u64,
//! length u32. Only WRITE is followed by `length` payload bytes. An extended header has another
//! magic and a length of 64 bits; a flag says whether `length` payload bytes follow, which is
//! taken off the stream also where the command has no use for it.
//!
//! Everything that can be refused without the backend is refused here, so that what comes out
//! is inside the export, aligned, and of a known command with known flags.

use super::reply::{Headers, ReplyTo, Session};
use super::{PAYLOAD_BYTES_MAX, wire};
use blkmq::io::{Geometry, Op, SECTOR_BYTES};

const HEADER_BYTES: usize = 28;
const EXTENDED_HEADER_BYTES: usize = 32;

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
    /// The range will be read soon.
    Cache,
    /// Tell what is known of the range.
    BlockStatus,
}

impl Command {
    fn from_wire(code: u16) -> Option<Command> {
        Some(match code {
            wire::CMD_READ => Command::Read,
            wire::CMD_WRITE => Command::Write,
            wire::CMD_FLUSH => Command::Flush,
            wire::CMD_TRIM => Command::Trim,
            wire::CMD_WRITE_ZEROES => Command::WriteZeroes,
            wire::CMD_CACHE => Command::Cache,
            wire::CMD_BLOCK_STATUS => Command::BlockStatus,
            _ => return None,
        })
    }
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
    /// Length in bytes; that of a READ or WRITE is at most [`PAYLOAD_BYTES_MAX`].
    pub length: u64,
    /// Complete only once durable. Ignored by the protocol where it has no meaning.
    pub fua: bool,
    /// Answer a READ with one chunk.
    pub df: bool,
    /// Answer a BLOCK_STATUS with one extent per context.
    pub req_one: bool,
}

impl Request {
    /// What a reply needs of it.
    pub fn reply_to(&self) -> ReplyTo {
        ReplyTo {
            cookie: self.cookie,
            offset: self.offset,
        }
    }

    /// Bytes of payload that go with it, in one direction or the other.
    pub fn payload_bytes(&self) -> u32 {
        match self.command {
            Command::Read | Command::Write => self.length as u32,
            _ => 0,
        }
    }

    /// The same in the vocabulary that all transports share.
    ///
    /// NO_HOLE does not survive: a log has no preallocated place to keep, and the protocol asks
    /// a server to accept the flag, not to reserve space.
    pub fn op(&self) -> Op {
        let sector = self.offset / SECTOR_BYTES;
        let sectors = self.length / SECTOR_BYTES;
        let fua = self.fua;
        match self.command {
            Command::Read => Op::Read {
                sector,
                sectors: sectors as u32,
            },
            Command::Write => Op::Write {
                sector,
                sectors: sectors as u32,
                fua,
            },
            Command::Flush => Op::Flush,
            Command::Trim => Op::Discard {
                sector,
                sectors,
                fua,
            },
            Command::WriteZeroes => Op::WriteZeroes {
                sector,
                sectors,
                fua,
            },
            Command::Cache => Op::Prefetch { sector, sectors },
            Command::BlockStatus => Op::Status { sector, sectors },
        }
    }
}

/// A request that gets an error reply while the session goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The request.
    pub to: ReplyTo,
    /// The protocol's error value.
    pub error: u32,
    /// Why, for people; sent where the session has a place for it.
    pub why: &'static str,
}

/// Why a session cannot go on: after it nothing in the stream can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The header does not start with the request magic; there is no cookie to answer.
    #[error("request starts with {0:#010x} instead of the request magic")]
    Magic(u32),
    /// A request announces more payload than was advertised. It is answered, then closed: reading
    /// the payload to throw it away would let a client keep the server busy for nothing.
    #[error("payload of {length} bytes is larger than the advertised maximum")]
    Oversized {
        /// The request.
        to: ReplyTo,
        /// Announced length.
        length: u64,
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
    session: Session,
    partial: [u8; EXTENDED_HEADER_BYTES],
    filled: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder::new(Session::default())
    }
}

impl Decoder {
    /// A decoder at the start of the transmission phase.
    pub fn new(session: Session) -> Self {
        Decoder {
            state: State::Header,
            session,
            partial: [0; EXTENDED_HEADER_BYTES],
            filled: 0,
        }
    }

    /// A decoder in the middle of a stream, of whose next bytes `skip` belong to a refused request.
    pub(crate) fn resume(session: Session, skip: u32) -> Self {
        let state = match skip {
            0 => State::Header,
            left => State::Skip { left },
        };
        Decoder {
            state,
            ..Decoder::new(session)
        }
    }

    /// Where another decoder could go on: how many bytes are to be skipped, and the beginning of a
    /// header that was consumed. `None` in a payload, and where the session has ended.
    pub(crate) fn resume_point(&self) -> Option<(u32, &[u8])> {
        let begun = &self.partial[..self.filled];
        match self.state {
            State::Header => Some((0, begun)),
            State::Skip { left } => Some((left, begun)),
            State::Payload { .. } | State::Ended(_) => None,
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
                    let wanted = match self.session.headers {
                        Headers::Extended => EXTENDED_HEADER_BYTES,
                        Headers::Simple | Headers::Structured => HEADER_BYTES,
                    };
                    let taken = rest.len().min(wanted - self.filled);
                    let (head, _) = rest.split_at(taken);
                    self.partial[self.filled..self.filled + taken].copy_from_slice(head);
                    self.filled += taken;
                    consumed += taken;
                    if self.filled < wanted {
                        return (consumed, Event::NeedMore);
                    }
                    self.filled = 0;
                    let (state, event) = decode(&self.partial, self.session, limits);
                    self.state = state;
                    return (consumed, event);
                }
            }
        }
    }
}

fn bytes_at<const N: usize>(bytes: &[u8; EXTENDED_HEADER_BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// An error value, and why.
type Error = (u32, &'static str);

/// Judges one whole header.
fn decode(
    bytes: &[u8; EXTENDED_HEADER_BYTES],
    session: Session,
    limits: &Limits,
) -> (State, Event) {
    let magic = u32::from_be_bytes(bytes_at(bytes, 0));
    let flags = u16::from_be_bytes(bytes_at(bytes, 4));
    let code = u16::from_be_bytes(bytes_at(bytes, 6));
    let cookie = u64::from_be_bytes(bytes_at(bytes, 8));
    let offset = u64::from_be_bytes(bytes_at(bytes, 16));
    let is_extended = session.headers == Headers::Extended;
    let (expected, length) = match is_extended {
        true => (
            wire::EXTENDED_REQUEST_MAGIC,
            u64::from_be_bytes(bytes_at(bytes, 24)),
        ),
        false => (
            wire::REQUEST_MAGIC,
            u64::from(u32::from_be_bytes(bytes_at(bytes, 24))),
        ),
    };
    if magic != expected {
        let event = Event::Violated(Violation::Magic(magic));
        return (State::Ended(event), event);
    }
    let to = ReplyTo { cookie, offset };
    let has_payload = match is_extended {
        true => flags & wire::CMD_FLAG_PAYLOAD_LEN != 0,
        false => code == wire::CMD_WRITE,
    };
    if has_payload && length > u64::from(PAYLOAD_BYTES_MAX) {
        let event = Event::Violated(Violation::Oversized { to, length });
        return (State::Ended(event), event);
    }
    let payload = if has_payload { length as u32 } else { 0 };
    let refuse = |(error, why)| {
        let state = if payload > 0 {
            State::Skip { left: payload }
        } else {
            State::Header
        };
        (state, Event::Refused(Refusal { to, error, why }))
    };
    if code == wire::CMD_DISC {
        return (State::Ended(Event::Disconnect), Event::Disconnect);
    }
    let Some(command) = Command::from_wire(code) else {
        return refuse((wire::EINVAL, "the command is not known"));
    };
    if has_payload != (command == Command::Write) {
        let why = "a payload goes with WRITE, and with nothing else";
        return refuse((wire::EINVAL, why));
    }
    let request = Request {
        cookie,
        command,
        offset,
        length,
        fua: flags & wire::CMD_FLAG_FUA != 0,
        df: flags & wire::CMD_FLAG_DF != 0,
        req_one: flags & wire::CMD_FLAG_REQ_ONE != 0,
    };
    if let Err(error) = check(&request, flags, session, limits) {
        return refuse(error);
    }
    let state = if payload > 0 {
        State::Payload { left: payload }
    } else {
        State::Header
    };
    (state, Event::Request(request))
}

/// The flags that a command knows. FUA is legal on every one and ignored where it means nothing.
fn known_flags(command: Command, headers: Headers) -> u16 {
    let own = match command {
        Command::WriteZeroes => wire::CMD_FLAG_NO_HOLE | wire::CMD_FLAG_FAST_ZERO,
        Command::Read if headers != Headers::Simple => wire::CMD_FLAG_DF,
        Command::Write if headers == Headers::Extended => wire::CMD_FLAG_PAYLOAD_LEN,
        Command::BlockStatus => wire::CMD_FLAG_REQ_ONE,
        _ => 0,
    };
    own | wire::CMD_FLAG_FUA
}

/// The checks that need no backend, in the order in which clients expect their errors.
fn check(request: &Request, flags: u16, session: Session, limits: &Limits) -> Result<(), Error> {
    let &Request {
        command,
        offset,
        length,
        ..
    } = request;
    if flags & !known_flags(command, session.headers) != 0 {
        return Err((wire::EINVAL, "a flag is not known for this command"));
    }
    if command == Command::Flush {
        return if offset == 0 && length == 0 {
            Ok(())
        } else {
            Err((wire::EINVAL, "FLUSH takes no range"))
        };
    }
    if command == Command::BlockStatus && session.contexts.is_empty() {
        let why = "no metadata context was selected for this export";
        return Err((wire::EINVAL, why));
    }
    let changes = matches!(
        command,
        Command::Write | Command::Trim | Command::WriteZeroes
    );
    if changes && limits.read_only {
        return Err((wire::EPERM, "the export is read-only"));
    }
    if command == Command::Read && length > u64::from(PAYLOAD_BYTES_MAX) {
        return Err((wire::EINVAL, "a READ is of at most 32 MiB"));
    }
    let inside = offset
        .checked_add(length)
        .is_some_and(|end| end <= limits.bytes)
        && length > 0;
    if !inside {
        let grows = matches!(command, Command::Write | Command::WriteZeroes) && length > 0;
        let error = if grows { wire::ENOSPC } else { wire::EINVAL };
        return Err((error, "the range is empty or ends outside the export"));
    }
    let block = u64::from(limits.logical_block.max(SECTOR_BYTES as u32));
    if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
        let why = "the range does not keep to the advertised minimum block size";
        return Err((wire::EINVAL, why));
    }
    Ok(())
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
