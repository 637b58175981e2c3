//! Threads of work without which the server must not live on.
//!
//! A server whose job thread or committer has died would go on to take writes, and would never
//! again answer a FLUSH or bring anything to the store. What clients were promised lies in the
//! log and the rings, and a start recovers it: so the process ends, and its supervisor or its
//! user starts another.

/// Ends the process if a panic passes through the scope that holds it.
pub(crate) struct Vital(pub(crate) &'static str);

impl Drop for Vital {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(
                what = self.0,
                "a bug ended what the server cannot be without; nothing that was acknowledged \
                 is lost: start it again"
            );
            std::process::abort();
        }
    }
}
