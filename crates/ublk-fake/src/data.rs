//! How the bytes of a request reach the server and come back: copies to and from its memory,
//! buffer slots, and the window of user copy.

use crate::command::{CommandOutcome, SubmittedCommand};
use crate::device::{Fault, Request, RingId};
use crate::kernel::{Kernel, SlotUse};
use ublk::sys;

/// Nothing is mapped below this.
const LOWEST_ADDRESS: u64 = 0x1000;

/// Copies what is left of a write to the server's memory.
pub(super) fn copy_to_server(request: &Request, addr: u64) -> Result<usize, Fault> {
    let bytes = &request.pages[request.done..];
    let len = bytes.len();
    if addr < LOWEST_ADDRESS || len == 0 {
        return Err(Fault);
    }
    // SAFETY: whoever gave the command promised that its address names memory of its own, as
    // long as the largest request (see `Kernel::io`).
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, len) };
    Ok(len)
}

/// Copies `len` bytes of a read from the server's memory.
pub(super) fn copy_from_server(request: &mut Request, addr: u64, len: usize) -> usize {
    if addr < LOWEST_ADDRESS {
        return 0;
    }
    let to = &mut request.pages[request.done..request.done + len];
    // SAFETY: as in `copy_to_server`.
    unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, to.as_mut_ptr(), len) };
    len
}

impl Kernel {
    /// REGISTER_IO_BUF: registers the pages of the request in a slot.
    pub(super) fn register(&mut self, submitted: &SubmittedCommand) -> Result<CommandOutcome, i32> {
        let slot = u16::try_from(submitted.command.addr).map_err(|_| -libc::EINVAL)?;
        let device = &self.devices[&submitted.device];
        let tag = &device.queues[usize::from(submitted.command.queue)].tags
            [usize::from(submitted.command.tag)];
        let registrable = tag.owned && tag.request.as_ref().is_some_and(Request::has_data);
        if !device.has(sys::F_ZERO_COPY) || !registrable {
            return Err(-libc::EINVAL);
        }
        self.register_slot(submitted.ring, slot, submitted)?;
        Ok(CommandOutcome::Done(0))
    }

    /// UNREGISTER_IO_BUF: neither queue nor tag matter.
    pub(super) fn unregister(
        &mut self,
        submitted: &SubmittedCommand,
    ) -> Result<CommandOutcome, i32> {
        let zero_copy = self
            .devices
            .get(&submitted.device)
            .is_some_and(|device| device.has(sys::F_ZERO_COPY));
        let slot = u16::try_from(submitted.command.addr).map_err(|_| -libc::EINVAL)?;
        if !zero_copy || !self.unregister_slot(submitted.ring, slot) {
            return Err(-libc::EINVAL);
        }
        Ok(CommandOutcome::Done(0))
    }

    fn register_slot(
        &mut self,
        ring: RingId,
        slot: u16,
        submitted: &SubmittedCommand,
    ) -> Result<(), i32> {
        let entry = self.ring(ring).slots.get_mut(usize::from(slot));
        let entry = entry.ok_or(-libc::EINVAL)?;
        if entry.is_some() {
            return Err(-libc::EBUSY);
        }
        *entry = Some(SlotUse {
            device: submitted.device,
            queue: submitted.command.queue,
            tag: submitted.command.tag,
        });
        self.tag(submitted).page_refs += 1;
        Ok(())
    }

    /// AUTO_BUF_REG: registers the pages of the tag's request in its slot; whether it was free.
    pub(super) fn auto_register_slot(&mut self, ring: RingId, slot: u16, at: SlotUse) -> bool {
        let Some(entry @ None) = self.ring(ring).slots.get_mut(usize::from(slot)) else {
            return false;
        };
        *entry = Some(at);
        let device = self
            .devices
            .get_mut(&at.device)
            .expect("the device is there");
        let tag = &mut device.queues[usize::from(at.queue)].tags[usize::from(at.tag)];
        tag.page_refs += 1;
        tag.auto_slot_in_use = Some((ring, slot));
        true
    }

    /// Empties a slot; completes the request whose commit waited for it.
    pub(super) fn unregister_slot(&mut self, ring: RingId, slot: u16) -> bool {
        let Some(ring) = self.rings.get_mut(&ring) else {
            return false;
        };
        let taken = ring.slots.get_mut(usize::from(slot)).and_then(Option::take);
        taken.is_some_and(|at| {
            self.release_pages(at);
            true
        })
    }

    /// Drops one reference of a slot to the pages of a request.
    pub(super) fn release_pages(&mut self, at: SlotUse) {
        let Some(device) = self.devices.get_mut(&at.device) else {
            return;
        };
        let tag = &mut device.queues[usize::from(at.queue)].tags[usize::from(at.tag)];
        tag.page_refs -= 1;
        if tag.page_refs == 0
            && let Some(result) = tag.deferred_result.take()
        {
            self.apply_result(at.device, at.queue, at.tag, result);
        }
    }

    /// The part of a request's pages that a fixed operation moves, or why it may not:
    /// `into_request` for one that reads a file.
    pub(super) fn move_fixed(
        &mut self,
        ring: RingId,
        slot: u16,
        at: u32,
        len: u32,
        into_request: bool,
    ) -> Result<&mut [u8], i32> {
        let entry = self.ring(ring).slots.get(usize::from(slot));
        let Some(Some(at_tag)) = entry.copied() else {
            return Err(-libc::EFAULT);
        };
        let device = self.devices.get_mut(&at_tag.device).ok_or(-libc::EFAULT)?;
        let tag = &mut device.queues[usize::from(at_tag.queue)].tags[usize::from(at_tag.tag)];
        let request = tag.request.as_mut().ok_or(-libc::EFAULT)?;
        let (at, len) = (at as usize, len as usize);
        if into_request != (request.op == sys::OP_READ) || at + len > request.bytes_left() {
            return Err(-libc::EFAULT);
        }
        let begin = request.done + at;
        Ok(&mut request.pages[begin..begin + len])
    }

    /// Reads (`into_request` false) or writes the window of user copy. Returns how many bytes
    /// were moved, or an errno.
    pub(super) fn user_copy(
        &mut self,
        device: u32,
        offset: u64,
        into_request: bool,
        bytes: &mut [u8],
    ) -> Result<usize, i32> {
        let loose = self.profile.unchecked_window;
        let Some(device) = self.devices.get_mut(&device) else {
            return Err(-libc::EACCES);
        };
        let first = sys::data_offset(0, 0, 0);
        if offset < first {
            return Err(-libc::EINVAL);
        }
        let dead = device.info.state == sys::STATE_DEAD;
        if dead || !loose && !device.has(sys::F_USER_COPY) {
            return Err(-libc::EACCES);
        }
        let place = offset - first;
        let at = (place & u64::from(sys::IO_BYTES_MAX - 1)) as usize;
        let (queue, tag) = (place >> 41, place >> 25 & 0xffff);
        if queue >= u64::from(device.info.queues) || tag >= u64::from(device.info.depth) {
            return Err(-libc::EINVAL);
        }
        let tag = &mut device.queues[queue as usize].tags[tag as usize];
        let owned = tag.owned;
        let request = tag.request.as_mut().filter(|_| owned);
        let request = request.ok_or(-libc::EINVAL)?;
        if !request.has_data() || at > request.bytes_left() {
            return Err(-libc::EINVAL);
        }
        if into_request != (request.op == sys::OP_READ) {
            return Err(-libc::EACCES);
        }
        let begin = request.done + at;
        let len = bytes.len().min(request.len - begin);
        let pages = &mut request.pages[begin..begin + len];
        if into_request {
            pages.copy_from_slice(&bytes[..len]);
        } else {
            bytes[..len].copy_from_slice(pages);
        }
        Ok(if loose { bytes.len() } else { len })
    }
}
