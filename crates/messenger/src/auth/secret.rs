//! Authentication by a secret that all hosts of a cluster hold in a file.
//!
//! ```text
//! connecting                                   accepting
//!   request: 1, name, nonce_c (32)      ->
//!                                       <-     more: nonce_s (32)
//!   more: HMAC(K, "client" ...)         ->
//!                                       <-     done: name, HMAC(K, "server" ...)
//! ```
//! Every HMAC covers a label, both nonces and the connecting name, so that a proof fits one
//! conversation and one direction. The accepting side says nothing that depends on the secret
//! before it has checked a proof, and refuses a wrong secret, a wrong method and a bad name with
//! the same words. Both sides then sign the whole handshake with a key that depends on both nonces.
//!
//! Limits, on purpose: every holder of the secret may use any name, and whoever learns the secret
//! can read what was recorded (there is no key exchange). The secret must be random: a proof can be
//! tested offline against guesses.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use thiserror::Error;
use zeroize::Zeroize;

use super::{AuthError, Keys, ServerStep, check_name, method, mode};
use crate::control::{AuthDone, AuthRequest};
use crate::env::Entropy;
use crate::frame::{CONNECTION_SECRET_LEN, SecureKeys};
use crate::wire::{Put, Reader, WireError};

/// Shortest secret that is accepted: 16 random bytes, or 32 hex digits, are enough; less is a
/// password.
pub const SECRET_LEN_MIN: usize = 16;
const SECRET_LEN_MAX: u64 = 4096;

const NONCE: usize = 32;
const VERSION: u8 = 1;

/// A derived key. Zeroed when dropped, never shown.
#[derive(Clone)]
pub(crate) struct Key([u8; 32]);

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    fn hmac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&self.0)
            .expect("HMAC takes keys of every length");
        for part in parts {
            mac.update(part);
        }
        mac
    }

    fn sign(&self, parts: &[&[u8]]) -> [u8; 32] {
        self.hmac(parts).finalize().into_bytes().into()
    }

    /// The MAC over `bytes`.
    pub(crate) fn signature(&self, bytes: &[u8]) -> [u8; 32] {
        self.sign(&[bytes])
    }

    /// Whether `mac` is the MAC over `bytes`; the time taken does not depend on where it differs.
    pub(crate) fn verify(&self, bytes: &[u8], mac: &[u8]) -> bool {
        self.hmac(&[bytes]).verify_slice(mac).is_ok()
    }
}

/// A secret file that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SecretFileError {
    /// It cannot be read.
    #[error("reading secret file {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Others may read it.
    #[error("secret file {path} is readable by others (mode {mode:o}): run chmod 600 {path}")]
    Exposed {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Too short or too long.
    #[error(
        "a cluster secret has {SECRET_LEN_MIN} to {SECRET_LEN_MAX} bytes, this one has {len}: make \
         one with `openssl rand -hex 32`"
    )]
    Length {
        /// Its length.
        len: u64,
    },
}

/// The cluster's secret.
#[derive(Debug, Clone)]
pub struct ClusterSecret(Arc<Key>);

impl ClusterSecret {
    /// A secret from its bytes, which should be random.
    pub fn new(bytes: &[u8]) -> Result<Self, SecretFileError> {
        let len = bytes.len() as u64;
        if bytes.len() < SECRET_LEN_MIN || len > SECRET_LEN_MAX {
            return Err(SecretFileError::Length { len });
        }
        let mut hash = Sha256::new();
        hash.update(b"firn cluster secret 1");
        hash.update(bytes);
        Ok(Self(Arc::new(Key(hash.finalize().into()))))
    }

    /// Reads the secret from a file that only its owner can read. White space around it is no
    /// part of it.
    #[expect(
        clippy::disallowed_types,
        reason = "the edge: an application loads its secret"
    )]
    pub fn from_file(path: &Path) -> Result<Self, SecretFileError> {
        let read = |source| SecretFileError::Read {
            path: path.to_owned(),
            source,
        };
        let file = std::fs::File::open(path).map_err(read)?;
        let meta = file.metadata().map_err(read)?;
        let mode = meta.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(SecretFileError::Exposed {
                path: path.to_owned(),
                mode,
            });
        }
        let mut bytes = Vec::new();
        file.take(SECRET_LEN_MAX + 2)
            .read_to_end(&mut bytes)
            .map_err(read)?;
        let secret = Self::new(bytes.trim_ascii());
        bytes.zeroize();
        secret
    }
}

/// What one conversation has settled.
#[derive(Debug, Clone)]
struct Transcript {
    key: Arc<Key>,
    name: String,
    nonce_c: [u8; NONCE],
    nonce_s: [u8; NONCE],
}

impl Transcript {
    fn derive(&self, label: &str, more: &[u8]) -> [u8; 32] {
        let name_len = [u8::try_from(self.name.len()).expect("a name has at most 64 bytes")];
        let parts: [&[u8]; 7] = [
            label.as_bytes(),
            &[0, VERSION],
            &self.nonce_c,
            &self.nonce_s,
            &name_len,
            self.name.as_bytes(),
            more,
        ];
        self.key.sign(&parts)
    }

    fn keys(&self, peer: String) -> Keys {
        let mut secret = [0; CONNECTION_SECRET_LEN];
        secret[..32].copy_from_slice(&self.derive("firn connection a", &[]));
        secret[32..].copy_from_slice(&self.derive("firn connection b", &[]));
        let secure = Some(SecureKeys::from_secret(&secret));
        secret.zeroize();
        let signing = Some(Key(self.derive("firn signing", &[])));
        Keys {
            signing,
            secure,
            peer,
            global_id: 0,
        }
    }
}

/// Compares two proofs in time that does not depend on them.
fn constant_time_eq(a: &[u8; 32], b: &[u8; 32]) -> bool {
    let diff = a.iter().zip(b).fold(0u8, |acc, (x, y)| acc | (x ^ y));
    std::hint::black_box(diff) == 0
}

/// The connecting side.
#[derive(Debug)]
pub(crate) struct SecretClient {
    talk: Transcript,
    challenged: bool,
}

impl SecretClient {
    pub(super) fn new(name: &str, secret: &ClusterSecret, entropy: &mut dyn Entropy) -> Self {
        let mut nonce_c = [0; NONCE];
        entropy.fill(&mut nonce_c);
        let key = Arc::clone(&secret.0);
        let talk = Transcript {
            key,
            name: name.to_owned(),
            nonce_c,
            nonce_s: [0; NONCE],
        };
        Self {
            talk,
            challenged: false,
        }
    }

    pub(super) fn request(&mut self) -> AuthRequest {
        let mut payload = Vec::with_capacity(128);
        payload.put_u8(VERSION);
        payload.put_bytes(self.talk.name.as_bytes());
        payload.put(&self.talk.nonce_c);
        AuthRequest {
            method: method::SHARED_SECRET,
            modes: vec![mode::SECURE],
            payload,
        }
    }

    pub(super) fn more(&mut self, payload: &[u8]) -> Result<Vec<u8>, AuthError> {
        if std::mem::replace(&mut self.challenged, true) {
            return Err(AuthError::Order);
        }
        self.talk.nonce_s = Reader::new(payload).array("server nonce")?;
        Ok(self.talk.derive("firn client", &[]).to_vec())
    }

    pub(super) fn on_done(&mut self, payload: &[u8]) -> Result<Keys, AuthError> {
        if !self.challenged {
            return Err(AuthError::Order);
        }
        let mut r = Reader::new(payload);
        let peer = r.text("peer name")?.to_owned();
        let proof = r.array("server proof")?;
        check_name(&peer)?;
        if !constant_time_eq(&self.talk.derive("firn server", peer.as_bytes()), &proof) {
            return Err(AuthError::Proof);
        }
        Ok(self.talk.keys(peer))
    }
}

/// The accepting side.
#[derive(Debug)]
pub(crate) struct SecretServer {
    key: Arc<Key>,
    name: String,
    nonce_s: [u8; NONCE],
    talk: Option<Transcript>,
}

impl SecretServer {
    pub(super) fn new(name: &str, secret: &ClusterSecret, entropy: &mut dyn Entropy) -> Self {
        let mut nonce_s = [0; NONCE];
        entropy.fill(&mut nonce_s);
        Self {
            key: Arc::clone(&secret.0),
            name: name.to_owned(),
            nonce_s,
            talk: None,
        }
    }

    pub(super) fn request(&mut self, request: &AuthRequest) -> Result<ServerStep, AuthError> {
        if request.method != method::SHARED_SECRET {
            return Err(AuthError::Method(request.method));
        }
        if self.talk.is_some() {
            return Err(AuthError::Order);
        }
        if !request.modes.contains(&mode::SECURE) {
            return Err(AuthError::Mode(mode::SECURE));
        }
        let mut r = Reader::new(&request.payload);
        let version = r.u8("auth version")?;
        if version != VERSION {
            let value = u64::from(version);
            return Err(WireError::Value {
                field: "auth version",
                value,
            }
            .into());
        }
        let name = r.text("host name")?.to_owned();
        check_name(&name)?;
        let nonce_c = r.array("client nonce")?;
        let key = Arc::clone(&self.key);
        self.talk = Some(Transcript {
            key,
            name,
            nonce_c,
            nonce_s: self.nonce_s,
        });
        Ok(ServerStep::More(self.nonce_s.to_vec()))
    }

    pub(super) fn more(&mut self, payload: &[u8]) -> Result<ServerStep, AuthError> {
        let talk = self.talk.take().ok_or(AuthError::Order)?;
        let proof = Reader::new(payload).array("client proof")?;
        if !constant_time_eq(&talk.derive("firn client", &[]), &proof) {
            return Err(AuthError::Proof);
        }
        let mut payload = Vec::with_capacity(128);
        payload.put_bytes(self.name.as_bytes());
        payload.put(&talk.derive("firn server", self.name.as_bytes()));
        let done = AuthDone {
            global_id: 0,
            mode: mode::SECURE,
            payload,
        };
        let peer = talk.name.clone();
        Ok(ServerStep::Done(done, Box::new(talk.keys(peer))))
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests write secret files")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::env::SeededEntropy;

    fn authenticate(client: &[u8], server: &[u8]) -> Result<(Keys, Keys), AuthError> {
        let mut entropy = SeededEntropy::new(1);
        let (client, server) = (
            ClusterSecret::new(client).unwrap(),
            ClusterSecret::new(server).unwrap(),
        );
        let mut c = SecretClient::new("a", &client, &mut entropy);
        let mut s = SecretServer::new("b", &server, &mut entropy);
        let ServerStep::More(challenge) = s.request(&c.request())? else {
            unreachable!()
        };
        let ServerStep::Done(done, server_keys) = s.more(&c.more(&challenge)?)? else {
            unreachable!()
        };
        Ok((c.on_done(&done.payload)?, *server_keys))
    }

    #[test]
    fn two_holders_of_the_secret_agree_on_keys_and_names() {
        let (c, s) = authenticate(&[7; 32], &[7; 32]).unwrap();
        assert_eq!((c.peer.as_str(), s.peer.as_str()), ("b", "a"));
        let signature = c.signing.unwrap().signature(b"x");
        assert!(s.signing.unwrap().verify(b"x", &signature));
        let (mut c_tx, mut s_rx) = (
            c.secure.unwrap().streams(true).1,
            s.secure.unwrap().streams(false).0,
        );
        let mut buf = b"hello".to_vec();
        c_tx.seal(&mut buf, 0);
        assert_eq!(s_rx.open(&mut buf, "test").unwrap(), b"hello");
    }

    #[test]
    fn a_wrong_secret_is_refused_before_anything_that_depends_on_it_was_said() {
        assert_eq!(
            authenticate(&[7; 32], &[8; 32]).unwrap_err(),
            AuthError::Proof
        );
    }

    #[test]
    fn an_impostor_that_accepts_everything_is_found_out() {
        let mut entropy = SeededEntropy::new(1);
        let secret = ClusterSecret::new(&[7; 32]).unwrap();
        let mut c = SecretClient::new("a", &secret, &mut entropy);
        c.request();
        let mine = c.more(&[1; 32]).unwrap();
        let mut payload = Vec::new();
        payload.put_bytes(b"b");
        payload.put(&mine); // sends the client's own proof back
        assert_eq!(c.on_done(&payload).unwrap_err(), AuthError::Proof);
    }

    #[test]
    fn the_client_proof_is_the_documented_hmac() {
        // Computed apart from this code, with Python's hmac and hashlib.
        let key = ClusterSecret::new(&[7; 32]).unwrap().0;
        let talk = Transcript {
            key,
            name: "host-a".into(),
            nonce_c: [1; NONCE],
            nonce_s: [2; NONCE],
        };
        let hex: String = talk
            .derive("firn client", &[])
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(hex, include_str!("../../golden/client_proof.txt").trim());
    }

    #[test]
    fn a_secret_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "  0123456789abcdef0123456789abcdef\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(
            ClusterSecret::from_file(&path),
            Err(SecretFileError::Exposed { mode: 0o644, .. })
        ));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let read = ClusterSecret::from_file(&path).unwrap();
        let same = ClusterSecret::new(b"0123456789abcdef0123456789abcdef").unwrap();
        assert_eq!(read.0.0, same.0.0);
        assert_eq!(format!("{read:?}"), "ClusterSecret(Key(..))");
        std::fs::write(&path, "short").unwrap();
        assert!(matches!(
            ClusterSecret::from_file(&path),
            Err(SecretFileError::Length { len: 5 })
        ));
    }
}
