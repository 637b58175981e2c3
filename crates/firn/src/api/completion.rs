//! Changes that go on to their end although the client that asked for them has gone.

use crate::failure::{Failure, Result};

/// Runs a change in a task of its own, so that it completes although the client disconnects. A
/// change that stops halfway would leave a volume open but not listed, or closed but listed.
pub(super) async fn run_to_completion<T: Send + 'static>(
    change: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(change).await.unwrap_or_else(|source| {
        Err(Failure::internal(format!(
            "the task of the change panicked: {source}; see the server's log"
        )))
    })
}
