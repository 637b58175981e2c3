//! A device with a disk, and the two ways out: stopped, or quiesced.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::delete;
use super::serving::Serving;
use crate::control::Control;
use crate::error::{Error, Kind, Operation};
use crate::negotiate::Granted;
use crate::queue::QueueStats;
use crate::spec::Capability;

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
    /// and recovery). Not undone where it fails: then close the reactors, and recover.
    pub fn quiesce(self, within: Duration) -> Result<Quiesced, Kept<Live>> {
        let until = Instant::now() + within;
        let quiesced = if self.serving.granted.has(Capability::Quiesce) {
            self.serving.control.quiesce(self.serving.id, within)
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
        match quiesced.and_then(|()| self.wait_gone(until)) {
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
