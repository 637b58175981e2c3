//! Why a connection or a session ended.
//!
//! Owns the one list of reasons and the one rule that decides whether to reconnect or to treat the
//! peer as one that broke the protocol. A reason is logged where it is consumed, once.

use thiserror::Error;

use crate::auth::AuthError;
use crate::frame::{FrameError, Tag};
use crate::wire::WireError;

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The peer, or the network, ended the connection.
    #[error("the connection ended")]
    Disconnected,
    /// The connection could not be made or broke.
    #[error("the connection failed: {0}")]
    Io(std::io::ErrorKind),
    /// The peer did not answer a keepalive in time.
    #[error("the peer did not answer a keepalive in time")]
    KeepaliveTimeout,
    /// The handshake took too long.
    #[error("the handshake did not end in time")]
    HandshakeTimeout,
    /// The peer asks to come again later.
    #[error("the peer is busy and asks to come again later")]
    AskedToWait,
    /// A newer connection of the same session took its place.
    #[error("a newer connection of the session took its place")]
    Replaced,
    /// The peer reconnected too often with sequence numbers that were used before.
    #[error("too many attempts on one connection")]
    TooManyAttempts,
    /// A malformed frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame whose body cannot be read.
    #[error("a frame is malformed: {0}")]
    Wire(#[from] WireError),
    /// Authentication failed.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// A frame that does not belong here.
    #[error("a {tag:?} frame came during {during}, where it does not belong")]
    Unexpected {
        /// The frame.
        tag: Tag,
        /// In which phase.
        during: &'static str,
    },
    /// A message was skipped.
    #[error("message {got} came where {expected} was due: at least one is missing")]
    Gap {
        /// The sequence that was due.
        expected: u64,
        /// The sequence received.
        got: u64,
    },
    /// The peer acknowledges what was never sent.
    #[error("the peer acknowledges message {acked}, and only {sent} were sent")]
    AckOfUnsent {
        /// What it acknowledged.
        acked: u64,
        /// What was sent.
        sent: u64,
    },
    /// The peer lacks features that this host requires, or the reverse.
    #[error("features {missing:#x} are required by one side and not supported by the other")]
    MissingFeatures {
        /// Which.
        missing: u64,
    },
    /// A lossless session was asked for, a lossy one granted.
    #[error("the peer grants a lossy session where a lossless one was asked for")]
    LossyGranted,
}

impl Fault {
    /// Whether the same peer may well be fine on another connection. Everything else is a breach of
    /// the protocol, and ends the session.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Disconnected
                | Self::Io(_)
                | Self::KeepaliveTimeout
                | Self::HandshakeTimeout
                | Self::AskedToWait
                | Self::Replaced
                | Self::TooManyAttempts
        )
    }
}

/// Why a session is over.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The application closed it.
    #[error("closed by the application")]
    ByOwner,
    /// The peer does not know the session any more: it restarted, or gave the session up. Whether
    /// it acted on what was not acknowledged is unknown, so nothing is sent again. Open a new
    /// session and let the application reconcile.
    #[error("the peer lost the session")]
    PeerLostSession,
    /// A lossy session's connection failed, or the peer broke the protocol.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// The connecting side did not come back in time.
    #[error("the peer did not come back in time")]
    PeerGone,
    /// The messenger was shut down.
    #[error("the messenger was shut down")]
    Shutdown,
}
