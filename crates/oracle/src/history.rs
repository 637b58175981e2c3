//! The history of several writers of blocks, and the check of what a loss of power left of it.
//!
//! Each writer has blocks of its own and writes them one after the other; a block says which of
//! its writer's writes it is of. A logical clock that all share says which write had completed
//! before which other began. So after the power is back the check can tell whether the disk is in
//! the state after a prefix of one history, and whether everything that had to be durable is in it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::stamp::{self, Content, SECTOR_BYTES};

/// Blocks that one writer has.
const BLOCKS: u64 = 48;
const SECTORS_PER_BLOCK: u64 = 8;
const BLOCK_BYTES: usize = SECTORS_PER_BLOCK as usize * SECTOR_BYTES;

#[derive(Clone, Copy, Debug)]
struct Write {
    /// Which of its writer's blocks.
    block: u64,
    began: u64,
    /// `u64::MAX` until it has completed.
    ended: u64,
}

/// What the writers did. They share it; each calls [`WriteHistory::begin`] and
/// [`WriteHistory::complete`] around its writes, one at a time.
#[derive(Debug)]
pub struct WriteHistory {
    clock: AtomicU64,
    /// Every write that had ended before this is durable.
    durable: AtomicU64,
    writers: Vec<Mutex<Vec<Write>>>,
    /// Of each writer: how many of its writes it knows to be durable.
    acknowledged: Vec<AtomicU64>,
}

/// What had to be durable at a moment.
#[derive(Clone, Debug)]
pub struct Promise {
    durable: u64,
    acknowledged: Vec<u64>,
}

impl WriteHistory {
    /// A history without writes.
    pub fn new(writers: usize) -> WriteHistory {
        WriteHistory {
            clock: AtomicU64::new(1),
            durable: AtomicU64::new(0),
            writers: (0..writers).map(|_| Mutex::default()).collect(),
            acknowledged: (0..writers).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Blocks that each writer has.
    pub fn blocks_per_writer(&self) -> u64 {
        BLOCKS
    }

    /// Bytes of the disk that are written to, from its beginning.
    pub fn disk_bytes(&self) -> u64 {
        self.writers.len() as u64 * BLOCKS * BLOCK_BYTES as u64
    }

    /// Writes that were begun.
    pub fn written(&self) -> usize {
        let counts = (0..self.writers.len()).map(|writer| self.writes(writer).len());
        counts.sum()
    }

    fn writes(&self, writer: usize) -> MutexGuard<'_, Vec<Write>> {
        // Every change under the lock is complete before anything can panic.
        let writes = self.writers[writer].lock();
        writes.unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// What must be there whatever happens from now on.
    pub fn promise(&self) -> Promise {
        let acknowledged = self.acknowledged.iter();
        let acknowledged = acknowledged.map(|one| one.load(Ordering::SeqCst));
        Promise {
            acknowledged: acknowledged.collect(),
            durable: self.durable.load(Ordering::SeqCst),
        }
    }

    /// A writer is about to write one of its blocks: the offset on the disk, and the bytes.
    pub fn begin(&self, writer: usize, block: u64) -> (u64, Vec<u8>) {
        assert!(block < BLOCKS, "writer {writer} has no block {block}");
        let began = self.tick();
        let mut writes = self.writes(writer);
        writes.push(Write {
            block,
            began,
            ended: u64::MAX,
        });
        let sectors = sectors_of(writer, block);
        let offset = sectors.start * SECTOR_BYTES as u64;
        (
            offset,
            stamp::bytes(writer as u32, writes.len() as u32, sectors),
        )
    }

    /// The write that the writer began last has completed, and is durable if it was `fua`.
    pub fn complete(&self, writer: usize, fua: bool) {
        let ended = self.tick();
        let mut writes = self.writes(writer);
        let count = writes.len() as u64;
        let last = writes.last_mut().expect("a write was begun");
        last.ended = ended;
        if fua {
            self.durable.fetch_max(last.began, Ordering::SeqCst);
            self.acknowledged[writer].fetch_max(count, Ordering::SeqCst);
        }
    }

    /// Flushes the disk by `flush`, whereupon everything is durable that had completed before.
    pub fn flush<E>(&self, writer: usize, flush: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let (asked, count) = (self.tick(), self.writes(writer).len() as u64);
        flush()?;
        self.durable.fetch_max(asked, Ordering::SeqCst);
        self.acknowledged[writer].fetch_max(count, Ordering::SeqCst);
        Ok(())
    }

    /// Whether `found`, the disk from its beginning, is the state after some prefix of what was
    /// written that has everything promised in it; else why not.
    pub fn check(&self, found: &[u8], promise: &Promise) -> Result<(), String> {
        let mut there = Vec::new();
        for number in 0..self.writers.len() {
            there.push(find_prefix(found, number, &self.writes(number))?);
            if there[number] < promise.acknowledged[number] as usize {
                return Err(format!(
                    "writer {number} was told that its write {} is durable; only {} are there",
                    promise.acknowledged[number], there[number]
                ));
            }
        }
        // What had completed before something that is there began is there, too.
        let began = |(number, have): (usize, &usize)| {
            let writes = self.writes(number);
            have.checked_sub(1).map_or(0, |last| writes[last].began)
        };
        let newest = there.iter().enumerate().map(began).max().unwrap_or(0);
        for (number, have) in there.iter().enumerate() {
            let writes = self.writes(number);
            if let Some(missing) = writes.get(*have)
                && missing.ended < newest.max(promise.durable)
            {
                return Err(format!(
                    "write {} of writer {number} is missing; it ended at {}, a write of {newest} \
                     is there, and everything before {} was flushed",
                    have + 1,
                    missing.ended,
                    promise.durable
                ));
            }
        }
        Ok(())
    }
}

fn sectors_of(writer: usize, block: u64) -> Range<u64> {
    let first = (writer as u64 * BLOCKS + block) * SECTORS_PER_BLOCK;
    first..first + SECTORS_PER_BLOCK
}

/// Which of its writer's writes a block holds: 0 for none. Blocks are written whole or not at all.
fn find_number(found: &[u8], writer: usize, block: u64) -> Result<u64, String> {
    let sectors = sectors_of(writer, block);
    let at = sectors.start as usize * SECTOR_BYTES;
    let bytes = &found[at..at + BLOCK_BYTES];
    let number = match stamp::read(&bytes[..SECTOR_BYTES]) {
        Content::Stamp(stamp) => stamp.generation,
        _ => 0,
    };
    let whole = match number {
        0 => vec![0; BLOCK_BYTES],
        number => stamp::bytes(writer as u32, number, sectors),
    };
    if whole != bytes {
        return Err(format!(
            "block {block} of writer {writer} is neither old nor new, near write {number}"
        ));
    }
    Ok(u64::from(number))
}

/// How many of a writer's writes are there, if its blocks are in the state after exactly those.
fn find_prefix(found: &[u8], writer: usize, writes: &[Write]) -> Result<usize, String> {
    let blocks = (0..BLOCKS).map(|block| find_number(found, writer, block));
    let blocks = blocks.collect::<Result<Vec<u64>, String>>()?;
    let have = blocks.iter().copied().max().unwrap_or(0) as usize;
    if have > writes.len() {
        return Err(format!("writer {writer} never made a write {have}"));
    }
    let mut expected = vec![0; BLOCKS as usize];
    for (number, write) in (1..).zip(&writes[..have]) {
        expected[write.block as usize] = number;
    }
    if expected != blocks {
        return Err(format!(
            "writer {writer}: not a prefix: has {blocks:?}, after write {have} it was {expected:?}"
        ));
    }
    Ok(have)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_accepts_prefixes_and_sees_what_is_missing_torn_or_out_of_order() {
        let history = WriteHistory::new(2);
        let note = |writer: usize, block: u64, began, ended| {
            history.writes(writer).push(Write {
                block,
                began,
                ended,
            });
        };
        note(0, 0, 1, 2);
        note(0, 1, 5, 6);
        note(1, 0, 3, 4);
        note(1, 0, 7, u64::MAX);
        let disk = |first: &[(u64, u32)], second: &[(u64, u32)]| {
            let mut disk = vec![0; history.disk_bytes() as usize];
            for (writer, blocks) in [(0, first), (1, second)] {
                for (block, number) in blocks {
                    let sectors = sectors_of(writer, *block);
                    let at = sectors.start as usize * SECTOR_BYTES;
                    let bytes = stamp::bytes(writer as u32, *number, sectors);
                    disk[at..at + BLOCK_BYTES].copy_from_slice(&bytes);
                }
            }
            disk
        };
        let nothing = Promise {
            durable: 0,
            acknowledged: vec![0, 0],
        };
        for good in [
            disk(&[], &[]),
            disk(&[(0, 1)], &[]),
            disk(&[(0, 1)], &[(0, 1)]),
            disk(&[(0, 1), (1, 2)], &[(0, 1)]),
            disk(&[(0, 1), (1, 2)], &[(0, 2)]),
        ] {
            assert_eq!(history.check(&good, &nothing), Ok(()));
        }
        // The second write of a writer without the first; one that ended before another began.
        assert!(
            history
                .check(&disk(&[(1, 2)], &[(0, 1)]), &nothing)
                .is_err()
        );
        assert!(history.check(&disk(&[], &[(0, 1)]), &nothing).is_err());
        let mut torn = disk(&[(0, 1)], &[]);
        torn[700] ^= 1;
        assert!(history.check(&torn, &nothing).is_err());
        let one = disk(&[(0, 1)], &[]);
        for (durable, acknowledged) in [(5, vec![0, 0]), (0, vec![2, 0]), (0, vec![1, 1])] {
            assert!(
                history
                    .check(
                        &one,
                        &Promise {
                            durable,
                            acknowledged
                        }
                    )
                    .is_err()
            );
        }
        assert_eq!(
            history.check(
                &one,
                &Promise {
                    durable: 3,
                    acknowledged: vec![1, 0]
                }
            ),
            Ok(())
        );
    }

    #[test]
    fn what_was_flushed_or_forced_is_promised() {
        let history = WriteHistory::new(2);
        let mut disk = vec![0; history.disk_bytes() as usize];
        let mut write = |writer: usize, block: u64, fua: bool| {
            let (at, bytes) = history.begin(writer, block);
            disk[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
            history.complete(writer, fua);
            disk.clone()
        };
        let unforced = write(0, 3, false);
        assert_eq!(
            history.check(&vec![0; unforced.len()], &history.promise()),
            Ok(())
        );
        let forced = write(1, 3, true);
        assert!(history.check(&unforced, &history.promise()).is_err());
        assert_eq!(history.check(&forced, &history.promise()), Ok(()));
        let last = write(0, 3, false);
        assert_eq!(history.check(&forced, &history.promise()), Ok(()));
        history.flush(0, || Ok::<(), ()>(())).unwrap();
        assert!(history.check(&forced, &history.promise()).is_err());
        assert_eq!(history.check(&last, &history.promise()), Ok(()));
    }
}
