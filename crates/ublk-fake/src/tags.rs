//! Request commands: who may give which command for a tag, and when.
//!
//! The checks stand in the driver's order, because a command that is wrong in two ways is
//! answered by the first. A refused command changes nothing: a tag that the server owned stays
//! owned, and the command can be given again.

use crate::command::{CommandOutcome, SubmittedCommand};
use crate::data::copy_to_server;
use crate::device::{ArmedCommand, AutoSlot, Device, Fault, Queue, Tag};
use crate::kernel::Kernel;
use ublk::sys::{self, IoCommand};

const EINVAL: Result<CommandOutcome, i32> = Err(-libc::EINVAL);
const EBUSY: Result<CommandOutcome, i32> = Err(-libc::EBUSY);

impl Kernel {
    /// Carries out a request command.
    ///
    /// # Safety
    /// The command's address, where its mode gives it one, names memory that nobody else uses,
    /// as long as the largest request, until the command ends or its ring is closed.
    pub(super) unsafe fn io(&mut self, submitted: SubmittedCommand) {
        let outcome = if self.profile.task_per_queue {
            self.io_by_queue(&submitted)
        } else {
            self.io_by_tag(&submitted)
        };
        match outcome {
            Ok(CommandOutcome::Pending) => {}
            Ok(CommandOutcome::Done(result)) => self.post(submitted.ring, submitted.key, result),
            Err(errno) => {
                self.stats.refused += 1;
                self.post(submitted.ring, submitted.key, errno);
            }
        }
        self.run_until_idle();
    }

    /// The order of checks where each tag has its own task.
    fn io_by_tag(&mut self, submitted: &SubmittedCommand) -> Result<CommandOutcome, i32> {
        check_opcode(submitted.opcode)?;
        if submitted.opcode == sys::IO_UNREGISTER_BUFFER {
            return self.unregister(submitted);
        }
        let task = self.ring(submitted.ring).task;
        let device = self.devices.get(&submitted.device).ok_or(-libc::EINVAL)?;
        let IoCommand { queue, tag, .. } = submitted.command;
        if queue >= device.info.queues || tag >= device.info.depth {
            return EINVAL;
        }
        if submitted.opcode == sys::IO_FETCH {
            return self.fetch_tag(submitted);
        }
        let state = &device.queues[usize::from(queue)].tags[usize::from(tag)];
        if state.task != Some(task) {
            if submitted.opcode == sys::IO_REGISTER_BUFFER && device.has(sys::F_REGISTER_ANYWHERE) {
                return self.register(submitted);
            }
            return EINVAL;
        }
        if !state.owned {
            return EBUSY;
        }
        if state.awaits_get_data != (submitted.opcode == sys::IO_NEED_GET_DATA) {
            return EINVAL;
        }
        match submitted.opcode {
            sys::IO_REGISTER_BUFFER => self.register(submitted),
            sys::IO_COMMIT_AND_FETCH => self.commit(submitted),
            sys::IO_NEED_GET_DATA => self.get_data(submitted),
            _ => EINVAL,
        }
    }

    /// The order of checks where each queue has its task (before 6.16).
    fn io_by_queue(&mut self, submitted: &SubmittedCommand) -> Result<CommandOutcome, i32> {
        let task = self.ring(submitted.ring).task;
        let device = self.devices.get(&submitted.device).ok_or(-libc::EINVAL)?;
        let IoCommand { queue, tag, .. } = submitted.command;
        if queue >= device.info.queues {
            return EINVAL;
        }
        let of_queue = &device.queues[usize::from(queue)];
        if of_queue.task.is_some_and(|owner| owner != task) || tag >= device.info.depth {
            return EINVAL;
        }
        let state = &of_queue.tags[usize::from(tag)];
        if state.armed.is_some() {
            return EBUSY;
        }
        if state.awaits_get_data != (submitted.opcode == sys::IO_NEED_GET_DATA) {
            return EINVAL;
        }
        check_opcode(submitted.opcode)?;
        match submitted.opcode {
            sys::IO_FETCH if of_queue.is_ready() => EBUSY,
            sys::IO_FETCH if state.owned => EINVAL,
            sys::IO_FETCH => {
                check_addr(device, submitted.command.addr, false)?;
                self.arm(submitted, None);
                Ok(CommandOutcome::Pending)
            }
            sys::IO_COMMIT_AND_FETCH if !state.owned => EINVAL,
            sys::IO_COMMIT_AND_FETCH => self.commit(submitted),
            sys::IO_NEED_GET_DATA if !state.owned => EINVAL,
            sys::IO_NEED_GET_DATA => self.get_data(submitted),
            _ => EINVAL,
        }
    }

    fn fetch_tag(&mut self, submitted: &SubmittedCommand) -> Result<CommandOutcome, i32> {
        let device = &self.devices[&submitted.device];
        let IoCommand {
            queue, tag, addr, ..
        } = submitted.command;
        check_addr(device, addr, false)?;
        let auto = auto_slot(device, submitted.sqe_addr)?;
        if device.is_fetched(&self.profile, queue) {
            return EBUSY;
        }
        let state = &device.queues[usize::from(queue)].tags[usize::from(tag)];
        if state.armed.is_some() {
            return EINVAL;
        }
        if state.owned {
            // A queue serves before its device is ready, so this can happen; the kernel warns and
            // takes it.
            self.stats.warnings += 1;
            return EINVAL;
        }
        self.arm(submitted, auto);
        Ok(CommandOutcome::Pending)
    }

    /// Arms a tag for the first time.
    fn arm(&mut self, submitted: &SubmittedCommand, auto: Option<AutoSlot>) {
        let task = self.ring(submitted.ring).task;
        let by_queue = self.profile.task_per_queue;
        let queue = self.queue(submitted);
        let tag = &mut queue.tags[usize::from(submitted.command.tag)];
        tag.task = Some(task);
        tag.ready = true;
        tag.addr = submitted.command.addr;
        tag.auto = auto;
        tag.armed = Some(ArmedCommand {
            ring: submitted.ring,
            key: submitted.key,
        });
        if queue.is_ready() {
            if by_queue {
                queue.task = Some(task);
            } else {
                queue.canceling = false;
            }
        }
    }

    fn commit(&mut self, submitted: &SubmittedCommand) -> Result<CommandOutcome, i32> {
        let device = &self.devices[&submitted.device];
        let IoCommand {
            queue,
            tag,
            addr,
            result,
        } = submitted.command;
        let state = &device.queues[usize::from(queue)].tags[usize::from(tag)];
        let request = state.request.as_ref().ok_or(-libc::EINVAL)?;
        check_addr(device, addr, request.op == sys::OP_READ)?;
        let auto = auto_slot(device, submitted.sqe_addr)?;
        let registered = state.auto_slot_in_use;
        let state = self.tag(submitted);
        state.owned = false;
        state.addr = addr;
        state.auto = auto;
        state.auto_slot_in_use = None;
        state.armed = Some(ArmedCommand {
            ring: submitted.ring,
            key: submitted.key,
        });
        if let Some((ring, slot)) = registered
            && ring == submitted.ring
        {
            self.unregister_slot(ring, slot);
        }
        let state = self.tag(submitted);
        if state.page_refs > 0 {
            // A slot still refers to its pages: it completes when none does.
            state.deferred_result = Some(result);
        } else {
            self.apply_result(submitted.device, queue, tag, result);
        }
        Ok(CommandOutcome::Pending)
    }

    fn get_data(&mut self, submitted: &SubmittedCommand) -> Result<CommandOutcome, i32> {
        let IoCommand {
            queue, tag, addr, ..
        } = submitted.command;
        let state = self.tag(submitted);
        state.awaits_get_data = false;
        state.fetched = true;
        state.addr = addr;
        let request = state
            .request
            .as_mut()
            .expect("an awaits_get_data tag has a request");
        match copy_to_server(request, addr) {
            Ok(moved) => {
                self.write_descriptor(submitted.device, queue, tag, moved);
                Ok(CommandOutcome::Done(sys::RESULT_OK))
            }
            Err(Fault) => {
                // Nothing could be copied: the request is dispatched again.
                state.owned = false;
                state.fetched = false;
                state.armed = Some(ArmedCommand {
                    ring: submitted.ring,
                    key: submitted.key,
                });
                let request = state
                    .request
                    .take()
                    .expect("an awaits_get_data tag has a request");
                self.queue(submitted).waiting.push_front(request);
                Ok(CommandOutcome::Pending)
            }
        }
    }

    fn queue(&mut self, submitted: &SubmittedCommand) -> &mut Queue {
        let device = self.devices.get_mut(&submitted.device);
        let device = device.expect("the device was checked");
        &mut device.queues[usize::from(submitted.command.queue)]
    }

    pub(super) fn tag(&mut self, submitted: &SubmittedCommand) -> &mut Tag {
        &mut self.queue(submitted).tags[usize::from(submitted.command.tag)]
    }
}

/// Only ublk's own numbers, encoded as since 6.4.
fn check_opcode(opcode: u32) -> Result<(), i32> {
    let kind = |number: u32| number & !0xff;
    if kind(opcode) == kind(sys::IO_FETCH) {
        Ok(())
    } else {
        Err(-libc::EOPNOTSUPP)
    }
}

/// Whether a fetch or commit may, or must, name a buffer.
fn check_addr(device: &Device, addr: u64, read_ends: bool) -> Result<(), i32> {
    let bad = if device.server_copies() {
        addr != 0
    } else {
        addr == 0 && (!device.needs_get_data() || read_ends)
    };
    if bad { Err(-libc::EINVAL) } else { Ok(()) }
}

/// The slot that a fetch or commit names.
fn auto_slot(device: &Device, sqe_addr: u64) -> Result<Option<AutoSlot>, i32> {
    if !device.has(sys::F_AUTO_BUFFER) {
        return Ok(None);
    }
    let known = sys::auto_buffer(u16::MAX, sys::AUTO_BUFFER_FALLBACK);
    if sqe_addr & !known != 0 {
        return Err(-libc::EINVAL);
    }
    Ok(Some(AutoSlot {
        slot: sqe_addr as u16,
        fallback: sqe_addr >> 16 != 0,
    }))
}
