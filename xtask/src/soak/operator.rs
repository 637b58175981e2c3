//! What an operator does to the server while its disks are in use: restarts, kills, detaches.
//!
//! Restarts and kills come in the first half of a soak, so that the second half shows how one server
//! process grows. Writers go on all the time, except on a disk that is detached.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::device::{Attached, Device};
use super::disk_files::DiskFiles;
use super::gauge::Gauge;
use super::nbd_export::NbdExport;
use super::server::{self, Server, Setup};
use super::world::{Tally, ThreadActivity, World, lock};
use crate::Failure;

/// How long an operation may take.
pub(super) const OPERATION_TIMEOUT: Duration = Duration::from_secs(240);

/// The operator's view of the soak.
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
    /// Attaches all volumes as disks, and opens the disks.
    pub(super) fn attach_all(&self) -> Result<(), Failure> {
        for device in self.devices {
            self.attach(device)?;
        }
        Ok(())
    }

    fn attach(&self, device: &Device) -> Result<(), Failure> {
        self.open(device, &mut device.lock_exclusively())
    }

    fn open(&self, device: &Device, attached: &mut Option<Attached>) -> Result<(), Failure> {
        *attached = Some(if self.setup.over_nbd {
            server::attach_over_nbd(&device.name, OPERATION_TIMEOUT)?;
            Attached::Nbd(NbdExport::new(server::nbd_socket(), &device.name))
        } else {
            let path = server::attach(&device.name, self.mode, OPERATION_TIMEOUT)?;
            Attached::Disk(DiskFiles::open(&path)?)
        });
        Ok(())
    }

    fn close(device: &Device, attached: &mut Option<Attached>) -> Result<(), Failure> {
        // Closed first: the server does not detach a disk that is open.
        *attached = None;
        server::detach(&device.name, OPERATION_TIMEOUT)
    }

    pub(super) fn detach_all(&self) -> Result<(), Failure> {
        let mut devices = self.devices.iter();
        devices.try_for_each(|device| Self::close(device, &mut device.lock_exclusively()))
    }

    /// Detaches a volume and attaches it again; its requests wait meanwhile.
    fn reattach(&self, device: &Device) -> Result<(), Failure> {
        let mut attached = device.lock_exclusively();
        Self::close(device, &mut attached)?;
        self.open(device, &mut attached)
    }

    /// Stops the server and starts the next, which must recover all disks.
    fn restart(&self, signal: Signal) -> Result<(), Failure> {
        let mut place = lock(self.server);
        let Some(server) = place.take() else {
            return Ok(());
        };
        self.gauge.sample(&server);
        let (went, status) = server.stop(signal, OPERATION_TIMEOUT)?;
        if signal == Signal::TERM && !status.success() {
            return Err(format!("a server that was asked to stop ended with {status}").into());
        }
        let next = self.setup.start(OPERATION_TIMEOUT)?;
        let startup_time = next.startup_time;
        *place = Some(next);
        drop(place);
        let mut late = Vec::new();
        for device in self.devices {
            if !self.wait_until_restored(device, OPERATION_TIMEOUT)? {
                late.push(device.name.as_str());
                Tally::add(&self.world.tally.late_recoveries, 1);
            }
        }
        println!(
            "{signal:?} after {:.1} s: stopped in {:.0} ms, ready in {:.0} ms{}",
            self.world.began.elapsed().as_secs_f64(),
            went.as_secs_f64() * 1e3,
            startup_time.as_secs_f64() * 1e3,
            if late.is_empty() {
                String::new()
            } else {
                format!("; recovered later: {}", late.join(" "))
            }
        );
        if let Some(server) = &*lock(self.server) {
            self.gauge.on_server_start(server);
        }
        Ok(())
    }

    /// Whether the server serves a volume, by what it shows of it.
    fn is_back(&self, shown: &serde_json::Value) -> bool {
        match self.setup.over_nbd {
            true => shown["state"] == "open",
            false => !shown["disk"].is_null(),
        }
    }

    /// Waits until the restarted server has recovered a disk. Returns whether it had at once.
    fn wait_until_restored(&self, device: &Device, within: Duration) -> Result<bool, Failure> {
        let began = Instant::now();
        for tries in 0.. {
            let shown = server::request("GET", &format!("/v1/volumes/{}", device.name), None);
            match shown {
                Ok(shown) if self.is_back(&shown) => return Ok(tries == 0),
                // The server asks the store about a volume that is not open yet, and that may fail.
                _ if began.elapsed() < within => std::thread::sleep(Duration::from_millis(200)),
                Ok(_) => break,
                Err(error) => return Err(error),
            }
        }
        let name = &device.name;
        Err(format!("the disk of {name} was not recovered after a restart").into())
    }

    /// Restarts the server and reattaches disks until the soak ends.
    pub(super) fn run(&self, activity: &ThreadActivity, total: Duration) {
        let restarts = (total.as_secs() / 120).clamp(2, 20);
        let between = total / 2 / (u32::try_from(restarts).unwrap_or(2) + 1);
        let detaches = total.div_f64(24.0).max(Duration::from_secs(3));
        let (mut next_restart, mut next_detach) =
            (Instant::now() + between, Instant::now() + detaches);
        let (mut restarted, mut detached) = (0, 0);
        // An operation's time must not count as a request's.
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
                (activity.track(&own, what, || self.restart(signal)), counter)
            } else if now >= next_detach {
                let device = &self.devices[detached % self.devices.len()];
                detached += 1;
                next_detach = now + detaches;
                let what = || format!("detach and attach of {}", device.name);
                let cycled = activity.track(&own, what, || self.reattach(device));
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
