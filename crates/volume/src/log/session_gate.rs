//! Whether this session is durable in the log, for whatever must not happen before.
//!
//! A session that is lost with the process may be drawn again with other bits: nothing that bears its name may be
//! in the store by then. Writing to the log, and serving what is in it, need no session.

use crate::error::OpenError;
use crate::jobs::Signal;
use crate::lock::lock;
use crate::sync::Mutex;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Pending,
    Durable,
    /// The log took it no more: it is poisoned.
    Lost,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct SessionGate {
    state: Mutex<State>,
    changed: Signal,
}

impl SessionGate {
    /// The log has the session, or needs none because it is poisoned.
    pub(crate) fn open(&self) {
        self.decide(State::Durable);
    }

    /// The log cannot be told of the session any more.
    pub(crate) fn lose(&self) {
        self.decide(State::Lost);
    }

    fn decide(&self, state: State) {
        *lock(&self.state) = state;
        self.changed.wake_all();
    }

    /// Ends when the session is durable.
    ///
    /// # Errors
    /// It never will be: the log is poisoned.
    pub(crate) async fn passed(&self) -> Result<(), OpenError> {
        if canary::active!("store_hears_of_a_session_too_early") {
            return Ok(());
        }
        let decided = self.changed.wait_until(|| match *lock(&self.state) {
            State::Pending => None,
            State::Durable => Some(Ok(())),
            State::Lost => Some(Err(OpenError::Poisoned)),
        });
        decided.await
    }
}
