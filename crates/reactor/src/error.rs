//! Errors of a reactor itself; those of operations are in their completions.

use std::fmt;
use std::io;

/// What could not be done when a reactor was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartStep {
    WakeDescriptor,
    Ring { entries: u32, completions: u32 },
    RingFeatures,
    Epoll,
    FileWorkers { count: usize },
    Pool { reserve_bytes: usize },
    Thread,
    ThreadEnded,
}

/// A reactor could not be started: which step failed, why, and what helps.
#[derive(Debug)]
pub struct StartError {
    step: StartStep,
    source: io::Error,
}

impl StartError {
    pub(crate) fn new(step: StartStep, source: io::Error) -> StartError {
        StartError { step, source }
    }

    /// What the kernel said, where the kernel refused.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = &self.source;
        match self.step {
            StartStep::WakeDescriptor => write!(
                f,
                "cannot create the reactor's wake descriptor (eventfd): {source}; raise the limit \
                 of open files"
            ),
            StartStep::Ring {
                entries,
                completions,
            } => write!(
                f,
                "cannot set up an io_uring of {entries} submission and {completions} completion \
                 entries: {source}; allow io_uring (sysctl kernel.io_uring_disabled=0, a seccomp \
                 profile that permits it) or choose the epoll backend"
            ),
            StartStep::RingFeatures => write!(
                f,
                "the kernel's io_uring lacks IORING_FEAT_EXT_ARG or IORING_FEAT_NODROP: {source}; \
                 use Linux 5.11 or later, or choose the epoll backend"
            ),
            StartStep::Epoll => write!(
                f,
                "cannot set up epoll for a reactor: {source}; raise the limit of open files or of \
                 epoll watches (fs.epoll.max_user_watches)"
            ),
            StartStep::FileWorkers { count } => write!(
                f,
                "cannot start {count} file-worker threads: {source}; raise the limit of processes \
                 (pids.max, RLIMIT_NPROC) or configure fewer workers"
            ),
            StartStep::Pool { reserve_bytes } => write!(
                f,
                "cannot allocate a buffer pool with a reserve of {reserve_bytes} bytes: {source}; \
                 configure a smaller reserve (at most 64 MiB)"
            ),
            StartStep::Thread => write!(
                f,
                "cannot start the reactor's thread: {source}; raise the limit of processes \
                 (pids.max, RLIMIT_NPROC)"
            ),
            StartStep::ThreadEnded => write!(
                f,
                "the reactor's thread ended before it was ready: {source}; its panic message is \
                 on standard error"
            ),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<StartError> for io::Error {
    fn from(error: StartError) -> io::Error {
        io::Error::new(error.source.kind(), error)
    }
}

/// The reactor has stopped; what was given to it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoppedError;

impl fmt::Display for StoppedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reactor has stopped and takes no more work")
    }
}

impl std::error::Error for StoppedError {}
