//! The check of a store (S8): what is damaged is named with what it costs, and what is whole never is.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use blkmq::io::Op;
use volume::check::{CheckError, DamageKind};
use volume::object::page::PAGE_SECTORS;
use volume::object::root_key;
use volume::{Durability, Volume};

use crate::support::checks::{check_all, check_moving};
use crate::support::hosts::elsewhere;
use crate::support::points::{done, gc, snapshot, write_over};
use crate::support::{World, with_volume};

const MIB: u64 = 1 << 20;

/// A volume with folded pages and fresh deltas, a snapshot of it, and a fork; and nothing else.
fn furnished() -> (World, Volume) {
    let (mut world, volume) = with_volume();
    for place in 0..8 {
        let sector = place * 2 * PAGE_SECTORS / 8;
        world.write(&volume, sector, 100 + place as u8, 16384);
    }
    write_over(&mut world, &volume, 1);
    snapshot(&mut world, "demo@one").expect("taken");
    write_over(&mut world, &volume, 30);
    let forked = world
        .host
        .fork_volume("demo@one", "child", Durability::Store);
    done(&mut world, &forked);
    world.write(&volume, 8000, 77, 4096);
    world.sync(&volume);
    gc(&mut world);
    gc(&mut world);
    (world, volume)
}

fn is_data(key: &&String) -> bool {
    key.starts_with("packs/") || key.starts_with("indexes/")
}

#[test]
fn a_whole_store_is_found_whole_and_what_volumes_share_is_read_once() {
    let (world, _) = furnished();
    let shallow = check_all(&world.env.objects, false);
    assert_eq!(shallow.damage, []);
    let deep = check_all(&world.env.objects, true);
    assert_eq!(deep.damage, []);
    let counts = deep.counts;
    assert_eq!((counts.volumes, counts.snapshots), (2, 1));
    assert!(
        counts.chunks > 10 && shallow.counts.chunks == 0,
        "{counts:?}"
    );
    let packs = world.env.objects.keys();
    let packs = packs.filter(|key| key.starts_with("packs/")).count();
    assert_eq!(counts.packs, packs as u64, "each once");
}

#[test]
fn each_object_that_is_gone_or_cut_short_is_named_with_what_it_costs() {
    let (world, _) = furnished();
    let objects = &world.env.objects;
    for key in objects.keys().filter(is_data) {
        let mut gone = objects.clone();
        gone.remove(key);
        let found = check_all(&gone, false);
        let named: Vec<_> = found.damage.iter().filter(|it| it.object == *key).collect();
        assert!(!named.is_empty(), "{key} is gone: {found:?}");
        for damage in named {
            assert_eq!(damage.kind, DamageKind::Missing, "{damage:?}");
            assert!(
                damage.bytes >= 512 && damage.bytes <= 64 * MIB,
                "{damage:?}"
            );
        }
        let mut cut = objects.clone();
        let data = &mut cut.get_mut(key).expect("it is there").0;
        data.truncate(20);
        let found = check_all(&cut, false);
        assert!(
            found
                .damage
                .iter()
                .any(|it| it.object == *key && it.kind == DamageKind::TooShort),
            "{key} is cut: {found:?}"
        );
    }
}

/// Everything that somebody may read of two volumes, or none if something cannot be read.
fn content(world: &World) -> Option<Vec<Vec<u8>>> {
    let mut other = elsewhere(world);
    let mut all = Vec::new();
    for name in ["demo", "child"] {
        let volume = other.try_open(name, true).ok()?;
        for at in 0..4 * PAGE_SECTORS / 64 {
            let mut data = vec![0; 64 * 512];
            let sector = at * 64;
            let op = Op::Read {
                sector,
                sectors: 64,
            };
            other.request(&volume, op, &mut data).ok()?;
            all.push(data);
        }
    }
    Some(all)
}

#[test]
fn what_a_deep_check_finds_whole_can_be_read_and_is_what_it_was() {
    let (mut world, _) = furnished();
    let whole = content(&world).expect("readable");
    let objects = world.env.objects.clone();
    let (mut found, mut tried) = (0, 0);
    for (key, (data, _)) in objects.iter().filter(|(key, _)| is_data(key)) {
        for at in [data.len() / 3, data.len() / 2, data.len() * 3 / 4] {
            tried += 1;
            let mut flipped = objects.clone();
            flipped.get_mut(key).expect("it is there").0[at] ^= 0x10;
            if check_all(&flipped, true).damage.is_empty() {
                world.env.objects = flipped;
                let read = content(&world);
                assert!(
                    read.as_ref() == Some(&whole),
                    "{key} at {at} was found whole"
                );
            } else {
                found += 1;
            }
        }
    }
    assert!(found * 2 > tried, "{found} of {tried} were found");
}

#[test]
fn damage_that_forks_and_snapshots_share_is_told_of_each() {
    let (world, _) = furnished();
    let mut objects = world.env.objects.clone();
    // The oldest pack has what was written before all of them.
    let oldest = objects.keys().find(|key| key.starts_with("packs/"));
    let oldest = oldest.expect("a pack").clone();
    objects.remove(&oldest);
    let damage = check_all(&objects, false).damage;
    let volumes: Vec<&str> = damage.iter().map(|it| it.volume.as_str()).collect();
    for name in ["child", "demo", "demo@one"] {
        assert!(volumes.contains(&name), "{name}: {damage:?}");
    }
    // A check of one of them says nothing of the others.
    let one = check_moving(&objects, &objects, 0, &["demo@one"], false).expect("ended");
    assert!(one.damage.iter().all(|it| it.volume == "demo@one"));
    assert_eq!(one.counts.volumes, 0);
    let demo = check_moving(&objects, &objects, 0, &["demo"], false).expect("ended");
    assert_eq!((demo.counts.volumes, demo.counts.snapshots), (1, 1));
}

#[test]
fn a_check_beside_a_host_that_folds_and_collects_finds_no_damage() {
    let (mut world, volume) = furnished();
    let before = world.env.objects.clone();
    write_over(&mut world, &volume, 60);
    gc(&mut world);
    gc(&mut world);
    let after = world.env.objects.clone();
    assert!(
        before
            .keys()
            .any(|key| is_data(&key) && !after.contains_key(key))
    );
    for moves_at in 0..200 {
        let found = check_moving(&before, &after, moves_at, &[], true).expect("ended");
        assert_eq!(found.damage, [], "the store moved at request {moves_at}");
    }
}

#[test]
fn names_that_are_not_there_and_stores_that_say_nothing_are_errors_in_words() {
    let (world, _) = furnished();
    let objects = &world.env.objects;
    let none = check_moving(objects, objects, 0, &["dmo"], false);
    assert_eq!(none, Err(CheckError::NoSuchVolume("dmo".into())));
    let bad = check_moving(objects, objects, 0, &["a/b"], false);
    assert!(matches!(bad, Err(CheckError::BadName(..))), "{bad:?}");
    let mut damaged = objects.clone();
    damaged.get_mut(&root_key("child")).expect("a root").0[30] ^= 1;
    let found = check_all(&damaged, false);
    assert_eq!(found.damage.len(), 1, "{found:?}");
    assert_eq!(found.damage[0].object, root_key("child"));
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen() {
    canary::each_is_seen(&[
        (
            "the_check_believes_the_index",
            each_object_that_is_gone_or_cut_short_is_named_with_what_it_costs,
        ),
        (
            "the_check_believes_the_first_root",
            a_check_beside_a_host_that_folds_and_collects_finds_no_damage,
        ),
    ]);
}
