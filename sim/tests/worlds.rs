//! The simulator's own contract: worlds repeat exactly, faults do take effect, and small worlds
//! hold what the engine promises. Long runs are `cargo xtask sim`; these take seconds.

use std::time::Duration;

use sim::batch::{self, Batch};
use sim::exhaustive;
use sim::faults::Fault;
use sim::profile::{Fleet, PointRates, Profile};
use sim::world::{Watch, World};

const SEEDS: u64 = 12;

#[test]
fn the_same_seed_gives_the_same_digest() {
    for seed in 1..=3 {
        let first = batch::run_seed(seed, Watch::default());
        // Watching a world must not change it.
        let watched = batch::run_seed(
            seed,
            Watch {
                keep: 10,
                ..Watch::default()
            },
        );
        assert_eq!(first.digest, watched.digest, "seed {seed}");
        assert_eq!(first.events, watched.events, "seed {seed}");
    }
}

#[test]
fn different_seeds_give_different_worlds() {
    let digest = |seed| batch::run_seed(seed, Watch::default()).digest;
    assert_ne!(digest(1), digest(2));
}

#[test]
fn drawn_worlds_keep_every_promise() {
    let time = Duration::from_secs(60);
    let report = batch::run(
        Batch {
            first: 1,
            time,
            most: SEEDS,
            threads: 2,
            clients_only: false,
        },
        || {},
    );
    if let Some(outcome) = report.failures.first() {
        let violation = outcome.violation.as_ref().map(ToString::to_string);
        panic!("seed {}: {}", outcome.seed, violation.unwrap_or_default());
    }
    assert!(report.answered > 0 && report.settled > 0);
}

#[test]
fn a_world_of_process_crashes_meets_no_other_kind() {
    let mut profile = Profile::draw(5);
    profile.crash_every = 300;
    profile.crash_weights = [1, 0, 0];
    let outcome = World::with(5, profile, Watch::default()).run();
    assert_eq!(outcome.violation, None);
    assert!(outcome.faults.of(Fault::ProcessCrash) > 0);
    assert_eq!(outcome.faults.of(Fault::HostCrash), 0);
    // The end of every world: everything is opened once from the store alone.
    assert_eq!(outcome.faults.of(Fault::HostLoss), 1);
}

#[test]
fn single_operations_survive_a_crash_after_every_event() {
    let report = exhaustive::crashes(1, Duration::from_secs(30), 2, || {});
    assert_eq!(report.failure, None);
    assert!(report.worlds > 50, "{report:?}");
}

#[test]
fn a_request_issued_again_takes_effect_again_and_nothing_else_does() {
    let (mut reissued, mut over) = (0, 0);
    for seed in 1..=24 {
        let mut profile = Profile::draw(seed);
        (profile.hosts, profile.reissue) = (1, true);
        (profile.crash_every, profile.crash_weights) = (300, [1, 0, 0]);
        (profile.depth, profile.disk_ns) = (16, 100_000);
        profile.actions = profile.actions.min(400);
        let outcome = World::with(seed, profile, Watch::default()).run();
        assert_eq!(outcome.violation, None, "seed {seed}");
        reissued += outcome.faults.of(Fault::Reissued);
        over += outcome.faults.of(Fault::ReissuedOverCompleted);
    }
    assert!(reissued > 0, "nothing was in flight at any crash");
    assert!(over > 0, "none came over a completed one");
}

#[test]
fn hosts_that_share_a_store_keep_one_line_of_commits() {
    let mut taken = 0;
    for seed in 1..=6 {
        let mut profile = Profile::draw(seed);
        // An older copy of the store may say that the other host has the volume: that is no world of these.
        (profile.hosts, profile.set_back) = (2, false);
        profile.actions = profile.actions.min(300);
        // Which of a log and its clone has the snapshots that only a log has, is not judged.
        profile.points = PointRates::default();
        profile.fleet = Fleet {
            operate_ns: 20_000_000,
            pause: 1000,
            pause_ns: 100_000_000,
            clone: 200,
            take_over: 8000,
            close: 3000,
            recreate: 5000,
            rename: 0,
        };
        let outcome = World::with(seed, profile, Watch::default()).run();
        assert_eq!(outcome.violation, None, "seed {seed}");
        taken += outcome.faults.of(Fault::TakeOver);
    }
    assert!(taken > 0);
}

#[test]
fn snapshots_and_forks_are_what_their_volumes_were_over_crashes_and_failures_of_the_store() {
    let (mut judged, mut forks) = (0, 0);
    for seed in 1..=12 {
        let mut profile = Profile::draw(seed);
        (profile.set_back, profile.fleet.clone) = (false, 0);
        profile.points = PointRates {
            act: 1000,
            forks: 2,
        };
        profile.actions = profile.actions.min(300);
        let outcome = World::with(seed, profile, Watch::default()).run();
        assert_eq!(outcome.violation, None, "seed {seed}");
        judged += outcome.faults.of(Fault::SnapshotRead);
        forks += outcome.faults.of(Fault::ForkOpened);
    }
    assert!(judged > 0, "no snapshot was read");
    assert!(forks > 0, "no fork was opened");
}
