//! What the control frames say: hello, authentication, ident, reconnect and its refusals,
//! keepalive, acknowledgements.
//!
//! Owns the layout of each; must never decide anything. Bodies may be longer than what is read
//! here: a later version appends, and the rest is skipped.

use crate::addr::{EntityAddr, decode_addrs, encode_addrs};
use crate::frame::{Frame, Tag};
use crate::wire::{Put, Reader, WireError};

/// A control frame's body.
pub trait Control: Sized {
    /// Its frame type.
    const TAG: Tag;
    /// Appends the body.
    fn encode(&self, out: &mut Vec<u8>);
    /// Reads the body.
    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError>;

    /// The whole frame.
    fn frame(&self) -> Frame {
        let mut out = Vec::with_capacity(64);
        self.encode(&mut out);
        Frame::control(Self::TAG, out)
    }

    /// Reads the body of `frame`, whose type the caller has looked at.
    fn from_frame(frame: &Frame) -> Result<Self, WireError> {
        Self::decode(&mut Reader::new(&frame.segments[0]))
    }
}

/// What kind of entity a peer says it is.
pub mod entity {
    /// A Ceph monitor.
    pub const MON: u8 = 1;
    /// A Ceph object store daemon.
    pub const OSD: u8 = 4;
    /// A client. Hosts of this project say this too.
    pub const CLIENT: u8 = 8;
}

/// The first frame of both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// What the sender is.
    pub entity: u8,
    /// The receiver's address as the sender sees it.
    pub your_addr: EntityAddr,
}

impl Control for Hello {
    const TAG: Tag = Tag::Hello;
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(self.entity);
        self.your_addr.encode(out);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            entity: r.u8("entity type")?,
            your_addr: EntityAddr::decode(r)?,
        })
    }
}

/// Number lists of the authentication frames: bounded, as nobody offers more than a handful.
fn decode_numbers(r: &mut Reader<'_>, field: &'static str) -> Result<Vec<u32>, WireError> {
    let n = r.count(4, field)?;
    if n > 16 {
        return Err(WireError::Value {
            field,
            value: n as u64,
        });
    }
    (0..n).map(|_| r.u32(field)).collect()
}

fn encode_numbers(numbers: &[u32], out: &mut Vec<u8>) {
    out.put_u32(u32::try_from(numbers.len()).expect("a handful"));
    for n in numbers {
        out.put_u32(*n);
    }
}

/// The connecting side names its method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthRequest {
    /// Authentication method.
    pub method: u32,
    /// Modes it would take, best first.
    pub modes: Vec<u32>,
    /// The method's first word.
    pub payload: Vec<u8>,
}

impl Control for AuthRequest {
    const TAG: Tag = Tag::AuthRequest;
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.method);
        encode_numbers(&self.modes, out);
        out.put_bytes(&self.payload);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            method: r.u32("auth method")?,
            modes: decode_numbers(r, "connection modes")?,
            payload: r.bytes("auth payload")?.to_vec(),
        })
    }
}

/// The method is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthBadMethod {
    /// The refused method.
    pub method: u32,
    /// Why, as a negative error number.
    pub result: i32,
    /// Methods that would be taken.
    pub methods: Vec<u32>,
    /// Modes that would be taken.
    pub modes: Vec<u32>,
}

impl Control for AuthBadMethod {
    const TAG: Tag = Tag::AuthBadMethod;
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.method);
        out.put_i32(self.result);
        encode_numbers(&self.methods, out);
        encode_numbers(&self.modes, out);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            method: r.u32("auth method")?,
            result: r.i32("auth result")?,
            methods: decode_numbers(r, "allowed methods")?,
            modes: decode_numbers(r, "allowed modes")?,
        })
    }
}

macro_rules! auth_more {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name(
            /// The method's own bytes.
            pub Vec<u8>,
        );

        impl Control for $name {
            const TAG: Tag = Tag::$name;
            fn encode(&self, out: &mut Vec<u8>) {
                out.put_bytes(&self.0);
            }
            fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
                Ok(Self(r.bytes("auth payload")?.to_vec()))
            }
        }
    };
}

auth_more! {
    /// The accepting side's next word.
    AuthReplyMore
}
auth_more! {
    /// The connecting side's next word.
    AuthRequestMore
}

/// The connecting side is who it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthDone {
    /// The number it has in the cluster.
    pub global_id: u64,
    /// The mode of all frames from here on.
    pub mode: u32,
    /// The method's last word.
    pub payload: Vec<u8>,
}

impl Control for AuthDone {
    const TAG: Tag = Tag::AuthDone;
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.global_id);
        out.put_u32(self.mode);
        out.put_bytes(&self.payload);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            global_id: r.u64("global id")?,
            mode: r.u32("connection mode")?,
            payload: r.bytes("auth payload")?.to_vec(),
        })
    }
}

/// A MAC over all bytes of the handshake that the sender received so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthSignature(
    /// HMAC-SHA256, or zeros when the method makes no key.
    pub [u8; 32],
);

impl Control for AuthSignature {
    const TAG: Tag = Tag::AuthSignature;
    fn encode(&self, out: &mut Vec<u8>) {
        out.put(&self.0);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self(r.array("signature")?))
    }
}

/// Bit 0 of an ident's flags: the session is lossy.
pub const FLAG_LOSSY: u64 = 1;

/// The connecting side asks for a new session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdent {
    /// Its addresses.
    pub addrs: Vec<EntityAddr>,
    /// The address it meant to reach.
    pub target: EntityAddr,
    /// Its number in the cluster.
    pub global_id: i64,
    /// Counts its attempts over all sessions.
    pub global_seq: u64,
    /// Features it supports.
    pub supported: u64,
    /// Features it requires.
    pub required: u64,
    /// See [`FLAG_LOSSY`].
    pub flags: u64,
    /// Names the session; 0 when it is lossy.
    pub cookie: u64,
}

impl Control for ClientIdent {
    const TAG: Tag = Tag::ClientIdent;
    fn encode(&self, out: &mut Vec<u8>) {
        encode_addrs(&self.addrs, out);
        self.target.encode(out);
        out.put_i64(self.global_id);
        for word in [
            self.global_seq,
            self.supported,
            self.required,
            self.flags,
            self.cookie,
        ] {
            out.put_u64(word);
        }
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            addrs: decode_addrs(r)?,
            target: EntityAddr::decode(r)?,
            global_id: r.i64("global id")?,
            global_seq: r.u64("global sequence")?,
            supported: r.u64("supported features")?,
            required: r.u64("required features")?,
            flags: r.u64("session flags")?,
            cookie: r.u64("session cookie")?,
        })
    }
}

/// The accepting side grants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerIdent {
    /// Its addresses.
    pub addrs: Vec<EntityAddr>,
    /// Its number in the cluster.
    pub global_id: i64,
    /// The largest global sequence it knows.
    pub global_seq: u64,
    /// Features it supports.
    pub supported: u64,
    /// Features it requires.
    pub required: u64,
    /// See [`FLAG_LOSSY`].
    pub flags: u64,
    /// Its name for the session; 0 when it is lossy.
    pub cookie: u64,
}

impl Control for ServerIdent {
    const TAG: Tag = Tag::ServerIdent;
    fn encode(&self, out: &mut Vec<u8>) {
        encode_addrs(&self.addrs, out);
        out.put_i64(self.global_id);
        for word in [
            self.global_seq,
            self.supported,
            self.required,
            self.flags,
            self.cookie,
        ] {
            out.put_u64(word);
        }
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            addrs: decode_addrs(r)?,
            global_id: r.i64("global id")?,
            global_seq: r.u64("global sequence")?,
            supported: r.u64("supported features")?,
            required: r.u64("required features")?,
            flags: r.u64("session flags")?,
            cookie: r.u64("session cookie")?,
        })
    }
}

/// The connecting side asks to go on with a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reconnect {
    /// Its addresses.
    pub addrs: Vec<EntityAddr>,
    /// Its name for the session.
    pub client_cookie: u64,
    /// The accepting side's name for it.
    pub server_cookie: u64,
    /// Counts its attempts over all sessions.
    pub global_seq: u64,
    /// Counts its attempts in this session.
    pub connect_seq: u64,
    /// What it has received.
    pub msg_seq: u64,
}

impl Control for Reconnect {
    const TAG: Tag = Tag::SessionReconnect;
    fn encode(&self, out: &mut Vec<u8>) {
        encode_addrs(&self.addrs, out);
        out.put_u64(self.client_cookie);
        out.put_u64(self.server_cookie);
        out.put_u64(self.global_seq);
        out.put_u64(self.connect_seq);
        out.put_u64(self.msg_seq);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            addrs: decode_addrs(r)?,
            client_cookie: r.u64("client cookie")?,
            server_cookie: r.u64("server cookie")?,
            global_seq: r.u64("global sequence")?,
            connect_seq: r.u64("connect sequence")?,
            msg_seq: r.u64("received sequence")?,
        })
    }
}

macro_rules! one_word {
    ($(#[$doc:meta])* $name:ident, $tag:ident, $field:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name(
            #[doc = concat!("The ", $field, ".")]
            pub u64,
        );

        impl Control for $name {
            const TAG: Tag = Tag::$tag;
            fn encode(&self, out: &mut Vec<u8>) {
                out.put_u64(self.0);
            }
            fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
                Ok(Self(r.u64($field)?))
            }
        }
    };
}

one_word! {
    /// Features that the connecting side lacks.
    MissingFeatures, IdentMissingFeatures, "missing features"
}
one_word! {
    /// Refusal: the connect sequence is not above the last one seen.
    Retry, SessionRetry, "last connect sequence"
}
one_word! {
    /// Refusal: the global sequence is not above the last one seen.
    RetryGlobal, SessionRetryGlobal, "last global sequence"
}
one_word! {
    /// The session goes on.
    ReconnectOk, SessionReconnectOk, "received sequence"
}
one_word! {
    /// Everything up to here is received.
    Ack, Ack, "acknowledged sequence"
}
one_word! {
    /// Everything up to here is done, says the application. Ours, not Ceph's.
    Done, Done, "done sequence"
}

/// Refusal: the session is not known here any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reset {
    /// All state of it is gone, not only what was in flight.
    pub full: bool,
}

impl Control for Reset {
    const TAG: Tag = Tag::SessionReset;
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(u8::from(self.full));
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            full: r.u8("full reset")? != 0,
        })
    }
}

/// Refusal: not now, come again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait;

impl Control for Wait {
    const TAG: Tag = Tag::Wait;
    fn encode(&self, _: &mut Vec<u8>) {}
    fn decode(_: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self)
    }
}

/// A time stamp that the peer sends back unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Seconds.
    pub sec: u32,
    /// Nanoseconds.
    pub nsec: u32,
}

macro_rules! stamped {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name(
            /// The sender's time, or what was sent.
            pub Stamp,
        );

        impl Control for $name {
            const TAG: Tag = Tag::$name;
            fn encode(&self, out: &mut Vec<u8>) {
                out.put_u32(self.0.sec);
                out.put_u32(self.0.nsec);
            }
            fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
                Ok(Self(Stamp { sec: r.u32("seconds")?, nsec: r.u32("nanoseconds")? }))
            }
        }
    };
}

stamped! {
    /// Are you there?
    Keepalive2
}
stamped! {
    /// Yes.
    Keepalive2Ack
}

/// Reads whatever control body `frame` has and drops it: the entry point for fuzzers.
pub fn check_control(frame: &Frame) -> Result<(), WireError> {
    fn read<C: Control>(frame: &Frame) -> Result<(), WireError> {
        C::from_frame(frame).map(drop)
    }
    match frame.tag {
        Tag::Hello => read::<Hello>(frame),
        Tag::AuthRequest => read::<AuthRequest>(frame),
        Tag::AuthBadMethod => read::<AuthBadMethod>(frame),
        Tag::AuthReplyMore => read::<AuthReplyMore>(frame),
        Tag::AuthRequestMore => read::<AuthRequestMore>(frame),
        Tag::AuthDone => read::<AuthDone>(frame),
        Tag::AuthSignature => read::<AuthSignature>(frame),
        Tag::ClientIdent => read::<ClientIdent>(frame),
        Tag::ServerIdent => read::<ServerIdent>(frame),
        Tag::IdentMissingFeatures => read::<MissingFeatures>(frame),
        Tag::SessionReconnect => read::<Reconnect>(frame),
        Tag::SessionReset => read::<Reset>(frame),
        Tag::SessionRetry => read::<Retry>(frame),
        Tag::SessionRetryGlobal => read::<RetryGlobal>(frame),
        Tag::SessionReconnectOk => read::<ReconnectOk>(frame),
        Tag::Wait => read::<Wait>(frame),
        Tag::Message => crate::message::Header::decode(&frame.segments[0]).map(drop),
        Tag::Keepalive2 => read::<Keepalive2>(frame),
        Tag::Keepalive2Ack => read::<Keepalive2Ack>(frame),
        Tag::Ack => read::<Ack>(frame),
        Tag::Done => read::<Done>(frame),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip<C: Control + PartialEq + std::fmt::Debug>(value: &C) {
        let frame = value.frame();
        assert_eq!(&C::from_frame(&frame).unwrap(), value);
        for cut in 0..frame.segments[0].len() {
            let short = Frame::control(frame.tag, frame.segments[0][..cut].to_vec());
            assert!(C::from_frame(&short).is_err(), "{value:?} cut at {cut}");
        }
        let mut longer = frame.segments[0].to_vec();
        longer.push(0xaa);
        assert_eq!(
            &C::from_frame(&Frame::control(frame.tag, longer)).unwrap(),
            value
        );
    }

    #[test]
    fn every_control_frame_survives_a_round_trip_and_no_truncation() {
        let addr = EntityAddr::msgr2("10.1.2.3:6800".parse().unwrap(), 9);
        let addrs = vec![addr, EntityAddr::blank(1)];
        round_trip(&Hello {
            entity: 8,
            your_addr: addr,
        });
        round_trip(&AuthRequest {
            method: 2,
            modes: vec![2, 1],
            payload: vec![1, 2, 3],
        });
        let refused = AuthBadMethod {
            method: 2,
            result: -13,
            methods: vec![1],
            modes: vec![2],
        };
        round_trip(&refused);
        round_trip(&AuthReplyMore(vec![7; 5]));
        round_trip(&AuthRequestMore(vec![8; 5]));
        round_trip(&AuthDone {
            global_id: 4,
            mode: 2,
            payload: vec![],
        });
        round_trip(&AuthSignature([3; 32]));
        round_trip(&ClientIdent {
            addrs: addrs.clone(),
            target: addr,
            global_id: 1,
            global_seq: 2,
            supported: 3,
            required: 4,
            flags: 5,
            cookie: 6,
        });
        round_trip(&ServerIdent {
            addrs: addrs.clone(),
            global_id: 1,
            global_seq: 2,
            supported: 3,
            required: 4,
            flags: 5,
            cookie: 6,
        });
        round_trip(&MissingFeatures(1));
        round_trip(&Reconnect {
            addrs,
            client_cookie: 1,
            server_cookie: 2,
            global_seq: 3,
            connect_seq: 4,
            msg_seq: 5,
        });
        round_trip(&Reset { full: true });
        round_trip(&Retry(1));
        round_trip(&RetryGlobal(2));
        round_trip(&ReconnectOk(3));
        round_trip(&Wait);
        round_trip(&Keepalive2(Stamp { sec: 1, nsec: 2 }));
        round_trip(&Keepalive2Ack(Stamp { sec: 1, nsec: 2 }));
        round_trip(&Ack(9));
        round_trip(&Done(9));
    }

    proptest! {
        #[test]
        fn no_control_body_makes_a_reader_panic(
            tag in 0usize..21,
            body in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let tag = crate::frame::TAGS[tag];
            let _ = check_control(&Frame::control(tag, body));
        }
    }
}
