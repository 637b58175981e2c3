//! The clock that requests are timed by: nanoseconds as one number.
//!
//! It owns the moment from which this process counts. Two times differ by one subtraction, which is most
//! of what a request pays for being timed; for waits and deadlines there is `Instant`.

use std::sync::OnceLock;
use std::time::Instant;

/// Nanoseconds since the first call in this process, on any thread.
pub fn monotonic_ns() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
