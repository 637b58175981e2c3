//! Fast exit of a server, however many devices it has.
//!
//! The steps, each for all reactors or all devices at the same time, and none per queue:
//!
//! 1. Every reactor drains: it finishes the requests in hand, up to a deadline, takes no new ones, and
//!    keeps its ring.
//! 2. The driver is told to hold back new requests (QUIESCE_DEV, 6.16, devices with recovery). It waits
//!    for an RCU grace period per device, and these overlap. It would do the same by itself as the rings
//!    close, one device of a ring after the other.
//! 3. Every ring is closed in its own thread; descriptors are unmapped with it.
//! 4. The character device of each device is closed, last: then the driver considers the server gone.
//!
//! Step 2 comes after step 1 because the driver (7.2, fixed in 7.3) may cancel a command while it is being
//! submitted, and corrupt its ring's list: so no command may be submitted any more. It comes before step
//! 3 because then the driver has nothing left to wait for. If it is refused, or times out, step 3 does
//! the same. A request that arrives in between is held by the driver for the successor. If the server is
//! killed in between, the driver handles it as every killed server.
//!
//! The driver needs a moment to process the exit. A successor that comes within that moment must wait
//! ([`crate::device::open_or_recover`] does), so this function waits first, for all devices together:
//! until the driver reports each one without this server, or the time is up.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use reactor::{Reactor, StopReport};

use crate::backoff::Backoff;
use crate::control::{CONCURRENT_COMMANDS_MAX, ControlDevice};
use crate::device::{DeviceState, LiveDevice};
use crate::error::{Error, ErrorKind, Operation};
use crate::spec::Capability;
use crate::sys::DeviceInfo;

/// How long each step of the exit may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitTimeouts {
    /// For requests in hand.
    pub drain: Duration,
    /// For the driver to hold back new requests, of each 256 devices with that capability, before the
    /// rings close. `None`: it does so as they close.
    pub quiesce: Option<Duration>,
    /// For one GET_DEV_INFO of a device.
    pub probe: Duration,
    /// For the driver to report all devices without this server.
    pub confirm: Duration,
}

impl Default for ExitTimeouts {
    fn default() -> ExitTimeouts {
        ExitTimeouts {
            drain: Duration::from_secs(5),
            quiesce: Some(Duration::from_secs(2)),
            probe: Duration::from_millis(200),
            confirm: Duration::from_secs(2),
        }
    }
}

/// How the exit went.
#[derive(Clone, Debug, Default)]
pub struct ExitReport {
    /// The report of each reactor, in the order in which they were given.
    pub reactors: Vec<StopReport>,
    /// Time of step 1. Zero where no device can be quiesced.
    pub drain_time: Duration,
    /// Time of step 2.
    pub quiesce_time: Duration,
    /// Devices for which step 2 is not known to have succeeded, and why.
    pub quiesce_failures: Vec<(u32, Error)>,
    /// Time of step 3.
    pub stop_time: Duration,
    /// Time of step 4.
    pub close_time: Duration,
    /// Time until the driver reported every device without this server, or the time was up.
    pub confirm_time: Duration,
    /// Devices that the driver did not report without this server, and why.
    pub unconfirmed: Vec<(u32, UnconfirmedReason)>,
}

/// Why it is not known that a device is without this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnconfirmedReason {
    /// The driver still reports this state.
    StillLive(DeviceState),
    /// The driver did not reply.
    NoReply(Error),
    /// Some of its queues did not detach.
    QueuesAttached(Error),
}

/// Ends the server of these devices, whose queues are on these reactors and no others, and returns when
/// a successor may recover them. Devices without recovery lose their disks by this.
pub fn shut_down(
    control: &ControlDevice,
    devices: Vec<LiveDevice>,
    mut reactors: Vec<Reactor>,
    timeouts: ExitTimeouts,
) -> ExitReport {
    blkmq::may_block("the exit of a server");
    let can_quiesce = |live: &&LiveDevice| live.grant().has(Capability::Quiesce);
    let quiesced: Vec<u32> = devices
        .iter()
        .filter(can_quiesce)
        .map(LiveDevice::id)
        .collect();
    let quiesce_timeout = timeouts.quiesce.filter(|_| !quiesced.is_empty());
    let mut clock = StepClock::start();
    let drained = quiesce_timeout.is_some() && drain_all(&mut reactors, timeouts.drain);
    let drain_time = clock.step();

    let quiesce_failures = match quiesce_timeout {
        Some(within) if drained => quiesce_devices(control, &quiesced, within),
        Some(_) => {
            tracing::warn!("ublk: a reactor does not drain; the driver is not told to quiesce");
            Vec::new()
        }
        None => Vec::new(),
    };
    let quiesce_time = clock.step();

    let reactors = stop_all(reactors, timeouts.drain);
    let stop_time = clock.step();

    let (ids, not_detached) = close_all(devices);
    let close_time = clock.step();

    let mut unconfirmed = confirm_exit(control, &ids, timeouts);
    let confirm_time = clock.step();
    for (id, error) in not_detached {
        unconfirmed.insert(id, UnconfirmedReason::QueuesAttached(error));
    }
    for (device, why) in &unconfirmed {
        tracing::warn!(device, ?why, "ublk: the driver may still count this server");
    }
    ExitReport {
        reactors,
        drain_time,
        quiesce_time,
        quiesce_failures,
        stop_time,
        close_time,
        confirm_time,
        unconfirmed: unconfirmed.into_iter().collect(),
    }
}

/// Measures the steps one after the other.
struct StepClock(Instant);

impl StepClock {
    fn start() -> StepClock {
        StepClock(Instant::now())
    }

    /// The time since the last step.
    fn step(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now)
    }
}

/// Makes the driver hold back new requests of these devices, whose reactors have drained. Devices that
/// are left out here are quiesced as the rings close, one device of a ring after the other: so each
/// batch gets its own time, as long as batches make progress.
fn quiesce_devices(control: &ControlDevice, ids: &[u32], within: Duration) -> Vec<(u32, Error)> {
    let begun = Instant::now();
    let mut failures = Vec::new();
    let mut batches = ids.chunks(CONCURRENT_COMMANDS_MAX);
    for batch in batches.by_ref() {
        let failed = control.quiesce_all(batch, within);
        let all_failed = failed.len() == batch.len();
        failures.extend(failed);
        if all_failed {
            break;
        }
    }
    let not_tried = batches.flatten().map(|id| {
        let error = Error::timed_out(Operation::Quiesce, Some(*id), begun.elapsed());
        (*id, error)
    });
    failures.extend(not_tried);
    for (device, error) in &failures {
        tracing::warn!(device, %error, "ublk: not quiesced before its ring closes");
    }
    failures
}

/// Drains the reactors at the same time; returns whether all have drained. The reactor bounds each wait.
fn drain_all(reactors: &mut [Reactor], drain: Duration) -> bool {
    std::thread::scope(|scope| {
        let drains: Vec<_> = reactors
            .iter_mut()
            .map(|reactor| scope.spawn(move || reactor.drain(drain)))
            .collect();
        let drained = drains
            .into_iter()
            .map(|drain| drain.join().unwrap_or_default());
        // Without a short circuit: all threads are joined.
        drained.fold(true, |all, one| all & one)
    })
}

/// Stops the reactors at the same time. The reactor bounds each wait.
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

/// Threads that close character devices: the driver may wait for a grace period in each close, and these
/// overlap.
const CLOSE_THREADS: usize = 16;

/// Closes every character device. Returns all numbers, and the devices with queues that did not detach.
fn close_all(devices: Vec<LiveDevice>) -> (Vec<u32>, Vec<(u32, Error)>) {
    let ids = devices.iter().map(LiveDevice::id).collect();
    let mut shares: Vec<Vec<LiveDevice>> = Vec::new();
    shares.resize_with(CLOSE_THREADS.min(devices.len()), Vec::new);
    let count = shares.len();
    for (at, device) in devices.into_iter().enumerate() {
        shares[at % count].push(device);
    }
    // The reactors have ended: a queue that is still attached will not detach.
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

fn close_share(share: Vec<LiveDevice>, until: Instant) -> Vec<(u32, Error)> {
    let closed = share
        .into_iter()
        .map(|device| (device.id(), device.close(until)));
    closed
        .filter_map(|(id, closed)| closed.err().map(|error| (id, error)))
        .collect()
}

/// Reads the state of all devices again and again, until no device has this server.
fn confirm_exit(
    control: &ControlDevice,
    ids: &[u32],
    timeouts: ExitTimeouts,
) -> BTreeMap<u32, UnconfirmedReason> {
    let mut backoff = Backoff::until(Instant::now() + timeouts.confirm);
    let mut unconfirmed: BTreeMap<u32, UnconfirmedReason> = BTreeMap::new();
    let mut asked: Vec<u32> = ids.to_vec();
    loop {
        let within = timeouts.probe.min(backoff.remaining());
        for (id, info) in control.infos(&asked, within) {
            let why = match info {
                Ok(info) if is_ours(&info) => UnconfirmedReason::StillLive(DeviceState::Live),
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    UnconfirmedReason::NoReply(error)
                }
                _ => {
                    unconfirmed.remove(&id);
                    continue;
                }
            };
            unconfirmed.insert(id, why);
        }
        asked = unconfirmed.keys().copied().collect();
        if asked.is_empty() || !backoff.sleep() {
            return unconfirmed;
        }
    }
}

/// Whether the device is LIVE with this process, or no process, as its server. A successor may have
/// been faster than this command.
fn is_ours(info: &DeviceInfo) -> bool {
    let us = i32::try_from(std::process::id());
    let successor = info.server_pid > 0 && us != Ok(info.server_pid);
    DeviceState::of(info) == DeviceState::Live && !successor
}

#[cfg(test)]
mod tests;
