//! A device with a disk, and the two ways out: stopped, or quiesced.
//!
//! QUIESCE_DEV takes back only tags that the driver has. A result that is given to it later arms its
//! tag once more, and nobody takes that back; and the driver (7.2, mended in 7.3) corrupts its ring's
//! list of commands where it takes one back that is being handed over. So a device's queues rest
//! first: they finish what they have, and keep what comes. Then it is asked, and what was kept is left
//! to it.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::serving::Serving;
use super::{Pause, delete};
use crate::control::Control;
use crate::error::{Error, Kind, Operation};
use crate::negotiate::Granted;
use crate::queue::QueueStats;
use crate::spec::Capability;

/// The share of the time for quiescing that is kept for the driver, of which it needs little.
const KEPT_FOR_THE_DRIVER: u32 = 4;

/// How long the driver may look for idle tags, and queues may take to leave, before it is asked anew.
const LOOK: Duration = Duration::from_millis(500);

/// A device that stays as it was, and why.
#[derive(Debug)]
pub struct Kept<T> {
    /// The device.
    pub device: T,
    /// What failed.
    pub error: Error,
}

impl<T> fmt::Display for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for Kept<T> {}

impl<T> From<Kept<T>> for Error {
    fn from(kept: Kept<T>) -> Error {
        kept.error
    }
}

/// A device with a disk that is served here. Dropped, it goes on being served.
#[derive(Debug)]
pub struct Live {
    serving: Box<Serving>,
}

impl Live {
    pub(super) fn new(serving: Serving) -> Live {
        Live {
            serving: Box::new(serving),
        }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.serving.id
    }

    /// What it has.
    pub fn granted(&self) -> &Granted {
        &self.serving.granted
    }

    /// Its disk.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.serving.id))
    }

    /// What each of its queues has counted; where they are spread, each share of each queue.
    pub fn stats(&self) -> Vec<QueueStats> {
        self.serving.stats()
    }

    /// Changes the size of its disk (6.16). Clients see it at once.
    pub fn resize(&self, bytes: u64) -> Result<(), Error> {
        let (control, id) = (&self.serving.control, self.serving.id);
        let block = 1_u64 << control.params(id)?.basic.logical_shift;
        if bytes == 0 || !bytes.is_multiple_of(block) {
            return Err(Error::new(
                Operation::Resize,
                Kind::Invalid,
                format!("{bytes} bytes are no size for it"),
                format!("use a multiple of {block}, its logical block"),
            )
            .on(id));
        }
        control.update_size(id, bytes / 512)
    }

    /// Takes the disk away: what it has is served, then its queues leave their reactors, then
    /// the character device is closed. Others on the same rings go on.
    pub fn stop(self, within: Duration) -> Result<Stopped, Kept<Live>> {
        let until = Instant::now() + within;
        let stopped = self.serving.control.stop(self.serving.id, within);
        self.left(stopped, until)
    }

    /// [`Live::stop`], unless somebody has the disk open (7.0).
    pub fn try_stop(self, within: Duration) -> Result<Stopped, Kept<Live>> {
        let until = Instant::now() + within;
        let stopped = self.serving.control.try_stop(self.serving.id, within);
        self.left(stopped, until)
    }

    fn left(self, stopped: Result<(), Error>, until: Instant) -> Result<Stopped, Kept<Live>> {
        // It may have been stopped by somebody else: then its queues leave, too.
        let stopped = stopped.or_else(|error| match error.kind() {
            Kind::Gone => Ok(()),
            _ => Err(error),
        });
        match stopped.and_then(|()| self.wait_gone(until)) {
            Ok(()) => Ok(Stopped {
                control: self.serving.control,
                id: self.serving.id,
            }),
            Err(error) => Err(Kept {
                device: self,
                error,
            }),
        }
    }

    /// Takes the server away and leaves the disk: its requests wait for the next server (6.16,
    /// and recovery). What its handlers have is answered first; what comes meanwhile goes to the next
    /// server with [`Capability::Reissue`], and may fail without. Others on the same rings go on.
    ///
    /// Where handlers do not answer in time, the device goes on as it was. A later failure is not
    /// undone: then close the reactors, and recover.
    pub fn quiesce(self, within: Duration) -> Result<Quiesced, Kept<Live>> {
        let until = Instant::now() + within;
        let quiesced = if self.serving.granted.has(Capability::Quiesce) {
            self.rest(until, within / KEPT_FOR_THE_DRIVER)
                .and_then(|()| self.taken_back(until))
        } else {
            Err(Error::new(
                Operation::Quiesce,
                Kind::NotGranted,
                "it was added without quiesce",
                "leave with its whole reactor instead; or use Linux 6.16 or newer, want quiesce \
                 and recovery, and add it anew",
            )
            .on(self.serving.id))
        };
        match quiesced {
            Ok(()) => Ok(Quiesced {
                control: self.serving.control,
                id: self.serving.id,
            }),
            Err(error) => Err(Kept {
                device: self,
                error,
            }),
        }
    }

    /// Waits until the queues have nothing in hand, and leaves time for what comes after that.
    fn rest(&self, until: Instant, kept: Duration) -> Result<(), Error> {
        let watcher = &self.serving.watcher;
        if watcher.rest(until.checked_sub(kept).unwrap_or(until)) {
            return Ok(());
        }
        watcher.resume();
        Err(Error::new(
            Operation::Quiesce,
            Kind::Late,
            "its handlers have not answered what they have",
            "see what its requests wait for; it goes on as it was",
        )
        .on(self.serving.id))
    }

    /// Has the driver take back the tags of queues that rest, until they are gone.
    fn taken_back(&self, until: Instant) -> Result<(), Error> {
        let Serving {
            control,
            id,
            watcher,
            ..
        } = &*self.serving;
        let mut pause = Pause::until(until);
        loop {
            let quiesced = control.quiesce(*id, pause.left().min(LOOK));
            match &quiesced {
                Ok(()) => {}
                // Requests are kept back, but no tag is idle, or a signal came.
                Err(error) if matches!(error.errno(), Some(libc::EBUSY | libc::EINTR)) => {}
                Err(_) => {
                    watcher.resume();
                    return quiesced;
                }
            }
            watcher.let_go();
            if watcher.wait_gone((Instant::now() + LOOK).min(until)) {
                return Ok(());
            }
            if !pause.wait() {
                return quiesced.and(Err(self.serving.still_there()));
            }
        }
    }

    fn wait_gone(&self, until: Instant) -> Result<(), Error> {
        if self.serving.watcher.wait_gone(until) {
            return Ok(());
        }
        Err(self.serving.still_there())
    }

    /// Closes the character device once the queues are gone: part of leaving.
    pub(crate) fn close(self, until: Instant) -> Result<(), Error> {
        self.serving.close(until)
    }
}

/// A device without a disk and without a server.
#[derive(Debug)]
pub struct Stopped {
    control: Control,
    id: u32,
}

impl Stopped {
    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Deletes it and waits until its number is free: until nobody has its disk or its character
    /// device open any more. It goes then, also where the deadline comes before.
    pub fn delete(self, within: Duration) -> Result<(), Error> {
        delete(&self.control, self.id, within)
    }
}

/// A device whose disk waits for the next server, in this process or another.
#[derive(Debug)]
pub struct Quiesced {
    control: Control,
    id: u32,
}

impl Quiesced {
    /// Its number, for [`super::open_or_recover`].
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Takes its disk away instead. Requests that wait fail.
    pub fn stop(self, within: Duration) -> Result<Stopped, Kept<Quiesced>> {
        match self.control.stop(self.id, within) {
            Ok(()) => Ok(Stopped {
                control: self.control,
                id: self.id,
            }),
            Err(error) => Err(Kept {
                device: self,
                error,
            }),
        }
    }
}
