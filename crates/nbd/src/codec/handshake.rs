//! The handshake phase: greeting, client flags, options, until an export is chosen.
//!
//! One option is taken at a time and its whole answer is appended to the caller's buffer before
//! the next is looked at, so a client that asks without reading makes no queue grow: the caller
//! sends what it has before it feeds more.

use super::{ExportInfo, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, wire};

/// Option data that is looked at: a name, its length, and a generous list of wanted facts.
const OPTION_BYTES_MAX: u32 = 8192;
/// Option data that is skipped politely. Beyond it the session ends.
const OPTION_SKIP_BYTES_MAX: u32 = 64 << 10;
/// Magic, option, length.
const OPTION_HEADER_BYTES: usize = 16;

/// One line of an export list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportEntry {
    /// Name.
    pub name: String,
    /// Description; empty for none.
    pub description: String,
}

/// Where exports are looked up. Answers from memory.
pub trait Directory {
    /// What the transmission phase needs of an export that was found.
    type Export;

    /// The export of this name. The empty name asks for the default export.
    fn find(&self, name: &str) -> Option<(Self::Export, ExportInfo)>;

    /// All exports that are to be listed.
    fn list(&self) -> Vec<ExportEntry>;
}

/// What a call of [`Handshake::receive`] led to.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress<E> {
    /// Send what was answered, then feed more.
    NeedMore,
    /// Send what was answered, then begin the transmission phase with this export.
    Transmission(E),
    /// Send what was answered, then close.
    Close(CloseReason),
}

/// Why a handshake ended without an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The client asked to end the session.
    #[error("the client ended the handshake")]
    Aborted,
    /// The client sent flags that this server did not offer.
    #[error("client flags {0:#x} were not offered")]
    ClientFlags(u32),
    /// An option did not start with its magic.
    #[error("option starts with {0:#018x} instead of the option magic")]
    Magic(u64),
    /// An option announced more data than is worth skipping.
    #[error("option {option} announces {length} bytes")]
    Oversized {
        /// The option.
        option: u32,
        /// Announced length.
        length: u32,
    },
    /// EXPORT_NAME asked for an export that does not exist, and knows no error reply.
    #[error("no such export, and the option used has no error reply")]
    UnknownExport,
    /// A client without the fixed newstyle handshake used an option that needs it.
    #[error("option {0} needs the fixed newstyle handshake")]
    NotFixed(u32),
}

#[derive(Clone, Copy, Debug)]
enum State {
    ClientFlags,
    OptionHeader,
    OptionData { option: u32, length: u32 },
    Skip { left: u32 },
    Ended(Option<CloseReason>),
}

/// The resumable handshake of one session.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    /// The part of a header or of option data seen so far; never beyond `OPTION_BYTES_MAX`.
    partial: Vec<u8>,
    fixed: bool,
    no_zeroes: bool,
}

impl Default for Handshake {
    fn default() -> Self {
        Handshake::new()
    }
}

impl Handshake {
    /// A handshake whose greeting is about to be sent.
    pub fn new() -> Self {
        Handshake {
            state: State::ClientFlags,
            partial: Vec::new(),
            fixed: false,
            no_zeroes: false,
        }
    }

    /// The first bytes on the wire, sent by the server.
    pub fn greeting() -> [u8; 18] {
        let mut out = [0; 18];
        out[..8].copy_from_slice(&wire::GREETING_MAGIC.to_be_bytes());
        out[8..16].copy_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
        let flags = wire::HANDSHAKE_FIXED_NEWSTYLE | wire::HANDSHAKE_NO_ZEROES;
        out[16..].copy_from_slice(&flags.to_be_bytes());
        out
    }

    /// Takes bytes from the client, appends answers to `out`, and says how many bytes were
    /// consumed. Stops after each answered option: call again with the rest once `out` is sent.
    pub fn receive<D: Directory>(
        &mut self,
        input: &[u8],
        directory: &D,
        out: &mut Vec<u8>,
    ) -> (usize, Progress<D::Export>) {
        let mut consumed = 0;
        loop {
            let rest = input.get(consumed..).unwrap_or_default();
            match self.state {
                State::Ended(reason) => {
                    return (
                        consumed,
                        Progress::Close(reason.unwrap_or(CloseReason::Aborted)),
                    );
                }
                State::Skip { left } => {
                    let skipped = rest.len().min(left as usize);
                    consumed += skipped;
                    let left = left - skipped as u32;
                    if left > 0 {
                        self.state = State::Skip { left };
                        return (consumed, Progress::NeedMore);
                    }
                    self.state = State::OptionHeader;
                }
                State::ClientFlags => {
                    if !self.gather(rest, 4, &mut consumed) {
                        return (consumed, Progress::NeedMore);
                    }
                    let flags = u32_at(&self.partial, 0).unwrap_or_default();
                    self.partial.clear();
                    if let Some(reason) = self.client_flags(flags) {
                        return (consumed, self.end(reason));
                    }
                }
                State::OptionHeader => {
                    if !self.gather(rest, OPTION_HEADER_BYTES, &mut consumed) {
                        return (consumed, Progress::NeedMore);
                    }
                    let header = std::mem::take(&mut self.partial);
                    if let Some(reason) = self.option_header(&header, out) {
                        return (consumed, self.end(reason));
                    }
                }
                State::OptionData { option, length } => {
                    if !self.gather(rest, length as usize, &mut consumed) {
                        return (consumed, Progress::NeedMore);
                    }
                    let data = std::mem::take(&mut self.partial);
                    self.state = State::OptionHeader;
                    return (consumed, self.option(option, &data, directory, out));
                }
            }
        }
    }

    /// Fills `partial` up to `wanted` bytes; true once it is full.
    fn gather(&mut self, rest: &[u8], wanted: usize, consumed: &mut usize) -> bool {
        let taken = rest.len().min(wanted - self.partial.len());
        self.partial
            .extend_from_slice(rest.get(..taken).unwrap_or_default());
        *consumed += taken;
        self.partial.len() == wanted
    }

    fn end<E>(&mut self, reason: CloseReason) -> Progress<E> {
        self.state = State::Ended(Some(reason));
        Progress::Close(reason)
    }

    fn client_flags(&mut self, flags: u32) -> Option<CloseReason> {
        if flags & !(wire::CLIENT_FIXED_NEWSTYLE | wire::CLIENT_NO_ZEROES) != 0 {
            return Some(CloseReason::ClientFlags(flags));
        }
        self.fixed = flags & wire::CLIENT_FIXED_NEWSTYLE != 0;
        self.no_zeroes = flags & wire::CLIENT_NO_ZEROES != 0;
        self.state = State::OptionHeader;
        None
    }

    fn option_header(&mut self, header: &[u8], out: &mut Vec<u8>) -> Option<CloseReason> {
        let magic = u64_at(header, 0).unwrap_or_default();
        let option = u32_at(header, 8).unwrap_or_default();
        let length = u32_at(header, 12).unwrap_or_default();
        if magic != wire::OPTION_MAGIC {
            return Some(CloseReason::Magic(magic));
        }
        if !self.fixed && option != wire::OPT_EXPORT_NAME {
            return Some(CloseReason::NotFixed(option));
        }
        if length <= OPTION_BYTES_MAX {
            self.state = State::OptionData { option, length };
            return None;
        }
        // EXPORT_NAME knows no error reply, and a length beyond reason is not worth reading.
        if option == wire::OPT_EXPORT_NAME {
            return Some(CloseReason::Oversized { option, length });
        }
        refuse(
            out,
            option,
            wire::REP_ERR_TOO_BIG,
            "option data is larger than 8192 bytes",
        );
        if length > OPTION_SKIP_BYTES_MAX {
            return Some(CloseReason::Oversized { option, length });
        }
        self.state = State::Skip { left: length };
        None
    }

    fn option<D: Directory>(
        &mut self,
        option: u32,
        data: &[u8],
        directory: &D,
        out: &mut Vec<u8>,
    ) -> Progress<D::Export> {
        match option {
            wire::OPT_EXPORT_NAME => self.export_name(data, directory, out),
            wire::OPT_ABORT => {
                reply(out, option, wire::REP_ACK, &[]);
                self.end(CloseReason::Aborted)
            }
            wire::OPT_LIST => {
                list(data, directory, out);
                Progress::NeedMore
            }
            wire::OPT_INFO | wire::OPT_GO => match info(option, data, directory, out) {
                Some(export) if option == wire::OPT_GO => {
                    self.state = State::Ended(None);
                    Progress::Transmission(export)
                }
                _ => Progress::NeedMore,
            },
            _ => {
                refuse(out, option, wire::REP_ERR_UNSUP, "option is not supported");
                Progress::NeedMore
            }
        }
    }

    fn export_name<D: Directory>(
        &mut self,
        data: &[u8],
        directory: &D,
        out: &mut Vec<u8>,
    ) -> Progress<D::Export> {
        let found = (data.len() <= NAME_BYTES_MAX)
            .then(|| std::str::from_utf8(data).ok())
            .flatten()
            .and_then(|name| directory.find(name));
        let Some((export, info)) = found else {
            return self.end(CloseReason::UnknownExport);
        };
        out.extend_from_slice(&info.geometry.bytes.to_be_bytes());
        out.extend_from_slice(&info.flags().to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        self.state = State::Ended(None);
        Progress::Transmission(export)
    }
}

fn list<D: Directory>(data: &[u8], directory: &D, out: &mut Vec<u8>) {
    if !data.is_empty() {
        refuse(
            out,
            wire::OPT_LIST,
            wire::REP_ERR_INVALID,
            "LIST takes no data",
        );
        return;
    }
    for export in directory.list() {
        let name = clip(&export.name);
        let mut body = Vec::with_capacity(4 + name.len() + export.description.len());
        body.extend_from_slice(&(name.len() as u32).to_be_bytes());
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(clip(&export.description).as_bytes());
        reply(out, wire::OPT_LIST, wire::REP_SERVER, &body);
    }
    reply(out, wire::OPT_LIST, wire::REP_ACK, &[]);
}

/// Answers INFO and GO; the export where everything was right.
fn info<D: Directory>(
    option: u32,
    data: &[u8],
    directory: &D,
    out: &mut Vec<u8>,
) -> Option<D::Export> {
    let (name, wanted) = match info_request(data) {
        Ok(parsed) => parsed,
        Err((error, why)) => {
            refuse(out, option, error, why);
            return None;
        }
    };
    let Some((export, info)) = directory.find(name) else {
        refuse(out, option, wire::REP_ERR_UNKNOWN, "no export of this name");
        return None;
    };
    let mut fact = |kind: u16, value: &[u8]| {
        let mut body = Vec::with_capacity(2 + value.len());
        body.extend_from_slice(&kind.to_be_bytes());
        body.extend_from_slice(value);
        reply(out, option, wire::REP_INFO, &body);
    };
    let mut size = [0; 10];
    size[..8].copy_from_slice(&info.geometry.bytes.to_be_bytes());
    size[8..].copy_from_slice(&info.flags().to_be_bytes());
    fact(wire::INFO_EXPORT, &size);
    let asked = |kind: u16| wanted.chunks_exact(2).any(|w| w == kind.to_be_bytes());
    if asked(wire::INFO_NAME) {
        fact(wire::INFO_NAME, clip(&info.name).as_bytes());
    }
    if asked(wire::INFO_DESCRIPTION) && !info.description.is_empty() {
        fact(wire::INFO_DESCRIPTION, clip(&info.description).as_bytes());
    }
    // Told unasked as well: who does not know the minimum runs into EINVAL.
    let mut blocks = [0; 12];
    blocks[..4].copy_from_slice(&info.geometry.logical_block.to_be_bytes());
    blocks[4..8].copy_from_slice(&info.geometry.physical_block.to_be_bytes());
    blocks[8..].copy_from_slice(&PAYLOAD_BYTES_MAX.to_be_bytes());
    fact(wire::INFO_BLOCK_SIZE, &blocks);
    reply(out, option, wire::REP_ACK, &[]);
    Some(export)
}

/// Name length u32, name, count u16, count times u16; nothing before, between or after.
fn info_request(data: &[u8]) -> Result<(&str, &[u8]), (u32, &'static str)> {
    let invalid = |why| (wire::REP_ERR_INVALID, why);
    let length = u32_at(data, 0).ok_or(invalid("option data ends before the name's length"))?;
    if length as usize > NAME_BYTES_MAX {
        return Err((
            wire::REP_ERR_TOO_BIG,
            "export name is longer than 4096 bytes",
        ));
    }
    let (name, rest) = data
        .get(4..)
        .and_then(|rest| rest.split_at_checked(length as usize))
        .ok_or(invalid("option data ends inside the name"))?;
    let name = std::str::from_utf8(name).map_err(|_| invalid("export name is not UTF-8"))?;
    let (count, wanted) = rest
        .split_first_chunk::<2>()
        .ok_or(invalid("option data ends before the facts"))?;
    if wanted.len() != usize::from(u16::from_be_bytes(*count)) * 2 {
        return Err(invalid("option data does not match its count of facts"));
    }
    Ok((name, wanted))
}

/// At most what the protocol allows of a string, cut between characters.
fn clip(text: &str) -> &str {
    &text[..text.floor_char_boundary(NAME_BYTES_MAX)]
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&wire::OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

fn refuse(out: &mut Vec<u8>, option: u32, error: u32, why: &str) {
    reply(out, option, error, why.as_bytes());
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
