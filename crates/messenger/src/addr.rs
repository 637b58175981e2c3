//! Addresses as msgr2 writes them: a kind, a nonce that distinguishes two processes at one address, and
//! a socket address.
//!
//! Owns their encoding and nothing else; it must never resolve or connect. A peer's address is
//! data it chose itself, so it is never used as proof of who the peer is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::wire::{Put, Reader, WireError};

/// What an address is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddrKind {
    /// No address.
    None,
    /// The protocol before msgr2.
    Legacy,
    /// msgr2.
    Msgr2,
    /// Either protocol.
    Any,
    /// A kind this version does not know.
    Other(u32),
}

impl AddrKind {
    fn from_wire(v: u32) -> Self {
        match v {
            0 => Self::None,
            1 => Self::Legacy,
            2 => Self::Msgr2,
            3 => Self::Any,
            other => Self::Other(other),
        }
    }

    fn to_wire(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Legacy => 1,
            Self::Msgr2 => 2,
            Self::Any => 3,
            Self::Other(v) => v,
        }
    }
}

/// One address of an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntityAddr {
    /// What the address is for.
    pub kind: AddrKind,
    /// Tells two lives of one socket address apart.
    pub nonce: u32,
    /// The socket address; `None` when it is blank.
    pub socket: Option<SocketAddr>,
}

const FAMILY_INET: u16 = 2;
const FAMILY_INET6: u16 = 10;
const MARKER_ADDR: u8 = 1;
const MARKER_VECTOR: u8 = 2;
/// Entities have one or two addresses; eight leaves room and bounds what a peer can make us keep.
const ADDRS_MAX: usize = 8;

impl EntityAddr {
    /// A msgr2 address.
    pub fn msgr2(socket: SocketAddr, nonce: u32) -> Self {
        Self {
            kind: AddrKind::Msgr2,
            nonce,
            socket: Some(socket),
        }
    }

    /// A blank address that carries only a nonce, for an entity that nobody connects to.
    pub fn blank(nonce: u32) -> Self {
        let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        Self {
            kind: AddrKind::Any,
            nonce,
            socket: Some(any),
        }
    }

    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut sockaddr = Vec::with_capacity(28);
        match self.socket {
            None => {}
            Some(SocketAddr::V4(a)) => {
                sockaddr.put_u16(FAMILY_INET);
                sockaddr.put(&a.port().to_be_bytes());
                sockaddr.put(&a.ip().octets());
                sockaddr.put(&[0; 8]);
            }
            Some(SocketAddr::V6(a)) => {
                sockaddr.put_u16(FAMILY_INET6);
                sockaddr.put(&a.port().to_be_bytes());
                sockaddr.put(&a.flowinfo().to_be_bytes());
                sockaddr.put(&a.ip().octets());
                sockaddr.put_u32(a.scope_id());
            }
        }
        let mut body = Vec::with_capacity(12 + sockaddr.len());
        body.put_u32(self.kind.to_wire());
        body.put_u32(self.nonce);
        body.put_bytes(&sockaddr);
        out.put_u8(MARKER_ADDR);
        out.put_versioned(1, 1, &body);
    }

    /// Reads one address.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let marker = r.u8("address marker")?;
        if marker != MARKER_ADDR {
            return Err(WireError::Value {
                field: "address marker",
                value: u64::from(marker),
            });
        }
        Self::decode_body(r)
    }

    fn decode_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (_, mut body) = r.enter_versioned(1, "address")?;
        let kind = AddrKind::from_wire(body.u32("address kind")?);
        let nonce = body.u32("address nonce")?;
        let raw = body.bytes("socket address")?;
        Ok(Self {
            kind,
            nonce,
            socket: decode_socket(raw)?,
        })
    }
}

fn decode_socket(raw: &[u8]) -> Result<Option<SocketAddr>, WireError> {
    if raw.is_empty() {
        return Ok(None);
    }
    let mut r = Reader::new(raw);
    match r.u16("address family")? {
        0 => Ok(None),
        FAMILY_INET => {
            let port = u16::from_be_bytes(r.array("port")?);
            let ip = Ipv4Addr::from(r.array::<4>("IPv4 address")?);
            Ok(Some(SocketAddr::new(IpAddr::V4(ip), port)))
        }
        FAMILY_INET6 => {
            let port = u16::from_be_bytes(r.array("port")?);
            let flow = u32::from_be_bytes(r.array("IPv6 flow")?);
            let ip = Ipv6Addr::from(r.array::<16>("IPv6 address")?);
            let scope = r.u32("IPv6 scope").unwrap_or(0);
            Ok(Some(SocketAddr::V6(std::net::SocketAddrV6::new(
                ip, port, flow, scope,
            ))))
        }
        other => Err(WireError::Value {
            field: "address family",
            value: u64::from(other),
        }),
    }
}

/// Appends a vector of addresses.
pub fn encode_addrs(addrs: &[EntityAddr], out: &mut Vec<u8>) {
    out.put_u8(MARKER_VECTOR);
    out.put_u32(u32::try_from(addrs.len()).expect("an entity has a handful of addresses"));
    for addr in addrs {
        addr.encode(out);
    }
}

/// Reads a vector of addresses. A single address is read as a vector of one, as older peers send it.
pub fn decode_addrs(r: &mut Reader<'_>) -> Result<Vec<EntityAddr>, WireError> {
    match r.u8("address vector marker")? {
        MARKER_ADDR => Ok(vec![EntityAddr::decode_body(r)?]),
        MARKER_VECTOR => {
            let n = r.count(7, "address count")?;
            if n > ADDRS_MAX {
                return Err(WireError::Value {
                    field: "address count",
                    value: n as u64,
                });
            }
            (0..n).map(|_| EntityAddr::decode(r)).collect()
        }
        other => Err(WireError::Value {
            field: "address marker",
            value: u64::from(other),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_has_the_documented_bytes() {
        let addr = EntityAddr::msgr2("127.0.0.1:3300".parse().unwrap(), 0x01020304);
        let mut out = Vec::new();
        addr.encode(&mut out);
        let golden = [
            1, 1, 1, 28, 0, 0, 0, // marker, version, compat, length
            2, 0, 0, 0, 4, 3, 2, 1, 16, 0, 0, 0, // kind, nonce, sockaddr length
            2, 0, 0x0c, 0xe4, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(out, golden);
    }

    #[test]
    fn addresses_survive_a_round_trip() {
        let addrs = vec![
            EntityAddr::msgr2("127.0.0.1:3300".parse().unwrap(), 7),
            EntityAddr::msgr2("[fe80::1]:6800".parse().unwrap(), u32::MAX),
            EntityAddr {
                kind: AddrKind::None,
                nonce: 0,
                socket: None,
            },
            EntityAddr {
                kind: AddrKind::Other(77),
                nonce: 1,
                socket: None,
            },
        ];
        let mut out = Vec::new();
        encode_addrs(&addrs, &mut out);
        assert_eq!(decode_addrs(&mut Reader::new(&out)).unwrap(), addrs);
    }

    #[test]
    fn a_vector_of_more_addresses_than_an_entity_has_is_refused() {
        let mut out = Vec::new();
        encode_addrs(&vec![EntityAddr::blank(0); ADDRS_MAX + 1], &mut out);
        assert!(decode_addrs(&mut Reader::new(&out)).is_err());
    }
}
