//! Keeps a program's memory beyond its exec, so that it is taken apart beside the next program, and not before it.
//!
//! `execve` gives the old program's memory back before the new one's first instruction: tens of milliseconds where much of
//! it is locked. A second process that shares the memory (`CLONE_VM`) has it outlive the exec, and gives it back when it
//! ends, on another processor. It has no descriptors but one, takes no signals, runs no code but two system calls,
//! and ends with the program whose memory it keeps, by exec or otherwise.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Of the second process, which calls nothing that needs more.
const STACK_BYTES: usize = 16 << 10;

/// To close its descriptors takes microseconds, but for files of a network that is away.
const CLOSED_WITHIN: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// A process that shares this one's memory until this one executes another program or ends. Dropping it ends it.
#[derive(Debug)]
pub struct MemoryKeeper {
    /// It ends when this end of a pipe is closed, which exec does.
    leave: Option<OwnedFd>,
    process: Pid,
    /// In use until the process has ended.
    _stack: Vec<Aligned>,
}

/// As the machine wants the top of a stack to be.
#[repr(align(16))]
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "memory for another process")]
struct Aligned([u8; 16]);

impl MemoryKeeper {
    /// Starts it. When this returns it has no descriptor of this process any more.
    ///
    /// # Errors
    /// The kernel's, if there can be no more processes or descriptors.
    pub fn start() -> io::Result<MemoryKeeper> {
        let (stay, leave) = pipe_with(PipeFlags::CLOEXEC)?;
        let (ready, started) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut stack = vec![Aligned([0; 16]); STACK_BYTES / 16];
        let process = clone_sharing_memory(&mut stack, stay.as_raw_fd())?;
        let keeper = MemoryKeeper {
            leave: Some(leave),
            process,
            _stack: stack,
        };
        drop(started);
        // Its copy of the other end is closed with all others.
        let mut closed = [PollFd::new(&ready, PollFlags::IN)];
        match poll(&mut closed, Some(&CLOSED_WITHIN))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(keeper),
        }
    }

    /// For the program that this one executes: its child, which it has to wait for once.
    pub fn process(&self) -> i32 {
        self.process.as_raw_nonzero().get()
    }
}

impl Drop for MemoryKeeper {
    fn drop(&mut self) {
        drop(self.leave.take());
        wait_for_keeper(self.process());
    }
}

/// Ends the [`MemoryKeeper`] of the program that was executed before this one, also one that was stopped, and forgets it when
/// the memory is gone. Nothing happens if no child of this process has that name.
pub fn wait_for_keeper(process: i32) {
    let Some(process) = Pid::from_raw(process) else {
        return;
    };
    // Only a child's name cannot have become another process's.
    if matches!(waitpid(Some(process), WaitOptions::NOHANG), Ok(None)) {
        let _ = kill_process(process, Signal::KILL);
        while waitpid(Some(process), WaitOptions::empty()).is_err_and(|e| e == Errno::INTR) {}
    }
}

/// Starts a process in this one's memory that closes all its descriptors but `stay`, and ends when nobody can write to
/// that any more.
fn clone_sharing_memory(stack: &mut [Aligned], stay: RawFd) -> io::Result<Pid> {
    let top = stack.as_mut_ptr_range().end.cast::<c_void>();
    let argument = usize::try_from(stay).map_err(io::Error::other)? as *mut c_void;
    // A signal that came to the new process would run this one's handlers on its memory.
    let _blocked = BlockedSignals::all();
    // SAFETY: the stack is aligned, large enough for `keep`, and lives until the process has ended (`Drop`), or as long as the
    // memory itself. `keep` touches no memory but that stack.
    let process = unsafe { libc::clone(keep, top, libc::CLONE_VM | libc::SIGCHLD, argument) };
    match Pid::from_raw(process).filter(|_| process > 0) {
        Some(process) => Ok(process),
        None => Err(io::Error::last_os_error()),
    }
}

/// This thread takes no signal as long as it lives.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn all() -> BlockedSignals {
        // SAFETY: a set of signals is plain data; the calls below fill both.
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
        // SAFETY: the set is there.
        unsafe { libc::sigfillset(&raw mut all) };
        // SAFETY: both sets are there, and it is this thread's own mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
        BlockedSignals(before)
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        let before = &raw const self.0;
        // SAFETY: the set is there, and it is this thread's own mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
    }
}

/// What the second process runs. It has the thread-local data of the thread that made it, which waits until descriptors
/// are closed: from then on nothing here fails, so nothing writes there.
extern "C" fn keep(stay: *mut c_void) -> c_int {
    let stay = stay as usize as RawFd;
    let mut byte = 0_u8;
    if close_range(0, stay - 1) && close_range(stay + 1, RawFd::MAX) {
        // SAFETY: the byte is on this stack.
        unsafe { libc::syscall(libc::SYS_read, stay, &raw mut byte, 1) };
    }
    // SAFETY: ends this process, and runs nothing of the program's.
    unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    0
}

/// Closes descriptors of the process that calls it. False: it could not, on a kernel or below a filter that has no such call.
fn close_range(first: RawFd, last: RawFd) -> bool {
    // SAFETY: the second process has copies of its own, which nobody there uses.
    first > last || unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn descriptors(process: i32) -> usize {
        let open = std::fs::read_dir(format!("/proc/{process}/fd"));
        open.map_or(0, Iterator::count)
    }

    #[test]
    fn it_shares_memory_has_one_descriptor_and_ends_when_it_is_dropped() {
        let keeper = MemoryKeeper::start().unwrap();
        let process = keeper.process();
        assert_ne!(process, rustix::process::getpid().as_raw_nonzero().get());
        assert_eq!(descriptors(process), 1);
        // What is written here from now on is seen there.
        let word = AtomicU64::new(0);
        word.store(0x5eed_f00d, Ordering::SeqCst);
        let memory = std::fs::File::open(format!("/proc/{process}/mem")).unwrap();
        let mut found = [0; 8];
        let place = std::ptr::from_ref(&word) as u64;
        memory.read_exact_at(&mut found, place).unwrap();
        assert_eq!(u64::from_ne_bytes(found), 0x5eed_f00d);
        drop(keeper);
        assert!(!std::path::Path::new(&format!("/proc/{process}")).exists());
    }

    #[test]
    fn it_takes_no_signal_that_can_be_refused() {
        let keeper = MemoryKeeper::start().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", keeper.process())).unwrap();
        let blocked = status
            .lines()
            .find_map(|line| line.strip_prefix("SigBlk:\t"));
        let blocked = u64::from_str_radix(blocked.unwrap(), 16).unwrap();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1] {
            assert!(blocked >> (signal - 1) & 1 == 1, "{signal}");
        }
    }
}
