//! Random histories of a volume that two hosts open, use and close by turns, while both compact what nobody has open, and
//! one or the other dies in the middle of that.

use volume::{Answer, CompactOptions, OpenError, OpenMode, Volume};

use crate::support::checks::check_all;
use crate::support::compactions::{BLOCK, verify};
use crate::support::hosts::hand_over;
use crate::support::{Environment, World, compacting};

const BLOCKS: u64 = 64;

/// Two hosts on one store, of which one has it at a time: what the other has under way takes effect later.
struct Pair {
    hosts: [World; 2],
    /// Which one has the store.
    at: usize,
    random: fastrand::Rng,
    blocks: Vec<u64>,
    drawn: u64,
    open: Option<(usize, Volume)>,
    forks: u64,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let mut random = fastrand::Rng::with_seed(seed);
        let env = |random: &mut fastrand::Rng| Environment {
            compact: Some(CompactOptions {
                interval_ns: random.u64(20..200) * 1_000_000,
                bytes_per_s: *random
                    .choice(&[32 << 10, 256 << 10, 16 << 20])
                    .expect("one"),
                closed_looks: random.u64(1..3),
                closed_deltas: random.usize(0..3),
                live_percent: *random.choice(&[50, 95]).expect("one"),
                ..compacting()
            }),
            store_ms: *random.choice(&[0, 20, 60]).expect("one"),
            ..Environment::default()
        };
        let mut first = World::start(env(&mut random));
        first.create("demo", BLOCKS * BLOCK);
        let second = World::start(Environment {
            versions: first.env.versions + 5000,
            ..env(&mut random)
        });
        Pair {
            hosts: [first, second],
            at: 0,
            random,
            blocks: vec![0; BLOCKS as usize],
            drawn: 0,
            open: None,
            forks: 0,
        }
    }

    /// Gives the store to a host.
    fn host(&mut self, which: usize) -> &mut World {
        if self.at != which {
            let [first, second] = &mut self.hosts;
            match which {
                0 => hand_over(second, first),
                _ => hand_over(first, second),
            }
            self.at = which;
        }
        &mut self.hosts[which]
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(10) {
            let first = self.random.usize(..2);
            self.host(first).pass(10);
            self.host(1 - first).pass(10);
        }
    }

    fn done<T>(&mut self, which: usize, ask: impl Fn(&World) -> Answer<Result<T, OpenError>>) -> T {
        let mut answer = ask(self.host(which));
        for _ in 0..3000 {
            self.pass(10);
            match answer.try_take() {
                Some(Ok(value)) => return value,
                // Its root moves with each step of a compaction, here far more often than anywhere else.
                Some(Err(OpenError::Store(why))) if why.ends_with("try again") => {
                    answer = ask(self.host(which));
                }
                Some(Err(error)) => panic!("host {which}: {error}"),
                None => {}
            }
        }
        panic!("host {which} does not answer");
    }

    fn open(&mut self) {
        let which = self.random.usize(..2);
        let volume = self.open_at(which, "demo");
        self.open = Some((which, volume));
    }

    /// Opens a volume that nobody uses, without taking it over.
    fn open_at(&mut self, which: usize, name: &'static str) -> Volume {
        let ask = |world: &World| world.host.open_volume(name, OpenMode::default());
        let volume = self.done(which, ask);
        let blocks = self.blocks.clone();
        verify(self.host(which), &volume, &blocks);
        volume
    }

    fn close_at(&mut self, which: usize, volume: &Volume) {
        self.done(which, |world| world.host.close_volume(volume));
    }

    fn write(&mut self) {
        let Some((which, volume)) = self.open.clone() else {
            return;
        };
        for _ in 0..self.random.u64(1..BLOCKS) {
            let block = self.random.u64(..BLOCKS);
            self.drawn += 1;
            let seed = self.drawn;
            self.host(which)
                .write_noise(&volume, block * 8, seed, BLOCK);
            self.blocks[block as usize] = seed;
        }
        if self.random.bool() {
            self.host(which).sync(&volume);
        }
    }

    fn close(&mut self) {
        if let Some((which, volume)) = self.open.take() {
            self.close_at(which, &volume);
        }
    }

    /// A host that does not use the volume dies, whatever it is at, and starts again.
    fn kill(&mut self) {
        let which = match &self.open {
            Some((user, _)) => 1 - user,
            None => self.random.usize(..2),
        };
        // What it has under way and has not taken effect never does.
        let other = self.host(which);
        let dead = std::mem::replace(other, World::new());
        let env = dead.kill();
        *other = World::start(env);
    }

    /// Makes a fork, reads it, and deletes it again.
    fn fork(&mut self) {
        let which = self.random.usize(..2);
        if self.open.as_ref().is_some_and(|(user, _)| *user != which) {
            return;
        }
        self.forks += 1;
        let name: &'static str = format!("fork{}", self.forks).leak();
        let durability = volume::Durability::Store;
        self.done(which, |world| {
            world.host.fork_volume("demo", name, durability)
        });
        let reader = self.random.usize(..2);
        let volume = self.open_at(reader, name);
        self.close_at(reader, &volume);
        let last = self.random.usize(..2);
        let ms = self.random.u64(..300);
        self.pass(ms);
        self.done(last, |world| world.host.delete_volume(name));
    }

    fn collect(&mut self) {
        let which = self.random.usize(..2);
        self.done(which, |world| world.host.collect_garbage(false));
    }

    fn step(&mut self) {
        match self.random.u32(..10) {
            0..3 => self.write(),
            3 => self.close(),
            4 => self.kill(),
            5 => self.fork(),
            6 => self.collect(),
            7 if self.open.is_none() => self.open(),
            _ => {
                let ms = self.random.u64(10..2000);
                self.pass(ms);
            }
        }
    }
}

#[test]
fn a_volume_that_two_hosts_use_by_turns_and_maintain_between_them_loses_nothing() {
    let mut maintained = 0;
    for seed in 0..40 {
        println!("seed {seed}");
        let mut pair = Pair::new(seed);
        pair.open();
        for _ in 0..40 {
            pair.step();
            let reports = pair.hosts.iter().map(|world| world.host.compaction());
            maintained += reports.map(|report| report.maintained).sum::<u64>();
        }
        pair.close();
        pair.pass(3000);
        pair.open();
        pair.close();
        let at = pair.at;
        let found = check_all(&pair.host(at).env.objects, true);
        assert!(found.damage.is_empty(), "{:?}", found.damage);
    }
    assert!(maintained > 100, "{maintained}");
}
