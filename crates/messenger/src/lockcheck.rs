//! A debug check that nothing slow happens under the out-queue's lock.
//!
//! Debug builds count, per thread, the small locks held. Freeing a message and calling back into
//! the application assert that the count is zero. Release builds carry none of it.

#[cfg(debug_assertions)]
std::thread_local! {
    static HELD: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Held for as long as the small lock is.
#[derive(Debug)]
pub(crate) struct HeldMark(());

impl HeldMark {
    pub(crate) fn begin() -> Self {
        #[cfg(debug_assertions)]
        HELD.set(HELD.get() + 1);
        Self(())
    }
}

impl Drop for HeldMark {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        HELD.set(HELD.get() - 1);
    }
}

/// Fails a debug build when this thread holds a small lock.
#[track_caller]
pub(crate) fn assert_none_held(what: &str) {
    #[cfg(debug_assertions)]
    if !std::thread::panicking() {
        assert!(HELD.get() == 0, "{what} under the out-queue's lock");
    }
    let _ = what;
}

/// Rides in every message: being freed is checked.
#[derive(Debug, Default)]
pub(crate) struct FreeGuard;

#[cfg(debug_assertions)]
impl Drop for FreeGuard {
    fn drop(&mut self) {
        assert_none_held("a message was freed");
    }
}
