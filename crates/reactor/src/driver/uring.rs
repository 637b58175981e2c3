//! The ring driver: one io_uring, entered by its thread alone.
//!
//! Completions of a turn are answered with one enter for everything that was queued meanwhile.
//! With `DEFER_TASKRUN` the kernel does this ring's work only inside that enter, so the thread
//! sleeps nowhere else.
//!
//! The completion queue holds what may complete between two enters without the kernel having to
//! allocate. Its budget: entries needed = armed commands + other operations in flight + 1 (the
//! wake descriptor). A device's tag is either armed or has the operations of its request in
//! flight, so T tags on this ring whose requests move P pieces each need T x max(1, P) + 1: with
//! the kernel's limit of 65,536 entries that is 16,384 tags of three pieces. What goes beyond is
//! not lost: the kernel keeps it in a list (`IORING_FEAT_NODROP`, without which there is no ring)
//! and hands it out in later enters, at the price of an allocation each.

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::types::{Fd, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};

use super::interface::{BackendKind, Driver};
use crate::call::{COMMAND_PAYLOAD_BYTES, Call, CallTarget, CommandCall, FixedDirection};
use crate::error::{StartError, StartStep};

/// Keys of the driver's own; the core's keys never reach them (`core::armed`). The key of a `close`
/// has the descriptor in its lower half.
const KEY_WAKE: u64 = u64::MAX;
const KEY_IGNORE: u64 = u64::MAX - 1;
const KEYS_OF_CLOSES: u64 = 0xffff_ffff << 32;

/// Descriptors that can be named by slot; what is beyond is named by number.
const FIXED_MAX: u32 = 8192;

/// How the ring was set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setup {
    Deferred,
    Cooperative,
    Plain,
}

pub(crate) struct Uring {
    ring: IoUring,
    fixed_max: u32,
    /// One more than the highest slot that ever was in use.
    fixed_used: u32,
    /// Whether there is a table of buffer slots.
    has_buffer_slots: bool,
    wake: Arc<OwnedFd>,
    /// Where the kernel puts the wake descriptor's count; unused but for being written to.
    wake_count: Box<u64>,
    wake_armed: bool,
    enters: u64,
    /// Results taken while the submission queue was full, for the next wait.
    stash: Vec<(u64, i32)>,
}

impl Uring {
    /// A ring of the calling thread, or why this host gives none.
    pub(crate) fn new(
        entries: u32,
        completions: u32,
        wake: Arc<OwnedFd>,
    ) -> Result<Uring, StartError> {
        let mut refused = io::Error::from(io::ErrorKind::Unsupported);
        for setup in [Setup::Deferred, Setup::Cooperative, Setup::Plain] {
            match build(setup, entries, completions) {
                Ok(ring) => {
                    if setup != Setup::Deferred {
                        tracing::info!(
                            ?setup,
                            %refused,
                            "io_uring is set up without IORING_SETUP_DEFER_TASKRUN, which costs \
                             more per request; Linux 6.1 or later has it"
                        );
                    }
                    return Uring::from_ring(ring, wake);
                }
                Err(error) => refused = error,
            }
        }
        let step = StartStep::Ring {
            entries,
            completions,
        };
        Err(StartError::new(step, refused))
    }

    fn from_ring(ring: IoUring, wake: Arc<OwnedFd>) -> Result<Uring, StartError> {
        // The wait's time-out argument and results that are never lost are needed (Linux 5.11).
        let params = ring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            let unsupported = io::Error::from(io::ErrorKind::Unsupported);
            return Err(StartError::new(StartStep::RingFeatures, unsupported));
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let wanted = limit.unwrap_or(u64::MAX).min(u64::from(FIXED_MAX)) as u32;
        let sparse =
            releases_files_at_once() && ring.submitter().register_files_sparse(wanted).is_ok();
        // Saves a descriptor lookup per enter where the kernel can (5.18).
        let _ = ring.submitter().register_ring_fd();
        Ok(Uring {
            ring,
            fixed_max: if sparse { wanted } else { 0 },
            fixed_used: 0,
            has_buffer_slots: false,
            wake,
            wake_count: Box::new(0),
            wake_armed: false,
            enters: 0,
            stash: Vec::new(),
        })
    }

    #[inline(always)]
    fn push(&mut self, entry: Entry) {
        // SAFETY: `start` passes on its caller's promise for the memory; the entries made
        // here point to nothing or to `wake_count`, which lives as long as the ring.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            // A clone, so that on the hot path the entry is built in the ring's memory only.
            self.push_when_full(&entry.clone());
        }
    }

    #[cold]
    fn push_when_full(&mut self, entry: &Entry) {
        loop {
            // Full: submit what is there. The kernel refuses for a moment where it has results
            // that do not fit; they are taken and kept for the next wait.
            self.enters += 1;
            if let Err(error) = self.ring.submit() {
                let raw = error.raw_os_error().unwrap_or_default();
                assert!(
                    matches!(raw, libc::EINTR | libc::EBUSY | libc::EAGAIN),
                    "io_uring_enter refuses a queue of valid entries: {error}"
                );
                let mut stash = std::mem::take(&mut self.stash);
                self.reap(&mut stash);
                self.stash = stash;
                if raw == libc::EAGAIN {
                    // The kernel is out of memory: other threads must free some first.
                    std::thread::yield_now();
                }
            }
            // SAFETY: as in `push`.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
        }
    }

    fn arm_wake(&mut self) {
        if self.wake_armed {
            return;
        }
        let to = (&raw mut *self.wake_count).cast::<u8>();
        let entry = opcode::Read::new(Fd(self.wake.as_raw_fd()), to, size_of::<u64>() as u32)
            .build()
            .user_data(KEY_WAKE);
        self.push(entry);
        self.wake_armed = true;
    }

    /// Submits what is queued, waits up to `timeout`, and takes results.
    fn enter(&mut self, timeout: Option<Duration>, out: &mut Vec<(u64, i32)>) -> io::Result<()> {
        out.append(&mut self.stash);
        let ready = !out.is_empty() || !self.ring.completion().is_empty();
        let want = usize::from(!ready && timeout != Some(Duration::ZERO));
        let timespec = timeout.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if let (1, Some(timespec)) = (want, &timespec) {
            args = args.timespec(timespec);
        }
        self.enters += 1;
        let entered = self.ring.submitter().submit_with_args(want, &args);
        self.reap(out);
        match entered {
            Ok(_) => Ok(()),
            // Time-out, a signal, or results that must be taken first: the caller enters again.
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    #[inline]
    fn reap(&mut self, out: &mut Vec<(u64, i32)>) {
        let mut woke_up = false;
        for completion in self.ring.completion() {
            let key = completion.user_data();
            if key < KEYS_OF_CLOSES {
                out.push((key, completion.result()));
            } else {
                woke_up |= key == KEY_WAKE;
                if key < KEY_IGNORE && completion.result() < 0 {
                    report_failed_close(key as u32, -completion.result());
                }
            }
        }
        if woke_up {
            self.wake_armed = false;
        }
    }
}

/// A file's last write may have failed in the `close`, or the descriptor is still open.
#[cold]
fn report_failed_close(fd: u32, errno: i32) {
    let error = io::Error::from_raw_os_error(errno);
    tracing::error!(fd, %error, "closing a descriptor failed (was it closed elsewhere?)");
    #[cfg(test)]
    tests::FAILED_CLOSES.set(Some((fd, errno)));
}

fn build(setup: Setup, entries: u32, completions: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::<Entry, cqueue::Entry>::builder();
    // The kernel refuses a completion queue that is the smaller one.
    builder.setup_cqsize(completions.max(entries)).setup_clamp();
    match setup {
        Setup::Deferred => {
            builder
                .setup_single_issuer()
                .setup_coop_taskrun()
                .setup_taskrun_flag();
            builder.setup_defer_taskrun();
        }
        Setup::Cooperative => {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }
        Setup::Plain => {}
    }
    builder.build(entries)
}

/// Whether the kernel releases a file once it has left the table of files. Before 6.13 it keeps
/// every file that leaves until all requests have ended that were submitted earlier, on whatever
/// file: a command that waits on one device would keep another device that was removed long ago.
fn releases_files_at_once() -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    (next(), next()) >= (Some(6), Some(13))
}

/// Builds an entry for a registered or a plain descriptor.
macro_rules! on {
    ($target:expr, |$fd:ident| $entry:expr) => {
        match $target.fixed {
            Some(slot) => {
                let $fd = Fixed(slot);
                $entry
            }
            None => {
                let $fd = Fd($target.fd);
                $entry
            }
        }
    };
}

/// Lengths in the interface have 32 bits; a longer call is cut, and continued by the core.
fn clamp(len: usize) -> u32 {
    len.min(1 << 30) as u32
}

fn entry_of(target: CallTarget, call: Call) -> Entry {
    match call {
        Call::Accept => on!(target, |fd| opcode::Accept::new(
            fd,
            std::ptr::null_mut(),
            std::ptr::null_mut()
        )
        .flags(libc::SOCK_CLOEXEC)
        .build()),
        Call::Recv { to, len, all } => {
            let flags = if all { libc::MSG_WAITALL } else { 0 };
            on!(target, |fd| opcode::Recv::new(fd, to, clamp(len))
                .flags(flags)
                .build())
        }
        Call::Send { msg } => {
            let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
            on!(target, |fd| opcode::SendMsg::new(fd, msg)
                .flags(flags)
                .build())
        }
        Call::Read { to, len, offset } => {
            on!(target, |fd| opcode::Read::new(fd, to, clamp(len))
                .offset(offset)
                .build())
        }
        Call::Write { from, len, offset } => {
            on!(target, |fd| opcode::Write::new(fd, from, clamp(len))
                .offset(offset)
                .build())
        }
        Call::Fixed {
            direction,
            offset,
            slot,
            at,
            len,
        } => fixed_entry(target, direction, offset, slot, at, clamp(len as usize)),
        Call::Command(call) => command_entry(0, target, call),
        Call::Sync { data_only } => {
            let flags = if data_only {
                FsyncFlags::DATASYNC
            } else {
                FsyncFlags::empty()
            };
            on!(target, |fd| opcode::Fsync::new(fd).flags(flags).build())
        }
        Call::Poll { events } => on!(target, |fd| opcode::PollAdd::new(fd, events).build()),
    }
}

/// An entry that carries a device command, in the kernel's layout (`struct io_uring_sqe`). Most entries
/// of a disk server are such, so each is written once, in the ring's memory.
#[repr(C)]
struct CommandEntry {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    /// The device's opcode.
    command: u32,
    unused: u32,
    addr: u64,
    len: u32,
    command_flags: u32,
    user_data: u64,
    buffer_and_personality: u32,
    splice_fd: i32,
    payload: [u8; COMMAND_PAYLOAD_BYTES],
}

/// The descriptor is a slot of the table of files (`IOSQE_FIXED_FILE`).
const FIXED_FILE: u8 = 1;

#[inline(always)]
fn command_entry(key: u64, target: CallTarget, call: CommandCall) -> Entry {
    let (fd, flags) = match target.fixed {
        Some(slot) => (slot as i32, FIXED_FILE),
        None => (target.fd, 0),
    };
    let entry = CommandEntry {
        opcode: opcode::UringCmd16::CODE,
        flags,
        ioprio: 0,
        fd,
        command: call.opcode,
        unused: 0,
        addr: call.sqe_addr.unwrap_or(0),
        len: 0,
        command_flags: 0,
        user_data: key,
        buffer_and_personality: 0,
        splice_fd: 0,
        payload: call.payload,
    };
    // SAFETY: both are the kernel's 64 bytes of an entry, without padding, and all bytes are valid.
    unsafe { std::mem::transmute::<CommandEntry, Entry>(entry) }
}

/// A slot's memory has no address here: the field holds the position within it.
fn fixed_entry(
    target: CallTarget,
    direction: FixedDirection,
    offset: u64,
    slot: u16,
    at: u64,
    len: u32,
) -> Entry {
    let at = std::ptr::without_provenance_mut::<u8>(at as usize);
    match direction {
        FixedDirection::Read => on!(target, |fd| opcode::ReadFixed::new(fd, at, len, slot)
            .offset(offset)
            .build()),
        FixedDirection::Write => on!(target, |fd| opcode::WriteFixed::new(fd, at, len, slot)
            .offset(offset)
            .build()),
    }
}

impl Driver for Uring {
    fn kind(&self) -> BackendKind {
        BackendKind::IoUring
    }

    fn register(&mut self, slot: u32, fd: RawFd) -> bool {
        let submitter = self.ring.submitter();
        let fixed = slot < self.fixed_max && submitter.register_files_update(slot, &[fd]).is_ok();
        if fixed {
            self.fixed_used = self.fixed_used.max(slot + 1);
        }
        fixed
    }

    fn unregister(&mut self, slot: u32, _fd: RawFd, fixed: bool) {
        if fixed {
            // It fails only for a slot outside the table, and this one was inside.
            let _ = self.ring.submitter().register_files_update(slot, &[-1]);
        }
    }

    unsafe fn start(&mut self, key: u64, target: CallTarget, call: Call) {
        let entry = entry_of(target, call).user_data(key);
        self.push(entry);
    }

    #[inline(always)]
    unsafe fn command(&mut self, key: u64, target: CallTarget, call: CommandCall) {
        let entry = command_entry(key, target, call);
        self.push(entry);
    }

    fn all_submitted(&mut self) -> bool {
        self.ring.submission().is_empty()
    }

    fn register_buffer_slots(&mut self, count: u16) -> io::Result<()> {
        let submitter = self.ring.submitter();
        submitter.register_buffers_sparse(u32::from(count))?;
        self.has_buffer_slots = true;
        Ok(())
    }

    fn enters(&self) -> u64 {
        self.enters
    }

    fn cancel(&mut self, key: u64) {
        let entry = opcode::AsyncCancel::new(key).build().user_data(KEY_IGNORE);
        self.push(entry);
    }

    fn close(&mut self, fd: OwnedFd) {
        let fd = fd.into_raw_fd();
        let key = KEYS_OF_CLOSES | fd as u64;
        self.push(opcode::Close::new(Fd(fd)).build().user_data(key));
    }

    fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<(u64, i32)>) -> io::Result<()> {
        self.arm_wake();
        self.enter(timeout, out)
    }
}

impl Uring {
    /// Ends the read of the wake descriptor: the kernel writes to memory of this value.
    fn disarm_wake(&mut self) {
        if self.wake_armed {
            self.cancel(KEY_WAKE);
        }
        let mut late = Vec::new();
        for _ in 0..100 {
            if !self.wake_armed
                || self
                    .enter(Some(Duration::from_millis(10)), &mut late)
                    .is_err()
            {
                break;
            }
        }
        if self.wake_armed {
            // Eight bytes that the kernel may still write to.
            Box::leak(std::mem::take(&mut self.wake_count));
        }
    }

    /// Empties the tables. The kernel would do so too, but only when it frees the ring, some time
    /// after its thread has ended; until then a device whose file or whose requests are in them
    /// cannot go.
    fn empty_tables(&mut self) {
        let none = vec![-1; self.fixed_used as usize];
        // Where it fails, the kernel does it later.
        let _ = self.ring.submitter().register_files_update(0, &none);
        if self.has_buffer_slots {
            let _ = self.ring.submitter().unregister_buffers();
        }
    }
}

#[cfg(test)]
impl Uring {
    /// Puts memory of this process into a buffer slot, as a device driver puts a request's.
    ///
    /// # Safety
    ///
    /// The memory stays mapped until the ring is closed, and nothing touches it while the ring uses
    /// it.
    pub(crate) unsafe fn fill_slot(&self, slot: u16, memory: libc::iovec) -> io::Result<()> {
        let submitter = self.ring.submitter();
        // SAFETY: the caller's promise.
        unsafe { submitter.register_buffers_update(u32::from(slot), &[memory], None) }
    }
}

impl Drop for Uring {
    /// Closes the ring. What is in flight, armed commands alone if all went well, the kernel
    /// cancels a little later, in a thread of its own, where devices no longer touch memory of this
    /// process; until this thread has ended they may (`Core::close_ring`).
    fn drop(&mut self) {
        self.disarm_wake();
        self.empty_tables();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::FromRawFd;

    use super::*;

    thread_local! {
        pub(super) static FAILED_CLOSES: Cell<Option<(u32, i32)>> = const { Cell::new(None) };
    }

    #[test]
    fn a_close_that_fails_is_reported_with_its_descriptor_and_errno() {
        let wake = crate::memfd(c"wake", 8).expect("a memory file");
        let mut ring = match Uring::new(8, 16, Arc::new(wake)) {
            Ok(ring) => ring,
            Err(error) => return println!("skipped: io_uring: {error}"),
        };
        let open = crate::memfd(c"file", 0).expect("a memory file");
        ring.close(open);
        ring.enter(Some(Duration::ZERO), &mut Vec::new())
            .expect("entered");
        assert_eq!(FAILED_CLOSES.get(), None);
        // SAFETY: no process has so many descriptors, so this one is nobody's.
        let never_open = unsafe { OwnedFd::from_raw_fd(i32::MAX) };
        ring.close(never_open);
        ring.enter(Some(Duration::ZERO), &mut Vec::new())
            .expect("entered");
        let failed = Some((i32::MAX as u32, libc::EBADF));
        assert_eq!(FAILED_CLOSES.get(), failed);
    }
}
