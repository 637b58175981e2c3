//! A thread for each connection: the first failure ends all of them.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Result;

/// Has a thread work on each of `lanes`, mostly connections, until all are done or one fails: then the others are told to
/// stop. What each has to say, in their order.
pub(in crate::cli) fn run_on_each<L: Send, T: Send>(
    lanes: Vec<L>,
    work: impl Fn(L, &AtomicBool) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let stop = AtomicBool::new(false);
    let (work, stop) = (&work, &stop);
    std::thread::scope(|scope| {
        let threads: Vec<_> = lanes
            .into_iter()
            .map(|lane| {
                scope.spawn(move || {
                    let done = work(lane, stop);
                    if done.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    done
                })
            })
            .collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        // All of them, before the first error is told.
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}
