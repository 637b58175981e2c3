//! What a soak's threads do to the disks: a mix drawn from the seed, at a rate.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oracle::stamp::SECTOR_BYTES;

use super::device::{BLOCK, Buffer, Device, DeviceUse};
use super::disk_files::IoPath;
use super::world::{Tally, ThreadActivity, World, lock};

/// Largest request of reads and writes, in sectors.
const SECTORS_MAX: u64 = (1 << 20) / SECTOR_BYTES as u64;
/// Largest zeroing and discard, in blocks.
const BLOCKS_MAX: u64 = (4 << 20) / (SECTOR_BYTES as u64 * BLOCK);

/// The random choices of one thread.
#[derive(Debug)]
pub(super) struct Random(fastrand::Rng);

impl Random {
    pub(super) fn new(seed: u64, device: u32, thread: usize) -> Random {
        let thread = u64::from(device) << 16 | thread as u64;
        Random(fastrand::Rng::with_seed(seed ^ thread << 32))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound.max(1))
    }

    /// A run of sectors inside `within`, of all sizes up to the largest, often small, often in
    /// the first sixteenth.
    fn sectors(&mut self, within: &Range<u64>) -> Range<u64> {
        let len = match self.below(20) {
            0..=5 => 1 + self.below(BLOCK),
            6..=11 => BLOCK,
            12..=16 => 1 + self.below(128),
            _ => 128 + self.below(SECTORS_MAX - 127),
        };
        let whole = within.end - within.start;
        let len = len.min(whole);
        let area = if self.below(2) == 0 {
            whole / 16
        } else {
            whole
        };
        let mut at = self.below(area.max(1));
        if self.below(3) > 0 {
            at -= at % BLOCK;
        }
        let start = within.start + at.min(whole - len);
        start..start + len
    }

    /// The same in whole blocks, for zeroing.
    fn blocks(&mut self, within: &Range<u64>) -> Range<u64> {
        let whole = (within.end - within.start) / BLOCK;
        let len = (1 + self.below(BLOCKS_MAX)).min(whole);
        let at = self.below(whole - len + 1);
        within.start + at * BLOCK..within.start + (at + len) * BLOCK
    }
}

/// Bytes that a device's threads may move.
#[derive(Debug)]
pub(super) struct RateLimiter {
    bytes_per_second: f64,
    /// When the next byte may be moved.
    next: Mutex<Instant>,
}

impl RateLimiter {
    pub(super) fn new(bytes_per_second: f64) -> RateLimiter {
        RateLimiter {
            bytes_per_second,
            next: Mutex::new(Instant::now()),
        }
    }

    fn take(&self, world: &World, bytes: u64) {
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second);
        let mut next = lock(&self.next);
        let now = Instant::now();
        let at = (*next).max(now);
        *next = at + takes;
        drop(next);
        world.sleep(at - now);
    }
}

/// What a request costs beside its bytes: many small ones are work, too.
const REQUEST_BYTES: u64 = 8 << 10;

fn cost(sectors: &Range<u64>) -> u64 {
    (sectors.end - sectors.start) * SECTOR_BYTES as u64 + REQUEST_BYTES
}

/// A thread of direct I/O, until the soak ends.
pub(super) fn direct(
    world: &World,
    activity: &ThreadActivity,
    device: &Device,
    limiter: &RateLimiter,
    random: &mut Random,
) {
    let mut buffer = Buffer::new(SECTORS_MAX as usize * SECTOR_BYTES);
    let within = device.direct();
    let tally = &world.tally;
    while !world.stopped() {
        let (choice, sectors) = (random.below(200), random.sectors(&within));
        limiter.take(world, cost(&sectors));
        if world.stopped() {
            return;
        }
        let using = device.acquire(world, activity);
        let bytes = (sectors.end - sectors.start) * SECTOR_BYTES as u64;
        match choice {
            0..=99 => {
                let path = if choice < 16 {
                    IoPath::Forced
                } else {
                    IoPath::Direct
                };
                using.write(path, sectors, &mut buffer);
                Tally::add(&tally.writes, 1);
                Tally::add(&tally.written_bytes, bytes);
                Tally::add(&tally.fua_writes, u64::from(path == IoPath::Forced));
            }
            100..=181 => {
                using.read(IoPath::Direct, sectors, &mut buffer);
                Tally::add(&tally.reads, 1);
                Tally::add(&tally.read_bytes, bytes);
            }
            182..=190 => {
                using.flush(IoPath::Direct);
                Tally::add(&tally.flushes, 1);
            }
            191..=198 => {
                using.zero(random.blocks(&within));
                Tally::add(&tally.zeroings, 1);
            }
            _ => {
                using.discard(random.blocks(&within));
                Tally::add(&tally.discards, 1);
            }
        }
    }
}

/// The thread that goes through the page cache, until the soak ends.
pub(super) fn buffered(
    world: &World,
    activity: &ThreadActivity,
    device: &Device,
    limiter: &RateLimiter,
    random: &mut Random,
) {
    let mut buffer = Buffer::new(SECTORS_MAX as usize * SECTOR_BYTES);
    let within = device.buffered();
    let tally = &world.tally;
    while !world.stopped() {
        let (writes, sectors) = (1 + random.below(8), within.clone());
        // A round: some writes, made durable and dropped; then reads that must come from the disk.
        for round in 0..2 * writes {
            let run = random.sectors(&sectors);
            limiter.take(world, cost(&run));
            if world.stopped() {
                return;
            }
            let using = device.acquire(world, activity);
            let bytes = (run.end - run.start) * SECTOR_BYTES as u64;
            Tally::add(&tally.buffered, 1);
            if round < writes {
                using.write(IoPath::Buffered, run, &mut buffer);
                Tally::add(&tally.writes, 1);
                Tally::add(&tally.written_bytes, bytes);
                if round + 1 == writes {
                    using.flush(IoPath::Buffered);
                    using.evict_page_cache(&within);
                    Tally::add(&tally.flushes, 1);
                }
            } else {
                using.read(IoPath::Buffered, run, &mut buffer);
                Tally::add(&tally.reads, 1);
                Tally::add(&tally.read_bytes, bytes);
            }
        }
    }
}

/// How many threads read a whole disk.
const PARTS: u64 = 4;

/// A disk in parts, for threads to read.
pub(super) fn parts(device: &Arc<Device>) -> impl Iterator<Item = (&Device, Range<u64>)> {
    let all = device.sectors;
    (0..PARTS).map(move |part| (&**device, all * part / PARTS..all * (part + 1) / PARTS))
}

/// Reads a part of a disk and judges it.
pub(super) fn read_part(using: &DeviceUse, part: Range<u64>) {
    let mut buffer = Buffer::new(SECTORS_MAX as usize * SECTOR_BYTES);
    let mut at = part.start;
    while at < part.end {
        let end = (at + SECTORS_MAX).min(part.end);
        using.read(IoPath::Direct, at..end, &mut buffer);
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_lies_inside_and_is_the_same_for_the_same_seed() {
        let (mut one, mut other) = (Random::new(1, 2, 3), Random::new(1, 2, 3));
        for within in [0..4096, 8192..12288, 64..72] {
            for _ in 0..10_000 {
                let sectors = one.sectors(&within);
                assert!(within.start <= sectors.start && sectors.end <= within.end);
                assert!(!sectors.is_empty());
                assert_eq!(sectors, other.sectors(&within));
                let blocks = one.blocks(&within);
                assert!(within.start <= blocks.start && blocks.end <= within.end);
                assert_eq!(blocks, other.blocks(&within));
            }
        }
    }
}
