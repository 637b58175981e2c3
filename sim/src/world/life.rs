//! How a server process comes up, brings its volumes up, and how a world ends.

use super::{Event, Phase, VolumePhase, World};
use crate::disk::{DiskFaults, Io, Origin};
use crate::node::{Failure, Node, NodeEvent, Setup};
use crate::oracle::history::Loss;
use crate::rng::Rng;
use crate::store::StoreFaults;
use crate::trace::Violation;
use crate::transport::Transport;
use blkmq::io::FileId;

/// Boots that fail in a row before the machine is given up, in worlds where a disk can fail.
const BOOTS_MAX: u32 = 12;

impl World {
    /// A new machine's log file begins with zeroes, as a new file does; what lies behind was
    /// never written.
    pub(super) fn format_disk(&mut self) {
        let faults = std::mem::take(&mut self.disk.faults);
        let file = FileId::LOG.0;
        let write = Io::Write {
            file,
            offset: 0,
            data: vec![0; 8192].into(),
        };
        for io in [write, Io::Sync { file }] {
            let id = self.disk.submit(Origin::Engine, io);
            self.disk.finish(id);
        }
        self.disk.faults = faults;
    }

    pub(super) fn boot(&mut self, process: u64) {
        if process != self.process {
            return;
        }
        self.trace.log(self.now, || {
            format!("process {process} boots, boot id {}", self.boot_id)
        });
        let identity = Rng::stream(self.seed, &format!("identity {process}"));
        let setup = Setup {
            limits: self.profile.limits.clone(),
            rings: self.rings.clone(),
            boot_id: self.boot_id,
            take_over: self.take_over,
            identity,
            now: self.now,
        };
        self.node = Some(Node::boot(setup));
    }

    pub(super) fn on_node_event(&mut self, event: NodeEvent) -> Result<(), Violation> {
        self.trace.record(&[9]);
        self.trace.log(self.now, || format!("engine: {event:?}"));
        match event {
            NodeEvent::Booted(Ok(report)) => {
                self.rings_reported.extend(report.rings_lost);
                if self.disk.has_corrupted() {
                    // One copy was all there was: what it held may be lost, but nothing may be
                    // made up. Judged only now, for the disk lies mostly when recovery reads it.
                    self.record_loss(Loss::Cache);
                }
                if report.poisoned {
                    // A sync failed: only what frames covered before that is served (R10).
                    self.record_loss(Loss::Host);
                }

                self.failed_boots = 0;
                for volume in 0..self.volumes.len() {
                    self.bring_up(volume);
                }
                Ok(())
            }
            NodeEvent::Booted(Err(failure)) => self.on_boot_failed(&failure),
            NodeEvent::Opened(volume, Ok(device)) => {
                self.volumes[volume].created = true;
                self.volumes[volume].transport = Some(Transport::new(device));
                if self.has_no_scan() {
                    self.volumes[volume].history.assume_whole();
                    self.serve(volume);
                } else {
                    self.start_scan(volume);
                }
                Ok(())
            }
            NodeEvent::Opened(volume, Err(failure)) => self.on_open_failed(volume, &failure),
            NodeEvent::Created(volume, result) => {
                self.volumes[volume].phase = VolumePhase::Down;
                match result {
                    Ok(()) => self.volumes[volume].created = true,
                    // An earlier try, whose end nobody saw, made it.
                    Err(Failure::Exists(_)) => {}
                    Err(failure) => return self.on_open_failed(volume, &failure),
                }
                self.bring_up(volume);
                Ok(())
            }
            NodeEvent::Synced {
                volume,
                client,
                covers,
                result,
            } => self.on_synced(volume, client, covers, &result),
        }
    }

    /// Opens a volume; if it was never created, that comes first.
    pub(super) fn bring_up(&mut self, volume: usize) {
        if self.volumes[volume].phase != VolumePhase::Down {
            return;
        }
        self.volumes[volume].phase = VolumePhase::Opening;
        let name = self.volumes[volume].name.clone();
        if let Some(node) = &mut self.node {
            node.open(volume, &name);
        }
    }

    fn on_boot_failed(&mut self, failure: &Failure) -> Result<(), Violation> {
        self.failed_boots += 1;
        if !self.profile.errors_allowed() {
            let detail = format!("the server does not start: {failure:?}");
            return Err(Violation::new("S1 process crash", detail));
        }
        if self.failed_boots > BOOTS_MAX {
            self.host_loss();
            return Ok(());
        }
        self.process += 1;
        self.node = None;
        self.forget_io();
        self.disk.process_crash();
        self.at(50_000_000, Event::Boot(self.process));
        Ok(())
    }

    fn on_open_failed(&mut self, volume: usize, failure: &Failure) -> Result<(), Violation> {
        self.volumes[volume].phase = VolumePhase::Down;
        match failure {
            Failure::NoSuchVolume(_) if !self.volumes[volume].created => {
                self.volumes[volume].phase = VolumePhase::Creating;
                let name = self.volumes[volume].name.clone();
                let (bytes, block) = (self.profile.sectors * 512, self.profile.block * 512);
                if let Some(node) = &mut self.node {
                    node.create(volume, &name, bytes, block as u32);
                }
                Ok(())
            }
            Failure::Store(_) => {
                self.at(
                    100_000_000,
                    Event::Retry {
                        process: self.process,
                        volume,
                    },
                );
                Ok(())
            }
            Failure::Disk(_) | Failure::Corrupt(_) | Failure::Poisoned
                if self.profile.errors_allowed() =>
            {
                self.failed_boots += 1;
                if self.failed_boots > BOOTS_MAX {
                    self.host_loss();
                } else {
                    self.at(
                        100_000_000,
                        Event::Retry {
                            process: self.process,
                            volume,
                        },
                    );
                }
                Ok(())
            }
            _ => {
                let detail = format!("volume {volume} cannot be opened: {failure:?}");
                Err(Violation::new("S4 prefix", detail))
            }
        }
    }

    pub(super) fn all_serving(&mut self) {
        self.unsettled = 0;
        (self.ring_gone, self.machine_down) = (false, false);
        self.rings_reported.clear();
        self.draw_crash();
    }

    /// Asks for everything that is complete now to be brought to the store.
    pub(super) fn start_sync(&mut self, volume: usize, client: Option<usize>) {
        let covers = self.volumes[volume].history.acked();
        if let Some(client) = client {
            self.volumes[volume].clients[client].in_flight += 1;
        }
        if let Some(node) = &mut self.node {
            node.sync(volume, client, covers);
        }
    }

    fn on_synced(
        &mut self,
        volume: usize,
        client: Option<usize>,
        covers: u64,
        result: &Result<(), Failure>,
    ) -> Result<(), Violation> {
        if let Err(failure) = result {
            if !self.profile.errors_allowed() {
                let detail = format!("sync of volume {volume} failed: {failure:?}");
                return Err(Violation::new("S10 no invented errors", detail));
            }
        } else {
            self.volumes[volume].history.on_stored(covers);
        }
        match client {
            Some(client) => self.on_request_ended(volume, client),
            None => self.volumes[volume].synced = true,
        }
        Ok(())
    }

    /// Looks whether the world's phase is over.
    pub(super) fn check_phase(&mut self) -> Result<(), Violation> {
        if self.check_plan() {
            return Ok(());
        }
        let up = self.volumes.iter().all(|v| v.phase == VolumePhase::Serving);
        let quiet = self.volumes.iter().all(super::VolumeState::is_quiet);
        match self.phase {
            Phase::Work if self.actions_left == 0 => self.heal(),
            Phase::Heal if up && quiet => {
                self.trace.log(self.now, || "quiet: last sync".into());
                self.phase = Phase::LastSync;
                for volume in 0..self.volumes.len() {
                    self.start_sync(volume, None);
                }
                // What the calls emitted is carried on by the next turn of the pump.
                return self.pump();
            }
            Phase::LastSync if self.volumes.iter().all(|v| v.synced) => {
                self.phase = Phase::LastOpen;
                self.host_loss();
            }
            Phase::LastOpen if up => {
                self.trace.log(self.now, || "over".into());
                self.phase = Phase::Done;
            }
            _ => {}
        }
        Ok(())
    }

    /// Nothing breaks from here on, and what is in flight must come to an end.
    pub(super) fn heal(&mut self) {
        self.trace.log(self.now, || "healing".into());
        self.phase = Phase::Heal;
        self.healed_at = self.now;
        self.store.outage = false;
        self.store.faults = StoreFaults::default();
        self.disk.faults = DiskFaults::default();
    }
}
