//! Layouts of the frames of a session: idents, reconnect and its refusals, keepalive,
//! acknowledgements.

use super::ControlBody;
use super::field::{Field, control_body};
use crate::addr::EntityAddr;
use crate::frame::Tag;
use crate::wire::{Reader, WireError};

/// Bit 0 of an ident's flags: the session is lossy.
pub const FLAG_LOSSY: u64 = 1;

control_body! {
    /// The connecting side asks for a new session.
    struct ClientIdent: ClientIdent {
        /// Its addresses.
        addrs: Vec<EntityAddr>,
        /// The address it meant to reach.
        target: EntityAddr,
        /// Its number in the cluster.
        global_id: i64,
        /// Counts its attempts over all sessions.
        global_seq: u64,
        /// Features it supports.
        supported: u64,
        /// Features it requires.
        required: u64,
        /// See [`FLAG_LOSSY`].
        flags: u64,
        /// Names the session; 0 when it is lossy.
        cookie: u64,
    }
}

control_body! {
    /// The accepting side grants it.
    struct ServerIdent: ServerIdent {
        /// Its addresses.
        addrs: Vec<EntityAddr>,
        /// Its number in the cluster.
        global_id: i64,
        /// The largest global sequence it knows.
        global_seq: u64,
        /// Features it supports.
        supported: u64,
        /// Features it requires.
        required: u64,
        /// See [`FLAG_LOSSY`].
        flags: u64,
        /// Its name for the session; 0 when it is lossy.
        cookie: u64,
    }
}

control_body! {
    /// The connecting side asks to continue a session.
    struct Reconnect: SessionReconnect {
        /// Its addresses.
        addrs: Vec<EntityAddr>,
        /// Its name for the session.
        client_cookie: u64,
        /// The accepting side's name for it.
        server_cookie: u64,
        /// Counts its attempts over all sessions.
        global_seq: u64,
        /// Counts its attempts in this session.
        connect_seq: u64,
        /// What it has received.
        msg_seq: u64,
    }
}

control_body! {
    /// Features that the connecting side lacks.
    struct MissingFeatures: IdentMissingFeatures(
        /// A mask of them.
        u64
    )
}

control_body! {
    /// Refusal: the connect sequence is not above the last one seen.
    struct Retry: SessionRetry(
        /// The last connect sequence.
        u64
    )
}

control_body! {
    /// Refusal: the global sequence is not above the last one seen.
    struct RetryGlobal: SessionRetryGlobal(
        /// The last global sequence.
        u64
    )
}

control_body! {
    /// The session continues.
    struct ReconnectOk: SessionReconnectOk(
        /// The sequence received last.
        u64
    )
}

control_body! {
    /// Everything up to here is received.
    struct Ack: Ack(
        /// The sequence.
        u64
    )
}

control_body! {
    /// Everything up to here is done, says the application. Ours, not Ceph's.
    struct Done: Done(
        /// The sequence.
        u64
    )
}

control_body! {
    /// Refusal: the session is not known here any more.
    struct Reset: SessionReset {
        /// All state of it is gone, not only what was in flight.
        full: bool,
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

impl Field for Stamp {
    fn encode(&self, out: &mut Vec<u8>) {
        self.sec.encode(out);
        self.nsec.encode(out);
    }
    fn decode(r: &mut Reader<'_>, _: &'static str) -> Result<Self, WireError> {
        Ok(Stamp {
            sec: r.u32("seconds")?,
            nsec: r.u32("nanoseconds")?,
        })
    }
}

control_body! {
    /// Are you there?
    struct Keepalive2: Keepalive2(
        /// The sender's time.
        Stamp
    )
}

control_body! {
    /// Yes.
    struct Keepalive2Ack: Keepalive2Ack(
        /// What was sent.
        Stamp
    )
}
