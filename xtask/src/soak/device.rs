//! One disk under test: how it is attached, its oracle, and how each kind of request is made and judged.
//!
//! The first three quarters belong to direct I/O from several threads at once. The last quarter
//! belongs to one thread that goes through the page cache: what two of them made of one page would
//! be the kernel's doing, not the server's.

use std::io::{Error, Result};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use oracle::SectorOracle;
use oracle::stamp::{self, SECTOR_BYTES};

use super::disk_files::{DiskFiles, IoPath};
use super::nbd_export::NbdExport;
use super::world::{ThreadActivity, World, lock};

/// Alignment of memory for direct I/O.
const ALIGNMENT: usize = 4096;

/// Sectors of a 4 KiB block.
pub(super) const BLOCK: u64 = 8;

/// How a volume is reached.
#[derive(Debug)]
pub(super) enum Attached {
    Disk(DiskFiles),
    Nbd(NbdExport),
}

impl Attached {
    fn read(&self, way: IoPath, at: u64, data: &mut [u8]) -> Result<()> {
        match self {
            Attached::Disk(files) => files.read(way, at, data),
            Attached::Nbd(export) => export.read(at, data),
        }
    }

    fn write(&self, way: IoPath, at: u64, data: &[u8]) -> Result<()> {
        match self {
            Attached::Disk(files) => files.write(way, at, data),
            Attached::Nbd(export) => export.write(at, data, way == IoPath::Forced),
        }
    }

    fn zero(&self, at: u64, bytes: u64) -> Result<()> {
        match self {
            Attached::Disk(files) => files.zero(at, bytes),
            Attached::Nbd(export) => export.zero(at, bytes),
        }
    }

    fn discard(&self, at: u64, bytes: u64) -> Result<()> {
        match self {
            Attached::Disk(files) => files.discard(at, bytes),
            Attached::Nbd(export) => export.discard(at, bytes),
        }
    }

    fn flush(&self, way: IoPath) -> Result<()> {
        match self {
            Attached::Disk(files) => files.flush(way),
            Attached::Nbd(export) => export.flush(),
        }
    }

    fn evict_page_cache(&self, at: u64, bytes: u64) -> Result<()> {
        match self {
            Attached::Disk(files) => files.evict_page_cache(at, bytes),
            // None lies between.
            Attached::Nbd(_) => Ok(()),
        }
    }
}

/// A disk.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) number: u32,
    pub(super) name: String,
    pub(super) sectors: u64,
    oracle: Mutex<SectorOracle>,
    /// The number of the host that has the volume. Whoever attaches, detaches or moves it holds this meanwhile, and
    /// takes it before `attached`.
    home: Mutex<usize>,
    /// None while it is detached. Requests hold it for reading.
    attached: RwLock<Option<Attached>>,
}

/// Memory that direct I/O takes.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    from: usize,
}

impl Buffer {
    pub(super) fn new(len: usize) -> Buffer {
        let bytes = vec![0; len + ALIGNMENT];
        let from = bytes.as_ptr().align_offset(ALIGNMENT);
        Buffer { bytes, from }
    }

    fn of(&mut self, sectors: &Range<u64>) -> &mut [u8] {
        let len = (sectors.end - sectors.start) as usize * SECTOR_BYTES;
        &mut self.bytes[self.from..self.from + len]
    }
}

/// A disk with a request in it.
pub(super) struct DeviceUse<'a> {
    device: &'a Device,
    attached: RwLockReadGuard<'a, Option<Attached>>,
    world: &'a World,
    activity: &'a ThreadActivity,
}

impl Device {
    pub(super) fn new(number: u32, sectors: u64, home: usize) -> Device {
        Device {
            number,
            name: format!("soak{number}"),
            sectors,
            oracle: Mutex::new(SectorOracle::new(number, sectors)),
            home: Mutex::new(home),
            attached: RwLock::default(),
        }
    }

    /// The sectors for direct I/O.
    pub(super) fn direct(&self) -> Range<u64> {
        0..self.sectors / 4 * 3
    }

    /// The sectors for the page cache.
    pub(super) fn buffered(&self) -> Range<u64> {
        self.sectors / 4 * 3..self.sectors
    }

    /// Uses the disk, once it is attached.
    pub(super) fn acquire<'a>(
        &'a self,
        world: &'a World,
        activity: &'a ThreadActivity,
    ) -> DeviceUse<'a> {
        DeviceUse {
            attached: self.attached.read().unwrap_or_else(PoisonError::into_inner),
            device: self,
            world,
            activity,
        }
    }

    /// The host that has the volume, which stays so as long as this is held.
    pub(super) fn lock_home(&self) -> MutexGuard<'_, usize> {
        lock(&self.home)
    }

    /// Waits until nobody uses the disk, and keeps it so.
    pub(super) fn lock_exclusively(&self) -> RwLockWriteGuard<'_, Option<Attached>> {
        self.attached
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceUse<'_> {
    fn attached(&self) -> Result<&Attached> {
        self.attached
            .as_ref()
            .ok_or_else(|| Error::other("the disk is not attached"))
    }

    fn at(&self, what: &str, sectors: &Range<u64>) -> String {
        let Range { start, end } = sectors;
        format!(
            "{what} of {} sectors at {start} of {}",
            end - start,
            self.device.name
        )
    }

    fn report_error<T>(&self, what: &str, sectors: &Range<u64>, done: Result<T>) -> Option<T> {
        done.map_err(|error| {
            let at = self.at(what, sectors);
            self.world
                .fail(format!("{at}: {error}: a client saw an I/O error"));
        })
        .ok()
    }

    fn change_sectors(
        &self,
        what: &str,
        sectors: &Range<u64>,
        zeroes: bool,
        change: impl FnOnce(&Attached, u32) -> Result<()>,
    ) {
        let generation = {
            let mut oracle = lock(&self.device.oracle);
            match zeroes {
                true => oracle.begin_zeroing(sectors.clone()),
                false => oracle.begin_write(sectors.clone()),
            }
        };
        let done = self.activity.track(
            &self.world.tally,
            || self.at(what, sectors),
            || {
                self.attached()
                    .and_then(|attached| change(attached, generation))
            },
        );
        // One that failed may have happened or may happen yet: it stays in flight.
        if self.report_error(what, sectors, done).is_some() {
            lock(&self.device.oracle).acknowledge(generation);
        }
    }

    pub(super) fn write(&self, way: IoPath, sectors: Range<u64>, buffer: &mut Buffer) {
        let number = self.device.number;
        self.change_sectors("write", &sectors, false, |attached, generation| {
            let bytes = buffer.of(&sectors);
            stamp::fill(bytes, number, generation, sectors.start);
            attached.write(way, sectors.start * SECTOR_BYTES as u64, bytes)
        });
    }

    /// Zeroes sectors, unmapping them.
    pub(super) fn zero(&self, sectors: Range<u64>) {
        self.change_sectors("zeroing", &sectors, true, |attached, _| {
            let (at, len) = bytes(&sectors);
            attached.zero(at, len)
        });
    }

    /// Discards sectors, which then read as zeroes.
    pub(super) fn discard(&self, sectors: Range<u64>) {
        self.change_sectors("discard", &sectors, true, |attached, _| {
            let (at, len) = bytes(&sectors);
            attached.discard(at, len)
        });
    }

    pub(super) fn flush(&self, way: IoPath) {
        let all = 0..self.device.sectors;
        let flushed = self.activity.track(
            &self.world.tally,
            || self.at("flush", &all),
            || self.attached().and_then(|attached| attached.flush(way)),
        );
        self.report_error("flush", &all, flushed);
    }

    /// Drops what the page cache has of these sectors.
    pub(super) fn evict_page_cache(&self, sectors: &Range<u64>) {
        let (at, len) = bytes(sectors);
        let attached = self.attached();
        let forgotten = attached.and_then(|attached| attached.evict_page_cache(at, len));
        self.report_error("forgetting", sectors, forgotten);
    }

    /// Reads sectors and judges each.
    pub(super) fn read(&self, way: IoPath, sectors: Range<u64>, buffer: &mut Buffer) {
        let before = lock(&self.device.oracle).begin_read(sectors.clone());
        let bytes = buffer.of(&sectors);
        let read = self.activity.track(
            &self.world.tally,
            || self.at("read", &sectors),
            || {
                let at = sectors.start * SECTOR_BYTES as u64;
                self.attached()
                    .and_then(|attached| attached.read(way, at, bytes))
            },
        );
        if self.report_error("read", &sectors, read).is_none() {
            return;
        }
        let found: Vec<_> = stamp::read_all(bytes).collect();
        let verdict = lock(&self.device.oracle).check(&before, found);
        if let Err(wrong) = verdict {
            let again = self.reread(way, &sectors);
            self.world.fail(format!(
                "{}: MISMATCH: {wrong}; read again: {again}",
                self.at("read", &sectors)
            ));
        }
    }

    /// Whether a mismatch stays. For the report alone.
    fn reread(&self, way: IoPath, sectors: &Range<u64>) -> String {
        let mut buffer = Buffer::new((sectors.end - sectors.start) as usize * SECTOR_BYTES);
        let before = lock(&self.device.oracle).begin_read(sectors.clone());
        let bytes = buffer.of(sectors);
        let at = sectors.start * SECTOR_BYTES as u64;
        let attached = self.attached();
        let read = attached.and_then(|attached| attached.read(way, at, bytes));
        match read {
            Err(error) => error.to_string(),
            Ok(()) => {
                let verdict = lock(&self.device.oracle).check_bytes(&before, bytes);
                verdict.map_or_else(|wrong| wrong, |()| "as it should be".to_owned())
            }
        }
    }
}

/// Offset and length in bytes.
fn bytes(sectors: &Range<u64>) -> (u64, u64) {
    let sector = SECTOR_BYTES as u64;
    (
        sectors.start * sector,
        (sectors.end - sectors.start) * sector,
    )
}
