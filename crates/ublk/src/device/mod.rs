//! The life of a device, as types: each state has the methods that make sense in it.
//!
//! ```text
//! Control::add -> Added --arm--> Armed --start--> Live --stop----> Stopped --delete--> gone
//!                                                  |---quiesce--> Quiesced
//! open_or_recover ---------------------------------^  (a device that is there, or a new one)
//! ```
//!
//! Dropping a value never deletes a device and never stops its disk: queues go on on their
//! reactors, and what a process leaves behind is found by [`Control::list`]. The one exception is
//! a device that was added here and never came alive: the step that fails takes it away again, so
//! that an error leaves nothing behind.
//!
//! A device leaves a ring that others use by being stopped, or quiesced (6.16). Before 6.16 a
//! disk that is to stay can leave only with the whole ring: armed commands cannot be taken back
//! one by one. Nothing here may run on a ring's thread: starting waits for that thread.

mod armed;
mod live;
mod orphans;
mod recover;
mod serving;
mod watcher;

use std::time::{Duration, Instant};

pub use armed::{Added, Armed, MakePool, Options};
pub use live::{Kept, Live, Quiesced, Stopped};
pub use orphans::Listed;
pub use recover::{How, open_or_recover};

use crate::control::Control;
use crate::error::{Error, Kind, Operation};
use crate::sys;

/// What the driver says of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Added or stopped: it has no disk.
    Dead,
    /// Served; or its server is dead and the driver has not noticed yet.
    Live,
    /// Its server is gone, and requests wait for the next one.
    Quiesced,
    /// Its server is gone, and requests fail until the next one comes.
    FailIo,
    /// One that this library does not know.
    Unknown(u16),
}

impl State {
    /// From the driver's number.
    pub fn of(info: &sys::DeviceInfo) -> State {
        match info.state {
            sys::STATE_DEAD => State::Dead,
            sys::STATE_LIVE => State::Live,
            sys::STATE_QUIESCED => State::Quiesced,
            sys::STATE_FAIL_IO => State::FailIo,
            other => State::Unknown(other),
        }
    }
}

/// Waits between tries, longer each time, up to a deadline.
#[derive(Debug)]
pub(crate) struct Pause {
    next: Duration,
    until: Instant,
}

impl Pause {
    const FIRST: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_millis(50);

    pub(crate) fn until(until: Instant) -> Pause {
        Pause {
            next: Pause::FIRST,
            until,
        }
    }

    /// False once the deadline has come.
    pub(crate) fn wait(&mut self) -> bool {
        blkmq::may_block("waiting for the ublk driver");
        let left = self.left();
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(self.next.min(left));
        self.next = (2 * self.next).min(Pause::LONGEST);
        true
    }

    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

/// Deletes a device and waits until its number is free, or taken again.
fn delete(control: &Control, id: u32, within: Duration) -> Result<(), Error> {
    let begun = Instant::now();
    let mut pause = Pause::until(begun + within);
    match control.delete_async(id, within) {
        // Before 6.9 the driver only deletes and waits.
        Err(error) if error.kind() == Kind::TooOld => return control.delete(id, pause.left()),
        result => result?,
    }
    loop {
        match control.info_within(id, pause.left().max(Pause::LONGEST)) {
            Err(error) if error.kind() == Kind::Gone => return Ok(()),
            Err(error) if error.kind() != Kind::Late => return Err(error),
            _ => {}
        }
        // A deleted device is listed no more: this is another one, of somebody who was quick.
        if control.devices()?.contains(&id) {
            return Ok(());
        }
        if !pause.wait() {
            return Err(Error::late(Operation::Delete, Some(id), begun.elapsed()));
        }
    }
}
