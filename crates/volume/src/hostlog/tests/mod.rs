//! Worlds of several hosts over one store: whatever is late, lost, killed, copied or set back, what was
//! called stored is found, and one LSN has one data.
//!
//! Each world is decided by its seed. The planted bugs at the end must each be seen.

mod costs;
mod ghost;
mod host;
mod judgements;
mod world;

use host::{VOLUMES, volume_id, volume_name};
use world::{Budget, Runner, lock_world};

use crate::object::root::Root;
use crate::object::root_key;
use crate::units::{Epoch, Lsn};

/// Steps after which a world that is calm must have come to rest.
const STEPS_MAX: u32 = 200_000;

/// A volume that nobody has opened yet.
fn first_root(number: u8) -> Root {
    let volume = volume_id(number);
    Root {
        volume,
        name: volume_name(volume),
        bytes: 1 << 20,
        block: 512,
        epoch: Epoch(0),
        since: Epoch(0),
        first: Lsn::ZERO.next(),
        sequence: 0,
        nonce: 0,
        earlier: Vec::new(),
        writer: Default::default(),
        owner: None,
        claimant: None,
        predecessor: None,
        mark: Default::default(),
        peers: Vec::new(),
        deleted: false,
        lsn: Lsn::ZERO,
        unix_ms: 0,
        deltas: Vec::new(),
        nodes: Vec::new(),
        sessions: Default::default(),
        extensions: Default::default(),
    }
}

/// What a world came to.
#[derive(Debug, Default)]
struct Result {
    violation: Option<String>,
    slices: u64,
    stops: u64,
    removed: u64,
}

/// Runs one world to its end.
fn run(seed: u64, hosts: usize, jobs: u32, budget: Budget) -> Result {
    let mut runner = Runner::new(seed, hosts, jobs, budget);
    for number in 0..VOLUMES {
        let root = first_root(number);
        let op = crate::driver::StoreOp::Create {
            key: root_key(&root.name),
            data: root.encode(),
        };
        lock_world(&runner.world)
            .carry_out(op)
            .expect("the store is empty");
    }
    (0..hosts).for_each(|machine| runner.start(machine));
    runner.run(4_000);
    runner.stop_faults();
    let rests = runner.run(STEPS_MAX);
    let opened = rests && open_all(&mut runner);
    let shared = lock_world(&runner.world);
    let violation = shared.ghost.violation.clone();
    Result {
        violation: violation.or_else(|| (!opened).then(|| "it does not come to rest".into())),
        slices: shared.ghost.slices,
        stops: shared.ghost.stops,
        removed: shared.ghost.removed,
    }
}

/// A new host takes every volume: what it finds is judged by the ghost.
fn open_all(runner: &mut Runner) -> bool {
    lock_world(&runner.world).jobs = 0;
    let machine = runner.add_opener();
    runner.start(machine);
    runner.run(STEPS_MAX)
}

const FAULTS: Budget = Budget {
    lost_answers: 6,
    late: 4,
    refusals: 10,
    kills: 4,
    power_cuts: 2,
    copies: 0,
    set_backs: 0,
};

const COPIED: Budget = Budget {
    copies: 1,
    ..FAULTS
};

const SET_BACK: Budget = Budget {
    set_backs: 1,
    ..FAULTS
};

fn seeds(name: &str, count: u64, hosts: usize, jobs: u32, budget: Budget) {
    let (mut slices, mut stops, mut removed) = (0, 0, 0);
    for seed in 0..count {
        let result = run(seed, hosts, jobs, budget);
        assert_eq!(result.violation, None, "{name}, seed {seed}");
        slices += result.slices;
        stops += result.stops;
        removed += result.removed;
    }
    println!("{name}: {slices} slices stored, {stops} hosts stopped, {removed} packs removed");
    assert!(slices > count, "hardly anything was published");
    assert!(removed > count, "hardly anything was removed");
}

#[test]
fn three_hosts_that_take_volumes_from_each_other_lose_nothing_that_was_called_stored() {
    seeds("faults", 400, 3, 120, FAULTS);
}

#[test]
fn a_copied_directory_ends_in_a_stop_and_never_in_two_data_for_one_lsn() {
    seeds("copied", 400, 2, 120, COPIED);
}

#[test]
fn after_the_store_was_set_back_nothing_more_is_called_stored_that_no_opener_finds() {
    seeds("set back", 1_000, 2, 120, SET_BACK);
}

/// The first of these worlds in which a planted bug breaks a promise.
fn find_violation(
    canary: &'static str,
    hosts: usize,
    jobs: u32,
    budget: Budget,
    seeds: u64,
) -> Option<(u64, String)> {
    canary::with(canary, || {
        (0..seeds).find_map(|seed| {
            let violation = run(seed, hosts, jobs, budget).violation?;
            Some((seed, violation))
        })
    })
}

#[test]
fn each_planted_bug_is_seen() {
    let copied = ("copied", 2, COPIED);
    let set_back = ("set back", 2, SET_BACK);
    let faults = ("faults", 3, FAULTS);
    let planted: [(&'static str, (&str, usize, Budget)); 18] = [
        ("create_before_frame", faults),
        ("strangers_record_is_ours", copied),
        ("fence_is_passed_over", faults),
        ("low_mark_is_not_read", copied),
        ("record_before_is_not_read", set_back),
        ("roots_are_not_read", set_back),
        ("packs_are_not_looked_for", set_back),
        ("root_ahead_is_a_moved_version", copied),
        ("claim_forgets_the_predecessor", faults),
        ("low_mark_after_fence_is_not_read", faults),
        ("low_mark_passes_marks", faults),
        ("low_mark_passes_the_newest", faults),
        ("unresolved_digests_are_forgotten", faults),
        ("ended_tail_goes_on", faults),
        ("fence_blocks_every_epoch", faults),
        ("collector_trusts_no_session", faults),
        ("collector_reads_roots_before_logs", faults),
        ("floor_is_above_what_is_on_its_way", faults),
    ];
    let mut missed = Vec::new();
    for (name, (world, hosts, budget)) in planted {
        match find_violation(name, hosts, 120, budget, 12_000) {
            Some((seed, violation)) => println!("{name}: {world}, seed {seed}: {violation}"),
            None => missed.push(name),
        }
    }
    assert_eq!(missed, [""; 0]);
}
