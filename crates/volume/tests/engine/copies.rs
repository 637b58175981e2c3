//! A host's directory was copied, and the copy left nothing in the host's log by which it would be known:
//! its own log was poisoned, so what it had went to the roots alone.
//!
//! With the feature `planted` each of these tests also runs with the bug that it is there for.

use blkmq::io::Op;
use volume::{OpenError, OpenMode};

use crate::support::{Environment, World};

const MIB: u64 = 1 << 20;

/// The host wrote ten blocks after the copy was made, and was killed. The copy wrote five over the same LSNs,
/// which its poisoned log brought to the root, and was killed.
fn host_with_a_poisoned_copy() -> Environment {
    let mut world = World::new();
    for name in ["demo", "other"] {
        world.create(name, 64 * MIB);
    }
    let demo = world.open("demo");
    world.write(&demo, 0, 1, 4096);
    world.sync(&demo);
    let mut copy = world.env.copy();
    for block in 2..12 {
        world.write(&demo, block * 8, 10, 4096);
    }
    world.flush(&demo);
    let mut host = world.kill();
    copy.versions += 5000;
    copy.objects = std::mem::take(&mut host.objects);
    let mut copy = World::start(copy);
    let [demo, other] = ["demo", "other"].map(|name| copy.open(name));
    copy.env.outage = true;
    for block in 0..5 {
        copy.write(&demo, block * 8, 20, 4096);
    }
    copy.flush(&demo);
    copy.write(&other, 0, 20, 4096);
    copy.env.failing_syncs = 1;
    copy.request(&other, Op::Flush, &mut [])
        .expect_err("poisoned");
    copy.env.outage = false;
    copy.sync(&demo);
    host.objects = std::mem::take(&mut copy.env.objects);
    host.versions = copy.env.versions + 5000;
    host
}

#[test]
fn a_take_over_from_a_copy_that_was_cut_short_behind_its_claim_mixes_no_histories() {
    let mut world = World::start(host_with_a_poisoned_copy());
    let refused = world.try_open("demo", false).expect_err("its copy has it");
    assert!(matches!(refused, OpenError::Held { .. }), "{refused}");
    world.env.outage_after_update = true;
    let mode = OpenMode {
        take_over: true,
        ..OpenMode::default()
    };
    let opening = world.host.open_volume("demo", mode);
    let cut_short = world.wait(|_| opening.try_take());
    let cut_short = cut_short.expect_err("the store is gone behind the claim");
    assert!(matches!(cut_short, OpenError::Store(_)), "{cut_short}");
    world.env.outage = false;
    // It is declared already: the claim is this host's.
    let demo = world.open("demo");
    for block in 0..12 {
        let expected = if block < 5 { 20 } else { 0 };
        assert_eq!(world.read_fill(&demo, block * 8, 4096), expected, "{block}");
    }
    let kept = world.host.unserved_tails();
    assert!(kept.len() == 1 && kept[0].extents > 0, "{kept:?}");
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[(
        "cut_short_claim_keeps_the_hold",
        a_take_over_from_a_copy_that_was_cut_short_behind_its_claim_mixes_no_histories,
    )]);
}
