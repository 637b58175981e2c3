//! Points in time: snapshots of a volume, forks, and the folds, passes of the collector and second hosts that put them
//! to the test.

use volume::object::root_key;
use volume::{Answer, Durability, Findings, ListPlace, OpenError, SnapshotInfo, Volume};

use super::{Environment, World};

/// What an answer brings, which is no error.
pub(crate) fn done<T>(world: &mut World, answer: &Answer<Result<T, OpenError>>) -> T {
    world
        .wait(|_| answer.try_take())
        .unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn snapshot(world: &mut World, name: &str) -> Result<SnapshotInfo, OpenError> {
    let answer = world
        .host
        .create_snapshot(name, Vec::new(), Durability::Store);
    world.wait(|_| answer.try_take())
}

pub(crate) fn delete_snapshot(world: &mut World, name: &str) -> Result<(), OpenError> {
    let answer = world.host.delete_snapshot(name);
    world.wait(|_| answer.try_take())
}

/// A volume's snapshots, as they are listed.
pub(crate) fn snapshot_infos(world: &mut World, volume: &str) -> Vec<SnapshotInfo> {
    let answer = world.host.list_snapshots(volume, whole_list());
    let found = done(world, &answer);
    assert_eq!(found.next, None);
    found.items
}

/// Their names.
pub(crate) fn snapshot_names(world: &mut World, volume: &str) -> Vec<String> {
    let found = snapshot_infos(world, volume);
    found.into_iter().map(|info| info.name).collect()
}

/// The place of a list that these tests have whole in one part.
pub(crate) fn whole_list() -> ListPlace {
    ListPlace {
        after: None,
        limit: 1000,
    }
}

/// Whether the store has a root of this name.
pub(crate) fn has_root(env: &Environment, name: &str) -> bool {
    env.objects.contains_key(&root_key(name))
}

/// Makes a fork, and leaves it closed.
pub(crate) fn make_fork(world: &mut World, parent: &str, name: &str) -> Result<(), OpenError> {
    let answer = world.host.fork_volume(parent, name, Durability::Store);
    world.wait(|_| answer.try_take()).map(drop)
}

/// Makes a fork, and opens it.
pub(crate) fn fork(world: &mut World, parent: &str, name: &str) -> Result<Volume, OpenError> {
    make_fork(world, parent, name)?;
    Ok(world.open(name))
}

/// So many small uploads at one place that a fold is due, and time for it. The place reads as 105 after it.
pub(crate) fn fold(world: &mut World, volume: &Volume, sector: u64) {
    for round in 0..6 {
        world.write(volume, sector, 100 + round, 4096);
        world.sync(volume);
    }
    world.pass(1000);
}

/// Writes over the same few places until folds have taken what was there before out of the index.
pub(crate) fn write_over(world: &mut World, volume: &Volume, fill: u8) {
    for round in 0..8 {
        for place in 0..4 {
            world.write(volume, 8 * place, fill + round, 4096);
        }
        world.sync(volume);
    }
    world.pass(2_000);
}

/// A pass of the collector, and what it found.
pub(crate) fn gc(world: &mut World) -> Findings {
    let answer = world.host.collect_garbage(false);
    done(world, &answer)
}

/// Packs in the store.
pub(crate) fn packs(env: &Environment) -> usize {
    let keys = env.objects.keys();
    keys.filter(|key| key.starts_with("packs/")).count()
}

/// What each of the first blocks of a volume is filled with.
pub(crate) fn read_blocks(world: &mut World, volume: &Volume, blocks: usize) -> Vec<u8> {
    let data = world.read(volume, 0, blocks * 4096);
    let blocks = data.chunks(4096);
    blocks
        .map(|block| {
            assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
            block[0]
        })
        .collect()
}
