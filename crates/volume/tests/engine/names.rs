//! Names of packs and index objects: who wrote one, and how whoever reads it finds that out.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use std::collections::BTreeSet;

use blkmq::io::Op;
use volume::Volume;
use volume::hostlog::names::{INDEX_PREFIX, PACK_PREFIX, SessionName, object_of_key};
use volume::object::page::PAGE_SECTORS as PAGE;
use volume::object::root::Root;

use crate::support::hosts::taken_over;
use crate::support::points::fold;
use crate::support::{Environment, World};

const GIB: u64 = 1 << 30;

fn with_volume() -> (World, Volume) {
    let mut world = World::start(Environment::default());
    world.create("demo", GIB);
    let volume = world.open("demo");
    (world, volume)
}

fn restart(world: World) -> (World, Volume) {
    let mut world = World::start(world.kill());
    let volume = world.open("demo");
    (world, volume)
}

/// The sessions of all objects under a prefix.
fn sessions(world: &World, prefix: &str) -> BTreeSet<SessionName> {
    let objects = world.env.objects.keys();
    let keys = objects.filter(|key| key.starts_with(prefix));
    let session = |key: &String| {
        let named = object_of_key(key);
        named.unwrap_or_else(|| panic!("{key} names no session")).0
    };
    keys.map(session).collect()
}

#[test]
fn each_object_stands_under_the_host_and_the_start_that_wrote_it() {
    let (mut world, volume) = with_volume();
    fold(&mut world, &volume, 0);
    let first = sessions(&world, PACK_PREFIX);
    assert_eq!(first.len(), 1, "one start");
    assert_eq!(first, sessions(&world, INDEX_PREFIX));
    let (mut world, volume) = restart(world);
    world.write(&volume, 8, 9, 4096);
    world.sync(&volume);
    let both = sessions(&world, PACK_PREFIX);
    let new: Vec<_> = both.difference(&first).collect();
    let old: Vec<_> = first.iter().collect();
    assert_eq!(new.len(), 1, "another start");
    assert_eq!(new[0].host, old[0].host);
    assert!(new[0].session.number > old[0].session.number);
    let (mut other, theirs) = taken_over(&world);
    other.write(&theirs, 16, 9, 4096);
    other.sync(&theirs);
    let three = sessions(&other, PACK_PREFIX);
    let foreign: Vec<_> = three.difference(&both).collect();
    assert_eq!(foreign.len(), 1);
    assert_ne!(foreign[0].host, old[0].host);
}

#[test]
fn a_pack_is_found_whose_session_only_a_page_lists() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 3 * PAGE, 77, 4096);
    world.sync(&volume);
    let (mut world, volume) = restart(world);
    fold(&mut world, &volume, 0);
    let (mut world, volume) = restart(world);
    fold(&mut world, &volume, 3 * PAGE + 64);
    let (bytes, _) = &world.env.objects["volumes/demo/root"];
    let listed: BTreeSet<_> = Root::decode(bytes)
        .expect("a root")
        .sessions
        .iter()
        .collect();
    let all = sessions(&world, PACK_PREFIX);
    let first = all.iter().next().expect("three starts");
    assert!(
        !listed.contains(first),
        "the first start's packs are folded"
    );
    let (mut other, theirs) = taken_over(&world);
    assert_eq!(other.read_fill(&theirs, 3 * PAGE, 4096), 77);
}

#[test]
fn starts_on_a_poisoned_log_use_no_name_twice() {
    let (mut world, volume) = with_volume();
    for block in 0..4 {
        world.write(&volume, block * 8, block as u8 + 1, 4096);
    }
    world.flush(&volume);
    world.env.failing_syncs = 1;
    world.write(&volume, 64, 9, 4096);
    assert!(world.request(&volume, Op::Flush, &mut []).is_err());
    // Each of them dies before a root names what it has put into the store.
    let env = world.kill();
    let mut names = Vec::new();
    for start in 1..=2 {
        let env = Environment {
            versions: env.versions + start,
            ..env.copy()
        };
        let mut world = World::start(env);
        assert!(world.report.poisoned);
        let volume = world.open("demo");
        let answer = world.host.sync(&volume);
        drop(world.wait(|_| answer.try_take()));
        names.extend(sessions(&world, PACK_PREFIX));
    }
    assert_eq!(names.len(), 2, "each has put something");
    assert_ne!(names[0], names[1]);
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        (
            "sessions_of_pages_are_not_learned",
            a_pack_is_found_whose_session_only_a_page_lists,
        ),
        (
            "poisoned_logs_share_names",
            starts_on_a_poisoned_log_use_no_name_twice,
        ),
    ]);
}
