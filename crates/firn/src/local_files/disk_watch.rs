//! Whether the disk of the cache directory still completes writes.
//!
//! A disk that hangs (a suspended device, a frozen file system, a dead controller) answers nothing,
//! and so says nothing: requests just wait. A thread of its own writes and syncs one block every few
//! seconds; how long that takes is the answer. It must never be waited for.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two probes.
const INTERVAL: Duration = Duration::from_secs(3);

/// A probe that takes longer means that the disk hangs.
const HANGS_AFTER: Duration = Duration::from_secs(4);

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiskState {
    Works,
    /// A write has not completed for this long.
    Hangs(Duration),
    Fails(String),
}

#[derive(Debug, Default)]
struct Probe {
    begun: Option<Instant>,
    failure: Option<String>,
}

/// The watch; its thread ends with it, or once the disk answers.
#[derive(Debug)]
pub(crate) struct DiskWatch {
    probe: Arc<Mutex<Probe>>,
    _stop: Sender<()>,
}

impl DiskWatch {
    /// Watches the disk of `file` by writing `block` to its start, which has that content already.
    pub(crate) fn start(file: File, block: Vec<u8>) -> io::Result<DiskWatch> {
        let probe = Arc::new(Mutex::new(Probe::default()));
        let (stop, stopped) = mpsc::channel();
        let shared = Arc::clone(&probe);
        std::thread::Builder::new()
            .name("firn-disk-watch".to_owned())
            .spawn(move || {
                while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    lock(&shared).begun = Some(Instant::now());
                    let written = file.write_all_at(&block, 0).and_then(|()| file.sync_data());
                    *lock(&shared) = Probe {
                        begun: None,
                        failure: written.err().map(|error| error.to_string()),
                    };
                }
            })?;
        Ok(DiskWatch { probe, _stop: stop })
    }

    pub(crate) fn state(&self) -> DiskState {
        let probe = lock(&self.probe);
        let age = probe.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        match &probe.failure {
            _ if age >= HANGS_AFTER => DiskState::Hangs(age),
            Some(failure) => DiskState::Fails(failure.clone()),
            None => DiskState::Works,
        }
    }
}

fn lock(probe: &Mutex<Probe>) -> std::sync::MutexGuard<'_, Probe> {
    // Each critical section sets whole values, so a panic cannot leave it half changed.
    probe.lock().unwrap_or_else(PoisonError::into_inner)
}
