//! A reactor that is done and keeps its ring for a while.
//!
//! Who has several reactors may have to do something when all of them have finished and none has
//! closed its ring yet. The thread waits for that outside of its ring: what the kernel has for it
//! meanwhile stays where it is, and no source is called any more.

use std::convert::Infallible;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

/// The thread's side.
#[derive(Debug)]
pub(crate) struct Parking {
    parked: SyncSender<()>,
    go: Receiver<Infallible>,
}

/// The other side, until the thread is there.
#[derive(Debug)]
pub(super) struct Arriving {
    parked: Receiver<()>,
    go: Sender<Infallible>,
}

/// A thread that is there. It goes on when this is dropped.
#[derive(Debug)]
pub(super) struct Parked {
    _go: Sender<Infallible>,
}

pub(super) fn parking() -> (Parking, Arriving) {
    let ((to, parked), (from, go)) = (sync_channel(1), channel());
    (Parking { parked: to, go }, Arriving { parked, go: from })
}

impl Parking {
    /// Says that the thread is here, and waits until it may go on.
    pub(super) fn wait(self) {
        // Who gave up waiting for this lets it go on at once.
        let _ = self.parked.send(());
        let Err(_dropped) = self.go.recv();
    }
}

impl Arriving {
    /// Waits until the thread is there; none where it is not in time, or has ended.
    pub(super) fn wait(self, within: Duration) -> Option<Parked> {
        self.parked.recv_timeout(within).ok()?;
        Some(Parked { _go: self.go })
    }
}
