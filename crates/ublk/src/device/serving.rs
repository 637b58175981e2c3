//! A device whose queues are on reactors: the part that [`super::Armed`] and [`super::Live`]
//! share. It keeps the character device, so that it is closed last.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reactor::{Cx, Handle};

use super::armed::Options;
use super::watcher::Watcher;
use super::{Pause, delete};
use crate::control::Control;
use crate::error::{Error, Kind, Operation};
use crate::negotiate::Granted;
use crate::queue::{Counters, Descriptors, Handler, QueueParts, QueueSource, QueueStats, Share};

/// How long a device that failed to come alive may take to go.
const UNDO: Duration = Duration::from_secs(5);

/// Where a device comes from: what becomes of it if it does not come alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// It was added here.
    Added,
    /// It was there, with a disk that waits for a server.
    Recovered,
}

#[derive(Debug)]
pub(super) struct Serving {
    pub(super) control: Control,
    pub(super) id: u32,
    pub(super) granted: Granted,
    pub(super) watcher: Arc<Watcher>,
    pub(super) origin: Origin,
    counters: Vec<Arc<Counters>>,
    /// Last: the driver takes the server for gone when nobody has it open any more.
    char_device: Arc<OwnedFd>,
}

/// Opens a character device as soon as nobody else has it open: udev looks into new ones.
pub(super) fn open_char(control: &Control, id: u32, until: Instant) -> Result<Arc<OwnedFd>, Error> {
    let mut pause = Pause::until(until);
    loop {
        match control.open_char(id) {
            Err(error) if may_pass(&error) && pause.wait() => {}
            result => return result,
        }
    }
}

fn may_pass(error: &Error) -> bool {
    matches!(error.kind(), Kind::Taken | Kind::Gone)
}

impl Serving {
    /// Puts the queues, or their shares, on the reactors, one after the other in turn.
    pub(super) fn attach<H: Handler + Send>(
        (control, id, granted): (&Control, u32, &Granted),
        char_device: Arc<OwnedFd>,
        (reactors, options): (&[Handle], &Options),
        handlers: Vec<H>,
        origin: Origin,
    ) -> Result<Serving, Error> {
        let seats: Vec<_> = options.seats(granted, reactors.len()).collect();
        let mut mapped = Vec::new();
        for &(queue, _) in &seats {
            let stride = granted.descriptor_bytes;
            let map = Descriptors::map(&*char_device, queue, granted.depth, stride);
            mapped.push(map.map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
                Error::kernel(Operation::Map, Some(id), errno)
            })?);
        }
        let serving = Serving {
            control: control.clone(),
            id,
            granted: granted.clone(),
            watcher: Arc::new(Watcher::new(id, seats.len())),
            origin,
            counters: seats.iter().map(|_| Arc::default()).collect(),
            char_device,
        };
        let mut stopped = false;
        let queues = seats.into_iter().zip(mapped).zip(handlers);
        for (at, ((seat, descriptors), handler)) in queues.enumerate() {
            let parts = serving.parts((at, seat), descriptors, options);
            let reactor = &reactors[at % reactors.len()];
            // Whole before it is sent: however it ends, it says that it is gone.
            let source = QueueSource::new(parts, handler);
            let (watcher, seat) = (Arc::clone(&serving.watcher), reactor.clone());
            let sit = move |cx: &mut Cx<'_>| {
                watcher.sits(at, seat, cx.me());
                source
            };
            stopped |= reactor.attach(sit).is_err();
        }
        if stopped {
            let error = Error::new(
                Operation::Arm,
                Kind::Closed,
                "a reactor has stopped",
                "give it reactors that run",
            );
            return Err(serving.undo(error.on(id)));
        }
        Ok(serving)
    }

    fn parts(
        &self,
        (at, (queue, share)): (usize, (u16, Share)),
        descriptors: Descriptors,
        options: &Options,
    ) -> QueueParts {
        QueueParts {
            device: self.id,
            queue,
            share,
            depth: self.granted.depth,
            char_device: Arc::clone(&self.char_device),
            descriptors,
            flags: self.granted.data_flags(),
            io_bytes_max: self.granted.io_bytes_max,
            slots_max: options.slots_max,
            pool: options.pool.as_ref().map(|pool| pool(queue)),
            counters: Arc::clone(&self.counters[at]),
            observer: self.watcher.voice(at),
        }
    }

    /// What every queue, or share of one, has counted.
    pub(super) fn stats(&self) -> Vec<QueueStats> {
        self.counters
            .iter()
            .map(|counters| counters.stats())
            .collect()
    }

    /// Waits until all queues have left their reactors, then closes the character device.
    pub(super) fn close(self, until: Instant) -> Result<(), Error> {
        if self.watcher.wait_gone(until) {
            return Ok(());
        }
        Err(self.still_there())
    }

    pub(super) fn still_there(&self) -> Error {
        let begun = self.watcher.aborted();
        Error::new(
            Operation::Exit,
            Kind::Late,
            format!(
                "its queues have not left their reactors ({begun} of {} have begun to)",
                self.counters.len()
            ),
            "see what its requests wait for; a queue whose tags the driver keeps leaves with its \
             reactor",
        )
        .on(self.id)
    }

    /// A device that did not come alive: its queues leave; what was added goes again, what was
    /// there stays. The error is the reason.
    pub(super) fn undo(self, error: Error) -> Error {
        let error = self.watcher.reason(error);
        let (control, id, origin) = (self.control.clone(), self.id, self.origin);
        if origin == Origin::Recovered {
            // Stopping would take the disk away. Tags that the driver has stay with it until
            // their reactor closes its ring.
            self.watcher.evict();
            return error;
        }
        // Without a disk, stopping only makes the driver give the tags back.
        let stopped = control.stop(id, UNDO);
        self.watcher.evict();
        let closed = self.close(Instant::now() + UNDO);
        let deleted = match origin {
            Origin::Added => delete(&control, id, UNDO),
            _ => Ok(()),
        };
        for undone in [stopped, closed, deleted] {
            if let Err(undone) = undone {
                tracing::warn!(%undone, "ublk: giving up a device that did not start");
            }
        }
        error
    }
}
