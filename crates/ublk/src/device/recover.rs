//! Opens a device of a given number, whatever has become of it: new, left behind, or taken over
//! from a server that is gone or about to be.
//!
//! A successor that is quicker than the driver sees its device LIVE (the old server's exit is not
//! processed), then QUIESCED and still open, then free. All of that is waited for, with pauses
//! from 1 to 50 ms, and never answered by adding a second device. Only the driver's word on
//! START_USER_RECOVERY counts: states and process ids say too little, and differ among kernels.
//!
//! Before 6.16 a recovery that was begun cannot be begun again: whatever can fail in this process
//! comes before it, and once it has begun it is given time, whatever the deadline.
//!
//! A device without a disk cannot be started where anybody fetched its tags before: its driver forgets
//! nothing of a server that leaves it without a disk, refuses to be fetched anew, and START_DEV does not
//! wait for that. So it is deleted and added anew. A device that is being deleted looks the same until
//! nobody has it open any more; that is waited for, too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reactor::Handle;

use super::armed::{Options, suits};
use super::live::Live;
use super::serving::{Origin, Serving, open_char};
use super::{Pause, State, delete};
use crate::control::{Control, QUICK};
use crate::error::{Error, Kind, Operation};
use crate::negotiate::{self, Granted};
use crate::queue::Handler;
use crate::spec::DeviceSpec;
use crate::sys::DeviceInfo;

/// How a device came alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It was not there, and was added; one that was there without a disk was deleted first.
    Added,
    /// Its disk was there, and has a new server.
    Recovered,
}

/// Brings device `id` alive on these reactors: adds it as `spec` says, or takes it over as it is.
/// A device that is taken over keeps its queues, depth, flags and disk.
///
/// What goes on at the deadline is not cut short: a recovery that has begun has 10 s, a driver that
/// answers no question about its devices is asked for as long, and what fails is undone in 5 s a step.
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
        prepared: None,
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

struct Opening<'a, H, B> {
    control: &'a Control,
    id: u32,
    spec: DeviceSpec,
    reactors: &'a [Handle],
    options: &'a Options,
    build: B,
    /// What was prepared in an earlier try.
    prepared: Option<Prepared<H>>,
    until: Instant,
}

/// All that can fail in this process before a device is taken over.
struct Prepared<H> {
    /// Of the device as it was then.
    shape: (u16, u16, u32, u64),
    granted: Granted,
    handlers: Vec<H>,
}

fn shape(info: &DeviceInfo) -> (u16, u16, u32, u64) {
    (info.queues, info.depth, info.io_bytes_max, info.flags)
}

enum Attempt {
    Done(Live, How),
    /// Worth another try; if there is no time, this is the reason.
    NotYet(Error),
}

/// An error that may pass by itself is no end. A device that is gone is one to be added.
fn unless_passing(error: Error) -> Result<Attempt, Error> {
    match error.kind() {
        Kind::Busy | Kind::Taken | Kind::Gone => Ok(Attempt::NotYet(error)),
        _ => Err(error),
    }
}

impl<H: Handler + Send, B: FnMut(u16) -> H> Opening<'_, H, B> {
    fn once(&mut self) -> Result<Attempt, Error> {
        let within = self.left().clamp(Pause::LONGEST, QUICK);
        let info = match self.control.info_within(self.id, within) {
            Err(error) if error.kind() == Kind::Gone => return self.add(),
            info => info?,
        };
        match State::of(&info) {
            State::Dead => self.replace(),
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
        let (detail, remedy) = if super::orphans::has_process(info) {
            (
                format!("process {} serves it", info.server_pid),
                "end that process first; a device has one server",
            )
        } else {
            (
                "its server is not seen here, and the driver has not noticed that it is gone"
                    .to_owned(),
                "allow it more time; look into other process id namespaces (containers); see the kernel \
                 log for hung tasks",
            )
        };
        Error::new(Operation::StartRecovery, Kind::Taken, detail, remedy).on(self.id)
    }

    fn add(&mut self) -> Result<Attempt, Error> {
        let added = match self.control.add(&self.spec, H::MODES) {
            Ok(added) => added,
            // Somebody was quicker, or the number is not free yet.
            Err(error) => return unless_passing(error),
        };
        let armed = added.arm(self.reactors, self.options, &mut self.build)?;
        let live = armed.start(self.left())?;
        Ok(Attempt::Done(live, How::Added))
    }

    /// What the device has, and handlers for its queues: all that can fail here does so now. What an
    /// earlier try did not use is used now.
    fn prepare(&mut self, info: &DeviceInfo) -> Result<Prepared<H>, Error> {
        let before = self.prepared.take();
        if let Some(prepared) = before.filter(|before| before.shape == shape(info)) {
            return Ok(prepared);
        }
        let granted = negotiate::inherit(&self.spec, self.control.offer(), H::MODES, info)?;
        suits::<H>(&granted, (self.reactors, self.options), self.id)?;
        let seats = self.options.seats(&granted, self.reactors.len());
        let handlers = seats.map(|(queue, _)| (self.build)(queue)).collect();
        Ok(Prepared {
            shape: shape(info),
            granted,
            handlers,
        })
    }

    /// There is no disk, and the kernel brings none up on a device that somebody may have fetched: it
    /// goes, and the next try adds it. It is held open for that, so that it is nobody else's.
    fn replace(&mut self) -> Result<Attempt, Error> {
        let char_device = match self.control.open_char(self.id) {
            Ok(char_device) => char_device,
            Err(error) => return unless_passing(error),
        };
        let deleted = self.control.delete_async(self.id, QUICK);
        drop(char_device);
        match deleted {
            // Before 6.9 the driver only deletes what nobody has open.
            Err(error) if error.kind() == Kind::TooOld => {
                delete(self.control, self.id, self.left().max(Pause::LONGEST))?;
            }
            Err(error) => return unless_passing(error),
            Ok(()) => {}
        }
        let held = Error::new(
            Operation::Delete,
            Kind::Busy,
            "it is deleted, and its number is not free",
            "see who has its disk or its character device open",
        );
        Ok(Attempt::NotYet(held.on(self.id)))
    }

    fn recover(&mut self, info: &DeviceInfo) -> Result<Attempt, Error> {
        let prepared = self.prepare(info)?;
        if let Err(error) = self.control.start_recovery(self.id, self.left()) {
            self.prepared = Some(prepared);
            return unless_passing(error);
        }
        let until = self.until.max(Instant::now() + QUICK);
        let char_device = open_char(self.control, self.id, until)?;
        let armed = self.attach(prepared, char_device)?;
        let cancel = armed.watcher.cancel();
        let server = std::process::id();
        let mut pause = Pause::until(until);
        loop {
            let ended = self
                .control
                .end_recovery(self.id, server, pause.left(), cancel);
            match ended {
                Ok(()) => return Ok(Attempt::Done(Live::new(armed), How::Recovered)),
                Err(error) if error.kind() == Kind::Busy && pause.wait() => {}
                Err(error) => return Err(armed.undo(error)),
            }
        }
    }

    fn attach(
        &self,
        prepared: Prepared<H>,
        char_device: Arc<std::os::fd::OwnedFd>,
    ) -> Result<Serving, Error> {
        let device = (self.control, self.id, &prepared.granted);
        let seats = (self.reactors, self.options);
        let origin = Origin::Recovered;
        Serving::attach(device, char_device, seats, prepared.handlers, origin)
    }
}
