//! A server that leaves: rings that close, the character device that is let go, and what becomes
//! of the disk and of the requests that were with the server.
//!
//! Linux 6.12 notices a server's exit by an idle tag that is cancelled, queue by queue; later
//! kernels by the release of the character device.

use crate::device::{Release, Tag};
use crate::kernel::{Kernel, RingId, TaskId};
use ublk::sys;

impl Kernel {
    /// Opens a character device for a process.
    pub(super) fn open(&mut self, id: u32, pid: i32) -> Result<(), i32> {
        let there = self.devices.get_mut(&id);
        let device = there
            .filter(|device| !device.deleted)
            .ok_or(-libc::ENOENT)?;
        if device.open {
            return Err(-libc::EBUSY);
        }
        device.open = true;
        device.opener = Some(pid);
        Ok(())
    }

    /// The last descriptor and mapping of a character device are gone.
    pub(super) fn closed(&mut self, id: u32) {
        let delay = self.release_delay;
        let by_release = self.profile.exit_by_release;
        let Some(device) = self.devices.get_mut(&id).filter(|device| device.open) else {
            return;
        };
        if by_release {
            device.release = Release::Closed;
            device.release_in = delay;
            device.info.server_pid = -1;
        } else {
            // Only commands wait for it: the state may still be that of a serving device.
            device.release = Release::StillOpen;
        }
        self.settle();
    }

    /// Closes a ring: its commands and its slots are gone.
    pub(super) fn ring_close(&mut self, ring: RingId) {
        let Some(state) = self.rings.remove(&ring) else {
            return;
        };
        let task = state.task;
        let ids: Vec<u32> = self.devices.keys().copied().collect();
        for id in ids {
            self.ring_leaves(id, ring, task);
        }
        for at in state.slots.into_iter().flatten() {
            self.pages_back(at);
        }
        self.settle();
    }

    /// Drops a device's commands on a ring that closes.
    fn ring_leaves(&mut self, id: u32, ring: RingId, task: TaskId) {
        let by_release = self.profile.exit_by_release;
        let delay = self.release_delay;
        let device = self.devices.get_mut(&id).expect("the device is there");
        let (mut noticed, disk) = (false, device.disk);
        let mut left = Vec::new();
        for (index, queue) in device.queues.iter_mut().enumerate() {
            if !by_release && queue.task != Some(task) {
                let given = |tag: &&Tag| tag.armed.is_some_and(|armed| armed.ring == ring);
                self.complaints.stuck += queue.tags.iter().filter(given).count() as u64;
                continue;
            }
            let mut here = false;
            for tag in &mut queue.tags {
                if tag.armed.is_some_and(|armed| armed.ring == ring) {
                    tag.armed = None;
                    here = true;
                }
            }
            if here && disk && !std::mem::replace(&mut queue.canceling, true) {
                left.push(index);
            }
            noticed |= here && disk;
        }
        if !noticed {
            return;
        }
        if by_release {
            for queue in &mut device.queues {
                queue.canceling = true;
            }
            return;
        }
        device.release_in = delay;
        device.exit_noticed = true;
        for queue in left {
            self.abandon(id, queue);
        }
    }

    /// Requests that a dead server had: to the next one, or to an error.
    fn abandon(&mut self, id: u32, queue: usize) {
        let device = self.devices.get_mut(&id).expect("the device is there");
        let reissues = device.reissues();
        let queue = &mut device.queues[queue];
        let mut failed = Vec::new();
        // Backwards: what is put in front comes out in the order of tags.
        for tag in queue
            .tags
            .iter_mut()
            .rev()
            .filter(|tag| tag.armed.is_none())
        {
            let Some(request) = tag.request.take() else {
                continue;
            };
            (tag.owned, tag.owed, tag.late_result) = (false, false, None);
            if reissues {
                self.complaints.reissued += 1;
                queue.waiting.push_front(request);
            } else {
                failed.push((request.client, Err(-libc::EIO)));
            }
        }
        self.answers.extend(failed);
    }

    /// 6.12: once nothing is with a server any more, the state follows the exit.
    pub(super) fn exit_goes_on(&mut self, id: u32) -> bool {
        let device = self.devices.get_mut(&id).expect("the device is there");
        if !device.exit_noticed || device.release_in > 0 || device.started() > 0 {
            return false;
        }
        device.exit_noticed = false;
        if device.has(sys::F_RECOVERY) {
            device.info.state = sys::STATE_QUIESCED;
        } else {
            self.disk_down(id);
        }
        self.cancel_idle(id);
        true
    }

    /// 6.12: the block layer's timeout looks at requests whose server may be dead, where no idle
    /// tag told it.
    pub(super) fn time_out(&mut self, id: u32) {
        let Some(device) = self.devices.get_mut(&id) else {
            return;
        };
        if !self.profile.queue_tasks || !device.disk {
            return;
        }
        let rings = &self.rings;
        let alive = |tag: &Tag| rings.values().any(|ring| Some(ring.task) == tag.task);
        let mut dead = Vec::new();
        for (index, queue) in device.queues.iter_mut().enumerate() {
            let stuck = |tag: &Tag| tag.request.is_some() && !alive(tag);
            if queue.tags.iter().any(stuck) && !std::mem::replace(&mut queue.canceling, true) {
                dead.push(index);
            }
        }
        device.exit_noticed |= !dead.is_empty();
        for queue in dead {
            self.abandon(id, queue);
        }
        self.settle();
    }

    /// The character device is released: the disk is without a server.
    pub(super) fn server_gone(&mut self, id: u32) {
        if !self.devices[&id].disk {
            // It keeps what it knows of the server: nobody can fetch it any more.
            return;
        }
        for queue in 0..self.devices[&id].queues.len() {
            self.abandon(id, queue);
        }
        self.forget_server(id);
        let device = self.devices.get_mut(&id).expect("the device is there");
        if !device.has(sys::F_RECOVERY) {
            self.disk_down(id);
        } else if device.has(sys::F_RECOVERY_FAIL_IO) {
            device.info.state = sys::STATE_FAIL_IO;
        } else {
            device.info.state = sys::STATE_QUIESCED;
        }
    }

    /// Tags as nobody ever fetched them.
    pub(super) fn forget_server(&mut self, id: u32) {
        let device = self.devices.get_mut(&id).expect("the device is there");
        for queue in &mut device.queues {
            queue.task = None;
            for tag in &mut queue.tags {
                *tag = Tag::default();
            }
        }
    }
}
