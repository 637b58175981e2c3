//! Volumes that are lost and rebuilt: what is in them before, and what must be in them after.

use blkmq::io::Op;
use volume::Volume;
use volume::rebuild::{RebuildReport, RebuildRequest};

use super::World;
use super::checks::check_all;
use super::hosts::elsewhere;
use super::points::write_over;
use super::rebuilds::try_rebuild;

const MIB: u64 = 1 << 20;

/// What is compared of each volume: where tests write, and its end.
pub(crate) const COMPARED: [(u64, u64); 2] = [(0, 4 * MIB), (60 * MIB, 4 * MIB)];

/// What anybody reads who opens the volume, from the store alone.
pub(crate) fn state(world: &World, name: &str) -> Vec<u8> {
    let mut other = elsewhere(world);
    let volume = other.try_open(name, true).expect("it opens");
    let mut all = Vec::new();
    for (from, bytes) in COMPARED {
        for at in (from..from + bytes).step_by(128 << 10) {
            all.extend(other.read(&volume, at / 512, 128 << 10));
        }
    }
    all
}

pub(crate) fn assert_same(found: &[u8], expected: &[u8], when: &str) {
    let blocks = found.chunks(4096).zip(expected.chunks(4096));
    let differs = blocks.enumerate().filter(|(_, (one, other))| one != other);
    let differs: Vec<String> = differs
        .map(|(nth, (one, other))| format!("block {nth}: {} for {}", one[0], other[0]))
        .collect();
    assert!(differs.is_empty(), "{when}: {differs:?}");
}

pub(crate) fn discard(world: &mut World, volume: &Volume, sector: u64, sectors: u64) {
    let op = Op::Discard {
        sector,
        sectors,
        fua: false,
    };
    world.request(volume, op, &mut []).expect("discarded");
}

/// A volume with folded pages, deltas over them, zeroes, content at its end and in two packs of one slice.
pub(crate) fn furnish(world: &mut World, volume: &Volume) {
    world.write(volume, 64, 7, 16384);
    world.write(volume, 60 * MIB / 512, 8, 65536);
    write_over(world, volume, 1);
    world.write_noise(volume, 1024, 3, 700 << 10);
    world.sync(volume);
    discard(world, volume, 72, 8);
    discard(world, volume, 1024, 256);
    world.sync(volume);
    world.write(volume, 1040, 9, 4096);
    world.sync(volume);
}

pub(crate) fn rebuilt(world: &mut World, request: &RebuildRequest) -> RebuildReport {
    let report = try_rebuild(world, request).unwrap_or_else(|error| panic!("{error}"));
    let found = check_all(&world.env.objects, true);
    assert_eq!(found.damage, [], "a rebuilt store is whole");
    report
}

/// Folds all that was written at the volume's beginning, by writes behind it.
pub(crate) fn fold_elsewhere(world: &mut World, volume: &Volume) {
    for round in 0..6 {
        world.write(volume, 4096, 60 + round, 4096);
        world.sync(volume);
    }
    world.pass(2000);
}
