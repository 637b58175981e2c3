//! Devices that are there, and those that nobody serves: found, and removed.
//!
//! Adopting one is [`super::open_or_recover`] with its number.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Pause, State, delete};
use crate::control::Control;
use crate::error::{Error, Kind, Operation};
use crate::sys::DeviceInfo;

/// A device that is there.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// What the driver says of it.
    pub info: DeviceInfo,
    /// Its state.
    pub state: State,
    /// Whether a process serves it, or did until a moment ago. Of a dead device this cannot be known:
    /// somebody may be about to start it.
    pub served: bool,
}

impl Control {
    /// All devices, whoever serves them.
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        let mut listed = Vec::new();
        for id in self.devices()? {
            match self.info(id) {
                Ok(info) => listed.push(Listed {
                    info,
                    state: State::of(&info),
                    served: self.is_served(&info),
                }),
                // Deleted meanwhile.
                Err(error) if error.kind() == Kind::Gone => {}
                Err(error) => return Err(error),
            }
        }
        Ok(listed)
    }

    /// The devices that nobody serves: to be adopted or removed.
    pub fn orphans(&self) -> Result<Vec<Listed>, Error> {
        let mut listed = self.list()?;
        listed.retain(|one| !one.served);
        Ok(listed)
    }

    /// Removes a device that nobody serves, with its disk; what waits there fails. No device of
    /// that number is no error.
    pub fn remove(&self, id: u32, within: Duration) -> Result<(), Error> {
        let until = Instant::now() + within;
        let mut pause = Pause::until(until);
        loop {
            let info = match self.info(id) {
                Err(error) if error.kind() == Kind::Gone => return Ok(()),
                info => info?,
            };
            if !self.is_served(&info) {
                break;
            }
            // A server that just died is there until the driver has noticed.
            if has_process(&info) || !pause.wait() {
                return Err(served(&info));
            }
        }
        let gone_is_good = |result: Result<(), Error>| match result {
            Err(error) if error.kind() == Kind::Gone => Ok(()),
            result => result,
        };
        gone_is_good(self.stop(id, within))?;
        let left = until.saturating_duration_since(Instant::now());
        gone_is_good(delete(self, id, left))
    }
}

impl Control {
    /// A live device has a server. Where its process is not seen here, it may be gone, or in another
    /// process id namespace: then it has the character device open.
    fn is_served(&self, info: &DeviceInfo) -> bool {
        let is_open = || {
            let opened = self.open_char(info.device);
            opened.is_err_and(|error| error.kind() == Kind::Taken)
        };
        State::of(info) == State::Live && (has_process(info) || is_open())
    }
}

fn served(info: &DeviceInfo) -> Error {
    let (detail, remedy) = if has_process(info) {
        (
            format!("process {} serves it", info.server_pid),
            "end that process, or have it stop the device",
        )
    } else {
        (
            "somebody has it open, whose process is not seen here".to_owned(),
            "look into other process id namespaces (containers) for its server",
        )
    };
    Error::new(Operation::Delete, Kind::Taken, detail, remedy).on(info.device)
}

/// Whether the process that the driver has for a live device's server is seen here.
pub(super) fn has_process(info: &DeviceInfo) -> bool {
    let there = || {
        Path::new("/proc")
            .join(info.server_pid.to_string())
            .exists()
    };
    State::of(info) == State::Live && info.server_pid > 0 && there()
}
