//! The state of one device: its queues and tags, and the requests of its clients.
//!
//! Data only; the rules are in the files beside this one. Invariants: a tag is armed or owned,
//! never both; an owned tag has a request; a request has a tag or waits in one queue.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use crate::profile::Profile;
use ublk::sys::{self, DeviceInfo, Params};

/// Identifies a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingId(pub(super) u32);

/// Identifies a task: a thread of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId(pub u32);

/// The server's memory could not be reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault;

/// A command that the driver keeps until there is work for its tag.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArmedCommand {
    pub(super) ring: RingId,
    /// The server's own name for the command.
    pub(super) key: u64,
}

/// Where `AUTO_BUF_REG` puts the next request's pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct AutoSlot {
    pub(super) slot: u16,
    pub(super) fallback: bool,
}

/// One tag, and who owns it.
#[derive(Debug, Default)]
pub(super) struct Tag {
    /// The command that the driver holds for it.
    pub(super) armed: Option<ArmedCommand>,
    /// The server owns it.
    pub(super) owned: bool,
    /// The server was told of a write and has not asked for its data yet.
    pub(super) awaits_get_data: bool,
    /// The server asked for the data of its request.
    pub(super) fetched: bool,
    /// The task that fetched it.
    pub(super) task: Option<TaskId>,
    /// Where the server's buffer is.
    pub(super) addr: u64,
    pub(super) auto: Option<AutoSlot>,
    /// Where the driver registered the pages by itself; the commit on that ring unregisters them.
    pub(super) auto_slot_in_use: Option<(RingId, u16)>,
    /// Buffer slots that refer to the pages of its request.
    pub(super) page_refs: u32,
    /// The result of a commit that waits until no slot refers to the pages.
    pub(super) deferred_result: Option<i32>,
    pub(super) request: Option<Request>,
    /// The last descriptor's flags, beside what the request says.
    pub(super) needs_register: bool,
    /// Fetched since the last reset.
    pub(super) ready: bool,
}

impl Tag {
    /// Whether it can carry a new request.
    pub(super) fn is_free(&self) -> bool {
        self.armed.is_some() && self.request.is_none()
    }
}

/// One hardware queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) tags: Vec<Tag>,
    /// The queue's task, where queues have one.
    pub(super) task: Option<TaskId>,
    /// New requests are held back: the server is leaving.
    pub(super) canceling: bool,
    /// Requests without a tag.
    pub(super) waiting: VecDeque<Request>,
}

impl Queue {
    pub(super) fn is_ready(&self) -> bool {
        self.tags.iter().all(|tag| tag.ready)
    }
}

/// How far the release of a character device has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    /// None is in progress.
    Idle,
    /// The last descriptor is closed, and no command shows it yet.
    Closed,
    /// The state is the one after the server's exit, but the device still counts as open.
    StillOpen,
}

/// A device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) info: DeviceInfo,
    pub(super) params: Params,
    pub(super) queues: Vec<Queue>,
    /// The process that has the character device open.
    pub(super) opener: Option<i32>,
    /// The character device counts as open.
    pub(super) open: bool,
    pub(super) release: Release,
    /// Commands until the next stage of the release shows.
    pub(super) release_in: u32,
    /// There is a disk.
    pub(super) disk: bool,
    /// There was one, and somebody may still have it open.
    pub(super) used: bool,
    /// Clients that have the disk open.
    pub(super) clients: u32,
    /// STOP has begun: no new requests are is_fetched.
    pub(super) stopping: bool,
    pub(super) block_open: bool,
    pub(super) deleted: bool,
    /// 6.12: the server's exit was noticed, and the queues must drain before the state changes.
    pub(super) exit_noticed: bool,
    /// What holds the descriptors.
    pub(super) memory: OwnedFd,
    /// The inode of `memory`.
    pub(super) inode: u64,
}

/// Bytes between the descriptors of two tags.
pub(super) fn descriptor_stride(info: &DeviceInfo) -> u64 {
    match info.descriptor_bytes {
        0 => size_of::<sys::IoDescriptor>() as u64,
        bytes => u64::from(bytes),
    }
}

/// Bytes that the descriptors of one queue take.
pub(super) fn queue_descriptors_bytes(info: &DeviceInfo) -> u64 {
    u64::from(sys::DEPTH_MAX) * descriptor_stride(info)
}

impl Device {
    pub(super) fn has(&self, flag: u64) -> bool {
        self.info.flags & flag == flag
    }

    /// Whether the server moves the data itself, so that commands name no memory.
    pub(super) fn server_copies(&self) -> bool {
        self.info.flags & (sys::F_USER_COPY | sys::F_ZERO_COPY | sys::F_AUTO_BUFFER) != 0
    }

    pub(super) fn needs_get_data(&self) -> bool {
        self.has(sys::F_NEED_GET_DATA)
    }

    /// Every tag of every queue is fetched.
    pub(super) fn is_ready(&self) -> bool {
        self.queues.iter().all(Queue::is_ready)
    }

    /// Whether requests wait while there is no server.
    pub(super) fn queues_io(&self) -> bool {
        self.has(sys::F_RECOVERY) && !self.has(sys::F_RECOVERY_FAIL_IO)
    }

    pub(super) fn reissues(&self) -> bool {
        self.has(sys::F_RECOVERY | sys::F_RECOVERY_REISSUE)
    }

    /// Whether it has no server and may get another.
    pub(super) fn is_recoverable(&self) -> bool {
        matches!(self.info.state, sys::STATE_QUIESCED | sys::STATE_FAIL_IO)
    }

    /// Requests that have a tag.
    pub(super) fn started_requests(&self) -> usize {
        self.tags().filter(|tag| tag.request.is_some()).count()
    }

    pub(super) fn waiting_requests(&self) -> usize {
        self.queues.iter().map(|queue| queue.waiting.len()).sum()
    }

    pub(super) fn tags(&self) -> impl Iterator<Item = &Tag> {
        self.queues.iter().flat_map(|queue| &queue.tags)
    }

    /// Whether a FETCH comes too late: its queue, or the device, is ready already.
    pub(super) fn is_fetched(&self, profile: &Profile, queue: u16) -> bool {
        if profile.task_per_queue {
            self.queues[usize::from(queue)].is_ready()
        } else {
            self.is_ready()
        }
    }
}

/// What a client asks of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientOp {
    /// Read so many bytes.
    Read(u32),
    /// Write these.
    Write(Vec<u8>),
    /// Make earlier writes durable.
    Flush,
    /// Discard so many bytes.
    Discard(u32),
    /// Fill so many bytes with zeroes.
    WriteZeroes(u32),
}

/// Identifies a request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub(super) u64);

/// A client's request inside the driver.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) client: ClientId,
    pub(super) op: u8,
    pub(super) sector: u64,
    /// The pages, of a read or a write; else empty.
    pub(super) pages: Vec<u8>,
    /// Length in bytes.
    pub(super) len: usize,
    /// Bytes that are done.
    pub(super) done: usize,
    pub(super) fua: bool,
    /// A flush follows where the disk takes no FUA.
    pub(super) then_flush: bool,
    /// Results of zero bytes so far.
    pub(super) zero_results: u32,
}

impl Request {
    pub(super) fn has_data(&self) -> bool {
        matches!(self.op, sys::OP_READ | sys::OP_WRITE)
    }

    /// Bytes that are left.
    pub(super) fn bytes_left(&self) -> usize {
        self.len - self.done
    }
}
