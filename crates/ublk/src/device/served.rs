//! A device whose queues are on reactors: the part that [`super::AttachedDevice`] and
//! [`super::LiveDevice`] share. It owns the character device, and closes it last.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reactor::{Cx, Handle};

use super::inventory::delete;
use super::monitor::QueueMonitor;
use super::options::{QueueOptions, QueueShare};
use crate::backoff::Backoff;
use crate::control::ControlDevice;
use crate::error::{Error, ErrorKind, Operation};
use crate::negotiate::Grant;
use crate::queue::{Counters, Descriptors, Handler, QueueParts, QueueSource, QueueStats};

/// How long each step may take that undoes a failed start.
const UNDO_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a device comes from, which decides what happens if its start fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It did not exist, and was added; a device that existed without a disk was deleted first.
    Added,
    /// It existed, with a disk that has a new server now.
    Recovered,
}

#[derive(Debug)]
pub(super) struct ServedDevice {
    pub(super) control: ControlDevice,
    pub(super) id: u32,
    pub(super) grant: Grant,
    pub(super) monitor: Arc<QueueMonitor>,
    origin: Origin,
    counters: Vec<Arc<Counters>>,
    /// The last field: the driver considers the server gone when the character device is closed.
    char_device: Arc<OwnedFd>,
}

/// Opens a character device as soon as nobody else has it open: udev inspects new ones.
pub(super) fn open_char(
    control: &ControlDevice,
    id: u32,
    deadline: Instant,
) -> Result<Arc<OwnedFd>, Error> {
    let mut backoff = Backoff::until(deadline);
    loop {
        match control.open_char(id) {
            Err(error) if is_transient(&error) && backoff.sleep() => {}
            result => return result,
        }
    }
}

fn is_transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InUse | ErrorKind::NotFound)
}

/// What is attached, and to which reactors.
pub(super) struct Attach<'a> {
    pub(super) control: ControlDevice,
    pub(super) id: u32,
    pub(super) grant: Grant,
    pub(super) origin: Origin,
    pub(super) char_device: Arc<OwnedFd>,
    pub(super) reactors: &'a [Handle],
    pub(super) options: &'a QueueOptions,
}

impl ServedDevice {
    /// Attaches the queues, or their shares, to the reactors in turn. There is a handler for each.
    pub(super) fn attach<H: Handler + Send>(
        attach: Attach<'_>,
        handlers: Vec<H>,
    ) -> Result<ServedDevice, Error> {
        let (reactors, options) = (attach.reactors, attach.options);
        let shares: Vec<_> = options
            .queue_shares(&attach.grant, reactors.len())
            .collect();
        let mappings = map_descriptors(&attach, &shares)?;
        let served = ServedDevice {
            control: attach.control,
            id: attach.id,
            grant: attach.grant,
            monitor: Arc::new(QueueMonitor::new(attach.id, shares.len())),
            origin: attach.origin,
            counters: shares.iter().map(|_| Arc::default()).collect(),
            char_device: attach.char_device,
        };
        let mut stopped = false;
        let queues = shares.into_iter().zip(mappings).zip(handlers);
        for (index, ((share, descriptors), handler)) in queues.enumerate() {
            let parts = served.queue_parts(index, share, descriptors, options);
            let reactor = &reactors[index % reactors.len()];
            // Made before it is sent: if the reactor drops it, it still reports its detach.
            let source = QueueSource::new(parts, handler);
            let (monitor, handle) = (Arc::clone(&served.monitor), reactor.clone());
            let make_source = move |cx: &mut Cx<'_>| {
                monitor.set_location(index, handle, cx.source_id());
                source
            };
            stopped |= reactor.attach(make_source).is_err();
        }
        if stopped {
            let error = Error::new(
                Operation::Attach,
                ErrorKind::Closed,
                "a reactor has stopped",
                "give it reactors that run",
            );
            let error = error.on_device(served.id);
            return Err(served.undo(error));
        }
        Ok(served)
    }

    fn queue_parts(
        &self,
        index: usize,
        QueueShare { queue, share }: QueueShare,
        descriptors: Descriptors,
        options: &QueueOptions,
    ) -> QueueParts {
        QueueParts {
            device: self.id,
            queue,
            share,
            depth: self.grant.depth,
            char_device: Arc::clone(&self.char_device),
            descriptors,
            flags: self.grant.data_flags(),
            io_bytes_max: self.grant.io_bytes_max,
            slots_max: options.slots_max,
            pool: options.pool.as_ref().map(|pool| pool(queue)),
            counters: Arc::clone(&self.counters[index]),
            observer: self.monitor.observer(index),
        }
    }

    /// What every queue, or share of a queue, has counted.
    pub(super) fn stats(&self) -> Vec<QueueStats> {
        self.counters
            .iter()
            .map(|counters| counters.stats())
            .collect()
    }

    /// Waits until all queues have detached from their reactors.
    pub(super) fn wait_detached(&self, deadline: Instant) -> Result<(), Error> {
        if self.monitor.wait_detached(deadline) {
            return Ok(());
        }
        Err(self.not_detached_error())
    }

    /// Waits until all queues have detached, then closes the character device.
    pub(super) fn close(self, deadline: Instant) -> Result<(), Error> {
        self.wait_detached(deadline)
    }

    pub(super) fn not_detached_error(&self) -> Error {
        let aborted = self.monitor.aborted_queues();
        Error::new(
            Operation::Exit,
            ErrorKind::TimedOut,
            format!(
                "its queues have not detached from their reactors (the driver aborts {aborted} of {})",
                self.counters.len()
            ),
            "see what its requests wait for; a queue whose tags the driver keeps detaches with its \
             reactor",
        )
        .on_device(self.id)
    }

    /// Undoes a failed start: the queues detach; a device that was added here is deleted, one that
    /// existed stays. Returns the reason of the failure.
    pub(super) fn undo(self, error: Error) -> Error {
        let error = self.monitor.start_error(error);
        let (control, id) = (self.control.clone(), self.id);
        if self.origin == Origin::Recovered {
            // Stopping would take the disk away. The driver keeps the tags that it has until their
            // reactor closes its ring.
            self.monitor.detach_all();
            return error;
        }
        // Without a disk, stopping only makes the driver abort the tags.
        let stopped = control.stop(id, UNDO_TIMEOUT);
        self.monitor.detach_all();
        let closed = self.close(Instant::now() + UNDO_TIMEOUT);
        let deleted = delete(&control, id, UNDO_TIMEOUT);
        for error in [stopped, closed, deleted]
            .into_iter()
            .filter_map(Result::err)
        {
            tracing::warn!(device = id, %error, "ublk: a device that did not start is not all undone");
        }
        error
    }
}

fn map_descriptors(attach: &Attach<'_>, shares: &[QueueShare]) -> Result<Vec<Descriptors>, Error> {
    let map = |share: &QueueShare| {
        let (depth, stride) = (attach.grant.depth, attach.grant.descriptor_bytes);
        let mapped = Descriptors::map(&*attach.char_device, share.queue, depth, stride);
        mapped.map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
            Error::kernel(Operation::Map, Some(attach.id), errno).on_queue(share.queue, None)
        })
    };
    shares.iter().map(map).collect()
}
