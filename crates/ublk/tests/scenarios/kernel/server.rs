//! Tasks of a server, and the character device they share.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use io_uring::{IoUring, opcode, squeue, types};
use ublk::sys::{self, IoCommand, IoDescriptor};
use zerocopy::{FromBytes, IntoBytes};

use super::super::SLOTS;

/// Bytes between the descriptors of two queues.
const QUEUE_DESCRIPTORS_BYTES: u64 = sys::DEPTH_MAX as u64 * size_of::<IoDescriptor>() as u64;

/// An open character device with the descriptors of its queues.
pub(super) struct CharDevice {
    pub(super) fd: OwnedFd,
    queues: Vec<Mapping>,
}

struct Mapping {
    at: *const u8,
    len: usize,
}

// SAFETY: the mapping is memory without thread affinity.
unsafe impl Send for Mapping {}
// SAFETY: it is only read, by volatile reads.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is what `mmap` returned, and nothing points into it any more.
        let _ = unsafe { rustix::mm::munmap(self.at.cast_mut().cast(), self.len) };
    }
}

impl CharDevice {
    /// Opens it and maps the descriptors of each queue.
    pub(super) fn open(device: u32, queues: u16, depth: u16) -> Result<CharDevice, i32> {
        let path = format!("/dev/ublkc{device}");
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, rustix::fs::Mode::empty());
        let fd = fd.map_err(|errno| -errno.raw_os_error())?;
        let len = (usize::from(depth) * size_of::<IoDescriptor>()).next_multiple_of(4096);
        let map = |queue: u16| {
            let offset = u64::from(queue) * QUEUE_DESCRIPTORS_BYTES;
            // SAFETY: a new mapping at an address of the kernel's choice changes no memory.
            let mapped = unsafe {
                rustix::mm::mmap(
                    std::ptr::null_mut(),
                    len,
                    rustix::mm::ProtFlags::READ,
                    rustix::mm::MapFlags::SHARED,
                    &fd,
                    offset,
                )
            };
            let at = mapped.map_err(|errno| -errno.raw_os_error())?;
            Ok(Mapping {
                at: at.cast_const().cast(),
                len,
            })
        };
        let queues = (0..queues).map(map).collect::<Result<_, i32>>()?;
        Ok(CharDevice { fd, queues })
    }

    pub(super) fn descriptor(&self, queue: u16, tag: u16) -> IoDescriptor {
        let size = size_of::<IoDescriptor>();
        let from = self.queues[usize::from(queue)]
            .at
            .wrapping_add(usize::from(tag) * size);
        // SAFETY: the mapping has room for the descriptors of all tags, and any bytes are one.
        let bytes = unsafe { from.cast::<[u8; 24]>().read_volatile() };
        IoDescriptor::read_from_bytes(&bytes).expect("as long as one")
    }
}

type Completions = Vec<(u64, i32)>;

enum Job {
    Command(RawFd, u32, u64, IoCommand, u64),
    Fixed(RawFd, u16, u32, u32, bool, u64),
    Collect,
}

/// A thread and its ring.
pub(super) struct Task {
    jobs: Option<Sender<(Job, Sender<Completions>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Task {
    pub(super) fn begin() -> Task {
        let (jobs, inbox) = channel::<(Job, Sender<Completions>)>();
        let thread = std::thread::spawn(move || {
            let mut ring = new_ring();
            for (job, reply) in inbox {
                let _ = reply.send(run_job(&mut ring, job));
            }
            // The ring is closed here, by the thread that it belongs to.
        });
        Task {
            jobs: Some(jobs),
            thread: Some(thread),
        }
    }

    fn execute(&mut self, job: Job) -> Completions {
        let (reply, completions) = channel();
        let jobs = self.jobs.as_ref().expect("the task runs");
        jobs.send((job, reply)).expect("the task runs");
        completions.recv().expect("the task answers")
    }

    /// Gives a command; what ended meanwhile.
    pub(super) fn command(
        &mut self,
        fd: RawFd,
        opcode: u32,
        sqe_addr: u64,
        command: IoCommand,
        key: u64,
    ) -> Completions {
        self.execute(Job::Command(fd, opcode, sqe_addr, command, key))
    }

    /// Runs a fixed operation to its end: its result, and what else ended.
    pub(super) fn fixed(
        &mut self,
        fd: RawFd,
        slot: u16,
        at: u32,
        len: u32,
        into: bool,
        key: u64,
    ) -> (i32, Completions) {
        let mut completions = self.execute(Job::Fixed(fd, slot, at, len, into, key));
        let own = completions.iter().position(|&(other, _)| other == key);
        let (_, result) = completions.remove(own.expect("it was waited for"));
        (result, completions)
    }

    pub(super) fn collect(&mut self) -> Completions {
        self.execute(Job::Collect)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.jobs = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn new_ring() -> IoUring {
    let ring = IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_defer_taskrun()
        .setup_cqsize(256)
        .build(64)
        .expect("a ring can be set up");
    ring.submitter()
        .register_buffers_sparse(SLOTS.into())
        .expect("a table of buffers can be registered");
    ring
}

fn run_job(ring: &mut IoUring, job: Job) -> Completions {
    let mut awaited = None;
    match job {
        Job::Command(fd, opcode, sqe_addr, command, key) => {
            let mut payload = [0; 16];
            payload.copy_from_slice(command.as_bytes());
            let entry = opcode::UringCmd16::new(types::Fd(fd), opcode).cmd(payload);
            let mut entry = entry.build().user_data(key);
            let addr = (&raw mut entry).cast::<u8>().wrapping_add(16);
            // SAFETY: an entry is the 64 bytes that the kernel reads, and 16 of them further on
            // is the address field.
            unsafe { addr.cast::<u64>().write_unaligned(sqe_addr) };
            push(ring, &entry);
        }
        Job::Fixed(fd, slot, at, len, into, key) => {
            let fd = types::Fd(fd);
            let entry = if into {
                let to = at as usize as *mut u8;
                opcode::ReadFixed::new(fd, to, len, slot).offset(0).build()
            } else {
                let from = at as usize as *const u8;
                opcode::WriteFixed::new(fd, from, len, slot)
                    .offset(0)
                    .build()
            };
            push(ring, &entry.user_data(key));
            awaited = Some(key);
        }
        Job::Collect => {}
    }
    let mut completions = Vec::new();
    loop {
        let wait = usize::from(awaited.is_some());
        enter(ring, wait);
        completions.extend(
            ring.completion()
                .map(|done| (done.user_data(), done.result())),
        );
        match awaited {
            Some(key) if !completions.iter().any(|&(other, _)| other == key) => {}
            _ => return completions,
        }
    }
}

fn push(ring: &mut IoUring, entry: &squeue::Entry) {
    // SAFETY: what the entry names (the tag's buffer, a file) is kept by the world until the
    // ring is gone.
    unsafe { ring.submission().push(entry) }.expect("the ring has room");
}

/// Submits, and lets the driver's work for this task run.
fn enter(ring: &mut IoUring, wait: usize) {
    const GETEVENTS: u32 = 1;
    let submit = {
        let mut queue = ring.submission();
        queue.sync();
        queue.len() as u32
    };
    let submitter = ring.submitter();
    // SAFETY: no argument is passed beside the flags.
    let entered =
        unsafe { submitter.enter::<libc::sigset_t>(submit, wait as u32, GETEVENTS, None) };
    match entered {
        Err(error) if error.raw_os_error() != Some(libc::EINTR) => {
            panic!("the ring {} failed: {error}", ring.as_raw_fd())
        }
        _ => {}
    }
}
