//! Damage to the journal of the log: what was flushed is refused if it is gone, never dropped in
//! silence, wherever something is left that proves it.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkmq::io::FileId;
use volume::{OpenError, Volume};

use crate::support::{Environment, World, options};

const GIB: u64 = 1 << 30;
/// The journal in the log of `crate::support::options`: behind two superblocks, up to the first segment.
const JOURNAL: std::ops::Range<usize> = 8192..827_392;

fn flushed(blocks: u64) -> (World, Volume) {
    let mut world = World::new();
    world.create("demo", GIB);
    let volume = world.open("demo");
    for block in 0..blocks {
        world.write(&volume, block * 8, block as u8 + 1, 4096);
        world.flush(&volume);
    }
    (world, volume)
}

/// Starts on what was left with each block of the journal damaged in turn. Counts the starts that were
/// refused, and those that found fewer blocks than there were.
fn with_each_block_damaged(env: &Environment, blocks: u64) -> (usize, usize) {
    let (mut refused, mut short) = (0, 0);
    for at in JOURNAL.step_by(4096) {
        let mut damaged = env.copy();
        let log = damaged.files.get_mut(&FileId::LOG).expect("the log");
        if log[at..at + 4096].iter().all(|byte| *byte == 0) {
            continue;
        }
        log[at + 50] ^= 1;
        match World::try_start(damaged, options()) {
            Err(error) => {
                assert!(matches!(&error.0, OpenError::Corrupt(_)), "{}", error.0);
                assert!(error.0.to_string().contains("--take-over"), "{}", error.0);
                refused += 1;
            }
            Ok(mut world) => {
                let volume = world.open("demo");
                let mut all = 0..blocks;
                let found = |block| world.read_fill(&volume, block * 8, 4096) == block as u8 + 1;
                short += usize::from(!all.all(found));
            }
        }
    }
    (refused, short)
}

#[test]
fn a_frame_that_stood_last_for_two_seconds_cannot_be_lost_in_silence() {
    let (mut world, _volume) = flushed(5);
    world.pass(2_500);
    let mut env = world.kill();
    (env.boot, env.rings) = (2, Arc::default());
    let (refused, short) = with_each_block_damaged(&env, 5);
    assert!(
        refused >= 6 && short == 0,
        "{refused} refused, {short} short"
    );
    // What proves it is written once: a quiet log is left alone.
    let mut world = World::start(env);
    world.pass(2_500);
    let written = world.env.written.len();
    world.pass(60_000);
    assert_eq!(world.env.written.len(), written);
}

#[test]
fn the_checkpoint_of_a_start_cannot_be_lost_in_silence_either() {
    let (mut world, volume) = flushed(5);
    world.write(&volume, 5 * 8, 6, 4096);
    // Killed: the ring has the sixth, and from the next start on the checkpoint.
    let mut world = World::start(world.kill());
    world.pass(2_500);
    let mut env = world.kill();
    (env.boot, env.rings) = (2, Arc::default());
    let (refused, short) = with_each_block_damaged(&env, 6);
    assert!(
        refused > 0 && short == 0,
        "{refused} refused, {short} short"
    );
}

#[test]
fn what_a_ring_saw_become_durable_is_refused_if_the_journal_lacks_it() {
    // Killed at once, in the same boot: nothing stands behind the last frame.
    let (world, _volume) = flushed(5);
    let env = world.kill();
    let (refused, short) = with_each_block_damaged(&env, 5);
    assert!(
        refused >= 6 && short == 0,
        "{refused} refused, {short} short"
    );
    // The error names the volume.
    let last = (JOURNAL.step_by(4096)).rfind(|at| env.files[&FileId::LOG][*at] != 0);
    let mut damaged = env.copy();
    let log = damaged.files.get_mut(&FileId::LOG).expect("the log");
    log[last.expect("a frame") + 50] ^= 1;
    let Err(error) = World::try_start(damaged, options()) else {
        panic!("a flushed write is gone")
    };
    assert!(
        error.0.to_string().contains("volume demo up to LSN 4"),
        "{}",
        error.0
    );
}

#[test]
fn a_log_set_back_while_its_rings_stayed_is_refused() {
    let (mut world, volume) = flushed(3);
    let before: BTreeMap<FileId, Vec<u8>> = world.env.files.clone();
    world.write(&volume, 3 * 8, 4, 4096);
    world.flush(&volume);
    let mut env = world.kill();
    env.files = before;
    let Err(error) = World::try_start(env, options()) else {
        panic!("the log is older than its rings")
    };
    assert!(
        error.0.to_string().contains("a copy from before"),
        "{}",
        error.0
    );
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        (
            "no_witness",
            a_frame_that_stood_last_for_two_seconds_cannot_be_lost_in_silence,
        ),
        (
            "believe_short_journal",
            what_a_ring_saw_become_durable_is_refused_if_the_journal_lacks_it,
        ),
        (
            "believe_short_journal",
            a_log_set_back_while_its_rings_stayed_is_refused,
        ),
    ]);
}
