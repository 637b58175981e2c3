//! Peers that break the protocol, over real sockets: each session ends with one logged reason, and
//! others go on.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use messenger::auth::{ClusterSecret, Credentials};
use messenger::control::{AuthRequest, ControlBody, Hello};
use messenger::frame::{Banner, Frame, Preamble, Sealer, Tag, TxBuf};
use messenger::message::Header;
use messenger::{CloseReason, Config, Connection, Fault, Message, Messenger, Payload, Target};

use crate::support::{Recorder, config, eventually, loopback, start};

/// Everything logged at WARN in this process, one line each. Tests look for their own peer's port.
static LOG: LazyLock<Arc<Mutex<Vec<u8>>>> = LazyLock::new(|| {
    let log: Arc<Mutex<Vec<u8>>> = Arc::default();
    let writer = Arc::clone(&log);
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_writer(move || Shared(Arc::clone(&writer)))
        .init();
    log
});

struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The lines logged about `peer`.
fn log_lines_about(peer: SocketAddr) -> Vec<String> {
    let log = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
    log.lines()
        .filter(|l| l.contains(&peer.to_string()))
        .map(str::to_owned)
        .collect()
}

/// A host with one healthy session, which must still work at the end.
struct Victim {
    addr: SocketAddr,
    recorder: Arc<Recorder>,
    friend: Connection,
    _host: Messenger,
    _other: Messenger,
    sent: u64,
}

impl Victim {
    fn new(config: Config) -> Self {
        LazyLock::force(&LOG);
        let (host, other) = (start("victim", config.clone()), start("friend", config));
        let recorder = Recorder::new();
        let addr = host.listen(loopback(), recorder.clone()).unwrap();
        let friend = other.open(Target::lossless(addr), Recorder::new()).unwrap();
        recorder.wait_opened(1);
        Self {
            addr,
            recorder,
            friend,
            _host: host,
            _other: other,
            sent: 0,
        }
    }

    fn assert_still_works(&mut self) {
        self.sent += 1;
        self.friend
            .send(Message::data(1, self.sent, vec![1]))
            .unwrap();
        let all = (1..=self.sent).collect::<Vec<_>>();
        assert_eq!(self.recorder.wait_messages(all.len()), all);
    }

    /// Says `bytes`, waits until the victim hangs up; the reason it logged, once.
    fn refuses(&mut self, bytes: &[u8]) -> String {
        let mut peer = TcpStream::connect(self.addr).unwrap();
        peer.set_read_timeout(Some(crate::support::DEADLINE))
            .unwrap();
        let name = peer.local_addr().unwrap();
        peer.write_all(bytes).unwrap();
        let mut heard = Vec::new();
        // A reset is as good an end as any.
        let _ = peer.read_to_end(&mut heard);
        eventually("the reason in the log", || {
            !log_lines_about(name).is_empty()
        });
        self.assert_still_works();
        let lines = log_lines_about(name);
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines[0].clone()
    }
}

fn banner() -> Vec<u8> {
    Banner::OURS.encode().to_vec()
}

fn frames(frames: &[Frame]) -> Vec<u8> {
    let mut tx = TxBuf::default();
    for frame in frames {
        Sealer::Crc.seal(frame, &mut tx);
    }
    tx.take_all()
}

fn hello() -> Frame {
    Hello {
        entity: 8,
        your_addr: messenger::addr::EntityAddr::blank(0),
    }
    .frame()
}

#[test]
fn a_peer_that_speaks_another_protocol_is_refused() {
    let mut victim = Victim::new(config());
    let line = victim.refuses(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(line.contains("does not speak msgr2"), "{line}");
}

#[test]
fn an_older_revision_is_refused() {
    let mut victim = Victim::new(config());
    let line = victim.refuses(
        &Banner {
            supported: 0,
            required: 0,
        }
        .encode(),
    );
    assert!(line.contains("revision 2.1"), "{line}");
}

#[test]
fn an_oversized_frame_is_refused_by_its_announcement() {
    let mut victim = Victim::new(config());
    let mut bytes = banner();
    bytes.extend_from_slice(&Preamble::new(Tag::Message, [41, 0, 0, u32::MAX]).encode());
    let line = victim.refuses(&bytes);
    assert!(line.contains("announces"), "{line}");
}

#[test]
fn a_bad_checksum_is_refused() {
    let mut victim = Victim::new(config());
    let mut bytes = banner();
    bytes.extend_from_slice(&frames(&[hello()]));
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let line = victim.refuses(&bytes);
    assert!(line.contains("checksum of the control segment"), "{line}");
}

#[test]
fn a_frame_out_of_order_and_a_malformed_one_are_refused() {
    let mut victim = Victim::new(config());
    let mut early = banner();
    early.extend_from_slice(&frames(&[hello(), Frame::control(Tag::Ack, vec![0; 8])]));
    let line = victim.refuses(&early);
    assert!(
        line.contains("Ack frame came during authentication"),
        "{line}"
    );
    let mut short = banner();
    short.extend_from_slice(&frames(&[
        hello(),
        Frame::control(Tag::AuthRequest, vec![0; 3]),
    ]));
    let line = victim.refuses(&short);
    assert!(line.contains("malformed"), "{line}");
    let mut lying = banner();
    let request = AuthRequest {
        method: 2,
        modes: vec![1],
        payload: vec![],
    }
    .frame();
    lying.extend_from_slice(&frames(&[hello(), request]));
    let line = victim.refuses(&lying);
    assert!(line.contains("authentication method 2"), "{line}");
}

#[test]
fn a_truncated_frame_ends_with_its_connection() {
    let mut victim = Victim::new(config());
    let mut peer = TcpStream::connect(victim.addr).unwrap();
    let mut bytes = banner();
    bytes.extend_from_slice(&frames(&[hello()])[..20]);
    peer.write_all(&bytes).unwrap();
    drop(peer);
    victim.assert_still_works();
    assert_eq!(
        victim
            .recorder
            .count(|h| matches!(h, crate::support::RecordedEvent::Opened(_))),
        1
    );
}

/// A session that is opened by the book and then broken, in two ways.
#[test]
fn a_gap_and_a_bad_checksum_in_an_open_session_end_it_with_one_logged_reason() {
    LazyLock::force(&LOG);
    let message = |seq| {
        Header {
            seq,
            ..Header::default()
        }
        .frame(Payload::default())
    };
    let mut damaged = frames(&[message(2)]);
    *damaged.last_mut().unwrap() ^= 1;
    for (bytes, reason) in [
        (frames(&[message(3)]), "message 3 came where 2 was due"),
        (damaged, "checksum of the control segment"),
    ] {
        let (host, other, recorder) = (
            start("victim", config()),
            start("friend", config()),
            Recorder::new(),
        );
        let addr = host.listen(loopback(), recorder.clone()).unwrap();
        let friend = other.open(Target::lossless(addr), Recorder::new()).unwrap();
        recorder.wait_opened(1);
        let mut peer = TcpStream::connect(addr).unwrap();
        let name = peer.local_addr().unwrap();
        peer.write_all(&crate::support::fuzz::good_conversation())
            .unwrap();
        recorder.wait_opened(2);
        peer.write_all(&bytes).unwrap();
        let closed = recorder.wait_closed().0.to_string();
        assert!(closed.contains(reason), "{closed}");
        let lines = log_lines_about(name);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains(reason), "{lines:?}");
        friend.send(Message::data(1, 5, vec![1])).unwrap();
        assert!(
            recorder.wait_messages(2).contains(&5),
            "the other session goes on"
        );
    }
}

#[test]
fn a_host_with_a_wrong_secret_is_refused_and_gives_up() {
    LazyLock::force(&LOG);
    let host = |name: &str, byte: u8| {
        let secret = ClusterSecret::new(&[byte; 32]).unwrap();
        Messenger::start(
            config(),
            Credentials::Secret {
                name: name.into(),
                secret,
            },
        )
        .unwrap()
    };
    let (right, wrong, good) = (host("right", 1), host("wrong", 2), host("good", 1));
    let (recorder, wrong_ear) = (Recorder::new(), Recorder::new());
    let addr = right.listen(loopback(), recorder.clone()).unwrap();
    let refused = wrong
        .open(Target::lossless(addr), wrong_ear.clone())
        .unwrap();
    refused.try_send(Message::data(1, 1, vec![0; 100])).unwrap();
    let (reason, unacknowledged) = wrong_ear.wait_closed();
    assert!(
        matches!(reason, CloseReason::Fault(Fault::Auth(_))),
        "{reason}"
    );
    assert_eq!(unacknowledged, [1]);
    // The right one is in secure mode, and the other never got as far as a session.
    let session = good.open(Target::lossless(addr), Recorder::new()).unwrap();
    session.send(Message::data(1, 9, vec![7; 100_000])).unwrap();
    assert_eq!(recorder.wait_messages(1), [9]);
    assert_eq!(recorder.connection(0).peer().unwrap().name, "good");
    assert_eq!(
        recorder.count(|h| matches!(h, crate::support::RecordedEvent::Opened(_))),
        1
    );
}

#[test]
fn what_a_secure_session_sends_cannot_be_read_on_the_way() {
    let secret = || ClusterSecret::new(&[3; 32]).unwrap();
    let host = |name: &str| {
        let credentials = Credentials::Secret {
            name: name.into(),
            secret: secret(),
        };
        Messenger::start(config(), credentials).unwrap()
    };
    let (a, b, recorder) = (host("a"), host("b"), Recorder::new());
    let addr = b.listen(loopback(), recorder.clone()).unwrap();
    // A tap between the two.
    let tap = std::net::TcpListener::bind(loopback()).unwrap();
    let tapped = tap.local_addr().unwrap();
    let seen: Arc<Mutex<Vec<u8>>> = Arc::default();
    let copy = Arc::clone(&seen);
    let thread = std::thread::spawn(move || {
        let (mut from, _) = tap.accept().unwrap();
        let mut to = TcpStream::connect(addr).unwrap();
        let (mut back_from, mut back_to) = (to.try_clone().unwrap(), from.try_clone().unwrap());
        let back = std::thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
        let mut buf = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut buf) {
            copy.lock().unwrap().extend_from_slice(&buf[..n]);
            if to.write_all(&buf[..n]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
        let _ = back.join();
    });
    let session = a.open(Target::lossless(tapped), Recorder::new()).unwrap();
    session
        .send(Message::data(1, 1, b"a very recognisable secret".to_vec()))
        .unwrap();
    recorder.wait_messages(1);
    a.shutdown();
    thread.join().unwrap();
    let seen = seen.lock().unwrap();
    assert!(seen.len() > 400);
    assert!(!seen.windows(12).any(|w| w == b"recognisable"));
}

#[test]
fn a_flood_of_connections_leaves_memory_bounded_and_others_going_on() {
    let config = Config {
        handshakes_max: 16,
        handshake_timeout: Duration::from_millis(500),
        ..config()
    };
    let mut victim = Victim::new(config.clone());
    let mut flood = Vec::new();
    let mut handshakes_refused = 0;
    for _ in 0..300 {
        let Ok(peer) = TcpStream::connect(victim.addr) else {
            continue;
        };
        peer.set_read_timeout(Some(crate::support::DEADLINE))
            .unwrap();
        flood.push(peer);
    }
    victim.assert_still_works();
    for mut peer in flood {
        let mut heard = Vec::new();
        let _ = peer.read_to_end(&mut heard);
        // One that was turned away never heard a banner; the others ran out of time.
        handshakes_refused += usize::from(heard.is_empty());
    }
    assert!(
        handshakes_refused >= 300 - 16 * 8,
        "{handshakes_refused} of 300 were turned away"
    );
    victim.assert_still_works();
    // A newcomer gets in once the flood is over.
    let late = start("late", config);
    late.open(Target::lossless(victim.addr), Recorder::new())
        .unwrap();
    victim.recorder.wait_opened(2);
}
