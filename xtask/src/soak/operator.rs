//! What an operator does to the servers while their disks are in use: restarts, kills, upgrades, detaches.
//!
//! Restarts and kills come in the first half of a soak, so that the second half shows how one server
//! process grows; upgrades, where they are asked for, come all the time. Writers go on, except on a disk that is detached.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::device::{Attached, Device};
use super::disk_files::DiskFiles;
use super::gauge::Gauge;
use super::host::Host;
use super::nbd_export::NbdExport;
use super::server::{Server, Setup};
use super::world::{Tally, ThreadActivity, World, lock};
use crate::Failure;

/// How long an operation may take.
pub(super) const OPERATION_TIMEOUT: Duration = Duration::from_secs(240);

/// A host, and its server while it has one.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) host: Host,
    pub(super) server: Mutex<Option<Server>>,
}

/// The operator's view of the soak.
#[derive(Debug)]
pub(super) struct Operator<'a> {
    pub(super) setup: &'a Setup,
    pub(super) mode: &'a str,
    pub(super) devices: &'a [Arc<Device>],
    /// By the hosts' numbers; at least one.
    pub(super) places: &'a [Place],
    /// None: servers are not upgraded.
    pub(super) upgrade_every: Option<Duration>,
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
        let home = device.lock_home();
        self.open(device, *home, &mut device.lock_exclusively())
    }

    fn open(
        &self,
        device: &Device,
        home: usize,
        attached: &mut Option<Attached>,
    ) -> Result<(), Failure> {
        let host = &self.places[home].host;
        *attached = Some(if self.setup.over_nbd {
            host.attach_over_nbd(&device.name, OPERATION_TIMEOUT)?;
            let sockets = self.places.iter().map(|place| place.host.nbd_socket());
            Attached::Nbd(NbdExport::new(sockets.collect(), home, &device.name))
        } else {
            let path = host.attach(&device.name, self.mode, OPERATION_TIMEOUT)?;
            Attached::Disk(DiskFiles::open(&path)?)
        });
        Ok(())
    }

    fn close(
        &self,
        device: &Device,
        home: usize,
        attached: &mut Option<Attached>,
    ) -> Result<(), Failure> {
        // Closed first: the server does not detach a disk that is open.
        *attached = None;
        let host = &self.places[home].host;
        host.detach(&device.name, OPERATION_TIMEOUT)
    }

    pub(super) fn detach_all(&self) -> Result<(), Failure> {
        self.devices.iter().try_for_each(|device| {
            let home = device.lock_home();
            self.close(device, *home, &mut device.lock_exclusively())
        })
    }

    /// Detaches a volume and attaches it again; its requests wait meanwhile.
    fn reattach(&self, device: &Device) -> Result<(), Failure> {
        let home = device.lock_home();
        let mut attached = device.lock_exclusively();
        self.close(device, *home, &mut attached)?;
        self.open(device, *home, &mut attached)
    }

    /// Stops a host's server and starts the next, which must recover all its disks.
    fn restart(&self, place: &Place, signal: Signal) -> Result<(), Failure> {
        let mut running = lock(&place.server);
        let Some(server) = running.take() else {
            return Ok(());
        };
        self.gauge.sample(&server);
        let (went, status) = server.stop(signal, OPERATION_TIMEOUT)?;
        if signal == Signal::TERM && !status.success() {
            return Err(format!("a server that was asked to stop ended with {status}").into());
        }
        let next = self.setup.start(&place.host, OPERATION_TIMEOUT)?;
        let startup_time = next.startup_time;
        *running = Some(next);
        drop(running);
        let late = self.wait_until_all_restored(&place.host)?;
        println!(
            "{} of host {} after {:.1} s: stopped in {:.0} ms, ready in {:.0} ms{}",
            signal_name(signal),
            place.host.number,
            self.world.began.elapsed().as_secs_f64(),
            went.as_secs_f64() * 1e3,
            startup_time.as_secs_f64() * 1e3,
            if late.is_empty() {
                String::new()
            } else {
                format!("; recovered later: {}", late.join(" "))
            }
        );
        if let Some(server) = &*lock(&place.server) {
            self.gauge.on_server_start(server);
        }
        Ok(())
    }

    /// Has a server go on with its program anew, which no client may notice.
    fn upgrade(&self, place: &Place) -> Result<(), Failure> {
        let mut running = lock(&place.server);
        let Some(server) = &mut *running else {
            return Ok(());
        };
        self.gauge.sample(server);
        server.upgrade(&self.setup.program, OPERATION_TIMEOUT)?;
        self.gauge.on_server_start(server);
        Ok(())
    }

    /// Waits until a restarted server has recovered all disks that it has. Returns those that it had not at once.
    fn wait_until_all_restored(&self, host: &Host) -> Result<Vec<&str>, Failure> {
        let mut late = Vec::new();
        for device in self.devices {
            let home = device.lock_home();
            if *home == host.number && !self.wait_until_restored(host, device)? {
                late.push(device.name.as_str());
                Tally::add(&self.world.tally.late_recoveries, 1);
            }
        }
        Ok(late)
    }

    /// Whether the server serves a volume, by what it shows of it.
    pub(super) fn is_back(&self, shown: &serde_json::Value) -> bool {
        match self.setup.over_nbd {
            true => shown["state"] == "open",
            false => !shown["disk"].is_null(),
        }
    }

    /// Waits until the restarted server has recovered a disk. Returns whether it had at once.
    fn wait_until_restored(&self, host: &Host, device: &Device) -> Result<bool, Failure> {
        let began = Instant::now();
        for tries in 0.. {
            match host.show(&device.name) {
                Ok(shown) if self.is_back(&shown) => return Ok(tries == 0),
                // The server asks the store about a volume that is not open yet, and that may fail.
                _ if began.elapsed() < OPERATION_TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(200))
                }
                Ok(_) => break,
                Err(error) => return Err(error),
            }
        }
        let name = &device.name;
        Err(format!("the disk of {name} was not recovered after a restart").into())
    }

    /// Restarts and upgrades servers and reattaches disks until the soak ends.
    pub(super) fn run(&self, activity: &ThreadActivity, total: Duration) {
        let restarts = (total.as_secs() / 120).clamp(2, 20);
        let between = total / 2 / (u32::try_from(restarts).unwrap_or(2) + 1);
        let mut restarts = Schedule::new(between, restarts as usize);
        let mut upgrades = match self.upgrade_every {
            Some(every) => Schedule::new(every, usize::MAX),
            None => Schedule::new(total, 0),
        };
        let between = total.div_f64(24.0).max(Duration::from_secs(3));
        let mut detaches = Schedule::new(between, usize::MAX);
        // An operation's time must not count as a request's.
        let own = Tally::default();
        while !self.world.stopped() {
            self.world.sleep(Duration::from_millis(100));
            let tally = &self.world.tally;
            let (done, counter) = if let Some(number) = restarts.due() {
                let (signal, counter) = match number % 2 {
                    0 => (Signal::KILL, &tally.kills),
                    _ => (Signal::TERM, &tally.stops),
                };
                let place = &self.places[number / 2 % self.places.len()];
                let name = signal_name(signal);
                let what = || format!("restart of host {} by {name}", place.host.number);
                let restarted = activity.track(&own, what, || self.restart(place, signal));
                (restarted, counter)
            } else if let Some(number) = upgrades.due() {
                let place = &self.places[number % self.places.len()];
                let what = || format!("upgrade of host {}", place.host.number);
                let upgraded = activity.track(&own, what, || self.upgrade(place));
                (upgraded, &tally.upgrades)
            } else if let Some(number) = detaches.due() {
                let device = &self.devices[number % self.devices.len()];
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

fn signal_name(signal: Signal) -> &'static str {
    match signal {
        Signal::KILL => "SIGKILL",
        _ => "SIGTERM",
    }
}

/// Something that is done again and again.
#[derive(Debug)]
struct Schedule {
    every: Duration,
    next: Instant,
    done: usize,
    /// How often at most.
    most: usize,
}

impl Schedule {
    fn new(every: Duration, most: usize) -> Schedule {
        Schedule {
            every,
            next: Instant::now() + every,
            done: 0,
            most,
        }
    }

    /// The number of the time that has come, from zero on.
    fn due(&mut self) -> Option<usize> {
        let now = Instant::now();
        if self.done >= self.most || now < self.next {
            return None;
        }
        self.next = now + self.every;
        self.done += 1;
        Some(self.done - 1)
    }
}
