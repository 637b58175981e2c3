//! One method per command of the driver: what goes in, what comes out, what must be there.
//!
//! What a kernel does not offer is refused here, by name, before it is asked. Devices are named
//! by number: the lifecycle's types, which keep a caller from the wrong order, are in
//! [`crate::device`].

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::port::{Answer, Failure};
use super::{Call, Cancel, Control, Ended, QUICK};
use crate::error::{Error, Kind, Operation};
use crate::features::Features;
use crate::sys::{self, DeviceInfo, Params, SharedBuffer};

/// Room for the processors of a queue: 8192 of them.
const AFFINITY_BYTES: usize = 1024;

/// How much later than its deadline a command's end may be told.
const LATE: Duration = Duration::from_millis(20);

impl Control {
    /// The kernel's own mask of features.
    pub(super) fn kernel_features(&self) -> Result<Features, Error> {
        let call = Call::new(Operation::Features, sys::GET_FEATURES, None).argument(vec![0; 8]);
        let bits = self.ask::<u64>(call, QUICK)?;
        Ok(Features::from_bits(bits))
    }

    /// Adds a device; the driver says what it made of the request. A device number of `u32::MAX`
    /// means any.
    pub fn add_device(&self, wanted: &DeviceInfo, within: Duration) -> Result<DeviceInfo, Error> {
        let mut call =
            Call::new(Operation::Add, sys::ADD_DEVICE, None).argument(wanted.as_bytes().to_vec());
        call.command.header.device = wanted.device;
        call.device = (wanted.device != u32::MAX).then_some(wanted.device);
        self.ask(call, within)
    }

    /// Deletes a device and waits until its number is free: until nobody has it open or mapped.
    /// Where another device gets the number in between, the driver waits for that one, too:
    /// [`crate::device::Stopped::delete`] does not.
    pub fn delete(&self, device: u32, within: Duration) -> Result<(), Error> {
        self.tell(
            Call::new(Operation::Delete, sys::DELETE_DEVICE, device),
            within,
        )
    }

    /// Deletes a device without waiting for those who have it open (6.9).
    pub fn delete_async(&self, device: u32, within: Duration) -> Result<(), Error> {
        let call = Call::new(Operation::Delete, sys::DELETE_DEVICE_ASYNC, device);
        self.tell(call, within)
    }

    /// Brings up the disk. Waits until every tag is fetched; `cancel` ends the wait. `server` is
    /// the process that has the character device open.
    pub fn start(
        &self,
        device: u32,
        server: u32,
        within: Duration,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let call = Call::new(Operation::Start, sys::START_DEVICE, device).data(server.into());
        self.run(&call, within, cancel).map(drop)
    }

    /// Takes the disk down, after what it has is served, and aborts its tags.
    pub fn stop(&self, device: u32, within: Duration) -> Result<(), Error> {
        self.tell(Call::new(Operation::Stop, sys::STOP_DEVICE, device), within)
    }

    /// [`Control::stop`], unless somebody has the disk open (7.0).
    pub fn try_stop(&self, device: u32, within: Duration) -> Result<(), Error> {
        self.needs(Operation::TryStop, device, sys::F_SAFE_STOP)?;
        let call = Call::new(Operation::TryStop, sys::TRY_STOP_DEVICE, device);
        self.tell(call, within)
    }

    /// Sets what the disk looks like, before its first start.
    pub fn set_params(&self, device: u32, params: &Params) -> Result<(), Error> {
        let call = Call::new(Operation::SetParams, sys::SET_PARAMS, device)
            .argument(params.as_bytes().to_vec());
        self.tell(call, QUICK)
    }

    /// What the disk looks like.
    pub fn params(&self, device: u32) -> Result<Params, Error> {
        let wanted = Params {
            len: size_of::<Params>() as u32,
            ..Params::default()
        };
        let call = Call::new(Operation::GetParams, sys::GET_PARAMS, device)
            .argument(wanted.as_bytes().to_vec());
        self.ask(call, QUICK)
    }

    /// The device's state and flags.
    pub fn info(&self, device: u32) -> Result<DeviceInfo, Error> {
        self.info_within(device, QUICK)
    }

    /// [`Control::info`] with a deadline of its own, for probes.
    pub fn info_within(&self, device: u32, within: Duration) -> Result<DeviceInfo, Error> {
        self.ask(info_call(device), within)
    }

    /// The states of many devices, asked for all at once. Returns in time, whatever the driver
    /// does: what has not answered then is late.
    pub(crate) fn infos(
        &self,
        devices: &[u32],
        within: Duration,
    ) -> Vec<(u32, Result<DeviceInfo, Error>)> {
        let answers = self.side_by_side(devices, info_call, within);
        let parsed = answers.into_iter().map(|(device, answer)| {
            let info =
                answer.and_then(|answer| parse(Operation::Info, device, answer.argument.bytes()));
            (device, info)
        });
        parsed.collect()
    }

    /// Makes the driver keep new requests of many devices back, side by side, where their server
    /// is about to go and has no request any more (6.16). Those of which it is not known that it
    /// did, and why. In time, whatever the driver does.
    ///
    /// The driver also takes back what tags it can get at. Whether it gets at any does not matter
    /// here, because the server's rings close next: it is given no time to wait for them.
    pub(crate) fn quiesce_all(&self, devices: &[u32], within: Duration) -> Vec<(u32, Error)> {
        let call = |device| Call::new(Operation::Quiesce, sys::QUIESCE_DEVICE, device).data(1);
        let answers = self.side_by_side(devices, call, within);
        let refused = answers.into_iter().filter_map(|(device, answer)| {
            let error = answer.err()?;
            // No tag is idle, or a signal came: it keeps requests back already.
            let done = matches!(error.errno(), Some(libc::EBUSY | libc::EINTR));
            (!done).then_some((device, error))
        });
        refused.collect()
    }

    /// Begins a command for each device, all at once, and hears of them until the time is up.
    fn side_by_side(
        &self,
        devices: &[u32],
        call: impl Fn(u32) -> Call,
        within: Duration,
    ) -> Vec<(u32, Result<Answer, Error>)> {
        let begun = Instant::now();
        let ask = |&device: &u32| {
            let call = call(device);
            let (_, told) = self.begin(&call, begun + within);
            (device, call, told)
        };
        let asked: Vec<_> = devices.iter().map(ask).collect();
        let hear = |(device, call, told): (u32, Call, Receiver<Ended>)| {
            let left = (within + LATE).saturating_sub(begun.elapsed());
            let ended = told.recv_timeout(left).unwrap_or_else(|error| match error {
                RecvTimeoutError::Timeout => Err(Failure::Late),
                RecvTimeoutError::Disconnected => Err(Failure::Closed),
            });
            let answer = ended.map_err(|failure| call.error(failure, begun.elapsed()));
            (device, answer)
        };
        asked.into_iter().map(hear).collect()
    }

    /// The same with the rights of whoever may open the character device (6.3).
    pub fn info_by_path(&self, device: u32) -> Result<DeviceInfo, Error> {
        let mut bytes = format!("/dev/ublkc{device}").into_bytes();
        let path_len = bytes.len();
        bytes.extend_from_slice(DeviceInfo::default().as_bytes());
        let mut call = Call::new(Operation::Info, sys::GET_DEVICE_INFO2, device).argument(bytes);
        call.command.header.path_len = path_len as u16;
        let answer = self.run(&call, QUICK, &Cancel::new())?;
        parse(
            Operation::Info,
            device,
            &answer.argument.bytes()[path_len..],
        )
    }

    /// The processors whose requests a queue gets, in order.
    pub fn affinity(&self, device: u32, queue: u16) -> Result<Vec<usize>, Error> {
        let call = Call::new(Operation::Affinity, sys::GET_QUEUE_AFFINITY, device)
            .data(queue.into())
            .argument(vec![0; AFFINITY_BYTES]);
        let mask: [u8; AFFINITY_BYTES] = self.ask(call, QUICK)?;
        let is_set = |cpu: &usize| mask[cpu / 8] & 1 << (cpu % 8) != 0;
        Ok((0..AFFINITY_BYTES * 8).filter(is_set).collect())
    }

    /// Announces a new server: EBUSY until the last one is gone.
    pub fn start_recovery(&self, device: u32, within: Duration) -> Result<(), Error> {
        let call = Call::new(Operation::StartRecovery, sys::START_RECOVERY, device);
        self.tell(call, within)
    }

    /// Hands the disk to the new server. Waits until every tag is fetched; `cancel` ends the
    /// wait.
    pub fn end_recovery(
        &self,
        device: u32,
        server: u32,
        within: Duration,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let call = Call::new(Operation::EndRecovery, sys::END_RECOVERY, device).data(server.into());
        self.run(&call, within, cancel).map(drop)
    }

    /// Changes the size of a live disk, in sectors of 512 bytes (6.16).
    pub fn update_size(&self, device: u32, sectors: u64) -> Result<(), Error> {
        self.needs(Operation::Resize, device, sys::F_UPDATE_SIZE)?;
        let call = Call::new(Operation::Resize, sys::UPDATE_SIZE, device).data(sectors);
        self.tell(call, QUICK)
    }

    /// Takes the server away from a live disk: new requests wait, tags are aborted (6.16). Not
    /// undone where it fails.
    pub fn quiesce(&self, device: u32, within: Duration) -> Result<(), Error> {
        self.needs(Operation::Quiesce, device, sys::F_QUIESCE)?;
        // The driver's own limit comes first, so that its answer is the one that is told; zero
        // would mean no limit.
        let millis = u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1);
        let call = Call::new(Operation::Quiesce, sys::QUIESCE_DEVICE, device).data(millis);
        self.tell(call, within + Duration::from_secs(1))
    }

    /// Registers memory whose pages clients may hand in without a copy (7.1), and returns its
    /// index. The driver pins the pages until they are unregistered or the device is gone; it
    /// does not write to them by itself.
    pub fn register_shared(&self, device: u32, shared: &SharedBuffer) -> Result<u32, Error> {
        self.needs(Operation::RegisterShared, device, sys::F_SHARED_ZERO_COPY)?;
        let call = Call::new(Operation::RegisterShared, sys::REGISTER_SHARED, device)
            .argument(shared.as_bytes().to_vec());
        let answer = self.run(&call, QUICK, &Cancel::new())?;
        Ok(answer.result.unsigned_abs())
    }

    /// Forgets shared memory by its index (7.1).
    pub fn unregister_shared(&self, device: u32, index: u32) -> Result<(), Error> {
        self.needs(Operation::UnregisterShared, device, sys::F_SHARED_ZERO_COPY)?;
        let call = Call::new(Operation::UnregisterShared, sys::UNREGISTER_SHARED, device);
        self.tell(call.data(index.into()), QUICK)
    }

    fn needs(&self, operation: Operation, device: u32, flag: u64) -> Result<(), Error> {
        if self.features().has(flag) {
            return Ok(());
        }
        let missing = Features::from_bits(flag);
        let remedy = if self.offer.hidden().has(flag) {
            format!("unset {}", crate::spec::MASK_VARIABLE)
        } else {
            format!("use Linux {} or newer", missing.since())
        };
        let detail = format!("this kernel does not offer {missing}");
        Err(Error::new(operation, Kind::TooOld, detail, remedy).on(device))
    }

    fn tell(&self, call: Call, within: Duration) -> Result<(), Error> {
        self.run(&call, within, &Cancel::new()).map(drop)
    }

    /// Runs a command whose argument the driver fills with a `T`.
    fn ask<T: FromBytes + Immutable>(&self, call: Call, within: Duration) -> Result<T, Error> {
        let answer = self.run(&call, within, &Cancel::new())?;
        parse(call.operation, call.device, answer.argument.bytes())
    }
}

fn info_call(device: u32) -> Call {
    Call::new(Operation::Info, sys::GET_DEVICE_INFO, device)
        .argument(DeviceInfo::default().as_bytes().to_vec())
}

fn parse<T: FromBytes>(
    operation: Operation,
    device: impl Into<Option<u32>>,
    bytes: &[u8],
) -> Result<T, Error> {
    let parsed = T::read_from_bytes(bytes);
    parsed.map_err(|_| Error::kernel(operation, device.into(), libc::EPROTO))
}
