//! The entry point for fuzzers of [`TlsStream`]: a handshake of any bytes, or a real client's records, cut, damaged and
//! mixed with others as the input says. It panics only where the stream is wrong.

#![expect(
    clippy::unwrap_used,
    reason = "its fixtures are good, and a panic is how it tells a fuzzer of a finding"
)]

use std::io::{Read, Write};
use std::sync::Arc;

use reactor::SendPart;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::tls::{TlsConfig, TlsStream};

const AUTHORITY: &[u8] = include_bytes!("../../tests/fixtures/tls/ca-cert.pem");
const CHAIN: &[u8] = include_bytes!("../../tests/fixtures/tls/server-cert.pem");
const KEY: &[u8] = include_bytes!("../../tests/fixtures/tls/server-key.pem");

/// Takes an input: its first byte says what the rest is.
pub fn tls_stream(input: &[u8]) {
    match input.split_first() {
        None => {}
        Some((&piece, rest)) if piece >= 128 => handshake(rest, usize::from(piece - 127)),
        Some((_, steps)) => Pair::connect().run(steps),
    }
}

/// Anybody's first bytes, in pieces of this size.
fn handshake(bytes: &[u8], piece: usize) {
    // Clients have to show certificates: more messages are taken.
    let config = TlsConfig::from_pem(CHAIN, KEY, Some(AUTHORITY)).unwrap();
    let mut server = config.begin().unwrap();
    let mut plain = Vec::new();
    let mut is_broken = false;
    for part in bytes.to_vec().chunks_mut(piece) {
        let taken = server.decrypt(part, &mut plain);
        assert!(!is_broken || taken.is_err(), "it went on after an error");
        is_broken |= taken.is_err();
        let _ = server.encrypt(&mut Vec::new());
    }
    assert!(plain.is_empty(), "nobody has its keys");
    let sent = server.encrypt(&mut vec![SendPart::Bytes(vec![1; 16])]);
    assert!(sent.is_err(), "nobody has its keys");
    server.close();
    let _ = server.encrypt(&mut Vec::new());
    assert!(!server.wants_send());
}

/// Both ends of a connection whose handshake is over.
struct Pair {
    server: TlsStream,
    client: rustls::ClientConnection,
    /// What the client said, and has not arrived.
    wire: Vec<u8>,
    /// What the client said, in clear, and what the server understood.
    said: Vec<u8>,
    heard: Vec<u8>,
    /// The same the other way.
    answered: Vec<u8>,
    taken: Vec<u8>,
    is_client_over: bool,
}

impl Pair {
    fn connect() -> Pair {
        let mut client = client();
        let config = TlsConfig::from_pem(CHAIN, KEY, None).unwrap();
        let mut server = config.begin().unwrap();
        while client.is_handshaking() || client.wants_write() || server.wants_send() {
            let mut sent = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
            server.decrypt(&mut sent, &mut Vec::new()).unwrap();
            let answer = server.encrypt(&mut Vec::new()).unwrap();
            receive(&mut client, &answer).unwrap();
        }
        Pair {
            server,
            client,
            wire: Vec::new(),
            said: Vec::new(),
            heard: Vec::new(),
            answered: Vec::new(),
            taken: Vec::new(),
            is_client_over: false,
        }
    }

    fn run(mut self, mut steps: &[u8]) {
        while let [step, size, rest @ ..] = steps {
            let rest_of_step = self.step(*step, usize::from(*size), rest);
            steps = rest_of_step;
            assert!(self.said.starts_with(&self.heard), "the client's words");
            assert!(self.answered.starts_with(&self.taken), "the server's words");
        }
    }

    /// One step; what is left of the input behind it.
    fn step<'a>(&mut self, step: u8, size: usize, rest: &'a [u8]) -> &'a [u8] {
        match step % 8 {
            0 if !self.is_client_over => self.say(size * size / 4),
            1 => self.deliver(size),
            2 => self.deliver(usize::MAX),
            3 => self.answer(size),
            4 if !self.is_client_over => self.client.refresh_traffic_keys().unwrap_or_default(),
            5 => self.client.send_close_notify(),
            6 => match size {
                0..8 => self.server.close(),
                _ if !self.wire.is_empty() => {
                    let at = size * 97 % self.wire.len();
                    self.wire[at] ^= 1 << (size % 8);
                }
                _ => {}
            },
            7 => {
                let (bytes, rest) = rest.split_at(size.min(rest.len()));
                self.wire.extend_from_slice(bytes);
                return rest;
            }
            _ => {}
        }
        self.take_from_client();
        rest
    }

    fn take_from_client(&mut self) {
        while self.client.wants_write() {
            self.client.write_tls(&mut self.wire).unwrap();
        }
    }

    fn say(&mut self, bytes: usize) {
        let words: Vec<u8> = (self.said.len()..)
            .map(|at| (at % 251) as u8)
            .take(bytes)
            .collect();
        let taken = self.client.writer().write(&words).unwrap_or(0);
        self.said.extend_from_slice(&words[..taken]);
    }

    fn deliver(&mut self, bytes: usize) {
        let mut arrived: Vec<u8> = self.wire.drain(..bytes.min(self.wire.len())).collect();
        let _ = self.server.decrypt(&mut arrived, &mut self.heard);
    }

    fn answer(&mut self, bytes: usize) {
        let words = vec![bytes as u8; bytes];
        let mut parts = vec![SendPart::Bytes(words.clone())];
        let Ok(cipher) = self.server.encrypt(&mut parts) else {
            return;
        };
        if parts.is_empty() {
            self.answered.extend_from_slice(&words);
        }
        match receive(&mut self.client, &cipher) {
            Ok(words) => self.taken.extend_from_slice(&words),
            Err(_) => self.is_client_over = true,
        }
    }
}

/// A client that shows no certificate.
pub(super) fn client() -> rustls::ClientConnection {
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
    rustls::ClientConnection::new(Arc::new(config), name).unwrap()
}

/// What a client finds in these bytes.
pub(super) fn receive(
    client: &mut rustls::ClientConnection,
    mut cipher: &[u8],
) -> Result<Vec<u8>, rustls::Error> {
    let mut plain = Vec::new();
    while !cipher.is_empty() {
        if client.read_tls(&mut cipher).unwrap_or(0) == 0 {
            break;
        }
        client.process_new_packets()?;
        // It ends with "would block": more may come.
        let _ = client.reader().read_to_end(&mut plain);
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_whole_client_says_is_heard_and_answered() {
        let mut pair = Pair::connect();
        for (step, size) in [(0, 100), (4, 0), (0, 10), (1, 99), (2, 0), (3, 9)] {
            pair.step(step, size, &[]);
        }
        assert_eq!((pair.heard.len(), pair.taken.len()), (2525, 9));
    }

    /// Found by the fuzzer: the library's assertion failed.
    #[test]
    fn what_a_client_sends_behind_the_servers_end_is_no_error_of_it() {
        tls_stream(&[
            0, 0, 0, 16, 3, 9, 0, 1, 1, 3, 21, 3, 0, 94, 78, 94, 94, 94, 94, 94, 94, 94, 2, 2, 40,
        ]);
    }

    #[test]
    fn whatever_comes_nothing_is_heard_that_was_not_said() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..500 {
            let mut input = vec![0; rng.usize(..200)];
            rng.fill(&mut input);
            tls_stream(&input);
        }
    }
}
