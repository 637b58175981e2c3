//! A node against a peer that is scripted frame by frame: refusals, duplicates, gaps, lies.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::time::Duration;

use super::*;
use crate::addr::EntityAddr;
use crate::auth::{AuthError, ClusterSecret, NoneForm};
use crate::control::{
    Ack, ClientIdent, ControlBody, Done, FLAG_LOSSY, Keepalive2, Keepalive2Ack, MissingFeatures,
    Reconnect, ReconnectOk, Reset, Retry, RetryGlobal, ServerIdent, Stamp, Wait,
};
use crate::env::SeededEntropy;
use crate::frame::{Frame, FrameError, Tag};
use crate::link::{Link, Step};
use crate::message::{Header, Message, Payload};
use crate::session::{Event, FEATURE_DONE};

fn addr() -> std::net::SocketAddr {
    std::net::SocketAddr::from(([127, 0, 0, 1], 9))
}

fn none(name: &str) -> Credentials {
    Credentials::None {
        name: name.into(),
        form: NoneForm::Monitor,
    }
}

fn secret(byte: u8) -> Credentials {
    let secret = ClusterSecret::new(&[byte; 32]).unwrap();
    Credentials::Secret {
        name: "host".into(),
        secret,
    }
}

/// A node, its clock, and what it said to the application.
struct Host {
    node: Node,
    now: Time,
    entropy: SeededEntropy,
    events: Vec<(SessionId, Event)>,
    dialled: Vec<LinkId>,
    hung_up: Vec<LinkId>,
    accepted: Vec<(SessionId, Arc<OutQueue>)>,
}

impl Host {
    fn new(config: Config, credentials: Credentials) -> Self {
        Self {
            node: Node::new(config, credentials),
            now: Duration::from_secs(1),
            entropy: SeededEntropy::new(3),
            events: Vec::new(),
            dialled: Vec::new(),
            hung_up: Vec::new(),
            accepted: Vec::new(),
        }
    }

    fn with_node<T>(&mut self, f: impl FnOnce(&mut Node, Env<'_>) -> T) -> T {
        let out = f(
            &mut self.node,
            Env {
                now: self.now,
                entropy: &mut self.entropy,
            },
        );
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Dial { link, .. } => self.dialled.push(link),
                Output::HangUp { link } => self.hung_up.push(link),
                Output::Flush { .. } => {}
                Output::Accepted { session, queue, .. } => self.accepted.push((session, queue)),
                Output::Event { session, event } => self.events.push((session, event)),
            }
        }
        out
    }

    fn advance(&mut self, time: Duration) {
        self.now += time;
        self.with_node(|node, env| node.on_timer(env));
    }

    fn messages(&self) -> Vec<u64> {
        let tid = |e: &(SessionId, Event)| match &e.1 {
            Event::Message(m) => Some(m.tid),
            _ => None,
        };
        self.events.iter().filter_map(tid).collect()
    }

    fn close_reason(&self) -> Option<&CloseReason> {
        self.events.iter().find_map(|(_, e)| match e {
            Event::Closed { reason, .. } => Some(reason),
            _ => None,
        })
    }
}

/// A peer that says what the test wants, over one connection to a host.
struct Peer {
    link: Link,
    at: LinkId,
    heard: Vec<Frame>,
    entropy: SeededEntropy,
    failed: Option<Fault>,
}

impl Peer {
    fn connect(host: &mut Host, credentials: &Credentials) -> Self {
        let at = host
            .with_node(|node, env| node.on_accepted(env, addr()))
            .expect("there is room");
        let mut entropy = SeededEntropy::new(at.0);
        let mut env = Env {
            now: host.now,
            entropy: &mut entropy,
        };
        let link = Link::connecting(&mut env, credentials, 0, addr());
        let mut peer = Self {
            link,
            at,
            heard: Vec::new(),
            entropy,
            failed: None,
        };
        peer.exchange_until_idle(host);
        peer
    }

    /// Answers a connection the host made.
    fn answer(host: &mut Host, credentials: &Credentials) -> Self {
        let at = *host.dialled.last().unwrap();
        let mut entropy = SeededEntropy::new(at.0);
        let mut env = Env {
            now: host.now,
            entropy: &mut entropy,
        };
        let link = Link::accepting(&mut env, credentials, addr());
        host.with_node(|node, env| node.on_connected(env, at));
        let mut peer = Self {
            link,
            at,
            heard: Vec::new(),
            entropy,
            failed: None,
        };
        peer.exchange_until_idle(host);
        peer
    }

    /// Exchanges bytes until neither side has any.
    fn exchange_until_idle(&mut self, host: &mut Host) {
        loop {
            let said = self.link.tx.take_all();
            if !said.is_empty() {
                host.with_node(|node, env| node.on_bytes(env, self.at, &said));
            }
            let at = self.at;
            let answer = host.with_node(|node, env| {
                let bytes = node.poll_transmit(env, at).map(|tx| tx.take_all());
                node.on_transmitted(at);
                bytes.unwrap_or_default()
            });
            if said.is_empty() && answer.is_empty() {
                return;
            }
            self.receive(host.now, &answer);
        }
    }

    fn receive(&mut self, now: Time, mut answer: &[u8]) {
        // As the node does once a session is open.
        self.link.open(crate::frame::Limits::OPEN);
        let mut env = Env {
            now,
            entropy: &mut self.entropy,
        };
        loop {
            match self.link.step(&mut env, &mut answer) {
                Ok(None) => return,
                Ok(Some(Step::Ready)) => {}
                Ok(Some(Step::Frame(frame))) => self.heard.push(frame),
                Err(fault) => {
                    self.failed = Some(fault);
                    return;
                }
            }
        }
    }

    fn send_frame(&mut self, host: &mut Host, frame: &Frame) {
        self.link.emit(frame);
        self.exchange_until_idle(host);
    }

    fn last<C: ControlBody>(&self) -> C {
        let frame = self.heard.iter().rev().find(|f| f.tag == C::TAG);
        C::from_frame(frame.unwrap_or_else(|| panic!("no {:?} in {:?}", C::TAG, self.heard)))
            .unwrap()
    }

    fn count_received(&self, tag: Tag) -> usize {
        self.heard.iter().filter(|f| f.tag == tag).count()
    }
}

fn ident(cookie: u64, global_seq: u64) -> ClientIdent {
    ClientIdent {
        addrs: vec![EntityAddr::blank(0)],
        target: EntityAddr::blank(0),
        global_id: 0,
        global_seq,
        supported: 0,
        required: 0,
        flags: 0,
        cookie,
    }
}

fn reconnect(server_cookie: u64, global_seq: u64, connect_seq: u64, msg_seq: u64) -> Reconnect {
    let addrs = vec![EntityAddr::blank(0)];
    Reconnect {
        addrs,
        client_cookie: 5,
        server_cookie,
        global_seq,
        connect_seq,
        msg_seq,
    }
}

fn message(seq: u64) -> Frame {
    let header = Header {
        seq,
        tid: 100 + seq,
        kind: 1,
        ..Header::default()
    };
    header.frame(Payload {
        data: vec![1, 2, 3].into(),
        ..Payload::default()
    })
}

/// A host with one accepted session of cookie 5, and its peer.
fn open() -> (Host, Peer) {
    open_with(Config::default(), 0)
}

fn open_with(config: Config, supported: u64) -> (Host, Peer) {
    let mut host = Host::new(config, none("b"));
    let mut peer = Peer::connect(&mut host, &none("a"));
    peer.send_frame(
        &mut host,
        &ClientIdent {
            supported,
            ..ident(5, 10)
        }
        .frame(),
    );
    (host, peer)
}

/// The host's cookie for the session, as long as nothing followed its ident.
fn host_cookie(peer: &Peer) -> u64 {
    peer.last::<ServerIdent>().cookie
}

#[test]
fn the_receiver_drops_what_it_has_seen() {
    let run = || {
        let (mut host, mut peer) = open();
        for seq in [1, 2, 2, 1, 3] {
            peer.send_frame(&mut host, &message(seq));
        }
        host.messages()
    };
    assert_eq!(run(), [101, 102, 103]);
    // The test would notice if it did not.
    assert_ne!(canary::with("deliver_twice", run), [101, 102, 103]);
}

#[test]
fn a_gap_is_an_error_that_ends_the_session() {
    let (mut host, mut peer) = open();
    peer.send_frame(&mut host, &message(1));
    peer.send_frame(&mut host, &message(3));
    assert_eq!(host.messages(), [101]);
    let gap = Fault::Gap {
        expected: 2,
        got: 3,
    };
    assert_eq!(host.close_reason(), Some(&CloseReason::Fault(gap)));
    assert_eq!(host.hung_up, [peer.at]);
    assert_eq!(host.node.load(), (0, 0));
}

#[test]
fn acknowledgements_are_cumulative_and_ride_along_or_go_alone_when_idle() {
    let (mut host, mut peer) = open();
    for seq in 1..=5 {
        peer.link.emit(&message(seq));
    }
    peer.exchange_until_idle(&mut host);
    assert_eq!(
        (peer.count_received(Tag::Ack), peer.last::<Ack>().0),
        (1, 5)
    );
    // With something to send there is no frame of its own.
    peer.link.emit(&message(6));
    let _ = host.accepted[0]
        .1
        .try_send(Message::data(1, 9, vec![1]))
        .unwrap();
    peer.exchange_until_idle(&mut host);
    assert_eq!(peer.count_received(Tag::Ack), 1);
    let frame = peer.heard.last().unwrap();
    assert_eq!(Header::decode(&frame.segments[0]).unwrap().ack_seq, 6);
    // Cumulative the other way, too.
    for _ in 0..3 {
        let _ = host.accepted[0]
            .1
            .try_send(Message::data(1, 9, vec![1]))
            .unwrap();
    }
    peer.exchange_until_idle(&mut host);
    assert_eq!(host.accepted[0].1.load().unacked, 4);
    peer.send_frame(&mut host, &Ack(3).frame());
    assert_eq!(host.accepted[0].1.load().unacked, 1);
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_ends_the_session() {
    let (mut host, mut peer) = open();
    peer.send_frame(&mut host, &Ack(1).frame());
    let lie = Fault::AckOfUnsent { acked: 1, sent: 0 };
    assert_eq!(host.close_reason(), Some(&CloseReason::Fault(lie)));
}

#[test]
fn an_aborted_message_counts_and_is_not_delivered() {
    // The bytes of an aborted frame come from the known answers; here the session's view of it.
    let (mut host, _peer) = open();
    let session = host.accepted[0].0;
    let mut aborted = message(1);
    aborted.aborted = true;
    let (node, now) = (&mut host.node, host.now);
    let mut env = Env {
        now,
        entropy: &mut host.entropy,
    };
    node.with_session(&mut env, session, |s, cx| s.on_frame_for_test(cx, &aborted));
    node.with_session(&mut env, session, |s, cx| {
        s.on_frame_for_test(cx, &message(2))
    });
    host.with_node(|_, _| ());
    assert_eq!(host.messages(), [102]);
}

#[test]
fn reconnect_is_refused_with_reset_when_the_session_is_unknown() {
    let (mut host, peer) = open();
    let cookie = host_cookie(&peer);
    for (server_cookie, client_cookie) in [(cookie, 6), (cookie ^ 1, 5)] {
        let mut again = Peer::connect(&mut host, &none("a"));
        let ask = Reconnect {
            client_cookie,
            ..reconnect(server_cookie, 11, 1, 0)
        };
        again.send_frame(&mut host, &ask.frame());
        assert!(again.last::<Reset>().full);
        assert!(
            host.hung_up.contains(&again.at),
            "a refused connection is dropped"
        );
    }
    // Another host cannot have it either, whatever it knows.
    let mut thief = Peer::connect(&mut host, &none("c"));
    thief.send_frame(&mut host, &reconnect(cookie, 12, 1, 0).frame());
    assert!(thief.last::<Reset>().full);
    assert!(host.close_reason().is_none());
    assert_eq!(host.node.stats().refused_reset, 3);
}

#[test]
fn reconnect_is_refused_with_retry_when_its_connect_sequence_is_used_up() {
    let (mut host, peer) = open();
    let cookie = host_cookie(&peer);
    let mut second = Peer::connect(&mut host, &none("a"));
    second.send_frame(&mut host, &reconnect(cookie, 11, 7, 0).frame());
    assert_eq!(second.last::<ReconnectOk>().0, 0);
    let mut third = Peer::connect(&mut host, &none("a"));
    third.send_frame(&mut host, &reconnect(cookie, 12, 7, 0).frame());
    assert_eq!(third.last::<Retry>().0, 7);
    // On the same connection, with a number above.
    third.send_frame(&mut host, &reconnect(cookie, 13, 8, 0).frame());
    third.last::<ReconnectOk>();
    assert!(
        host.hung_up.contains(&second.at),
        "the older connection is dropped"
    );
}

#[test]
fn a_connection_that_comes_late_is_refused_with_retry_global() {
    let (mut host, peer) = open();
    let cookie = host_cookie(&peer);
    for frame in [reconnect(cookie, 10, 1, 0).frame(), ident(5, 9).frame()] {
        let mut late = Peer::connect(&mut host, &none("a"));
        late.send_frame(&mut host, &frame);
        assert_eq!(late.last::<RetryGlobal>().0, 10);
    }
    assert!(host.close_reason().is_none());
    assert_eq!(host.node.stats().refused_retry_global, 2);
}

#[test]
fn a_session_beyond_the_limit_is_refused_with_wait() {
    let (mut host, _peer) = open_with(
        Config {
            sessions_max: 1,
            ..Config::default()
        },
        0,
    );
    let mut more = Peer::connect(&mut host, &none("c"));
    more.send_frame(&mut host, &ident(8, 1).frame());
    more.last::<Wait>();
    assert!(host.hung_up.contains(&more.at));
    assert_eq!(host.node.load(), (1, 0));
}

#[test]
fn the_connecting_side_obeys_all_four_refusals() {
    let mut host = Host::new(Config::default(), none("a"));
    let (id, _queue) = host.with_node(|node, env| node.open(env, Target::lossless(addr())));
    let server_ident = ServerIdent {
        addrs: vec![EntityAddr::blank(0)],
        global_id: 0,
        global_seq: 0,
        supported: 0,
        required: 0,
        flags: 0,
        cookie: 9,
    };
    let mut peer = Peer::answer(&mut host, &none("b"));
    // Wait: hangs up, and comes again after the pause.
    peer.send_frame(&mut host, &Wait.frame());
    assert_eq!(host.hung_up, [peer.at]);
    host.advance(Duration::from_secs(1));
    let mut peer = Peer::answer(&mut host, &none("b"));
    // Retry global: the same question with a number above.
    peer.send_frame(&mut host, &RetryGlobal(500).frame());
    assert_eq!(peer.last::<ClientIdent>().global_seq, 501);
    peer.send_frame(&mut host, &server_ident.frame());
    // Retry, after a fault while there is something to send.
    host.with_node(|node, _| {
        node.queue(id)
            .unwrap()
            .try_send(Message::data(1, 1, vec![1]))
            .unwrap()
            .0
    });
    host.with_node(|node, env| node.on_lost(env, peer.at, Fault::Disconnected));
    host.advance(Duration::from_secs(1));
    let mut peer = Peer::answer(&mut host, &none("b"));
    let asked = peer.last::<Reconnect>();
    assert_eq!(
        (asked.server_cookie, asked.connect_seq, asked.global_seq),
        (9, 1, 502)
    );
    peer.send_frame(&mut host, &Retry(40).frame());
    assert_eq!(peer.last::<Reconnect>().connect_seq, 41);
    // Reset: reported, and nothing is sent again.
    peer.send_frame(&mut host, &Reset { full: true }.frame());
    assert_eq!(host.close_reason(), Some(&CloseReason::PeerLostSession));
    assert_eq!(peer.count_received(Tag::Message), 0);
}

#[test]
fn a_lossy_session_where_a_lossless_one_was_asked_for_is_refused() {
    let mut host = Host::new(Config::default(), none("a"));
    host.with_node(|node, env| node.open(env, Target::lossless(addr())));
    let mut peer = Peer::answer(&mut host, &none("b"));
    let granted = ServerIdent {
        addrs: vec![EntityAddr::blank(0)],
        global_id: 0,
        global_seq: 0,
        supported: 0,
        required: 0,
        flags: FLAG_LOSSY,
        cookie: 0,
    };
    peer.send_frame(&mut host, &granted.frame());
    assert_eq!(
        host.close_reason(),
        Some(&CloseReason::Fault(Fault::LossyGranted))
    );
}

#[test]
fn missing_features_are_named_on_both_sides() {
    let config = Config {
        required: 0b1000,
        ..Config::default()
    };
    let mut host = Host::new(config, none("b"));
    let mut peer = Peer::connect(&mut host, &none("a"));
    peer.send_frame(&mut host, &ident(5, 1).frame());
    assert_eq!(peer.last::<MissingFeatures>().0, 0b1000);
    let mut host = Host::new(Config::default(), none("a"));
    host.with_node(|node, env| node.open(env, Target::lossless(addr())));
    let mut peer = Peer::answer(&mut host, &none("b"));
    peer.send_frame(&mut host, &MissingFeatures(0b1000).frame());
    let missing = Fault::MissingFeatures { missing: 0b1000 };
    assert_eq!(host.close_reason(), Some(&CloseReason::Fault(missing)));
}

#[test]
fn a_peer_that_acknowledges_more_than_was_sent_when_it_reconnects_is_refused() {
    let (mut host, peer) = open();
    let cookie = host_cookie(&peer);
    let mut liar = Peer::connect(&mut host, &none("a"));
    liar.send_frame(&mut host, &reconnect(cookie, 11, 1, 3).frame());
    let lie = Fault::AckOfUnsent { acked: 3, sent: 0 };
    assert_eq!(host.close_reason(), Some(&CloseReason::Fault(lie)));
    assert!(host.hung_up.contains(&liar.at));
}

#[test]
fn a_reconnect_drops_what_the_peer_has_and_sends_the_rest_again_in_order() {
    let (mut host, mut peer) = open();
    let cookie = host_cookie(&peer);
    for tid in 1..=4 {
        let _ = host.accepted[0]
            .1
            .try_send(Message::data(1, tid, vec![1]))
            .unwrap();
    }
    peer.exchange_until_idle(&mut host);
    peer.send_frame(&mut host, &Ack(1).frame());
    host.with_node(|node, env| node.on_lost(env, peer.at, Fault::Disconnected));
    let mut again = Peer::connect(&mut host, &none("a"));
    again.send_frame(&mut host, &reconnect(cookie, 11, 1, 2).frame());
    let sent: Vec<_> = again
        .heard
        .iter()
        .filter(|f| f.tag == Tag::Message)
        .map(|f| Header::decode(&f.segments[0]).unwrap())
        .map(|h| (h.seq, h.tid))
        .collect();
    assert_eq!(sent, [(3, 3), (4, 4)]);
}

#[test]
fn done_is_not_received_and_needs_both_sides_to_agree_on_it() {
    let config = Config {
        done_acks: true,
        ..Config::default()
    };
    let (mut host, mut peer) = open_with(config, FEATURE_DONE);
    let _ = host.accepted[0]
        .1
        .try_send(Message::data(1, 8, vec![1; 10]))
        .unwrap();
    peer.exchange_until_idle(&mut host);
    peer.send_frame(&mut host, &Ack(1).frame());
    let load = host.accepted[0].1.load();
    assert_eq!((load.unacked, load.bytes, load.count), (0, 0, 1));
    peer.send_frame(&mut host, &Done(1).frame());
    assert_eq!(host.accepted[0].1.load().count, 0);
    assert!(
        host.events
            .iter()
            .any(|(_, e)| matches!(e, Event::Done { tid: 8, seq: 1 }))
    );
    // Without the agreement the frame does not belong here.
    let (mut host, mut peer) = open();
    peer.send_frame(&mut host, &Done(0).frame());
    assert!(matches!(
        host.close_reason(),
        Some(CloseReason::Fault(Fault::Unexpected { .. }))
    ));
}

#[test]
fn a_keepalive_is_answered_with_its_stamp_and_a_flood_of_them_with_one_answer() {
    let (mut host, mut peer) = open();
    for sec in 1..=1000 {
        peer.link.emit(&Keepalive2(Stamp { sec, nsec: 7 }).frame());
    }
    peer.exchange_until_idle(&mut host);
    assert_eq!(peer.count_received(Tag::Keepalive2Ack), 1);
    assert_eq!(peer.last::<Keepalive2Ack>().0, Stamp { sec: 1000, nsec: 7 });
}

#[test]
fn keepalives_go_out_at_their_interval_and_silence_is_a_fault_at_the_deadline() {
    let (mut host, mut peer) = open();
    host.advance(Duration::from_secs(10));
    peer.exchange_until_idle(&mut host);
    assert_eq!(peer.count_received(Tag::Keepalive2), 1);
    let stamp = peer.last::<Keepalive2>().0;
    host.advance(Duration::from_secs(1));
    peer.send_frame(&mut host, &Keepalive2Ack(stamp).frame());
    let second = Duration::from_secs(1);
    assert!(host.events.iter().any(|(_, e)| matches!(
        e, Event::Alive { round_trip } if *round_trip == second)));
    host.advance(Duration::from_secs(9));
    peer.exchange_until_idle(&mut host);
    host.advance(Duration::from_secs(20));
    assert!(host.events.iter().any(|(_, e)| matches!(
        e,
        Event::Interrupted {
            fault: Fault::KeepaliveTimeout,
            ..
        }
    )));
}

#[test]
fn a_keepalive_that_a_fault_swallowed_is_asked_again_and_not_parked() {
    let mut host = Host::new(Config::default(), none("a"));
    let (id, _) = host.with_node(|node, env| node.open(env, Target::lossless(addr())));
    let granted = ServerIdent {
        addrs: vec![EntityAddr::blank(0)],
        global_id: 0,
        global_seq: 0,
        supported: 0,
        required: 0,
        flags: 0,
        cookie: 9,
    };
    let mut peer = Peer::answer(&mut host, &none("b"));
    peer.send_frame(&mut host, &granted.frame());
    let _ = host.with_node(|node, _| node.queue(id).unwrap().keepalive().unwrap());
    peer.exchange_until_idle(&mut host);
    assert_eq!(peer.count_received(Tag::Keepalive2), 1);
    host.with_node(|node, env| node.on_lost(env, peer.at, Fault::Disconnected));
    host.advance(Duration::from_secs(1));
    let mut peer = Peer::answer(&mut host, &none("b"));
    peer.send_frame(&mut host, &ReconnectOk(0).frame());
    assert_eq!(peer.count_received(Tag::Keepalive2), 1);
    // Answered, the next fault parks.
    peer.send_frame(&mut host, &Keepalive2Ack(Stamp { sec: 0, nsec: 0 }).frame());
    host.with_node(|node, env| node.on_lost(env, peer.at, Fault::Disconnected));
    let parked = |e: &(SessionId, Event)| matches!(e.1, Event::Interrupted { parked: true, .. });
    assert_eq!(host.events.iter().filter(|e| parked(e)).count(), 1);
}

#[test]
fn pauses_between_attempts_double_up_to_the_limit_with_jitter() {
    let config = Config {
        backoff_min: Duration::from_millis(100),
        backoff_max: Duration::from_millis(1000),
        ..Config::default()
    };
    let mut host = Host::new(config, none("a"));
    host.with_node(|node, env| node.open(env, Target::lossless(addr())));
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let link = *host.dialled.last().unwrap();
        host.with_node(|node, env| node.on_lost(env, link, Fault::Disconnected));
        let pause = host.node.next_timer().unwrap() - host.now;
        pauses.push(pause.as_millis());
        host.advance(pause);
    }
    let full = [100, 200, 400, 800, 1000, 1000, 1000, 1000];
    for (pause, full) in pauses.iter().zip(full) {
        assert!((full / 2..=full).contains(pause), "{pauses:?}");
    }
    assert!(
        pauses[4..].windows(2).any(|w| w[0] != w[1]),
        "no jitter in {pauses:?}"
    );
}

#[test]
fn a_refused_peer_learns_nothing_and_every_reason_looks_the_same() {
    let refusals: Vec<_> = [secret(8), none("host")]
        .into_iter()
        .map(|wrong| {
            let mut host = Host::new(Config::default(), secret(7));
            let peer = Peer::connect(&mut host, &wrong);
            assert!(host.accepted.is_empty() && host.events.is_empty());
            assert_eq!(host.node.stats().handshakes_failed, 1);
            assert_eq!(host.hung_up, [peer.at]);
            peer.failed.unwrap()
        })
        .collect();
    let refused = Fault::Auth(AuthError::Refused { result: -13 });
    assert_eq!(refusals, [refused.clone(), refused]);
}

#[test]
fn a_peer_without_the_secret_cannot_pose_as_the_accepting_side() {
    let mut host = Host::new(Config::default(), secret(7));
    host.with_node(|node, env| node.open(env, Target::lossless(addr())));
    Peer::answer(&mut host, &secret(8));
    // It refuses us, as it cannot check our proof, and has nothing to show for itself.
    assert!(matches!(
        host.close_reason(),
        Some(CloseReason::Fault(Fault::Auth(_)))
    ));
}

#[test]
fn a_changed_byte_in_a_secure_session_ends_it() {
    let mut host = Host::new(Config::default(), secret(7));
    let mut peer = Peer::connect(&mut host, &secret(7));
    peer.send_frame(&mut host, &ident(5, 1).frame());
    peer.send_frame(&mut host, &message(1));
    peer.link.emit(&message(2));
    let mut bytes = peer.link.tx.take_all();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    host.with_node(|node, env| node.on_bytes(env, peer.at, &bytes));
    assert_eq!(host.messages(), [101]);
    assert!(matches!(
        host.close_reason(),
        Some(CloseReason::Fault(Fault::Frame(
            FrameError::Authentication { .. }
        )))
    ));
}

#[test]
fn connections_beyond_the_limit_are_turned_away_and_slow_ones_run_out_of_time() {
    let config = Config {
        handshakes_max: 8,
        ..Config::default()
    };
    let (mut host, mut peer) = open_with(config, 0);
    let mut handshakes_refused = 0;
    for _ in 0..1000 {
        let link = host.with_node(|node, env| node.on_accepted(env, addr()));
        handshakes_refused += u64::from(link.is_none());
    }
    assert_eq!((handshakes_refused, host.node.load()), (992, (1, 8)));
    assert_eq!(host.node.stats().handshakes_refused, 992);
    // Others go on, and the flood's places are free again after the handshake's time.
    peer.send_frame(&mut host, &message(1));
    assert_eq!(host.messages(), [101]);
    host.advance(Config::default().handshake_timeout);
    peer.exchange_until_idle(&mut host);
    assert_eq!(host.node.load(), (1, 0));
    assert_eq!(host.hung_up.len(), 8);
}
