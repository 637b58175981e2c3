//! The NBD server of volumes.
//!
//! `nbd::server::Server` with its backend named, and nothing more: what its methods promise is said there.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nbd::server::{
    AdoptError, DrainReport, Export, Exports, HandedConnection, HandedListener, Handover,
    HandoverRefused, Options, Server,
};
use reactor::Handle;
use volume::Volume;

/// A running NBD server of volumes. Dropping it ends all connections at once.
#[derive(Debug)]
pub struct NbdServer(Server<Volume>);

// Never inlined: a caller into which one of them is inlined compiles listeners and connections once
// more, and all that they do with a request, as little optimized as it is itself; and what it attaches
// to a reactor is its own copy.
impl NbdServer {
    /// See [`Server::new`].
    #[inline(never)]
    pub fn new(
        reactors: Vec<Handle>,
        exports: Arc<dyn Exports<Volume>>,
        options: Options,
    ) -> io::Result<NbdServer> {
        Server::new(reactors, exports, options).map(NbdServer)
    }

    /// See [`Server::connections_to`].
    #[inline(never)]
    pub fn connections_to(&self, export: &str) -> usize {
        self.0.connections_to(export)
    }

    /// See [`Server::wake_parked`].
    #[inline(never)]
    pub fn wake_parked(&self, export: &str) {
        self.0.wake_parked(export);
    }

    /// See [`Server::detach`].
    #[inline(never)]
    pub fn detach(&self, export: &Export<Volume>, within: Duration) -> DrainReport {
        self.0.detach(export, within)
    }

    /// See [`Server::try_hand_over`].
    #[inline(never)]
    pub fn try_hand_over(&self, within: Duration) -> Result<Handover, HandoverRefused> {
        self.0.try_hand_over(within)
    }

    /// See [`Server::take_back`].
    #[inline(never)]
    pub fn take_back(&self, handed: Handover) -> usize {
        self.0.take_back(handed)
    }

    /// See [`Server::adopt_listener`].
    #[inline(never)]
    pub fn adopt_listener(&self, listener: HandedListener) -> Result<(), AdoptError> {
        self.0.adopt_listener(listener)
    }

    /// See [`Server::adopt`].
    #[inline(never)]
    pub fn adopt(&self, connection: HandedConnection) -> Result<(), AdoptError> {
        self.0.adopt(connection)
    }

    /// See [`Server::stop`].
    #[inline(never)]
    pub fn stop(&self, within: Duration) -> DrainReport {
        self.0.stop(within)
    }
}
