//! Entry points for the fuzz targets, and for the mutation tests that run with every `cargo test`.
//!
//! Each takes arbitrary bytes, as an untrusted peer would send them, and returns when they are used
//! up. None may panic, hang, or hold more memory than the bytes and the configured limits explain;
//! each asserts the latter itself. Only the crate's public interface is used, so that the fuzz
//! targets, which are outside of the workspace, can include this file.
#![allow(dead_code, reason = "each program uses a part")]

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use messenger::Message;
use messenger::auth::{Credentials, NoneForm};
use messenger::control::check_control;
use messenger::env::{Env, SeededEntropy};
use messenger::frame::{BannerDecoder, Decoder, Frame, GcmStream, Limits, Sealer, Tag, TxBuf};
use messenger::node::Node;
use messenger::outqueue::Kick;
use messenger::session::{Config, LinkId, Output, Target};

fn addr() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1))
}

fn credentials(name: &str) -> Credentials {
    Credentials::None {
        name: name.to_owned(),
        form: NoneForm::Monitor,
    }
}

/// Bytes as a banner and as frames, in both modes; every frame's body is decoded, too.
pub(crate) fn frames(data: &[u8]) {
    let _ = BannerDecoder::default().decode(&mut &data[..]);
    let mut secure = Decoder::new(Limits::OPEN);
    secure.set_secure(GcmStream::new(&[1; 16], &[2; 12]));
    for mut decoder in [
        Decoder::new(Limits::OPEN),
        Decoder::new(Limits::HANDSHAKE),
        secure,
    ] {
        let step = usize::from(data.first().copied().unwrap_or(0)) + 1;
        for mut piece in data.chunks(step) {
            while let Ok(Some(frame)) = decoder.decode(&mut piece) {
                let _ = check_control(&frame);
            }
        }
        assert!(
            decoder.buffered() <= 2 * data.len() + 256,
            "memory follows the bytes received"
        );
    }
}

/// A body of any frame type: the first byte chooses the type.
pub(crate) fn bodies(data: &[u8]) {
    let Some((first, body)) = data.split_first() else {
        return;
    };
    let tag = Tag::ALL[usize::from(*first) % Tag::ALL.len()];
    let _ = check_control(&Frame::control(tag, body.to_vec()));
}

/// Bytes to a host that accepted a connection.
pub(crate) fn accepting(data: &[u8]) {
    let mut host = Host::new("host", 1);
    let link = host.accept();
    host.feed(link, data);
    host.check();
}

/// Bytes to a host that opened a session, as if its peer had sent them.
pub(crate) fn connecting(data: &[u8]) {
    let mut host = Host::new("host", 1);
    host.with_node(|node, env| drop(node.open(env, Target::lossless(addr()))));
    let Some(link) = host.dialed else { return };
    host.with_node(|node, env| node.on_connected(env, link));
    host.feed(link, data);
    host.check();
}

/// Frames with good checksums and arbitrary content to an open session: what a peer that holds
/// all keys can still do. The bytes are cut into frames: type, four lengths, content.
pub(crate) fn open_session(data: &[u8]) {
    let mut host = Host::new("host", 1);
    let link = host.open();
    let mut tx = TxBuf::default();
    let mut rest = data;
    while let Some((head, tail)) = rest.split_at_checked(5) {
        rest = tail;
        let tag = Tag::ALL[usize::from(head[0]) % Tag::ALL.len()];
        let mut segments: [Bytes; 4] = Default::default();
        for (segment, len) in segments.iter_mut().zip(&head[1..]) {
            let (body, tail) = rest.split_at(usize::from(*len).min(rest.len()));
            *segment = Bytes::copy_from_slice(body);
            rest = tail;
        }
        Sealer::Crc.seal(
            &Frame {
                tag,
                aborted: false,
                segments,
            },
            &mut tx,
        );
    }
    let bytes = tx.take_all();
    host.feed(link, &bytes);
    host.check();
}

/// What the connecting side of a correct conversation sends, up to its first message: input for
/// mutations.
pub(crate) fn good_conversation() -> Vec<u8> {
    let mut host = Host::new("host", 1);
    host.open();
    host.received
}

/// A host without sockets.
pub(crate) struct Host {
    node: Node,
    entropy: SeededEntropy,
    dialed: Option<LinkId>,
    /// All bytes it was fed.
    received: Vec<u8>,
}

impl Host {
    pub(crate) fn new(name: &str, seed: u64) -> Self {
        Self {
            node: Node::new(Config::default(), credentials(name)),
            entropy: SeededEntropy::new(seed),
            dialed: None,
            received: Vec::new(),
        }
    }

    fn with_node<T>(&mut self, f: impl FnOnce(&mut Node, Env<'_>) -> T) -> T {
        let env = Env {
            now: Duration::from_secs(1),
            entropy: &mut self.entropy,
        };
        let out = f(&mut self.node, env);
        while let Some(output) = self.node.poll_output() {
            if let Output::Dial { link, .. } = output {
                self.dialed = Some(link);
            }
        }
        out
    }

    pub(crate) fn accept(&mut self) -> LinkId {
        let link = self.with_node(|node, env| node.on_accepted(env, addr()));
        link.expect("an empty host has room for a connection")
    }

    /// Feeds bytes in pieces whose size the last byte chooses.
    pub(crate) fn feed(&mut self, link: LinkId, data: &[u8]) {
        let step = usize::from(data.last().copied().unwrap_or(0)) + 1;
        for piece in data.chunks(step) {
            self.received.extend_from_slice(piece);
            self.with_node(|node, env| node.on_bytes(env, link, piece));
            self.transmit(link);
        }
    }

    fn transmit(&mut self, link: LinkId) -> Vec<u8> {
        self.with_node(|node, env| {
            let bytes = node.poll_transmit(env, link).map(TxBuf::take_all);
            node.on_transmitted(link);
            bytes.unwrap_or_default()
        })
    }

    /// A session that a correct peer opened, with its first message.
    fn open(&mut self) -> LinkId {
        let at = self.accept();
        let mut peer = Host::new("peer", 2);
        let (session, queue) = peer.with_node(|node, env| node.open(env, Target::lossless(addr())));
        let sent = queue.try_send(Message::data(1, 7, &b"first"[..]));
        if sent.expect("an empty queue takes a message").1 == Kick::Worker {
            peer.with_node(|node, env| node.on_kick(env, session));
        }
        let link = peer.dialed.expect("a new session dials");
        peer.with_node(|node, env| node.on_connected(env, link));
        loop {
            let bytes = peer.transmit(link);
            self.received.extend_from_slice(&bytes);
            self.with_node(|node, env| node.on_bytes(env, at, &bytes));
            let answer = self.transmit(at);
            if bytes.is_empty() && answer.is_empty() {
                return at;
            }
            peer.with_node(|node, env| node.on_bytes(env, link, &answer));
        }
    }

    /// Sessions, and connections that named none yet.
    pub(crate) fn load(&self) -> (usize, usize) {
        self.node.load()
    }

    /// What an untrusted peer can make a host hold is bounded.
    fn check(&self) {
        let (sessions, pending) = self.node.load();
        assert!(
            sessions <= 2 && pending <= 1,
            "{sessions} sessions, {pending} pending"
        );
    }
}
