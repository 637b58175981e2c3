//! Several hosts on one store, one at a time or each on a copy of it, and what the store says of a volume.

use blkmq::error::ErrorKind;
use blkmq::io::Op;
use volume::object::root::Root;
use volume::object::root_key;
use volume::{OpenError, OpenMode, TailId, Volume};

use super::{Environment, World};

const MIB: u64 = 1 << 20;

/// The one store is now seen by `to`.
pub(crate) fn hand_over(from: &mut World, to: &mut World) {
    to.env.objects = std::mem::take(&mut from.env.objects);
    to.env.versions = to.env.versions.max(from.env.versions) + 1;
}

/// Another host, which sees the same store.
pub(crate) fn other_host(from: &mut World) -> World {
    let mut other = World::start(Environment {
        versions: from.env.versions + 5000,
        compact: from.env.compact.clone(),
        ..Environment::default()
    });
    hand_over(from, &mut other);
    other
}

/// Another host, which sees a copy of the same store.
pub(crate) fn elsewhere(world: &World) -> World {
    World::start(Environment {
        objects: world.env.objects.clone(),
        versions: world.env.versions + 5000,
        compact: world.env.compact.clone(),
        ..Environment::default()
    })
}

/// Another host, which sees a copy of the same store and took `demo` over.
pub(crate) fn taken_over(world: &World) -> (World, Volume) {
    let mut other = elsewhere(world);
    let volume = other.try_open("demo", true).expect("taken over");
    (other, volume)
}

pub(crate) fn close(world: &mut World, volume: &Volume) {
    let answer = world.host.close_volume(volume);
    world.wait(|_| answer.try_take()).expect("closed");
}

pub(crate) fn delete(world: &mut World, name: &str) {
    let answer = world.host.delete_volume(name);
    world.wait(|_| answer.try_take()).expect("deleted");
}

/// Writes the first block.
pub(crate) fn try_write(world: &mut World, volume: &Volume) -> Result<(), ErrorKind> {
    let op = Op::Write {
        sector: 0,
        sectors: 8,
        fua: false,
    };
    world.request(volume, op, &mut [9; 4096])
}

/// A volume's root.
pub(crate) fn root_of(env: &Environment, name: &str) -> Root {
    let (bytes, _) = &env.objects[&root_key(name)];
    Root::decode(bytes).expect("a root")
}

/// A host with two volumes; both have something in the store, and `other` is closed.
pub(crate) fn with_closed_volume() -> (World, Volume) {
    let mut world = World::new();
    for name in ["demo", "other"] {
        world.create(name, 64 * MIB);
        let volume = world.open(name);
        world.write(&volume, 0, 1, 4096);
        world.sync(&volume);
        let answer = world.host.close_volume(&volume);
        world.wait(|_| answer.try_take()).expect("closed");
    }
    let volume = world.open("demo");
    world.write(&volume, 0, 2, 4096);
    world.sync(&volume);
    (world, volume)
}

pub(crate) fn open_bound(world: &mut World, hold: TailId) -> Result<Volume, OpenError> {
    let mode = OpenMode {
        continues: Some(hold),
        ..OpenMode::default()
    };
    let answer = world.host.open_volume("demo", mode);
    world.wait(|_| answer.try_take())
}
