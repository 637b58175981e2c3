//! Start, stop, deletion, quiesce and recovery, with what each waits for.

use crate::control::Outcome;
use crate::device::Release;
use crate::kernel::{ControlId, Kernel, WaitReason};
use ublk::sys;

impl Kernel {
    fn device(&mut self, id: u32) -> &mut crate::device::Device {
        self.devices.get_mut(&id).expect("the device was found")
    }

    pub(super) fn start(&mut self, id: u32, pid: i32) -> Outcome {
        if pid <= 0 || self.devices[&id].params.types & sys::PARAM_BASIC == 0 {
            return Outcome::Done(-libc::EINVAL);
        }
        self.wait_for(id, WaitReason::Start(pid))
    }

    pub(super) fn stop(&mut self, id: u32) -> Outcome {
        self.device(id).stopping = true;
        self.wait_for(id, WaitReason::Stop)
    }

    pub(super) fn delete(&mut self, id: u32, until_gone: bool) -> Outcome {
        self.device(id).stopping = true;
        self.wait_for(id, WaitReason::Delete(until_gone))
    }

    pub(super) fn start_recovery(&mut self, id: u32) -> Result<i32, i32> {
        let starts_over = self.profile.recovery_resets_tags;
        let device = self.device(id);
        if !device.has(sys::F_RECOVERY) {
            return Err(-libc::EINVAL);
        }
        let none_ready = !device.queues.iter().any(crate::device::Queue::is_ready);
        if starts_over && none_ready {
            return Err(-libc::EINVAL);
        }
        if device.open || !device.is_recoverable() {
            return Err(-libc::EBUSY);
        }
        if starts_over {
            self.reset_tags(id);
            let device = self.device(id);
            device
                .queues
                .iter_mut()
                .for_each(|queue| queue.canceling = false);
        }
        Ok(0)
    }

    pub(super) fn end_recovery(&mut self, id: u32, pid: i32) -> Outcome {
        self.wait_for(id, WaitReason::EndRecovery(pid))
    }

    /// Asks the server to exit while the disk stays.
    pub(super) fn quiesce(&mut self, id: u32) -> Result<i32, i32> {
        let device = self.device(id);
        if !device.has(sys::F_QUIESCE) {
            return Err(-libc::EOPNOTSUPP);
        }
        if !device.disk || device.info.state == sys::STATE_DEAD {
            return Err(-libc::ENODEV);
        }
        if device.info.state != sys::STATE_LIVE {
            return Ok(0);
        }
        for queue in &mut device.queues {
            queue.canceling = true;
        }
        // Tags that the server owns count as idle: the driver aborts them neither now nor later.
        self.cancel_idle_tags(id);
        Ok(0)
    }

    /// Aborts every tag that the driver has.
    pub(super) fn cancel_idle_tags(&mut self, id: u32) {
        let mut ended = Vec::new();
        for queue in &mut self.device(id).queues {
            for tag in &mut queue.tags {
                if tag.request.is_none() {
                    ended.extend(tag.armed.take());
                }
            }
        }
        for armed in ended {
            self.post(armed.ring, armed.key, sys::RESULT_ABORT);
        }
    }

    /// Completes the control commands whose condition holds; whether there were any.
    pub(super) fn advance_controls(&mut self) -> bool {
        let ids: Vec<ControlId> = self.pending_controls.keys().copied().collect();
        let mut progress = false;
        for id in ids {
            let wait = self.pending_controls[&id];
            if !self.devices.contains_key(&wait.device) {
                self.complete_control(id, 0);
                progress = true;
                continue;
            }
            let result = match wait.reason {
                WaitReason::Start(pid) => self.try_start(wait.device, pid),
                WaitReason::EndRecovery(pid) => self.try_end_recovery(wait.device, pid),
                WaitReason::Stop => self.try_finish_stop(wait.device).then_some(0),
                WaitReason::Delete(until_gone) => {
                    let result = self.try_finish_delete(id, wait.device, until_gone);
                    progress |= matches!(self.pending_controls[&id].reason, WaitReason::Gone);
                    result
                }
                WaitReason::Gone => None,
            };
            if let Some(result) = result {
                self.complete_control(id, result);
                progress = true;
            }
        }
        progress
    }

    fn complete_control(&mut self, id: ControlId, result: i32) {
        self.pending_controls.remove(&id);
        self.control_results.insert(id, result);
    }

    fn try_start(&mut self, id: u32, pid: i32) -> Option<i32> {
        let checks_pid = self.profile.checks_pid;
        let device = self.device(id);
        if !device.is_ready() {
            return None;
        }
        if checks_pid && device.opener != Some(pid) {
            return Some(-libc::EINVAL);
        }
        if device.info.state == sys::STATE_LIVE || device.used {
            return Some(-libc::EEXIST);
        }
        if device.tags().any(|tag| tag.armed.is_none()) {
            // Fetched once and aborted since: the kernel starts such a disk, and uses commands
            // that are gone.
            self.stats.warnings += 1;
            return Some(-libc::EINVAL);
        }
        device.info.state = sys::STATE_LIVE;
        device.info.server_pid = pid;
        device.disk = true;
        device.used = true;
        device.stopping = false;
        Some(0)
    }

    fn try_end_recovery(&mut self, id: u32, pid: i32) -> Option<i32> {
        let checks_pid = self.profile.checks_pid;
        let device = self.device(id);
        if !device.is_ready() {
            return None;
        }
        if !device.has(sys::F_RECOVERY) || checks_pid && device.opener != Some(pid) {
            return Some(-libc::EINVAL);
        }
        if !device.is_recoverable() {
            return Some(-libc::EBUSY);
        }
        if device.tags().any(|tag| tag.armed.is_none() && !tag.owned) {
            // No START_USER_RECOVERY came before (before 6.16): the same.
            self.stats.warnings += 1;
            return Some(-libc::EINVAL);
        }
        device.info.state = sys::STATE_LIVE;
        device.info.server_pid = pid;
        Some(0)
    }

    /// Removes the disk once it has no request; whether it did.
    fn try_finish_stop(&mut self, id: u32) -> bool {
        let device = self.device(id);
        if device.started_requests() + device.waiting_requests() > 0 {
            return false;
        }
        self.remove_disk(id);
        self.device(id).stopping = false;
        self.cancel_idle_tags(id);
        true
    }

    pub(super) fn remove_disk(&mut self, id: u32) {
        let device = self.device(id);
        device.disk = false;
        device.info.state = sys::STATE_DEAD;
        device.info.server_pid = -1;
        device.used &= device.clients > 0;
    }

    fn try_finish_delete(&mut self, wait: ControlId, id: u32, until_gone: bool) -> Option<i32> {
        if !self.devices[&id].deleted {
            if !self.try_finish_stop(id) {
                return None;
            }
            self.device(id).deleted = true;
        }
        if !until_gone {
            return Some(0);
        }
        let wait = self
            .pending_controls
            .get_mut(&wait)
            .expect("the wait is there");
        wait.reason = WaitReason::Gone;
        None
    }

    /// Takes the next step of a release if it is due; whether it did.
    pub(super) fn advance_release(&mut self, id: u32) -> bool {
        if self.advance_exit(id) {
            return true;
        }
        let device = self.device(id);
        if device.deleted && !device.open {
            self.devices.remove(&id);
            return true;
        }
        if device.release == Release::Idle || device.release_in > 0 {
            return false;
        }
        // Pages that rings still hold come back when those are gone; commands that nobody
        // cancelled, when the device is stopped.
        if device
            .tags()
            .any(|tag| tag.page_refs > 0 || tag.armed.is_some())
        {
            return false;
        }
        match device.release {
            Release::Idle => false,
            Release::Closed => {
                self.on_server_exit(id);
                let delay = self.release_delay;
                let device = self.device(id);
                device.release = Release::StillOpen;
                device.release_in = delay;
                true
            }
            Release::StillOpen => {
                let device = self.device(id);
                device.release = Release::Idle;
                device.open = false;
                device.opener = None;
                true
            }
        }
    }

    /// Counts a control command towards the delays of releases.
    pub(super) fn age_releases(&mut self) {
        for device in self.devices.values_mut() {
            device.release_in = device.release_in.saturating_sub(1);
        }
    }
}
