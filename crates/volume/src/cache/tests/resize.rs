//! A cache file that becomes larger and smaller while it is used.

use std::collections::BTreeMap;

use super::*;

/// The file, block by block: who wrote it last. Of what lies behind its end nothing is kept.
struct FileOfBlocks {
    blocks: Vec<Option<ChunkKey>>,
}

impl FileOfBlocks {
    fn resize(&mut self, bytes: u64) {
        self.blocks.resize((bytes / BLOCK_BYTES) as usize, None);
    }

    fn range(offset: u64, bytes: u64) -> std::ops::Range<usize> {
        (offset / BLOCK_BYTES) as usize..(offset + bytes).div_ceil(BLOCK_BYTES) as usize
    }

    fn write(&mut self, allocation: &CacheAllocation) {
        let range = FileOfBlocks::range(allocation.offset, allocation.bytes);
        let written = self.blocks.get_mut(range);
        let written = written.expect("it is promised within the file");
        written.fill(Some(allocation.key));
    }

    fn check(&self, hit: &Hit, key: ChunkKey, bytes: u64) {
        let found = self.blocks.get(FileOfBlocks::range(hit.offset, bytes));
        let found = found.expect("a reader is sent behind the end of the file");
        let is_whole = found.iter().all(|block| *block == Some(key));
        assert!(is_whole, "a reader gets what another chunk has written");
    }
}

/// A cache, its file, and those who read and write there.
struct Resized {
    cache: Cache,
    file: FileOfBlocks,
    /// How far the file is to be cut as soon as it may be.
    cut_to: Option<u64>,
    reads: Vec<(ChunkKey, Hit)>,
    writes: Vec<CacheAllocation>,
    lengths: BTreeMap<ChunkKey, u64>,
}

impl Resized {
    fn new(bytes: u64) -> Resized {
        let mut file = FileOfBlocks { blocks: Vec::new() };
        file.resize(bytes);
        Resized {
            cache: Cache::new(0, bytes),
            file,
            cut_to: None,
            reads: Vec::new(),
            writes: Vec::new(),
            lengths: BTreeMap::new(),
        }
    }

    fn resize(&mut self, bytes: u64) {
        if bytes >= self.file.blocks.len() as u64 * BLOCK_BYTES {
            self.file.resize(bytes);
            self.cut_to = None;
        } else {
            self.cut_to = Some(bytes);
        }
        self.cache.set_disk_bytes(bytes);
    }

    fn shrink(&mut self) {
        let Some(bytes) = self.cut_to else { return };
        if self.cache.shrink() == CacheShrink::Done {
            self.file.resize(bytes);
            self.cut_to = None;
        }
    }

    fn step(&mut self, random: &mut fastrand::Rng, now: u64) {
        let n = random.u32(0..60);
        let key = key(n);
        let is_block = n.is_multiple_of(8);
        match random.u8(0..16) {
            0..=3 => {
                let bytes = *self
                    .lengths
                    .entry(key)
                    .or_insert_with(|| random.u64(1..=16 * BLOCK_BYTES));
                let allocation = match is_block {
                    true => self.cache.allocate_block(key, bytes, now),
                    false => self.cache.allocate_on_disk(key, bytes, now),
                };
                if let Some(allocation) = allocation {
                    self.file.write(&allocation);
                    self.writes.push(allocation);
                }
            }
            4..=5 if !self.writes.is_empty() => {
                let allocation = self.writes.swap_remove(random.usize(0..self.writes.len()));
                match random.u8(0..8) {
                    0 => self.cache.cancel(allocation),
                    1 => self.cache.on_write_failed(allocation, random.bool(), now),
                    _ => self.cache.fill(allocation, now),
                }
            }
            6..=8 => {
                let hit = match is_block {
                    true => self.cache.find_block(key),
                    false => self.cache.find(key),
                };
                self.reads.extend(hit.map(|hit| (key, hit)));
            }
            9 if !self.reads.is_empty() => {
                let (key, hit) = self.reads.swap_remove(random.usize(0..self.reads.len()));
                self.file.check(&hit, key, self.lengths[&key]);
            }
            _ => self.shrink(),
        }
    }
}

#[test]
pub(super) fn a_file_of_changing_size_gives_readers_the_bytes_that_it_was_given() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let sizes = |random: &mut fastrand::Rng| random.u64(16..600) * BLOCK_BYTES;
        let mut resized = Resized::new(sizes(&mut random));
        for now in 0..6_000 {
            if now % 500 == 499 && resized.cut_to.is_none() {
                resized.resize(sizes(&mut random));
            }
            resized.step(&mut random, now);
            if now % 16 == 0 {
                let whole = resized.cache.invariants();
                whole.unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
            }
        }
        // Whatever is there, the smallest size is reached once nobody reads or writes.
        resized.resize(0);
        resized.reads.clear();
        for write in std::mem::take(&mut resized.writes) {
            resized.cache.cancel(write);
        }
        for _ in 0..2_000 {
            resized.shrink();
        }
        assert!(resized.file.blocks.is_empty(), "seed {seed}");
        assert_eq!(resized.cache.usage().disk_bytes, 0);
        resized.cache.invariants().unwrap();
    }
}

#[test]
fn a_chunk_that_somebody_always_reads_leaves_all_the_same() {
    let cache = Cache::new(0, 1 << 20);
    assert!(put_on_disk(&cache, 1, 1));
    let mut hit = cache.find(key(1));
    cache.set_disk_bytes(0);
    assert_eq!(cache.shrink(), CacheShrink::Held);
    // The next reader comes before this one has ended.
    let next = cache.find(key(1));
    assert!(next.is_none(), "it asks the store");
    drop(hit.take());
    assert_eq!(cache.shrink(), CacheShrink::Continue);
    assert_eq!(cache.shrink(), CacheShrink::Done);
}

#[test]
fn a_file_that_grew_holds_more_and_keeps_what_it_has() {
    let cache = Cache::new(0, 1 << 20);
    (0..100).for_each(|n| assert!(put_on_disk(&cache, n, 1)));
    cache.set_disk_bytes(64 << 20);
    (1_000..9_000).for_each(|n| assert!(put_on_disk(&cache, n, 1)));
    let kept = (0..100).filter(|n| cache.contains(key(*n))).count();
    assert_eq!(kept, 100);
    let there = (1_000..9_000).filter(|n| cache.contains(key(*n))).count();
    assert_eq!(there, 8_000);
    for n in 10_000..10_400 {
        let block = cache.allocate_block(key(n), 4 * BLOCK_BYTES, 0);
        cache.fill(block.expect("its part has grown, too"), 0);
    }
    cache.invariants().unwrap();
}

#[test]
fn a_cache_that_had_no_file_gets_one() {
    let cache = Cache::new(0, 0);
    assert!(!put_on_disk(&cache, 1, 16) && cache.may_resize());
    cache.set_disk_bytes(4 << 20);
    assert!(put_on_disk(&cache, 1, 16));
    assert!(!Cache::new(0, 8 * BLOCK_BYTES).may_resize());
}
