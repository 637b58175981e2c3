//! The handshake phase: greeting, client flags, options, until an export is chosen.
//!
//! One option is taken at a time and its whole answer is appended to the caller's buffer before
//! the next is looked at, so a client that asks without reading makes no queue grow: the caller
//! sends what it has before it feeds more. An option that names an export which is being opened is kept
//! without an answer: the handshake is parked.

use super::directory::{Directory, ExportState, Opening};
use super::meta::ContextSet;
use super::options::{
    UNKNOWN_EXPORT, UNOPENED_EXPORT, info, list, list_contexts, refuse, reply, select_contexts,
    u32_at, u64_at,
};
use super::reply::{Headers, Session};
use super::{NAME_BYTES_MAX, wire};

/// Option data that is looked at: a name, its length, and a generous list of wanted facts.
const OPTION_BYTES_MAX: u32 = 8192;
/// Option data that is skipped politely. Beyond it the session ends.
const OPTION_SKIP_BYTES_MAX: u32 = 64 << 10;
/// Magic, option, length.
const OPTION_HEADER_BYTES: usize = 16;

/// What a call of [`Handshake::receive`] led to.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress<E> {
    /// Send what was answered, then feed more.
    NeedMore,
    /// Send what was answered, then begin the transmission phase with this export.
    Transmission(E, Session),
    /// Send what was answered, then take the handshake of TLS, beginning with what was not
    /// consumed; feed what comes out of it.
    StartTls,
    /// The export that is asked for is being opened, and this is its own name. Nothing is answered: call
    /// [`Handshake::receive`] again when that may have changed, which consumes nothing before it is decided, or end
    /// the wait by [`Handshake::give_up`].
    Park(String),
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
    /// EXPORT_NAME asked for an export that was not open in time, and knows no error reply.
    #[error("the export is not open yet, and the option used has no error reply")]
    UnopenedExport,
    /// EXPORT_NAME after extended headers, which know GO alone.
    #[error("EXPORT_NAME after extended headers were agreed on")]
    ExtendedNeedsGo,
    /// EXPORT_NAME without TLS, where it is required: the option has no error reply.
    #[error("EXPORT_NAME without TLS, which this server requires")]
    TlsRequired,
    /// A client without the fixed newstyle handshake used an option that needs it.
    #[error("option {0} needs the fixed newstyle handshake")]
    NotFixed(u32),
}

/// Why a parked handshake gets an answer without its export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkEnd {
    /// It has waited for as long as it may.
    Late,
    /// As many wait as may.
    Crowded,
    /// The server ends, or gives its place to another.
    Stopping,
}

impl ParkEnd {
    fn refusal(self) -> (u32, &'static str) {
        match self {
            ParkEnd::Late => (
                wire::REP_ERR_UNKNOWN,
                "the export is still being opened; try again later",
            ),
            ParkEnd::Crowded => (
                wire::REP_ERR_UNKNOWN,
                "too many clients wait for exports that are being opened; try again later",
            ),
            ParkEnd::Stopping => (
                wire::REP_ERR_SHUTDOWN,
                "the server ends before the export is open",
            ),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    ClientFlags,
    OptionHeader,
    OptionData {
        option: u32,
        length: u32,
    },
    /// `partial` has the option's data.
    Parked {
        option: u32,
    },
    Skip {
        left: u32,
    },
    Ended(Option<CloseReason>),
}

/// What a server offers of TLS, and where a session stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// Not offered.
    #[default]
    Absent,
    /// Offered: clients may go on without.
    Offered,
    /// Nothing but STARTTLS and ABORT is answered before it.
    Required,
    /// In use.
    Active,
}

/// The resumable handshake of one session.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    tls: Tls,
    headers: Headers,
    /// Metadata contexts that the client selected, and for which export.
    contexts: Option<(String, ContextSet)>,
    /// The part of a header or of option data seen so far; never beyond `OPTION_BYTES_MAX`.
    partial: Vec<u8>,
    fixed: bool,
    no_zeroes: bool,
}

impl Default for Handshake {
    fn default() -> Self {
        Handshake::new(Tls::Absent)
    }
}

impl Handshake {
    /// A handshake whose greeting is about to be sent.
    pub fn new(tls: Tls) -> Self {
        Handshake {
            state: State::ClientFlags,
            tls,
            headers: Headers::Simple,
            contexts: None,
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
                    return (consumed, self.take_option(option, directory, out));
                }
                State::Parked { option } => {
                    return (consumed, self.take_option(option, directory, out));
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

    /// Whether an option waits for its export.
    pub fn is_parked(&self) -> bool {
        matches!(self.state, State::Parked { .. })
    }

    /// Answers the option that waits, if there is one, without its export. The reason if the session ends with it.
    pub fn give_up(&mut self, why: ParkEnd, out: &mut Vec<u8>) -> Option<CloseReason> {
        let State::Parked { option } = self.state else {
            return None;
        };
        self.partial.clear();
        if option == wire::OPT_EXPORT_NAME {
            let reason = CloseReason::UnopenedExport;
            self.state = State::Ended(Some(reason));
            return Some(reason);
        }
        self.state = State::OptionHeader;
        let (error, why) = why.refusal();
        refuse(out, option, error, why);
        None
    }

    /// Answers an option whose data is in `partial`, or parks it.
    fn take_option<D: Directory>(
        &mut self,
        option: u32,
        directory: &D,
        out: &mut Vec<u8>,
    ) -> Progress<D::Export> {
        let absent = match self.is_parked() {
            true => UNOPENED_EXPORT,
            false => UNKNOWN_EXPORT,
        };
        let data = std::mem::take(&mut self.partial);
        self.state = State::OptionHeader;
        match self.option(option, &data, (directory, absent), out) {
            Ok(progress) => progress,
            Err(Opening(name)) => {
                self.partial = data;
                self.state = State::Parked { option };
                Progress::Park(name)
            }
        }
    }

    /// Answers an option. Where the export is being opened nothing is answered and nothing agreed on.
    fn option<D: Directory>(
        &mut self,
        option: u32,
        data: &[u8],
        directory: (&D, &str),
        out: &mut Vec<u8>,
    ) -> Result<Progress<D::Export>, Opening> {
        let without_tls = matches!(option, wire::OPT_ABORT | wire::OPT_STARTTLS);
        if self.tls == Tls::Required && !without_tls {
            if option == wire::OPT_EXPORT_NAME {
                return Ok(self.end(CloseReason::TlsRequired));
            }
            let why = "this server requires TLS: begin with STARTTLS";
            refuse(out, option, wire::REP_ERR_TLS_REQD, why);
            return Ok(Progress::NeedMore);
        }
        match option {
            wire::OPT_EXPORT_NAME => return self.export_name(data, directory.0, out),
            wire::OPT_ABORT => {
                reply(out, option, wire::REP_ACK, &[]);
                return Ok(self.end(CloseReason::Aborted));
            }
            wire::OPT_STARTTLS => return Ok(self.start_tls(data, out)),
            wire::OPT_LIST => list(data, directory.0, out),
            wire::OPT_INFO | wire::OPT_GO => {
                let found = info(option, data, directory, self.headers, out)?;
                if let Some((export, name)) = found
                    && option == wire::OPT_GO
                {
                    return Ok(self.transmission(export, name));
                }
            }
            wire::OPT_STRUCTURED_REPLY => self.structured_reply(data, out),
            wire::OPT_EXTENDED_HEADERS => self.extended_headers(data, out),
            wire::OPT_LIST_META_CONTEXT => list_contexts(data, directory, out)?,
            wire::OPT_SET_META_CONTEXT => {
                // Whatever comes of it, an earlier selection no longer holds.
                self.contexts = None;
                if self.headers == Headers::Simple {
                    let why = "metadata contexts need structured replies or extended headers";
                    refuse(out, option, wire::REP_ERR_INVALID, why);
                } else {
                    self.contexts = select_contexts(data, directory, out)?;
                }
            }
            _ => refuse(out, option, wire::REP_ERR_UNSUP, "option is not supported"),
        }
        Ok(Progress::NeedMore)
    }

    fn transmission<E>(&mut self, export: E, name: &str) -> Progress<E> {
        self.state = State::Ended(None);
        let selected = self.contexts.take().filter(|(of, _)| of == name);
        let session = Session {
            headers: self.headers,
            contexts: selected.map(|(_, contexts)| contexts).unwrap_or_default(),
        };
        Progress::Transmission(export, session)
    }

    fn structured_reply(&mut self, data: &[u8], out: &mut Vec<u8>) {
        let option = wire::OPT_STRUCTURED_REPLY;
        if !data.is_empty() {
            let why = "STRUCTURED_REPLY takes no data";
            return refuse(out, option, wire::REP_ERR_INVALID, why);
        }
        match self.headers {
            Headers::Simple => {
                self.headers = Headers::Structured;
                reply(out, option, wire::REP_ACK, &[]);
            }
            Headers::Structured => {
                let why = "structured replies were agreed on already";
                refuse(out, option, wire::REP_ERR_INVALID, why);
            }
            Headers::Extended => {
                let why = "extended headers were agreed on, which include structured replies";
                refuse(out, option, wire::REP_ERR_EXT_HEADER_REQD, why);
            }
        }
    }

    fn extended_headers(&mut self, data: &[u8], out: &mut Vec<u8>) {
        let option = wire::OPT_EXTENDED_HEADERS;
        if !data.is_empty() || self.headers == Headers::Extended {
            let why = "EXTENDED_HEADERS takes no data, and is agreed on once";
            return refuse(out, option, wire::REP_ERR_INVALID, why);
        }
        self.headers = Headers::Extended;
        reply(out, option, wire::REP_ACK, &[]);
    }

    fn start_tls<E>(&mut self, data: &[u8], out: &mut Vec<u8>) -> Progress<E> {
        let option = wire::OPT_STARTTLS;
        let error = match self.tls {
            Tls::Active => (wire::REP_ERR_INVALID, "TLS is in use already"),
            Tls::Absent => (wire::REP_ERR_POLICY, "this server has no TLS"),
            _ if !data.is_empty() => (wire::REP_ERR_INVALID, "STARTTLS takes no data"),
            Tls::Offered | Tls::Required => {
                reply(out, option, wire::REP_ACK, &[]);
                // What was agreed on in the clear may have been an attacker's wish.
                self.tls = Tls::Active;
                self.headers = Headers::Simple;
                self.contexts = None;
                return Progress::StartTls;
            }
        };
        refuse(out, option, error.0, error.1);
        Progress::NeedMore
    }

    fn export_name<D: Directory>(
        &mut self,
        data: &[u8],
        directory: &D,
        out: &mut Vec<u8>,
    ) -> Result<Progress<D::Export>, Opening> {
        if self.headers == Headers::Extended {
            return Ok(self.end(CloseReason::ExtendedNeedsGo));
        }
        let name = (data.len() <= NAME_BYTES_MAX)
            .then(|| std::str::from_utf8(data).ok())
            .flatten();
        let found = name.map(|name| (directory.find(name), name));
        let (export, info, name) = match found {
            Some((ExportState::Open((export, info)), name)) => (export, info, name),
            Some((ExportState::Opening(name), _)) => return Err(Opening(name)),
            Some((ExportState::Absent, _)) | None => {
                return Ok(self.end(CloseReason::UnknownExport));
            }
        };
        out.extend_from_slice(&info.geometry.bytes.to_be_bytes());
        out.extend_from_slice(&info.flags(self.headers).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        Ok(self.transmission(export, name))
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
