//! Devices that are there, and those that nobody serves: found, and removed.
//!
//! Adopting one is [`super::open_or_recover`] with its number.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{State, delete};
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
    /// Whether a process serves it. Of a dead device this cannot be known: somebody may be about
    /// to start it.
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
                    served: is_served(&info),
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
        let info = match self.info(id) {
            Err(error) if error.kind() == Kind::Gone => return Ok(()),
            info => info?,
        };
        if is_served(&info) {
            return Err(Error::new(
                Operation::Delete,
                Kind::Taken,
                format!("process {} serves it", info.server_pid),
                "end that process, or have it stop the device",
            )
            .on(id));
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

/// A live device has a server, unless that process is gone and the driver has not noticed yet.
pub(super) fn is_served(info: &DeviceInfo) -> bool {
    let there = || {
        Path::new("/proc")
            .join(info.server_pid.to_string())
            .exists()
    };
    State::of(info) == State::Live && info.server_pid > 0 && there()
}
