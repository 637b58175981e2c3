//! Who a peer is: no authentication, or a secret that all hosts of a cluster share.
//!
//! Owns the words of both methods on both sides and the keys that come out of them. It must never
//! say more to a refused peer than that it is refused, never compare a proof in time that depends
//! on it, and never show a key in a log or a `Debug` text.
//!
//! With no authentication a connection is in crc mode and a peer's name is what it claims; that is
//! for a Ceph cluster without authentication, and for tests. With the shared secret it is in
//! secure mode, always: a peer that would have less is refused.

mod secret;

use thiserror::Error;

use crate::control::{AuthDone, AuthRequest};
use crate::env::Entropy;
use crate::frame::SecureKeys;
use crate::wire::{Put, Reader, WireError};

pub use secret::{ClusterSecret, SECRET_LEN_MIN, SecretFileError};
use secret::{SecretClient, SecretServer};

/// Authentication methods on the wire.
pub mod method {
    /// None.
    pub const NONE: u32 = 1;
    /// Ours: a shared secret. The number spells "firn" and is far from any that Ceph uses.
    pub const SHARED_SECRET: u32 = 0x6e72_6966;
}

/// Connection modes on the wire.
pub mod mode {
    /// Checksums.
    pub const CRC: u32 = 1;
    /// AES-128-GCM.
    pub const SECURE: u32 = 2;
}

/// Longest name of a host, in bytes.
pub const NAME_MAX: usize = 64;

/// The error number sent to a refused peer, whatever the reason.
const EACCES: i32 = -13;

/// Why authentication failed. Ends the session: trying again would fail again.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The peer refuses us.
    #[error(
        "the peer refuses this host (result {result}): check that both use the same secret file \
         and authentication method"
    )]
    Refused {
        /// Its error number.
        result: i32,
    },
    /// The peer wants another method.
    #[error("the peer asks for authentication method {0}, which is not the one configured here")]
    Method(u32),
    /// The peer's proof is wrong: it does not hold the secret.
    #[error("the peer does not know the cluster's secret")]
    Proof,
    /// The peer grants a mode that was not requested.
    #[error("the peer grants connection mode {0}, which was not asked for")]
    Mode(u32),
    /// The signature over the handshake is wrong: somebody changed it on the way.
    #[error("the handshake was changed on the way: its signature does not verify")]
    Signature,
    /// A name that is empty, too long or not plain text.
    #[error("a host name must be 1 to {NAME_MAX} printable ASCII characters")]
    Name,
    /// Words out of order, or too many.
    #[error("the peer does not keep to the order of the authentication method")]
    Order,
    /// A payload that cannot be decoded.
    #[error("an authentication payload is malformed: {0}")]
    Malformed(#[from] WireError),
}

/// How a host proves itself, and what it asks of others.
#[derive(Debug, Clone)]
pub enum Credentials {
    /// No proof, crc mode.
    None {
        /// The name this host claims. For Ceph, the part after `client.`.
        name: String,
        /// Which kind of Ceph daemon is talked to; monitors and the others differ in one byte.
        form: NoneForm,
    },
    /// The cluster's shared secret, secure mode.
    Secret {
        /// The name this host goes by in the cluster.
        name: String,
        /// The secret.
        secret: ClusterSecret,
    },
}

/// The two forms of "no authentication".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoneForm {
    /// To a monitor, and between hosts.
    Monitor,
    /// To any other Ceph daemon.
    Daemon,
}

/// What authentication leaves behind.
#[derive(Debug, Clone)]
pub struct Keys {
    /// Key of the signatures over the handshake; `None` leaves them zero.
    pub(crate) signing: Option<secret::Key>,
    /// Keys of secure mode; `None` stays in crc mode.
    pub(crate) secure: Option<SecureKeys>,
    /// The peer's name.
    pub(crate) peer: String,
    /// The number a Ceph monitor gave us.
    pub(crate) global_id: u64,
}

/// The connecting side.
#[derive(Debug)]
pub(crate) enum ClientAuth {
    None {
        name: String,
        form: NoneForm,
        global_id: u64,
    },
    Secret(Box<SecretClient>),
}

/// The accepting side.
#[derive(Debug)]
pub(crate) enum ServerAuth {
    None { name: String },
    Secret(Box<SecretServer>),
}

/// The accepting side's next message.
#[derive(Debug)]
pub(crate) enum ServerStep {
    More(Vec<u8>),
    Done(AuthDone, Box<Keys>),
}

impl Credentials {
    /// The name this host goes by.
    pub fn name(&self) -> &str {
        match self {
            Self::None { name, .. } | Self::Secret { name, .. } => name,
        }
    }

    pub(crate) fn client(&self, global_id: u64, entropy: &mut dyn Entropy) -> ClientAuth {
        match self {
            Self::None { name, form } => ClientAuth::None {
                name: name.clone(),
                form: *form,
                global_id,
            },
            Self::Secret { name, secret } => {
                ClientAuth::Secret(Box::new(SecretClient::new(name, secret, entropy)))
            }
        }
    }

    pub(crate) fn server(&self, entropy: &mut dyn Entropy) -> ServerAuth {
        match self {
            Self::None { name, .. } => ServerAuth::None { name: name.clone() },
            Self::Secret { name, secret } => {
                ServerAuth::Secret(Box::new(SecretServer::new(name, secret, entropy)))
            }
        }
    }

    /// The reply to a refused peer: the same for every reason.
    pub(crate) fn refusal(&self, method: u32) -> crate::control::AuthBadMethod {
        let (ours, mode) = match self {
            Self::None { .. } => (method::NONE, mode::CRC),
            Self::Secret { .. } => (method::SHARED_SECRET, mode::SECURE),
        };
        let (methods, modes) = (vec![ours], vec![mode]);
        crate::control::AuthBadMethod {
            method,
            result: EACCES,
            methods,
            modes,
        }
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), AuthError> {
    let plain = name.bytes().all(|b| b.is_ascii_graphic());
    if name.is_empty() || name.len() > NAME_MAX || !plain {
        return Err(AuthError::Name);
    }
    Ok(())
}

const FORM_MONITOR: u8 = 10;
const FORM_DAEMON: u8 = 1;
const ENTITY_CLIENT: u32 = 8;

impl ClientAuth {
    pub(crate) fn request(&mut self) -> AuthRequest {
        match self {
            Self::None {
                name,
                form,
                global_id,
            } => {
                let mut payload = Vec::with_capacity(32);
                payload.put_u8(match form {
                    NoneForm::Monitor => FORM_MONITOR,
                    NoneForm::Daemon => FORM_DAEMON,
                });
                payload.put_u32(ENTITY_CLIENT);
                payload.put_bytes(name.as_bytes());
                payload.put_u64(*global_id);
                AuthRequest {
                    method: method::NONE,
                    modes: vec![mode::CRC],
                    payload,
                }
            }
            Self::Secret(client) => client.request(),
        }
    }

    pub(crate) fn more(&mut self, payload: &[u8]) -> Result<Vec<u8>, AuthError> {
        match self {
            Self::None { .. } => Err(AuthError::Order),
            Self::Secret(client) => client.more(payload),
        }
    }

    pub(crate) fn on_done(&mut self, done: &AuthDone) -> Result<Keys, AuthError> {
        match self {
            Self::None { .. } if done.mode != mode::CRC => Err(AuthError::Mode(done.mode)),
            Self::None { .. } => {
                // Between hosts the payload is the peer's name; Ceph sends its own words here.
                let peer = std::str::from_utf8(&done.payload).unwrap_or_default();
                let peer = if check_name(peer).is_ok() {
                    peer
                } else {
                    "ceph"
                }
                .to_owned();
                Ok(Keys {
                    signing: None,
                    secure: None,
                    peer,
                    global_id: done.global_id,
                })
            }
            Self::Secret(_) if done.mode != mode::SECURE => Err(AuthError::Mode(done.mode)),
            Self::Secret(client) => client.on_done(&done.payload),
        }
    }
}

impl ServerAuth {
    pub(crate) fn request(&mut self, request: &AuthRequest) -> Result<ServerStep, AuthError> {
        match self {
            Self::None { name } => {
                if request.method != method::NONE {
                    return Err(AuthError::Method(request.method));
                }
                if !request.modes.contains(&mode::CRC) {
                    return Err(AuthError::Mode(mode::CRC));
                }
                let mut r = Reader::new(&request.payload);
                r.u8("auth form")?;
                r.u32("entity type")?;
                let peer = r.text("entity name")?.to_owned();
                check_name(&peer)?;
                let payload = name.clone().into_bytes();
                let done = AuthDone {
                    global_id: 0,
                    mode: mode::CRC,
                    payload,
                };
                let keys = Keys {
                    signing: None,
                    secure: None,
                    peer,
                    global_id: 0,
                };
                Ok(ServerStep::Done(done, Box::new(keys)))
            }
            Self::Secret(server) => server.request(request),
        }
    }

    pub(crate) fn more(&mut self, payload: &[u8]) -> Result<ServerStep, AuthError> {
        match self {
            Self::None { .. } => Err(AuthError::Order),
            Self::Secret(server) => server.more(payload),
        }
    }
}
