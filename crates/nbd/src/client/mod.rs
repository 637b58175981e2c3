//! A blocking client: one connection to one export, one request at a time.
//!
//! For tools that copy, not for the data path: who wants more at once opens more connections. It asks for structured
//! replies and for `base:allocation`, and does without where a server has neither. It never trusts a length that a
//! server names: what does not fit the request ends the connection's use with [`ClientError::Protocol`].

mod error;
mod handshake;
mod replies;

use std::io::{Read, Write};

pub use error::ClientError;

use crate::codec::wire;

/// A range of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Length in bytes.
    pub bytes: u64,
    /// Whether it is known to read as zeroes.
    pub zero: bool,
}

/// What the server said of the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportFacts {
    /// Size in bytes.
    pub bytes: u64,
    /// Transmission flags, `wire::FLAG_*`.
    pub flags: u16,
    /// Offsets and lengths must be multiples of it, in bytes.
    pub block_bytes: u32,
    /// Largest read or write, in bytes.
    pub payload_bytes_max: u32,
}

/// A connection in the transmission phase.
#[derive(Debug)]
pub struct Client<S> {
    stream: S,
    facts: ExportFacts,
    /// Whether replies may come in chunks.
    structured: bool,
    /// The number of `base:allocation` in this session, where the server has it.
    allocation: Option<u32>,
    cookie: u64,
}

/// A request, as its errors name it.
#[derive(Clone, Copy, Debug)]
struct SentRequest {
    command: u16,
    cookie: u64,
    offset: u64,
    length: u32,
}

impl<S: Read + Write> Client<S> {
    /// Takes the handshake and chooses the export of this name.
    ///
    /// # Errors
    /// The connection's own, [`ClientError::Protocol`] if no NBD server answers, [`ClientError::Refused`] if it has no
    /// such export or wants TLS first.
    pub fn connect(stream: S, name: &str) -> Result<Self, ClientError> {
        handshake::enter(stream, name)
    }

    /// What the server said of the export.
    pub fn facts(&self) -> ExportFacts {
        self.facts
    }

    /// Whether the server refuses writes.
    pub fn is_read_only(&self) -> bool {
        self.facts.flags & wire::FLAG_READ_ONLY != 0
    }

    /// Fills `data` with what is at `offset`.
    ///
    /// # Errors
    /// [`ClientError::Failed`] with the server's reason, or the connection's own.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), ClientError> {
        let length = length_of(data.len())?;
        let sent = self.send(wire::CMD_READ, offset, length, &[])?;
        self.receive_data(sent, data)
    }

    /// Writes `data` to `offset`. It survives loss of power once a later [`Client::flush`] has returned.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let length = length_of(data.len())?;
        let sent = self.send(wire::CMD_WRITE, offset, length, data)?;
        self.receive_done(sent)
    }

    /// Has `length` bytes from `offset` on read as zeroes.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn write_zeroes(&mut self, offset: u64, length: u32) -> Result<(), ClientError> {
        let sent = self.send(wire::CMD_WRITE_ZEROES, offset, length, &[])?;
        self.receive_done(sent)
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn flush(&mut self) -> Result<(), ClientError> {
        if self.facts.flags & wire::FLAG_SEND_FLUSH == 0 {
            return Ok(());
        }
        let sent = self.send(wire::CMD_FLUSH, 0, 0, &[])?;
        self.receive_done(sent)
    }

    /// What is known of `length` bytes from `offset` on; it may end before them, and never is empty.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub fn allocation(&mut self, offset: u64, length: u32) -> Result<Vec<Allocation>, ClientError> {
        let Some(context) = self.allocation else {
            let all = Allocation {
                bytes: u64::from(length),
                zero: false,
            };
            return Ok(vec![all]);
        };
        let sent = self.send(wire::CMD_BLOCK_STATUS, offset, length, &[])?;
        self.receive_allocation(sent, context)
    }

    /// Ends the session as the protocol wants it: nobody answers.
    ///
    /// # Errors
    /// The connection's own.
    pub fn disconnect(mut self) -> Result<(), ClientError> {
        self.send(wire::CMD_DISC, 0, 0, &[]).map(drop)
    }

    fn send(
        &mut self,
        command: u16,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> Result<SentRequest, ClientError> {
        self.cookie += 1;
        let mut header = Vec::with_capacity(28);
        header.extend_from_slice(&wire::REQUEST_MAGIC.to_be_bytes());
        header.extend_from_slice(&0_u16.to_be_bytes());
        header.extend_from_slice(&command.to_be_bytes());
        header.extend_from_slice(&self.cookie.to_be_bytes());
        header.extend_from_slice(&offset.to_be_bytes());
        header.extend_from_slice(&length.to_be_bytes());
        let lost = ClientError::connection_lost("sending a request");
        self.stream.write_all(&header).map_err(&lost)?;
        self.stream.write_all(data).map_err(&lost)?;
        self.stream.flush().map_err(&lost)?;
        Ok(SentRequest {
            command,
            cookie: self.cookie,
            offset,
            length,
        })
    }

    fn take(&mut self, data: &mut [u8]) -> Result<(), ClientError> {
        let lost = ClientError::connection_lost("waiting for a reply");
        self.stream.read_exact(data).map_err(lost)
    }

    fn take_array<const N: usize>(&mut self) -> Result<[u8; N], ClientError> {
        let mut bytes = [0; N];
        self.take(&mut bytes)?;
        Ok(bytes)
    }
}

fn length_of(bytes: usize) -> Result<u32, ClientError> {
    u32::try_from(bytes).map_err(|_| ClientError::Protocol("a request is longer than 4 GiB"))
}
