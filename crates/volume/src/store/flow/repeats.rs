//! Repeating what failed on the way to the store, alone and for as long as the volume is served.

use crate::engine::Engine;
use crate::error::OpenError;
use crate::request::tail::{Status, Tail};

/// The volume is not served any more.
pub(super) struct Stopped;

/// Waits before something that failed is repeated; it ends if the volume is not served any more.
pub(super) struct Repeats<'a> {
    engine: &'a Engine,
    tail: &'a Tail,
    delay_ns: u64,
}

impl<'a> Repeats<'a> {
    pub(super) fn new(engine: &'a Engine, tail: &'a Tail) -> Repeats<'a> {
        let delay_ns = engine.options.retry_ns;
        Repeats {
            engine,
            tail,
            delay_ns,
        }
    }

    pub(super) async fn wait(&mut self, error: OpenError) -> Result<(), Stopped> {
        let volume = self.tail.name();
        tracing::warn!(volume, %error, "part of an upload failed and will be tried again");
        self.tail.upload.set_error(Some(&error));
        self.tail.upload.on_store_answer(true);
        self.engine.port.sleep(self.delay_ns).await;
        self.delay_ns = (self.delay_ns * 2).min(self.engine.options.retry_ns * 30);
        match self.tail.lock().status {
            Status::Live => Ok(()),
            _ => Err(Stopped),
        }
    }
}
