//! Lists a part at a time: each name once, in order, whatever comes and goes meanwhile; however many there are, a part
//! reads no more than it tells.

use volume::object::root::Root;
use volume::object::root_key;
use volume::units::VolumeId;
use volume::{ListPart, ListPlace, OpenError};

use crate::support::World;
use crate::support::hosts::{delete, root_of};
use crate::support::points::{done, snapshot, whole_list};
use crate::support::with_volume;

const MIB: u64 = 1 << 20;
const HOUR_MS: u64 = 3_600_000;

fn place(after: Option<&str>, limit: usize) -> ListPlace {
    ListPlace {
        after: after.map(str::to_owned),
        limit,
    }
}

fn volumes(world: &mut World, after: Option<&str>, limit: usize) -> ListPart<String> {
    let answer = world.host.list_volumes(place(after, limit));
    let part = done(world, &answer);
    let names = part.items.into_iter().map(|info| info.name);
    ListPart {
        items: names.collect(),
        next: part.next,
    }
}

/// All names, so many at a time; `between` is done behind each part.
fn walk(
    world: &mut World,
    limit: usize,
    mut between: impl FnMut(&mut World, usize),
) -> Vec<String> {
    let (mut names, mut after, mut parts) = (Vec::new(), None, 0);
    loop {
        let part = volumes(world, after.as_deref(), limit);
        assert!(part.items.len() <= limit);
        names.extend(part.items);
        parts += 1;
        between(world, parts);
        match part.next {
            None => return names,
            next => after = next,
        }
    }
}

#[test]
fn parts_of_two_tell_each_of_five_volumes_once_and_in_order() {
    // In the order of keys `a-1` and `a.b` stand before `a`.
    let names = ["a", "a-1", "a.b", "a0", "b"];
    let made = || {
        let mut world = World::new();
        for name in ["b", "a.b", "a", "a0", "a-1"] {
            world.create(name, MIB);
        }
        world
    };
    let mut world = made();
    assert_eq!(walk(&mut world, 2, |_, _| ()), names);
    let last = volumes(&mut world, Some("a.b"), 2);
    assert_eq!(
        (last.items.len(), last.next),
        (2, None),
        "it is the last part"
    );
    assert_eq!(volumes(&mut world, Some("a"), 1).items, ["a-1"]);
    assert_eq!(
        volumes(&mut world, Some("a-"), 9).items,
        names[1..],
        "of no volume"
    );
    assert_eq!(volumes(&mut world, Some("b"), 9).items, [""; 0]);

    // What comes and goes in between changes nothing for the others.
    let mut world = made();
    let found = walk(&mut world, 2, |world, parts| {
        if parts == 1 {
            delete(world, "a-1");
            delete(world, "a.b");
            world.create("a-0", MIB);
            world.create("a1", MIB);
        }
    });
    assert_eq!(found, ["a", "a-1", "a0", "a1", "b"], "a-0 came too late");
    assert_eq!(
        walk(&mut world, 2, |_, _| ()),
        ["a", "a-0", "a0", "a1", "b"]
    );
}

#[test]
fn a_list_goes_on_behind_a_name_and_nothing_else() {
    let (mut world, _volume) = with_volume();
    let answer = world.host.list_volumes(place(Some("../x"), 2));
    let refused = world.wait(|_| answer.try_take()).expect_err("no name");
    assert!(matches!(refused, OpenError::Invalid(_)), "{refused}");
    for after in ["one", "other@one", "demo@"] {
        let answer = world.host.list_snapshots("demo", place(Some(after), 2));
        let refused = world
            .wait(|_| answer.try_take())
            .expect_err("no name of its");
        assert!(matches!(refused, OpenError::Invalid(_)), "{refused}");
    }
    for after in ["../x", "aside:x"] {
        let answer = world.host.list_trash(place(Some(after), 2));
        let refused = world.wait(|_| answer.try_take()).expect_err("no place");
        assert!(matches!(refused, OpenError::Invalid(_)), "{refused}");
    }
}

/// Puts a root into the store as if so many snapshots more had been taken at the same moment.
fn multiply_snapshot(world: &mut World, name: &str, count: u32) {
    let root = root_of(&world.env, name);
    let (volume, _) = name.split_once('@').expect("a snapshot");
    for number in 0..count {
        let mut id = root.volume.0;
        id[..4].copy_from_slice(&number.to_be_bytes());
        let name = format!("{volume}@s-{number:05}");
        let copy = Root {
            volume: VolumeId(id),
            name: name.clone(),
            ..root.clone()
        };
        world.env.versions += 1;
        let stored = (copy.encode(), world.env.versions);
        world.env.objects.insert(root_key(&name), stored);
    }
}

#[test]
fn ten_thousand_snapshots_are_told_in_parts_that_read_no_more_than_they_tell() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    snapshot(&mut world, "demo@first").expect("taken");
    multiply_snapshot(&mut world, "demo@first", 10_000);
    let requests = |world: &World, kind| {
        let folders = ["snapshots", "trash"];
        let counts = folders.map(|folder| world.env.requests.get(&(kind, folder.to_owned())));
        counts
            .iter()
            .map(|count| count.copied().unwrap_or(0))
            .sum::<usize>()
    };
    let (mut after, mut told) = (None, Vec::new());
    let limit = 700;
    loop {
        let before = (requests(&world, "get"), requests(&world, "list"));
        let answer = world
            .host
            .list_snapshots("demo", place(after.as_deref(), limit));
        let part = done(&mut world, &answer);
        let read = requests(&world, "get") - before.0;
        assert!(read <= limit + 10, "{read} roots are read for {limit}");
        assert!(requests(&world, "list") - before.1 <= 1);
        told.extend(part.items.into_iter().map(|info| info.name));
        match part.next {
            None => break,
            next => after = next,
        }
    }
    let copies = (0..10_000).map(|number| format!("demo@s-{number:05}"));
    let expected: Vec<String> = std::iter::once("demo@first".to_owned())
        .chain(copies)
        .collect();
    assert_eq!(told, expected);
    // One that is to be deleted is refused by the first of them.
    let before = requests(&world, "get");
    let answer = world.host.close_volume(&volume);
    done(&mut world, &answer);
    let answer = world.host.delete_volume("demo");
    let refused = world
        .wait(|_| answer.try_take())
        .expect_err("it has snapshots");
    assert!(refused.to_string().contains("demo@first"), "{refused}");
    assert!(requests(&world, "get") - before <= 10);
}

#[test]
fn what_is_in_the_trash_is_told_by_name_and_then_what_lost_its_name_by_id() {
    let mut world = World::new();
    let trash = |world: &mut World, name: &str| {
        let answer = world.host.trash_volume(name, HOUR_MS);
        done(world, &answer);
    };
    let mut ids = Vec::new();
    for round in 0..3 {
        for name in ["a", "b", "c"] {
            world.create(name, (round + 1) * MIB);
        }
        for name in ["c", "b", "a"] {
            ids.push((round, root_of(&world.env, name).volume));
            trash(&mut world, name);
        }
    }
    world.create("d", MIB);
    let mut aside: Vec<VolumeId> = ids
        .iter()
        .filter(|(round, _)| *round < 2)
        .map(|(_, id)| *id)
        .collect();
    aside.sort_unstable();
    for limit in [1, 2, 3, 4, 20] {
        let (mut after, mut found) = (None, Vec::new());
        loop {
            let answer = world.host.list_trash(place(after.as_deref(), limit));
            let part = done(&mut world, &answer);
            assert!(part.items.len() <= limit);
            found.extend(part.items);
            match part.next {
                None => break,
                next => after = next,
            }
        }
        let named: Vec<&str> = found[..3].iter().map(|one| one.name.as_str()).collect();
        assert_eq!(named, ["a", "b", "c"], "{limit}");
        let rest: Vec<VolumeId> = found[3..].iter().map(|one| one.id).collect();
        assert_eq!(rest, aside, "{limit}");
    }
    // Each is found by its id, and the last one by its name.
    for which in [aside[0].to_string(), "b".to_owned()] {
        let answer = world.host.empty_trash(&which);
        done(&mut world, &answer);
    }
    let answer = world.host.list_trash(whole_list());
    let left = done(&mut world, &answer).items;
    assert_eq!(left.len(), 7);
    let names: Vec<&str> = left[..2].iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["a", "c"]);
}

#[cfg(feature = "planted")]
#[test]
fn the_planted_bug_is_seen() {
    canary::each_is_seen(&[(
        "a_list_goes_on_behind_what_did_not_fit",
        parts_of_two_tell_each_of_five_volumes_once_and_in_order,
    )]);
}
