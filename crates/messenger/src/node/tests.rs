//! A node against a peer that is scripted frame by frame: the host, the peer, and their frames. The tests are
//! in the files beside this one, by what they are about.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod authentication;
mod delivery;
mod reconnects;
mod timers;

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
        Self::with_link(host, at, link, entropy)
    }

    /// The peer at the other end of a connection, after the first exchange of bytes.
    fn with_link(host: &mut Host, at: LinkId, link: Link, entropy: SeededEntropy) -> Self {
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
        Self::with_link(host, at, link, entropy)
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

/// The accepting side grants a session of cookie 9, without any feature.
fn granted_session() -> ServerIdent {
    ServerIdent {
        addrs: vec![EntityAddr::blank(0)],
        global_id: 0,
        global_seq: 0,
        supported: 0,
        required: 0,
        flags: 0,
        cookie: 9,
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
