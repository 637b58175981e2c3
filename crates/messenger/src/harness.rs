//! Entry points for fuzzers, and for the mutation tests that run with every `cargo test`.
//!
//! Each takes arbitrary bytes, as a stranger on the network would send them, and returns when they
//! are used up. None may panic, hang, or hold more memory than the bytes and the configured limits
//! explain; each asserts the latter itself.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::addr::EntityAddr;
use crate::auth::{Credentials, NoneForm};
use crate::control::{ClientIdent, Control, check_control};
use crate::env::{Env, SeededEntropy};
use crate::frame::{BannerDecoder, Decoder, Frame, GcmStream, Limits, Sealer, TxBuf};
use crate::link::{Link, Step};
use crate::node::Node;
use crate::session::{Config, LinkId, Output, Target};

fn addr() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1))
}

fn credentials(name: &str) -> Credentials {
    Credentials::None {
        name: name.to_owned(),
        form: NoneForm::Monitor,
    }
}

/// Bytes as a banner and as frames, in both modes; every frame's body is read, too.
pub fn frames(data: &[u8]) {
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
            "memory follows what came"
        );
    }
}

/// A body of every frame type: the first byte says which.
pub fn bodies(data: &[u8]) {
    let Some((first, body)) = data.split_first() else {
        return;
    };
    let tag = crate::frame::TAGS[usize::from(*first) % crate::frame::TAGS.len()];
    let _ = check_control(&Frame::control(tag, body.to_vec()));
}

/// Bytes to a host that accepted a connection.
pub fn accepting(data: &[u8]) {
    let mut host = Host::new();
    let link = host.accept();
    host.feed(link, data);
    host.check();
}

/// Bytes to a host that opened a session, as if its peer had sent them.
pub fn connecting(data: &[u8]) {
    let mut host = Host::new();
    host.on(|node, env| drop(node.open(env, Target::lossless(addr()))));
    let Some(link) = host.dialled else { return };
    host.on(|node, env| node.on_connected(env, link));
    host.feed(link, data);
    host.check();
}

/// Frames with good checksums and arbitrary content to an open session: what a peer that holds
/// all keys can still do. The bytes are cut into frames: type, four lengths, content.
pub fn open_session(data: &[u8]) {
    let mut host = Host::new();
    let link = host.open();
    let mut tx = TxBuf::default();
    let mut rest = data;
    while let Some((head, tail)) = rest.split_at_checked(5) {
        rest = tail;
        let tag = crate::frame::TAGS[usize::from(head[0]) % crate::frame::TAGS.len()];
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

/// What the connecting side of a good conversation says, up to its first message: material for
/// mutations.
pub fn good_conversation() -> Vec<u8> {
    let mut host = Host::new();
    host.open();
    host.heard
}

/// A host without sockets, and a peer for it.
struct Host {
    node: Node,
    entropy: SeededEntropy,
    dialled: Option<LinkId>,
    /// Everything it was fed.
    heard: Vec<u8>,
}

impl Host {
    fn new() -> Self {
        let node = Node::new(Config::default(), credentials("host"));
        Self {
            node,
            entropy: SeededEntropy::new(1),
            dialled: None,
            heard: Vec::new(),
        }
    }

    fn on<T>(&mut self, f: impl FnOnce(&mut Node, Env<'_>) -> T) -> T {
        let env = Env {
            now: Duration::from_secs(1),
            entropy: &mut self.entropy,
        };
        let out = f(&mut self.node, env);
        while let Some(output) = self.node.poll_output() {
            if let Output::Dial { link, .. } = output {
                self.dialled = Some(link);
            }
        }
        out
    }

    fn accept(&mut self) -> LinkId {
        let link = self.on(|node, env| node.on_accepted(env, addr()));
        link.expect("an empty host has room for a connection")
    }

    fn feed(&mut self, link: LinkId, data: &[u8]) {
        let step = usize::from(data.last().copied().unwrap_or(0)) + 1;
        for piece in data.chunks(step) {
            self.heard.extend_from_slice(piece);
            self.on(|node, env| node.on_bytes(env, link, piece));
            self.said(link);
        }
    }

    fn said(&mut self, link: LinkId) -> Vec<u8> {
        self.on(|node, env| {
            let bytes = node.poll_transmit(env, link).map(TxBuf::take_all);
            node.transmitted(link);
            bytes.unwrap_or_default()
        })
    }

    /// A session that a well-behaved peer opened, with its first message.
    fn open(&mut self) -> LinkId {
        let at = self.accept();
        let mut entropy = SeededEntropy::new(2);
        let mut env = Env {
            now: Duration::from_secs(1),
            entropy: &mut entropy,
        };
        let mut peer = Link::connecting(&mut env, &credentials("peer"), 0, addr());
        peer.open(Limits::OPEN);
        loop {
            let bytes = peer.tx.take_all();
            self.heard.extend_from_slice(&bytes);
            self.on(|node, env| node.on_bytes(env, at, &bytes));
            let answer = self.said(at);
            if bytes.is_empty() && answer.is_empty() {
                return at;
            }
            let mut input = &answer[..];
            while let Ok(Some(step)) = peer.step(&mut env, &mut input) {
                if let Step::Ready = step {
                    peer.emit(&ident().frame());
                    let header = crate::message::Header {
                        seq: 1,
                        ..Default::default()
                    };
                    peer.emit(&header.frame(crate::message::Payload::default()));
                }
            }
        }
    }

    /// What a stranger can make a host hold is bounded.
    fn check(&self) {
        let (sessions, pending) = self.node.load();
        assert!(
            sessions <= 2 && pending <= 1,
            "{sessions} sessions, {pending} pending"
        );
    }
}

fn ident() -> ClientIdent {
    ClientIdent {
        addrs: vec![EntityAddr::blank(0)],
        target: EntityAddr::blank(0),
        global_id: 0,
        global_seq: 1,
        supported: 0,
        required: 0,
        flags: 0,
        cookie: 7,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Changes, removes and repeats bytes of a good conversation.
    fn mutated() -> impl Strategy<Value = Vec<u8>> {
        let edit = (any::<prop::sample::Index>(), 0u8..5, any::<u8>());
        prop::collection::vec(edit, 0..6).prop_map(|edits| {
            let mut bytes = good_conversation();
            for (at, kind, byte) in edits {
                let at = at.index(bytes.len().max(1));
                match kind {
                    0 => bytes[at] = byte,
                    1 => bytes[at] ^= 1 << (byte % 8),
                    2 => bytes.truncate(at.max(1)),
                    3 => bytes.insert(at, byte),
                    _ => bytes.extend_from_within(at..),
                }
            }
            bytes
        })
    }

    #[test]
    fn a_good_conversation_opens_a_session() {
        let mut host = Host::new();
        let link = host.accept();
        host.feed(link, &good_conversation());
        assert_eq!(host.node.load(), (1, 0));
    }

    proptest! {
        #[test]
        fn no_bytes_harm_a_decoder(data in prop::collection::vec(any::<u8>(), 0..2000)) {
            frames(&data);
            bodies(&data);
        }

        #[test]
        fn no_bytes_harm_a_host(data in prop::collection::vec(any::<u8>(), 0..800)) {
            accepting(&data);
            connecting(&data);
            open_session(&data);
        }

        #[test]
        fn no_mutation_of_a_good_conversation_harms_a_host(data in mutated()) {
            frames(&data);
            accepting(&data);
            connecting(&data);
        }
    }
}
