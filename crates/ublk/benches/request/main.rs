//! What a request costs this server in instructions: from the driver's descriptor to the answer.
//!
//! `cargo xtask bench guard` is its door: it runs each case below callgrind, which counts only what is
//! below [`serve_turn`]. A ublk queue, the request engine and the volume are those of the server; port,
//! driver and disk are doubles that keep everything in memory, so that the count is the same on every run.
//! The kernel, the ring's own work and what the engine does in the background are not in it.

#![allow(clippy::unwrap_used)]

#[path = "../../tests/rig/mod.rs"]
mod rig;
#[path = "../../../volume/tests/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use blkmq::io::Backend;
use rig::{PlainDisk, Rig};
use support::{World, options};
use volume::{Options, Volume};

/// Blocks of the volume's working set: 64 MiB, so that its maps are as deep as a busy disk's.
const BLOCKS: u64 = 16_384;

/// What is counted: its name, and what serves so many turns of it.
type Case = (&'static str, fn(u64));

const CASES: [Case; 6] = [
    ("answered at once 4k", |turns| {
        plain(PlainDisk::AtOnce, rig::READ, turns);
    }),
    ("bare file read 4k", |turns| {
        plain(PlainDisk::OnePiece, rig::READ, turns);
    }),
    ("volume read 4k", |turns| volume(rig::READ, 8, turns)),
    ("volume write 4k", |turns| volume(rig::WRITE, 8, turns)),
    ("volume read 128k", |turns| volume(rig::READ, 256, turns)),
    ("volume write 128k", |turns| volume(rig::WRITE, 256, turns)),
];

fn plain(disk: PlainDisk, op: u8, turns: u64) {
    let mut rig = Rig::new(Arc::new(disk));
    for turn in 0..turns {
        rig.describe(op, 8, |tag| (turn + u64::from(tag)) * 8);
        serve_turn(&mut rig);
    }
}

/// A volume whose every block is in its log.
fn hot_volume() -> (World, Volume) {
    let options = Options {
        log_bytes: 512 << 20,
        segment_bytes: 16 << 20,
        ring_entries: 16_384,
        pack_bytes: 256 << 20,
        rpo_ns: u64::MAX / 4,
        ..options()
    };
    let started = World::try_start(Default::default(), options);
    let mut world = started.unwrap_or_else(|error| panic!("{}", error.0));
    world.create("demo", 1 << 30);
    let volume = world.open("demo");
    (world, volume)
}

/// Requests of so many sectors all over the working set. Time passes and frames are written between turns.
fn volume(op: u8, sectors: u32, turns: u64) {
    let (mut world, volume) = hot_volume();
    let mut rig = Rig::new(Arc::new(volume));
    let requests = BLOCKS * 8 / u64::from(sectors);
    let depth = u64::from(rig::DEPTH);
    // In order, and not counted: the log and the maps fill up.
    for turn in 0..requests / depth {
        rig.describe(rig::WRITE, sectors, |tag| {
            (turn * depth + u64::from(tag)) * u64::from(sectors)
        });
        rig.serve();
        world.pass(10);
    }
    for turn in 0..turns {
        // A scattered order that visits them all.
        rig.describe(op, sectors, |tag| {
            let number = turn * depth + u64::from(tag);
            number.wrapping_mul(0x9e37_79b1) % requests * u64::from(sectors)
        });
        serve_turn(&mut rig);
        if op == rig::WRITE {
            world.pass(10);
        }
    }
}

/// What callgrind counts.
#[inline(never)]
fn serve_turn<B: Backend + 'static>(rig: &mut Rig<B>) {
    rig.serve();
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let (Some(name), turns) = (words.next(), words.next()) else {
        CASES.iter().for_each(|(name, _)| println!("{name}"));
        return ExitCode::SUCCESS;
    };
    let turns = turns.map_or(Ok(100), |text| text.parse());
    let (Some((_, case)), Ok(turns)) = (CASES.iter().find(|(known, _)| *known == name), turns)
    else {
        eprintln!("usage: request CASE TURNS; without a case they are listed");
        return ExitCode::FAILURE;
    };
    case(turns);
    println!("{}", turns * u64::from(rig::DEPTH));
    ExitCode::SUCCESS
}
