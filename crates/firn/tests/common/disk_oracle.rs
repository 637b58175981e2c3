//! Writes and reads of a disk in blocks, each checked by the oracle. Threads share it; each block has
//! one writer at a time.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use oracle::stamp::{self, SECTOR_BYTES};
use oracle::{ReadStart, SectorOracle};

pub use super::guest::Direct;

pub const BLOCK: usize = 4096;
const SECTORS_PER_BLOCK: u64 = (BLOCK / SECTOR_BYTES) as u64;

fn sectors_of(blocks: &Range<u64>) -> Range<u64> {
    blocks.start * SECTORS_PER_BLOCK..blocks.end * SECTORS_PER_BLOCK
}

pub struct DiskOracle {
    blocks: u64,
    sectors: Mutex<SectorOracle>,
}

impl DiskOracle {
    /// A disk of so many blocks, all zeroes.
    pub fn new(blocks: u64) -> DiskOracle {
        let sectors = SectorOracle::in_blocks(0, blocks * SECTORS_PER_BLOCK, SECTORS_PER_BLOCK);
        DiskOracle {
            blocks,
            sectors: Mutex::new(sectors),
        }
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    fn sectors(&self) -> MutexGuard<'_, SectorOracle> {
        self.sectors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes blocks by `write`, which gets the offset and the bytes and must succeed.
    pub fn write_by(&self, blocks: Range<u64>, write: impl FnOnce(u64, &[u8])) {
        let sectors = sectors_of(&blocks);
        let generation = self.sectors().begin_write(sectors.clone());
        write(
            blocks.start * BLOCK as u64,
            &stamp::bytes(0, generation, sectors),
        );
        self.sectors().acknowledge(generation);
    }

    /// Writes blocks.
    pub fn write(&self, disk: &Direct, blocks: Range<u64>) {
        self.write_by(blocks, |at, bytes| disk.write(at, bytes).unwrap());
    }

    /// Zeroes blocks.
    pub fn zero(&self, disk: &Direct, blocks: Range<u64>) {
        let generation = self.sectors().begin_zeroing(sectors_of(&blocks));
        let len = (blocks.end - blocks.start) * BLOCK as u64;
        disk.zero(blocks.start * BLOCK as u64, len).unwrap();
        self.sectors().acknowledge(generation);
    }

    /// Reads blocks and checks what they hold.
    pub fn read(&self, disk: &Direct, blocks: Range<u64>) {
        let read = self.begin_read(blocks.clone());
        let len = (blocks.end - blocks.start) as usize * BLOCK;
        let found = disk.read(blocks.start * BLOCK as u64, len).unwrap();
        self.check(&read, &found);
    }

    /// A read that begins now.
    pub fn begin_read(&self, blocks: Range<u64>) -> ReadStart {
        self.sectors().begin_read(sectors_of(&blocks))
    }

    /// Checks what a read returned.
    pub fn check(&self, read: &ReadStart, bytes: &[u8]) {
        // Before the lock is taken: this is most of the work.
        let found: Vec<_> = stamp::read_all(bytes).collect();
        if let Err(wrong) = self.sectors().check(read, found) {
            panic!("{wrong}");
        }
    }

    /// Reads the whole disk and checks it.
    pub fn read_all(&self, disk: &Direct) {
        const AT_ONCE: u64 = 64;
        for first in (0..self.blocks).step_by(AT_ONCE as usize) {
            self.read(disk, first..(first + AT_ONCE).min(self.blocks));
        }
    }
}
