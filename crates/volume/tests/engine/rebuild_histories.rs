//! Rebuilds after random histories: writes, discards, folds, compactions, snapshots, forks, restores, passes of the collector,
//! kills, take-overs by other hosts and packs that are brought and never committed. What each volume was when it was last
//! stored is what it is after its root is lost and rebuilt; and where the collector removed packs, but for zeroes.

use std::collections::BTreeMap;

use blkmq::io::Op;
use volume::rebuild::Unknown;
use volume::{CompactOptions, Volume};

use crate::support::hosts::{close, elsewhere, other_host};
use crate::support::points::{done, gc, make_fork, snapshot, snapshot_names};
use crate::support::rebuilds::{remove_below, taking_over, try_rebuild};
use crate::support::{Environment, World, compacting};

const MIB: u64 = 1 << 20;
const BLOCKS: u64 = 256;
const HISTORIES: u64 = 200;
const STEPS: u64 = 30;

struct History {
    random: fastrand::Rng,
    world: World,
    open: BTreeMap<String, Volume>,
    forks: u64,
    told: Vec<String>,
}

impl History {
    fn begin(seed: u64) -> History {
        let mut world = World::start(Environment {
            // In half of the histories, and some of these write anew what is hardly garbage at all.
            compact: (seed % 2 == 1).then(|| CompactOptions {
                live_percent: if seed % 4 == 1 { 95 } else { 50 },
                ..compacting()
            }),
            ..Environment::default()
        });
        world.create("demo", 8 * MIB);
        let volume = world.open("demo");
        History {
            random: fastrand::Rng::with_seed(seed),
            world,
            open: [("demo".to_owned(), volume)].into(),
            forks: 0,
            told: Vec::new(),
        }
    }

    fn pick(&mut self) -> (String, Volume) {
        let nth = self.random.usize(..self.open.len());
        let (name, volume) = self.open.iter().nth(nth).expect("demo is always there");
        (name.clone(), volume.clone())
    }

    fn tell(&mut self, what: String) {
        self.told.push(what);
    }

    fn write(&mut self) {
        let (name, volume) = self.pick();
        let (block, fill) = (self.random.u64(..BLOCKS - 8), self.random.u8(1..));
        let blocks = self.random.u64(1..8);
        self.tell(format!("write {name} {block}+{blocks} {fill}"));
        self.world
            .write(&volume, block * 8, fill, (blocks * 4096) as usize);
    }

    fn discard(&mut self) {
        let (name, volume) = self.pick();
        let block = self.random.u64(..BLOCKS - 16);
        let sectors = 8 * self.random.u64(1..16);
        self.tell(format!("discard {name} {block} {sectors}"));
        let op = Op::Discard {
            sector: block * 8,
            sectors,
            fua: false,
        };
        self.world.request(&volume, op, &mut []).expect("discarded");
    }

    fn sync(&mut self) {
        let (name, volume) = self.pick();
        self.tell(format!("sync {name}"));
        self.world.sync(&volume);
    }

    fn fold(&mut self) {
        let (name, volume) = self.pick();
        self.tell(format!("fold {name}"));
        for round in 0..6 {
            let block = self.random.u64(..BLOCKS);
            self.world.write(&volume, block * 8, 200 + round, 4096);
            self.world.sync(&volume);
        }
        self.world.pass(1000);
    }

    fn take_snapshot(&mut self) {
        let (name, _) = self.pick();
        let snapshot_name = format!("{name}@s{}", self.told.len());
        self.tell(format!("snapshot {snapshot_name}"));
        snapshot(&mut self.world, &snapshot_name).expect("taken");
    }

    fn fork(&mut self) {
        if self.forks == 3 {
            return;
        }
        self.forks += 1;
        let (parent, _) = self.pick();
        let name = format!("fork{}", self.forks);
        self.tell(format!("fork {parent} {name}"));
        make_fork(&mut self.world, &parent, &name).expect("forked");
        let volume = self.world.open(&name);
        // One that was never written leaves nothing behind.
        self.world.write(&volume, 0, 150, 4096);
        self.world.sync(&volume);
        self.open.insert(name, volume);
    }

    fn restore(&mut self) {
        let (name, volume) = self.pick();
        let names = snapshot_names(&mut self.world, &name);
        if names.is_empty() {
            return;
        }
        let snapshot_name = names[self.random.usize(..names.len())].clone();
        let kept = format!("{name}@kept{}", self.told.len());
        self.tell(format!("restore {snapshot_name}"));
        close(&mut self.world, &volume);
        let answer = self.world.host.restore_volume(&snapshot_name, &kept);
        done(&mut self.world, &answer);
        let volume = self.world.open(&name);
        self.open.insert(name, volume);
    }

    fn reopen(&mut self, take_over: bool) {
        let names: Vec<String> = self.open.keys().cloned().collect();
        for name in names {
            let volume = self.world.try_open(&name, take_over).expect("opened");
            self.open.insert(name, volume);
        }
    }

    fn leave_packs(&mut self) {
        if self.random.bool() {
            return;
        }
        let (name, volume) = self.pick();
        self.tell(format!("bring and never commit {name}"));
        self.world.env.failing_creates = 1000;
        for _ in 0..self.random.u64(1..4) {
            let block = self.random.u64(..BLOCKS);
            self.world.write(&volume, block * 8, 250, 4096);
        }
        drop(self.world.host.sync(&volume));
        self.world.pass(50);
        self.world.env.failing_creates = 0;
    }

    fn kill(&mut self) {
        self.leave_packs();
        self.tell("kill".into());
        self.open.values_mut().for_each(drop);
        let world = std::mem::replace(&mut self.world, World::new());
        self.world = World::start(world.kill());
        self.reopen(false);
    }

    fn take_over(&mut self) {
        self.leave_packs();
        self.tell("take over".into());
        self.world = other_host(&mut self.world);
        self.reopen(true);
    }

    fn step(&mut self) {
        match self.random.u64(..100) {
            0..40 => self.write(),
            40..50 => self.discard(),
            50..66 => self.sync(),
            66..72 => self.fold(),
            72..77 => self.take_snapshot(),
            77..81 => self.fork(),
            81..84 => self.restore(),
            84..88 => self.kill(),
            88..93 => self.take_over(),
            93..95 => {
                self.tell("pass".into());
                self.world.pass(400);
            }
            _ => {
                self.tell("gc".into());
                gc(&mut self.world);
            }
        }
    }

    fn state(&self, name: &str) -> Vec<u8> {
        let mut other = elsewhere(&self.world);
        let volume = other.try_open(name, true).expect("it opens");
        let mut all = Vec::new();
        for at in (0..BLOCKS + 16).step_by(16) {
            all.extend(other.read(&volume, at * 8, 16 * 4096));
        }
        all
    }

    /// Every volume loses its root, and is rebuilt.
    fn lose(&mut self, seed: u64) {
        let names: Vec<String> = self.open.keys().cloned().collect();
        let expected: Vec<Vec<u8>> = names.iter().map(|name| self.state(name)).collect();
        remove_below(&mut self.world, "volumes/");
        if self.random.bool() {
            self.tell("lose indexes".into());
            remove_below(&mut self.world, "indexes/");
        }
        if self.random.bool() {
            self.tell("lose pins".into());
            remove_below(&mut self.world, "pins/");
        }
        let has_leftovers = self.told.iter().any(|what| what.starts_with("bring"));
        if !has_leftovers && self.random.bool() {
            self.tell("lose logs".into());
            remove_below(&mut self.world, "hosts/");
        }
        for (name, expected) in names.iter().zip(&expected) {
            let report = try_rebuild(&mut self.world, &taking_over(name));
            let report = report.unwrap_or_else(|error| panic!("{seed}: {error}: {:#?}", self.told));
            let is_open = report
                .unknown
                .iter()
                .any(|it| matches!(it, Unknown::Gap { .. } | Unknown::SetBack { .. }));
            let is_set_back = report
                .unknown
                .iter()
                .any(|it| matches!(it, Unknown::SetBack { .. }));
            let found = self.state(name);
            let blocks = found.chunks(4096).zip(expected.chunks(4096));
            let wrong: Vec<_> = blocks
                .enumerate()
                .filter(|(_, (found, expected))| found != expected)
                .filter(|(_, (_, expected))| !is_open || expected[0] != 0)
                .map(|(nth, (found, expected))| (nth, found[0], expected[0]))
                .collect();
            assert!(
                wrong.is_empty() || is_set_back,
                "seed {seed}, {name}: {wrong:?}: {report:#?}, after {:#?}",
                self.told
            );
        }
    }
}

#[test]
fn what_a_random_history_has_stored_is_what_a_rebuild_brings_back() {
    for seed in 0..HISTORIES {
        let mut history = History::begin(seed);
        for _ in 0..STEPS {
            history.step();
        }
        history.lose(seed);
    }
}
