//! A host that was killed, its next start while the store is away, and volumes that this start serves before the
//! store answers.

use volume::{OpenError, OpenMode, Volume};

use super::{Environment, World};

const MIB: u64 = 1 << 20;

/// What is left of a host that was killed: block 0 of `demo` is stored, block 1 was never flushed.
pub(crate) fn killed() -> Environment {
    let mut world = World::new();
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    world.flush(&volume);
    world.pass(10);
    world.write(&volume, 8, 2, 4096);
    world.kill()
}

/// The host's next start, with the store away.
pub(crate) fn restarted(env: Environment) -> World {
    let mut world = World::start(env);
    world.env.outage = true;
    world
}

pub(crate) fn serve(world: &mut World) -> Result<Volume, OpenError> {
    serve_named(world, "demo")
}

pub(crate) fn serve_named(world: &mut World, name: &str) -> Result<Volume, OpenError> {
    let answer = world.host.open_unchecked(name, OpenMode::default());
    world.wait(|_| answer.try_take())
}

/// Another host, which sees the store of one that is not running.
pub(crate) fn other_host_on(env: &mut Environment) -> World {
    let mut other = World::start(Environment {
        versions: env.versions + 5000,
        ..Environment::default()
    });
    other.env.objects = std::mem::take(&mut env.objects);
    other
}
