//! The recovery point: what completed at `t` is in the store by `t` plus `--rpo`, while the store keeps
//! up; where it does not, the watermarks say by how much.

use volume::{Options, Volume};

use crate::support::{World, options};

const MIB: u64 = 1 << 20;
const RPO_MS: u64 = 30_000;

/// A store that takes a second for each request.
fn slow_store() -> (World, Volume) {
    let options = Options {
        // A slice holds all that is written.
        log_bytes: 16 * MIB,
        rpo_ns: RPO_MS * 1_000_000,
        ..options()
    };
    let mut world = World::try_start(crate::support::Environment::default(), options)
        .unwrap_or_else(|failed| panic!("{}", failed.0));
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    world.env.store_ms = 1000;
    (world, volume)
}

#[test]
fn what_completed_is_in_the_store_by_the_recovery_point_while_uploads_keep_up() {
    let (mut world, volume) = slow_store();
    let steps_per_rpo = RPO_MS / 100;
    // Ten uploads, two of which fold.
    for step in 0..3000_u64 {
        world.write(&volume, step % 32 * 8, step as u8, 4096);
        world.pass(100);
        // Each step is one commit, and took a tenth of a second.
        let due = (step + 1).saturating_sub(steps_per_rpo);
        let marks = volume.watermarks();
        assert!(
            marks.stored.lsn.0 >= due,
            "{} s: stored up to {} of {due}",
            step / 10,
            marks.stored.lsn.0
        );
        assert_eq!(marks.overdue_ms, 0);
    }
    assert!(
        world.env.store_requests["update"] < 30,
        "and not more often than it must: {:?}",
        world.env.store_requests
    );
}

#[test]
fn the_watermarks_say_by_how_much_the_recovery_point_is_missed() {
    let (mut world, volume) = slow_store();
    world.write(&volume, 0, 1, 4096);
    world.env.outage = true;
    world.pass(RPO_MS / 2);
    world.write(&volume, 8, 1, 4096);
    world.pass(RPO_MS / 2);
    assert!(volume.watermarks().overdue_ms < 200);
    world.pass(10_000);
    let overdue_ms = volume.watermarks().overdue_ms;
    assert!((9_800..10_200).contains(&overdue_ms), "{overdue_ms}");
    world.env.outage = false;
    world.pass(40_000);
    assert_eq!(volume.watermarks().overdue_ms, 0);
}

#[test]
fn a_write_over_the_end_of_a_segment_is_no_older_than_it_is() {
    let (mut world, volume) = slow_store();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    world.pass(20_000);
    // Longer than a segment has room for: it has several numbers.
    world.write(&volume, 0, 2, 128 << 10);
    let age_ms = volume.watermarks().stored.age_ms;
    assert!(age_ms < 200, "{age_ms}");
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        (
            "writes_begin_with_their_last_lot",
            a_write_over_the_end_of_a_segment_is_no_older_than_it_is,
        ),
        (
            "upload_begins_at_the_recovery_point",
            what_completed_is_in_the_store_by_the_recovery_point_while_uploads_keep_up,
        ),
        (
            "exposure_is_of_the_newest",
            the_watermarks_say_by_how_much_the_recovery_point_is_missed,
        ),
    ]);
}
