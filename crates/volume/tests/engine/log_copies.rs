//! A fork reads what its parent has in the log of the same host there, and asks the store for nothing of it (S6): what its
//! parent wrote since is not among it, and nothing is lost where the log fails or is used again (S8).
//!
//! With the feature `planted` each of these tests also runs with the bug that it is there for.

use blkmq::io::{Backend, Direction, FileId, MoveError, Op, Park, Place, Plan, Step};
use volume::{ReadPlan, Volume};

use crate::support::points::{fork, make_fork};
use crate::support::{World, random_bytes, waker, with_volume};

const BLOCKS: u64 = 12;
const BLOCK: usize = 4096;
/// Sectors between two blocks: every other one is a hole, so that chunks end.
const APART: u64 = 16;

/// A volume whose blocks are N + 1, in the store and in the log; at the end is noise, for it does not compress.
fn stored() -> (World, Volume) {
    let (mut world, parent) = with_volume();
    for block in 0..BLOCKS {
        world.write(&parent, block * APART, block as u8 + 1, BLOCK);
    }
    world.write_noise(&parent, BLOCKS * APART, 7, 64 << 10);
    world.sync(&parent);
    (world, parent)
}

/// Range requests to packs.
fn pack_reads(world: &World) -> usize {
    let requests = world.env.requests.iter();
    let reads = requests.filter(|((kind, place), _)| *kind == "range" && place.contains("pack"));
    reads.map(|(_, count)| count).sum()
}

fn assert_is_as_forked(world: &mut World, child: &Volume) {
    for block in 0..BLOCKS {
        let found = world.read_fill(child, block * APART, BLOCK);
        assert_eq!(found, block as u8 + 1, "block {block}");
    }
    let noise = world.read(child, BLOCKS * APART, 64 << 10);
    assert!(noise == random_bytes(7, 64 << 10), "noise");
}

#[test]
fn a_fork_reads_what_its_parent_has_in_the_log_without_a_request() {
    let (mut world, parent) = stored();
    let child = fork(&mut world, "demo", "child").expect("forked");
    world.env.requests.clear();
    assert_is_as_forked(&mut world, &child);
    assert_eq!(pack_reads(&world), 0, "{:?}", world.env.requests);
    // So does a fork of the fork, of what was written before that.
    world.write(&child, 0, 99, BLOCK);
    world.sync(&child);
    let grandchild = fork(&mut world, "child", "grandchild").expect("forked");
    world.env.requests.clear();
    assert_eq!(world.read_fill(&grandchild, 0, BLOCK), 99);
    assert_eq!(world.read_fill(&grandchild, APART, BLOCK), 2);
    assert_eq!(pack_reads(&world), 0, "{:?}", world.env.requests);
    assert_is_as_forked(&mut world, &parent);
}

#[test]
fn what_a_parent_wrote_since_is_not_read_in_its_fork() {
    let (mut world, parent) = stored();
    make_fork(&mut world, "demo", "child").expect("forked");
    for block in (0..BLOCKS).step_by(2) {
        world.write(&parent, block * APART, 200, BLOCK);
    }
    // Half of the chunk of the noise is another one's now, and a quarter of it is not in the store yet.
    world.write(&parent, BLOCKS * APART, 201, 32 << 10);
    world.sync(&parent);
    world.write(&parent, BLOCKS * APART + 64, 202, 16 << 10);
    let child = world.open("child");
    // Parts of that chunk by themselves: what is newer in the log, and what is a hole by now, is not read.
    let noise = random_bytes(7, 64 << 10);
    let newer = world.read(&child, BLOCKS * APART + 64, 16 << 10);
    assert!(newer == noise[32 << 10..][..16 << 10], "what is newer");
    let op = Op::Discard {
        sector: BLOCKS * APART + 96,
        sectors: 8,
        fua: false,
    };
    world.request(&parent, op, &mut []).expect("discarded");
    let rest = world.read(&child, BLOCKS * APART + 64, 32 << 10);
    assert!(rest == noise[32 << 10..], "the rest of the noise");
    assert_is_as_forked(&mut world, &child);
}

#[test]
fn parts_of_a_chunk_are_read_beside_what_the_fork_wrote_between_them() {
    let (mut world, _parent) = stored();
    let child = fork(&mut world, "demo", "child").expect("forked");
    world.write(&child, BLOCKS * APART + 24, 200, BLOCK);
    world.write(&child, BLOCKS * APART + 56, 201, BLOCK);
    let mut expected = random_bytes(7, 64 << 10);
    expected[24 * 512..][..BLOCK].fill(200);
    expected[56 * 512..][..BLOCK].fill(201);
    world.env.requests.clear();
    let found = world.read(&child, BLOCKS * APART, 64 << 10);
    assert!(found == expected, "noise with two blocks");
    assert_eq!(pack_reads(&world), 0, "{:?}", world.env.requests);
}

/// The plan of a read of block 3.
fn plan_of_block_3(volume: &Volume) -> ReadPlan {
    let op = Op::Read {
        sector: 3 * APART,
        sectors: 8,
    };
    match volume.begin(&op, &waker()) {
        Step::Read(plan) => plan,
        step => panic!("{step:?}"),
    }
}

fn is_in_log(plan: &ReadPlan) -> bool {
    let in_log = |place| {
        matches!(
            place,
            Place::At {
                file: FileId::LOG,
                ..
            }
        )
    };
    plan.pieces().iter().any(|piece| in_log(piece.place))
}

/// A read of block 3 from the log fails, and is tried again if it parks. Whether it did.
fn fail_a_read_of_block_3(world: &mut World, volume: &Volume) -> bool {
    let plan = plan_of_block_3(volume);
    assert!(is_in_log(&plan), "{plan:?}");
    let failed = MoveError::of_piece(Direction::Read, &plan.pieces()[0], 5);
    match volume.read(plan, Err(failed), &waker()) {
        Step::Park(Park::Fetch) => {}
        Step::Done(Err(_)) => return false,
        step => panic!("{step:?}"),
    }
    assert_eq!(world.read_fill(volume, 3 * APART, BLOCK), 4);
    assert!(!is_in_log(&plan_of_block_3(volume)));
    true
}

#[test]
fn a_read_of_a_fork_that_fails_in_the_log_is_answered_from_the_store() {
    let (mut world, parent) = stored();
    let child = fork(&mut world, "demo", "child").expect("forked");
    world.env.requests.clear();
    assert!(fail_a_read_of_block_3(&mut world, &child));
    assert_eq!(pack_reads(&world), 1, "{:?}", world.env.requests);
    // Nor is its parent sent there again.
    assert!(!is_in_log(&plan_of_block_3(&parent)));
    assert_is_as_forked(&mut world, &child);
}

#[test]
fn a_read_that_fails_in_the_log_is_answered_from_the_store_if_that_has_the_bytes() {
    let (mut world, volume) = stored();
    world.env.requests.clear();
    assert!(fail_a_read_of_block_3(&mut world, &volume));
    assert_eq!(pack_reads(&world), 1, "{:?}", world.env.requests);
    assert_is_as_forked(&mut world, &volume);
    // What the log alone has is in no other place.
    world.write(&volume, 3 * APART, 4, BLOCK);
    assert!(!fail_a_read_of_block_3(&mut world, &volume));
    assert!(is_in_log(&plan_of_block_3(&volume)));
}

#[test]
fn the_log_of_a_parent_is_not_used_again_below_a_read_of_its_fork() {
    let (mut world, parent) = stored();
    let child = fork(&mut world, "demo", "child").expect("forked");
    let plan = plan_of_block_3(&child);
    for round in 0..24 {
        for block in 0..64 {
            world.write(&parent, 4096 + block * 128, 100 + round, 64 << 10);
        }
        world.sync(&parent);
    }
    let [piece] = plan.pieces() else {
        panic!("{plan:?}");
    };
    let Place::At {
        file: FileId::LOG,
        offset,
    } = piece.place
    else {
        panic!("{plan:?}");
    };
    let there = &world.env.files[&FileId::LOG][offset as usize..][..BLOCK];
    assert!(there.iter().all(|byte| *byte == 4), "{}", there[0]);
    drop(plan);
    assert_is_as_forked(&mut world, &child);
}

#[test]
#[cfg(feature = "planted")]
fn each_planted_bug_of_reading_log_copies_is_seen() {
    let cases: [(&str, fn()); 5] = [
        (
            "log_copy_of_what_is_newer",
            what_a_parent_wrote_since_is_not_read_in_its_fork,
        ),
        (
            "failed_clean_read_fails_the_request",
            a_read_that_fails_in_the_log_is_answered_from_the_store_if_that_has_the_bytes,
        ),
        (
            "log_copy_of_another_chunk",
            what_a_parent_wrote_since_is_not_read_in_its_fork,
        ),
        (
            "failed_clean_read_fails_the_request",
            a_read_of_a_fork_that_fails_in_the_log_is_answered_from_the_store,
        ),
        (
            "log_copy_is_not_pinned",
            the_log_of_a_parent_is_not_used_again_below_a_read_of_its_fork,
        ),
    ];
    for (bug, test) in cases {
        let seen = std::panic::catch_unwind(|| canary::with(bug, test)).is_err();
        assert!(seen, "{bug} is not seen");
    }
}
