//! What the server asks of the kernel for its own process: flags, limits and signals.
//!
//! Called once, before the first thread starts that must inherit it. A refusal is logged and never
//! fails the start.

use futures_util::FutureExt;
use reactor::HeapReserve;
use rustix::mm::MlockAllFlags;
use rustix::process::Resource;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Failure, Result};
use crate::memory_plan::MemoryPlan;

/// Enough open files for 4,096 disks with thousands of connections, and far below the kernel's
/// usual bound (`fs.nr_open`).
const OPEN_FILES_MIN: u64 = 1 << 16;

/// What whoever writes the log needs of this process, before it has threads: it must come through want of
/// memory while its own disks wait for it, and hold many files open. Clients may wait for it: the memory that it returns is to
/// be filled beside what they wait for.
pub(crate) fn prepare() -> Option<UnfilledMemory> {
    set_io_flusher();
    let is_locked = lock_memory();
    let mut heap = None;
    if is_locked && !canary::active!("heap_of_the_moment") {
        heap = reactor::reserve_heap(MemoryPlan::of_host().reserve_bytes);
        if heap.is_none() {
            tracing::debug!("the allocator takes no advice: no heap is reserved");
        }
    }
    avoid_oom_kill();
    raise_open_files_limit();
    is_locked.then_some(UnfilledMemory { heap })
}

/// Memory that this process is to have before it is short: the program's own pages, and the heap's reserve.
#[derive(Debug)]
pub(crate) struct UnfilledMemory {
    heap: Option<HeapReserve>,
}

impl UnfilledMemory {
    /// Fills it, which takes long.
    pub(crate) fn fill(self) {
        if let Some(Err(error)) = self.heap.map(HeapReserve::fill) {
            tracing::debug!(%error, "the heap's reserve is not in memory as a whole");
        }
        if let Err(error) = reactor::populate_program() {
            tracing::debug!(%error, "the program is not in memory as a whole");
        }
    }

    /// The same by a thread of its own, while this one goes on. The thread inherits what this one may do.
    pub(crate) fn fill_beside(self) {
        let thread = std::thread::Builder::new().name("firn-memory".into());
        if let Err(error) = thread.spawn(move || self.fill()) {
            tracing::debug!(%error, "memory is taken when it is needed");
        }
    }
}

/// A file system on one of this server's volumes, mounted on this machine, frees memory by writing
/// to this server. So no thread of it may wait for memory to be freed that way; threads that start
/// later inherit the flag. It needs a privilege: without it only such mounts are at risk.
fn set_io_flusher() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "PR_SET_IO_FLUSHER is refused");
    }
}

/// Swap, or a file system under memory pressure, may lie on a disk of this server: a thread that waits
/// for a page of its own there waits for itself. So what this process has in memory stays there, from
/// the first touch on, as far as its limit allows. Without the privilege a limit that is not generous
/// would make allocations fail, so then nothing is locked; `firn doctor` says so. Whether it is.
fn lock_memory() -> bool {
    let limit = rustix::process::getrlimit(Resource::Memlock);
    let may_lock_all = rustix::process::setrlimit(
        Resource::Memlock,
        rustix::process::Rlimit {
            current: None,
            maximum: None,
        },
    );
    if may_lock_all.is_err() && limit.current.is_some() {
        tracing::warn!(
            limit = limit.current,
            "memory is not locked: swap or a busy file system on a disk of this host may hang the \
             server; raise the limit with LimitMEMLOCK=infinity"
        );
        return false;
    }
    // All when it is touched: what is only reserved takes no memory. The program itself soon, see `UnfilledMemory`: a part
    // of it that was never used may have to be read from a disk that waits for it.
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    let whole = match reactor::can_populate() {
        true => Ok(()),
        false => rustix::mm::mlockall(MlockAllFlags::CURRENT),
    };
    let locked = whole.and_then(|()| rustix::mm::mlockall(flags));
    if let Err(error) = locked {
        tracing::warn!(%error, "memory is not locked: swap on a disk of this host may hang the server");
    }
    locked.is_ok()
}

/// The kernel ends a process when memory is short. If that is a server whose disks have swap or busy
/// file systems on them, no memory is ever freed again. What whoever started it chose stays.
fn avoid_oom_kill() {
    const PATH: &str = "/proc/self/oom_score_adj";
    let chosen = std::fs::read_to_string(PATH).is_ok_and(|text| text.trim() != "0");
    if !chosen && let Err(error) = std::fs::write(PATH, "-900") {
        tracing::debug!(%error, "oom_score_adj cannot be set");
    }
}

/// Each disk and each connection has a descriptor, and the usual limit is enough for a thousand, or
/// four thousand at most. Raises the limit as far as this process may, with the privilege beyond
/// its hard limit. Must be called before the reactors start: they size their file tables by it.
fn raise_open_files_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let limit_of = |maximum| rustix::process::Rlimit {
        current: maximum,
        maximum,
    };
    let target = limit.maximum.map(|maximum| maximum.max(OPEN_FILES_MIN));
    let raised = rustix::process::setrlimit(Resource::Nofile, limit_of(target))
        .or_else(|_| rustix::process::setrlimit(Resource::Nofile, limit_of(limit.maximum)));
    if let Err(error) = raised {
        tracing::debug!(%error, "the limit on open files cannot be raised");
    }
}

/// Has the end of standard input stop this server as SIGTERM does.
pub(super) fn stop_with_stdin() {
    std::thread::spawn(|| {
        // Whatever is written there, and whatever goes wrong.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let own = rustix::process::getpid();
        let _ = rustix::process::kill_process(own, rustix::process::Signal::TERM);
    });
}

/// The signals that stop the server: SIGTERM and SIGINT.
pub(super) struct StopSignal {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    is_put_back: bool,
}

impl StopSignal {
    pub(super) fn new() -> Result<Self> {
        let failed = |source: std::io::Error| {
            Failure::internal(format!("cannot wait for signals: {source}"))
        };
        Ok(StopSignal {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            is_put_back: false,
        })
    }

    /// Whether one has come. It counts once.
    pub(super) fn has_come(&mut self) -> bool {
        self.recv().now_or_never().is_some()
    }

    /// The one that came counts again: somebody else has to heed it.
    pub(super) fn put_back(&mut self) {
        self.is_put_back = true;
    }

    /// Waits for the next signal.
    pub(super) async fn recv(&mut self) {
        if std::mem::take(&mut self.is_put_back) {
            return;
        }
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
