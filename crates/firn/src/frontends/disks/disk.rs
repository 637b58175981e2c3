//! One attached disk: a live device, from its start to its removal.
//!
//! Everything here waits for the driver, so it runs on threads that may wait. Requests never come
//! here: the queues serve them on the reactors, straight from the engine's plans.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use ublk::Capability;
use ublk::device::{DeviceError, LiveDevice};
use ublk::error::ErrorKind;
use ublk::negotiate::Grant;

use super::options::{DiskOptions, model_data_mode};
use crate::failure::{Failure, FailureCode, Result};
use crate::model;

/// How long outstanding requests may take before those that are parked fail.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long stopping and deleting the device may take after that.
pub(super) const REMOVE_TIMEOUT: Duration = Duration::from_secs(30);

/// A live disk.
pub(crate) struct Disk {
    pub(crate) id: u32,
    options: DiskOptions,
    granted: Grant,
    /// By queue, the thread that serves it.
    threads: Vec<String>,
    park_timeout: Option<Duration>,
    /// Admits the disk's requests.
    mq_device: Arc<blkmq::Device>,
    /// `None` once the device is stopped.
    live: Mutex<Option<LiveDevice>>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({})", self.id)
    }
}

impl Disk {
    pub(super) fn new(
        live: LiveDevice,
        options: DiskOptions,
        threads: Vec<String>,
        park_timeout: Option<Duration>,
        mq_device: Arc<blkmq::Device>,
    ) -> Disk {
        Disk {
            id: live.id(),
            options,
            granted: live.grant().clone(),
            threads,
            park_timeout,
            mq_device,
            live: Mutex::new(Some(live)),
        }
    }

    /// The path that programs open.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.id))
    }

    /// The options that it was attached with.
    pub(super) fn options(&self) -> &DiskOptions {
        &self.options
    }

    /// The disk as the API shows it.
    pub(crate) fn describe(&self) -> model::DiskInfo {
        let dropped = self.granted.missing.iter().map(|dropped| {
            let text = dropped.to_string();
            let (what, why) = text.split_once(": ").unwrap_or((&text, "not granted"));
            model::DroppedOption {
                what: what.to_owned(),
                why: why.to_owned(),
            }
        });
        model::DiskInfo {
            device: self.path().display().to_string(),
            data_mode_asked: self.options.data_mode,
            data_mode: model_data_mode(self.granted.mode),
            dropped: dropped.collect(),
            queues: self.granted.queues,
            depth: self.granted.depth,
            threads: self.threads.clone(),
            requests: self.requests(),
            read_only: self.options.read_only,
            part_scan: self.options.part_scan,
            park_timeout_seconds: self.park_timeout.map(|limit| limit.as_secs_f64()),
        }
    }

    fn requests(&self) -> model::RequestCounts {
        // A thread that stops or resizes the disk holds the lock: then there are no counts.
        let Ok(live) = self.live.try_lock() else {
            return model::RequestCounts::default();
        };
        let queues = live.iter().flat_map(LiveDevice::stats);
        queues.fold(model::RequestCounts::default(), |sum, one| {
            model::RequestCounts {
                taken: sum.taken + one.requests,
                uncopied: sum.uncopied + one.uncopied,
                copied: sum.copied + one.copied,
                faults: sum.faults + one.faults + one.panics + one.dropped + one.commits_lost,
            }
        })
    }

    /// Takes the live device, to leave it to the next server.
    pub(super) fn take_live(&self) -> Option<LiveDevice> {
        self.live
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Stops the disk and deletes the device. Unless `force` is set, only if nobody has it open, as
    /// far as this kernel tells. If that fails, the disk stays as it was.
    pub(super) fn remove(&self, force: bool) -> Result<()> {
        let mut slot = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(live) = slot.take() else {
            return Ok(());
        };
        let stopped = if force {
            // Parked requests get some time to complete, and then fail.
            live.stop(DRAIN_TIMEOUT)
                .or_else(|DeviceError { device, .. }| {
                    self.mq_device.remove();
                    device.stop(REMOVE_TIMEOUT)
                })
        } else if self.granted.has(Capability::SafeStop) {
            live.try_stop(REMOVE_TIMEOUT)
        } else if let Err(failure) = self.check_unused() {
            *slot = Some(live);
            return Err(failure);
        } else {
            live.stop(REMOVE_TIMEOUT)
        };
        let stopped = stopped.map_err(|DeviceError { device, error }| {
            *slot = Some(device);
            match error.kind() {
                ErrorKind::Busy => self.in_use_error(),
                _ => error.into(),
            }
        })?;
        self.mq_device.remove();
        // The driver deletes it when its last user closes it, even if that is not awaited here.
        stopped.delete(REMOVE_TIMEOUT).or_else(|error| match error.kind() {
            ErrorKind::TimedOut => {
                tracing::warn!(%error, "the driver deletes the device when its last user closes it");
                Ok(())
            }
            _ => Err(error.into()),
        })
    }

    fn in_use_error(&self) -> Failure {
        Failure::new(
            FailureCode::VolumeInUse,
            format!(
                "disk {} is mounted or open; unmount and close it first, or use --force, and its \
                 users get I/O errors",
                self.path().display()
            ),
        )
    }

    /// Before Linux 7.0 the driver does not say whether a disk is in use. An exclusive open finds a
    /// user that has opened it exclusively, as a mount does, but not a program that only has it open.
    fn check_unused(&self) -> Result<()> {
        let path = self.path();
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Err(rustix::io::Errno::BUSY) => Err(self.in_use_error()),
            _ => Ok(()),
        }
    }

    /// Resizes the disk. Clients see the new size at once.
    pub(super) fn resize(&self, bytes: u64) -> Result<()> {
        let slot = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        match &*slot {
            Some(live) => live.resize(bytes).map_err(Failure::from),
            None => Ok(()),
        }
    }

    /// Whether it can be resized while it is attached.
    pub(crate) fn can_resize(&self) -> bool {
        self.granted.has(Capability::Resize)
    }
}
