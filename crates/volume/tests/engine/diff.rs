//! What differs between volumes and snapshots that share history, told from their indexes (S6).
//!
//! With `--cfg canary` each planted bug is seen by the test that is there for it.

use std::collections::BTreeMap;

use blkmq::io::Op;
use volume::object::pack::TRAILER_BYTES;
use volume::{ChangedRange, DiffPart, DiffPlace, OpenError, Options, Volume};

use crate::support::hosts::{close, elsewhere, root_of};
use crate::support::points::{delete_snapshot, done, fold, make_fork, snapshot, write_over};
use crate::support::{Environment, World, with_volume};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SECTOR: u64 = 512;

fn try_diff(world: &mut World, from: &str, to: &str) -> Result<DiffPart, OpenError> {
    let answer = world.host.diff(from, to, None, usize::MAX);
    world.wait(|_| answer.try_take())
}

fn ranges(world: &mut World, from: &str, to: &str) -> Vec<ChangedRange> {
    let part = try_diff(world, from, to).expect("told");
    assert_eq!(part.next, None);
    part.ranges
}

fn data(offset: u64, bytes: u64) -> ChangedRange {
    ChangedRange {
        offset,
        bytes,
        is_zeroed: false,
    }
}

fn zeroes(offset: u64, bytes: u64) -> ChangedRange {
    ChangedRange {
        is_zeroed: true,
        ..data(offset, bytes)
    }
}

fn discard(world: &mut World, volume: &Volume, sector: u64, sectors: u64) {
    let op = Op::Discard {
        sector,
        sectors,
        fua: false,
    };
    world.request(volume, op, &mut []).expect("discarded");
}

#[test]
fn two_snapshots_differ_where_the_volume_was_written_or_zeroed_between_them() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 8192);
    world.write(&volume, 64, 2, 4096);
    snapshot(&mut world, "demo@a").expect("taken");
    world.write(&volume, 9, 3, 512);
    discard(&mut world, &volume, 64, 8);
    // Zeroes of zeroes are no change.
    discard(&mut world, &volume, 128, 8);
    world.write(&volume, 200, 4, 1024);
    snapshot(&mut world, "demo@b").expect("taken");
    world.write(&volume, 0, 5, 512);
    world.sync(&volume);
    let expected = [
        data(9 * SECTOR, 512),
        zeroes(64 * SECTOR, 4096),
        data(200 * SECTOR, 1024),
    ];
    assert_eq!(ranges(&mut world, "demo@a", "demo@b"), expected);
    assert_eq!(ranges(&mut world, "demo@b", "demo"), [data(0, 512)]);
    assert_eq!(ranges(&mut world, "demo", "demo"), []);
    // The other way round, what was not there before is zeroes.
    let back = ranges(&mut world, "demo@b", "demo@a");
    assert!(back.contains(&zeroes(200 * SECTOR, 1024)), "{back:?}");
    assert!(back.contains(&data(64 * SECTOR, 4096)), "{back:?}");
}

#[test]
fn a_fork_is_compared_with_its_parent_its_siblings_and_the_snapshot_that_it_began_with() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    snapshot(&mut world, "demo@a").expect("taken");
    make_fork(&mut world, "demo@a", "one").expect("forked");
    make_fork(&mut world, "demo", "other").expect("forked");
    let one = world.open("one");
    world.write(&one, 8, 2, 4096);
    close(&mut world, &one);
    world.write(&volume, 16, 3, 4096);
    world.sync(&volume);
    assert_eq!(ranges(&mut world, "demo@a", "one"), [data(4096, 4096)]);
    assert_eq!(ranges(&mut world, "other", "one"), [data(4096, 4096)]);
    let expected = [data(4096, 4096), zeroes(8192, 4096)];
    assert_eq!(ranges(&mut world, "demo", "one"), expected);
    // Its parent may be gone.
    close(&mut world, &volume);
    delete_snapshot(&mut world, "demo@a").expect("deleted");
    crate::support::hosts::delete(&mut world, "demo");
    assert_eq!(ranges(&mut world, "other", "one"), [data(4096, 4096)]);
}

#[test]
fn volumes_without_common_history_are_refused_and_names_that_nobody_has_are_named() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.create("stranger", 64 * MIB);
    let refused = try_diff(&mut world, "demo", "stranger").expect_err("strangers");
    assert!(
        refused.to_string().contains("share no history"),
        "{refused}"
    );
    let refused = try_diff(&mut world, "demo@none", "demo").expect_err("no snapshot");
    assert_eq!(refused, OpenError::NoSuchSnapshot("demo@none".into()));
    let refused = try_diff(&mut world, "demo", "none").expect_err("no volume");
    assert_eq!(refused, OpenError::NoSuchVolume("none".into()));
}

#[test]
fn what_another_host_brought_to_the_store_is_told_and_what_it_has_alone_is_not() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    snapshot(&mut world, "demo@a").expect("taken");
    // In the log of its holder, not in its root.
    world.write(&volume, 8, 2, 4096);
    world.sync(&volume);
    world.write(&volume, 16, 3, 4096);
    world.flush(&volume);
    let mut other = elsewhere(&world);
    assert_eq!(ranges(&mut other, "demo@a", "demo"), [data(4096, 4096)]);
}

#[test]
fn a_volume_that_grew_differs_within_its_new_size_and_a_smaller_one_within_its_own() {
    let (mut world, volume) = with_volume();
    snapshot(&mut world, "demo@a").expect("taken");
    world.grow(&volume, 128 * MIB).expect("grown");
    world.write(&volume, 100 * MIB / SECTOR, 1, 4096);
    snapshot(&mut world, "demo@b").expect("taken");
    let part = try_diff(&mut world, "demo@a", "demo@b").expect("told");
    assert_eq!((part.from.bytes, part.to.bytes), (64 * MIB, 128 * MIB));
    assert_eq!(part.ranges, [data(100 * MIB, 4096)]);
    assert_eq!(ranges(&mut world, "demo@b", "demo@a"), []);
}

/// Takes all payload out of the packs; footers stay.
fn lose_payload(env: &mut Environment) {
    for (key, (bytes, _)) in &mut env.objects {
        if !key.starts_with("packs/") {
            continue;
        }
        let trailer = bytes.len() - TRAILER_BYTES;
        let footer: [u8; 8] = bytes[trailer..trailer + 8].try_into().expect("an offset");
        bytes[16..u64::from_le_bytes(footer) as usize].fill(0xdb);
    }
}

#[test]
fn no_content_is_read_and_no_index_block_that_both_have() {
    let mut world = World::new();
    world.create("demo", 64 * GIB);
    let volume = world.open("demo");
    // Pages of four nodes.
    for node in 0..4 {
        for page in 0..8 {
            let sector = (node * 16 * GIB + page * 16 * MIB) / SECTOR;
            world.write(&volume, sector, 1, 4096);
        }
    }
    fold(&mut world, &volume, 0);
    fold(&mut world, &volume, 0);
    snapshot(&mut world, "demo@a").expect("taken");
    world.write(&volume, (32 * GIB + 16 * MIB) / SECTOR, 2, 4096);
    fold(&mut world, &volume, 64);
    fold(&mut world, &volume, 64);
    snapshot(&mut world, "demo@b").expect("taken");
    close(&mut world, &volume);
    let nodes = root_of(&world.env, "demo@b").nodes;
    assert_eq!(nodes.len(), 4, "all is in pages");
    let mut other = elsewhere(&world);
    lose_payload(&mut other.env);
    other.env.store_requests.clear();
    let found = ranges(&mut other, "demo@a", "demo@b");
    assert_eq!(
        found,
        [data(64 * SECTOR, 4096), data(32 * GIB + 16 * MIB, 4096)]
    );
    let deltas = [root_of(&world.env, "demo@a"), root_of(&world.env, "demo@b")];
    let footers: usize = deltas.iter().map(|root| root.deltas.len()).sum();
    // Two nodes differ, and a page of each; both sides of them.
    let read = other.env.store_requests["range"];
    assert!(read <= footers + 8, "{read} reads with {footers} footers");
}

#[test]
fn a_list_in_parts_is_that_in_one_also_while_the_volume_goes_on() {
    // No fold: the next test has one.
    let options = Options {
        deltas_max: 1000,
        ..crate::support::options()
    };
    let world = World::try_start(Environment::default(), options);
    let mut world = world.unwrap_or_else(|error| panic!("{}", error.0));
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    snapshot(&mut world, "demo@a").expect("taken");
    for place in 0..40 {
        world.write(&volume, place * 1000, 1, 4096);
    }
    snapshot(&mut world, "demo@b").expect("taken");
    let whole = ranges(&mut world, "demo@a", "demo@b");
    assert_eq!(whole.len(), 40);
    for most in [1, 7, 40, 41] {
        // At the end of the last list, sector 5 was written.
        let (mut found, mut place) = (Vec::new(), None::<DiffPlace>);
        loop {
            let answer = world.host.diff("demo@a", "demo", place, most);
            let part = done(&mut world, &answer);
            assert!(part.ranges.len() <= most);
            found.extend(part.ranges);
            // It is told as it was when the list was begun.
            world.write(&volume, 5, 9, 512);
            world.sync(&volume);
            place = part.next;
            if place.is_none() {
                break;
            }
        }
        if most == 1 {
            assert_eq!(found.len(), 40);
        }
        let behind = |range: &&ChangedRange| range.offset > 4096;
        assert!(found.iter().filter(behind).eq(whole.iter().filter(behind)));
    }
}

#[test]
fn a_list_whose_state_a_fold_has_passed_is_refused_and_can_be_begun_again() {
    let (mut world, volume) = with_volume();
    snapshot(&mut world, "demo@a").expect("taken");
    for place in 0..4 {
        world.write(&volume, place * 1000, 1, 4096);
    }
    world.sync(&volume);
    let answer = world.host.diff("demo@a", "demo", None, 2);
    let part = done(&mut world, &answer);
    assert!(part.next.is_some());
    write_over(&mut world, &volume, 50);
    write_over(&mut world, &volume, 60);
    let answer = world.host.diff("demo@a", "demo", part.next, 2);
    let refused = world.wait(|_| answer.try_take()).expect_err("gone");
    assert_eq!(refused, OpenError::StateGone("demo".into()));
    assert!(!ranges(&mut world, "demo@a", "demo").is_empty());
}

#[test]
fn an_index_block_or_footer_that_is_gone_is_an_error_that_names_it_and_never_no_change() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    snapshot(&mut world, "demo@a").expect("taken");
    world.write(&volume, 8, 2, 4096);
    snapshot(&mut world, "demo@b").expect("taken");
    fold(&mut world, &volume, 64);
    fold(&mut world, &volume, 64);
    snapshot(&mut world, "demo@c").expect("taken");
    let b = root_of(&world.env, "demo@b");
    let pack = b.deltas.last().expect("a delta").pack;
    let pack = b.sessions.pack_key(pack).expect("named");
    let c = root_of(&world.env, "demo@c");
    let block = c.nodes.first().expect("a node").1.object;
    let block = c.sessions.index_key(block).expect("named");
    for (gone, to) in [(pack, "demo@b"), (block, "demo@c")] {
        let mut other = elsewhere(&world);
        other.env.objects.remove(&gone);
        let refused = try_diff(&mut other, "demo@a", to).expect_err("lost");
        assert!(matches!(refused, OpenError::Corrupt(_)), "{refused}");
        assert!(refused.to_string().contains("firn check"), "{refused}");
    }
}

/// A sector: what it holds, and which write brought that; zero for zeroes of any cause.
type Sector = (u8, u64);
type Content = BTreeMap<u64, Sector>;

/// Where a history writes: across borders of pages and nodes, and within a page.
const PLACES: [u64; 3] = [0, 32_768 - 20, 16 * GIB / SECTOR - 20];
const PLACE_SECTORS: u64 = 40;

struct History {
    seed: u64,
    random: fastrand::Rng,
    world: World,
    open: BTreeMap<String, Volume>,
    volumes: BTreeMap<String, Content>,
    snapshots: BTreeMap<String, Content>,
    writes: u64,
    /// A server was killed: what it brings to the store again is at another place.
    was_killed: bool,
}

impl History {
    fn new(seed: u64) -> History {
        let mut world = World::new();
        world.create("v0", 20 * GIB);
        History {
            seed,
            random: fastrand::Rng::with_seed(seed),
            world,
            open: BTreeMap::new(),
            volumes: BTreeMap::from([("v0".to_owned(), Content::new())]),
            snapshots: BTreeMap::new(),
            writes: 0,
            was_killed: false,
        }
    }

    fn step(&mut self, step: u64) {
        let names: Vec<String> = self.volumes.keys().cloned().collect();
        let name = names[self.random.usize(..names.len())].clone();
        if !self.open.contains_key(&name) {
            let volume = self.world.open(&name);
            self.open.insert(name.clone(), volume);
        }
        match self.random.u8(..20) {
            0..8 => self.write(&name),
            8 => self.world.sync(&self.open[&name]),
            9..12 => {
                let taken = format!("{name}@s{step}");
                snapshot(&mut self.world, &taken).expect("taken");
                self.snapshots.insert(taken, self.volumes[&name].clone());
            }
            12 => self.fork(&name, step),
            13 => self.close(&name),
            14 => self.restore(&name, step),
            15 if self.seed.is_multiple_of(2) => {
                self.open.clear();
                let dead = std::mem::replace(&mut self.world, World::new());
                self.world = World::start(dead.kill());
                self.was_killed = true;
            }
            _ => self.compare(),
        }
        let ms = self.random.u64(..300);
        self.world.pass(ms);
    }

    fn write(&mut self, name: &str) {
        for _ in 0..self.random.u8(1..8) {
            self.writes += 1;
            let place = PLACES[self.random.usize(..PLACES.len())];
            let begin = self.random.u64(..PLACE_SECTORS);
            let sectors = self.random.u64(1..=PLACE_SECTORS - begin).min(17);
            let (begin, volume) = (place + begin, &self.open[name]);
            let content = self.volumes.get_mut(name).expect("there");
            let span = begin..begin + sectors;
            match self.random.u8(..8) {
                0 => discard(&mut self.world, volume, begin, sectors),
                1 if self.random.u8(..4) == 0 => {
                    discard(&mut self.world, volume, 0, 20 * GIB / SECTOR);
                    content.clear();
                    continue;
                }
                _ => {
                    // Few values, so that some are written where they are already.
                    let fill = self.random.u8(1..4);
                    let bytes = (sectors * SECTOR) as usize;
                    self.world.write(volume, begin, fill, bytes);
                    content.extend(span.map(|at| (at, (fill, self.writes))));
                    continue;
                }
            }
            content.retain(|at, _| !span.contains(at));
        }
    }

    fn fork(&mut self, name: &str, step: u64) {
        if self.volumes.len() > 4 {
            return;
        }
        let child = format!("c{step}");
        make_fork(&mut self.world, name, &child).expect("forked");
        self.volumes.insert(child, self.volumes[name].clone());
    }

    fn close(&mut self, name: &str) {
        let volume = self.open.remove(name).expect("open");
        close(&mut self.world, &volume);
    }

    fn restore(&mut self, name: &str, step: u64) {
        let is_its = |snapshot: &&String| snapshot.split('@').next() == Some(name);
        let Some(from) = self.snapshots.keys().find(is_its).cloned() else {
            return;
        };
        self.close(name);
        let kept = format!("{name}@k{step}");
        let restored = self.world.host.restore_volume(&from, &kept);
        done(&mut self.world, &restored);
        let content = self.snapshots[&from].clone();
        let before = self.volumes.insert(name.to_owned(), content);
        self.snapshots.insert(kept, before.expect("there"));
    }

    /// One of all states, as the store has it.
    fn any_state(&mut self) -> (String, Content) {
        let count = self.volumes.len() + self.snapshots.len();
        let nth = self.random.usize(..count);
        let mut all = self.volumes.iter().chain(&self.snapshots);
        let (name, content) = all.nth(nth).expect("one of them");
        let found = (name.clone(), content.clone());
        match self.open.get(&found.0) {
            Some(volume) => self.world.sync(volume),
            None if self.was_killed && self.volumes.contains_key(&found.0) => {
                let volume = self.world.open(&found.0);
                self.world.sync(&volume);
                self.open.insert(found.0.clone(), volume);
            }
            None => {}
        }
        found
    }

    fn compare(&mut self) {
        let (from, before) = self.any_state();
        let (to, after) = self.any_state();
        let (mut listed, mut place) = (Vec::new(), None);
        let most = self.random.usize(1..60);
        loop {
            let answer = self.world.host.diff(&from, &to, place, most);
            let part = done(&mut self.world, &answer);
            listed.extend(part.ranges);
            place = part.next;
            if place.is_none() {
                break;
            }
        }
        let what = format!("seed {}: {from} to {to}: {listed:?}", self.seed);
        let mut end = 0;
        for range in &listed {
            assert!(range.offset >= end && range.bytes > 0, "in order: {what}");
            end = range.offset + range.bytes;
        }
        for place in PLACES {
            for sector in place..place + PLACE_SECTORS {
                let of = |content: &Content| content.get(&sector).copied().unwrap_or((0, 0));
                let (before, after) = (of(&before), of(&after));
                let found = listed.iter().find(|range| {
                    (range.offset..range.offset + range.bytes).contains(&(sector * SECTOR))
                });
                let Some(found) = found else {
                    assert_eq!(before.0, after.0, "sector {sector} is missed: {what}");
                    continue;
                };
                assert!(
                    before.1 != after.1 || self.was_killed,
                    "sector {sector} was not written: {what}"
                );
                assert_eq!(found.is_zeroed, after.0 == 0, "sector {sector}: {what}");
            }
        }
    }
}

#[test]
fn a_diff_of_any_two_states_of_a_random_history_has_every_byte_that_differs_and_none_that_was_not_written()
 {
    for seed in 0..24 {
        let mut history = History::new(seed);
        for step in 0..90 {
            history.step(step);
        }
        for _ in 0..20 {
            history.compare();
        }
    }
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen() {
    canary::each_is_seen(&[
        (
            "diff_reads_what_is_shared",
            no_content_is_read_and_no_index_block_that_both_have,
        ),
        (
            "diff_forgets_deltas",
            a_diff_of_any_two_states_of_a_random_history_has_every_byte_that_differs_and_none_that_was_not_written,
        ),
    ]);
}
