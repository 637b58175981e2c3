//! Waking a thread that may sleep, from one that must not wait.
//!
//! The engine rings from reactor threads, so ringing is a swap and at most a futex wake. A ring
//! between the sleeper's last look and its sleep is not lost: the flag is set before the wake, and
//! the sleeper takes it before it sleeps.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

/// One sleeper, any number of ringers.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: AtomicBool,
    sleeper: OnceLock<Thread>,
}

impl Bell {
    /// Wakes the sleeper, or keeps it from going to sleep.
    pub(crate) fn ring(&self) {
        // Already rung and not yet heard: whoever rang first wakes the sleeper. AcqRel pairs with
        // the sleeper's swap, so it sees what was done before any ring that it takes.
        if !self.rung.swap(true, Ordering::AcqRel)
            && let Some(sleeper) = self.sleeper.get()
        {
            sleeper.unpark();
        }
    }

    /// Sleeps until rung, at most this long. Always called by the same thread.
    pub(crate) fn wait(&self, at_most: Duration) {
        self.sleeper.get_or_init(thread::current);
        if !self.rung.swap(false, Ordering::AcqRel) {
            thread::park_timeout(at_most);
            self.rung.swap(false, Ordering::AcqRel);
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
    fn no_ring_is_lost() {
        const RINGS: u64 = 20_000;
        let bell = Arc::new(Bell::default());
        let work = Arc::new(AtomicU64::new(0));
        let ringer = {
            let (bell, work) = (Arc::clone(&bell), Arc::clone(&work));
            thread::spawn(move || {
                for _ in 0..RINGS {
                    work.fetch_add(1, Ordering::Relaxed);
                    bell.ring();
                }
            })
        };
        let started = Instant::now();
        while work.load(Ordering::Relaxed) < RINGS {
            // Were the last ring lost, this would sleep for a minute.
            bell.wait(Duration::from_secs(60));
        }
        ringer.join().unwrap();
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_ring_before_the_wait_is_heard() {
        let bell = Bell::default();
        bell.ring();
        let started = Instant::now();
        bell.wait(Duration::from_secs(60));
        assert!(started.elapsed() < Duration::from_secs(30));
    }
}
