//! Control commands: what each checks, in the driver's order, and what it does at once.
//!
//! Commands that wait continue in `lifecycle`.

use zerocopy::{FromBytes, IntoBytes};

use crate::device::{Device, Queue, Release, Tag};
use crate::kernel::{ControlId, Kernel, WaitReason};
use crate::params::{self, PAGE_SHIFT};
use ublk::sys::{self, ControlCommand, DeviceInfo, Params};

/// How a control command was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It completed with zero, a count, or a negated errno.
    Done(i32),
    /// The driver holds it until the device reaches a state.
    Pending(ControlId),
}

impl From<Result<i32, i32>> for Outcome {
    fn from(result: Result<i32, i32>) -> Outcome {
        Outcome::Done(result.unwrap_or_else(|errno| errno))
    }
}

const EINVAL: Result<i32, i32> = Err(-libc::EINVAL);

impl Kernel {
    /// Carries out a control command; `argument` is what lies at its address.
    pub(super) fn control(
        &mut self,
        opcode: u32,
        command: ControlCommand,
        argument: &mut [u8],
    ) -> Outcome {
        self.age_releases();
        let outcome = self.dispatch_control(opcode, command, argument);
        self.run_until_idle();
        match outcome {
            Outcome::Pending(id) => match self.control_results.remove(&id) {
                Some(result) => Outcome::Done(result),
                None => outcome,
            },
            done => done,
        }
    }

    fn dispatch_control(
        &mut self,
        opcode: u32,
        command: ControlCommand,
        argument: &mut [u8],
    ) -> Outcome {
        let id = command.device;
        match opcode {
            sys::GET_FEATURES => return self.get_features(argument).into(),
            sys::ADD_DEVICE => return self.add(command, argument).into(),
            _ => {}
        }
        let Some(device) = self.devices.get(&id) else {
            return Outcome::Done(-libc::ENODEV);
        };
        // A deleted device stays until its last opener closes it. What the kernel answers to other
        // commands meanwhile is not something to rely on.
        let allowed_when_deleted = [
            sys::GET_DEVICE_INFO,
            sys::START_RECOVERY,
            sys::DELETE_DEVICE,
            sys::DELETE_DEVICE_ASYNC,
        ];
        if device.deleted && !allowed_when_deleted.contains(&opcode) {
            return Outcome::Done(-libc::ENODEV);
        }
        match opcode {
            sys::GET_DEVICE_INFO => self.get_info(id, argument).into(),
            sys::SET_PARAMS => self.set_params(id, argument).into(),
            sys::GET_PARAMS => self.get_params(id, argument).into(),
            sys::START_DEVICE => self.start(id, command.data as i32),
            sys::STOP_DEVICE => self.stop(id),
            sys::DELETE_DEVICE => self.delete(id, true),
            sys::DELETE_DEVICE_ASYNC => self.delete(id, false),
            sys::START_RECOVERY => self.start_recovery(id).into(),
            sys::END_RECOVERY => self.end_recovery(id, command.data as i32),
            sys::UPDATE_SIZE if self.profile.has(sys::F_UPDATE_SIZE) => {
                self.update_size(id, command.data).into()
            }
            sys::QUIESCE_DEVICE if self.profile.has(sys::F_QUIESCE) => self.quiesce(id).into(),
            sys::TRY_STOP_DEVICE if self.profile.has(sys::F_SAFE_STOP) => self.try_stop(id),
            // Commands that this profile lacks or the fake does not implement.
            _ => Outcome::Done(-libc::EOPNOTSUPP),
        }
    }

    fn get_features(&self, argument: &mut [u8]) -> Result<i32, i32> {
        if argument.len() != 8 {
            return EINVAL;
        }
        argument.copy_from_slice(&self.profile.features.to_ne_bytes());
        Ok(0)
    }

    fn add(&mut self, command: ControlCommand, argument: &mut [u8]) -> Result<i32, i32> {
        let Ok((mut info, _)) = DeviceInfo::read_from_prefix(argument) else {
            return EINVAL;
        };
        if command.queue != sys::NO_QUEUE {
            return EINVAL;
        }
        self.check_flags(info.flags)?;
        let auto = u32::MAX;
        if command.device != info.device
            || info.device != auto && info.device >= sys::DEVICE_ID_MAX
            || info.queues == 0
            || info.queues > sys::QUEUES_MAX
            || info.depth == 0
            || info.depth > sys::DEPTH_MAX
        {
            return EINVAL;
        }
        info.device = match info.device {
            id if id == auto => (0..)
                .find(|id| !self.devices.contains_key(id))
                .expect("device numbers do not run out"),
            id if self.devices.contains_key(&id) => return Err(-libc::EEXIST),
            id => id,
        };
        info.flags = self.grant_flags(info.flags)?;
        info.descriptor_bytes = match info.flags & sys::F_DESCRIPTOR_BYTES {
            0 => 0,
            _ => self.profile.descriptor_bytes,
        };
        info.queues = info.queues.min(self.processors);
        info.io_bytes_max &= !((1 << PAGE_SHIFT) - 1);
        info.state = sys::STATE_DEAD;
        info.server_pid = -1;
        info.write_to_prefix(argument)
            .expect("the argument is as long as what was read from it");
        let device =
            new_device(info).map_err(|error| -error.raw_os_error().unwrap_or(libc::ENOMEM))?;
        self.devices.insert(info.device, device);
        Ok(0)
    }

    /// Refuses combinations of flags that the driver refuses before it masks any.
    fn check_flags(&self, flags: u64) -> Result<(), i32> {
        if !self.profile.validates_recovery_flags {
            return Ok(());
        }
        let (plain, reissue, fail) = (
            sys::F_RECOVERY,
            sys::F_RECOVERY_REISSUE,
            sys::F_RECOVERY_FAIL_IO,
        );
        let recovery = flags & (plain | reissue | fail);
        let known = [0, plain, plain | reissue, plain | fail];
        if !known.contains(&recovery) {
            return Err(-libc::EINVAL);
        }
        if flags & sys::F_QUIESCE != 0 && recovery == 0 {
            return Err(-libc::EINVAL);
        }
        Ok(())
    }

    /// The flags that the driver grants of those that were asked for.
    fn grant_flags(&self, asked: u64) -> Result<u64, i32> {
        // The fake's caller has all privileges.
        let mut flags = asked & !sys::F_UNPRIVILEGED & self.profile.features;
        flags |= self.profile.forced_flags();
        if flags & (sys::F_USER_COPY | sys::F_ZERO_COPY | sys::F_AUTO_BUFFER | sys::F_BATCH_IO) != 0
        {
            flags &= !sys::F_NEED_GET_DATA;
        }
        if flags & sys::F_BATCH_IO != 0 {
            flags &= !sys::F_PER_IO_TASK;
        }
        let zoned = flags & sys::F_ZONED != 0;
        if zoned && flags & (sys::F_USER_COPY | sys::F_ZERO_COPY) == 0 {
            return Err(-libc::EINVAL);
        }
        if flags & sys::F_INTEGRITY != 0 && flags & sys::F_USER_COPY == 0 {
            return Err(-libc::EINVAL);
        }
        Ok(flags)
    }

    fn get_info(&self, id: u32, argument: &mut [u8]) -> Result<i32, i32> {
        match self.devices[&id].info.write_to_prefix(argument) {
            Ok(()) => Ok(0),
            Err(_) => EINVAL,
        }
    }

    fn set_params(&mut self, id: u32, argument: &[u8]) -> Result<i32, i32> {
        let (mut params, len) = parse_params(argument)?;
        if params.types == 0 {
            return EINVAL;
        }
        let device = self.devices.get_mut(&id).expect("the device was found");
        if device.used {
            return Err(-libc::EACCES);
        }
        // What lies beyond the given length stays as it was.
        let mut whole = device.params;
        whole.as_mut_bytes()[..len].copy_from_slice(&params.as_bytes()[..len]);
        whole.types &= self.profile.params;
        params = whole;
        let verdict = params::valid(&self.profile, device, &params);
        device.params = params;
        if let Err(errno) = verdict {
            device.params.types = 0;
            return Err(errno);
        }
        Ok(0)
    }

    fn get_params(&self, id: u32, argument: &mut [u8]) -> Result<i32, i32> {
        let (_, len) = parse_params(argument)?;
        let device = &self.devices[&id];
        let mut params = device.params;
        params.types |= sys::PARAM_NODES;
        params.nodes = [240, id, 0, 0];
        if device.disk {
            params.nodes[2..].copy_from_slice(&[259, id]);
        }
        argument[..len].copy_from_slice(&params.as_bytes()[..len]);
        Ok(0)
    }

    fn update_size(&mut self, id: u32, sectors: u64) -> Result<i32, i32> {
        let device = self.devices.get_mut(&id).expect("the device was found");
        if !device.disk {
            return Err(-libc::ENODEV);
        }
        device.params.basic.sectors = sectors;
        Ok(0)
    }

    fn try_stop(&mut self, id: u32) -> Outcome {
        let device = self.devices.get_mut(&id).expect("the device was found");
        if !device.disk {
            return Outcome::Done(-libc::ENODEV);
        }
        if device.clients > 0 {
            return Outcome::Done(-libc::EBUSY);
        }
        device.block_open = true;
        self.stop(id)
    }

    /// Ends a command that waits with `EINTR`.
    pub(super) fn cancel_control(&mut self, id: ControlId) {
        if self.pending_controls.remove(&id).is_some() {
            self.control_results.insert(id, -libc::EINTR);
        }
    }

    pub(super) fn wait_for(&mut self, id: u32, reason: WaitReason) -> Outcome {
        Outcome::Pending(self.wait(id, reason))
    }
}

/// Reads parameters, as long as their own `len` says.
fn parse_params(argument: &[u8]) -> Result<(Params, usize), i32> {
    let given = argument
        .first_chunk::<4>()
        .map(|len| u32::from_ne_bytes(*len) as usize)
        .ok_or(-libc::EINVAL)?;
    if given == 0 || given > argument.len() || argument.len() <= 8 {
        return Err(-libc::EINVAL);
    }
    let len = given.min(size_of::<Params>());
    let mut params = Params::default();
    params.as_mut_bytes()[..len].copy_from_slice(&argument[..len]);
    Ok((params, len))
}

fn new_device(info: DeviceInfo) -> std::io::Result<Device> {
    let memory = rustix::fs::memfd_create("ublk-fake", rustix::fs::MemfdFlags::CLOEXEC)?;
    let len = u64::from(info.queues) * crate::device::queue_descriptors_bytes(&info);
    rustix::fs::ftruncate(&memory, len)?;
    let inode = rustix::fs::fstat(&memory)?.st_ino;
    let queue = || Queue {
        tags: (0..info.depth).map(|_| Tag::default()).collect(),
        ..Queue::default()
    };
    Ok(Device {
        info,
        params: Params::default(),
        queues: (0..info.queues).map(|_| queue()).collect(),
        opener: None,
        open: false,
        release: Release::Idle,
        release_in: 0,
        disk: false,
        used: false,
        clients: 0,
        stopping: false,
        block_open: false,
        deleted: false,
        exit_noticed: false,
        memory,
        inode,
    })
}
