//! The one closed volume that this host has open to maintain it, and who waits for it to be closed again.
//!
//! In memory only: for other hosts the volume's root says that they may take it. It does no I/O.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::error::OpenError;
use crate::jobs::{Port, Signal};
use crate::lock::lock;
use crate::sync::Mutex;

/// How long somebody who wants the volume waits for the present step, which is about a pack.
const WAIT_NS: u64 = 30_000_000_000;

/// Which volume is open to be maintained.
#[derive(Debug, Default)]
pub(crate) struct MaintenanceHold {
    held: Mutex<Option<Held>>,
    asked: Signal,
    ended: Signal,
}

#[derive(Debug)]
struct Held {
    name: String,
    /// Somebody wants to use it.
    is_asked: bool,
}

impl MaintenanceHold {
    /// Whether the volume of this name is open to be maintained, or about to be.
    pub(crate) fn has(&self, name: &str) -> bool {
        lock(&self.held)
            .as_ref()
            .is_some_and(|held| held.name == name)
    }

    /// Whether the volume is held, and somebody waits for it.
    pub(super) fn is_asked(&self, name: &str) -> bool {
        let held = lock(&self.held);
        held.as_ref()
            .is_some_and(|held| held.name == name && held.is_asked)
    }

    /// Asks for the volume, and waits until it is closed again. At once for any other.
    ///
    /// # Errors
    /// If that takes long, for instance because the store does not answer.
    pub(crate) async fn wait_let_go(&self, port: &Port, name: &str) -> Result<(), OpenError> {
        if canary::active!("maintenance_does_not_yield") {
            return Ok(());
        }
        let is_free = || {
            let mut held = lock(&self.held);
            let held = held.as_mut().filter(|held| held.name == name);
            let Some(held) = held else {
                return Some(());
            };
            if !held.is_asked {
                held.is_asked = true;
                self.asked.wake_all();
            }
            None
        };
        let mut ended = pin!(self.ended.wait_until(is_free));
        let mut sleep = pin!(port.sleep(WAIT_NS));
        std::future::poll_fn(|cx| {
            if ended.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            sleep.as_mut().poll(cx).map(|()| {
                Err(OpenError::Store(format!(
                    "{name}: this host is compacting the volume, which nobody had open, and waits for the store: try again \
                     when it can be reached"
                )))
            })
        })
        .await
    }

    /// Waits for `work`, but not longer than until somebody asks for the volume; then it is dropped.
    pub(super) async fn unless_asked(&self, name: &str, work: impl Future<Output = ()>) {
        if !self.has(name) {
            return work.await;
        }
        let (mut work, asked) = (pin!(work), || self.is_asked(name).then_some(()));
        let mut asked = pin!(self.asked.wait_until(asked));
        std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => asked.as_mut().poll(cx),
        })
        .await;
    }
}

/// From before the volume is taken until it is closed, or its hold was lost.
pub(super) struct Holding {
    hold: Arc<MaintenanceHold>,
}

impl Holding {
    /// There is one job of a host that maintains, so there is one of these.
    pub(super) fn begin(hold: &Arc<MaintenanceHold>, name: &str) -> Holding {
        *lock(&hold.held) = Some(Held {
            name: name.to_owned(),
            is_asked: false,
        });
        let hold = Arc::clone(hold);
        Holding { hold }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        *lock(&self.hold.held) = None;
        self.hold.ended.wake_all();
    }
}
