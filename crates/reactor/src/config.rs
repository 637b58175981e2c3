//! The options of a reactor: its driver, its limits and its memory. Data only; `reactor` acts on them.

use crate::driver::BackendKind;

/// Which driver to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BackendChoice {
    /// The ring where the host allows one, epoll otherwise.
    #[default]
    Auto,
    /// This one or an error.
    Only(BackendKind),
}

/// How a reactor is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of its thread.
    pub name: String,
    /// Driver.
    pub backend: BackendChoice,
    /// Submission queue entries of the ring.
    pub entries: u32,
    /// Completion queue entries of the ring, at most 65,536: armed commands + operations in flight
    /// are a good number. What does not fit is kept by the kernel, at a price.
    pub completions: u32,
    /// Bytes that its pool lends at most, beside the reserve and the first buffers of those that
    /// may hold theirs for long ([`crate::BufferPurpose::Held`]).
    pub pool_bytes: usize,
    /// Size of the pool's reserve: the largest buffer that a request in progress may need.
    pub reserve_bytes: usize,
    /// Threads for file calls where there is no ring.
    pub workers: usize,
    /// Mark the thread as one that frees memory by writing (`PR_SET_IO_FLUSHER`), so that it
    /// never waits for memory that only its own work can free: for disks that are mounted on this
    /// host. It needs CAP_SYS_RESOURCE; without it the reactor runs unmarked
    /// ([`crate::Reactor::is_io_flusher`]).
    pub io_flusher: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            name: "reactor".to_owned(),
            backend: BackendChoice::Auto,
            entries: 256,
            completions: 2048,
            pool_bytes: 128 << 20,
            reserve_bytes: 64 << 20,
            workers: 4,
            io_flusher: true,
        }
    }
}
