//! TLS over a connection's bytes: between the receives and what the codec is fed, and between the
//! outbox and its sends.
//!
//! Owns no socket and waits for nothing: ciphertext goes in and out as buffers of the same
//! operations that carry plain bytes, so a client's handshake or a slow peer holds up no reactor. It
//! must never hand bytes on that were not authenticated. What it costs, the plain path does not pay.
//! `certificates` is TLS of rustls; another library comes in as a [`TlsProvider`].

mod certificates;

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use reactor::SendPart;

use certificates::Certificates;

/// Plaintext that one send encrypts, at most: a reactor does nothing else meanwhile.
const ENCRYPTED_AT_ONCE_MAX: usize = 256 << 10;

/// Plaintext of a record, at most.
const RECORD_BYTES_MAX: usize = 16 << 10;

/// A server's side of TLS: by what it proves who it is, and whose clients it takes.
#[derive(Clone)]
pub struct TlsConfig(Arc<dyn TlsProvider>);

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig").finish_non_exhaustive()
    }
}

impl TlsConfig {
    /// From the server's chain and key, and where clients have to show certificates, those of the
    /// authorities that may have signed them.
    pub fn from_pem(
        chain: &[u8],
        key: &[u8],
        client_authorities: Option<&[u8]>,
    ) -> Result<TlsConfig, TlsError> {
        let certificates = Certificates::from_pem(chain, key, client_authorities)?;
        Ok(TlsConfig::new(Arc::new(certificates)))
    }

    /// TLS of another library.
    pub fn new(provider: Arc<dyn TlsProvider>) -> TlsConfig {
        TlsConfig(provider)
    }

    pub(super) fn begin(&self) -> Result<TlsStream, TlsStreamError> {
        self.0.begin()
    }
}

/// Why certificates and keys are of no use.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not what it should be.
    #[error("{0}: no PEM with {1} in it")]
    Pem(&'static str, &'static str),
    /// They do not go together.
    #[error("{0}")]
    Refused(String),
}

/// TLS as a server's listeners offer it.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// Certificates or keys.
    pub config: TlsConfig,
    /// Whether clients that do not use it are refused.
    pub required: bool,
}

/// Who a client is, as far as its transport says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The DNS names of the certificate that it showed and that was verified, or the name of the key that
    /// it proved to have; none without one.
    pub names: Vec<String>,
}

/// The stream cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum TlsStreamError {
    /// Not for an error: the client said that nothing follows.
    #[error("the client ended TLS")]
    Closed,
    /// What the library says.
    #[error(transparent)]
    Tls(Box<dyn Error + Send + Sync>),
    /// It would take more memory than a handshake is worth.
    #[error("a message of the handshake is too long")]
    TooLong,
}

/// A library that makes TLS, with all that it needs for it.
pub trait TlsProvider: Send + Sync {
    /// TLS of a connection whose handshake has not begun.
    ///
    /// # Errors
    /// The library's own.
    fn begin(&self) -> Result<Box<dyn TlsSession>, TlsStreamError>;
}

/// TLS of one connection.
pub(super) type TlsStream = Box<dyn TlsSession>;

/// TLS of one connection, as far as its bytes go. It is called on a reactor's thread: it neither waits nor panics,
/// whatever comes.
pub trait TlsSession: fmt::Debug + Send {
    /// Takes what was received, and appends what it says to `plain`. Records may be decrypted where they lie.
    ///
    /// # Errors
    /// For good: the same with whatever comes later.
    fn decrypt(&mut self, cipher: &mut [u8], plain: &mut Vec<u8>) -> Result<(), TlsStreamError>;

    /// Whether it has something of its own to send: a handshake's answer, an alert.
    fn wants_send(&self) -> bool;

    /// Encrypts the first of these parts, as many as one send takes, and removes them. What it has to send of its own
    /// leaves before them.
    ///
    /// # Errors
    /// Nothing can be sent any more.
    fn encrypt(&mut self, parts: &mut Vec<SendPart>) -> Result<Vec<u8>, TlsStreamError>;

    /// Says once that nothing follows. After an alert there is nothing more to say.
    fn close(&mut self);

    /// The client's, once the handshake of TLS is over.
    fn identity(&self) -> ClientIdentity;
}

/// How many bytes of these parts one send takes.
#[must_use]
pub fn bytes_for_one_send(parts: &[SendPart]) -> usize {
    let bytes: usize = parts.iter().map(SendPart::len).sum();
    bytes.min(ENCRYPTED_AT_ONCE_MAX)
}

/// Gives the first bytes of these parts, as many as one send takes, to `encrypt`, and removes them. A record is filled
/// from as many parts as it holds: for its client, each costs more than its bytes where they are few. What `encrypt`
/// gets fills one record at most, or several to the last byte.
///
/// # Errors
/// Those of `encrypt`; the parts are as they were.
pub fn encrypt_front<E>(
    parts: &mut Vec<SendPart>,
    mut encrypt: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let taken = bytes_for_one_send(parts);
    let mut left = taken;
    let mut record = Vec::with_capacity(left.min(RECORD_BYTES_MAX));
    for part in parts.iter() {
        let bytes = bytes_of(part);
        let mut bytes = &bytes[..bytes.len().min(left)];
        left -= bytes.len();
        while !bytes.is_empty() {
            // What fills records by itself is not copied for them.
            if record.is_empty() && bytes.len() >= RECORD_BYTES_MAX {
                let (whole, rest) = bytes.split_at(bytes.len() - bytes.len() % RECORD_BYTES_MAX);
                encrypt(whole)?;
                bytes = rest;
                continue;
            }
            let (front, rest) = bytes.split_at(bytes.len().min(RECORD_BYTES_MAX - record.len()));
            record.extend_from_slice(front);
            bytes = rest;
            if record.len() == RECORD_BYTES_MAX {
                encrypt(&record)?;
                record.clear();
            }
        }
    }
    encrypt(&record)?;
    remove_front(parts, taken);
    Ok(())
}

/// Removes so many bytes, and what has none.
fn remove_front(parts: &mut Vec<SendPart>, mut bytes: usize) {
    let mut whole = 0;
    for part in parts.iter_mut() {
        if part.len() > bytes {
            match part {
                SendPart::Bytes(all) => drop(all.drain(..bytes)),
                SendPart::Buf(all) => drop(all.split_to(bytes)),
            }
            break;
        }
        bytes -= part.len();
        whole += 1;
    }
    parts.drain(..whole);
}

fn bytes_of(part: &SendPart) -> &[u8] {
    match part {
        SendPart::Bytes(bytes) => bytes,
        SendPart::Buf(buf) => buf,
    }
}
