//! Long computations of an upload, repeated if they fail.

use std::sync::Arc;

use crate::driver::ComputeKind;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::request::tail::Tail;
use crate::store::flow::repeats::Repeats;
use crate::store::flow::slices::ServiceEnded;

/// Runs `work` on a computing thread; `bytes` is roughly how much it reads.
pub(super) async fn compute<T: Send + 'static>(
    engine: &Engine,
    tail: &Tail,
    (kind, bytes): (ComputeKind, u64),
    work: impl Fn() -> T + Send + Sync + 'static,
) -> Result<T, ServiceEnded> {
    let work = Arc::new(work);
    let mut repeats = Repeats::new(engine, tail);
    loop {
        let attempt = Arc::clone(&work);
        match engine.port.compute(kind, bytes, move || attempt()).await {
            Ok(value) => return Ok(value),
            Err(error) => repeats.wait(OpenError::from(error)).await?,
        }
    }
}
