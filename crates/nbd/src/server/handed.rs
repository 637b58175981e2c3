//! A connection between two servers: who gives it away makes it, who adopts it takes it apart. While it
//! is here nobody reads or writes its socket; dropped, it is closed.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::codec::ConnectionState;

/// A connection that nobody serves.
#[derive(Debug)]
pub struct HandedConnection {
    /// Its socket. It may be shared, but not used, by the one that gave it away.
    pub socket: Arc<OwnedFd>,
    /// Where its stream stands.
    pub state: ConnectionState,
}
