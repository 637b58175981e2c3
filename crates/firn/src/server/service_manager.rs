//! Tells the service manager (systemd, or whoever else sets `NOTIFY_SOCKET`) how the server is: ready,
//! alive, stopping.
//!
//! A server that nobody watches sends nothing. A message that cannot be delivered is logged and never
//! fails the server. Protocol: sd_notify(3); a message is one datagram of `NAME=VALUE` lines.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often a server says that it lives, and how many times at least within its watchdog's time.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEP_ALIVE_SHARE: u32 = 4;

/// The way to the service manager, if there is one.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// After so long a service that says nothing is taken for one that hangs.
    watchdog: Option<Duration>,
}

/// Says that the server lives until it is dropped, or its time is over.
#[derive(Debug)]
pub(super) struct KeepAlive {
    _stop: mpsc::Sender<Infallible>,
}

impl ServiceManager {
    /// The one that this process's environment names.
    pub(super) fn of_environment() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let own = variable("WATCHDOG_PID").is_none_or(|pid| {
            // Else it is a parent process that is watched.
            pid.to_str() == Some(&std::process::id().to_string())
        });
        let watchdog = watchdog_timeout(variable("WATCHDOG_USEC").as_deref()).filter(|_| own);
        Self::at(variable("NOTIFY_SOCKET").as_deref(), watchdog)
    }

    fn at(path: Option<&OsStr>, watchdog: Option<Duration>) -> Self {
        let socket = path.and_then(|path| match connect(path) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(%error, "the service manager of NOTIFY_SOCKET is told nothing");
                None
            }
        });
        ServiceManager { socket, watchdog }
    }

    /// Clients can be served.
    pub(super) fn on_ready(&self) {
        self.send("READY=1\nSTATUS=serving");
    }

    /// The server ends as soon as what is left is in the store.
    pub(super) fn on_stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping: bringing what is left to the store");
    }

    /// The control plane answers: called about once a second, by a task that takes its locks.
    pub(super) fn on_alive(&self) {
        if self.watchdog.is_some() {
            self.send("WATCHDOG=1");
        }
    }

    /// The server gives its place to another program, which serves as soon as it can.
    pub(super) fn on_handing_over(&self) {
        self.send("STATUS=upgrading: another program takes over");
    }

    /// It has not, and goes on.
    pub(super) fn on_called_off(&self) {
        self.send("STATUS=serving");
    }

    /// Says that the server lives while its control plane rests: until this is dropped, and for `most` at the longest, by
    /// which whoever watches over the hand-over has ended it.
    pub(super) fn keep_alive(self: &Arc<Self>, most: Duration) -> Option<KeepAlive> {
        let interval = (self.watchdog? / KEEP_ALIVE_SHARE).min(KEEP_ALIVE_INTERVAL);
        let (stop, stopped) = mpsc::channel::<Infallible>();
        let (manager, until) = (Arc::clone(self), Instant::now() + most);
        let thread = std::thread::Builder::new().name("firn-keep-alive".to_owned());
        let started = thread.spawn(move || {
            manager.on_alive();
            while Instant::now() < until
                && stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout)
            {
                manager.on_alive();
            }
        });
        started
            .inspect_err(|error| tracing::warn!(%error, "the service manager's watchdog may end this server"))
            .ok()
            .map(|_| KeepAlive { _stop: stop })
    }

    fn send(&self, message: &str) {
        let Some((socket, address)) = &self.socket else {
            return;
        };
        // A manager that does not read must not hold the server up: the socket does not block.
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            tracing::warn!(%error, message, "the service manager was not told");
        }
    }
}

fn connect(path: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    // A first `@` stands for the zero byte of an abstract name.
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

fn watchdog_timeout(text: Option<&OsStr>) -> Option<Duration> {
    let micros: u64 = text?.to_str()?.parse().ok()?;
    (micros > 0).then(|| Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(from: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        from.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let length = from.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn a_service_manager_hears_when_the_server_is_ready_alive_and_stopping() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let named = UnixDatagram::bind(&path).unwrap();
        let name = format!("firn-notify-{}", std::process::id());
        let hidden = SocketAddr::from_abstract_name(&name).unwrap();
        let hidden = UnixDatagram::bind_addr(&hidden).unwrap();
        let at = format!("@{name}");
        for (socket, path) in [(&named, path.as_os_str()), (&hidden, OsStr::new(&at))] {
            let manager = ServiceManager::at(Some(path), Some(Duration::from_secs(30)));
            manager.on_ready();
            manager.on_alive();
            manager.on_stopping();
            assert!(received(socket).starts_with("READY=1\n"));
            assert_eq!(received(socket), "WATCHDOG=1");
            assert!(received(socket).starts_with("STOPPING=1\n"));
            let without_watchdog = ServiceManager::at(Some(path), None);
            without_watchdog.on_alive();
            without_watchdog.on_ready();
            assert!(received(socket).starts_with("READY=1\n"));
        }
    }

    #[test]
    fn a_service_manager_that_is_not_there_or_does_not_read_holds_nobody_up() {
        let watchdog = Some(Duration::from_secs(30));
        ServiceManager::at(None, watchdog).on_ready();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        ServiceManager::at(Some(path.as_os_str()), watchdog).on_ready();
        let _deaf = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager::at(Some(path.as_os_str()), watchdog);
        for _ in 0..1000 {
            manager.on_alive();
        }
    }

    #[test]
    fn a_watchdog_is_fed_while_a_server_hands_over_and_no_longer_than_that_may_take() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let watchdog = Duration::from_millis(40);
        let manager = Arc::new(ServiceManager::at(Some(path.as_os_str()), Some(watchdog)));
        let fed = manager.keep_alive(Duration::from_secs(60)).unwrap();
        for _ in 0..5 {
            assert_eq!(received(&socket), "WATCHDOG=1");
        }
        drop(fed);
        let fed = manager.keep_alive(Duration::from_millis(50)).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while Arc::strong_count(&manager) > 1 {
            assert!(Instant::now() < until, "both threads end");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(fed);
        let unwatched = Arc::new(ServiceManager::at(Some(path.as_os_str()), None));
        assert!(unwatched.keep_alive(watchdog).is_none());
    }

    #[test]
    fn a_watchdog_of_no_time_is_none() {
        let timeout = |text: &str| watchdog_timeout(Some(OsStr::new(text)));
        assert_eq!(timeout("30000000"), Some(Duration::from_secs(30)));
        assert_eq!(
            (timeout("0"), timeout("x"), watchdog_timeout(None)),
            (None, None, None)
        );
    }
}
