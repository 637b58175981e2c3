//! How sessions behave, and whom they are opened to.

use std::net::SocketAddr;
use std::time::Duration;

use crate::addr::EntityAddr;
use crate::auth::Credentials;
use crate::frame::Limits;
use crate::outqueue::Bounds;

/// The feature bit of the application's own acknowledgements. Free in Ceph's numbering.
pub const FEATURE_DONE: u64 = 1 << 62;

/// How sessions of one messenger behave. Hosts of a cluster are configured alike.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bounds of each session's out-queue.
    pub bounds: Bounds,
    /// Bytes staged for the socket at most, apart from the last frame. More would only make a
    /// keepalive wait behind them, and a fault send more again.
    pub staged_bytes_max: usize,
    /// Feature bits offered.
    pub features: u64,
    /// Feature bits the peer must have.
    pub required: u64,
    /// Lossless sessions carry the application's own acknowledgements: a message counts against
    /// the bound until it is done.
    pub done_acks: bool,
    /// How often an open or parked session is probed; `None`: only on request.
    pub keepalive_interval: Option<Duration>,
    /// How long the answer may take.
    pub keepalive_timeout: Duration,
    /// First pause between two attempts to connect. It doubles.
    pub backoff_min: Duration,
    /// Longest pause.
    pub backoff_max: Duration,
    /// How long a connection may take to become open.
    pub handshake_timeout: Duration,
    /// How long the accepting side keeps a session whose peer is away.
    pub reattach_timeout: Duration,
    /// Connections that are not authenticated and named yet, at most. More are closed at once.
    pub handshakes_max: usize,
    /// Sessions, at most. Peers that want more get a Wait frame.
    pub sessions_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bounds: Bounds::default(),
            staged_bytes_max: 256 << 10,
            features: 0,
            required: 0,
            done_acks: false,
            keepalive_interval: Some(Duration::from_secs(10)),
            keepalive_timeout: Duration::from_secs(20),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(15),
            handshake_timeout: Duration::from_secs(10),
            reattach_timeout: Duration::from_secs(600),
            handshakes_max: 64,
            sessions_max: 4096,
        }
    }
}

impl Config {
    pub(crate) fn limits(&self) -> Limits {
        let max = u32::try_from(self.bounds.message_max).unwrap_or(u32::MAX);
        Limits::OPEN.with_segment_max(max)
    }

    pub(super) fn offered_features(&self) -> u64 {
        self.features | self.done_bit()
    }

    pub(super) fn required_features(&self) -> u64 {
        self.required | self.done_bit()
    }

    fn done_bit(&self) -> u64 {
        if self.done_acks { FEATURE_DONE } else { 0 }
    }

    /// Features that one side requires and the other lacks.
    pub(crate) fn missing_features(&self, supported: u64, required: u64) -> u64 {
        (self.required_features() & !supported) | (required & !self.offered_features())
    }
}

/// Whom a session is opened to, and how.
#[derive(Debug, Clone)]
pub struct Target {
    /// The peer's address. A Ceph daemon checks the nonce; between hosts it is 0.
    pub addr: EntityAddr,
    /// Tells several sessions of one host to the same peer apart. Opening a lane again, from a
    /// restarted host for instance, ends the peer's side of the earlier session.
    pub lane: u32,
    /// A lossy session ends with its connection and sends nothing again.
    pub lossy: bool,
    /// The number a Ceph monitor gave this client; 0 between hosts.
    pub global_id: u64,
    /// Credentials for this session, where they differ from the messenger's.
    pub credentials: Option<Credentials>,
}

impl Target {
    /// A lossless session, in lane 0.
    pub fn lossless(addr: SocketAddr) -> Self {
        let addr = EntityAddr::msgr2(addr, 0);
        Self {
            addr,
            lane: 0,
            lossy: false,
            global_id: 0,
            credentials: None,
        }
    }

    /// A lossy session.
    pub fn lossy(addr: SocketAddr) -> Self {
        Self {
            lossy: true,
            ..Self::lossless(addr)
        }
    }

    /// The same in another lane.
    pub fn in_lane(self, lane: u32) -> Self {
        Self { lane, ..self }
    }
}
