//! Ends a test program that hangs. What it hangs on would hang an orderly end, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Ends the whole program where something takes too long: without shutting anything down, for
/// what hangs would hang that, too.
pub struct Watchdog(Arc<AtomicBool>);

impl Watchdog {
    pub fn new(what: &'static str, within: Duration) -> Watchdog {
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        std::thread::spawn(move || {
            let began = Instant::now();
            while !seen.load(Ordering::Relaxed) {
                if began.elapsed() > within {
                    println!("watchdog: {what} does not end, after {within:?}");
                    std::process::abort();
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Watchdog(over)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
