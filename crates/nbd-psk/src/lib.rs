//! TLS 1.3 with pre-shared keys for connections of the NBD server, by s2n-tls.
//!
//! Owns what makes [`nbd::server::TlsSession`] of that library: keys by name, the look-up of the key that a client
//! names, and the bytes on their way in and out. It must never open a socket, wait, start a runtime or hold a task:
//! the library's I/O is over memory, and what it calls asynchronous is done when a call returns, or needs bytes.
//!
//! Reading order: [`PskConfig`], `hello` (which name a client says), `wire` (the memory), `session`.
#![forbid(unsafe_code)]

mod hello;
mod session;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use nbd::server::{TlsProvider, TlsSession, TlsStreamError};
use s2n_tls::callbacks::{ClientHelloCallback, ConnectionFuture};
use s2n_tls::config::{Builder, Config};
use s2n_tls::connection::Connection;
use s2n_tls::enums::PskHmac;
use s2n_tls::psk::{self, Psk};
use s2n_tls::security::Policy;

/// TLS 1.3 alone, with AES-GCM and ChaCha20-Poly1305 and the usual groups; and by its name always the same.
const POLICY: &str = "AWS-CRT-SDK-TLSv1.3-2023";

/// The shortest key: RFC 8446 wants 128 bits.
pub const KEY_BYTES_MIN: usize = 16;

/// Why keys are of no use.
#[derive(Debug, PartialEq, Eq)]
pub struct PskError(String);

impl fmt::Display for PskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PskError {}

impl PskError {
    fn of_library(error: &s2n_tls::error::Error) -> PskError {
        PskError(format!("s2n-tls refuses them: {}", error.message()))
    }
}

/// A server's keys, and with them its side of TLS.
#[derive(Clone)]
pub struct PskConfig(Config);

impl fmt::Debug for PskConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PskConfig").finish_non_exhaustive()
    }
}

impl PskConfig {
    /// Of these names and keys. The library keeps copies of its own, and wipes them.
    ///
    /// # Errors
    /// There is none, two have one name, or one is too short.
    pub fn new<'a>(
        keys: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<PskConfig, PskError> {
        let keys = KeyTable::new(keys)?;
        let built = || {
            let mut builder = Builder::new();
            builder
                .set_security_policy(&Policy::from_version(POLICY)?)?
                // Else an error makes it wait for half a minute, to hide how long padding of CBC took. TLS 1.3 has none.
                .set_max_blinding_delay(0)?
                .set_client_hello_callback(keys)?
                // No certificate is looked at.
                .with_system_certs(false)?;
            builder.build()
        };
        built()
            .map(PskConfig)
            .map_err(|error| PskError::of_library(&error))
    }
}

impl TlsProvider for PskConfig {
    fn begin(&self) -> Result<Box<dyn TlsSession>, TlsStreamError> {
        Ok(Box::new(session::PskSession::new(&self.0)))
    }
}

/// The keys by their names.
struct KeyTable(BTreeMap<String, Arc<Psk>>);

impl KeyTable {
    fn new<'a>(keys: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<KeyTable, PskError> {
        let mut table = BTreeMap::new();
        for (name, key) in keys {
            if key.len() < KEY_BYTES_MIN {
                return Err(PskError(format!(
                    "the key of {name} has {} bytes; it takes {KEY_BYTES_MIN} at least",
                    key.len()
                )));
            }
            let made = || {
                let mut psk = psk::Builder::new()?;
                psk.set_identity(name.as_bytes())?;
                psk.set_secret(key)?;
                // What keys have of which nothing else was agreed on, and what GnuTLS and OpenSSL take.
                psk.set_hmac(PskHmac::SHA256)?;
                psk.build()
            };
            let psk = made().map_err(|error| PskError::of_library(&error))?;
            if table.insert(name.to_owned(), Arc::new(psk)).is_some() {
                return Err(PskError(format!("two keys have the name {name}")));
            }
        }
        if table.is_empty() {
            return Err(PskError("there is no key".to_owned()));
        }
        Ok(KeyTable(table))
    }
}

/// Why a client's first message is refused.
#[derive(Debug)]
struct HelloRefused(String);

impl fmt::Display for HelloRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HelloRefused {}

impl ClientHelloCallback for KeyTable {
    /// Gives the connection the first key that its client names. The library compares each key of a connection with
    /// each name that the client says: with all of them a file of many keys would cost every connection as much.
    fn on_client_hello(
        &self,
        connection: &mut Connection,
    ) -> Result<Option<std::pin::Pin<Box<dyn ConnectionFuture>>>, s2n_tls::error::Error> {
        let message = connection.client_hello()?.raw_message()?;
        let Some(names) = hello::offered_names(&message) else {
            // Older than TLS 1.3, or worse: the library has an alert for it.
            return Ok(None);
        };
        let known = |name: &&[u8]| self.0.get(std::str::from_utf8(name).ok()?);
        if let Some(key) = names.iter().find_map(known) {
            connection.append_psk(key)?;
            return Ok(None);
        }
        let why = match names.first() {
            None => "the client offers no pre-shared key".to_owned(),
            Some(name) => format!("no key has the name {}", hello::printable(name)),
        };
        Err(s2n_tls::error::Error::application(Box::new(HelloRefused(
            why,
        ))))
    }
}
