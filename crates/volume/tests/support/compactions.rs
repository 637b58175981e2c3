//! A volume whose packs have much garbage: what the tests of compaction begin with.

use std::collections::BTreeSet;

use crate::support::points::gc;
use crate::support::{Environment, World, random_bytes};
use blkmq::io::Op;
use volume::object::pack::decode;
use volume::{CompactOptions, Volume};

pub(crate) const BLOCK: u64 = 4096;
/// Blocks of the volume `demo` in most tests.
pub(crate) const BLOCKS: u64 = 512;

/// A world with an open volume, and what it should hold: seeds of noise, 0 for zeroes.
pub(crate) struct Disk {
    pub(crate) world: World,
    pub(crate) volume: Volume,
    pub(crate) blocks: Vec<u64>,
    pub(crate) drawn: u64,
}

pub(crate) fn environment(compact: Option<CompactOptions>) -> Environment {
    Environment {
        compact,
        ..Environment::default()
    }
}

impl Disk {
    pub(crate) fn new(compact: Option<CompactOptions>) -> Disk {
        let mut world = World::start(environment(compact));
        world.create("demo", BLOCKS * BLOCK);
        let volume = world.open("demo");
        Disk {
            world,
            volume,
            blocks: vec![0; BLOCKS as usize],
            drawn: 0,
        }
    }

    pub(crate) fn write(&mut self, block: u64) {
        self.drawn += 1;
        let seed = self.drawn;
        let volume = self.volume.clone();
        self.world.write_noise(&volume, block * 8, seed, BLOCK);
        self.blocks[block as usize] = seed;
    }

    pub(crate) fn discard(&mut self, block: u64) {
        let op = Op::Discard {
            sector: block * 8,
            sectors: 8,
            fua: false,
        };
        let volume = self.volume.clone();
        self.world.request(&volume, op, &mut []).expect("discarded");
        self.blocks[block as usize] = 0;
    }

    pub(crate) fn sync(&mut self) {
        let volume = self.volume.clone();
        self.world.sync(&volume);
    }

    /// All blocks in order, and then so many rounds of random ones.
    pub(crate) fn age(&mut self, rounds: u64) {
        (0..BLOCKS).for_each(|block| self.write(block));
        self.sync();
        let mut random = fastrand::Rng::with_seed(rounds);
        for _ in 0..rounds {
            for _ in 0..48 {
                self.write(random.u64(..BLOCKS));
            }
            self.sync();
            self.world.pass(20);
        }
    }

    /// Everything is in pages.
    pub(crate) fn fold(&mut self) {
        gc(&mut self.world);
    }

    pub(crate) fn verify(&mut self) {
        let volume = self.volume.clone();
        verify(&mut self.world, &volume, &self.blocks);
    }
}

pub(crate) fn verify(world: &mut World, volume: &Volume, blocks: &[u64]) {
    for (block, seed) in blocks.iter().enumerate() {
        let found = world.read(volume, block as u64 * 8, BLOCK as usize);
        let expected = match seed {
            0 => vec![0; BLOCK as usize],
            seed => random_bytes(*seed, BLOCK),
        };
        assert!(found == expected, "block {block}");
    }
}

/// Bytes of all packs in the store.
pub(crate) fn pack_bytes(env: &Environment) -> u64 {
    let packs = env.objects.iter();
    let packs = packs.filter(|(key, _)| key.starts_with("packs/"));
    packs.map(|(_, (data, _))| data.len() as u64).sum()
}

/// Packs of copies in the store.
pub(crate) fn copies(env: &Environment) -> BTreeSet<String> {
    let is_copy = |data: &[u8]| {
        let pack = decode(data).expect("a pack");
        pack.sections.iter().any(|section| section.slice.is_copy())
    };
    let packs = env.objects.iter();
    let packs = packs.filter(|(key, (data, _))| key.starts_with("packs/") && is_copy(data));
    packs.map(|(key, _)| key.clone()).collect()
}

/// The store of an aged volume of which nothing was compacted yet, and its content. The host is gone.
pub(crate) fn aged() -> (Environment, Vec<u64>) {
    let mut disk = Disk::new(None);
    disk.age(12);
    for block in 40..60 {
        disk.discard(block);
    }
    disk.sync();
    disk.fold();
    (disk.world.kill(), disk.blocks)
}

pub(crate) fn open_aged(env: &Environment, compact: Option<CompactOptions>) -> (World, Volume) {
    let mut world = World::start(Environment {
        compact,
        ..env.copy()
    });
    let volume = world.open("demo");
    (world, volume)
}
