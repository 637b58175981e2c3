//! The read cache's content passes from a host that is stopped to the one that continues it.
//!
//! Nothing checks a cached chunk when it is read, so a list of what a file holds has to be true to the byte, or not used.

use std::sync::Arc;

use volume::{InventoryError, Options, Volume};

use crate::support::{Environment, World, options};

const MIB: u64 = 1 << 20;
/// Sectors between two blocks with content: each has a chunk of its own.
const APART: u64 = 1 << 13;

/// Memory keeps nothing that nobody reads just now.
fn small() -> Options {
    Options {
        memory_bytes: 0,
        ..options()
    }
}

fn start(env: Environment) -> World {
    World::try_start(env, small()).unwrap_or_else(|error| panic!("{}", error.0))
}

/// A volume of which the store alone has so many blocks, each in a chunk of its own and 64 KiB long: N + 1.
fn stored(blocks: u64) -> (World, Volume) {
    let mut world = start(Environment::default());
    world.create("demo", 1024 * MIB);
    let volume = world.open("demo");
    for block in 0..blocks {
        world.write(&volume, block * APART, block as u8 + 1, 64 << 10);
        if block % 16 == 15 {
            world.sync(&volume);
        }
    }
    world.sync(&volume);
    let env = Environment {
        objects: world.kill().objects,
        versions: 100_000,
        ..Environment::default()
    };
    let mut world = start(env);
    let volume = world.try_open("demo", true).expect("taken over");
    (world, volume)
}

fn assert_holds(world: &mut World, volume: &Volume, blocks: std::ops::Range<u64>) {
    for block in blocks {
        let found = world.read_fill(volume, block * APART, 64 << 10);
        assert_eq!(found, block as u8 + 1, "block {block}");
    }
}

fn pack_reads(world: &World) -> usize {
    let requests = world.env.requests.iter();
    let reads = requests.filter(|((kind, _), _)| *kind == "range");
    let packs = reads.filter(|((_, place), _)| place.contains("pack"));
    packs.map(|(_, count)| count).sum()
}

/// The next process, which is told what the cache file holds.
fn hand_over(world: World, listed: &[u8]) -> (World, Volume, Result<usize, InventoryError>) {
    let mut env = world.hand_over();
    if let Some(continues) = &mut env.continues {
        continues.cache_follows = true;
    }
    let mut world = start(env);
    let restored = world.host.restore_cache(listed);
    let volume = world.open("demo");
    (world, volume, restored)
}

#[test]
fn a_host_that_continues_another_has_the_others_cache_and_asks_the_store_for_none_of_it() {
    let (mut world, volume) = stored(40);
    assert_holds(&mut world, &volume, 0..12);
    assert!(pack_reads(&world) > 0, "{:?}", world.env.requests);
    let listed = world.host.list_cache().expect("it is recovered");
    assert!(world.host.has_cache_as_listed());
    let (mut world, volume, restored) = hand_over(world, &listed);
    assert!(restored.expect("it fits") >= 12);
    world.env.requests.clear();
    assert_holds(&mut world, &volume, 0..12);
    assert_eq!(pack_reads(&world), 0, "{:?}", world.env.requests);
    // It goes on being used: others take the place of what is there.
    assert_holds(&mut world, &volume, 0..40);
    assert_holds(&mut world, &volume, 0..40);
}

#[test]
fn what_is_read_after_a_cache_was_listed_takes_nothing_of_its_place() {
    let (mut world, volume) = stored(40);
    assert_holds(&mut world, &volume, 0..10);
    let listed = world.host.list_cache().expect("it is recovered");
    // More than the file holds.
    assert_holds(&mut world, &volume, 10..40);
    assert!(world.host.has_cache_as_listed());
    let (mut world, volume, restored) = hand_over(world, &listed);
    assert!(restored.expect("it fits") > 0);
    assert_holds(&mut world, &volume, 0..40);
    assert_holds(&mut world, &volume, 0..40);
}

#[test]
fn a_host_that_goes_on_after_it_listed_its_cache_uses_it_again() {
    let (mut world, volume) = stored(12);
    drop(world.host.list_cache());
    assert_holds(&mut world, &volume, 0..12);
    world.host.release_cache();
    assert!(!world.host.has_cache_as_listed());
    assert_holds(&mut world, &volume, 0..12);
    world.env.requests.clear();
    assert_holds(&mut world, &volume, 0..12);
    assert_eq!(pack_reads(&world), 0, "{:?}", world.env.requests);
}

#[test]
fn a_cache_of_another_size_is_not_as_it_was_listed() {
    let (mut world, volume) = stored(12);
    assert_holds(&mut world, &volume, 0..12);
    drop(world.host.list_cache());
    assert!(world.host.set_cache_bytes(2 * MIB));
    assert!(!world.host.has_cache_as_listed());
}

#[test]
fn a_list_that_is_damaged_or_does_not_fit_is_refused_and_the_cache_begins_empty() {
    let (mut world, volume) = stored(12);
    assert_holds(&mut world, &volume, 0..12);
    let listed = Arc::new(world.host.list_cache().expect("it is recovered"));
    let changed = |at: usize, by: u8| {
        let mut bytes = listed.to_vec();
        bytes[at] ^= by;
        bytes
    };
    let mut twice = listed.to_vec();
    twice.copy_within(32..32 + 56, 32 + 56);
    let (head, chunk) = (0, 32);
    for (wrong, why) in [
        (Vec::new(), InventoryError::Foreign),
        (listed[..listed.len() - 1].to_vec(), InventoryError::Foreign),
        (changed(head, 1), InventoryError::Foreign),
        (changed(8, 2), InventoryError::Foreign),
        (changed(12, 1), InventoryError::AnotherFile),
        (changed(16, 1), InventoryError::AnotherFile),
        (changed(24, 1), InventoryError::Foreign),
        (changed(chunk, 7), InventoryError::Foreign),
        (changed(chunk + 1, 8), InventoryError::Foreign),
        (changed(chunk + 35, 0x80), InventoryError::Inconsistent),
        (changed(chunk + 39, 0x80), InventoryError::Inconsistent),
        (changed(chunk + 42, 1), InventoryError::Inconsistent),
        (twice, InventoryError::Inconsistent),
    ] {
        let mut env = world.env.copy();
        env.continues = Some(volume::Continuation {
            journal: None,
            cache_follows: true,
        });
        let mut next = start(env);
        assert_eq!(next.host.restore_cache(&wrong), Err(why));
        // Who asks too late is refused, too.
        let again = next.host.restore_cache(&listed);
        assert_eq!(again, Err(InventoryError::InUse));
        let volume = next.try_open("demo", true).expect("opened");
        assert_holds(&mut next, &volume, 0..12);
        next.env.requests.clear();
        assert_holds(&mut next, &volume, 0..12);
        assert_eq!(pack_reads(&next), 0, "{:?}", next.env.requests);
    }
}

#[test]
#[cfg(feature = "planted")]
fn a_cache_that_goes_on_changing_after_it_was_listed_is_seen() {
    let planted = || {
        canary::with(
            "listed_cache_goes_on_changing",
            what_is_read_after_a_cache_was_listed_takes_nothing_of_its_place,
        );
    };
    assert!(std::panic::catch_unwind(planted).is_err());
}
