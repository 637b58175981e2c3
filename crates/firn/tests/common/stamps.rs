//! Writers of stamped blocks, and the judge of what a crash left of them.
//!
//! Each writer has blocks of its own and writes them one after the other; a block says which of
//! its writer's writes it is of. A clock that all share says which write had completed before
//! which other began. So after a crash it can be told whether what is there is the state after a
//! prefix of one history, and whether everything that had to be durable is in it (S2, S4).

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::guest::Direct;

pub const BLOCK: usize = 4096;

/// Blocks that one writer has.
const BLOCKS: u64 = 48;

#[derive(Clone, Copy, Debug)]
struct Write {
    block: u64,
    began: u64,
    /// `u64::MAX` until it has completed.
    ended: u64,
}

/// What the writers did.
pub struct Stamps {
    clock: AtomicU64,
    /// Every write that had ended before this is durable.
    durable: AtomicU64,
    writers: Vec<Mutex<Vec<Write>>>,
    /// Of each writer: how many of its writes it knows to be durable.
    acked: Vec<AtomicU64>,
    /// Nobody flushes: what is durable is so by FUA.
    fua_alone: AtomicBool,
}

/// What had to be durable at a moment.
#[derive(Clone, Debug)]
pub struct Promise {
    durable: u64,
    acked: Vec<u64>,
}

impl Stamps {
    pub fn new(writers: usize) -> Stamps {
        Stamps {
            clock: AtomicU64::new(1),
            durable: AtomicU64::new(0),
            writers: (0..writers).map(|_| Mutex::default()).collect(),
            acked: (0..writers).map(|_| AtomicU64::new(0)).collect(),
            fua_alone: AtomicBool::new(false),
        }
    }

    /// From now on nobody flushes, or some do again. One writer's FLUSH would hide that another's
    /// FUA was dropped.
    pub fn rely_on_fua_alone(&self, alone: bool) {
        self.fua_alone.store(alone, Ordering::SeqCst);
    }

    /// Bytes of the disk that are written to, from its beginning.
    pub fn bytes(&self) -> u64 {
        self.writers.len() as u64 * BLOCKS * BLOCK as u64
    }

    pub fn written(&self) -> usize {
        self.writers
            .iter()
            .map(|one| one.lock().unwrap().len())
            .sum()
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// What must be there whatever happens from now on.
    pub fn promise(&self) -> Promise {
        let acked = self.acked.iter().map(|one| one.load(Ordering::SeqCst));
        Promise {
            acked: acked.collect(),
            durable: self.durable.load(Ordering::SeqCst),
        }
    }

    /// Writes as writer `number` until told to stop. Every so often a write asks to be durable
    /// when it completes, which goes to `fua`, the same disk without FLUSH, or a flush follows it.
    pub fn write(&self, disk: &Path, fua: &Path, number: usize, stop: &AtomicBool) {
        let (plain, durable) = (Direct::open(disk), Direct::durable(fua));
        let mut random = fastrand::Rng::with_seed(number as u64 + 1);
        while !stop.load(Ordering::Relaxed) {
            let block = number as u64 * BLOCKS + random.u64(..BLOCKS);
            let began = self.tick();
            let mine = {
                let mut mine = self.writers[number].lock().unwrap();
                let ended = u64::MAX;
                mine.push(Write {
                    block,
                    began,
                    ended,
                });
                mine.len() as u64
            };
            let how = match random.u32(..8) {
                1 | 2 if self.fua_alone.load(Ordering::SeqCst) => 0,
                how => how,
            };
            let file = if how == 0 { &durable } else { &plain };
            let mut bytes = [0; BLOCK];
            fill(&mut bytes, number as u64, mine);
            file.write(block * BLOCK as u64, &bytes)
                .unwrap_or_else(|error| panic!("writer {number} saw an error: {error}"));
            let ended = self.tick();
            self.writers[number].lock().unwrap()[mine as usize - 1].ended = ended;
            match how {
                0 => self.durable.fetch_max(began, Ordering::SeqCst),
                1 | 2 => {
                    let asked = self.tick();
                    plain.flush().unwrap();
                    self.durable.fetch_max(asked, Ordering::SeqCst)
                }
                _ => continue,
            };
            self.acked[number].fetch_max(mine, Ordering::SeqCst);
        }
    }

    /// Whether `found`, the disk from its beginning, is the state after some prefix of what was
    /// written that has everything promised in it; else why not.
    pub fn judge(&self, found: &[u8], promise: &Promise) -> Result<(), String> {
        let mut there = Vec::new();
        for (number, writes) in self.writers.iter().enumerate() {
            let writes = writes.lock().unwrap().clone();
            there.push(prefix(found, number as u64, &writes)?);
            if there[number] < promise.acked[number] as usize {
                return Err(format!(
                    "writer {number} was told that its write {} is durable; only {} are there",
                    promise.acked[number], there[number]
                ));
            }
        }
        // What had completed before something that is there began is there, too.
        let began = |(number, have): (usize, &usize)| {
            let writes = self.writers[number].lock().unwrap();
            have.checked_sub(1).map_or(0, |last| writes[last].began)
        };
        let newest = there.iter().enumerate().map(began).max().unwrap_or(0);
        for (number, have) in there.iter().enumerate() {
            let writes = self.writers[number].lock().unwrap();
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

fn fill(block: &mut [u8], writer: u64, number: u64) {
    for piece in block.chunks_exact_mut(16) {
        piece[..8].copy_from_slice(&(writer + 1).to_le_bytes());
        piece[8..].copy_from_slice(&number.to_le_bytes());
    }
}

/// How many of a writer's writes are there, if its blocks are the state after exactly those.
fn prefix(found: &[u8], writer: u64, writes: &[Write]) -> Result<usize, String> {
    let mut blocks = Vec::new();
    for block in writer * BLOCKS..(writer + 1) * BLOCKS {
        let at = block as usize * BLOCK;
        let bytes = &found[at..at + BLOCK];
        let number = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        let mut whole = vec![0; BLOCK];
        if number > 0 {
            fill(&mut whole, writer, number);
        }
        if whole != bytes {
            return Err(format!(
                "block {block} is neither old nor new, near write {number}"
            ));
        }
        blocks.push(number);
    }
    let have = blocks.iter().copied().max().unwrap_or(0) as usize;
    if have > writes.len() {
        return Err(format!("writer {writer} never made a write {have}"));
    }
    let mut expected = vec![0; BLOCKS as usize];
    for (at, write) in writes[..have].iter().enumerate() {
        expected[(write.block - writer * BLOCKS) as usize] = at as u64 + 1;
    }
    if expected != blocks {
        return Err(format!(
            "writer {writer}: not a prefix: has {blocks:?}, after write {have} it was {expected:?}"
        ));
    }
    Ok(have)
}

#[test]
fn the_judge_accepts_prefixes_and_sees_what_is_missing_torn_or_out_of_order() {
    let stamps = Stamps::new(2);
    let note = |writer: usize, block: u64, began, ended| {
        let block = writer as u64 * BLOCKS + block;
        let mut writes = stamps.writers[writer].lock().unwrap();
        writes.push(Write {
            block,
            began,
            ended,
        });
    };
    note(0, 0, 1, 2);
    note(0, 1, 5, 6);
    note(1, 0, 3, 4);
    note(1, 0, 7, u64::MAX);
    let disk = |first: &[(u64, u64)], second: &[(u64, u64)]| {
        let mut disk = vec![0; stamps.bytes() as usize];
        for (writer, blocks) in [(0, first), (1, second)] {
            for (block, number) in blocks {
                let at = (writer * BLOCKS + block) as usize * BLOCK;
                fill(&mut disk[at..at + BLOCK], writer, *number);
            }
        }
        disk
    };
    let nothing = Promise {
        durable: 0,
        acked: vec![0, 0],
    };
    for good in [
        disk(&[], &[]),
        disk(&[(0, 1)], &[]),
        disk(&[(0, 1)], &[(0, 1)]),
        disk(&[(0, 1), (1, 2)], &[(0, 1)]),
        disk(&[(0, 1), (1, 2)], &[(0, 2)]),
    ] {
        assert_eq!(stamps.judge(&good, &nothing), Ok(()));
    }
    // The second write of a writer without the first; one that ended before another began.
    assert!(stamps.judge(&disk(&[(1, 2)], &[(0, 1)]), &nothing).is_err());
    assert!(stamps.judge(&disk(&[], &[(0, 1)]), &nothing).is_err());
    let mut torn = disk(&[(0, 1)], &[]);
    torn[700] ^= 1;
    assert!(stamps.judge(&torn, &nothing).is_err());
    let one = disk(&[(0, 1)], &[]);
    for (durable, acked) in [(5, vec![0, 0]), (0, vec![2, 0]), (0, vec![1, 1])] {
        assert!(stamps.judge(&one, &Promise { durable, acked }).is_err());
    }
    assert_eq!(
        stamps.judge(
            &one,
            &Promise {
                durable: 3,
                acked: vec![1, 0]
            }
        ),
        Ok(())
    );
}
