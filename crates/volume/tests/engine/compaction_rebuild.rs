//! A rebuild after a compaction: copies are taken for what they are, and hide nothing that is newer.

use crate::support::compactions::{BLOCK, BLOCKS, aged, copies, open_aged, verify};
use crate::support::hosts::{elsewhere, taken_over};
use crate::support::points::gc;
use crate::support::rebuilds::{remove_below, taking_over, try_rebuild};
use crate::support::{World, compacting, random_bytes};
use blkmq::io::Op;
use volume::{CompactOptions, Volume};

fn discard(world: &mut World, volume: &Volume, block: u64) {
    let op = Op::Discard {
        sector: block * 8,
        sectors: 8,
        fua: false,
    };
    world.request(volume, op, &mut []).expect("discarded");
}

fn rebuild(world: &World, also: Option<&str>) -> (World, Volume) {
    let mut lost = elsewhere(world);
    lost.env.compact = None;
    remove_below(&mut lost, "volumes/");
    also.map(|prefix| remove_below(&mut lost, prefix));
    let report = try_rebuild(&mut lost, &taking_over("demo"));
    report.unwrap_or_else(|error| panic!("{error}"));
    taken_over(&lost)
}

/// Every fifth block is written and stored when the volume is compacted, and not in pages yet; every seventh is written
/// and not stored. All packs are there, so a discard is as good as a write.
fn copies_hide_nothing_that_is_newer_from_a_rebuild() {
    let (env, mut blocks) = aged();
    let space_alone = CompactOptions {
        runs_max: usize::MAX,
        ..compacting()
    };
    let (mut world, volume) = open_aged(&env, Some(space_alone));
    let mut change = |world: &mut World, block: u64| match block % 2 {
        0 => {
            world.write_noise(&volume, block * 8, block + (1 << 40), BLOCK);
            blocks[block as usize] = block + (1 << 40);
        }
        _ => {
            discard(world, &volume, block);
            blocks[block as usize] = 0;
        }
    };
    (0..BLOCKS)
        .step_by(5)
        .for_each(|block| change(&mut world, block));
    world.sync(&volume);
    let newer = (0..BLOCKS).step_by(7).filter(|block| block % 5 > 0);
    newer.for_each(|block| change(&mut world, block));
    world.pass(110);
    assert!(!copies(&world.env).is_empty());
    world.sync(&volume);
    for also in [None, Some("indexes/"), Some("hosts/")] {
        let (mut other, found) = rebuild(&world, also);
        verify(&mut other, &found, &blocks);
    }
}

#[test]
fn what_is_newer_than_a_copy_wins_in_a_rebuild() {
    copies_hide_nothing_that_is_newer_from_a_rebuild();
}

#[test]
#[cfg_attr(not(feature = "planted"), ignore = "needs --features planted")]
fn copies_that_hide_what_is_newer_are_seen() {
    canary::each_is_seen(&[
        (
            "copies_are_of_the_newest_lsn",
            copies_hide_nothing_that_is_newer_from_a_rebuild,
        ),
        (
            "copies_have_what_deltas_hide",
            copies_hide_nothing_that_is_newer_from_a_rebuild,
        ),
    ]);
}

#[test]
fn a_rebuild_after_a_compaction_gives_the_same_bytes() {
    let (env, blocks) = aged();
    let (mut world, _volume) = open_aged(&env, Some(compacting()));
    world.pass(3000);
    assert!(!copies(&world.env).is_empty());
    for _ in 0..2 {
        gc(&mut world);
    }
    for also in [None, Some("indexes/"), Some("hosts/")] {
        let (mut other, found) = rebuild(&world, also);
        // Of discards whose packs are gone nothing is known.
        for (block, seed) in blocks.iter().enumerate().filter(|(_, seed)| **seed > 0) {
            let data = other.read(&found, block as u64 * 8, BLOCK as usize);
            assert!(
                data == random_bytes(*seed, BLOCK),
                "block {block}, {also:?}"
            );
        }
    }
}
