//! The state that all rules work on: devices, rings, control commands that wait, and what the
//! driver has to say against its servers.
//!
//! Deterministic: nothing here looks at a clock, a thread or a random number. Whatever can go on
//! goes on at once ([`Kernel::settle`]); what real kernels do late is late by a count of control
//! commands, not by time.

use std::collections::BTreeMap;

use crate::device::{ClientId, Device};
use crate::profile::Profile;

/// Names a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingId(pub(super) u32);

/// Names a task: a thread of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId(pub u32);

/// Names a control command that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControlId(pub(super) u64);

/// A slot of a ring's buffer table that holds a request's pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotUse {
    pub(super) device: u32,
    pub(super) queue: u16,
    pub(super) tag: u16,
}

/// A ring of a server.
#[derive(Debug)]
pub(super) struct RingState {
    pub(super) task: TaskId,
    pub(super) slots: Vec<Option<SlotUse>>,
    /// Ended commands: the server's key and the result.
    pub(super) completions: Vec<(u64, i32)>,
}

/// A control command that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) device: u32,
    pub(super) what: Waiting,
}

/// What a control command waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiting {
    /// Every tag is fetched; then the disk comes up for this process.
    Start(i32),
    /// Every tag is fetched; then the disk has a server again.
    EndRecovery(i32),
    /// The disk's requests are done.
    Stop,
    /// The disk's requests are done; then the device goes. Whether to wait until it is gone.
    Delete(bool),
    /// Nobody has the character device open.
    Gone,
}

/// What the driver counted against its servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Complaints {
    /// Writes answered with zero bytes: the kernel sends the whole again, for ever.
    pub zero_writes: u64,
    /// Results of more bytes than were asked for.
    pub excess: u64,
    /// Requests that failed because no buffer slot was free, unseen by the server.
    pub unseen: u64,
    /// Request commands refused with an error.
    pub refused: u64,
    /// What makes the kernel warn and do something that makes no sense; the fake refuses it.
    pub warnings: u64,
    /// Commands that were not cancelled with their ring (6.12): they keep the device open.
    pub stuck: u64,
    /// Requests handed to a server again after a short result.
    pub requeued: u64,
    /// Requests of a dead server handed to its successor.
    pub reissued: u64,
}

/// The driver's state.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) profile: Profile,
    /// Processors of the machine: a device has no more queues.
    pub(super) processors: u16,
    pub(super) devices: BTreeMap<u32, Device>,
    pub(super) rings: BTreeMap<RingId, RingState>,
    ring_next: u32,
    pub(super) waits: BTreeMap<ControlId, Wait>,
    pub(super) ended: BTreeMap<ControlId, i32>,
    control_next: u64,
    pub(super) client_next: u64,
    /// Requests that ended: the bytes of a read, or a negated errno.
    pub(super) answers: Vec<(ClientId, Result<Vec<u8>, i32>)>,
    pub(super) complaints: Complaints,
    /// How late the stages of a release show, in control commands.
    pub(super) release_delay: u32,
    /// The next data fetch moves at most so many bytes.
    pub(super) get_data_limit: Option<usize>,
}

impl Kernel {
    pub(super) fn new(profile: Profile) -> Kernel {
        Kernel {
            profile,
            processors: 8,
            devices: BTreeMap::new(),
            rings: BTreeMap::new(),
            ring_next: 0,
            waits: BTreeMap::new(),
            ended: BTreeMap::new(),
            control_next: 0,
            client_next: 0,
            answers: Vec::new(),
            complaints: Complaints::default(),
            release_delay: 0,
            get_data_limit: None,
        }
    }

    /// A ring of a task, without a buffer table.
    pub(super) fn ring_open(&mut self, task: TaskId) -> RingId {
        let id = RingId(self.ring_next);
        self.ring_next += 1;
        let ring = RingState {
            task,
            slots: Vec::new(),
            completions: Vec::new(),
        };
        self.rings.insert(id, ring);
        id
    }

    pub(super) fn ring(&mut self, id: RingId) -> &mut RingState {
        self.rings.get_mut(&id).expect("the ring is open")
    }

    /// Ends a command, unless its ring is gone.
    pub(super) fn post(&mut self, ring: RingId, key: u64, result: i32) {
        if let Some(ring) = self.rings.get_mut(&ring) {
            ring.completions.push((key, result));
        }
    }

    pub(super) fn wait(&mut self, device: u32, what: Waiting) -> ControlId {
        let id = ControlId(self.control_next);
        self.control_next += 1;
        self.waits.insert(id, Wait { device, what });
        id
    }

    /// Does all that can be done without anybody's help.
    pub(super) fn settle(&mut self) {
        loop {
            let ids: Vec<u32> = self.devices.keys().copied().collect();
            let mut moved = false;
            for id in ids {
                moved |= self.dispatch(id);
                moved |= self.release_goes_on(id);
            }
            moved |= self.waits_go_on();
            if !moved {
                return;
            }
        }
    }
}
