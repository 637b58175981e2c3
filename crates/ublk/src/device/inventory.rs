//! The devices that exist, whoever serves them: listed, removed, deleted.
//!
//! A device without a server is taken over by [`super::open_or_recover`] with its number.

use std::time::{Duration, Instant};

use super::state::{DeviceState, has_visible_server};
use crate::backoff::Backoff;
use crate::control::ControlDevice;
use crate::error::{Error, ErrorKind, Operation};
use crate::sys::DeviceInfo;

/// A device that exists.
#[derive(Clone, Copy, Debug)]
pub struct DeviceStatus {
    /// What the driver says about it.
    pub info: DeviceInfo,
    /// Its state.
    pub state: DeviceState,
    /// Whether a process serves it, or did until a moment ago. For a DEAD device this cannot be known:
    /// a process may be about to start it.
    pub has_server: bool,
}

/// All devices, whoever serves them.
pub fn list(control: &ControlDevice) -> Result<Vec<DeviceStatus>, Error> {
    let mut devices = Vec::new();
    for id in control.devices()? {
        match control.info(id) {
            Ok(info) => devices.push(DeviceStatus {
                info,
                state: DeviceState::of(&info),
                has_server: has_server(control, &info),
            }),
            // Deleted meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(devices)
}

/// The devices without a server: to be recovered or removed.
pub fn list_unserved(control: &ControlDevice) -> Result<Vec<DeviceStatus>, Error> {
    let mut devices = list(control)?;
    devices.retain(|device| !device.has_server);
    Ok(devices)
}

/// Removes a device without a server, with its disk; requests that wait there fail. It is no error
/// if no device has this number.
pub fn remove(control: &ControlDevice, id: u32, within: Duration) -> Result<(), Error> {
    let deadline = Instant::now() + within;
    let mut backoff = Backoff::until(deadline);
    loop {
        let info = match control.info(id) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            info => info?,
        };
        if !has_server(control, &info) {
            break;
        }
        // A server that just died counts until the driver has noticed.
        if has_visible_server(&info) || !backoff.sleep() {
            return Err(in_use(&info));
        }
    }
    let allow_not_found = |result: Result<(), Error>| match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    };
    allow_not_found(control.stop(id, within))?;
    let remaining = deadline.saturating_duration_since(Instant::now());
    allow_not_found(delete(control, id, remaining))
}

/// Deletes a device and waits until its number is free, or another device has it.
pub(super) fn delete(control: &ControlDevice, id: u32, within: Duration) -> Result<(), Error> {
    let begun = Instant::now();
    let mut backoff = Backoff::until(begun + within);
    match control.delete_async(id, within) {
        // Before 6.9 the driver has only the command that waits.
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            return control.delete(id, backoff.remaining());
        }
        result => result?,
    }
    loop {
        match control.info_within(id, backoff.remaining().max(Backoff::MAX)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() != ErrorKind::TimedOut => return Err(error),
            _ => {}
        }
        // A deleted device is not listed any more: this is a new device with the same number.
        if control.devices()?.contains(&id) {
            return Ok(());
        }
        if !backoff.sleep() {
            return Err(Error::timed_out(
                Operation::Delete,
                Some(id),
                begun.elapsed(),
            ));
        }
    }
}

/// A LIVE device has a server. Where its process is not visible here, it may be dead, or in another
/// process id namespace: then it has the character device open.
fn has_server(control: &ControlDevice, info: &DeviceInfo) -> bool {
    let is_open = || {
        let opened = control.open_char(info.device);
        opened.is_err_and(|error| error.kind() == ErrorKind::InUse)
    };
    DeviceState::of(info) == DeviceState::Live && (has_visible_server(info) || is_open())
}

fn in_use(info: &DeviceInfo) -> Error {
    let (detail, remedy) = if has_visible_server(info) {
        (
            format!("process {} serves it", info.server_pid),
            "end that process, or have it stop the device",
        )
    } else {
        (
            "a process that is not visible here has it open".to_owned(),
            "look into other process id namespaces (containers) for its server",
        )
    };
    Error::new(Operation::Delete, ErrorKind::InUse, detail, remedy).on_device(info.device)
}
