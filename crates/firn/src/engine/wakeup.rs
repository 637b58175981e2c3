//! Wakes a thread that may sleep from a thread that must not wait.
//!
//! The engine calls `wake` on reactor threads, so it is one atomic swap and at most a futex wake.
//! A wake between the sleeper's last check and its sleep is not lost: `wake` sets the flag before
//! it unparks, and the sleeper takes the flag before it sleeps.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

/// One sleeper, any number of threads that wake it.
#[derive(Debug, Default)]
pub(crate) struct Wakeup {
    signaled: AtomicBool,
    sleeper: OnceLock<Thread>,
}

impl Wakeup {
    /// Wakes the sleeper, or keeps it from going to sleep.
    pub(crate) fn wake(&self) {
        // Set already and not yet taken: whoever set it wakes the sleeper. AcqRel pairs with the
        // sleeper's swap, so the sleeper sees everything done before any wake that it takes.
        if !self.signaled.swap(true, Ordering::AcqRel)
            && let Some(sleeper) = self.sleeper.get()
        {
            sleeper.unpark();
        }
    }

    /// Sleeps until the next wake, or for `timeout`. Always called by the same thread.
    pub(crate) fn wait(&self, timeout: Duration) {
        self.sleeper.get_or_init(thread::current);
        if !self.signaled.swap(false, Ordering::AcqRel) {
            thread::park_timeout(timeout);
            self.signaled.swap(false, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Instant;

    #[test]
    fn no_wake_is_lost() {
        const WAKES: u64 = 20_000;
        let wakeup = Arc::new(Wakeup::default());
        let work = Arc::new(AtomicU64::new(0));
        let waker = {
            let (wakeup, work) = (Arc::clone(&wakeup), Arc::clone(&work));
            thread::spawn(move || {
                for _ in 0..WAKES {
                    work.fetch_add(1, Ordering::Relaxed);
                    wakeup.wake();
                }
            })
        };
        let started = Instant::now();
        while work.load(Ordering::Relaxed) < WAKES {
            // Were the last wake lost, this would sleep for a minute.
            wakeup.wait(Duration::from_secs(60));
        }
        waker.join().unwrap();
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_wake_before_the_wait_ends_the_wait() {
        let wakeup = Wakeup::default();
        wakeup.wake();
        let started = Instant::now();
        wakeup.wait(Duration::from_secs(60));
        assert!(started.elapsed() < Duration::from_secs(30));
    }
}
