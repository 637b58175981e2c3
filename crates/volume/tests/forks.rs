//! Forks: volumes that begin as others were, share their objects, and go their own ways (S6).
//!
//! With `--cfg canary` each planted bug is seen by the test that is there for it.

mod support;

use std::collections::BTreeMap;

use support::hosts::{close, elsewhere, root_of};
use support::points::{fold, fork, make_fork};
use support::{World, with_volume};
use volume::{OpenError, Volume};

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
    other.lasting.store_requests.clear();
    assert_eq!(other.read_fill(&volume, sector, 4096), fill);
    other.lasting.store_requests.clone()
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
    let answer = other.host.create_snapshot("demo@one", Vec::new());
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
    assert!(
        !world
            .lasting
            .objects
            .keys()
            .any(|key| key.starts_with("pins/"))
    );
}

#[test]
fn a_fork_whose_store_fails_for_a_while_is_made_or_refused_and_can_be_tried_again() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    world.lasting.failing_keys.push("volumes/child/root".into());
    make_fork(&mut world, "demo", "child").expect_err("its root fails");
    world.lasting.failing_keys.clear();
    // Nothing of the volume is held up by it.
    world.write(&volume, 0, 2, 4096);
    fold(&mut world, &volume, 64);
    let root = root_of(&world.lasting, "demo");
    assert!(
        !root.nodes.is_empty() && root.deltas.len() < 6,
        "folds go on"
    );
    let child = fork(&mut world, "demo", "child").expect("forked");
    assert_eq!(world.read_fill(&child, 0, 4096), 2);
}

/// Everything in one, in an order that a seed decides: writes, forks, snapshots, closings, deaths.
fn random_history(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = World::new();
    world.create("v0", 4 * MIB);
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    model.insert("v0".into(), vec![0; 32]);
    let mut open: BTreeMap<String, Volume> = BTreeMap::new();
    let mut snapshots: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for step in 0..60_u64 {
        let names: Vec<String> = model.keys().cloned().collect();
        let name = names[random.usize(..names.len())].clone();
        if !open.contains_key(&name) {
            let volume = world.open(&name);
            open.insert(name.clone(), volume);
        }
        let volume = &open[&name];
        match random.u8(..12) {
            0..6 => {
                for _ in 0..random.u8(1..6) {
                    let (at, fill) = (random.usize(..32), random.u8(1..));
                    world.write(volume, at as u64 * 8, fill, 4096);
                    model.get_mut(&name).expect("there")[at] = fill;
                }
            }
            6 => world.sync(volume),
            7 | 8 => {
                let snapshot = format!("{name}@s{step}");
                let answer = world.host.create_snapshot(&snapshot, Vec::new());
                world.wait(|_| answer.try_take()).expect("taken");
                snapshots.insert(snapshot, model[&name].clone());
            }
            9 => {
                let child = format!("c{step}");
                let of_snapshot = snapshots.keys().nth(random.usize(..8)).cloned();
                let parent = of_snapshot.unwrap_or(name);
                make_fork(&mut world, &parent, &child).expect("forked");
                let content = snapshots.get(&parent).or_else(|| model.get(&parent));
                model.insert(child, content.expect("it is one of them").clone());
            }
            10 => {
                let volume = open.remove(&name).expect("open");
                close(&mut world, &volume);
            }
            _ => {
                open.clear();
                world = World::start(world.kill());
            }
        }
        world.pass(random.u64(..30));
    }
    open.clear();
    let mut world = World::start(world.kill());
    for (nth, snapshot) in snapshots.keys().enumerate() {
        make_fork(&mut world, snapshot, &format!("check{nth}")).expect("forked");
    }
    let checks = snapshots.into_values().enumerate();
    let checks = checks.map(|(nth, content)| (format!("check{nth}"), content));
    for (name, content) in model.into_iter().chain(checks) {
        let volume = world.open(&name);
        for (at, fill) in content.iter().enumerate() {
            assert_eq!(
                world.read_fill(&volume, at as u64 * 8, 4096),
                *fill,
                "seed {seed}: {name} at {at}"
            );
        }
        close(&mut world, &volume);
    }
}

#[test]
fn every_snapshot_and_fork_of_a_random_history_is_what_its_volume_was() {
    (0..24).for_each(random_history);
}
