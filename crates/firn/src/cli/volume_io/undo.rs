//! What a command takes back if it does not come to its end: by an error, a panic, SIGINT or SIGTERM.
//!
//! kill -9 leaves what was begun; the commands' help says what that is.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::output;
use crate::failure::{Failure, Result};

type Step = Box<dyn FnOnce() + Send>;

/// Exit status of a command that a signal ended, as shells have it for SIGINT.
const INTERRUPTED: i32 = 130;

/// Steps that are taken, the last one first, when it is dropped or the process is told to end.
pub(in crate::cli) struct Undo {
    begun: Arc<UndoLog>,
}

#[derive(Default)]
struct UndoLog {
    steps: Mutex<Vec<Step>>,
    /// A signal is about to end the process.
    is_ending: AtomicBool,
}

impl Undo {
    /// From now on SIGINT and SIGTERM end the process only after the steps.
    pub(in crate::cli) fn watch() -> Result<Undo> {
        let begun = Arc::new(UndoLog::default());
        let watched = Arc::clone(&begun);
        let cannot =
            |error: std::io::Error| Failure::internal(format!("cannot wait for signals: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(cannot)?;
        let (mut interrupted, mut terminated) = {
            use tokio::signal::unix::{SignalKind, signal};
            let _entered = runtime.enter();
            (
                signal(SignalKind::interrupt()).map_err(cannot)?,
                signal(SignalKind::terminate()).map_err(cannot)?,
            )
        };
        std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupted.recv() => {}
                    _ = terminated.recv() => {}
                }
            });
            watched.is_ending.store(true, Ordering::SeqCst);
            watched.undo();
            std::process::exit(INTERRUPTED);
        });
        Ok(Undo { begun })
    }

    pub(in crate::cli) fn add(&self, step: impl FnOnce() + Send + 'static) {
        self.begun.steps().push(Box::new(step));
    }

    /// What was done stays.
    pub(in crate::cli) fn keep(&self) {
        self.begun.steps().clear();
        self.begun.leave_the_end_to_the_signal();
    }

    /// What was done stays, and more follows: a signal that ends the command before the next [`keep`](Undo::keep) has it
    /// say `how_far` it is.
    pub(in crate::cli) fn keep_so_far(&self, how_far: String) {
        let say: Step = Box::new(move || output::warn(&how_far));
        *self.begun.steps() = vec![say];
        self.begun.leave_the_end_to_the_signal();
    }
}

impl UndoLog {
    fn steps(&self) -> MutexGuard<'_, Vec<Step>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Under the lock, so that who comes second waits until it is done. A step that panics keeps neither the others from
    /// being taken nor the process from ending.
    fn undo(&self) {
        let mut steps = self.steps();
        while let Some(step) = steps.pop() {
            // The hook has said why.
            let _ = std::panic::catch_unwind(AssertUnwindSafe(step));
        }
    }

    /// What the steps took away lets the command fail: the signal came first, and says how it ended.
    fn leave_the_end_to_the_signal(&self) {
        while self.is_ending.load(Ordering::SeqCst) {
            std::thread::park();
        }
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        self.begun.undo();
        self.begun.leave_the_end_to_the_signal();
    }
}
