//! From a spec to a device whose queues are on reactors: added, attached, started.

use std::time::{Duration, Instant};

use reactor::Handle;

use super::inventory::delete;
use super::live::LiveDevice;
use super::options::QueueOptions;
use super::served::{Attach, Origin, ServedDevice, open_char};
use crate::control::{COMMAND_TIMEOUT, ControlDevice};
use crate::error::{Error, ErrorKind, Operation};
use crate::negotiate::{self, Grant, MissingFeature, MissingReason, RequestedFeature};
use crate::queue::Handler;
use crate::spec::{Capability, DeviceSpec, Modes};
use crate::sys::{DeviceInfo, Params};

/// How long others (udev) may keep a new character device open.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Adds a device for handlers that serve these modes ([`Handler::MODES`]). It has a number and
/// flags, and no disk yet.
pub fn add(control: &ControlDevice, spec: &DeviceSpec, modes: Modes) -> Result<AddedDevice, Error> {
    let choice = negotiate::choose_flags(spec, control.offer(), modes)?;
    let params = spec.disk.params(spec.io_bytes_max)?;
    let requested = DeviceInfo {
        queues: spec.queues,
        depth: spec.depth,
        io_bytes_max: spec.io_bytes_max,
        device: spec.id.unwrap_or(u32::MAX),
        server_flags: spec.server_flags,
        flags: choice.flags.bits(),
        ..DeviceInfo::default()
    };
    let info = control.add_device(&requested, COMMAND_TIMEOUT)?;
    let id = info.device;
    let result = negotiate::check_grant(spec, choice, control.offer(), &info).and_then(|grant| {
        // A limit that the kernel sets on the request size holds for the disk, too.
        let requested = spec.disk.params(grant.io_bytes_max).unwrap_or(params);
        set_params(control, id, grant, &requested)
    });
    match result {
        Ok((grant, params)) => Ok(AddedDevice {
            control: control.clone(),
            id,
            grant,
            params,
        }),
        Err(error) => {
            undo_add(control, id);
            Err(error)
        }
    }
}

/// Sets the disk's parameters, and reads back which of them the kernel accepted: it ignores the kinds
/// that it does not know, without an error.
fn set_params(
    control: &ControlDevice,
    id: u32,
    mut grant: Grant,
    requested: &Params,
) -> Result<(Grant, Params), Error> {
    control.set_params(id, requested)?;
    let accepted = control.params(id)?;
    let missing = requested.types & !accepted.types;
    if missing != 0 {
        grant.missing.push(MissingFeature {
            feature: RequestedFeature::Params(missing),
            reason: MissingReason::NotGranted,
        });
    }
    Ok((grant, accepted))
}

/// Deletes a device that was added and not opened.
fn undo_add(control: &ControlDevice, id: u32) {
    if let Err(error) = delete(control, id, COMMAND_TIMEOUT) {
        tracing::warn!(device = id, %error, "ublk: a device that was just added is not deleted");
    }
}

/// A device that has no server and no disk yet.
#[derive(Debug)]
pub struct AddedDevice {
    control: ControlDevice,
    id: u32,
    grant: Grant,
    params: Params,
}

impl AddedDevice {
    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What the driver granted.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The parameters of its disk, as the driver accepted them.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Opens the device and attaches its queues to the reactors, queue `n` to the `n`-th of them and
    /// so on in turn, with the handler that `build` makes for it; or all queues to all reactors
    /// ([`QueueOptions::spread`]). If this fails the device is deleted.
    pub fn attach<H: Handler + Send>(
        self,
        reactors: &[Handle],
        options: &QueueOptions,
        mut build: impl FnMut(u16) -> H,
    ) -> Result<AttachedDevice, Error> {
        let (control, id) = (self.control, self.id);
        let opened = check_serving::<H>(id, &self.grant, reactors, options)
            .and_then(|()| open_char(&control, id, Instant::now() + OPEN_TIMEOUT));
        let char_device = match opened {
            Ok(char_device) => char_device,
            Err(error) => {
                undo_add(&control, id);
                return Err(error);
            }
        };
        let shares = options.queue_shares(&self.grant, reactors.len());
        let handlers = shares.map(|share| build(share.queue)).collect();
        let attach = Attach {
            control: control.clone(),
            id,
            grant: self.grant,
            origin: Origin::Added,
            char_device,
            reactors,
            options,
        };
        let served = ServedDevice::attach(attach, handlers).inspect_err(|error| {
            // An error after queues were attached has deleted the device already.
            if error.operation() == Operation::Map {
                undo_add(&control, id);
            }
        })?;
        Ok(AttachedDevice { served })
    }

    /// Deletes it.
    pub fn delete(self, within: Duration) -> Result<(), Error> {
        delete(&self.control, self.id, within)
    }
}

/// Whether these handlers and reactors can serve the device at all.
pub(super) fn check_serving<H: Handler>(
    id: u32,
    grant: &Grant,
    reactors: &[Handle],
    options: &QueueOptions,
) -> Result<(), Error> {
    let refused = |kind, detail: String, remedy: &'static str| {
        Err(Error::new(Operation::Attach, kind, detail, remedy).on_device(id))
    };
    if options.spread && !grant.has(Capability::PerIoTask) {
        return refused(
            ErrorKind::NotGranted,
            "several threads cannot share its queues".to_owned(),
            "use Linux 6.16 or newer, or serve every queue by one reactor",
        );
    }
    if reactors.is_empty() {
        return refused(
            ErrorKind::Invalid,
            "there is no reactor for it".to_owned(),
            "give it at least one",
        );
    }
    if reactors.iter().any(|reactor| reactor.post(|_| ()).is_err()) {
        return refused(
            ErrorKind::Closed,
            "a reactor has stopped".to_owned(),
            "give it reactors that run",
        );
    }
    if H::MODES.has(grant.mode) {
        return Ok(());
    }
    let (mode, modes) = (grant.mode, H::MODES);
    refused(
        ErrorKind::HandlerMismatch,
        format!("its data mode is {mode}, and this handler serves {modes}"),
        "add it for the modes of the handler that is to serve it",
    )
}

/// A device whose queues are on reactors, and issue FETCH for their tags.
#[derive(Debug)]
pub struct AttachedDevice {
    served: ServedDevice,
}

impl AttachedDevice {
    /// Its number.
    pub fn id(&self) -> u32 {
        self.served.id
    }

    /// What the driver granted.
    pub fn grant(&self) -> &Grant {
        &self.served.grant
    }

    /// Brings up the disk (START_DEV), which the driver does once every tag is fetched. If this fails,
    /// because the driver refuses a FETCH or at the deadline, a device that was added here is deleted.
    pub fn start(self, within: Duration) -> Result<LiveDevice, Error> {
        let served = self.served;
        let server = std::process::id();
        let cancel = served.monitor.start_cancel();
        match served.control.start(served.id, server, within, cancel) {
            Ok(()) => Ok(LiveDevice::new(served)),
            Err(error) => Err(served.undo(error)),
        }
    }
}
