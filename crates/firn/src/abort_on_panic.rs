//! Ends the process when a thread panics that the server cannot work without.
//!
//! A server whose job thread or committer has died would still take writes, and would never again
//! answer a FLUSH or upload anything. Everything that clients were promised is in the log and the
//! index rings, and the next start recovers it. So the process aborts, and its supervisor or its
//! user starts another.

/// Ends the process if a panic passes through the scope that holds it.
pub(crate) struct AbortOnPanic(pub(crate) &'static str);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(
                what = self.0,
                "a bug ended a thread that the server cannot work without; no acknowledged write \
                 is lost: start the server again"
            );
            crate::log_lines::stop();
            std::process::abort();
        }
    }
}

/// Ends the process also if a panic passes through a section under one of the engine's locks, on any thread:
/// what the lock protects may be half changed.
pub(crate) fn abort_on_panic_under_locks() {
    volume::on_panic_under_lock(|| {
        tracing::error!(
            "a bug ended a step of the engine halfway; no acknowledged write is lost: start the \
             server again"
        );
        crate::log_lines::stop();
        std::process::abort();
    });
}
