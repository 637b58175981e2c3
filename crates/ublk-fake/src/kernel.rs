//! The state that all rules work on: devices, rings, control commands that wait, and counters of
//! what servers did wrong.
//!
//! Deterministic: nothing here reads a clock, starts a thread or draws a random number. Whatever
//! can proceed does so at once ([`Kernel::run_until_idle`]); what real kernels do late happens
//! after a count of control commands, not of time.

use std::collections::BTreeMap;

use crate::device::{ClientId, Device, RingId, TaskId};
use crate::profile::Profile;

/// Identifies a control command that waits.
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
pub(super) struct PendingControl {
    pub(super) device: u32,
    pub(super) reason: WaitReason,
}

/// What a control command waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum WaitReason {
    /// For every tag to be fetched; then the disk starts, served by this process.
    Start(i32),
    /// For every tag to be fetched; then the disk is live again.
    EndRecovery(i32),
    /// For all requests of the disk to complete.
    Stop,
    /// For all requests to complete; then the device is deleted. Whether to wait for its release.
    Delete(bool),
    /// For the character device to be closed.
    Gone,
}

/// Counters of the driver, most of them of what servers did wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverStats {
    /// Writes answered with zero bytes: the kernel sends the whole again, for ever.
    pub zero_results: u64,
    /// Results of more bytes than were asked for.
    pub oversized_results: u64,
    /// Requests that failed because their buffer slot was taken; the server never saw them.
    pub slot_failures: u64,
    /// Request commands refused with an error.
    pub refused: u64,
    /// What makes the kernel warn and do something that makes no sense; the fake refuses it.
    pub warnings: u64,
    /// Commands that were not cancelled with their ring (6.12): they keep the device open.
    pub uncancelled: u64,
    /// Requests handed to a server again after a short result.
    pub requeued: u64,
    /// Requests of a dead server handed to its successor.
    pub reissued: u64,
}

/// The state of the driver.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) profile: Profile,
    /// Processors of the machine: a device has no more queues.
    pub(super) processors: u16,
    pub(super) devices: BTreeMap<u32, Device>,
    pub(super) rings: BTreeMap<RingId, RingState>,
    ring_next: u32,
    pub(super) pending_controls: BTreeMap<ControlId, PendingControl>,
    pub(super) control_results: BTreeMap<ControlId, i32>,
    control_next: u64,
    pub(super) client_next: u64,
    /// Requests that ended: the bytes of a read, or a negated errno.
    pub(super) answers: Vec<(ClientId, Result<Vec<u8>, i32>)>,
    pub(super) stats: DriverStats,
    /// How late the stages of a release show, in control commands.
    pub(super) release_delay: u32,
}

impl Kernel {
    pub(super) fn new(profile: Profile) -> Kernel {
        Kernel {
            profile,
            processors: 8,
            devices: BTreeMap::new(),
            rings: BTreeMap::new(),
            ring_next: 0,
            pending_controls: BTreeMap::new(),
            control_results: BTreeMap::new(),
            control_next: 0,
            client_next: 0,
            answers: Vec::new(),
            stats: DriverStats::default(),
            release_delay: 0,
        }
    }

    /// A ring of a task, without a buffer table.
    pub(super) fn open_ring(&mut self, task: TaskId) -> RingId {
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

    pub(super) fn wait(&mut self, device: u32, reason: WaitReason) -> ControlId {
        let id = ControlId(self.control_next);
        self.control_next += 1;
        self.pending_controls
            .insert(id, PendingControl { device, reason });
        id
    }

    /// Does everything that needs no event from outside.
    pub(super) fn run_until_idle(&mut self) {
        loop {
            let ids: Vec<u32> = self.devices.keys().copied().collect();
            let mut progress = false;
            for id in ids {
                progress |= self.dispatch(id);
                progress |= self.advance_release(id);
            }
            progress |= self.advance_controls();
            if !progress {
                return;
            }
        }
    }
}
