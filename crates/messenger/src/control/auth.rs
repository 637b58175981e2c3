//! Layouts of the first frames of both sides: hello and authentication.

use super::ControlBody;
use crate::addr::EntityAddr;
use crate::frame::Tag;
use crate::wire::{Put, Reader, WireError};

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

impl ControlBody for Hello {
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

/// Number lists of the authentication frames: bounded, as a peer offers few.
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
    /// The method's first message.
    pub payload: Vec<u8>,
}

impl ControlBody for AuthRequest {
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

impl ControlBody for AuthBadMethod {
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

        impl ControlBody for $name {
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
    /// The accepting side's next message.
    AuthReplyMore
}
auth_more! {
    /// The connecting side's next message.
    AuthRequestMore
}

/// The connecting side is authenticated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthDone {
    /// The number it has in the cluster.
    pub global_id: u64,
    /// The mode of all frames from here on.
    pub mode: u32,
    /// The method's last message.
    pub payload: Vec<u8>,
}

impl ControlBody for AuthDone {
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

impl ControlBody for AuthSignature {
    const TAG: Tag = Tag::AuthSignature;
    fn encode(&self, out: &mut Vec<u8>) {
        out.put(&self.0);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self(r.array("signature")?))
    }
}
