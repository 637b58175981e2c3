//! Whole lives of devices over the fake driver, by seed: the queue's promises in every data mode
//! and against every kernel that the fake plays.

use ublk::sys;
use ublk_fake::story::{self, IO_BYTES, Plot, Report};
use ublk_fake::{Chaos, Habits, Profile};

struct Seed(u64);

impl Seed {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound.max(1)
    }
}

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
    let asked = std::env::var("UBLK_STORIES").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(8)
}

/// Stories of all modes and kernels with these changes to a well-behaved plot, and what all of
/// them together came to.
fn stories(change: impl Fn(&mut Plot)) -> Report {
    let mut sum = Report::default();
    for profile in Profile::ALL {
        for (mode, flags) in MODES {
            if !profile.has(flags) {
                continue;
            }
            for number in 0..seeds() {
                let mut seed = Seed(number * 2 + 1);
                let mut plot = Plot {
                    profile,
                    flags: flags | sys::F_RECOVERY | sys::F_RECOVERY_REISSUE,
                    queues: 1 + seed.below(3) as u16,
                    one_ring: seed.below(2) == 0,
                    depth: 1 + seed.below(8) as u16,
                    shares: 1,
                    slots: 1 + seed.below(12) as u16,
                    pool_bytes: 256 << 10,
                    own_pool: None,
                    habits: Habits {
                        late: 60,
                        ..Habits::default()
                    },
                    chaos: Chaos {
                        late: 60,
                        ..Chaos::default()
                    },
                    deaths: 0,
                    handovers: 0,
                    exits: 0,
                    steps: 300,
                };
                change(&mut plot);
                plot.slots += 2 * plot.queues * plot.shares;
                let told = story::live(plot, &mut |bound| seed.below(bound));
                let report = told.unwrap_or_else(|error| {
                    panic!("{}, {mode}, seed {number}: {error}\n{plot:?}", profile.name)
                });
                sum.ended += report.ended;
                sum.failed += report.failed;
                sum.deaths += report.deaths;
                sum.handovers += report.handovers;
                sum.exits += report.exits;
                sum.fallbacks += report.fallbacks;
                sum.dry += report.dry;
            }
        }
    }
    assert!(sum.ended > seeds() * 500, "only {sum:?}");
    sum
}

#[test]
fn no_request_is_lost_and_every_byte_is_right() {
    let sum = stories(|_| {});
    assert_eq!((sum.failed, sum.deaths), (0, 0));
    assert!(sum.fallbacks > 0, "no request found its slot taken");
}

#[test]
fn tags_beyond_the_slots_of_a_ring_go_another_way_and_every_byte_is_right() {
    let sum = stories(|plot| {
        plot.flags |= sys::F_USER_COPY;
        (plot.queues, plot.depth, plot.slots) = (3, 40, 0);
        plot.one_ring = true;
        plot.habits.late = 200;
    });
    assert_eq!(sum.failed, 0);
    assert!(sum.fallbacks > sum.ended / 100, "{sum:?}");
}

/// Each tag of a queue may have a thread of its own there.
fn spread(plot: &mut Plot) {
    if plot.profile.has(sys::F_PER_IO_TASK) {
        plot.depth += 3;
        plot.shares = 1 + plot.depth % 4;
    }
}

#[test]
fn a_queue_that_several_rings_share_keeps_every_promise() {
    let sum = stories(spread);
    assert_eq!(sum.failed, 0);
    assert!(sum.fallbacks > 0, "no request found its slot taken");
    let sum = stories(|plot| {
        spread(plot);
        plot.deaths = 6;
        if plot.profile.has(sys::F_QUIESCE) {
            plot.flags |= sys::F_QUIESCE;
            plot.handovers = 6;
        }
    });
    assert_eq!(sum.failed, 0);
    assert!(sum.deaths > 0 && sum.handovers > 0, "{sum:?}");
}

#[test]
fn what_fails_in_the_server_fails_that_request_alone() {
    let sum = stories(|plot| {
        plot.habits.failing = 20;
        plot.habits.drops = 10;
        plot.habits.panics = 4;
        plot.chaos.errors = 20;
    });
    assert!(sum.failed > 0, "nothing failed");
}

#[test]
fn a_part_of_a_request_is_continued_by_the_driver() {
    let sum = stories(|plot| plot.habits.parts = 80);
    assert_eq!(sum.failed, 0);
}

#[test]
fn a_server_that_dies_anywhere_loses_nothing_with_reissue() {
    let sum = stories(|plot| {
        plot.deaths = 6;
        plot.habits.parts = 30;
    });
    assert!(sum.deaths > 0 && sum.failed == 0, "{sum:?}");
}

#[test]
fn a_server_that_exits_under_load_loses_nothing_with_reissue() {
    for quiesce in [0, sys::F_QUIESCE] {
        let sum = stories(|plot| {
            plot.exits = 12;
            plot.deaths = 2;
            plot.habits.parts = 30;
            if plot.profile.has(quiesce) {
                plot.flags |= quiesce;
            }
        });
        assert!(sum.exits > 0 && sum.failed == 0, "{sum:?}");
    }
}

#[test]
fn a_server_that_dies_without_reissue_fails_only_what_it_had() {
    let sum = stories(|plot| {
        plot.flags &= !sys::F_RECOVERY_REISSUE;
        plot.deaths = 6;
    });
    assert!(sum.failed > 0, "nobody died with a request");
}

#[test]
fn a_planned_change_of_servers_fails_nothing_even_without_reissue() {
    let sum = stories(|plot| {
        plot.flags &= !sys::F_RECOVERY_REISSUE;
        if plot.profile.has(sys::F_QUIESCE) {
            plot.flags |= sys::F_QUIESCE;
            plot.handovers = 6;
        }
    });
    assert!(sum.handovers > 0 && sum.failed == 0, "{sum:?}");
}

#[test]
fn descriptors_are_read_at_the_distance_that_the_device_says() {
    let sum = stories(|plot| {
        plot.profile = Profile::V7_3;
        plot.flags |= sys::F_DESCRIPTOR_BYTES;
        plot.depth += 2;
    });
    assert_eq!(sum.failed, 0);
}

#[test]
fn a_dry_pool_delays_requests_and_loses_none() {
    let sum = stories(|plot| {
        plot.pool_bytes = 1;
        plot.chaos.dry = 60;
        plot.habits.late = 0;
    });
    assert_eq!(sum.failed, 0);
}

/// One pool for all queues, on rings of their own or not, with room for one request.
#[test]
fn writes_wait_for_a_dry_pool_of_the_servers_own_and_go_on_when_it_wakes_them() {
    for (deaths, exits) in [(0, 0), (6, 0), (0, 12)] {
        let sum = stories(|plot| {
            plot.own_pool = Some(IO_BYTES as usize);
            // Answers come at once: nothing but the pool wakes who waits for it.
            plot.habits.late = 0;
            (plot.deaths, plot.exits) = (deaths, exits);
        });
        assert_eq!(sum.failed, 0);
        assert!(sum.dry > 100, "{sum:?}");
    }
}

#[test]
#[should_panic(expected = "holds")]
fn a_server_that_lies_is_caught() {
    stories(|plot| plot.habits.lies = 20);
}
