//! The fake driver as tests hold it: shared, and safe to use from several threads.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::command::SubmittedCommand;
use crate::control::Outcome;
use crate::deliver::ClientRequest;
use crate::device::ClientId;
use crate::device::{RingId, TaskId};
use crate::kernel::{ControlId, DriverStats, Kernel};
use crate::profile::Profile;
use ublk::sys::{ControlCommand, IoCommand};

/// A driver without a kernel. Clones are the same driver.
#[derive(Clone, Debug)]
pub struct Driver {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    kernel: Mutex<Kernel>,
    changed: Condvar,
}

impl Driver {
    /// A driver of this kernel, without devices.
    pub fn new(profile: Profile) -> Driver {
        Driver {
            shared: Arc::new(Shared {
                kernel: Mutex::new(Kernel::new(profile)),
                changed: Condvar::new(),
            }),
        }
    }

    pub(super) fn kernel(&self) -> KernelGuard<'_> {
        KernelGuard {
            kernel: self
                .shared
                .kernel
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
            changed: &self.shared.changed,
        }
    }

    /// The kernel that it simulates.
    pub fn profile(&self) -> Profile {
        self.kernel().kernel.profile
    }

    /// Sets after how many control commands each stage of a server's exit becomes visible.
    pub fn set_release_delay(&self, commands: u32) {
        self.kernel().kernel.release_delay = commands;
    }

    /// Begins a control command; `argument` is what lies at its address.
    pub fn control(&self, opcode: u32, command: ControlCommand, argument: &mut [u8]) -> Outcome {
        self.kernel().kernel.control(opcode, command, argument)
    }

    /// The result of a control command that waited; each is returned once.
    pub fn control_result(&self, id: ControlId) -> Option<i32> {
        self.kernel().kernel.control_results.remove(&id)
    }

    /// Ends a control command that waits, with `EINTR`.
    pub fn cancel_control(&self, id: ControlId) {
        self.kernel().kernel.cancel_control(id);
    }

    /// Opens a character device for a process. The descriptor can be mapped for descriptors of
    /// requests; everything else on it goes through [`Driver`].
    pub fn open(&self, device: u32, pid: i32) -> io::Result<OwnedFd> {
        let mut locked = self.kernel();
        locked
            .kernel
            .open(device, pid)
            .map_err(|errno| io::Error::from_raw_os_error(-errno))?;
        locked.kernel.devices[&device].memory.try_clone()
    }

    /// The device whose character device this is; none for other files.
    pub fn device_of(&self, file: impl AsFd) -> Option<u32> {
        let inode = rustix::fs::fstat(file).ok()?.st_ino;
        let locked = self.kernel();
        let mut devices = locked.kernel.devices.iter();
        let found = devices.find(|(_, device)| device.inode == inode);
        found.map(|(&id, _)| id)
    }

    /// The inode of a device's character device, by which its mappings are known.
    pub fn inode_of(&self, device: u32) -> Option<u64> {
        let locked = self.kernel();
        let device = locked.kernel.devices.get(&device);
        device.map(|device| device.inode)
    }

    /// The numbers of the devices that are listed: those that are not deleted.
    pub fn devices(&self) -> Vec<u32> {
        let locked = self.kernel();
        let devices = locked.kernel.devices.iter();
        let listed = devices.filter(|(_, device)| !device.deleted);
        listed.map(|(&id, _)| id).collect()
    }

    /// The last descriptor and mapping of a character device were closed.
    pub fn on_char_close(&self, device: u32) {
        self.kernel().kernel.on_char_close(device);
    }

    /// A ring of a task, with a table of so many buffer slots.
    pub fn open_ring(&self, task: TaskId, slots: u16) -> RingId {
        let mut locked = self.kernel();
        let ring = locked.kernel.open_ring(task);
        locked
            .kernel
            .ring(ring)
            .slots
            .resize(usize::from(slots), None);
        ring
    }

    /// Closes a ring.
    pub fn close_ring(&self, ring: RingId) {
        self.kernel().kernel.close_ring(ring);
    }

    /// Carries out a request command, named `key`.
    ///
    /// # Safety
    /// The command's address, where its data mode gives it one, names memory that nobody else
    /// uses, as long as the device's largest request, until the command ends or its ring is
    /// closed.
    pub unsafe fn io(
        &self,
        ring: RingId,
        device: u32,
        opcode: u32,
        sqe_addr: u64,
        command: IoCommand,
        key: u64,
    ) {
        let submitted = SubmittedCommand {
            ring,
            device,
            opcode,
            sqe_addr,
            command,
            key,
        };
        let mut locked = self.kernel();
        // SAFETY: this function's contract is the same.
        unsafe { locked.kernel.io(submitted) };
    }

    /// Commands that ended since the last call: key and result.
    pub fn completions(&self, ring: RingId) -> Vec<(u64, i32)> {
        std::mem::take(&mut self.kernel().kernel.ring(ring).completions)
    }

    /// Reads a request's data (of a write) from the window of the character device.
    pub fn read_window(&self, device: u32, offset: u64, to: &mut [u8]) -> Result<usize, i32> {
        self.kernel().kernel.user_copy(device, offset, false, to)
    }

    /// Writes a request's data (of a read) to the window of the character device.
    pub fn write_window(&self, device: u32, offset: u64, from: &[u8]) -> Result<usize, i32> {
        let mut bytes = from.to_vec();
        self.kernel()
            .kernel
            .user_copy(device, offset, true, &mut bytes)
    }

    /// Moves bytes between a slot and `bytes`: into the request, as a fixed read of a file does,
    /// or out of it, as a fixed write.
    pub fn move_fixed(
        &self,
        ring: RingId,
        slot: u16,
        at: u32,
        into_request: bool,
        bytes: &mut [u8],
    ) -> Result<(), i32> {
        let mut locked = self.kernel();
        let len = bytes.len() as u32;
        let pages = locked
            .kernel
            .move_fixed(ring, slot, at, len, into_request)?;
        if into_request {
            pages.copy_from_slice(bytes);
        } else {
            bytes.copy_from_slice(pages);
        }
        Ok(())
    }

    /// Submits a request of a client on the processor of a queue.
    pub fn submit(&self, device: u32, queue: u16, request: ClientRequest) -> ClientId {
        self.kernel().kernel.submit(device, queue, request)
    }

    /// Requests that ended since the last call: a read's bytes, or a negated errno.
    pub fn answers(&self) -> Vec<(ClientId, Result<Vec<u8>, i32>)> {
        std::mem::take(&mut self.kernel().kernel.answers)
    }

    /// A client opens a disk, or closes it.
    pub fn disk_open(&self, device: u32, open: bool) -> Result<(), i32> {
        let mut locked = self.kernel();
        let found = locked.kernel.devices.get_mut(&device);
        let device = found.ok_or(-libc::ENOENT)?;
        if open {
            if !device.disk || device.block_open {
                return Err(-libc::ENXIO);
            }
            device.clients += 1;
        } else {
            device.clients -= 1;
            device.used &= device.disk || device.clients > 0;
        }
        Ok(())
    }

    /// The block layer's request timeout expires.
    pub fn on_request_timeout(&self, device: u32) {
        self.kernel().kernel.on_request_timeout(device);
    }

    /// Panics where an invariant of the driver's state is broken.
    pub fn check(&self) {
        for device in self.kernel().kernel.devices.values() {
            for tag in device.tags() {
                assert!(
                    tag.armed.is_none() || !tag.owned,
                    "armed and owned: {tag:?}"
                );
                assert!(
                    !tag.owned || tag.request.is_some(),
                    "nothing owned: {tag:?}"
                );
                assert!(
                    !tag.awaits_get_data || tag.owned,
                    "awaits_get_data by nobody: {tag:?}"
                );
                assert!(
                    tag.page_refs == 0 || tag.request.is_some(),
                    "page_refs: {tag:?}"
                );
            }
        }
    }

    /// What the driver counted.
    pub fn stats(&self) -> DriverStats {
        self.kernel().kernel.stats
    }
}

/// The locked state; whoever waits for a change is woken when it is dropped.
#[derive(Debug)]
pub(super) struct KernelGuard<'a> {
    pub(super) kernel: MutexGuard<'a, Kernel>,
    changed: &'a Condvar,
}

impl Drop for KernelGuard<'_> {
    fn drop(&mut self) {
        self.changed.notify_all();
    }
}
