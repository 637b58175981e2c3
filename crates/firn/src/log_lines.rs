//! Lines of the log, and who writes them to standard error.
//!
//! Standard error may be a file, and then a line is a write through the page cache of a file system that may itself
//! wait for this server: for memory that only a disk of it frees. So while a server runs, a thread of their own writes
//! its lines, and who says one never waits. Lines that standard error does not take are lost, and their number is said.

use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What waits at most.
const WAITING_BYTES_MAX: usize = 256 << 10;

/// How long the end of the process waits for lines that are not written yet.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

static LINES: Lines = Lines::new();

/// Where a line of the log is written to; each `write` is a whole one.
#[derive(Debug)]
pub(crate) struct Line;

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match LINES.push(line) {
            true => Ok(line.len()),
            false => io::stderr().write(line),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// From now on a thread writes the lines, until the value is dropped.
pub(crate) fn write_by_a_thread() -> ByThread {
    LINES.lock().waiting.reserve_exact(WAITING_BYTES_MAX);
    let thread = std::thread::Builder::new().name("firn-log-lines".to_owned());
    let started = thread.spawn(|| LINES.write_to(&mut io::stderr()));
    match started {
        Ok(_) => LINES.lock().has_thread = true,
        Err(error) => tracing::warn!(%error, "each thread writes its lines of the log by itself"),
    }
    ByThread(())
}

/// While it lives, a thread writes the lines.
#[derive(Debug)]
pub(crate) struct ByThread(());

impl Drop for ByThread {
    fn drop(&mut self) {
        stop();
    }
}

/// Has the lines written that wait, and no more by the thread: for the end of the process, however it comes.
pub(crate) fn stop() {
    LINES.stop(FLUSH_TIMEOUT);
}

#[derive(Debug)]
struct Lines {
    state: Mutex<State>,
    /// Something waits to be written, or nothing does any more.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    has_thread: bool,
    waiting: Vec<u8>,
    lost: u64,
    is_writing: bool,
}

impl Lines {
    const fn new() -> Lines {
        Lines {
            state: Mutex::new(State {
                has_thread: false,
                waiting: Vec::new(),
                lost: 0,
                is_writing: false,
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each critical section leaves whole lines, also if it panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False where no thread writes.
    fn push(&self, line: &[u8]) -> bool {
        let mut state = self.lock();
        if !state.has_thread || canary::active!("lines_are_waited_for") {
            return false;
        }
        if state.waiting.len() + line.len() > WAITING_BYTES_MAX {
            state.lost += 1;
            return true;
        }
        state.waiting.extend_from_slice(line);
        self.changed.notify_all();
        true
    }

    /// Writes what comes, until the process ends or no more is to be written by a thread.
    fn write_to(&self, to: &mut impl Write) {
        let mut writing = Vec::with_capacity(WAITING_BYTES_MAX);
        let mut state = self.lock();
        loop {
            while state.waiting.is_empty() && state.lost == 0 {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::swap(&mut state.waiting, &mut writing);
            let lost = std::mem::take(&mut state.lost);
            state.is_writing = true;
            drop(state);
            // Nobody is left to be told of a failure.
            let _ = to.write_all(&writing);
            if lost > 0 {
                let _ = writeln!(
                    to,
                    "firn: {lost} lines of the log were lost: standard error took none for too long"
                );
            }
            writing.clear();
            state = self.lock();
            state.is_writing = false;
            self.changed.notify_all();
        }
    }

    fn stop(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        let mut state = self.lock();
        while state.has_thread && (state.is_writing || !state.waiting.is_empty() || state.lost > 0)
        {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.has_thread = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    /// Takes a write only when told to.
    struct Slow {
        told: Receiver<()>,
        written: Sender<String>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.told.recv();
            let _ = self
                .written
                .send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow_lines() -> (&'static Lines, Sender<()>, Receiver<String>) {
        let lines: &'static Lines = Box::leak(Box::new(Lines::new()));
        lines.lock().has_thread = true;
        let (tell, told) = mpsc::channel();
        let (written, seen) = mpsc::channel();
        std::thread::spawn(move || lines.write_to(&mut Slow { told, written }));
        (lines, tell, seen)
    }

    #[test]
    fn who_says_a_line_does_not_wait_for_it_to_be_written_and_lost_ones_are_counted() {
        let (lines, tell, seen) = slow_lines();
        let line = [b'x'; 1024];
        // One buffer is being written at most, another one waits.
        let said = 2 * WAITING_BYTES_MAX / line.len() + 10;
        for _ in 0..said {
            assert!(lines.push(&line));
        }
        let lost = lines.lock().lost;
        assert!(lost >= 10, "{lost}");
        drop(tell);
        lines.stop(Duration::from_secs(60));
        let all: String = seen.try_iter().collect();
        let lines_written = all.matches('x').count() / line.len();
        assert_eq!(lines_written as u64 + lost, said as u64);
        assert!(all.contains(&format!("firn: {lost} lines of the log were lost")));
    }

    #[test]
    fn the_end_waits_for_lines_with_a_limit_and_then_each_writes_its_own() {
        let (lines, tell, seen) = slow_lines();
        assert!(lines.push(b"first\n"));
        tell.send(()).unwrap();
        lines.stop(Duration::from_secs(60));
        assert_eq!(seen.recv().unwrap(), "first\n");
        assert!(!lines.push(b"second\n"));
        lines.lock().has_thread = true;
        assert!(lines.push(b"third\n"));
        lines.stop(Duration::ZERO);
        assert!(!lines.push(b"fourth\n"));
    }
}
