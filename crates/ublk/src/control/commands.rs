//! One method per command of the driver, with typed arguments and results.
//!
//! A command that the kernel does not offer is refused here with the feature's name, before it is
//! issued. Devices are named by number: the types of the lifecycle, which prevent a wrong order, are in
//! [`crate::device`].

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::port::{Failure, Reply};
use super::{COMMAND_TIMEOUT, Call, CancelToken, Completion, ControlDevice};
use crate::error::{Error, ErrorKind, Operation};
use crate::features::Features;
use crate::sys::{self, DeviceInfo, Params};

/// How much later than its deadline a command may report its time-out.
const COMPLETION_SLACK: Duration = Duration::from_millis(20);

impl ControlDevice {
    /// The kernel's feature mask.
    pub(super) fn kernel_features(&self) -> Result<Features, Error> {
        let call = Call::new(Operation::Features, sys::GET_FEATURES, None).argument(vec![0; 8]);
        let bits = self.query::<u64>(call, COMMAND_TIMEOUT)?;
        Ok(Features::from_bits(bits))
    }

    /// Adds a device, and returns it as the driver granted it. The device number `u32::MAX` means any.
    pub fn add_device(&self, wanted: &DeviceInfo, within: Duration) -> Result<DeviceInfo, Error> {
        let mut call =
            Call::new(Operation::Add, sys::ADD_DEVICE, None).argument(wanted.as_bytes().to_vec());
        call.command.header.device = wanted.device;
        call.device = (wanted.device != u32::MAX).then_some(wanted.device);
        self.query(call, within)
    }

    /// Deletes a device and waits until its number is free: until no process has it open or mapped.
    /// If another device gets the number in between, the driver waits for that one, too:
    /// [`crate::device::StoppedDevice::delete`] does not.
    pub fn delete(&self, device: u32, within: Duration) -> Result<(), Error> {
        self.execute(
            Call::new(Operation::Delete, sys::DELETE_DEVICE, device),
            within,
        )
    }

    /// Deletes a device without waiting for processes that have it open (6.9).
    pub fn delete_async(&self, device: u32, within: Duration) -> Result<(), Error> {
        let call = Call::new(Operation::Delete, sys::DELETE_DEVICE_ASYNC, device);
        self.execute(call, within)
    }

    /// Starts the disk (START_DEV). Waits until every tag is fetched; `cancel` ends the wait. `server` is
    /// the process that has the character device open.
    pub fn start(
        &self,
        device: u32,
        server: u32,
        within: Duration,
        cancel: &CancelToken,
    ) -> Result<(), Error> {
        let call = Call::new(Operation::Start, sys::START_DEVICE, device).data(server.into());
        self.run(&call, within, cancel).map(drop)
    }

    /// Stops the disk once its requests are served, and aborts its tags.
    pub fn stop(&self, device: u32, within: Duration) -> Result<(), Error> {
        self.execute(Call::new(Operation::Stop, sys::STOP_DEVICE, device), within)
    }

    /// [`ControlDevice::stop`], unless a process has the disk open (7.0).
    pub fn try_stop(&self, device: u32, within: Duration) -> Result<(), Error> {
        self.require_feature(Operation::TryStop, device, sys::F_SAFE_STOP)?;
        let call = Call::new(Operation::TryStop, sys::TRY_STOP_DEVICE, device);
        self.execute(call, within)
    }

    /// Sets the disk's parameters, before its first start.
    pub fn set_params(&self, device: u32, params: &Params) -> Result<(), Error> {
        let call = Call::new(Operation::SetParams, sys::SET_PARAMS, device)
            .argument(params.as_bytes().to_vec());
        self.execute(call, COMMAND_TIMEOUT)
    }

    /// The disk's parameters.
    pub fn params(&self, device: u32) -> Result<Params, Error> {
        let wanted = Params {
            len: size_of::<Params>() as u32,
            ..Params::default()
        };
        let call = Call::new(Operation::GetParams, sys::GET_PARAMS, device)
            .argument(wanted.as_bytes().to_vec());
        self.query(call, COMMAND_TIMEOUT)
    }

    /// The device's state and flags.
    pub fn info(&self, device: u32) -> Result<DeviceInfo, Error> {
        self.info_within(device, COMMAND_TIMEOUT)
    }

    /// [`ControlDevice::info`] with a deadline of its own, for probes.
    pub fn info_within(&self, device: u32, within: Duration) -> Result<DeviceInfo, Error> {
        self.query(info_call(device), within)
    }

    /// The states of many devices, read at the same time. Returns in time, whatever the driver does:
    /// a command that has not completed then has timed out.
    pub(crate) fn infos(
        &self,
        devices: &[u32],
        within: Duration,
    ) -> Vec<(u32, Result<DeviceInfo, Error>)> {
        let replies = self.run_concurrently(devices, info_call, within);
        let parsed = replies.into_iter().map(|(device, reply)| {
            let info =
                reply.and_then(|reply| parse(Operation::Info, device, reply.argument.bytes()));
            (device, info)
        });
        parsed.collect()
    }

    /// Makes the driver hold back new requests of many devices at the same time, for a server that is
    /// about to exit and has no requests in hand (6.16). Returns the devices where this failed, and why.
    /// Returns in time, whatever the driver does.
    ///
    /// The driver also cancels FETCH of idle tags. Whether there are any does not matter here, because
    /// the server's rings close next: the driver gets no time to wait for them.
    pub(crate) fn quiesce_all(&self, devices: &[u32], within: Duration) -> Vec<(u32, Error)> {
        let call = |device| Call::new(Operation::Quiesce, sys::QUIESCE_DEVICE, device).data(1);
        let replies = self.run_concurrently(devices, call, within);
        let refused = replies.into_iter().filter_map(|(device, reply)| {
            let error = reply.err()?;
            // No tag is idle, or a signal came: it holds requests back already.
            let done = matches!(error.errno(), Some(libc::EBUSY | libc::EINTR));
            (!done).then_some((device, error))
        });
        refused.collect()
    }

    /// Submits a command for each device, and collects the completions until the time is up.
    fn run_concurrently(
        &self,
        devices: &[u32],
        call: impl Fn(u32) -> Call,
        within: Duration,
    ) -> Vec<(u32, Result<Reply, Error>)> {
        let begun = Instant::now();
        let submit = |&device: &u32| {
            let call = call(device);
            let (_, receiver) = self.submit(&call, begun + within);
            (call, receiver)
        };
        let submitted: Vec<_> = devices.iter().map(submit).collect();
        let receive = |(&device, (call, receiver)): (&u32, (Call, Receiver<Completion>))| {
            let remaining = (within + COMPLETION_SLACK).saturating_sub(begun.elapsed());
            let completed = receiver
                .recv_timeout(remaining)
                .unwrap_or_else(|error| match error {
                    RecvTimeoutError::Timeout => Err(Failure::TimedOut),
                    RecvTimeoutError::Disconnected => Err(Failure::Closed),
                });
            let reply = completed.map_err(|failure| call.error(failure, begun.elapsed()));
            (device, reply)
        };
        devices.iter().zip(submitted).map(receive).collect()
    }

    /// Starts recovery by a new server: EBUSY until the last server is gone.
    pub fn start_recovery(&self, device: u32, within: Duration) -> Result<(), Error> {
        let call = Call::new(Operation::StartRecovery, sys::START_RECOVERY, device);
        self.execute(call, within)
    }

    /// Ends recovery: the disk belongs to the new server. Waits until every tag is fetched; `cancel` ends the
    /// wait.
    pub fn end_recovery(
        &self,
        device: u32,
        server: u32,
        within: Duration,
        cancel: &CancelToken,
    ) -> Result<(), Error> {
        let call = Call::new(Operation::EndRecovery, sys::END_RECOVERY, device).data(server.into());
        self.run(&call, within, cancel).map(drop)
    }

    /// Changes the size of a LIVE disk, in sectors of 512 bytes (6.16).
    pub fn update_size(&self, device: u32, sectors: u64) -> Result<(), Error> {
        self.require_feature(Operation::Resize, device, sys::F_UPDATE_SIZE)?;
        let call = Call::new(Operation::Resize, sys::UPDATE_SIZE, device).data(sectors);
        self.execute(call, COMMAND_TIMEOUT)
    }

    /// Takes the server away from a LIVE disk: new requests wait, idle tags are aborted (6.16). A failure
    /// does not undo it.
    pub fn quiesce(&self, device: u32, within: Duration) -> Result<(), Error> {
        self.require_feature(Operation::Quiesce, device, sys::F_QUIESCE)?;
        // The driver's time limit comes before ours, so that the caller gets the driver's errno; zero
        // would mean no limit.
        let millis = u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1);
        let call = Call::new(Operation::Quiesce, sys::QUIESCE_DEVICE, device).data(millis);
        self.execute(call, within + Duration::from_secs(1))
    }

    fn require_feature(&self, operation: Operation, device: u32, flag: u64) -> Result<(), Error> {
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
        Err(Error::new(operation, ErrorKind::Unsupported, detail, remedy).on_device(device))
    }

    fn execute(&self, call: Call, within: Duration) -> Result<(), Error> {
        self.run(&call, within, &CancelToken::new()).map(drop)
    }

    /// Runs a command whose argument the driver fills with a `T`.
    fn query<T: FromBytes + Immutable>(&self, call: Call, within: Duration) -> Result<T, Error> {
        let reply = self.run(&call, within, &CancelToken::new())?;
        parse(call.operation, call.device, reply.argument.bytes())
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
