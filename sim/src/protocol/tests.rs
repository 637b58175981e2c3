//! The worlds as tests: sentences that hold of the protocol, and of its model.

use std::collections::BTreeSet;

use super::cost::{costs, rates};
use super::report::search;
use super::rules::{Rule, Rules};
use super::search::{Model, replay, walk};
use super::worlds::{Build, FLEETS, WORLDS};

/// What an unoptimized build searches in a second or two; `cargo xtask sim --protocol` has them all.
const SMALL: u64 = 12_000;

#[test]
fn every_schedule_of_the_protocol_has_a_rule_and_a_world() {
    let named = WORLDS.iter().flat_map(|entry| entry.canaries);
    let letters: BTreeSet<&str> = named.map(|(letter, _)| *letter).collect();
    let missing: Vec<char> = ('a'..='t')
        .filter(|letter| !letters.contains(letter.to_string().as_str()))
        .collect();
    assert!(missing.is_empty(), "no canary for {missing:?}");
}

#[test]
fn every_rule_is_the_canary_of_some_world() {
    let has_canary = |rule: &&Rule| {
        let mut canaries = WORLDS.iter().flat_map(|entry| entry.canaries);
        canaries.any(|(_, canary)| canary == *rule)
    };
    let idle: Vec<&Rule> = Rule::ALL.iter().filter(|rule| !has_canary(rule)).collect();
    assert!(idle.is_empty(), "no world for {idle:?}");
}

#[test]
fn a_rule_that_is_taken_out_is_missed_by_its_world() {
    // The quickest canaries; the simulator's step of `cargo xtask test` runs all of them.
    let quick = [
        "two-takers",
        "zombie",
        "restart",
        "directory-clone",
        "back-again",
        "many-take-overs",
        "power",
        "shared-pack",
        "close",
        "clone-and-close",
        "clone-and-collector",
        "outage",
        "peers",
        "degrade",
    ];
    for entry in WORLDS.iter().filter(|entry| quick.contains(&entry.name)) {
        for (_, rule) in entry.canaries {
            let outcome = search(entry, Some(*rule));
            assert!(outcome.failure.is_some(), "{} without {rule:?}", entry.name);
        }
    }
}

#[test]
fn small_worlds_are_clean_with_all_rules_in_force() {
    let small = [
        "restart",
        "power",
        "retirement",
        "back-again",
        "outage",
        "zombie",
    ];
    for entry in WORLDS.iter().filter(|entry| small.contains(&entry.name)) {
        let outcome = search(entry, None);
        assert!(
            outcome.failure.is_none(),
            "{}: {:?}",
            entry.name,
            outcome.failure
        );
        assert!(outcome.complete && outcome.states < SMALL, "{}", entry.name);
    }
}

#[test]
fn the_same_seed_walks_the_same_way() {
    let (_, build) = FLEETS[0];
    let world = build();
    let (first, second) = (walk(&world, 7, 60), walk(&world, 7, 60));
    assert_eq!((first.states, first.depth), (second.states, second.depth));
    assert!(first.failure.is_none());
}

#[test]
fn a_failing_walk_is_shrunk_to_a_schedule_that_still_fails() {
    let Some(entry) = WORLDS.iter().find(|entry| entry.name == "zombie") else {
        panic!("no such world");
    };
    let Build::Hosts(build) = entry.build else {
        panic!("another model");
    };
    let mut world = build();
    world.rules = Rules::ALL.without(Rule::FencedVolumeIsDropped);
    let mut failures = (0..4000).filter_map(|seed| walk(&world, seed, 60).failure);
    let Some((violation, schedule)) = failures.next() else {
        panic!("no walk failed");
    };
    assert!(replay(&world, &schedule, violation).is_some());
    assert!(schedule.len() < 25, "{} actions", schedule.len());
    // None of its actions can be left out.
    for left_out in 0..schedule.len() {
        let mut fewer = schedule.clone();
        fewer.remove(left_out);
        let replayed = replay(&world, &fewer, violation);
        assert!(replayed.is_none(), "action {left_out} can go");
    }
    assert!(
        schedule
            .iter()
            .all(|action| !world.sentence(*action).is_empty())
    );
}

#[test]
fn a_record_costs_the_same_for_one_volume_as_for_three() {
    let costs = costs().unwrap();
    let of = |operation: &str| {
        let cost = costs.iter().find(|cost| cost.operation == operation);
        cost.map(|cost| cost.requests)
    };
    assert_eq!(
        of("a record of one volume"),
        of("a record of three volumes")
    );
}

#[test]
fn a_thousand_quiet_volumes_cost_a_fifth_of_a_request_a_second_at_most() {
    let rates = rates(25.0, 256.0).unwrap();
    assert!(rates.puts <= 0.2 && rates.gets <= 0.2, "{rates:?}");
}
