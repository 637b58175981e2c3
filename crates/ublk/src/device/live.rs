//! A device with a disk, and the two ways out: stopped, or quiesced.
//!
//! QUIESCE_DEV cancels FETCH only for tags that the driver has. A result that is committed later gives
//! its tag to the driver once more, and nothing cancels that; and the driver (7.2, fixed in 7.3) corrupts
//! its ring's list of commands if it cancels one that is being submitted. So a device's queues drain
//! first: they finish the requests in hand and hold new ones back. Then the driver is told to quiesce,
//! and the held requests are left for the next server.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use blkmq::io::SECTOR_BYTES;

use super::inventory::delete;
use super::served::ServedDevice;
use crate::backoff::Backoff;
use crate::control::ControlDevice;
use crate::error::{Error, ErrorKind, Operation};
use crate::negotiate::Grant;
use crate::queue::QueueStats;
use crate::spec::Capability;

/// The fraction of the time for quiescing that is reserved for the driver, which needs little: one in
/// so many.
const DRIVER_FRACTION: u32 = 4;

/// How long the driver may look for idle tags, and queues may take to detach, before QUIESCE_DEV is
/// issued again.
const QUIESCE_ROUND: Duration = Duration::from_millis(500);

/// An error that gives the device back, which is unchanged.
#[derive(Debug)]
pub struct DeviceError<T> {
    /// The device.
    pub device: T,
    /// What failed.
    pub error: Error,
}

impl<T> fmt::Display for DeviceError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for DeviceError<T> {}

impl<T> From<DeviceError<T>> for Error {
    fn from(failure: DeviceError<T>) -> Error {
        failure.error
    }
}

/// A device with a disk that is served here. Dropped, it goes on being served.
#[derive(Debug)]
pub struct LiveDevice {
    served: Box<ServedDevice>,
}

impl LiveDevice {
    pub(super) fn new(served: ServedDevice) -> LiveDevice {
        LiveDevice {
            served: Box::new(served),
        }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.served.id
    }

    /// What the driver granted.
    pub fn grant(&self) -> &Grant {
        &self.served.grant
    }

    /// Its disk.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.served.id))
    }

    /// What each of its queues has counted; with [`super::QueueOptions::spread`], each share of each
    /// queue.
    pub fn stats(&self) -> Vec<QueueStats> {
        self.served.stats()
    }

    /// Changes the size of its disk (6.16). Clients see it at once.
    pub fn resize(&self, bytes: u64) -> Result<(), Error> {
        let (control, id) = (&self.served.control, self.served.id);
        let block = 1_u64 << control.params(id)?.basic.logical_shift;
        if bytes == 0 || !bytes.is_multiple_of(block) {
            return Err(Error::new(
                Operation::Resize,
                ErrorKind::Invalid,
                format!("{bytes} bytes are not a valid size"),
                format!("use a multiple of {block}, its logical block"),
            )
            .on_device(id));
        }
        control.update_size(id, bytes / SECTOR_BYTES)
    }

    /// Takes the disk away: the driver waits for its requests, then the queues detach from their
    /// reactors, then the character device is closed. Other devices on the same rings go on.
    pub fn stop(self, within: Duration) -> Result<StoppedDevice, DeviceError<LiveDevice>> {
        let deadline = Instant::now() + within;
        let stopped = self.served.control.stop(self.served.id, within);
        self.finish_stop(stopped, deadline)
    }

    /// [`LiveDevice::stop`], unless a process has the disk open (7.0).
    pub fn try_stop(self, within: Duration) -> Result<StoppedDevice, DeviceError<LiveDevice>> {
        let deadline = Instant::now() + within;
        let stopped = self.served.control.try_stop(self.served.id, within);
        self.finish_stop(stopped, deadline)
    }

    fn finish_stop(
        self,
        stopped: Result<(), Error>,
        deadline: Instant,
    ) -> Result<StoppedDevice, DeviceError<LiveDevice>> {
        // Another process may have stopped it: then its queues detach, too.
        let stopped = stopped.or_else(|error| match error.kind() {
            ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        });
        match stopped.and_then(|()| self.served.wait_detached(deadline)) {
            Ok(()) => Ok(StoppedDevice {
                control: self.served.control,
                id: self.served.id,
            }),
            Err(error) => Err(DeviceError {
                device: self,
                error,
            }),
        }
    }

    /// Takes the server away and leaves the disk: its requests wait for the next server (6.16, with
    /// recovery). The handlers answer the requests that they have first; requests that arrive meanwhile
    /// go to the next server with [`Capability::Reissue`], and may fail without. Other devices on the
    /// same rings go on.
    ///
    /// If handlers do not answer in time, the device goes on as before. A later failure is not undone:
    /// then close the reactors, and recover the device.
    pub fn quiesce(self, within: Duration) -> Result<QuiescedDevice, DeviceError<LiveDevice>> {
        let deadline = Instant::now() + within;
        let quiesced = if self.served.grant.has(Capability::Quiesce) {
            self.drain(deadline, within / DRIVER_FRACTION)
                .and_then(|()| self.quiesce_drained(deadline))
        } else {
            Err(Error::new(
                Operation::Quiesce,
                ErrorKind::NotGranted,
                "it was added without quiesce",
                "stop its whole reactor instead; or use Linux 6.16 or newer, want quiesce and \
                 recovery, and add it again",
            )
            .on_device(self.served.id))
        };
        match quiesced {
            Ok(()) => Ok(QuiescedDevice {
                control: self.served.control,
                id: self.served.id,
            }),
            Err(error) => Err(DeviceError {
                device: self,
                error,
            }),
        }
    }

    /// Waits until the queues have no request in hand, and reserves time for what comes after that.
    fn drain(&self, deadline: Instant, reserved: Duration) -> Result<(), Error> {
        let monitor = &self.served.monitor;
        if monitor.drain(deadline.checked_sub(reserved).unwrap_or(deadline)) {
            return Ok(());
        }
        monitor.resume();
        Err(Error::new(
            Operation::Quiesce,
            ErrorKind::TimedOut,
            "its handlers have not answered the requests in hand",
            "see what its requests wait for; it goes on as before",
        )
        .on_device(self.served.id))
    }

    /// Has the driver cancel FETCH for the tags of drained queues, until the queues have detached.
    fn quiesce_drained(&self, deadline: Instant) -> Result<(), Error> {
        let ServedDevice {
            control,
            id,
            monitor,
            ..
        } = &*self.served;
        let mut backoff = Backoff::until(deadline);
        loop {
            let quiesced = control.quiesce(*id, backoff.remaining().min(QUIESCE_ROUND));
            match &quiesced {
                Ok(()) => {}
                // The driver holds new requests back, but no tag is idle, or a signal came.
                Err(error) if matches!(error.errno(), Some(libc::EBUSY | libc::EINTR)) => {}
                Err(_) => {
                    monitor.resume();
                    return quiesced;
                }
            }
            monitor.release();
            if monitor.wait_detached((Instant::now() + QUIESCE_ROUND).min(deadline)) {
                return Ok(());
            }
            if !backoff.sleep() {
                return quiesced.and(Err(self.served.not_detached_error()));
            }
        }
    }

    /// Closes the character device once the queues have detached: part of [`crate::exit`].
    pub(crate) fn close(self, deadline: Instant) -> Result<(), Error> {
        self.served.close(deadline)
    }
}

/// A device without a disk and without a server.
#[derive(Debug)]
pub struct StoppedDevice {
    control: ControlDevice,
    id: u32,
}

impl StoppedDevice {
    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Deletes it and waits until its number is free: until no process has its disk or its character
    /// device open. It is deleted then, also if the deadline comes before.
    pub fn delete(self, within: Duration) -> Result<(), Error> {
        delete(&self.control, self.id, within)
    }
}

/// A device whose disk waits for the next server, in this process or another.
#[derive(Debug)]
pub struct QuiescedDevice {
    control: ControlDevice,
    id: u32,
}

impl QuiescedDevice {
    /// Its number, for [`super::open_or_recover`].
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Takes its disk away instead. Requests that wait fail.
    pub fn stop(self, within: Duration) -> Result<StoppedDevice, DeviceError<QuiescedDevice>> {
        match self.control.stop(self.id, within) {
            Ok(()) => Ok(StoppedDevice {
                control: self.control,
                id: self.id,
            }),
            Err(error) => Err(DeviceError {
                device: self,
                error,
            }),
        }
    }
}
