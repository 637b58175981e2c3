//! The kernel's NBD driver, configured over netlink: a disk whose connection may be replaced.
//!
//! Connections are made here and given to the kernel, which requests nothing that was not negotiated: simple replies,
//! one connection. `nbd-client` cannot do this: its own reconnecting fails what was under way.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, connect, recv, send, socket};

/// linux/netlink.h, linux/genetlink.h
const REQUEST_AND_ACK: u16 = 1 | 4;
const TYPE_ERROR: u16 = 2;
const TYPE_CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// linux/nbd-netlink.h
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONN_TIMEOUT: u16 = 8;
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;
const NESTED: u16 = 0x8000;

/// After so many seconds a request is sent again over the connection that there is then.
const REQUEST_SECONDS: u64 = 3;
/// For so many seconds requests wait for a connection.
const RECONNECT_SECONDS: u64 = 120;

/// The driver's netlink family.
pub struct KernelNbd {
    netlink: OwnedFd,
    family: u16,
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn number(kind: u16, value: u64) -> Vec<u8> {
    attribute(kind, &value.to_ne_bytes())
}

fn index(device: u32) -> Vec<u8> {
    attribute(INDEX, &device.to_ne_bytes())
}

/// The kernel would take a time-out of the socket's for its end.
fn sockets(stream: &UnixStream) -> Vec<u8> {
    stream.set_read_timeout(None).unwrap();
    let fd = attribute(SOCKET_FD, &stream.as_raw_fd().to_ne_bytes());
    attribute(SOCKETS | NESTED, &attribute(SOCKET_ITEM | NESTED, &fd))
}

impl KernelNbd {
    /// `None` where the kernel has no such driver.
    pub fn new() -> Option<KernelNbd> {
        let netlink = socket(AddressFamily::NETLINK, SocketType::RAW, Some(GENERIC)).unwrap();
        connect(&netlink, &SocketAddrNetlink::new(0, 0)).unwrap();
        let mut driver = KernelNbd { netlink, family: 0 };
        let name = attribute(FAMILY_NAME, b"nbd\0");
        let answer = driver.ask(TYPE_CONTROL, GET_FAMILY, &name).ok()?;
        // Attributes follow the headers of netlink and of its generic families.
        let mut rest = &answer[20..];
        while rest.len() >= 4 {
            let word = |at: usize| u16::from_ne_bytes([rest[at], rest[at + 1]]);
            if word(2) == FAMILY_ID {
                driver.family = word(4);
                return Some(driver);
            }
            rest = rest.get(usize::from(word(0)).next_multiple_of(4)..)?;
        }
        None
    }

    /// Sends a command; its answer, or the kernel's error.
    fn ask(&self, kind: u16, command: u8, attributes: &[u8]) -> Result<Vec<u8>, i32> {
        let mut bytes = (20 + attributes.len() as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(REQUEST_AND_ACK.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend([command, 1, 0, 0]);
        bytes.extend(attributes);
        send(&self.netlink, &bytes, SendFlags::empty()).unwrap();
        let mut answer = Vec::new();
        loop {
            let mut buf = vec![0; 16 << 10];
            let (len, _) = recv(&self.netlink, &mut buf[..], RecvFlags::empty()).unwrap();
            buf.truncate(len);
            if u16::from_ne_bytes([buf[4], buf[5]]) != TYPE_ERROR {
                answer = buf;
                continue;
            }
            return match i32::from_ne_bytes(buf[16..20].try_into().unwrap()) {
                0 => Ok(answer),
                error => Err(-error),
            };
        }
    }

    /// Makes `/dev/nbdDEVICE` a disk of this connection.
    pub fn connect(&self, device: u32, stream: &UnixStream, bytes: u64, flags: u16) {
        let attributes = [
            index(device),
            number(SIZE_BYTES, bytes),
            number(BLOCK_SIZE_BYTES, 4096),
            number(TIMEOUT, REQUEST_SECONDS),
            number(DEAD_CONN_TIMEOUT, RECONNECT_SECONDS),
            number(SERVER_FLAGS, flags.into()),
            sockets(stream),
        ];
        let connected = self.ask(self.family, CONNECT, &attributes.concat());
        connected.unwrap_or_else(|error| panic!("cannot connect a disk: error {error}"));
    }

    /// Gives a disk another connection for one that ended. The kernel takes it once it knows of that end: false
    /// before.
    pub fn reconnect(&self, device: u32, stream: &UnixStream) -> bool {
        let attributes = [index(device), sockets(stream)];
        let done = self.ask(self.family, RECONFIGURE, &attributes.concat());
        done.is_ok()
    }

    /// Ends a disk.
    /// Whether the kernel has taken it.
    pub fn disconnect(&self, device: u32) -> bool {
        self.ask(self.family, DISCONNECT, &index(device)).is_ok()
    }
}
