//! Listening sockets: where to listen, and the source that accepts.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use blkmq::io::Backend;
use reactor::{Completion, Cx, FileIndex, Op, Source, Token};

use super::conn::Connection;
use super::registry::Scope;
use super::{Shared, token};

/// How long a listener rests after an accept failed: descriptors or memory are short then, and
/// trying again at once would only burn the processor.
const PAUSE: Duration = Duration::from_millis(100);

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket's path.
    Unix(PathBuf),
}

/// A listening socket at which nobody accepts. Clients wait in its queue meanwhile.
#[derive(Debug)]
pub struct HandedListener {
    /// The place as it was granted.
    pub place: Listen,
    /// The socket. It may be shared, but not used, by the one that gave it away.
    pub socket: Arc<OwnedFd>,
}

/// A text that names no place to listen at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot listen at \"{0}\": give unix:PATH, ADDRESS:PORT or PORT (on 127.0.0.1)")]
pub struct ListenError(String);

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Listen, ListenError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let usable = !path.is_empty() && !path.contains('\0');
            return usable
                .then(|| Listen::Unix(path.into()))
                .ok_or(ListenError(text.to_owned()));
        }
        if let Ok(port) = text.parse::<u16>() {
            let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
            return Ok(Listen::Tcp(SocketAddr::new(loopback, port)));
        }
        text.parse()
            .map(Listen::Tcp)
            .map_err(|_| ListenError(text.to_owned()))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Binds a socket at which nobody accepts yet, at the place as it was granted (a port of 0 becomes a real one). Whoever
/// connects waits in its queue until a server adopts it.
///
/// # Errors
/// Why the place cannot be had.
pub fn bind(listen: &Listen) -> io::Result<HandedListener> {
    blkmq::may_block("binding a socket");
    let (socket, place) = match listen {
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address)?;
            let granted = Listen::Tcp(listener.local_addr()?);
            (listener.into(), granted)
        }
        Listen::Unix(path) => {
            remove_stale(path)?;
            (UnixListener::bind(path)?.into(), listen.clone())
        }
    };
    let socket = Arc::new(socket);
    Ok(HandedListener { place, socket })
}

/// Whether a place can be listened at now. Nothing is left there.
///
/// # Errors
/// Why not, as binding it would say.
pub fn check_place(listen: &Listen) -> io::Result<()> {
    match listen {
        Listen::Tcp(address) => TcpListener::bind(address).map(drop),
        Listen::Unix(path) => {
            remove_stale(path)?;
            match path.symlink_metadata() {
                Ok(_) => Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "there is another kind of file",
                )),
                // Its directory is made when it is bound.
                Err(_) => Ok(()),
            }
        }
    }
}

/// Removes a socket that nobody listens at any more: what a killed server leaves behind.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = path
        .symlink_metadata()
        .is_ok_and(|metadata| metadata.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        // Whoever listened there was about to end, and has removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Its backlog is full.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(in_use()),
        Ok(_) => Err(in_use()),
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("the socket that is there cannot be tried: {error}"),
        )),
    }
}

fn in_use() -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, "another server listens there")
}

/// Accepts connections and hands them to the reactors in turn.
pub(super) struct Listener<B: Backend> {
    pub(super) shared: Arc<Shared<B>>,
    pub(super) socket: FileIndex,
    pub(super) place: Listen,
    /// Dropped with the listener, so that the other end sees that it accepts no more connections.
    pub(super) _ended: Sender<Infallible>,
}

impl<B: Backend> Listener<B> {
    fn accept(&self, cx: &mut Cx<'_>) {
        cx.submit(token::ACCEPT, Op::Accept { file: self.socket });
    }

    fn on_accepted(&self, socket: OwnedFd) {
        let shared = &self.shared;
        if shared.registry.count(Scope::All) >= shared.options.connections_max {
            tracing::warn!(place = %self.place, "too many connections, one more is refused");
            return;
        }
        let most = shared.options.handshakes_max;
        shared.registry.make_room_for_handshake(most);
        if matches!(self.place, Listen::Tcp(_)) {
            // Replies are gathered already, and a peer that vanished must be noticed. Where
            // an option is refused the connection still works.
            let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
            let _ = rustix::net::sockopt::set_socket_keepalive(&socket, true);
        }
        let for_connection = Arc::clone(shared);
        let attached = shared
            .next_reactor()
            .attach(move |cx| Connection::new(cx, for_connection, socket));
        if attached.is_err() {
            tracing::warn!("a connection came while its reactor stops");
        }
    }
}

impl<B: Backend> Source for Listener<B> {
    fn on_attached(&mut self, cx: &mut Cx<'_>) {
        self.accept(cx);
    }

    fn on_completion(&mut self, cx: &mut Cx<'_>, _token: Token, completion: Completion) {
        match completion {
            Completion::Accept(Ok(socket)) => {
                self.on_accepted(socket);
                self.accept(cx);
            }
            Completion::Accept(Err(error)) => {
                tracing::warn!(place = %self.place, %error, "accepting a connection failed");
                cx.submit(token::ACCEPT_PAUSE, Op::Timeout { after: PAUSE });
            }
            _ => self.accept(cx),
        }
    }

    fn on_wake(&mut self, cx: &mut Cx<'_>, _key: u64) {
        // The only wake is the one to stop.
        cx.close(self.socket);
        cx.detach();
    }

    fn on_stop(&mut self, cx: &mut Cx<'_>) {
        cx.close(self.socket);
        cx.detach();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_to_listen_at_are_parsed_and_a_port_alone_is_loopback() {
        assert_eq!("unix:/a b".parse(), Ok(Listen::Unix("/a b".into())));
        assert_eq!(
            "10809".parse::<Listen>().unwrap().to_string(),
            "127.0.0.1:10809"
        );
        assert_eq!("[::]:1".parse::<Listen>().unwrap().to_string(), "[::]:1");
        for bad in ["", "unix:", "host", "1.2.3.4", "65536", "localhost:x"] {
            let error = bad.parse::<Listen>().unwrap_err().to_string();
            assert!(error.contains("unix:PATH"), "{error}");
        }
    }

    #[test]
    fn a_socket_that_cannot_be_tried_is_refused_with_the_cause_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("datagrams");
        let _other = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        let refused = bind(&Listen::Unix(path.clone())).unwrap_err();
        assert_ne!(refused.kind(), io::ErrorKind::AddrInUse, "{refused}");
        let wrong_type = io::Error::from_raw_os_error(libc::EPROTOTYPE).to_string();
        assert!(refused.to_string().contains(&wrong_type), "{refused}");
        assert!(path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_and_other_files_are_left() {
        let dir = tempfile::tempdir().unwrap();
        let place = Listen::Unix(dir.path().join("socket"));
        let first = bind(&place).unwrap();
        assert_eq!(bind(&place).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(bind(&place).is_ok());
        let file = dir.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        assert!(bind(&Listen::Unix(file.clone())).is_err());
        assert_eq!(std::fs::read_to_string(file).unwrap(), "mine");
    }
}
