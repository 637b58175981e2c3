//! Opens a device of a given number, whatever its state: it does not exist yet, it was left behind, or
//! it is taken over from a server that is gone or about to be.
//!
//! A successor that is faster than the driver sees the device LIVE (the driver has not processed the
//! exit of the old server), then QUIESCED and still open, then free. All of that is waited for, with
//! pauses from 1 to 50 ms, and never answered by adding a second device. Only the driver's result of
//! START_USER_RECOVERY counts: states and process ids say too little, and differ among kernels.
//!
//! Before 6.16 a recovery cannot be started twice: whatever can fail in this process comes before
//! START_USER_RECOVERY, and after it END_USER_RECOVERY gets time, whatever the deadline.
//!
//! A device without a disk cannot be started if a server has fetched its tags before: the driver keeps
//! the state of that server, refuses FETCH, and START_DEV does not wait. So such a device is deleted and
//! added again. A device that is being deleted looks the same until no process has it open; that is
//! waited for, too.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reactor::Handle;

use super::add::{add, check_serving};
use super::inventory::delete;
use super::live::LiveDevice;
use super::options::QueueOptions;
use super::served::{Attach, Origin, ServedDevice, open_char};
use super::state::{DeviceState, has_visible_server};
use crate::backoff::Backoff;
use crate::control::{COMMAND_TIMEOUT, ControlDevice};
use crate::error::{Error, ErrorKind, Operation};
use crate::negotiate::{self, Grant};
use crate::queue::Handler;
use crate::spec::DeviceSpec;
use crate::sys::DeviceInfo;

/// What to open, and what serves it.
#[derive(Clone, Copy, Debug)]
pub struct OpenRequest<'a> {
    /// The control device.
    pub control: &'a ControlDevice,
    /// The device's number.
    pub id: u32,
    /// What the device is to be. Its own `id` is ignored.
    pub spec: &'a DeviceSpec,
    /// The reactors that serve the queues, in turn.
    pub reactors: &'a [Handle],
    /// Options of the queues.
    pub options: &'a QueueOptions,
    /// How long it may take.
    pub within: Duration,
}

/// Brings a device to LIVE, with the handler that `build` makes for each queue: adds it as the spec
/// says, or takes it over as it is. A device that is taken over keeps its queues, depth, flags and disk.
///
/// Steps in progress are not cut short at the deadline: a recovery that was started has 10 s, a driver
/// that does not answer GET_DEV_INFO has as long, and undoing a failure takes up to 5 s a step.
///
/// In the process that served the device before, give it new reactors: kernels before 6.16 bind a
/// device to the threads that fetched its tags.
///
/// If recovery fails after it was started, its queues may be on the reactors already: close those
/// before another try.
pub fn open_or_recover<H: Handler + Send>(
    request: OpenRequest<'_>,
    build: impl FnMut(u16) -> H,
) -> Result<(LiveDevice, Origin), Error> {
    let deadline = Instant::now() + request.within;
    let mut opening = OpenProcedure {
        spec: DeviceSpec {
            id: Some(request.id),
            ..request.spec.clone()
        },
        request,
        build,
        prepared: None,
        deadline,
    };
    opening.spec.check()?;
    let mut backoff = Backoff::until(deadline);
    loop {
        match opening.attempt()? {
            Attempt::Done(live, origin) => return Ok((live, origin)),
            Attempt::Retry(reason) if !backoff.sleep() => return Err(reason),
            Attempt::Retry(_) => {}
        }
    }
}

struct OpenProcedure<'a, H, B> {
    request: OpenRequest<'a>,
    spec: DeviceSpec,
    build: B,
    /// What an earlier attempt has prepared.
    prepared: Option<PreparedDevice<H>>,
    deadline: Instant,
}

/// The result of all steps that can fail in this process before a device is taken over.
struct PreparedDevice<H> {
    /// Of the device as it was then.
    shape: DeviceShape,
    grant: Grant,
    handlers: Vec<H>,
}

/// What a grant and its handlers depend on.
#[derive(PartialEq, Eq)]
struct DeviceShape {
    queues: u16,
    depth: u16,
    io_bytes_max: u32,
    flags: u64,
}

impl DeviceShape {
    fn of(info: &DeviceInfo) -> DeviceShape {
        DeviceShape {
            queues: info.queues,
            depth: info.depth,
            io_bytes_max: info.io_bytes_max,
            flags: info.flags,
        }
    }
}

enum Attempt {
    Done(LiveDevice, Origin),
    /// Worth another attempt; if there is no time, this is the reason.
    Retry(Error),
}

/// A transient error is worth another attempt. A device that is not found is one to be added.
fn retry_if_transient(error: Error) -> Result<Attempt, Error> {
    match error.kind() {
        ErrorKind::Busy | ErrorKind::InUse | ErrorKind::NotFound => Ok(Attempt::Retry(error)),
        _ => Err(error),
    }
}

impl<H: Handler + Send, B: FnMut(u16) -> H> OpenProcedure<'_, H, B> {
    fn attempt(&mut self) -> Result<Attempt, Error> {
        let within = self.remaining().clamp(Backoff::MAX, COMMAND_TIMEOUT);
        let id = self.request.id;
        let info = match self.request.control.info_within(id, within) {
            Err(error) if error.kind() == ErrorKind::NotFound => return self.add(),
            info => info?,
        };
        match DeviceState::of(&info) {
            DeviceState::Dead => self.delete_dead(),
            DeviceState::Live => Ok(Attempt::Retry(self.still_served_error(&info))),
            DeviceState::Quiesced | DeviceState::FailIo => self.recover(&info),
            DeviceState::Unknown(state) => Err(Error::new(
                Operation::Info,
                ErrorKind::Invalid,
                format!("it is in state {state}, which this library does not know"),
                "use a newer version of it",
            )
            .on_device(id)),
        }
    }

    fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn still_served_error(&self, info: &DeviceInfo) -> Error {
        let (detail, remedy) = if has_visible_server(info) {
            (
                format!("process {} serves it", info.server_pid),
                "end that process first; a device has one server",
            )
        } else {
            (
                "its server is not visible here, and the driver has not noticed that it is gone"
                    .to_owned(),
                "allow it more time; look into other process id namespaces (containers); see the kernel \
                 log for hung tasks",
            )
        };
        Error::new(Operation::StartRecovery, ErrorKind::InUse, detail, remedy)
            .on_device(self.request.id)
    }

    fn add(&mut self) -> Result<Attempt, Error> {
        let OpenRequest {
            control,
            reactors,
            options,
            ..
        } = self.request;
        let added = match add(control, &self.spec, H::MODES) {
            Ok(added) => added,
            // Another process was faster, or the number is not free yet.
            Err(error) => return retry_if_transient(error),
        };
        let attached = added.attach(reactors, options, &mut self.build)?;
        let live = attached.start(self.remaining())?;
        Ok(Attempt::Done(live, Origin::Added))
    }

    /// Negotiates what the device has, and makes handlers for its queues, so that nothing of that fails
    /// later. Uses what an earlier attempt has prepared and not used.
    fn prepare(&mut self, info: &DeviceInfo) -> Result<PreparedDevice<H>, Error> {
        let shape = DeviceShape::of(info);
        let earlier = self.prepared.take();
        if let Some(prepared) = earlier.filter(|earlier| earlier.shape == shape) {
            return Ok(prepared);
        }
        let OpenRequest {
            control,
            id,
            reactors,
            options,
            ..
        } = self.request;
        let grant = negotiate::inherit(&self.spec, control.offer(), H::MODES, info)?;
        check_serving::<H>(id, &grant, reactors, options)?;
        let shares = options.queue_shares(&grant, reactors.len());
        let handlers = shares.map(|share| (self.build)(share.queue)).collect();
        Ok(PreparedDevice {
            shape,
            grant,
            handlers,
        })
    }

    /// Deletes a device without a disk, because the kernel does not start one whose tags may have been
    /// fetched before; the next attempt adds it. It is held open meanwhile, so that no other server takes
    /// it.
    fn delete_dead(&mut self) -> Result<Attempt, Error> {
        let (control, id) = (self.request.control, self.request.id);
        let char_device = match control.open_char(id) {
            Ok(char_device) => char_device,
            Err(error) => return retry_if_transient(error),
        };
        let deleted = control.delete_async(id, COMMAND_TIMEOUT);
        drop(char_device);
        match deleted {
            // Before 6.9 the driver only deletes what no process has open.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                delete(control, id, self.remaining().max(Backoff::MAX))?;
            }
            Err(error) => return retry_if_transient(error),
            Ok(()) => {}
        }
        let busy = Error::new(
            Operation::Delete,
            ErrorKind::Busy,
            "it is deleted, and its number is not free",
            "see who has its disk or its character device open",
        );
        Ok(Attempt::Retry(busy.on_device(id)))
    }

    fn recover(&mut self, info: &DeviceInfo) -> Result<Attempt, Error> {
        let prepared = self.prepare(info)?;
        let (control, id) = (self.request.control, self.request.id);
        if let Err(error) = control.start_recovery(id, self.remaining()) {
            self.prepared = Some(prepared);
            return retry_if_transient(error);
        }
        let deadline = self.deadline.max(Instant::now() + COMMAND_TIMEOUT);
        let char_device = open_char(control, id, deadline)?;
        let served = self.attach(prepared, char_device)?;
        let cancel = served.monitor.start_cancel();
        let server = std::process::id();
        let mut backoff = Backoff::until(deadline);
        loop {
            match control.end_recovery(id, server, backoff.remaining(), cancel) {
                Ok(()) => {
                    let live = LiveDevice::new(served);
                    return Ok(Attempt::Done(live, Origin::Recovered));
                }
                Err(error) if error.kind() == ErrorKind::Busy && backoff.sleep() => {}
                Err(error) => return Err(served.undo(error)),
            }
        }
    }

    fn attach(
        &self,
        prepared: PreparedDevice<H>,
        char_device: Arc<OwnedFd>,
    ) -> Result<ServedDevice, Error> {
        let attach = Attach {
            control: self.request.control.clone(),
            id: self.request.id,
            grant: prepared.grant,
            origin: Origin::Recovered,
            char_device,
            reactors: self.request.reactors,
            options: self.request.options,
        };
        ServedDevice::attach(attach, prepared.handlers)
    }
}
