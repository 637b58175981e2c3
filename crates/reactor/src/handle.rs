//! A reactor as other threads see it: they post work, attach sources and make wakers.
//!
//! Nothing here waits for the reactor's thread.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use crate::core::{Core, Cx, Mailbox, Source};
use crate::error::StoppedError;
use crate::ids::SourceId;
use crate::inbox::{Inbox, Message};

/// A reactor as other threads see it. Never waits.
#[derive(Clone)]
pub struct Handle {
    mailbox: Arc<Mailbox>,
}

impl Handle {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> Handle {
        Handle { mailbox }
    }

    /// Runs `work` on the reactor's thread, soon and in the order of posting.
    pub fn post(&self, work: impl FnOnce(&mut Core) + Send + 'static) -> Result<(), StoppedError> {
        self.mailbox.send(Message::Run(Box::new(work)))
    }

    /// Attaches the source that `build` makes on the reactor's thread. `build` can ask for the
    /// source's id and may register files and begin operations already.
    pub fn attach<S: Source>(
        &self,
        build: impl FnOnce(&mut Cx<'_>) -> S + Send + 'static,
    ) -> Result<(), StoppedError> {
        self.post(move |core| {
            core.attach(build);
        })
    }

    /// A waker that calls [`Source::on_wake`] with `key`. Waking a source that is gone does nothing.
    pub fn waker(&self, source: SourceId, key: u64) -> Waker {
        Inbox::source_waker(&self.mailbox, source, key)
    }
}

impl Core {
    /// This reactor for other threads.
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.mailbox))
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}
