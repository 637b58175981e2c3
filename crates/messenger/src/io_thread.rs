//! The mark of I/O threads: a blocking call on one would wait for itself, and is refused.

use std::cell::Cell;

std::thread_local! {
    static IS_IO_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as an I/O thread, for good.
pub(crate) fn mark() {
    IS_IO_THREAD.set(true);
}

/// Whether the caller is an I/O thread of any messenger.
pub(crate) fn is_current() -> bool {
    IS_IO_THREAD.get()
}
