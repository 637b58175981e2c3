//! What an operator does to the server while its disks are in use: restarts, kills, detaches.
//!
//! Restarts and kills come in the first half of a soak, so that the second shows how one life of the server
//! grows. Writers go on all the time; only a disk that is detached has none.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::device::{Device, Files};
use super::gauge::Gauge;
use super::server::{self, Server, Setup};
use super::world::{Seat, Tally, World, lock};
use crate::Failure;

/// Longest that an operation may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(240);

/// What the operator has.
#[derive(Debug)]
pub(super) struct Operator<'a> {
    pub(super) setup: &'a Setup,
    pub(super) mode: &'a str,
    pub(super) devices: &'a [Arc<Device>],
    pub(super) server: &'a Mutex<Option<Server>>,
    pub(super) world: &'a World,
    pub(super) gauge: &'a Gauge,
}

impl Operator<'_> {
    /// Makes all volumes disks, and opens them.
    pub(super) fn attach_all(&self) -> Result<(), Failure> {
        for device in self.devices {
            self.attach(device)?;
        }
        Ok(())
    }

    fn attach(&self, device: &Device) -> Result<(), Failure> {
        self.open(device, &mut device.alone())
    }

    fn open(&self, device: &Device, files: &mut Option<Files>) -> Result<(), Failure> {
        let path = server::attach(&device.name, self.mode, PATIENCE)?;
        *files = Some(Files::open(&path)?);
        Ok(())
    }

    fn close(device: &Device, files: &mut Option<Files>) -> Result<(), Failure> {
        // Closed first: a disk that somebody has open is not taken away.
        *files = None;
        server::detach(&device.name, PATIENCE)
    }

    pub(super) fn detach_all(&self) -> Result<(), Failure> {
        let mut devices = self.devices.iter();
        devices.try_for_each(|device| Self::close(device, &mut device.alone()))
    }

    /// Gives a volume back to the store and makes it a disk again; its requests wait.
    fn cycle(&self, device: &Device) -> Result<(), Failure> {
        let mut files = device.alone();
        Self::close(device, &mut files)?;
        self.open(device, &mut files)
    }

    /// Ends the server and starts the next; all disks must come back with it.
    fn restart(&self, signal: Signal) -> Result<(), Failure> {
        let mut place = lock(self.server);
        let Some(server) = place.take() else {
            return Ok(());
        };
        self.gauge.look(&server);
        let (went, status) = server.end(signal, PATIENCE)?;
        if signal == Signal::TERM && !status.success() {
            return Err(format!("a server that was asked to stop ended with {status}").into());
        }
        let next = self.setup.start(PATIENCE)?;
        let came_up = next.came_up;
        *place = Some(next);
        drop(place);
        let mut late = Vec::new();
        for device in self.devices {
            if !self.back(device, PATIENCE)? {
                late.push(device.name.as_str());
                Tally::add(&self.world.tally.late_back, 1);
            }
        }
        println!(
            "{signal:?} after {:.1} s: gone in {:.0} ms, ready in {:.0} ms{}",
            self.world.began.elapsed().as_secs_f64(),
            went.as_secs_f64() * 1e3,
            came_up.as_secs_f64() * 1e3,
            if late.is_empty() {
                String::new()
            } else {
                format!("; back later: {}", late.join(" "))
            }
        );
        if let Some(server) = &*lock(self.server) {
            self.gauge.begins(server);
        }
        Ok(())
    }

    /// Waits until a disk is there again after a restart, by itself; whether it was at once.
    fn back(&self, device: &Device, within: Duration) -> Result<bool, Failure> {
        let began = Instant::now();
        for tries in 0.. {
            let shown = server::done("GET", &format!("/v1/volumes/{}", device.name), None);
            match shown {
                Ok(shown) if !shown["disk"].is_null() => return Ok(tries == 0),
                // One that is not open yet is looked for in the store, which fails at times.
                _ if began.elapsed() < within => std::thread::sleep(Duration::from_millis(200)),
                Ok(_) => break,
                Err(error) => return Err(error),
            }
        }
        let name = &device.name;
        Err(format!("the disk of {name} did not come back by itself after a restart").into())
    }

    /// Until the soak ends.
    pub(super) fn run(&self, seat: &Seat, total: Duration) {
        let restarts = (total.as_secs() / 120).clamp(2, 20);
        let between = total / 2 / (u32::try_from(restarts).unwrap_or(2) + 1);
        let detaches = total.div_f64(24.0).max(Duration::from_secs(3));
        let (mut next_restart, mut next_detach) =
            (Instant::now() + between, Instant::now() + detaches);
        let (mut restarted, mut detached) = (0, 0);
        // How long an operation takes is not how long a request does.
        let own = Tally::default();
        while !self.world.stopped() {
            self.world.sleep(Duration::from_millis(100));
            let now = Instant::now();
            let tally = &self.world.tally;
            let (done, counter) = if restarted < restarts && now >= next_restart {
                let (signal, counter) = match restarted % 2 {
                    0 => (Signal::KILL, &tally.kills),
                    _ => (Signal::TERM, &tally.stops),
                };
                restarted += 1;
                next_restart = now + between;
                let what = || format!("restart by {signal:?}");
                (seat.does(&own, what, || self.restart(signal)), counter)
            } else if now >= next_detach {
                let device = &self.devices[detached % self.devices.len()];
                detached += 1;
                next_detach = now + detaches;
                let what = || format!("detach and attach of {}", device.name);
                let cycled = seat.does(&own, what, || self.cycle(device));
                (cycled, &tally.detaches)
            } else {
                continue;
            };
            match done {
                Ok(()) => Tally::add(counter, 1),
                Err(error) => self.world.fail(format!("operator: {error}")),
            }
        }
    }
}
