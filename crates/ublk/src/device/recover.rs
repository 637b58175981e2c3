//! Opens a device of a given number, whatever has become of it: new, left behind, or taken over
//! from a server that is gone or about to be.
//!
//! A successor that is quicker than the driver sees its device LIVE (the old server's exit is not
//! processed), then QUIESCED and still open, then free. All of that is waited for, with pauses
//! from 1 to 50 ms, and never answered by adding a second device. Only the driver's word on
//! START_USER_RECOVERY counts: states and process ids say too little, and differ among kernels.
//!
//! Before 6.16 a recovery that was begun cannot be begun again: whatever can fail in this process
//! comes before it.

use std::time::{Duration, Instant};

use reactor::Handle;

use super::armed::{Options, suits};
use super::live::Live;
use super::serving::{Origin, Serving, open_char};
use super::{Pause, State};
use crate::control::Control;
use crate::error::{Error, Kind, Operation};
use crate::negotiate::{self, Granted};
use crate::queue::Handler;
use crate::spec::DeviceSpec;
use crate::sys::DeviceInfo;

/// How a device came alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It was not there, and was added.
    Added,
    /// It was there without a disk, and was started.
    Started,
    /// Its disk was there, and has a new server.
    Recovered,
}

/// Brings device `id` alive on these reactors: adds it as `spec` says, or takes it over as it is.
/// A device that is taken over keeps its queues, depth, flags and disk.
///
/// In the process that served it before, give it new reactors: kernels before 6.16 bind a device
/// to the threads of its generation.
///
/// Where recovery fails after it has begun, its queues may be on the reactors already: close
/// those before another try.
pub fn open_or_recover<H: Handler + Send>(
    control: &Control,
    (id, spec): (u32, &DeviceSpec),
    (reactors, options): (&[Handle], &Options),
    build: impl FnMut(u16) -> H,
    within: Duration,
) -> Result<(Live, How), Error> {
    let mut opening = Opening {
        control,
        id,
        spec: DeviceSpec {
            id: Some(id),
            ..spec.clone()
        },
        reactors,
        options,
        build,
        until: Instant::now() + within,
    };
    opening.spec.check()?;
    let mut pause = Pause::until(opening.until);
    loop {
        match opening.once()? {
            Attempt::Done(live, how) => return Ok((live, how)),
            Attempt::NotYet(reason) if !pause.wait() => return Err(reason),
            Attempt::NotYet(_) => {}
        }
    }
}

struct Opening<'a, B> {
    control: &'a Control,
    id: u32,
    spec: DeviceSpec,
    reactors: &'a [Handle],
    options: &'a Options,
    build: B,
    until: Instant,
}

enum Attempt {
    Done(Live, How),
    /// Worth another try; if there is no time, this is the reason.
    NotYet(Error),
}

/// An error that may pass by itself is no end.
fn unless_busy(error: Error) -> Result<Attempt, Error> {
    match error.kind() {
        Kind::Busy | Kind::Taken => Ok(Attempt::NotYet(error)),
        _ => Err(error),
    }
}

impl<H: Handler + Send, B: FnMut(u16) -> H> Opening<'_, B> {
    fn once(&mut self) -> Result<Attempt, Error> {
        let info = match self.control.info(self.id) {
            Err(error) if error.kind() == Kind::Gone => return self.add(),
            info => info?,
        };
        match State::of(&info) {
            State::Dead => self.start(&info),
            State::Live => Ok(Attempt::NotYet(self.served(&info))),
            State::Quiesced | State::FailIo => self.recover(&info),
            State::Unknown(state) => Err(Error::new(
                Operation::Info,
                Kind::Invalid,
                format!("it is in state {state}, which this library does not know"),
                "use a newer version of it",
            )
            .on(self.id)),
        }
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    fn served(&self, info: &DeviceInfo) -> Error {
        let (detail, remedy) = if super::orphans::is_served(info) {
            (
                format!("process {} serves it", info.server_pid),
                "end that process first; a device has one server",
            )
        } else {
            (
                "the driver has not noticed that its server is gone".to_owned(),
                "allow it more time; see the kernel log for hung tasks",
            )
        };
        Error::new(Operation::StartRecovery, Kind::Taken, detail, remedy).on(self.id)
    }

    fn add(&mut self) -> Result<Attempt, Error> {
        let added = match self.control.add(&self.spec, H::MODES) {
            Ok(added) => added,
            // Somebody was quicker, or the number is not free yet.
            Err(error) => return unless_busy(error),
        };
        let armed = added.arm(self.reactors, self.options, &mut self.build)?;
        let live = armed.start(self.left())?;
        Ok(Attempt::Done(live, How::Added))
    }

    /// What the device has, and handlers for its queues: all that can fail here does so now.
    fn prepare(&mut self, info: &DeviceInfo) -> Result<(Granted, Vec<H>), Error> {
        let granted = negotiate::inherit(&self.spec, self.control.offer(), H::MODES, info)?;
        suits::<H>(&granted, (self.reactors, self.options), self.id)?;
        let seats = self.options.seats(&granted, self.reactors.len());
        let handlers = seats.map(|(queue, _)| (self.build)(queue)).collect();
        Ok((granted, handlers))
    }

    /// There is no disk: somebody added it and died, or stopped it.
    fn start(&mut self, info: &DeviceInfo) -> Result<Attempt, Error> {
        let params = self.spec.disk.params(info.io_bytes_max)?;
        let char_device = match self.control.open_char(self.id) {
            Ok(char_device) => char_device,
            Err(error) => return unless_busy(error),
        };
        let (granted, handlers) = self.prepare(info)?;
        if let Err(error) = self.control.set_params(self.id, &params) {
            // Its old disk is still open somewhere.
            return unless_busy(error);
        }
        let armed = self.attach(&granted, char_device, handlers, Origin::Found)?;
        let cancel = armed.watcher.cancel();
        match self
            .control
            .start(self.id, std::process::id(), self.left(), cancel)
        {
            Ok(()) => Ok(Attempt::Done(Live::new(armed), How::Started)),
            Err(error) => unless_busy(armed.undo(error)),
        }
    }

    fn recover(&mut self, info: &DeviceInfo) -> Result<Attempt, Error> {
        let (granted, handlers) = self.prepare(info)?;
        if let Err(error) = self.control.start_recovery(self.id, self.left()) {
            return unless_busy(error);
        }
        let char_device = open_char(self.control, self.id, self.until)?;
        let armed = self.attach(&granted, char_device, handlers, Origin::Recovered)?;
        let cancel = armed.watcher.cancel();
        let server = std::process::id();
        let mut pause = Pause::until(self.until);
        loop {
            match self
                .control
                .end_recovery(self.id, server, self.left(), cancel)
            {
                Ok(()) => return Ok(Attempt::Done(Live::new(armed), How::Recovered)),
                Err(error) if error.kind() == Kind::Busy && pause.wait() => {}
                Err(error) => return Err(armed.undo(error)),
            }
        }
    }

    fn attach(
        &self,
        granted: &Granted,
        char_device: std::sync::Arc<std::os::fd::OwnedFd>,
        handlers: Vec<H>,
        origin: Origin,
    ) -> Result<Serving, Error> {
        let device = (self.control, self.id, granted);
        let seats = (self.reactors, self.options);
        Serving::attach(device, char_device, seats, handlers, origin)
    }
}
