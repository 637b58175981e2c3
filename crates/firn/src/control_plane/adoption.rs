//! NBD connections of the program before this one, and those that wait for their volume.
//!
//! A connection is with the NBD server or here, never with both: what waits here is given away with the
//! others when this program gives its place to the next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nbd::server::{HandedConnection, Handover};

use super::ControlPlane;
use crate::failure::Result;

/// How often connections that wait for their volume are looked at.
const INTERVAL: Duration = Duration::from_millis(50);

/// Connections to volumes that are not open yet. Their clients see a pause.
#[derive(Debug, Default)]
pub(crate) struct PendingConnections(Mutex<Vec<HandedConnection>>);

impl PendingConnections {
    fn lock(&self) -> MutexGuard<'_, Vec<HandedConnection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ControlPlane {
    /// Goes on with connections that another server gave away. Those to volumes that are not open yet
    /// wait for them.
    pub(crate) fn adopt_connections(self: &Arc<Self>, connections: Vec<HandedConnection>) {
        let (waiting, mut due) = self.split_waiting(connections);
        if canary::active!("nobody_adopts_clients") {
            due.clear();
        }
        due.into_iter().for_each(|one| self.nbd.adopt(one));
        if waiting.is_empty() {
            return;
        }
        self.pending.lock().extend(waiting);
        let control = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(INTERVAL).await;
                // With the lock: whoever takes what waits knows that none of it is on its way.
                let mut pending = control.pending.lock();
                let (waiting, due) = control.split_waiting(std::mem::take(&mut *pending));
                due.into_iter().for_each(|one| control.nbd.adopt(one));
                *pending = waiting;
                if pending.is_empty() {
                    return;
                }
            }
        });
    }

    /// Those whose volume is to be opened and is not open yet, and the others.
    fn split_waiting(
        &self,
        connections: Vec<HandedConnection>,
    ) -> (Vec<HandedConnection>, Vec<HandedConnection>) {
        let is_waiting = |connection: &HandedConnection| {
            let name = &connection.state.export;
            // Until that is decided the NBD server does not find it.
            self.opening.contains(name)
                || (self.volumes.get(name).is_none() && self.waiting.get(name).is_some())
        };
        connections.into_iter().partition(is_waiting)
    }

    /// Gives NBD's listeners and connections away, if all are quiet in time; else nothing has changed.
    pub(crate) async fn give_clients_away(self: &Arc<Self>, within: Duration) -> Result<Handover> {
        let mut pending = std::mem::take(&mut *self.pending.lock());
        if canary::active!("waiting_clients_are_cut") {
            pending.clear();
        }
        match self.nbd.try_hand_over(within).await {
            Ok(mut handed) => {
                handed.connections.append(&mut pending);
                Ok(handed)
            }
            Err(failure) => {
                self.adopt_connections(pending);
                Err(failure)
            }
        }
    }

    /// Goes on with what was given away, and that nobody else got.
    pub(crate) async fn take_clients_back(self: &Arc<Self>, mut handed: Handover) {
        let connections = std::mem::take(&mut handed.connections);
        let (waiting, due) = self.split_waiting(connections);
        handed.connections = due;
        self.nbd.take_back(handed).await;
        self.adopt_connections(waiting);
    }
}
