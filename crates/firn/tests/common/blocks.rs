//! Blocks that say which write they are, and the judge of what is found on a disk.
//!
//! Each block has one writer. It counts the block's writes: that count, its *generation*, is in
//! every sector of the block, so that an older one, another block's or a mixture is told apart.
//! Some generations are zeroings. What a read may find is what was completed when it began, up to
//! what had been begun when it ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use super::guest::Direct;

pub const BLOCK: usize = 4096;

/// Whether this generation of a block is a zeroing. Nothing written yet is one, too.
pub fn is_zeroes(generation: u64) -> bool {
    generation == 0 || generation % 8 == 5
}

const SECTOR: usize = 512;
/// Bytes of a sector that say what it is; the rest repeats them.
const UNIT: usize = 32;

/// The bytes of a block in this generation.
pub fn content(block: u64, generation: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    if is_zeroes(generation) {
        return bytes;
    }
    let mixed = ((block << 32) ^ generation).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for (at, sector) in bytes.chunks_exact_mut(SECTOR).enumerate() {
        let words = [block, generation, at as u64, mixed.rotate_left(at as u32)];
        for (word, bytes) in words.iter().zip(sector.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        // Doubled, not word by word: without optimization, under emulation, that was most of
        // what a test did.
        let mut filled = UNIT;
        while filled < SECTOR {
            sector.copy_within(..filled, filled);
            filled *= 2;
        }
    }
    bytes
}

/// The bytes of blocks that are written at once.
pub fn contents(blocks: std::ops::Range<u64>, generation: impl Fn(u64) -> u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((blocks.end - blocks.start) as usize * BLOCK);
    for block in blocks {
        bytes.extend_from_slice(&content(block, generation(block)));
    }
    bytes
}

/// What is known of each block.
pub struct Ledger {
    begun: Vec<AtomicU64>,
    completed: Vec<AtomicU64>,
}

impl Ledger {
    pub fn new(blocks: u64) -> Ledger {
        let zeroes = || (0..blocks).map(|_| AtomicU64::new(0)).collect();
        Ledger {
            begun: zeroes(),
            completed: zeroes(),
        }
    }

    pub fn blocks(&self) -> u64 {
        self.begun.len() as u64
    }

    /// The next generation of a block that is a zeroing, or is none: its writer begins it now.
    pub fn begin(&self, block: u64, zeroes: bool) -> u64 {
        loop {
            let next = self.begun[block as usize].fetch_add(1, Ordering::SeqCst) + 1;
            if is_zeroes(next) == zeroes {
                return next;
            }
        }
    }

    /// The blocks' next bytes, none of them zeroings, which their writer begins to write now.
    pub fn begin_all(&self, blocks: std::ops::Range<u64>) -> Vec<u8> {
        contents(blocks, |block| self.begin(block, false))
    }

    pub fn newest(&self, block: u64) -> u64 {
        self.begun[block as usize].load(Ordering::SeqCst)
    }

    /// What was begun of these blocks is completed.
    pub fn complete(&self, blocks: std::ops::Range<u64>) {
        for block in blocks {
            let newest = self.newest(block);
            self.completed[block as usize].store(newest, Ordering::SeqCst);
        }
    }

    /// Writes blocks anew.
    pub fn write(&self, disk: &Direct, blocks: std::ops::Range<u64>) {
        let data = self.begin_all(blocks.clone());
        disk.write(blocks.start * BLOCK as u64, &data).unwrap();
        self.complete(blocks);
    }

    /// Zeroes blocks.
    pub fn zero(&self, disk: &Direct, blocks: std::ops::Range<u64>) {
        for block in blocks.clone() {
            self.begin(block, true);
        }
        let len = (blocks.end - blocks.start) * BLOCK as u64;
        disk.zero(blocks.start * BLOCK as u64, len).unwrap();
        self.complete(blocks);
    }

    /// Reads blocks and judges what came.
    pub fn read(&self, disk: &Direct, blocks: std::ops::Range<u64>) {
        let completed = self.completed(blocks.clone());
        let len = completed.len() * BLOCK;
        let found = disk.read(blocks.start * BLOCK as u64, len).unwrap();
        self.judge(blocks.start, &completed, &found);
    }

    /// What was completed of these blocks, for a read that begins now.
    pub fn completed(&self, blocks: std::ops::Range<u64>) -> Vec<u64> {
        let of = |block: u64| self.completed[block as usize].load(Ordering::SeqCst);
        blocks.map(of).collect()
    }

    /// Judges what a read brought that began when `completed` was known.
    pub fn judge(&self, first: u64, completed: &[u64], bytes: &[u8]) {
        assert_eq!(bytes.len(), completed.len() * BLOCK);
        for ((block, oldest), found) in (first..).zip(completed).zip(bytes.chunks(BLOCK)) {
            let newest = self.newest(block);
            if let Err(what) = judged(block, *oldest, newest, found) {
                panic!("block {block}: {what}; it may be write {oldest} to {newest}");
            }
        }
    }

    /// Reads the whole disk and judges it.
    pub fn judge_all(&self, disk: &Direct) {
        const AT_ONCE: u64 = 64;
        for first in (0..self.blocks()).step_by(AT_ONCE as usize) {
            self.read(disk, first..(first + AT_ONCE).min(self.blocks()));
        }
    }
}

fn judged(block: u64, oldest: u64, newest: u64, found: &[u8]) -> Result<(), String> {
    if found == [0; BLOCK] {
        return match (oldest..=newest).any(is_zeroes) {
            true => Ok(()),
            false => Err("zeroes".to_owned()),
        };
    }
    let word = |at: usize| u64::from_le_bytes(found[at * 8..at * 8 + 8].try_into().unwrap());
    let (of, generation) = (word(0), word(1));
    if found != content(of, generation) {
        return Err(format!(
            "a mixture that begins as write {generation} of {of}"
        ));
    }
    if of != block || generation < oldest || generation > newest {
        return Err(format!("write {generation} of block {of}"));
    }
    Ok(())
}

/// Ends the whole program where something takes too long: without shutting anything down, for
/// what hangs would hang that, too.
pub struct Watchdog(Arc<AtomicBool>);

impl Watchdog {
    pub fn new(what: &'static str, within: Duration) -> Watchdog {
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        std::thread::spawn(move || {
            let began = Instant::now();
            while !seen.load(Ordering::Relaxed) {
                if began.elapsed() > within {
                    println!("watchdog: {what} does not end, after {within:?}");
                    std::process::abort();
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Watchdog(over)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Numbers as if at random, the same in each run.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}
