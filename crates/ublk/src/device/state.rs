//! The state of a device, as the driver gives it.

use std::path::Path;

use crate::sys;

/// The driver's state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceState {
    /// Added or stopped: it has no disk.
    Dead,
    /// It has a server; or its server is dead and the driver has not noticed yet.
    Live,
    /// It has no server, and requests wait for the next one.
    Quiesced,
    /// It has no server, and requests fail until the next one comes.
    FailIo,
    /// A state that this library does not know.
    Unknown(u16),
}

impl DeviceState {
    /// From the driver's number.
    pub fn of(info: &sys::DeviceInfo) -> DeviceState {
        match info.state {
            sys::STATE_DEAD => DeviceState::Dead,
            sys::STATE_LIVE => DeviceState::Live,
            sys::STATE_QUIESCED => DeviceState::Quiesced,
            sys::STATE_FAIL_IO => DeviceState::FailIo,
            other => DeviceState::Unknown(other),
        }
    }
}

/// Whether the device is LIVE and its server's process is visible here.
pub(super) fn has_visible_server(info: &sys::DeviceInfo) -> bool {
    let exists = || {
        Path::new("/proc")
            .join(info.server_pid.to_string())
            .exists()
    };
    DeviceState::of(info) == DeviceState::Live && info.server_pid > 0 && exists()
}
