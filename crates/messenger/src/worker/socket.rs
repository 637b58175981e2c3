//! Nonblocking TCP sockets, as the worker holds them.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};

use crate::frame::TxBuf;

/// Pieces given to the kernel in one call.
const SLICES: usize = 64;

/// One connection's socket.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) stream: TcpStream,
    /// The connection is still being made.
    pub(super) connecting: bool,
    /// The kernel's send buffer was full; the worker waits for room.
    pub(super) blocked: bool,
}

impl Socket {
    /// Starts to connect.
    pub(super) fn dial(addr: SocketAddr, unanswered_max: Duration) -> io::Result<Self> {
        let family = if addr.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        match connect(&fd, &addr) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(e) => return Err(e.into()),
        }
        Self::configure(TcpStream::from(fd), true, unanswered_max)
    }

    /// A connection that a peer made.
    pub(super) fn from_accepted(stream: TcpStream, unanswered_max: Duration) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Self::configure(stream, false, unanswered_max)
    }

    fn configure(
        stream: TcpStream,
        connecting: bool,
        unanswered_max: Duration,
    ) -> io::Result<Self> {
        // Without this a small frame waits until the one before it is acknowledged.
        stream.set_nodelay(true)?;
        // Behind keepalives: the kernel gives up on a peer that acknowledges nothing.
        let millis = u32::try_from(unanswered_max.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&stream, millis)?;
        Ok(Self {
            stream,
            connecting,
            blocked: false,
        })
    }

    /// The result of the attempt to connect.
    pub(super) fn finish_connect(&mut self) -> io::Result<()> {
        sockopt::socket_error(&self.stream)??;
        self.connecting = false;
        Ok(())
    }

    /// Reads what has arrived; `None` when nothing has.
    pub(super) fn read(&mut self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.stream.read(buf) {
                Ok(n) => return Ok(Some(n)),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }

    /// Writes the first pieces; `None` when the kernel takes nothing now.
    pub(super) fn write(&mut self, tx: &TxBuf) -> io::Result<Option<usize>> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let n = tx.slices(&mut slices);
        loop {
            match self.stream.write_vectored(&slices[..n]) {
                Ok(n) => return Ok(Some(n)),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }
}
