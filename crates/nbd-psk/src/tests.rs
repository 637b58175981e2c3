//! The server's side against a client of the same library; foreign ones are in the end-to-end tests.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use nbd::server::{TlsProvider, TlsSession, TlsStreamError};
use reactor::SendPart;
use s2n_tls::config::Builder;
use s2n_tls::connection::ModifiedBuilder;
use s2n_tls::error::Error;
use s2n_tls_tokio::{TlsConnector, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::wire::Wire;
use super::*;

const KEY: [u8; 32] = [7; 32];
const OTHER_KEY: [u8; 32] = [8; 32];

/// Bytes of a record that are no plaintext: its header, its kind, and its tag.
const RECORD_OVERHEAD: usize = 5 + 1 + 16;

fn server() -> Box<dyn TlsSession> {
    let config = PskConfig::new([("alice", &KEY[..]), ("bob", &OTHER_KEY[..])]).unwrap();
    config.begin().unwrap()
}

type Connecting = Pin<Box<dyn Future<Output = Result<TlsStream<Wire>, Error>>>>;

/// A client, before and after its handshake.
struct Client {
    wire: Wire,
    connecting: Option<Connecting>,
    tls: Option<TlsStream<Wire>>,
    error: Option<Error>,
}

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

impl Client {
    fn new(key: Option<(&'static str, &'static [u8])>) -> Client {
        Client::with_policy(key, POLICY)
    }

    fn with_policy(key: Option<(&'static str, &'static [u8])>, policy: &str) -> Client {
        let mut config = Builder::new();
        config
            .set_security_policy(&Policy::from_version(policy).unwrap())
            .unwrap();
        config.set_max_blinding_delay(0).unwrap();
        config.with_system_certs(false).unwrap();
        let wire = Wire::default();
        let (config, end) = (config.build().unwrap(), wire.clone());
        let connecting = async move {
            let with_key = ModifiedBuilder::new(config, |connection| {
                if let Some((name, key)) = key {
                    let table = KeyTable::new([(name, key)]).unwrap();
                    connection.append_psk(&table.0[name])?;
                }
                Ok(connection)
            });
            TlsConnector::new(with_key).connect("localhost", end).await
        };
        let mut client = Client {
            wire,
            connecting: Some(Box::pin(connecting)),
            tls: None,
            error: None,
        };
        client.go_on();
        client
    }

    fn go_on(&mut self) {
        let Some(connecting) = &mut self.connecting else {
            return;
        };
        if let Poll::Ready(done) = connecting.as_mut().poll(&mut cx()) {
            self.connecting = None;
            match done {
                Ok(tls) => self.tls = Some(tls),
                Err(error) => self.error = Some(error),
            }
        }
    }

    fn sent(&self) -> Vec<u8> {
        std::mem::take(&mut self.wire.lock().sent)
    }

    /// What it finds in these bytes.
    fn take(&mut self, cipher: &[u8]) -> Vec<u8> {
        self.wire.lock().received.extend_from_slice(cipher);
        self.go_on();
        let mut plain = Vec::new();
        while let Some(tls) = &mut self.tls {
            let mut room = vec![0; 16 << 10];
            let mut room = ReadBuf::new(&mut room);
            match Pin::new(tls).poll_read(&mut cx(), &mut room) {
                Poll::Ready(Ok(())) if !room.filled().is_empty() => {
                    plain.extend_from_slice(room.filled());
                }
                _ => break,
            }
        }
        plain
    }

    /// These bytes as it sends them.
    fn encrypt(&mut self, mut plain: &[u8]) -> Vec<u8> {
        let tls = self.tls.as_mut().unwrap();
        while !plain.is_empty() {
            let Poll::Ready(Ok(written)) = Pin::new(&mut *tls).poll_write(&mut cx(), plain) else {
                panic!("not written");
            };
            plain = &plain[written..];
        }
        self.sent()
    }
}

/// Leads the handshake to its end; the server's error.
fn shake_hands(server: &mut dyn TlsSession, client: &mut Client) -> Option<TlsStreamError> {
    for _ in 0..4 {
        let failed = server.decrypt(&mut client.sent(), &mut Vec::new()).err();
        if failed.is_some() {
            return failed;
        }
        let answer = server.encrypt(&mut Vec::new()).unwrap();
        assert_eq!(client.take(&answer), []);
    }
    None
}

fn connected() -> (Box<dyn TlsSession>, Client) {
    let (mut server, mut client) = (server(), Client::new(Some(("alice", &KEY))));
    assert!(shake_hands(&mut *server, &mut client).is_none());
    assert!(client.tls.is_some(), "{:?}", client.error);
    (server, client)
}

#[test]
fn a_client_is_who_its_key_says_once_it_has_proved_it_and_nobody_before() {
    let (mut server, mut client) = (server(), Client::new(Some(("bob", &OTHER_KEY))));
    server.decrypt(&mut client.sent(), &mut Vec::new()).unwrap();
    assert_eq!(server.identity().names, [""; 0]);
    assert!(shake_hands(&mut *server, &mut client).is_none());
    client.take(&server.encrypt(&mut Vec::new()).unwrap());
    assert!(shake_hands(&mut *server, &mut client).is_none());
    assert_eq!(server.identity().names, ["bob"]);
}

#[test]
fn a_wrong_key_an_unknown_name_and_none_are_refused_and_the_first_two_hear_the_same() {
    let mut heard = Vec::new();
    for (key, why) in [
        (Some(("alice", &OTHER_KEY[..])), "PSK binder"),
        (Some(("carol", &KEY)), "no key has the name \"carol\""),
        (None, "offers no pre-shared key"),
    ] {
        let (mut server, mut client) = (server(), Client::new(key));
        let failed = shake_hands(&mut *server, &mut client).unwrap();
        assert!(failed.to_string().contains(why), "{failed}");
        assert_eq!(server.identity().names, [""; 0]);
        // Replies that wait cannot be encrypted any more; the alert leaves.
        let mut parts = vec![SendPart::Bytes(vec![1; 16])];
        heard.push(server.encrypt(&mut parts).unwrap());
        assert!(parts.is_empty());
        client.take(heard.last().unwrap());
        assert!(client.error.is_some());
        assert!(
            server
                .encrypt(&mut vec![SendPart::Bytes(vec![1; 16])])
                .is_err()
        );
        assert!(server.decrypt(&mut [23, 3, 3], &mut Vec::new()).is_err());
        server.close();
        assert!(!server.wants_send());
    }
    assert_eq!(heard[0], [21, 3, 3, 0, 2, 2, 51]);
    assert_eq!(heard[0], heard[1]);
}

/// Names travel in the clear, but which of them there are is nobody's to try out.
#[test]
fn a_first_message_that_is_bent_anywhere_hears_the_same_of_a_name_that_is_known_and_of_one_that_is_not()
 {
    let answer = |name: &'static str, at: usize, to: u8| {
        let mut hello = Client::new(Some((name, &OTHER_KEY))).sent();
        hello[at] = to;
        let mut server = server();
        let _ = server.decrypt(&mut hello, &mut Vec::new());
        server.encrypt(&mut Vec::new()).unwrap()
    };
    let bytes = Client::new(Some(("alice", &OTHER_KEY))).sent().len();
    for at in 0..bytes {
        for to in [0, 1, 48, 255] {
            let (known, unknown) = (answer("alice", at, to), answer("carol", at, to));
            assert_eq!(known, unknown, "byte {at} is {to}");
        }
    }
}

#[test]
fn a_client_that_knows_no_tls_1_3_is_refused() {
    let mut client = Client::with_policy(None, "ELBSecurityPolicy-TLS-1-2-2017-01");
    let failed = shake_hands(&mut *server(), &mut client).unwrap();
    assert!(failed.to_string().contains("version"), "{failed}");
}

/// What comes of such bytes, in pieces of this size, and of what the server does meanwhile.
fn assert_lets_nobody_in(bytes: &[u8], piece: usize) {
    let (mut server, mut plain) = (server(), Vec::new());
    for part in bytes.to_vec().chunks_mut(piece.min(bytes.len().max(1))) {
        let _ = server.decrypt(part, &mut plain);
        let _ = server.encrypt(&mut Vec::new());
    }
    assert_eq!(plain, []);
    assert_eq!(server.identity().names, [""; 0]);
    let _ = server.encrypt(&mut vec![SendPart::Bytes(vec![1; 16])]);
    server.close();
    let _ = server.encrypt(&mut Vec::new());
}

#[test]
fn a_handshake_that_is_cut_or_bent_anywhere_ends_without_a_panic_and_lets_nobody_in() {
    let hello = Client::new(Some(("alice", &KEY))).sent();
    let bent = (0..hello.len()).map(|at| {
        let mut bent = hello.clone();
        bent[at] ^= 1 << (at % 8);
        bent
    });
    let cuts = (0..hello.len()).map(|cut| hello[..cut].to_vec());
    let strange = [
        hello.clone(),
        vec![22, 3, 1, 0, 1, 1, 255, 3, 3, 0, 1, 0],
        vec![20, 3, 3, 0, 1, 1, 21, 3, 3, 0, 2, 2, 40],
        [&hello[..], &[23, 3, 3, 0, 40], &[7; 40]].concat(),
        [&hello[..], &hello].concat(),
        vec![128; 100_000],
        vec![22; 100_000],
    ];
    for bytes in cuts.chain(bent).chain(strange) {
        for piece in [1, 7, usize::MAX] {
            assert_lets_nobody_in(&bytes, piece);
        }
    }
}

#[test]
fn records_are_put_together_from_pieces_of_any_size() {
    for piece in [1, 3, 5, 1000, 16_406, 40_000] {
        let (mut server, mut client) = connected();
        let want: Vec<u8> = (0..50_000_u32).map(|at| (at % 251) as u8).collect();
        let mut cipher = [client.encrypt(&want[..7]), client.encrypt(&want[7..])].concat();
        let mut plain = Vec::new();
        for received in cipher.chunks_mut(piece) {
            server.decrypt(received, &mut plain).unwrap();
        }
        assert!(plain == want, "in pieces of {piece}");
    }
}

#[test]
fn replies_share_records_and_what_is_too_much_for_one_send_stays_for_the_next() {
    let (mut server, mut client) = connected();
    let mut parts: Vec<_> = (0..7)
        .map(|reply| SendPart::Bytes(vec![reply; 528]))
        .collect();
    let cipher = server.encrypt(&mut parts).unwrap();
    assert_eq!(cipher.len(), 7 * 528 + RECORD_OVERHEAD);
    let want: Vec<u8> = (0..7).flat_map(|reply| [reply; 528]).collect();
    assert_eq!(client.take(&cipher), want);
    let mut parts = vec![
        SendPart::Bytes(vec![1; 16]),
        SendPart::Bytes(vec![2; 256 << 10]),
        SendPart::Bytes(Vec::new()),
        SendPart::Bytes(vec![3; 5]),
    ];
    let want = [vec![1; 16], vec![2; 256 << 10], vec![3; 5]].concat();
    let (mut plain, mut sends) = (Vec::new(), 0);
    while !parts.is_empty() {
        plain.extend(client.take(&server.encrypt(&mut parts).unwrap()));
        sends += 1;
    }
    assert_eq!(sends, 2);
    assert!(plain == want);
}

#[test]
fn what_is_no_record_is_an_error_for_good_and_hands_nothing_on() {
    let (mut server, mut client) = connected();
    let mut cipher = client.encrypt(&[9; 100]);
    *cipher.last_mut().unwrap() ^= 1;
    let mut plain = Vec::new();
    assert!(server.decrypt(&mut cipher, &mut plain).is_err());
    assert!(
        server
            .decrypt(&mut client.encrypt(&[9; 100]), &mut plain)
            .is_err()
    );
    assert_eq!(plain, []);
    assert!(
        server
            .encrypt(&mut vec![SendPart::Bytes(vec![1; 16])])
            .is_err()
            || !server.wants_send()
    );
}

#[test]
fn a_client_that_ends_tls_still_hears_the_answers_to_what_it_asked_before() {
    let (mut server, mut client) = connected();
    let mut cipher = client.encrypt(&[9; 100]);
    let tls = client.tls.as_mut().unwrap();
    assert!(Pin::new(tls).poll_shutdown(&mut cx()).is_ready());
    cipher.extend(client.sent());
    let mut plain = Vec::new();
    let ended = server.decrypt(&mut cipher, &mut plain).unwrap_err();
    assert!(matches!(ended, TlsStreamError::Closed), "{ended}");
    assert_eq!(plain, [9; 100]);
    let answer = server.encrypt(&mut vec![SendPart::Bytes(vec![3; 16])]);
    assert_eq!(answer.unwrap().len(), 16 + RECORD_OVERHEAD);
    server.close();
    assert!(server.wants_send());
}

#[test]
fn keys_that_are_of_no_use_are_refused_by_their_name_and_without_their_bytes() {
    let refused = |keys: &[(&str, &[u8])]| PskConfig::new(keys.iter().copied()).unwrap_err();
    assert_eq!(refused(&[]).to_string(), "there is no key");
    let short = refused(&[("alice", &[170; 15])]).to_string();
    assert_eq!(short, "the key of alice has 15 bytes; it takes 16 at least");
    let twice = refused(&[("alice", &KEY), ("alice", &OTHER_KEY)]).to_string();
    assert_eq!(twice, "two keys have the name alice");
    let config = PskConfig::new([("alice", &KEY[..])]).unwrap();
    assert_eq!(format!("{config:?}"), "PskConfig { .. }");
}
