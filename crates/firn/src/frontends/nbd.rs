//! The doors through which clients come: NBD listeners, and the URIs by which they are found.
//!
//! Wraps the NBD server, whose calls may sleep, for async callers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nbd::server::{Export, Listen, Options, Server};
use reactor::Reactor;
use volume::Volume;

use crate::failure::{Failure, FailureCode, Result};
use crate::frontends::open_volumes::Volumes;

/// How long clients may take to have their outstanding requests answered when the server stops.
const FAREWELL: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Doors {
    server: Arc<Server<Volume>>,
    places: Mutex<Vec<Listen>>,
}

impl Doors {
    pub(crate) fn new(reactors: &[Reactor], volumes: Arc<Volumes>) -> Result<Self> {
        let handles = reactors
            .iter()
            .map(|reactor| reactor.handle().clone())
            .collect();
        let server = Server::new(handles, volumes, Options::default()).map_err(|source| {
            Failure::internal(format!("cannot start the NBD server: {source}"))
        })?;
        Ok(Doors {
            server: Arc::new(server),
            places: Mutex::default(),
        })
    }

    /// Begins to listen at `place`.
    pub(crate) fn open(&self, place: &Listen) -> Result<()> {
        if let Listen::Tcp(address) = place
            && !address.ip().is_loopback()
        {
            tracing::warn!(
                %address,
                "NBD has no authentication: whoever reaches this address can read and write"
            );
        }
        if let Listen::Unix(path) = place
            && let Some(dir) = absolute(path).parent()
        {
            std::fs::create_dir_all(dir).map_err(|source| {
                Failure::io("make a directory for the socket at", dir, &source)
            })?;
        }
        let granted = self.server.listen(place).map_err(|source| {
            Failure::new(
                FailureCode::AddressInUse,
                format!(
                    "cannot listen for NBD on {}: {source}; is another server running? Choose \
                     another place with --nbd",
                    shown(place)
                ),
            )
        })?;
        self.places
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(granted);
        Ok(())
    }

    /// Where it listens.
    pub(crate) fn places(&self) -> Vec<Listen> {
        self.places
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The URIs of a volume, best first.
    pub(crate) fn uris(&self, volume: &str) -> Vec<String> {
        self.places()
            .iter()
            .map(|place| uri(place, volume))
            .collect()
    }

    /// How many connections use a volume now.
    pub(crate) fn clients(&self, volume: &str) -> usize {
        self.server.connections_to(volume)
    }

    /// Ends the connections to an export that is not in the directory any more.
    pub(crate) async fn detach(&self, export: &Arc<Export<Volume>>) {
        let (server, export) = (Arc::clone(&self.server), Arc::clone(export));
        let ended = tokio::task::spawn_blocking(move || server.detach(&export, FAREWELL)).await;
        tracing::debug!(?ended, "connections to an export ended");
    }

    /// Stops listening and ends all connections.
    pub(crate) async fn shut(&self) {
        let server = Arc::clone(&self.server);
        let ended = tokio::task::spawn_blocking(move || server.stop(FAREWELL)).await;
        tracing::debug!(?ended, "NBD connections ended");
    }
}

/// A place as `--nbd` takes it.
pub(crate) fn shown(place: &Listen) -> String {
    match place {
        Listen::Tcp(address) => address.to_string(),
        Listen::Unix(path) => format!("unix:{}", path.display()),
    }
}

/// A volume's name needs no escaping: it is made of letters, digits, `.`, `_` and `-`.
fn uri(place: &Listen, volume: &str) -> String {
    match place {
        Listen::Tcp(address) => format!("nbd://{}/{volume}", reachable(*address)),
        Listen::Unix(path) => {
            format!(
                "nbd+unix:///{volume}?socket={}",
                escaped(&absolute(path).to_string_lossy())
            )
        }
    }
}

/// An address that a client on this machine can use: "any" is where one listens, not where one
/// connects to.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// An absolute path for messages and URIs, of something that may not exist.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn escaped(path: &str) -> String {
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
        let tcp = |text: &str| uri(&Listen::Tcp(text.parse().unwrap()), "demo");
        assert_eq!(tcp("127.0.0.1:10809"), "nbd://127.0.0.1:10809/demo");
        assert_eq!(tcp("0.0.0.0:10809"), "nbd://127.0.0.1:10809/demo");
        assert_eq!(tcp("[::]:1"), "nbd://[::1]:1/demo");
        let unix = uri(&Listen::Unix("/run/a b/nbd.sock".into()), "demo");
        assert_eq!(unix, "nbd+unix:///demo?socket=/run/a%20b/nbd.sock");
    }
}
