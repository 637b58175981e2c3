//! Layouts of the frames of a session: idents, reconnect and its refusals, keepalive,
//! acknowledgements.

use super::ControlBody;
use crate::addr::{EntityAddr, decode_addrs, encode_addrs};
use crate::frame::Tag;
use crate::wire::{Put, Reader, WireError};

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

impl ControlBody for ClientIdent {
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

impl ControlBody for ServerIdent {
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

/// The connecting side asks to continue a session.
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

impl ControlBody for Reconnect {
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

        impl ControlBody for $name {
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
    /// The session continues.
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

impl ControlBody for Reset {
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

impl ControlBody for Wait {
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

        impl ControlBody for $name {
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
