//! The NBD frontend: the server's listeners, and the URIs under which clients reach a volume.
//!
//! Wraps the NBD server, whose calls may sleep, for async callers. Must never decide which volume
//! is open: connections look that up in [`OpenVolumes`], as far as [`PermittedVolumes`] lets them.

use std::io::ErrorKind as Io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nbd::server::{
    Export, HandedConnection, HandedListener, Handover, Listen, Options, bind, check_place,
};
use reactor::Reactor;
use transports::NbdServer;
use volume::Volume;

use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::nbd_access::{NbdTls, PermittedVolumes};
use crate::frontends::open_volumes::OpenVolumes;
use crate::frontends::opening_volumes::OpeningVolumes;

/// How long sockets may outlive a server that was killed: its ring keeps them until the kernel has taken
/// the ring down.
const KILLED_SERVER_LEAVES_WITHIN: Duration = Duration::from_secs(2);

/// Between two looks at an address that is in use.
const ADDRESS_RETRY: Duration = Duration::from_millis(10);

/// How long outstanding requests of a connection may take before it is closed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// An address that the server listens at.
#[derive(Clone, Debug)]
struct BoundAddress {
    /// As the settings have it.
    wanted: String,
    /// As it was granted.
    granted: Listen,
}

#[derive(Debug)]
pub(crate) struct NbdFrontend {
    server: Arc<NbdServer>,
    addresses: Mutex<Vec<BoundAddress>>,
    /// Clients without TLS are refused.
    requires_tls: bool,
    /// Nobody gets in who does not prove who he is.
    knows_everybody: bool,
}

impl NbdFrontend {
    /// Listens nowhere yet. `tls` says who may use what, and how.
    pub(crate) fn new(
        reactors: &[Reactor],
        (volumes, opening): (Arc<OpenVolumes>, Arc<OpeningVolumes>),
        tls: Option<&NbdTls>,
    ) -> Result<Self> {
        let knows_everybody = tls.is_some_and(NbdTls::knows_everybody);
        let (tls, access) = tls.map(NbdTls::load).transpose()?.unzip();
        let access = access.flatten();
        let requires_tls = tls.as_ref().is_some_and(|tls| tls.required);
        let exports = Arc::new(PermittedVolumes {
            volumes,
            opening,
            access,
        });
        let options = Options {
            tls,
            ..Options::default()
        };
        let handles = reactors
            .iter()
            .map(|reactor| reactor.handle().clone())
            .collect();
        let server = NbdServer::new(handles, exports, options).map_err(|source| {
            Failure::internal(format!("cannot start the NBD server: {source}"))
        })?;
        Ok(NbdFrontend {
            server: Arc::new(server),
            addresses: Mutex::default(),
            requires_tls,
            knows_everybody,
        })
    }

    /// Starts listening on `address`.
    pub(crate) fn listen(&self, address: &Listen) -> Result<()> {
        let bound = bind_address(address)?;
        let listener = bound.map_err(|source| listen_error(address, &source))?;
        self.serve(address, listener)
    }

    /// Binds an address, at which nobody accepts yet; `None` while it is in use.
    pub(crate) fn bind_unless_in_use(address: &Listen) -> Result<Option<HandedListener>> {
        match bind_address(address)? {
            Err(error) if error.kind() == Io::AddrInUse => Ok(None),
            bound => bound
                .map(Some)
                .map_err(|source| listen_error(address, &source)),
        }
    }

    /// The same, for as long as a server that was just killed may keep the address. Blocks meanwhile.
    pub(crate) fn bind_in_time(address: &Listen) -> Result<HandedListener> {
        retry_in_use(|| bind_address(address))?.map_err(|source| listen_error(address, &source))
    }

    /// Accepts at a socket that was bound for `address`.
    pub(crate) fn serve(&self, address: &Listen, listener: HandedListener) -> Result<()> {
        if let Listen::Tcp(address) = address
            && !address.ip().is_loopback()
            && !self.knows_everybody
        {
            tracing::warn!(
                %address,
                "NBD asks nobody who he is: whoever reaches this address can read and write"
            );
        }
        let granted = listener.place.clone();
        self.server
            .adopt_listener(listener)
            .map_err(|error| Failure::internal(format!("cannot serve NBD: {error}")))?;
        self.note_address(flag_value(address), granted);
        Ok(())
    }

    /// Whether all addresses can be had: what is wrong with one is to be said before anything is made.
    /// Blocks for as long as a server that was just killed may keep them.
    pub(crate) fn check_addresses(addresses: &[Listen]) -> Result<()> {
        addresses.iter().try_for_each(|address| {
            let checked = retry_in_use(|| Ok(check_place(address)))?;
            checked.map_err(|source| listen_error(address, &source))
        })
    }

    /// The addresses it listens on.
    pub(crate) fn addresses(&self) -> Vec<Listen> {
        let addresses = self.addresses.lock();
        let addresses = addresses.unwrap_or_else(PoisonError::into_inner);
        addresses.iter().map(|one| one.granted.clone()).collect()
    }

    /// Which address of the settings was granted as this one.
    pub(crate) fn wanted_address(&self, granted: &Listen) -> Option<String> {
        let addresses = self.addresses.lock();
        let addresses = addresses.unwrap_or_else(PoisonError::into_inner);
        let found = addresses.iter().find(|one| one.granted == *granted);
        found.map(|one| one.wanted.clone())
    }

    fn note_address(&self, wanted: String, granted: Listen) {
        let addresses = self.addresses.lock();
        let mut addresses = addresses.unwrap_or_else(PoisonError::into_inner);
        addresses.push(BoundAddress { wanted, granted });
    }

    /// The URIs of a volume, best first.
    pub(crate) fn uris(&self, volume: &str) -> Vec<String> {
        self.addresses()
            .iter()
            .map(|address| uri(address, volume, self.requires_tls))
            .collect()
    }

    /// The number of connections to a volume.
    pub(crate) fn connections(&self, volume: &str) -> usize {
        self.server.connections_to(volume)
    }

    /// It was decided what comes of a volume that was being opened: clients who wait for it look again.
    pub(crate) fn wake_parked(&self, volume: &str) {
        self.server.wake_parked(volume);
    }

    /// Closes the connections to an export that is no longer in [`OpenVolumes`].
    pub(crate) async fn disconnect(&self, export: &Arc<Export<Volume>>) {
        let (server, export) = (Arc::clone(&self.server), Arc::clone(export));
        let ended =
            tokio::task::spawn_blocking(move || server.detach(&export, DRAIN_TIMEOUT)).await;
        tracing::debug!(?ended, "connections to an export are closed");
    }

    /// Gives listeners and connections away, if all are quiet in time; else nothing has changed.
    pub(crate) async fn try_hand_over(&self, within: Duration) -> Result<Handover> {
        let server = Arc::clone(&self.server);
        let handed = tokio::task::spawn_blocking(move || server.try_hand_over(within)).await;
        let handed = handed.map_err(|error| Failure::internal(format!("handing over: {error}")))?;
        handed.map_err(|busy| Failure::new(FailureCode::UpgradeRefused, busy.to_string()))
    }

    /// Goes on with what was given away, and that nobody else got.
    pub(crate) async fn take_back(&self, handed: Handover) {
        let server = Arc::clone(&self.server);
        let lost = tokio::task::spawn_blocking(move || server.take_back(handed)).await;
        if !matches!(lost, Ok(0)) {
            tracing::error!(?lost, "clients are lost to an upgrade that was called off");
        }
    }

    /// Accepts at a socket that another server gave away, for this address of the settings.
    pub(crate) fn adopt_listener(&self, wanted: String, listener: HandedListener) {
        let place = listener.place.clone();
        if let Err(error) = self.server.adopt_listener(listener) {
            tracing::error!(%error, "an NBD listener ends with the upgrade");
            return;
        }
        self.note_address(wanted, place);
    }

    /// Closes a listener of the program before that the settings do not name any more, and removes its path.
    pub(crate) fn close_listener(listener: HandedListener) {
        let HandedListener { place, socket } = listener;
        drop(socket);
        // Only if nobody else listens there by now.
        let _ = check_place(&place);
    }

    /// Goes on with a connection that another server gave away.
    pub(crate) fn adopt(&self, connection: HandedConnection) {
        if let Err(error) = self.server.adopt(connection) {
            tracing::warn!(%error, "an NBD connection ends with the upgrade; its client may connect anew");
        }
    }

    /// Stops listening and closes all connections.
    pub(crate) async fn stop(&self) {
        let server = Arc::clone(&self.server);
        let ended = tokio::task::spawn_blocking(move || server.stop(DRAIN_TIMEOUT)).await;
        tracing::debug!(?ended, "NBD connections are closed");
    }
}

/// Binds an address, whose directory is made if it is a path. The inner error is of the address.
fn bind_address(address: &Listen) -> Result<std::io::Result<HandedListener>> {
    if let Listen::Unix(path) = address
        && let Some(dir) = absolute(path).parent()
    {
        std::fs::create_dir_all(dir)
            .map_err(|source| Failure::io("make a directory for the socket at", dir, &source))?;
    }
    Ok(bind(address))
}

fn listen_error(address: &Listen, source: &std::io::Error) -> Failure {
    Failure::listen("NBD", &flag_value(address), "--nbd", source)
}

/// Tries again while an address is in use, for as long as a server that was just killed may keep it.
fn retry_in_use<T>(
    mut attempt: impl FnMut() -> Result<std::io::Result<T>>,
) -> Result<std::io::Result<T>> {
    let until = Instant::now() + KILLED_SERVER_LEAVES_WITHIN;
    loop {
        match attempt()? {
            Err(error) if error.kind() == Io::AddrInUse && Instant::now() < until => {
                std::thread::sleep(ADDRESS_RETRY);
            }
            ended => return Ok(ended),
        }
    }
}

/// An address in the form that `--nbd` takes.
pub(crate) fn flag_value(address: &Listen) -> String {
    match address {
        Listen::Tcp(address) => address.to_string(),
        Listen::Unix(path) => format!("unix:{}", path.display()),
    }
}

/// A volume's name needs no escaping: it is made of letters, digits, `.`, `_` and `-`.
fn uri(address: &Listen, volume: &str, tls: bool) -> String {
    let scheme = if tls { "nbds" } else { "nbd" };
    match address {
        Listen::Tcp(address) => format!("{scheme}://{}/{volume}", connectable(*address)),
        Listen::Unix(path) => {
            format!(
                "{scheme}+unix:///{volume}?socket={}",
                percent_encoded(&absolute(path).to_string_lossy())
            )
        }
    }
}

/// The address that a client on this machine connects to: a server may listen on the unspecified
/// address, but nothing can connect to it.
fn connectable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// The absolute form of a path that may not exist.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn percent_encoded(path: &str) -> String {
    let mut text = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_lead_to_the_server_from_this_machine() {
        let tcp = |text: &str| uri(&Listen::Tcp(text.parse().unwrap()), "demo", false);
        assert_eq!(tcp("127.0.0.1:10809"), "nbd://127.0.0.1:10809/demo");
        assert_eq!(tcp("0.0.0.0:10809"), "nbd://127.0.0.1:10809/demo");
        assert_eq!(tcp("[::]:1"), "nbd://[::1]:1/demo");
        let unix = uri(&Listen::Unix("/run/a b/nbd.sock".into()), "demo", false);
        assert_eq!(unix, "nbd+unix:///demo?socket=/run/a%20b/nbd.sock");
    }
}
