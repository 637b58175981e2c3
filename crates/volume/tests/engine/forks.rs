//! Forks: volumes that begin as others were, share their objects, and go their own ways (S6).
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use std::collections::BTreeMap;

use volume::units::VolumeId;
use volume::{Durability, OpenError, Volume};

use crate::support::checks::check_all;
use crate::support::hosts::{close, elsewhere, root_of};
use crate::support::points::{delete_snapshot, done, fold, fork, make_fork, snapshot};
use crate::support::{World, with_volume};

const MIB: u64 = 1 << 20;

#[test]
fn what_is_written_to_a_fork_or_to_its_parent_is_not_in_the_other() {
    let (mut world, parent) = with_volume();
    world.write(&parent, 0, 1, 8192);
    let child = fork(&mut world, "demo", "child").expect("forked");
    world.write(&parent, 0, 2, 4096);
    world.write(&child, 8, 3, 4096);
    fold(&mut world, &parent, 64);
    fold(&mut world, &child, 128);
    let mut other = elsewhere(&world);
    let there = ["demo", "child"].map(|name| other.try_open(name, true).expect("taken over"));
    for (world, [parent, child]) in [(&mut world, [parent, child]), (&mut other, there)] {
        let fills = |world: &mut World, volume: &Volume| {
            [0, 8, 64, 128].map(|sector| world.read_fill(volume, sector, 4096))
        };
        assert_eq!(fills(world, &parent), [2, 1, 105, 0]);
        assert_eq!(fills(world, &child), [1, 3, 0, 105]);
    }
}

/// Requests to the store of a cold read, and of all that was before it since the volume was opened.
fn cold_read_requests(
    world: &World,
    name: &str,
    sector: u64,
    fill: u8,
) -> BTreeMap<&'static str, usize> {
    let mut other = elsewhere(world);
    let volume = other.try_open(name, true).expect("opened");
    other.pass(1000);
    other.env.store_requests.clear();
    assert_eq!(other.read_fill(&volume, sector, 4096), fill);
    other.env.store_requests.clone()
}

#[test]
fn a_fork_of_a_fork_sixty_four_deep_reads_as_its_root_does() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    fold(&mut world, &volume, 640);
    let mut above = "demo".to_owned();
    for depth in 1..=64 {
        let name = format!("f{depth}");
        let child = fork(&mut world, &above, &name).expect("forked");
        world.write(&child, depth * 8, depth as u8, 4096);
        close(&mut world, &child);
        above = name;
    }
    // One of the index and one of data, as of a volume that was never forked.
    for name in ["f1", "f64"] {
        let requests = cold_read_requests(&world, name, 0, 1);
        assert!(
            requests.values().sum::<usize>() <= 2,
            "{name}: {requests:?}"
        );
    }
    // Ancestors may go.
    close(&mut world, &volume);
    for name in ["demo".to_owned()]
        .into_iter()
        .chain((1..64).map(|depth| format!("f{depth}")))
    {
        let answer = world.host.delete_volume(&name);
        world.wait(|_| answer.try_take()).expect("deleted");
    }
    let last = world.open("f64");
    assert_eq!(world.read_fill(&last, 0, 4096), 1);
    assert_eq!(world.read_fill(&last, 640, 4096), 105);
    for depth in 1..=64 {
        assert_eq!(world.read_fill(&last, depth * 8, 4096), depth as u8);
    }
}

/// Range requests of the opening of a volume, and the volume.
fn opened_with(world: &mut World, name: &str) -> (usize, Volume) {
    world.env.store_requests.clear();
    let volume = world.open(name);
    let ranges = world.env.store_requests.get("range").copied();
    (ranges.unwrap_or_default(), volume)
}

#[test]
fn the_deltas_of_a_snapshot_are_read_once_for_all_forks_that_are_open() {
    let (mut world, volume) = with_volume();
    for (place, fill) in [(0, 1), (8, 2), (16, 3)] {
        world.write(&volume, place, fill, 4096);
        world.sync(&volume);
    }
    snapshot(&mut world, "demo@one").expect("made");
    world.write(&volume, 8, 9, 4096);
    world.sync(&volume);
    snapshot(&mut world, "demo@two").expect("made");
    for (parent, name) in [("one", "a"), ("one", "b"), ("one", "c"), ("two", "d")] {
        make_fork(&mut world, &format!("demo@{parent}"), name).expect("forked");
    }
    let (first, a) = opened_with(&mut world, "a");
    assert_eq!(first, 3, "one for each delta");
    let (second, b) = opened_with(&mut world, "b");
    assert_eq!(second, 0);
    // What one of them adds is its own.
    world.write(&a, 16, 4, 4096);
    world.sync(&a);
    let (third, c) = opened_with(&mut world, "c");
    assert_eq!(third, 0);
    let (other, d) = opened_with(&mut world, "d");
    let fills = |world: &mut World, volume: &Volume| {
        [0, 8, 16].map(|sector| world.read_fill(volume, sector, 4096))
    };
    assert_eq!(fills(&mut world, &a), [1, 2, 4]);
    assert_eq!(fills(&mut world, &b), [1, 2, 3]);
    assert_eq!(fills(&mut world, &c), [1, 2, 3]);
    assert_eq!(fills(&mut world, &d), [1, 9, 3]);
    assert_eq!(other, 4, "those of another snapshot are others");
    // A fold of one leaves the others what they had.
    fold(&mut world, &b, 24);
    assert_eq!(fills(&mut world, &b), [1, 2, 3]);
    assert_eq!(fills(&mut world, &c), [1, 2, 3]);
    for volume in [a, b, c] {
        close(&mut world, &volume);
    }
    assert_eq!(
        opened_with(&mut world, "c").0,
        3,
        "nobody has them any more"
    );
}

#[test]
#[cfg(feature = "planted")]
fn shared_deltas_of_another_snapshot_are_seen() {
    let test = the_deltas_of_a_snapshot_are_read_once_for_all_forks_that_are_open;
    let seen = std::panic::catch_unwind(|| canary::with("any_deltas_are_shared", test));
    assert!(seen.is_err(), "it is not seen");
}

#[test]
fn a_fork_of_a_volume_that_another_host_has_begins_with_what_the_store_has() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    // In the log of its host alone, not in its root.
    world.write(&volume, 8, 2, 4096);
    world.sync(&volume);
    world.write(&volume, 0, 3, 4096);
    world.flush(&volume);
    let mut other = elsewhere(&world);
    let answer = other
        .host
        .create_snapshot("demo@one", Vec::new(), Durability::Store);
    let refused = other
        .wait(|_| answer.try_take())
        .expect_err("another host has it");
    assert!(matches!(refused, OpenError::Held { .. }), "{refused}");
    let child = fork(&mut other, "demo", "child").expect("forked");
    assert_eq!(other.read_fill(&child, 0, 4096), 1);
    assert_eq!(other.read_fill(&child, 8, 4096), 2);
    world.sync(&volume);
    assert_eq!(world.read_fill(&volume, 0, 4096), 3, "it serves as before");
}

#[test]
fn a_name_that_is_taken_is_refused_and_no_pin_stays() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.create("taken", 64 * MIB);
    let refused = make_fork(&mut world, "demo", "taken").expect_err("taken");
    assert_eq!(refused, OpenError::Exists("taken".into()));
    let refused = make_fork(&mut world, "none", "child").expect_err("no parent");
    assert_eq!(refused, OpenError::NoSuchVolume("none".into()));
    let refused = make_fork(&mut world, "demo", "a@b").expect_err("no name for a volume");
    assert!(matches!(refused, OpenError::Invalid(_)), "{refused}");
    assert!(!world.env.objects.keys().any(|key| key.starts_with("pins/")));
}

#[test]
fn a_fork_whose_store_fails_for_a_while_is_made_or_refused_and_can_be_tried_again() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    world.env.failing_keys.push("volumes/child/root".into());
    make_fork(&mut world, "demo", "child").expect_err("its root fails");
    world.env.failing_keys.clear();
    // Nothing of the volume is held up by it.
    world.write(&volume, 0, 2, 4096);
    fold(&mut world, &volume, 64);
    let root = root_of(&world.env, "demo");
    assert!(
        !root.nodes.is_empty() && root.deltas.len() < 6,
        "folds go on"
    );
    let child = fork(&mut world, "demo", "child").expect("forked");
    assert_eq!(world.read_fill(&child, 0, 4096), 2);
}

/// A volume in the trash: its name, its id, what it holds, and what its snapshots do.
type Trashed = (String, VolumeId, Vec<u8>, BTreeMap<String, Vec<u8>>);

/// Everything in one, in an order that a seed decides: writes, forks, snapshots, restores, deletions, the trash, passes of
/// the collector, closings, deaths.
struct History {
    seed: u64,
    random: fastrand::Rng,
    world: World,
    /// What each block of a volume holds.
    model: BTreeMap<String, Vec<u8>>,
    open: BTreeMap<String, Volume>,
    /// The same of a snapshot.
    snapshots: BTreeMap<String, Vec<u8>>,
    trash: Vec<Trashed>,
    /// Objects that passes removed.
    removed: u64,
    /// Volumes that came back from the trash.
    restored: u64,
}

impl History {
    fn new(seed: u64) -> History {
        let mut world = World::new();
        world.create("v0", 4 * MIB);
        History {
            seed,
            random: fastrand::Rng::with_seed(seed),
            world,
            model: BTreeMap::from([("v0".to_owned(), vec![0; 32])]),
            open: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            trash: Vec::new(),
            removed: 0,
            restored: 0,
        }
    }

    fn step(&mut self, step: u64) {
        let names: Vec<String> = self.model.keys().cloned().collect();
        let name = names[self.random.usize(..names.len())].clone();
        if !self.open.contains_key(&name) {
            let volume = self.world.open(&name);
            self.open.insert(name.clone(), volume);
        }
        match self.random.u8(..22) {
            0..6 => self.write(&name),
            6 => self.world.sync(&self.open[&name]),
            7 | 8 => {
                let taken = format!("{name}@s{step}");
                snapshot(&mut self.world, &taken).expect("taken");
                self.snapshots.insert(taken, self.model[&name].clone());
            }
            9 => self.fork(&name),
            10 => self.close(&name),
            11 => {
                self.open.clear();
                let dead = std::mem::replace(&mut self.world, World::new());
                self.world = World::start(dead.kill());
            }
            12 | 13 => self.collect(),
            14 | 15 => self.delete_a_snapshot(),
            16 => self.restore(&name, step),
            17 => self.delete(&name),
            18 | 19 => self.move_to_trash(&name),
            20 => self.take_from_trash(),
            _ => self.empty_trash(),
        }
        let ms = self.random.u64(..30);
        self.world.pass(ms);
    }

    fn write(&mut self, name: &str) {
        for _ in 0..self.random.u8(1..6) {
            let (at, fill) = (self.random.usize(..32), self.random.u8(1..));
            self.world
                .write(&self.open[name], at as u64 * 8, fill, 4096);
            self.model.get_mut(name).expect("there")[at] = fill;
        }
    }

    /// Names are few, and taken again once their volumes are deleted.
    fn fork(&mut self, name: &str) {
        let child = format!("c{}", self.random.u8(..6));
        if self.model.contains_key(&child) {
            return;
        }
        let of_snapshot = self.snapshots.keys().nth(self.random.usize(..8)).cloned();
        let parent = of_snapshot.unwrap_or(name.to_owned());
        make_fork(&mut self.world, &parent, &child).expect("forked");
        let content = self.snapshots.get(&parent);
        let content = content.or_else(|| self.model.get(&parent));
        let content = content.expect("it is one of them").clone();
        self.model.insert(child, content);
    }

    fn close(&mut self, name: &str) {
        let volume = self.open.remove(name).expect("open");
        close(&mut self.world, &volume);
    }

    fn collect(&mut self) {
        let answer = self.world.host.collect_garbage(false);
        let found = done(&mut self.world, &answer);
        assert_eq!(found.recovered.objects, 0, "seed {}", self.seed);
        self.removed += found.removed.objects;
        let found = check_all(&self.world.env.objects, false);
        assert_eq!(found.damage, [], "seed {}", self.seed);
    }

    fn delete_a_snapshot(&mut self) {
        let nth = self.random.usize(..4);
        if let Some(name) = self.snapshots.keys().nth(nth).cloned() {
            delete_snapshot(&mut self.world, &name).expect("deleted");
            self.snapshots.remove(&name);
        }
    }

    fn snapshot_of(&self, volume: &str) -> Option<String> {
        let is_its = |name: &&String| name.split('@').next() == Some(volume);
        self.snapshots.keys().find(is_its).cloned()
    }

    fn restore(&mut self, name: &str, step: u64) {
        let Some(from) = self.snapshot_of(name) else {
            return;
        };
        self.close(name);
        let kept = format!("{name}@k{step}");
        let restored = self.world.host.restore_volume(&from, &kept);
        done(&mut self.world, &restored);
        let content = self.snapshots[&from].clone();
        let before = self.model.insert(name.to_owned(), content);
        self.snapshots.insert(kept, before.expect("there"));
    }

    fn delete(&mut self, name: &str) {
        if self.model.len() == 1 || self.snapshot_of(name).is_some() {
            return;
        }
        self.close(name);
        let deleted = self.world.host.delete_volume(name);
        done(&mut self.world, &deleted);
        self.model.remove(name);
    }

    fn move_to_trash(&mut self, name: &str) {
        if self.model.len() == 1 {
            return;
        }
        self.close(name);
        let id = root_of(&self.world.env, name).volume;
        let moved = self.world.host.trash_volume(name, 3_600_000);
        done(&mut self.world, &moved);
        let content = self.model.remove(name).expect("there");
        let is_its = |snapshot: &String, _: &mut Vec<u8>| snapshot.split('@').next() == Some(name);
        let snapshots = self.snapshots.extract_if(.., is_its).collect();
        self.trash.push((name.to_owned(), id, content, snapshots));
    }

    /// Under its own name, if that is free.
    fn take_from_trash(&mut self) {
        if self.trash.is_empty() {
            return;
        }
        let nth = self.random.usize(..self.trash.len());
        let own = self.trash[nth].0.clone();
        let others = (0..6).map(|n| format!("c{n}"));
        let mut names = std::iter::once(own).chain(others);
        if let Some(name) = names.find(|name| !self.model.contains_key(name)) {
            self.restore_trashed(nth, &name);
        }
    }

    fn restore_trashed(&mut self, nth: usize, name: &str) {
        let (own, id, content, snapshots) = self.trash.remove(nth);
        let other_name = (own != name).then_some(name);
        let restored = self
            .world
            .host
            .restore_from_trash(&id.to_string(), other_name);
        done(&mut self.world, &restored);
        self.restored += 1;
        self.model.insert(name.to_owned(), content);
        for (snapshot, content) in snapshots {
            let snapshot = snapshot.replacen(&own, name, 1);
            self.snapshots.insert(snapshot, content);
        }
    }

    fn empty_trash(&mut self) {
        if self.trash.is_empty() {
            return;
        }
        let nth = self.random.usize(..self.trash.len());
        let (_, id, ..) = self.trash.remove(nth);
        let emptied = self.world.host.empty_trash(&id.to_string());
        done(&mut self.world, &emptied);
    }

    /// All of it is there, after another start of the host and more passes, and no pin is left. How much passes removed,
    /// and how many volumes came back from the trash.
    fn check(mut self) -> (u64, u64) {
        self.open.clear();
        self.world = World::start(self.world.kill());
        for _ in 0..2 {
            self.collect();
        }
        for nth in (0..self.trash.len()).rev() {
            self.restore_trashed(nth, &format!("t{nth}"));
        }
        for (nth, snapshot) in self.snapshots.keys().enumerate() {
            make_fork(&mut self.world, snapshot, &format!("check{nth}")).expect("forked");
        }
        self.collect();
        let found = check_all(&self.world.env.objects, true);
        assert_eq!(found.damage, [], "seed {}", self.seed);
        let pins = self.world.env.objects.keys();
        let pins = pins.filter(|key| key.starts_with("pins/")).count();
        assert_eq!(pins, 0, "seed {}: pins stay", self.seed);
        let checks = self.snapshots.into_values().enumerate();
        let checks = checks.map(|(nth, content)| (format!("check{nth}"), content));
        for (name, content) in self.model.into_iter().chain(checks) {
            let volume = self.world.open(&name);
            for (at, fill) in content.iter().enumerate() {
                assert_eq!(
                    self.world.read_fill(&volume, at as u64 * 8, 4096),
                    *fill,
                    "seed {}: {name} at {at}",
                    self.seed
                );
            }
            close(&mut self.world, &volume);
        }
        (self.removed, self.restored)
    }
}

fn random_history(seed: u64) -> (u64, u64) {
    let mut history = History::new(seed);
    for step in 0..90 {
        history.step(step);
    }
    history.check()
}

#[test]
fn every_snapshot_and_fork_of_a_random_history_is_what_its_volume_was() {
    let histories: Vec<(u64, u64)> = (0..48).map(random_history).collect();
    let removed: u64 = histories.iter().map(|(removed, _)| removed).sum();
    assert!(removed > 24, "the collector took part: {removed} objects");
    let restored: u64 = histories.iter().map(|(_, restored)| restored).sum();
    assert!(restored > 48, "the trash took part: {restored} volumes");
}
