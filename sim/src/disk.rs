//! Owns the simulated disk of one cache directory: files of 512-byte sectors, what a reader sees
//! of them now, and what a power cut would leave.
//!
//! A write is visible to readers when it completes and durable when a sync that was *issued after
//! that* completes; until then it is pending, and a power cut keeps, loses or ages each of its
//! sectors independently. The disk knows nothing of the engine's formats: it sees only who wrote
//! a sector (a client's payload or the engine), so that silent corruption can be aimed at bytes
//! that the engine promises to check. It must never decide when something completes: the world
//! does, by calling [`SimDisk::finish`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use crate::faults::{Fault, FaultCounts};
use crate::rng::Rng;

mod crash;
mod image;
pub use crash::PowerCut;
use image::Image;
#[cfg(test)]
mod tests;

/// Bytes in a sector.
pub const SECTOR: usize = 512;

/// Sectors of a block that becomes unreadable.
const BLOCK: u64 = 8;

/// The byte that fills what was never written; no engine may take it for zeroes.
pub const POISON: u8 = 0xa5;

/// Names an operation under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IoId(pub u64);

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A transport, moving a client's payload.
    Client,
    /// The engine, by a request of its own.
    Engine,
}

/// An operation on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Io {
    /// Read `len` bytes at `offset`.
    Read {
        /// File number.
        file: u16,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Write `data` at `offset`.
    Write {
        /// File number.
        file: u16,
        /// Offset in bytes.
        offset: u64,
        /// The bytes.
        data: Rc<[u8]>,
    },
    /// Make every write that completed before this was submitted durable.
    Sync {
        /// File number.
        file: u16,
    },
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoError {
    /// The device failed.
    Eio,
    /// Only so many bytes were written; they are in place.
    Short(u64),
    /// No space.
    Full,
}

/// What an operation answers; the bytes are empty but for reads.
pub type IoResult = Result<Vec<u8>, IoError>;

/// How likely each fault is, in ten thousand operations of its kind.
#[derive(Clone, Debug, Default)]
pub struct DiskFaults {
    /// A write fails; a part of it may be in place.
    pub write_eio: u32,
    /// A write does less than asked.
    pub write_short: u32,
    /// A write finds the disk full.
    pub full: u32,
    /// A read fails.
    pub read_eio: u32,
    /// A write of a client's payload leaves a block that can never be read again.
    pub unreadable: u32,
    /// A sync fails and marks the pages clean.
    pub sync_fail: u32,
    /// An engine's write lands elsewhere.
    pub misdirect: u32,
    /// A bit of an engine-written sector flips for good when read.
    pub rot: u32,
    /// A read returns a durable version older than what was written.
    pub stale: u32,
}

/// Where the silent faults (misdirect, rot, stale) may strike: in one file, below an offset, and
/// there only sectors that the engine wrote by its own requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Corruptible {
    /// The file.
    pub file: u16,
    /// The offset in bytes; zero: nowhere.
    pub below: u64,
}

impl Corruptible {
    fn covers(&self, file: u16, range: &Range<u64>) -> bool {
        file == self.file && !range.is_empty() && range.start * (SECTOR as u64) < self.below
    }
}

#[derive(Clone, Debug)]
struct Version {
    /// Position in the order of completion.
    at: u64,
    data: Rc<[u8]>,
    /// Where in `data` the sector begins.
    from: usize,
}

impl Version {
    fn bytes(&self) -> &[u8] {
        &self.data[self.from..self.from + SECTOR]
    }
}

#[derive(Clone, Debug, Default)]
struct SimFile {
    sectors: u64,
    visible: Image,
    durable: Image,
    /// Per sector, completed writes that no sync covers, oldest first.
    pending: BTreeMap<u64, Vec<Version>>,
    /// Of each sector, whether the engine's own requests wrote it last.
    by_engine: Vec<bool>,
}

#[derive(Clone, Debug)]
struct InFlight {
    origin: Origin,
    io: Io,
    /// For a sync: what had completed when it was submitted.
    cut: u64,
}

/// The disk.
#[derive(Clone, Debug)]
pub struct SimDisk {
    files: BTreeMap<u16, SimFile>,
    in_flight: BTreeMap<IoId, InFlight>,
    next_io: u64,
    completed: u64,
    rng: Rng,
    /// Blocks that cannot be read, by file, whatever is written there.
    unreadable: BTreeSet<(u16, u64)>,
    /// Fault rates; the world sets them to zero to heal.
    pub faults: DiskFaults,
    corruptible: Corruptible,
    /// What took effect.
    pub counts: FaultCounts,
}

fn sectors(offset: u64, len: u64) -> Range<u64> {
    let unit = SECTOR as u64;
    assert!(
        offset.is_multiple_of(unit) && len.is_multiple_of(unit),
        "unaligned I/O {offset}+{len}"
    );
    offset / unit..(offset + len) / unit
}

impl SimFile {
    fn grow(&mut self, sectors: u64) {
        if self.sectors < sectors {
            self.sectors = sectors;
            self.by_engine.resize(sectors as usize, false);
        }
    }

    fn is_written_by_engine(&self, sector: u64) -> bool {
        self.by_engine.get(sector as usize) == Some(&true)
    }

    /// Puts a completed write in place.
    fn apply_write(&mut self, at: u64, offset: u64, data: &Rc<[u8]>, origin: Origin) {
        let range = sectors(offset, data.len() as u64);
        self.grow(range.end);
        for (index, sector) in range.enumerate() {
            let version = Version {
                at,
                data: Rc::clone(data),
                from: index * SECTOR,
            };
            self.visible
                .sector_mut(sector)
                .copy_from_slice(version.bytes());
            self.pending.entry(sector).or_default().push(version);
            self.by_engine[sector as usize] = origin == Origin::Engine;
        }
    }
}

impl SimDisk {
    /// An empty disk with no faults.
    pub fn new(rng: Rng, faults: DiskFaults, corruptible: Corruptible) -> SimDisk {
        SimDisk {
            files: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            next_io: 0,
            completed: 0,
            rng,
            unreadable: BTreeSet::new(),
            faults,
            corruptible,
            counts: FaultCounts::default(),
        }
    }

    /// Starts an operation; it does nothing until it is finished.
    pub fn submit(&mut self, origin: Origin, io: Io) -> IoId {
        match &io {
            Io::Read { offset, len, .. } => drop(sectors(*offset, *len)),
            Io::Write { offset, data, .. } => drop(sectors(*offset, data.len() as u64)),
            Io::Sync { .. } => {}
        }
        let id = IoId(self.next_io);
        self.next_io += 1;
        self.in_flight.insert(
            id,
            InFlight {
                origin,
                io,
                cut: self.completed,
            },
        );
        id
    }

    /// Operations under way, oldest first.
    pub fn in_flight(&self) -> impl Iterator<Item = IoId> + '_ {
        self.in_flight.keys().copied()
    }

    /// Whether a silent fault has struck.
    pub fn has_corrupted(&self) -> bool {
        let silent = [Fault::Misdirected, Fault::BitRot, Fault::StaleRead];
        silent.iter().any(|fault| self.counts.of(*fault) > 0)
    }

    /// Whether a read was answered with what a block held before.
    pub fn has_read_stale(&self) -> bool {
        self.counts.of(Fault::StaleRead) > 0
    }

    /// Bytes that the disk holds in all its files.
    pub fn bytes(&self) -> u64 {
        let sectors: u64 = self.files.values().map(|f| f.sectors).sum();
        sectors * SECTOR as u64
    }

    /// Lets an operation take effect and answers it. `None` if it is not under way (its process
    /// died).
    pub fn finish(&mut self, id: IoId) -> Option<IoResult> {
        let InFlight { origin, io, cut } = self.in_flight.remove(&id)?;
        Some(match io {
            Io::Read { file, offset, len } => self.finish_read(file, offset, len),
            Io::Write { file, offset, data } => self.finish_write(origin, file, offset, data),
            Io::Sync { file } => self.finish_sync(file, cut),
        })
    }

    fn finish_read(&mut self, file: u16, offset: u64, len: u64) -> IoResult {
        if self.rng.draw_rate(self.faults.read_eio) {
            self.counts.count(Fault::ReadEio);
            return Err(IoError::Eio);
        }
        let range = sectors(offset, len);
        if self.is_unreadable(file, &range) {
            self.counts.count(Fault::Unreadable);
            return Err(IoError::Eio);
        }
        let exposed = self.corruptible.covers(file, &range);
        if exposed {
            self.maybe_flip_bit(file, range.clone());
        }
        let held = self.files.entry(file).or_default();
        held.grow(range.end);
        let mut bytes = held.visible.read(range.clone());
        if exposed && self.rng.draw_rate(self.faults.stale) {
            // One of the sectors that have an older version to go back to.
            let held = &self.files[&file];
            let aged: Vec<u64> = held
                .pending
                .range(range)
                .map(|(sector, _)| *sector)
                .filter(|sector| held.is_written_by_engine(*sector))
                .collect();
            if !aged.is_empty() {
                let old = *self.rng.pick(&aged);
                let into = old as usize * SECTOR - offset as usize;
                bytes[into..into + SECTOR].copy_from_slice(held.durable.sector(old));
                self.counts.count(Fault::StaleRead);
            }
        }
        Ok(bytes)
    }

    fn is_unreadable(&self, file: u16, range: &Range<u64>) -> bool {
        let blocks = (file, range.start / BLOCK)..(file, range.end.div_ceil(BLOCK));
        !self.unreadable.is_empty() && self.unreadable.range(blocks).next().is_some()
    }

    /// Flips one bit for good, in the durable and the visible copy alike.
    fn maybe_flip_bit(&mut self, file: u16, range: Range<u64>) {
        if !self.rng.draw_rate(self.faults.rot) {
            return;
        }
        // Mostly near the beginning: files are filled from there.
        let near = if self.rng.coin() { 32 } else { u64::MAX };
        let sector = range.start + self.rng.below((range.end - range.start).min(near));
        let bit = self.rng.below(SECTOR as u64 * 8) as usize;
        let held = self.files.entry(file).or_default();
        if !held.is_written_by_engine(sector) {
            return;
        }
        held.visible.sector_mut(sector)[bit / 8] ^= 1 << (bit % 8);
        held.durable.sector_mut(sector)[bit / 8] ^= 1 << (bit % 8);
        for version in held.pending.get_mut(&sector).into_iter().flatten() {
            let mut bytes = version.bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            *version = Version {
                at: version.at,
                data: bytes.into(),
                from: 0,
            };
        }
        self.counts.count(Fault::BitRot);
    }

    fn finish_write(
        &mut self,
        origin: Origin,
        file: u16,
        mut offset: u64,
        data: Rc<[u8]>,
    ) -> IoResult {
        let total = data.len() as u64;
        let (landing, result) = self.draw_write_fault(total);
        let mut data = data;
        if landing < total {
            data = data[..landing as usize].into();
        }
        let held = self.files.entry(file).or_default();
        if result.is_ok()
            && origin == Origin::Engine
            && self.corruptible.covers(file, &sectors(offset, total))
            && self.rng.draw_rate(self.faults.misdirect)
        {
            // Only onto other sectors of the engine: a client's payload is trusted to the disk
            // until it is sealed, so overwriting it would prove nothing.
            let other = offset ^ total.next_power_of_two();
            let target = sectors(other, total);
            if target.end <= held.sectors && target.clone().all(|s| held.is_written_by_engine(s)) {
                offset = other;
                self.counts.count(Fault::Misdirected);
            }
        }
        self.completed += 1;
        held.apply_write(self.completed, offset, &data, origin);
        if origin == Origin::Client && self.rng.draw_rate(self.faults.unreadable) {
            let range = sectors(offset, total);
            let bad = range.start + self.rng.below(range.end - range.start);
            self.unreadable.insert((file, bad / BLOCK));
        }
        result.map(|()| Vec::new())
    }

    /// How many bytes of a write land, and what it answers.
    fn draw_write_fault(&mut self, total: u64) -> (u64, Result<(), IoError>) {
        let unit = SECTOR as u64;
        let part = |rng: &mut Rng| rng.below(total / unit + 1) * unit;
        if total == 0 {
            return (0, Ok(()));
        }
        if self.rng.draw_rate(self.faults.write_eio) {
            self.counts.count(Fault::WriteEio);
            return (part(&mut self.rng), Err(IoError::Eio));
        }
        if self.rng.draw_rate(self.faults.full) {
            self.counts.count(Fault::DiskFull);
            return (0, Err(IoError::Full));
        }
        if self.rng.draw_rate(self.faults.write_short) {
            self.counts.count(Fault::WriteShort);
            let done = self.rng.below(total / unit) * unit;
            return (done, Err(IoError::Short(done)));
        }
        (total, Ok(()))
    }

    fn finish_sync(&mut self, file: u16, cut: u64) -> IoResult {
        // One that fails is told of it, another in flight is not: the more interesting place.
        let beside = |other: &InFlight| matches!(other.io, Io::Sync { file: its } if its == file);
        let crowded = self.in_flight.values().any(beside);
        let rate = self.faults.sync_fail * if crowded { 40 } else { 1 };
        let failed = self.rng.draw_rate(rate.min(5000));
        if failed {
            self.counts.count(Fault::SyncFailed);
        }
        let Some(held) = self.files.get_mut(&file) else {
            return Ok(Vec::new());
        };
        let mut rest = BTreeMap::new();
        for (sector, versions) in std::mem::take(&mut held.pending) {
            let (covered, later): (Vec<_>, Vec<_>) =
                versions.into_iter().partition(|v| v.at <= cut);
            // After a failed sync the kernel calls the pages clean whether or not they reached
            // the disk: they are no longer pending, and some are simply lost.
            if let Some(last) = covered.last()
                && (!failed || self.rng.coin())
            {
                held.durable
                    .sector_mut(sector)
                    .copy_from_slice(last.bytes());
            }
            if !later.is_empty() {
                rest.insert(sector, later);
            }
        }
        held.pending = rest;
        if failed {
            Err(IoError::Eio)
        } else {
            Ok(Vec::new())
        }
    }
}
