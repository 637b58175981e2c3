//! Leaving fast, however many devices there are.
//!
//! In this order, each step for all reactors or all devices side by side, and nothing per queue:
//!
//! 1. Every reactor finishes what it has, up to a deadline, takes nothing new, and keeps its ring.
//! 2. The driver is told to keep new requests back (QUIESCE_DEV, 6.16, devices with recovery). It
//!    waits for a grace period of the kernel's per device, and these overlap. It would do the same
//!    by itself as the rings close, one device of a ring after the other.
//! 3. Every ring is closed in its own thread; descriptors are unmapped with it.
//! 4. Each device's character device is closed, last, which is what makes the driver take the
//!    server for gone.
//!
//! The second step comes after the first because the driver (7.2, mended in 7.3) may take a command
//! back that is being handed over at that moment, and corrupt its ring's list: so nothing may be
//! handed over any more. It comes before the third because then the driver has nothing left to wait
//! for. Where it is refused, or late, the third does it. A request that comes in between is with
//! nobody, and waits for the successor. A server that is killed in between is like any other that
//! is killed.
//!
//! The driver needs a moment to process it. A successor that comes within that moment must wait
//! for it ([`crate::device::open_or_recover`] does), so this waits first, for all devices
//! together: until each is seen without a server, or the time is up.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use reactor::{Reactor, StopReport};

use crate::control::{Control, SIDE_BY_SIDE};
use crate::device::{Live, Pause, State};
use crate::error::{Error, Kind, Operation};
use crate::spec::Capability;
use crate::sys::DeviceInfo;

/// How much time each stage of leaving has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For requests in progress.
    pub drain: Duration,
    /// For the driver to keep new requests back, of each 256 devices that it can do that for, before
    /// the rings close. None: it does so as they close.
    pub quiesce: Option<Duration>,
    /// For one question to the driver about a device.
    pub probe: Duration,
    /// For all devices together to be seen without a server.
    pub seen: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            drain: Duration::from_secs(5),
            quiesce: Some(Duration::from_secs(2)),
            probe: Duration::from_millis(200),
            seen: Duration::from_secs(2),
        }
    }
}

/// How it went.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What each reactor says of its own end, in the order in which they were given.
    pub reactors: Vec<StopReport>,
    /// From the beginning until all reactors had finished what they had. Nothing where none has a
    /// device that can be told to the driver ahead.
    pub drained: Duration,
    /// From then until the driver kept back new requests of the devices that it can do that for.
    pub quiesced: Duration,
    /// Devices of which it is not known that it did, and why.
    pub unquiesced: Vec<(u32, Error)>,
    /// From then until the last reactor had ended.
    pub stopped: Duration,
    /// From then until the last character device was closed.
    pub closed: Duration,
    /// From then until every device was seen without a server, or the time was up.
    pub seen: Duration,
    /// Devices that were not, and why.
    pub unseen: Vec<(u32, Unseen)>,
}

/// Why a device was not seen without a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// The driver still calls it this.
    Still(State),
    /// The driver did not answer.
    Silent(Error),
    /// Some of its queues did not leave.
    Held(Error),
}

/// Leaves these devices, whose queues are on these reactors and no others, and returns when a
/// successor may take them. Devices without recovery lose their disks by this.
pub fn leave(
    control: &Control,
    devices: Vec<Live>,
    mut reactors: Vec<Reactor>,
    limits: Limits,
) -> Report {
    blkmq::may_block("leaving");
    let able = |live: &&Live| live.granted().has(Capability::Quiesce);
    let ahead: Vec<u32> = devices.iter().filter(able).map(Live::id).collect();
    let within = limits.quiesce.filter(|_| !ahead.is_empty());
    let begun = Instant::now();
    let at_rest = within.is_some() && drain_all(&mut reactors, limits.drain);
    let drained = begun.elapsed();

    let begun = Instant::now();
    let unquiesced = match within {
        Some(within) if at_rest => quiesce(control, &ahead, within),
        Some(_) => {
            tracing::warn!("ublk: a reactor does not come to rest; the driver is not told ahead");
            Vec::new()
        }
        None => Vec::new(),
    };
    let quiesced = begun.elapsed();

    let begun = Instant::now();
    let reactors = stop_all(reactors, limits.drain);
    let stopped = begun.elapsed();

    let begun = Instant::now();
    let (ids, held) = close_all(devices);
    let closed = begun.elapsed();

    let begun = Instant::now();
    let mut unseen = wait_seen(control, &ids, limits);
    let seen = begun.elapsed();
    for (id, error) in held {
        unseen.insert(id, Unseen::Held(error));
    }
    for (device, why) in &unseen {
        tracing::warn!(device, ?why, "ublk: left, and not seen without a server");
    }
    Report {
        reactors,
        drained,
        quiesced,
        unquiesced,
        stopped,
        closed,
        seen,
        unseen: unseen.into_iter().collect(),
    }
}

/// Makes the driver keep back new requests of these devices, of which no reactor has any. What is
/// not done here is done as the rings close, one device of a ring after the other: so the many get
/// more time than the few, as long as it leads anywhere.
fn quiesce(control: &Control, ids: &[u32], within: Duration) -> Vec<(u32, Error)> {
    let begun = Instant::now();
    let mut refused = Vec::new();
    let mut rest = ids.chunks(SIDE_BY_SIDE);
    for some in rest.by_ref() {
        let late = control.quiesce_all(some, within);
        let none = late.len() == some.len();
        refused.extend(late);
        if none {
            break;
        }
    }
    let untold = rest.flatten().map(|id| {
        let late = Error::late(Operation::Quiesce, Some(*id), begun.elapsed());
        (*id, late)
    });
    refused.extend(untold);
    for (device, error) in &refused {
        tracing::warn!(device, %error, "ublk: not quiesced ahead");
    }
    refused
}

/// Drains reactors side by side; whether all came to rest. Each wait is bounded by the reactor
/// itself.
fn drain_all(reactors: &mut [Reactor], drain: Duration) -> bool {
    std::thread::scope(|scope| {
        let drains: Vec<_> = reactors
            .iter_mut()
            .map(|reactor| scope.spawn(move || reactor.drain(drain)))
            .collect();
        let ends = drains.into_iter().map(|one| one.join().unwrap_or_default());
        // All of them are waited for.
        ends.fold(true, |all, one| all & one)
    })
}

/// Stops reactors side by side. Each wait is bounded by the reactor itself.
fn stop_all(reactors: Vec<Reactor>, drain: Duration) -> Vec<StopReport> {
    std::thread::scope(|scope| {
        let stops: Vec<_> = reactors
            .into_iter()
            .map(|reactor| scope.spawn(move || reactor.stop(drain)))
            .collect();
        let ends = stops
            .into_iter()
            .map(|stop| stop.join().unwrap_or_default());
        ends.collect()
    })
}

/// Closers of character devices: the driver may wait for a grace period in each, and these
/// overlap.
const CLOSERS: usize = 16;

/// Closes every character device, and says which have queues that still hold theirs.
fn close_all(devices: Vec<Live>) -> (Vec<u32>, Vec<(u32, Error)>) {
    let ids = devices.iter().map(Live::id).collect();
    let mut shares: Vec<Vec<Live>> = Vec::new();
    shares.resize_with(CLOSERS.min(devices.len()), Vec::new);
    let count = shares.len();
    for (at, device) in devices.into_iter().enumerate() {
        shares[at % count].push(device);
    }
    // Their reactors have ended: queues that are still there will not go.
    let now = Instant::now();
    let held = std::thread::scope(|scope| {
        let closers: Vec<_> = shares
            .into_iter()
            .map(|share| scope.spawn(move || close_share(share, now)))
            .collect();
        let held = closers
            .into_iter()
            .map(|closer| closer.join().unwrap_or_default());
        held.flatten().collect()
    });
    (ids, held)
}

fn close_share(share: Vec<Live>, until: Instant) -> Vec<(u32, Error)> {
    let closed = share
        .into_iter()
        .map(|device| (device.id(), device.close(until)));
    closed
        .filter_map(|(id, closed)| closed.err().map(|error| (id, error)))
        .collect()
}

/// Asks about all devices at once, again and again, until each has no server.
fn wait_seen(control: &Control, ids: &[u32], limits: Limits) -> BTreeMap<u32, Unseen> {
    let mut pause = Pause::until(Instant::now() + limits.seen);
    let mut unseen: BTreeMap<u32, Unseen> = BTreeMap::new();
    let mut asked: Vec<u32> = ids.to_vec();
    loop {
        let within = limits.probe.min(pause.left());
        for (id, info) in control.infos(&asked, within) {
            let why = match info {
                Ok(info) if is_ours(&info) => Unseen::Still(State::Live),
                Err(error) if error.kind() != Kind::Gone => Unseen::Silent(error),
                _ => {
                    unseen.remove(&id);
                    continue;
                }
            };
            unseen.insert(id, why);
        }
        asked = unseen.keys().copied().collect();
        if asked.is_empty() || !pause.wait() {
            return unseen;
        }
    }
}

/// Whether the driver still takes this process, or nobody, for the server of a live disk. A
/// successor may have been quicker than this question.
fn is_ours(info: &DeviceInfo) -> bool {
    let us = i32::try_from(std::process::id());
    let successor = info.server_pid > 0 && us != Ok(info.server_pid);
    State::of(info) == State::Live && !successor
}

#[cfg(test)]
mod tests;
