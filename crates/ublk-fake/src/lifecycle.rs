//! Start, stop, deletion, quiesce and recovery, with what each waits for.

use crate::control::Outcome;
use crate::device::Release;
use crate::kernel::{ControlId, Kernel, Waiting};
use ublk::sys;

impl Kernel {
    fn device(&mut self, id: u32) -> &mut crate::device::Device {
        self.devices.get_mut(&id).expect("the device was found")
    }

    pub(super) fn start(&mut self, id: u32, pid: i32) -> Outcome {
        if pid <= 0 || self.devices[&id].params.types & sys::PARAM_BASIC == 0 {
            return Outcome::Ended(-libc::EINVAL);
        }
        self.wait_for(id, Waiting::Start(pid))
    }

    pub(super) fn stop(&mut self, id: u32) -> Outcome {
        self.device(id).stopping = true;
        self.wait_for(id, Waiting::Stop)
    }

    pub(super) fn delete(&mut self, id: u32, until_gone: bool) -> Outcome {
        self.device(id).stopping = true;
        self.wait_for(id, Waiting::Delete(until_gone))
    }

    pub(super) fn start_recovery(&mut self, id: u32) -> Result<i32, i32> {
        let starts_over = self.profile.recovery_starts_over;
        let device = self.device(id);
        if !device.has(sys::F_RECOVERY) {
            return Err(-libc::EINVAL);
        }
        let none_ready = !device.queues.iter().any(crate::device::Queue::ready);
        if starts_over && none_ready {
            return Err(-libc::EINVAL);
        }
        if device.open || !device.recoverable() {
            return Err(-libc::EBUSY);
        }
        if starts_over {
            self.forget_server(id);
            let device = self.device(id);
            device
                .queues
                .iter_mut()
                .for_each(|queue| queue.canceling = false);
        }
        Ok(0)
    }

    pub(super) fn end_recovery(&mut self, id: u32, pid: i32) -> Outcome {
        self.wait_for(id, Waiting::EndRecovery(pid))
    }

    /// The server is to go and the disk to stay.
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
        // Tags that the server owns count as idle: they get no abort, now or later.
        self.cancel_idle(id);
        Ok(0)
    }

    /// Aborts every tag that the driver has.
    pub(super) fn cancel_idle(&mut self, id: u32) {
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

    /// Ends the control commands that have nothing to wait for any more; whether there were any.
    pub(super) fn waits_go_on(&mut self) -> bool {
        let ids: Vec<ControlId> = self.waits.keys().copied().collect();
        let mut moved = false;
        for id in ids {
            let wait = self.waits[&id];
            if !self.devices.contains_key(&wait.device) {
                self.end(id, 0);
                moved = true;
                continue;
            }
            let result = match wait.what {
                Waiting::Start(pid) => self.start_goes_on(wait.device, pid),
                Waiting::EndRecovery(pid) => self.recovery_goes_on(wait.device, pid),
                Waiting::Stop => self.stop_goes_on(wait.device).then_some(0),
                Waiting::Delete(until_gone) => {
                    let result = self.delete_goes_on(id, wait.device, until_gone);
                    moved |= matches!(self.waits[&id].what, Waiting::Gone);
                    result
                }
                Waiting::Gone => None,
            };
            if let Some(result) = result {
                self.end(id, result);
                moved = true;
            }
        }
        moved
    }

    fn end(&mut self, id: ControlId, result: i32) {
        self.waits.remove(&id);
        self.ended.insert(id, result);
    }

    fn start_goes_on(&mut self, id: u32, pid: i32) -> Option<i32> {
        let checks_pid = self.profile.checks_pid;
        let device = self.device(id);
        if !device.ready() {
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
            self.complaints.warnings += 1;
            return Some(-libc::EINVAL);
        }
        device.info.state = sys::STATE_LIVE;
        device.info.server_pid = pid;
        device.disk = true;
        device.used = true;
        device.stopping = false;
        Some(0)
    }

    fn recovery_goes_on(&mut self, id: u32, pid: i32) -> Option<i32> {
        let checks_pid = self.profile.checks_pid;
        let device = self.device(id);
        if !device.ready() {
            return None;
        }
        if !device.has(sys::F_RECOVERY) || checks_pid && device.opener != Some(pid) {
            return Some(-libc::EINVAL);
        }
        if !device.recoverable() {
            return Some(-libc::EBUSY);
        }
        if device.tags().any(|tag| tag.armed.is_none() && !tag.owned) {
            // Nobody began the recovery (before 6.16): the same.
            self.complaints.warnings += 1;
            return Some(-libc::EINVAL);
        }
        device.info.state = sys::STATE_LIVE;
        device.info.server_pid = pid;
        Some(0)
    }

    /// Whether the disk is down.
    fn stop_goes_on(&mut self, id: u32) -> bool {
        let device = self.device(id);
        if device.started() + device.waiting() > 0 {
            return false;
        }
        self.disk_down(id);
        self.device(id).stopping = false;
        self.cancel_idle(id);
        true
    }

    pub(super) fn disk_down(&mut self, id: u32) {
        let device = self.device(id);
        device.disk = false;
        device.info.state = sys::STATE_DEAD;
        device.info.server_pid = -1;
        device.used &= device.clients > 0;
    }

    fn delete_goes_on(&mut self, wait: ControlId, id: u32, until_gone: bool) -> Option<i32> {
        if !self.devices[&id].deleted {
            if !self.stop_goes_on(id) {
                return None;
            }
            self.device(id).deleted = true;
        }
        if !until_gone {
            return Some(0);
        }
        let wait = self.waits.get_mut(&wait).expect("the wait is there");
        wait.what = Waiting::Gone;
        None
    }

    /// A stage of the release that is due; whether there was one.
    pub(super) fn release_goes_on(&mut self, id: u32) -> bool {
        if self.exit_goes_on(id) {
            return true;
        }
        let device = self.device(id);
        if device.deleted && !device.open {
            self.devices.remove(&id);
            return true;
        }
        if device.release == Release::No || device.release_in > 0 {
            return false;
        }
        // Pages that rings still hold come back when those are gone; commands that nobody
        // cancelled, when the device is stopped.
        if device.tags().any(|tag| tag.held > 0 || tag.armed.is_some()) {
            return false;
        }
        match device.release {
            Release::No => false,
            Release::Closed => {
                self.server_gone(id);
                let delay = self.release_delay;
                let device = self.device(id);
                device.release = Release::StillOpen;
                device.release_in = delay;
                true
            }
            Release::StillOpen => {
                let device = self.device(id);
                device.release = Release::No;
                device.open = false;
                device.opener = None;
                true
            }
        }
    }

    /// A control command passed: what is late is nearer.
    pub(super) fn release_ages(&mut self) {
        for device in self.devices.values_mut() {
            device.release_in = device.release_in.saturating_sub(1);
        }
    }
}
