//! Repeats a failed step of an upload as long as the volume is served. A fork of a kept tail repeats its steps,
//! too, but for a bounded time, because a client waits for the answer.

use crate::engine::Engine;
use crate::error::OpenError;
use crate::request::tail::{Status, Tail};
use crate::store::flow::slices::ServiceEnded;
use crate::store::open::tail_claim::TailClaim;
use crate::units::SECOND_NS;

/// How long one step of a fork is repeated.
const FORK_PATIENCE_NS: u64 = 600 * SECOND_NS;

/// Waits before a failed step is repeated; fails if the volume is not served any more.
pub(super) struct Repeats<'a> {
    engine: &'a Engine,
    tail: &'a Tail,
    delay_ns: u64,
    begun_ns: u64,
}

impl<'a> Repeats<'a> {
    pub(super) fn new(engine: &'a Engine, tail: &'a Tail) -> Repeats<'a> {
        let delay_ns = engine.options.retry_ns;
        Repeats {
            engine,
            tail,
            delay_ns,
            begun_ns: engine.jobs.mono_ns(),
        }
    }

    pub(super) async fn wait(&mut self, error: OpenError) -> Result<(), ServiceEnded> {
        let volume = self.tail.name();
        tracing::warn!(volume, %error, "part of an upload failed and will be tried again");
        self.tail.upload.set_error(Some(&error));
        self.tail.upload.on_store_answer(true);
        self.engine.port.sleep(self.delay_ns).await;
        self.delay_ns = (self.delay_ns * 2).min(self.engine.options.retry_ns * 30);
        let is_live = self.tail.lock().status == Status::Live;
        (is_live || self.tail.upload.is_kept_for_end() || self.is_forked())
            .then_some(())
            .ok_or(ServiceEnded)
    }

    fn is_forked(&self) -> bool {
        let waited_ns = self.engine.jobs.mono_ns().saturating_sub(self.begun_ns);
        TailClaim::is_taken(self.engine, self.tail)
            && waited_ns < FORK_PATIENCE_NS
            && !self.engine.is_stopping()
            && !canary::active!("fork_gives_up_at_once")
    }
}
