//! TLS over a connection's bytes: rustls between the receives and what the codec is fed, and between
//! the outbox and its sends.
//!
//! Owns no socket and waits for nothing: ciphertext goes in and out as buffers of the same
//! operations that carry plain bytes, so a client's handshake or a slow peer holds up no reactor. It
//! must never hand bytes on that were not authenticated. What it costs, the plain path does not pay.

use std::fmt;
use std::io::{IoSlice, Read, Write};
use std::sync::Arc;

use reactor::SendPart;
use rustls::ServerConnection;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;

/// Plaintext that one send encrypts, at most: a reactor does nothing else meanwhile.
const ENCRYPTED_AT_ONCE_MAX: usize = 256 << 10;

/// A server's side of TLS: its certificate, and whose clients' it takes.
#[derive(Clone)]
pub struct TlsConfig(Arc<rustls::ServerConfig>);

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig").finish_non_exhaustive()
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

impl TlsError {
    fn refused(error: impl fmt::Display) -> TlsError {
        TlsError::Refused(error.to_string())
    }
}

fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(TlsError::Pem(what, "a certificate")),
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
        let chain = certificates(chain, "the server's certificate")?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| TlsError::Pem("the server's key", "a private key"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            // Not 1.2: there a connection ends when a key has encrypted its number of records.
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(TlsError::refused)?;
        let builder = match client_authorities {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let mut roots = rustls::RootCertStore::empty();
                for authority in certificates(pem, "the authority of clients")? {
                    roots.add(authority).map_err(TlsError::refused)?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .map_err(TlsError::refused)?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder
            .with_single_cert(chain, key)
            .map_err(TlsError::refused)?;
        Ok(TlsConfig(Arc::new(config)))
    }
}

/// TLS as a server's listeners offer it.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// Certificates and keys.
    pub config: TlsConfig,
    /// Whether clients that do not use it are refused.
    pub required: bool,
}

/// Who a client is, as far as its transport says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The DNS names of the certificate that it showed and that was verified; none without one.
    pub names: Vec<String>,
}

/// The stream cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsStreamError {
    #[error("the client ended TLS")]
    Closed,
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// TLS of one connection.
pub(super) struct TlsStream {
    tls: Box<ServerConnection>,
    is_closing: bool,
}

impl TlsStream {
    pub(super) fn new(config: &TlsConfig) -> Result<TlsStream, rustls::Error> {
        let mut tls = Box::new(ServerConnection::new(Arc::clone(&config.0))?);
        // What is given to it is bounded by the caller, and leaves with the same call.
        tls.set_buffer_limit(None);
        Ok(TlsStream {
            tls,
            is_closing: false,
        })
    }

    /// Takes what was received, and appends what it says to `plain`.
    pub(super) fn decrypt(
        &mut self,
        mut cipher: &[u8],
        plain: &mut Vec<u8>,
    ) -> Result<(), TlsStreamError> {
        while !cipher.is_empty() {
            self.tls.read_tls(&mut cipher)?;
            self.tls.process_new_packets()?;
            match self.tls.reader().read_to_end(plain) {
                Ok(_) => return Err(TlsStreamError::Closed),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Whether it has something of its own to send: a handshake's answer, an alert.
    pub(super) fn wants_send(&self) -> bool {
        self.tls.wants_write()
    }

    /// Encrypts the first of these parts, as many as one send takes, and removes them. A record is filled from
    /// as many parts as it holds: for its client, each costs more than its bytes where they are few.
    pub(super) fn encrypt(&mut self, parts: &mut Vec<SendPart>) -> Result<Vec<u8>, TlsStreamError> {
        let mut left = ENCRYPTED_AT_ONCE_MAX;
        let mut slices = Vec::with_capacity(parts.len());
        for part in parts.iter() {
            let bytes = bytes_of(part);
            let taken = bytes.len().min(left);
            if taken > 0 {
                slices.push(IoSlice::new(&bytes[..taken]));
                left -= taken;
            }
        }
        let given = ENCRYPTED_AT_ONCE_MAX - left;
        let taken = self.tls.writer().write_vectored(&slices)?;
        debug_assert_eq!(taken, given, "nothing limits what it takes");
        remove_front(parts, taken);
        let mut cipher = Vec::with_capacity(taken + (taken >> 6) + 1024);
        while self.tls.wants_write() {
            self.tls.write_tls(&mut cipher)?;
        }
        Ok(cipher)
    }

    /// Says once that nothing follows. After an alert there is nothing more to say.
    pub(super) fn close(&mut self) {
        if !std::mem::replace(&mut self.is_closing, true) {
            self.tls.send_close_notify();
        }
    }

    /// The client's, once the handshake of TLS is over.
    pub(super) fn identity(&self) -> ClientIdentity {
        let certificate = self.tls.peer_certificates().and_then(<[_]>::first);
        let parsed = certificate.and_then(|der| webpki::EndEntityCert::try_from(der).ok());
        let names = parsed.map(|certificate| {
            let names = certificate.valid_dns_names();
            names.map(str::to_owned).collect()
        });
        ClientIdentity {
            names: names.unwrap_or_default(),
        }
    }
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

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream")
            .field("is_handshaking", &self.tls.is_handshaking())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTHORITY: &[u8] = include_bytes!("../../tests/fixtures/tls/ca-cert.pem");
    const CHAIN: &[u8] = include_bytes!("../../tests/fixtures/tls/server-cert.pem");
    const KEY: &[u8] = include_bytes!("../../tests/fixtures/tls/server-key.pem");
    /// A header of a record, its kind in the clear, and its tag.
    const RECORD_OVERHEAD: usize = 5 + 1 + 16;

    /// Both ends of a connection whose handshake is over.
    fn connected() -> (TlsStream, rustls::ClientConnection) {
        let mut roots = rustls::RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(AUTHORITY).unwrap();
        roots.add(authority).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = "localhost".try_into().unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let config = TlsConfig::from_pem(CHAIN, KEY, None).unwrap();
        let mut server = TlsStream::new(&config).unwrap();
        while client.is_handshaking() || client.wants_write() || server.wants_send() {
            let mut sent = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
            server.decrypt(&sent, &mut Vec::new()).unwrap();
            let answer = server.encrypt(&mut Vec::new()).unwrap();
            take(&mut client, &answer);
        }
        (server, client)
    }

    /// What a client finds in these bytes.
    fn take(client: &mut rustls::ClientConnection, mut cipher: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        while !cipher.is_empty() {
            client.read_tls(&mut cipher).unwrap();
            client.process_new_packets().unwrap();
            // It ends with "would block": more may come.
            let _ = client.reader().read_to_end(&mut plain);
        }
        plain
    }

    fn buf(bytes: usize, fill: u8) -> SendPart {
        let mut buf = reactor::Buf::allocate(bytes).unwrap();
        buf.fill(fill);
        SendPart::Buf(buf)
    }

    #[test]
    fn replies_that_are_sent_together_share_records() {
        let (mut server, mut client) = connected();
        let mut parts = Vec::new();
        for reply in 0..7 {
            parts.push(SendPart::Bytes(vec![reply; 16]));
            parts.push(buf(512, reply));
        }
        let cipher = server.encrypt(&mut parts).unwrap();
        assert!(parts.is_empty());
        assert_eq!(cipher.len(), 7 * 528 + RECORD_OVERHEAD);
        let want: Vec<u8> = (0..7).flat_map(|reply| [reply; 528]).collect();
        assert_eq!(take(&mut client, &cipher), want);
    }

    #[test]
    fn what_is_too_much_for_one_send_stays_for_the_next_in_its_order() {
        let (mut server, mut client) = connected();
        let mut parts = vec![
            SendPart::Bytes(vec![1; 16]),
            buf(ENCRYPTED_AT_ONCE_MAX, 2),
            SendPart::Bytes(Vec::new()),
            SendPart::Bytes(vec![3; ENCRYPTED_AT_ONCE_MAX + 1]),
        ];
        let mut want = vec![1; 16];
        want.resize(want.len() + ENCRYPTED_AT_ONCE_MAX, 2);
        want.resize(want.len() + ENCRYPTED_AT_ONCE_MAX + 1, 3);
        let (mut plain, mut sends) = (Vec::new(), 0);
        while !parts.is_empty() {
            let cipher = server.encrypt(&mut parts).unwrap();
            plain.extend(take(&mut client, &cipher));
            sends += 1;
        }
        assert_eq!(sends, 3);
        assert!(plain == want);
    }
}
