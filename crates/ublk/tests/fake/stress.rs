//! Stress runs of devices over the fake driver, by seed: the queue's promises in every data mode
//! and against every kernel that the fake simulates.

use ublk::sys;
use ublk_fake::stress::{self, IO_BYTES, Report, StressConfig};
use ublk_fake::{HandlerFaults, Profile, RingFaults};

const AUTO: u64 = sys::F_ZERO_COPY | sys::F_AUTO_BUFFER;
const MODES: [(&str, u64); 6] = [
    ("copy", 0),
    ("get-data", sys::F_NEED_GET_DATA),
    ("user-copy", sys::F_USER_COPY),
    ("zero-copy", AUTO | sys::F_USER_COPY),
    ("zero-copy without user copy", AUTO),
    ("zero-copy by hand", sys::F_ZERO_COPY),
];

fn seeds() -> u64 {
    let asked = std::env::var("UBLK_STRESS_SEEDS").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(8)
}

/// Runs all modes and kernels, with these changes to a configuration without faults; the sum of
/// their reports.
fn stress_runs(change: impl Fn(&mut StressConfig)) -> Report {
    let mut sum = Report::default();
    for profile in Profile::ALL {
        for (mode, flags) in MODES {
            if !profile.has(flags) {
                continue;
            }
            for number in 0..seeds() {
                let mut random = fastrand::Rng::with_seed(number);
                let mut config = StressConfig {
                    profile,
                    flags: flags | sys::F_RECOVERY | sys::F_RECOVERY_REISSUE,
                    queues: 1 + random.u16(..3),
                    one_ring: random.bool(),
                    depth: 1 + random.u16(..8),
                    shares: 1,
                    slots: 1 + random.u16(..12),
                    pool_bytes: 256 << 10,
                    own_pool: None,
                    handler_faults: HandlerFaults {
                        delayed: 60,
                        ..HandlerFaults::default()
                    },
                    ring_faults: RingFaults {
                        delayed: 60,
                        ..RingFaults::default()
                    },
                    kills: 0,
                    handovers: 0,
                    exits: 0,
                    steps: 300,
                };
                change(&mut config);
                config.slots += 2 * config.queues * config.shares;
                let result = stress::run(config, &mut |bound| random.u64(..bound));
                let report = result.unwrap_or_else(|error| {
                    panic!(
                        "{}, {mode}, seed {number}: {error}\n{config:?}",
                        profile.name
                    )
                });
                sum.completed += report.completed;
                sum.failed += report.failed;
                sum.kills += report.kills;
                sum.handovers += report.handovers;
                sum.exits += report.exits;
                sum.fallbacks += report.fallbacks;
                sum.pool_exhausted += report.pool_exhausted;
            }
        }
    }
    assert!(sum.completed > seeds() * 500, "only {sum:?}");
    sum
}

#[test]
fn no_request_is_lost_and_every_byte_is_right() {
    let sum = stress_runs(|_| {});
    assert_eq!((sum.failed, sum.kills), (0, 0));
    assert!(sum.fallbacks > 0, "no request found its slot taken");
}

#[test]
fn tags_beyond_the_slots_of_a_ring_go_another_way_and_every_byte_is_right() {
    let sum = stress_runs(|config| {
        config.flags |= sys::F_USER_COPY;
        (config.queues, config.depth, config.slots) = (3, 40, 0);
        config.one_ring = true;
        config.handler_faults.delayed = 200;
    });
    assert_eq!(sum.failed, 0);
    assert!(sum.fallbacks > sum.completed / 100, "{sum:?}");
}

/// Each tag of a queue may have a thread of its own there.
fn spread(config: &mut StressConfig) {
    if config.profile.has(sys::F_PER_IO_TASK) {
        config.depth += 3;
        config.shares = 1 + config.depth % 4;
    }
}

#[test]
fn a_queue_that_several_rings_share_keeps_every_promise() {
    let sum = stress_runs(spread);
    assert_eq!(sum.failed, 0);
    assert!(sum.fallbacks > 0, "no request found its slot taken");
    let sum = stress_runs(|config| {
        spread(config);
        config.kills = 6;
        if config.profile.has(sys::F_QUIESCE) {
            config.flags |= sys::F_QUIESCE;
            config.handovers = 6;
        }
    });
    assert_eq!(sum.failed, 0);
    assert!(sum.kills > 0 && sum.handovers > 0, "{sum:?}");
}

#[test]
fn what_fails_in_the_server_fails_that_request_alone() {
    let sum = stress_runs(|config| {
        config.handler_faults.errors = 20;
        config.handler_faults.drops = 10;
        config.handler_faults.panics = 4;
        config.ring_faults.errors = 20;
    });
    assert!(sum.failed > 0, "nothing failed");
}

#[test]
fn a_part_of_a_request_is_continued_by_the_driver() {
    let sum = stress_runs(|config| config.handler_faults.short = 80);
    assert_eq!(sum.failed, 0);
}

#[test]
fn a_server_that_dies_anywhere_loses_nothing_with_reissue() {
    let sum = stress_runs(|config| {
        config.kills = 6;
        config.handler_faults.short = 30;
    });
    assert!(sum.kills > 0 && sum.failed == 0, "{sum:?}");
}

#[test]
fn a_server_that_exits_under_load_loses_nothing_with_reissue() {
    for quiesce in [0, sys::F_QUIESCE] {
        let sum = stress_runs(|config| {
            config.exits = 12;
            config.kills = 2;
            config.handler_faults.short = 30;
            if config.profile.has(quiesce) {
                config.flags |= quiesce;
            }
        });
        assert!(sum.exits > 0 && sum.failed == 0, "{sum:?}");
    }
}

#[test]
fn a_server_that_dies_without_reissue_fails_only_what_it_had() {
    let sum = stress_runs(|config| {
        config.flags &= !sys::F_RECOVERY_REISSUE;
        config.kills = 6;
    });
    assert!(sum.failed > 0, "nobody died with a request");
}

#[test]
fn a_planned_change_of_servers_fails_nothing_even_without_reissue() {
    let sum = stress_runs(|config| {
        config.flags &= !sys::F_RECOVERY_REISSUE;
        if config.profile.has(sys::F_QUIESCE) {
            config.flags |= sys::F_QUIESCE;
            config.handovers = 6;
        }
    });
    assert!(sum.handovers > 0 && sum.failed == 0, "{sum:?}");
}

#[test]
fn descriptors_are_read_at_the_distance_that_the_device_says() {
    let sum = stress_runs(|config| {
        config.profile = Profile::V7_3;
        config.flags |= sys::F_DESCRIPTOR_BYTES;
        config.depth += 2;
    });
    assert_eq!(sum.failed, 0);
}

#[test]
fn a_dry_pool_delays_requests_and_loses_none() {
    let sum = stress_runs(|config| {
        config.pool_bytes = 1;
        config.ring_faults.pool_empty = 60;
        config.handler_faults.delayed = 0;
    });
    assert_eq!(sum.failed, 0);
}

/// One pool for all queues, on rings of their own or not, with room for one request.
#[test]
fn writes_wait_for_a_dry_pool_of_the_servers_own_and_go_on_when_it_wakes_them() {
    for (kills, exits) in [(0, 0), (6, 0), (0, 12)] {
        let sum = stress_runs(|config| {
            config.own_pool = Some(IO_BYTES as usize);
            // Answers come at once: nothing but the pool wakes who waits for it.
            config.handler_faults.delayed = 0;
            (config.kills, config.exits) = (kills, exits);
        });
        assert_eq!(sum.failed, 0);
        assert!(sum.pool_exhausted > 100, "{sum:?}");
    }
}

#[test]
#[should_panic(expected = "holds")]
fn a_server_that_lies_is_caught() {
    stress_runs(|config| config.handler_faults.lost_writes = 20);
}
