//! Request commands: who may give which command for a tag, and when.
//!
//! The checks stand in the driver's order, because a command that is wrong in two ways is
//! answered by the first. A refused command changes nothing: a tag that the server owned stays
//! owned, and the command can be given again.

use crate::data::Fault;
use crate::device::{Armed, AutoSlot, Device};
use crate::kernel::{Kernel, RingId};
use ublk::sys::{self, IoCommand};

/// What a server hands to the driver for one tag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub(super) ring: RingId,
    pub(super) device: u32,
    pub(super) opcode: u32,
    /// The submission entry's address: the slot, with `AUTO_BUF_REG`.
    pub(super) sqe_addr: u64,
    pub(super) command: IoCommand,
    /// The server's name for it.
    pub(super) key: u64,
}

/// What became of a command: kept until there is work, or ended with a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Kept,
    Ends(i32),
}

const EINVAL: Result<Verdict, i32> = Err(-libc::EINVAL);
const EBUSY: Result<Verdict, i32> = Err(-libc::EBUSY);

impl Kernel {
    /// Carries out a request command.
    ///
    /// # Safety
    /// The command's address, where its mode gives it one, names memory that nobody else uses,
    /// as long as the largest request, until the command ends or its ring is closed.
    pub(super) unsafe fn io(&mut self, given: Given) {
        let verdict = if self.profile.queue_tasks {
            self.io_by_queue(&given)
        } else {
            self.io_by_tag(&given)
        };
        match verdict {
            Ok(Verdict::Kept) => {}
            Ok(Verdict::Ends(result)) => self.post(given.ring, given.key, result),
            Err(errno) => {
                self.complaints.refused += 1;
                self.post(given.ring, given.key, errno);
            }
        }
        self.settle();
    }

    /// The order of checks where each tag has its own task.
    fn io_by_tag(&mut self, given: &Given) -> Result<Verdict, i32> {
        check_opcode(given.opcode)?;
        if given.opcode == sys::IO_UNREGISTER_BUFFER {
            return self.unregister(given);
        }
        let task = self.ring(given.ring).task;
        let device = self.devices.get(&given.device).ok_or(-libc::EINVAL)?;
        let IoCommand { queue, tag, .. } = given.command;
        if queue >= device.info.queues || tag >= device.info.depth {
            return EINVAL;
        }
        if given.opcode == sys::IO_FETCH {
            return self.fetch_tag(given);
        }
        let state = &device.queues[usize::from(queue)].tags[usize::from(tag)];
        if state.task != Some(task) {
            if given.opcode == sys::IO_REGISTER_BUFFER && device.has(sys::F_REGISTER_ANYWHERE) {
                return self.register(given);
            }
            return EINVAL;
        }
        if !state.owned {
            return EBUSY;
        }
        if state.owed != (given.opcode == sys::IO_NEED_GET_DATA) {
            return EINVAL;
        }
        match given.opcode {
            sys::IO_REGISTER_BUFFER => self.register(given),
            sys::IO_COMMIT_AND_FETCH => self.commit(given),
            sys::IO_NEED_GET_DATA => self.get_data(given),
            _ => EINVAL,
        }
    }

    /// The order of checks where each queue has its task (before 6.16).
    fn io_by_queue(&mut self, given: &Given) -> Result<Verdict, i32> {
        let task = self.ring(given.ring).task;
        let device = self.devices.get(&given.device).ok_or(-libc::EINVAL)?;
        let IoCommand { queue, tag, .. } = given.command;
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
        if state.owed != (given.opcode == sys::IO_NEED_GET_DATA) {
            return EINVAL;
        }
        check_opcode(given.opcode)?;
        match given.opcode {
            sys::IO_FETCH if of_queue.ready() => EBUSY,
            sys::IO_FETCH if state.owned => EINVAL,
            sys::IO_FETCH => {
                check_addr(device, given.command.addr, false)?;
                self.take(given, None);
                Ok(Verdict::Kept)
            }
            sys::IO_COMMIT_AND_FETCH if !state.owned => EINVAL,
            sys::IO_COMMIT_AND_FETCH => self.commit(given),
            sys::IO_NEED_GET_DATA if !state.owned => EINVAL,
            sys::IO_NEED_GET_DATA => self.get_data(given),
            _ => EINVAL,
        }
    }

    fn fetch_tag(&mut self, given: &Given) -> Result<Verdict, i32> {
        let device = &self.devices[&given.device];
        let IoCommand {
            queue, tag, addr, ..
        } = given.command;
        check_addr(device, addr, false)?;
        let auto = auto_slot(device, given.sqe_addr)?;
        if device.taken(&self.profile, queue) {
            return EBUSY;
        }
        let state = &device.queues[usize::from(queue)].tags[usize::from(tag)];
        if state.armed.is_some() {
            return EINVAL;
        }
        if state.owned {
            // A queue serves before its device is ready, so this can be; the kernel warns, and
            // takes it.
            self.complaints.warnings += 1;
            return EINVAL;
        }
        self.take(given, auto);
        Ok(Verdict::Kept)
    }

    /// A tag becomes the driver's for the first time.
    fn take(&mut self, given: &Given, auto: Option<AutoSlot>) {
        let task = self.ring(given.ring).task;
        let by_queue = self.profile.queue_tasks;
        let queue = self.queue(given);
        let tag = &mut queue.tags[usize::from(given.command.tag)];
        tag.task = Some(task);
        tag.ready = true;
        tag.addr = given.command.addr;
        tag.auto = auto;
        tag.armed = Some(Armed {
            ring: given.ring,
            key: given.key,
        });
        if queue.ready() {
            if by_queue {
                queue.task = Some(task);
            } else {
                queue.canceling = false;
            }
        }
    }

    fn commit(&mut self, given: &Given) -> Result<Verdict, i32> {
        let device = &self.devices[&given.device];
        let IoCommand {
            queue,
            tag,
            addr,
            result,
        } = given.command;
        let state = &device.queues[usize::from(queue)].tags[usize::from(tag)];
        let request = state.request.as_ref().ok_or(-libc::EINVAL)?;
        check_addr(device, addr, request.op == sys::OP_READ)?;
        let auto = auto_slot(device, given.sqe_addr)?;
        let registered = state.auto_registered;
        let state = self.tag(given);
        state.owned = false;
        state.addr = addr;
        state.auto = auto;
        state.auto_registered = None;
        state.armed = Some(Armed {
            ring: given.ring,
            key: given.key,
        });
        if let Some((ring, slot)) = registered
            && ring == given.ring
        {
            self.slot_free(ring, slot);
        }
        let state = self.tag(given);
        if state.held > 0 {
            // Its pages are still lent to somebody: it ends when they are back.
            state.late_result = Some(result);
        } else {
            self.finish(given.device, queue, tag, result);
        }
        Ok(Verdict::Kept)
    }

    fn get_data(&mut self, given: &Given) -> Result<Verdict, i32> {
        let IoCommand {
            queue, tag, addr, ..
        } = given.command;
        let limit = self.get_data_limit.take();
        let state = self.tag(given);
        state.owed = false;
        state.fetched = true;
        state.addr = addr;
        let request = state.request.as_mut().expect("an owed tag has a request");
        match crate::data::write_out(request, addr, limit) {
            Ok(moved) => {
                self.describe(given.device, queue, tag, moved);
                Ok(Verdict::Ends(sys::RESULT_OK))
            }
            Err(Fault) => {
                // Nothing could be copied: the request is announced again.
                state.owned = false;
                state.fetched = false;
                state.armed = Some(Armed {
                    ring: given.ring,
                    key: given.key,
                });
                let request = state.request.take().expect("an owed tag has a request");
                self.queue(given).waiting.push_front(request);
                Ok(Verdict::Kept)
            }
        }
    }

    fn queue(&mut self, given: &Given) -> &mut crate::device::Queue {
        let device = self.devices.get_mut(&given.device);
        let device = device.expect("the device was checked");
        &mut device.queues[usize::from(given.command.queue)]
    }

    pub(super) fn tag(&mut self, given: &Given) -> &mut crate::device::Tag {
        &mut self.queue(given).tags[usize::from(given.command.tag)]
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
    let bad = if device.moves_itself() {
        addr != 0
    } else {
        addr == 0 && (!device.need_get_data() || read_ends)
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
