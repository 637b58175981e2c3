//! Binds the API's listeners: Unix sockets that only their owner can reach, and addresses of TCP.
//!
//! A socket's path is locked as long as its server lives, so that what a killed server left behind
//! is told apart from what another one listens at, and only the former is removed. There is no moment
//! at which a socket has a wider mode than it should.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use super::handover::{InheritedApiSocket, SocketToPass};
use crate::access::tokens::Tokens;
use crate::api::caller::AccessRules;
use crate::api::serving::Listener;
use crate::api::sessions::Sessions;
use crate::config::{ApiListen, Settings};
use crate::failure::{Failure, FailureCode, Result};
use crate::local_files::CacheDir;

/// How long a server that is still ending may keep the API's addresses.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(3);

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The API's listeners. Dropping it removes the sockets.
#[derive(Debug)]
pub(super) struct ApiListeners {
    bound: Vec<Bound>,
    /// Those of the program before that the settings do not name any more.
    dropped: Mutex<Vec<InheritedApiSocket>>,
}

#[derive(Debug)]
enum Bound {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, SocketPath),
}

/// A socket's path, and the lock that makes it this server's.
#[derive(Debug)]
struct SocketPath {
    path: PathBuf,
    lock: File,
    /// The program before this one may need it again, and does not bind it anew.
    stays: AtomicBool,
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        if self.stays.load(Ordering::Relaxed) {
            return;
        }
        // The next server removes what stays.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl ApiListeners {
    /// Listens, and does not accept yet: whoever connects meanwhile waits until the server is ready.
    /// Those that the program before has passed are taken over.
    pub(super) fn bind(settings: &Settings, passed: Vec<InheritedApiSocket>) -> Result<Self> {
        let mut passed = passed;
        let bound = settings.api.listen.iter().map(|listen| {
            let wanted = listen.to_string();
            match passed.iter().position(|one| one.wanted == wanted) {
                Some(at) => take_over(listen, passed.swap_remove(at)),
                None => bind_in_time(settings, listen),
            }
        });
        Ok(ApiListeners {
            bound: bound.collect::<Result<_>>()?,
            dropped: Mutex::new(passed),
        })
    }

    /// The sockets are this program's for good; those that the settings do not name any more are gone.
    pub(super) fn commit(&self) {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        for one in dropped.drain(..) {
            // The path's lock is held until it is removed.
            if let (Some(_), Some(path)) = (&one.path_lock, one.wanted.strip_prefix("unix:")) {
                let _ = std::fs::remove_file(path);
            }
        }
        for bound in &self.bound {
            if let Bound::Unix(_, path) = bound {
                path.stays.store(false, Ordering::Relaxed);
            }
        }
    }

    /// All of it, in the order of the settings.
    pub(super) fn sockets_for_handover(&self) -> Vec<SocketToPass<'_>> {
        let pass = |bound| match bound {
            &Bound::Tcp(ref listener, address) => SocketToPass {
                granted: ApiListen::Tcp(address),
                socket: listener.as_fd(),
                path_lock: None,
            },
            Bound::Unix(listener, path) => SocketToPass {
                granted: ApiListen::Unix(path.path.clone()),
                socket: listener.as_fd(),
                path_lock: Some(path.lock.as_fd()),
            },
        };
        self.bound.iter().map(pass).collect()
    }

    /// Where clients find it.
    pub(super) fn addresses(&self) -> Vec<ApiListen> {
        let address = |bound: &Bound| match bound {
            Bound::Tcp(_, address) => ApiListen::Tcp(*address),
            Bound::Unix(_, socket) => ApiListen::Unix(socket.path.clone()),
        };
        self.bound.iter().map(address).collect()
    }

    /// The listeners for the runtime that serves them. Must be called in it.
    pub(super) fn listeners(&self) -> Result<Vec<Arc<Listener>>> {
        let listener = |bound: &Bound| match bound {
            Bound::Tcp(listener, _) => {
                tokio::net::TcpListener::from_std(listener.try_clone()?).map(Listener::Tcp)
            }
            Bound::Unix(listener, _) => {
                tokio::net::UnixListener::from_std(listener.try_clone()?).map(Listener::Unix)
            }
        };
        let shared = |bound| listener(bound).map(Arc::new);
        let all = self.bound.iter().map(shared).collect::<io::Result<_>>();
        all.map_err(|source| Failure::internal(format!("cannot serve the API: {source}")))
    }
}

impl ApiListeners {
    /// Refuses new connections, also those that nobody accepted yet. The paths stay this server's
    /// until it ends.
    pub(super) fn shut_down(&self) {
        for bound in &self.bound {
            let done = match bound {
                Bound::Tcp(listener, _) => rustix::net::shutdown(listener, Shutdown::Both),
                Bound::Unix(listener, _) => rustix::net::shutdown(listener, Shutdown::Both),
            };
            if let Err(error) = done {
                tracing::debug!(%error, "a listener of the API cannot be shut down");
            }
        }
    }
}

/// Who may use the API. Makes the tokens where they are needed and missing.
pub(super) fn access_rules(settings: &Settings) -> Result<AccessRules> {
    let api = &settings.api;
    let mut tcp = api.listen.iter().filter_map(|listen| match listen {
        ApiListen::Tcp(address) => Some(address),
        ApiListen::Unix(_) => None,
    });
    let first = tcp.next();
    if let (Some(address), true) = (first, api.insecure) {
        tracing::warn!(
            %address,
            "the API asks for no token (--insecure api): whoever reaches this address controls the server"
        );
    } else if let Some(address) = first.into_iter().chain(tcp).find(|a| !a.ip().is_loopback()) {
        tracing::warn!(
            %address,
            "tokens travel to this address unencrypted; let only a network that you trust reach it, \
             or a proxy with TLS"
        );
    }
    let tokens = match first {
        Some(_) if !api.insecure => Some(Tokens::open(&api.tokens)?),
        _ => None,
    };
    Ok(AccessRules {
        owner: rustix::process::geteuid().as_raw(),
        group: api.group,
        tokens,
        hosts: api.hosts.clone(),
        sessions: Sessions::default(),
    })
}

/// A server that is still ending has the address and the cache directory: it is waited for, and if it
/// does not end, it is the reason.
fn bind_in_time(settings: &Settings, listen: &ApiListen) -> Result<Bound> {
    let started = Instant::now();
    loop {
        let bound = match listen {
            ApiListen::Tcp(address) => bind_tcp(*address),
            ApiListen::Unix(path) => bind_unix(path, settings.api.group.is_some()),
        };
        let source = match bound {
            Ok(bound) => return Ok(bound),
            Err(source) => source,
        };
        let holder = CacheDir::holder(&settings.cache);
        let taken = source.kind() == io::ErrorKind::AddrInUse;
        let Some(holder) = holder.filter(|_| taken && !canary::active!("blame_the_address")) else {
            return Err(Failure::listen("the API", listen, "--api", &source));
        };
        if started.elapsed() >= ADDRESS_TIMEOUT {
            return Err(Failure::new(
                FailureCode::CacheInUse,
                format!(
                    "cache directory {} is in use by {holder}; stop it, or give this one a directory \
                     of its own with --cache (and another --api than {listen})",
                    settings.cache.display(),
                ),
            ));
        }
        // The kernel tells nobody when an address becomes free; this loop runs at start only.
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Goes on with a socket of the program before.
fn take_over(listen: &ApiListen, passed: InheritedApiSocket) -> Result<Bound> {
    match (listen, passed.path_lock) {
        (ApiListen::Unix(path), Some(lock)) => {
            let path = SocketPath {
                path: path.clone(),
                lock,
                stays: AtomicBool::new(true),
            };
            Ok(Bound::Unix(passed.socket.into(), path))
        }
        _ => {
            let listener = TcpListener::from(passed.socket);
            let granted = listener.local_addr();
            let granted =
                granted.map_err(|source| Failure::listen("the API", listen, "--api", &source))?;
            Ok(Bound::Tcp(listener, granted))
        }
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<Bound> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let granted = listener.local_addr()?;
    Ok(Bound::Tcp(listener, granted))
}

/// Binds a socket that only the server's user can reach, or also its group.
fn bind_unix(path: &Path, for_group: bool) -> io::Result<Bound> {
    let address = SocketAddrUnix::new(path)?;
    if let Some(dir) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    }
    let lock = lock_path(path)?;
    match path.symlink_metadata() {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "there is another kind of file",
            ));
        }
        Err(_) => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &address)?;
    let socket_path = SocketPath {
        path: path.to_owned(),
        lock,
        stays: AtomicBool::new(false),
    };
    // Until it listens, nobody can connect, whatever its mode is.
    let mode = if for_group { 0o660 } else { 0o600 };
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(Bound::Unix(socket.into(), socket_path))
}

/// Locks a socket's path for the life of this process; the kernel ends the lock with the process.
fn lock_path(path: &Path) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(PathBuf::from(name))?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another server listens there",
        )),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpStream;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_is_for_its_owner_and_what_a_dead_server_left_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/api.sock");
        let mode = || path.symlink_metadata().unwrap().mode() & 0o777;
        let first = bind_unix(&path, false).unwrap();
        assert_eq!(mode(), 0o600);
        let taken = bind_unix(&path, false).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        assert!(UnixStream::connect(&path).is_ok());
        drop(first);
        assert!(!path.exists());
        // As after a kill: the socket is there, and nobody listens.
        drop(UnixListener::bind(&path).unwrap());
        let _second = bind_unix(&path, true).unwrap();
        assert_eq!(mode(), 0o660);
        assert!(UnixStream::connect(&path).is_ok());
    }

    #[test]
    fn a_server_that_stops_leaves_no_client_waiting_to_be_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        let tcp = bind_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let Bound::Tcp(_, address) = tcp else {
            panic!("it is TCP");
        };
        let unix = bind_unix(&path, false).unwrap();
        let listeners = ApiListeners {
            dropped: Mutex::default(),
            bound: vec![tcp, unix],
        };
        let mut waiting = UnixStream::connect(&path).unwrap();
        let timeout = Some(Duration::from_secs(10));
        waiting.set_read_timeout(timeout).unwrap();
        let mut also = TcpStream::connect(address).unwrap();
        also.set_read_timeout(timeout).unwrap();
        listeners.shut_down();
        let is_timeout = |read: io::Result<usize>| {
            read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        assert!(UnixStream::connect(&path).is_err());
        assert!(TcpStream::connect(address).is_err());
        assert!(!is_timeout(also.read(&mut [0])), "TCP");
        // The kernel ends those of a Unix socket with the listener's last descriptor.
        let taken = bind_unix(&path, false).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse, "the path is kept");
        drop(listeners);
        assert!(!is_timeout(waiting.read(&mut [0])), "Unix");
    }

    #[test]
    fn a_file_in_the_place_of_a_socket_is_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        std::fs::write(&path, "mine").unwrap();
        assert!(bind_unix(&path, false).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }
}
