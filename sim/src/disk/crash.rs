//! Owns what a crash leaves on the disk: of a process, of the host.
//!
//! A dead process's writes still land, or never do, before its successor has the log; after a
//! power cut each pending sector is kept, lost or older, independently of every other.

use super::{Io, SimDisk, Version};
use crate::faults::Fault;
use crate::rng::Rng;

/// How a power cut treats the pending sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerCut {
    /// Nothing that was not synced survives.
    LoseAll,
    /// Everything survives: the cache was written back just in time.
    KeepAll,
    /// Each sector is kept with this chance in ten thousand.
    Each(u32),
    /// Bit `n` decides the `n`-th pending sector, in order of file and sector: for enumeration.
    Mask(u64),
}

impl SimDisk {
    /// The process died: each of its writes under way lands now, whole or in part, or never.
    /// Called when the successor is about to get the log, so nothing lands after that.
    pub fn process_crash(&mut self) {
        for (_, dead) in std::mem::take(&mut self.in_flight) {
            let Io::Write { file, offset, data } = dead.io else {
                continue;
            };
            if self.rng.coin() {
                self.counts.count(Fault::OrphanLanded);
                self.completed += 1;
                self.files.entry(file).or_default().apply_write(
                    self.completed,
                    offset,
                    &data,
                    dead.origin,
                );
            } else {
                self.counts.count(Fault::OrphanDropped);
            }
        }
    }

    /// How many sectors a power cut now would decide about.
    pub fn undecided_sectors(&self) -> usize {
        self.files.values().map(|f| f.pending.len()).sum()
    }

    /// The power failed. Writes under way count as pending: the device may have taken some of
    /// their sectors. Afterwards there is one truth: what is visible is durable.
    pub fn host_crash(&mut self, cut: PowerCut) {
        let mut in_flight = Vec::new();
        for (_, dead) in std::mem::take(&mut self.in_flight) {
            if let Io::Write { file, offset, data } = dead.io {
                self.completed += 1;
                self.files.entry(file).or_default().apply_write(
                    self.completed,
                    offset,
                    &data,
                    dead.origin,
                );
                in_flight.push(self.completed);
            }
        }
        let mut ordinal = 0;
        for file in self.files.values_mut() {
            let mut kept_of: std::collections::BTreeMap<u64, [bool; 2]> = Default::default();
            for (sector, versions) in std::mem::take(&mut file.pending) {
                let survivor = surviving_version(&mut self.rng, cut, ordinal, &versions);
                ordinal += 1;
                let newest = versions.last().map_or(0, |v| v.at);
                let kept = survivor.is_some_and(|v| v.at == newest);
                kept_of.entry(newest).or_default()[usize::from(kept)] = true;
                match survivor {
                    Some(version) => {
                        self.counts.count(if kept {
                            Fault::SectorKept
                        } else {
                            Fault::SectorOlder
                        });
                        let durable = file.durable.sector_mut(sector);
                        durable.copy_from_slice(version.bytes());
                    }
                    None => self.counts.count(Fault::SectorLost),
                }
            }
            for halves in kept_of.values() {
                if *halves == [true, true] {
                    self.counts.count(Fault::TornWrite);
                }
            }
            file.visible.clone_from(&file.durable);
        }
    }

    /// The files of this process alone (anonymous memory) are gone with it.
    pub fn forget(&mut self, file: u16) {
        self.files.remove(&file);
    }
}

/// The version of a sector that survives; `None` if the durable one does.
fn surviving_version<'a>(
    rng: &mut Rng,
    cut: PowerCut,
    ordinal: u32,
    versions: &'a [Version],
) -> Option<&'a Version> {
    match cut {
        PowerCut::LoseAll => None,
        PowerCut::KeepAll => versions.last(),
        PowerCut::Mask(mask) => {
            if ordinal < 64 && mask >> ordinal & 1 == 1 {
                versions.last()
            } else {
                None
            }
        }
        PowerCut::Each(chance) => {
            if !rng.draw_rate(chance) {
                return None;
            }
            // Mostly the newest: an older one is what a write-back in between leaves behind.
            if rng.below(4) > 0 {
                versions.last()
            } else {
                Some(rng.pick(versions))
            }
        }
    }
}
