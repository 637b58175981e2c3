//! TLS with certificates, by rustls.
//!
//! rustls buffers nothing here: it decrypts records where they were received, and encrypts into what is sent. It
//! must never keep more of a client's bytes than one message of the handshake, or a part of a record.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use reactor::SendPart;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection, WebPkiClientVerifier};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};

use super::{
    ClientIdentity, RECORD_BYTES_MAX, TlsError, TlsProvider, TlsSession, TlsStream, TlsStreamError,
    bytes_for_one_send, encrypt_front,
};

/// What a record is longer than its plaintext: its header, its kind, and its tag.
const RECORD_OVERHEAD: usize = 5 + 1 + 16;

/// Where a record's header says how much follows it.
const RECORD_LENGTH: Range<usize> = 3..5;

/// What is held back of a message, at most: more than any that rustls takes.
const HELD_BYTES_MAX: usize = 128 << 10;

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

/// The server's certificate and key, and whose clients' it takes.
pub(super) struct Certificates(Arc<rustls::ServerConfig>);

impl Certificates {
    /// From the server's chain and key, and where clients have to show certificates, those of the
    /// authorities that may have signed them.
    pub(super) fn from_pem(
        chain: &[u8],
        key: &[u8],
        client_authorities: Option<&[u8]>,
    ) -> Result<Certificates, TlsError> {
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
        Ok(Certificates(Arc::new(config)))
    }
}

impl TlsProvider for Certificates {
    fn begin(&self) -> Result<TlsStream, TlsStreamError> {
        Ok(Box::new(CertificateSession::new(self)?))
    }
}

impl From<rustls::Error> for TlsStreamError {
    fn from(error: rustls::Error) -> TlsStreamError {
        TlsStreamError::Tls(Box::new(error))
    }
}

/// TLS of one connection.
struct CertificateSession {
    tls: Box<UnbufferedServerConnection>,
    /// The begin of a record, or of a message of the handshake, whose rest has not come.
    held: Vec<u8>,
    /// What it has to say of its own: answers of the handshake, alerts.
    own: Vec<u8>,
    is_closing: bool,
    /// After an error only what was to be said of it is sent: nothing is decrypted or encrypted any more.
    is_broken: bool,
}

impl CertificateSession {
    fn new(config: &Certificates) -> Result<CertificateSession, rustls::Error> {
        Ok(CertificateSession {
            tls: Box::new(UnbufferedServerConnection::new(Arc::clone(&config.0))?),
            held: Vec::new(),
            own: Vec::new(),
            is_closing: false,
            is_broken: false,
        })
    }

    fn decrypt_records(
        &mut self,
        mut cipher: &mut [u8],
        plain: &mut Vec<u8>,
    ) -> Result<(), TlsStreamError> {
        while !self.held.is_empty() && !cipher.is_empty() {
            let (front, rest) = cipher.split_at_mut(self.lacks().min(cipher.len()));
            cipher = rest;
            let mut held = std::mem::take(&mut self.held);
            held.extend_from_slice(front);
            let used = self.process(&mut held, plain)?;
            // One that holds nothing keeps no memory either.
            if used < held.len() {
                held.drain(..used);
                self.held = held;
            }
        }
        if !cipher.is_empty() {
            let used = self.process(cipher, plain)?;
            self.held.extend_from_slice(&cipher[used..]);
        }
        match self.held.len() > HELD_BYTES_MAX {
            true => Err(TlsStreamError::TooLong),
            false => Ok(()),
        }
    }

    /// How many bytes more make a record of what is held. A message of the handshake may need several.
    fn lacks(&self) -> usize {
        let record = match self.held.get(RECORD_LENGTH) {
            Some(length) => {
                let length = length
                    .iter()
                    .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
                RECORD_LENGTH.end + length
            }
            None => RECORD_LENGTH.end,
        };
        match record.saturating_sub(self.held.len()) {
            0 => usize::MAX,
            lacks => lacks,
        }
    }

    /// Takes the records in these bytes; how many bytes they are.
    fn process(&mut self, bytes: &mut [u8], plain: &mut Vec<u8>) -> Result<usize, TlsStreamError> {
        let mut used = 0;
        loop {
            let UnbufferedStatus { mut discard, state } =
                self.tls.process_tls_records(&mut bytes[used..]);
            match state {
                Ok(ConnectionState::ReadTraffic(mut records)) => {
                    while let Some(record) = records.next_record() {
                        let record = record?;
                        discard += record.discard;
                        plain.extend_from_slice(record.payload);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(message)) => encode(message, &mut self.own)?,
                // What was encoded leaves with the next send.
                Ok(ConnectionState::TransmitTlsData(transmit)) => transmit.done(),
                Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => {
                    return Ok(used + discard);
                }
                Ok(_) => return Err(TlsStreamError::Closed),
                Err(error) => {
                    self.encode_alert()?;
                    return Err(error.into());
                }
            }
            used += discard;
        }
    }

    /// After an error: what is said of it. Only as long as there is something: where a message of the handshake has begun
    /// the library looks for its begin in what it is given.
    fn encode_alert(&mut self) -> Result<(), TlsStreamError> {
        while self.tls.wants_write() {
            match self.tls.process_tls_records(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(message)) => encode(message, &mut self.own)?,
                _ => break,
            }
        }
        Ok(())
    }
}

impl TlsSession for CertificateSession {
    fn decrypt(&mut self, cipher: &mut [u8], plain: &mut Vec<u8>) -> Result<(), TlsStreamError> {
        // Behind its own end the library must not find errors: its assertions forbid another alert.
        if self.is_broken || self.is_closing {
            return Err(TlsStreamError::Closed);
        }
        let result = self.decrypt_records(cipher, plain);
        // After the client's own end it still hears the answers to what it asked before.
        if matches!(&result, Err(error) if !matches!(error, TlsStreamError::Closed)) {
            self.is_broken = true;
            self.held = Vec::new();
        }
        result
    }

    fn wants_send(&self) -> bool {
        !self.own.is_empty()
    }

    fn encrypt(&mut self, parts: &mut Vec<SendPart>) -> Result<Vec<u8>, TlsStreamError> {
        let mut cipher = std::mem::take(&mut self.own);
        if self.is_broken && !cipher.is_empty() {
            parts.clear();
        }
        if parts.is_empty() {
            return Ok(cipher);
        }
        if self.is_broken {
            return Err(TlsStreamError::Closed);
        }
        let left = bytes_for_one_send(parts);
        cipher.reserve(left + (left / RECORD_BYTES_MAX + 2) * RECORD_OVERHEAD);
        // With what is held: the begin of a message may be in it, and stays there.
        let UnbufferedStatus { discard, state } = self.tls.process_tls_records(&mut self.held);
        let ConnectionState::WriteTraffic(mut tls) =
            state.inspect_err(|_| self.is_broken = true)?
        else {
            return Err(TlsStreamError::Closed);
        };
        encrypt_front(parts, |plain| encrypt(&mut tls, plain, &mut cipher))?;
        self.held.drain(..discard);
        Ok(cipher)
    }

    fn close(&mut self) {
        if std::mem::replace(&mut self.is_closing, true) || self.is_broken {
            return;
        }
        let UnbufferedStatus { discard, state } = self.tls.process_tls_records(&mut self.held);
        if let Ok(ConnectionState::WriteTraffic(mut tls)) = state {
            append(&mut self.own, |to| {
                tls.queue_close_notify(to).map_err(needs)
            })
            .ok();
        }
        self.held.drain(..discard);
    }

    fn identity(&self) -> ClientIdentity {
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

/// Appends what `write` writes into as much room as it asks for; its error is that number, if it is want of room.
fn append(
    to: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<usize>>,
) -> Result<(), TlsStreamError> {
    let end = to.len();
    let mut room = 0;
    loop {
        to.resize(end + room, 0);
        match write(&mut to[end..]) {
            Ok(written) => {
                to.truncate(end + written);
                return Ok(());
            }
            Err(Some(needs)) if needs > room => room = needs,
            Err(_) => {
                to.truncate(end);
                return Err(TlsStreamError::Closed);
            }
        }
    }
}

/// The room that was wanted, if that was it.
fn needs(error: EncryptError) -> Option<usize> {
    match error {
        EncryptError::InsufficientSize(error) => Some(error.required_size),
        EncryptError::EncryptExhausted => None,
    }
}

fn encode(
    mut message: EncodeTlsData<'_, ServerConnectionData>,
    to: &mut Vec<u8>,
) -> Result<(), TlsStreamError> {
    append(to, |room| match message.encode(room) {
        Ok(written) => Ok(written),
        Err(EncodeError::InsufficientSize(error)) => Err(Some(error.required_size)),
        Err(EncodeError::AlreadyEncoded) => Err(None),
    })
}

fn encrypt(
    tls: &mut WriteTraffic<'_, ServerConnectionData>,
    plain: &[u8],
    cipher: &mut Vec<u8>,
) -> Result<(), TlsStreamError> {
    append(cipher, |room| tls.encrypt(plain, room).map_err(needs))
}

impl fmt::Debug for CertificateSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateSession")
            .field("is_handshaking", &self.tls.is_handshaking())
            .field("held", &self.held.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::ENCRYPTED_AT_ONCE_MAX;
    use super::*;
    use crate::server::tls_fuzz::{client, receive};

    const AUTHORITY: &[u8] = include_bytes!("../../../tests/fixtures/tls/ca-cert.pem");
    const CHAIN: &[u8] = include_bytes!("../../../tests/fixtures/tls/server-cert.pem");
    const KEY: &[u8] = include_bytes!("../../../tests/fixtures/tls/server-key.pem");

    /// Both ends of a connection whose handshake is over.
    fn connected() -> (CertificateSession, rustls::ClientConnection) {
        let mut client = client();
        let config = Certificates::from_pem(CHAIN, KEY, None).unwrap();
        let mut server = CertificateSession::new(&config).unwrap();
        while client.is_handshaking() || client.wants_write() || server.wants_send() {
            let mut sent = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
            server.decrypt(&mut sent, &mut Vec::new()).unwrap();
            let answer = server.encrypt(&mut Vec::new()).unwrap();
            take(&mut client, &answer);
        }
        (server, client)
    }

    /// What a client finds in these bytes.
    fn take(client: &mut rustls::ClientConnection, cipher: &[u8]) -> Vec<u8> {
        receive(client, cipher).unwrap()
    }

    fn buf(bytes: usize, fill: u8) -> SendPart {
        let mut buf = reactor::Buf::allocate(bytes).unwrap();
        buf.fill(fill);
        SendPart::Buf(buf)
    }

    /// A server that wants certificates, whose handshake has not begun.
    fn strict() -> CertificateSession {
        let config = Certificates::from_pem(CHAIN, KEY, Some(AUTHORITY)).unwrap();
        CertificateSession::new(&config).unwrap()
    }

    /// The first message of a client.
    fn hello() -> Vec<u8> {
        let mut client = client();
        let mut sent = Vec::new();
        client.write_tls(&mut sent).unwrap();
        sent
    }

    #[test]
    fn a_client_without_a_certificate_hears_why_in_however_few_records_it_says_so() {
        let mut client = client();
        let mut server = strict();
        let mut broken = None;
        for _ in 0..4 {
            let mut sent = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
            broken = server.decrypt(&mut sent, &mut Vec::new()).err();
            if broken.is_some() {
                break;
            }
            take(&mut client, &server.encrypt(&mut Vec::new()).unwrap());
        }
        assert!(matches!(broken, Some(TlsStreamError::Tls(_))), "{broken:?}");
        // Replies that wait cannot be encrypted any more; the alert leaves.
        let mut parts = vec![SendPart::Bytes(vec![1; 16])];
        let mut alert = &server.encrypt(&mut parts).unwrap()[..];
        client.read_tls(&mut alert).unwrap();
        let heard = client.process_new_packets().unwrap_err();
        assert!(
            matches!(heard, rustls::Error::AlertReceived(_)),
            "{heard:?}"
        );
        assert!(
            server
                .encrypt(&mut vec![SendPart::Bytes(vec![1; 16])])
                .is_err()
        );
        assert!(server.decrypt(&mut [23, 3, 3], &mut Vec::new()).is_err());
        server.close();
        assert!(!server.wants_send());
    }

    #[test]
    fn a_handshake_that_is_cut_anywhere_ends_without_a_panic() {
        let hello = hello();
        let strange: [&[u8]; 3] = [
            &[22, 3, 1, 0, 1, 1, 255, 3, 3, 0, 1, 0],
            &[22, 3, 1, 0, 1, 1, 22, 3, 3, 0, 1, 0, 22, 3, 3, 0, 1, 255],
            &[20, 3, 3, 0, 1, 1, 21, 3, 3, 0, 2, 2, 40],
        ];
        let cuts = (0..hello.len()).map(|cut| &hello[..cut]);
        for bytes in cuts.chain(strange) {
            for piece in [1, 7, usize::MAX] {
                let mut server = strict();
                for part in bytes.to_vec().chunks_mut(piece.min(bytes.len().max(1))) {
                    let _ = server.decrypt(part, &mut Vec::new());
                    let _ = server.encrypt(&mut Vec::new());
                }
                let _ = server.encrypt(&mut vec![SendPart::Bytes(vec![1; 16])]);
                server.close();
                let _ = server.encrypt(&mut Vec::new());
            }
        }
    }

    #[test]
    fn replies_leave_while_a_part_of_a_message_is_held() {
        let (mut server, mut client) = connected();
        client.refresh_traffic_keys().unwrap();
        client.writer().write_all(&[9; 100]).unwrap();
        let mut sent = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut sent).unwrap();
        }
        let mut plain = Vec::new();
        for byte in sent.chunks_mut(1) {
            server.decrypt(byte, &mut plain).unwrap();
            let mut parts = vec![SendPart::Bytes(vec![3; 16])];
            let answer = server.encrypt(&mut parts).unwrap();
            assert_eq!(take(&mut client, &answer), [3; 16]);
        }
        assert_eq!(plain, [9; 100]);
        server.close();
        assert!(server.wants_send());
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
    fn records_are_put_together_from_pieces_of_any_size_and_nothing_is_held_between_them() {
        for piece in [1, 3, 5, 1000, 16_406, 40_000] {
            let (mut server, mut client) = connected();
            let want: Vec<u8> = (0..50_000_u32).map(|at| (at % 251) as u8).collect();
            let mut cipher = Vec::new();
            for part in [&want[..7], &want[7..]] {
                Write::write_all(&mut client.writer(), part).unwrap();
            }
            while client.wants_write() {
                client.write_tls(&mut cipher).unwrap();
            }
            let mut plain = Vec::new();
            for received in cipher.chunks_mut(piece) {
                server.decrypt(received, &mut plain).unwrap();
            }
            assert!(plain == want, "in pieces of {piece}");
            assert_eq!(server.held.capacity(), 0, "in pieces of {piece}");
        }
    }

    #[test]
    fn what_is_no_record_is_an_error_that_the_client_is_told() {
        let (mut server, _) = connected();
        let mut bytes = [23, 3, 3, 0, 40].to_vec();
        bytes.resize(45, 7);
        assert!(server.decrypt(&mut bytes, &mut Vec::new()).is_err());
        assert!(server.wants_send());
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
