//! The exit of a server: its rings and the character device close, and the driver decides what
//! happens to the disk and to the requests that the server had.
//!
//! Linux 6.12 notices a server's exit by an idle tag that is cancelled, queue by queue; later
//! kernels by the release of the character device.

use crate::device::{Release, Tag};
use crate::device::{RingId, TaskId};
use crate::kernel::Kernel;
use ublk::sys;

impl Kernel {
    /// Opens a character device for a process.
    pub(super) fn open(&mut self, id: u32, pid: i32) -> Result<(), i32> {
        let found = self.devices.get_mut(&id);
        let device = found
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
    pub(super) fn on_char_close(&mut self, id: u32) {
        let delay = self.release_delay;
        let by_release = self.profile.exit_on_release;
        let Some(device) = self.devices.get_mut(&id).filter(|device| device.open) else {
            return;
        };
        if by_release {
            device.release = Release::Closed;
            device.release_in = delay;
            device.info.server_pid = -1;
        } else {
            // Only control commands see this; the state may still be that of a live device.
            device.release = Release::StillOpen;
        }
        self.run_until_idle();
    }

    /// Closes a ring: its commands and its buffer slots go with it.
    pub(super) fn close_ring(&mut self, ring: RingId) {
        let Some(state) = self.rings.remove(&ring) else {
            return;
        };
        let task = state.task;
        let ids: Vec<u32> = self.devices.keys().copied().collect();
        for id in ids {
            self.drop_ring_commands(id, ring, task);
        }
        for at in state.slots.into_iter().flatten() {
            self.release_pages(at);
        }
        self.run_until_idle();
    }

    /// Drops a device's commands on a ring that closes.
    fn drop_ring_commands(&mut self, id: u32, ring: RingId, task: TaskId) {
        let by_release = self.profile.exit_on_release;
        let delay = self.release_delay;
        let device = self.devices.get_mut(&id).expect("the device is there");
        let (mut noticed, disk) = (false, device.disk);
        let mut canceled = Vec::new();
        for (index, queue) in device.queues.iter_mut().enumerate() {
            if !by_release && queue.task != Some(task) {
                let on_ring = |tag: &&Tag| tag.armed.is_some_and(|armed| armed.ring == ring);
                self.stats.uncancelled += queue.tags.iter().filter(on_ring).count() as u64;
                continue;
            }
            let mut dropped = false;
            for tag in &mut queue.tags {
                if tag.armed.is_some_and(|armed| armed.ring == ring) {
                    tag.armed = None;
                    dropped = true;
                }
            }
            if dropped && disk && !std::mem::replace(&mut queue.canceling, true) {
                canceled.push(index);
            }
            noticed |= dropped && disk;
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
        for queue in canceled {
            self.abort_queue(id, queue);
        }
    }

    /// Requeues the requests of a dead server for the next one, or fails them.
    fn abort_queue(&mut self, id: u32, queue: usize) {
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
            (tag.owned, tag.awaits_get_data, tag.deferred_result) = (false, false, None);
            if reissues {
                self.stats.reissued += 1;
                queue.waiting.push_front(request);
            } else {
                failed.push((request.client, Err(-libc::EIO)));
            }
        }
        self.answers.extend(failed);
    }

    /// 6.12: changes the state once the server has no request any more.
    pub(super) fn advance_exit(&mut self, id: u32) -> bool {
        let device = self.devices.get_mut(&id).expect("the device is there");
        if !device.exit_noticed || device.release_in > 0 || device.started_requests() > 0 {
            return false;
        }
        device.exit_noticed = false;
        if device.has(sys::F_RECOVERY) {
            device.info.state = sys::STATE_QUIESCED;
        } else {
            self.remove_disk(id);
        }
        self.cancel_idle_tags(id);
        true
    }

    /// 6.12: the block layer's timeout looks at requests whose server may be dead, where no idle
    /// tag told it.
    pub(super) fn on_request_timeout(&mut self, id: u32) {
        let Some(device) = self.devices.get_mut(&id) else {
            return;
        };
        if !self.profile.task_per_queue || !device.disk {
            return;
        }
        let rings = &self.rings;
        let has_task = |tag: &Tag| rings.values().any(|ring| Some(ring.task) == tag.task);
        let mut dead = Vec::new();
        for (index, queue) in device.queues.iter_mut().enumerate() {
            let stuck = |tag: &Tag| tag.request.is_some() && !has_task(tag);
            if queue.tags.iter().any(stuck) && !std::mem::replace(&mut queue.canceling, true) {
                dead.push(index);
            }
        }
        device.exit_noticed |= !dead.is_empty();
        for queue in dead {
            self.abort_queue(id, queue);
        }
        self.run_until_idle();
    }

    /// The character device is released: the disk has no server.
    pub(super) fn on_server_exit(&mut self, id: u32) {
        if !self.devices[&id].disk {
            // The tags keep their state: no server can fetch them any more.
            return;
        }
        for queue in 0..self.devices[&id].queues.len() {
            self.abort_queue(id, queue);
        }
        self.reset_tags(id);
        let device = self.devices.get_mut(&id).expect("the device is there");
        if !device.has(sys::F_RECOVERY) {
            self.remove_disk(id);
        } else if device.has(sys::F_RECOVERY_FAIL_IO) {
            device.info.state = sys::STATE_FAIL_IO;
        } else {
            device.info.state = sys::STATE_QUIESCED;
        }
    }

    /// Resets all tags to their state before the first FETCH.
    pub(super) fn reset_tags(&mut self, id: u32) {
        let device = self.devices.get_mut(&id).expect("the device is there");
        for queue in &mut device.queues {
            queue.task = None;
            for tag in &mut queue.tags {
                *tag = Tag::default();
            }
        }
    }
}
