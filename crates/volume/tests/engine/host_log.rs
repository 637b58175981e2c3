//! The host's log under the engine: what of it an outage, a stop or a damaged object of one volume may
//! hold up, and what never.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use volume::hostlog::names::record_key;
use volume::hostlog::record::{Content, Record};
use volume::object::root::Root;
use volume::object::root_key;
use volume::units::Epoch;
use volume::{OpenError, OpenMode};

use crate::support::hosts::{root_of, with_closed_volume};
use crate::support::{Environment, World};

#[test]
fn a_close_that_an_outage_cut_short_anywhere_ends_when_it_is_asked_for_again() {
    for moment in (0..1200).step_by(50) {
        let (mut world, demo) = with_closed_volume();
        let other = world.open("other");
        for fill in 3..6 {
            world.write(&other, 8 * u64::from(fill), fill, 4096);
            world.sync(&other);
        }
        world.env.store_ms = 100;
        let closing = world.host.close_volume(&other);
        world.pass(moment);
        // A record of the other volume keeps the publisher busy.
        world.write(&demo, 8, 3, 4096);
        let synced = world.host.sync(&demo);
        world.env.outage_after_record = true;
        world.pass(40_000);
        world.env.outage_after_record = false;
        world.env.outage = false;
        if let Err(error) = world.wait(|_| closing.try_take()) {
            assert!(matches!(error, OpenError::Store(_)), "{moment}: {error}");
            let again = world.host.close_volume(&other);
            let closed = world.wait(|_| again.try_take());
            closed.unwrap_or_else(|error| panic!("{moment}: {error}"));
        }
        assert!(root_of(&world.env, "other").owner.is_none());
        world.wait(|_| synced.try_take()).expect("synced");
        let other = world.open("other");
        assert_eq!(world.read_fill(&other, 40, 4096), 5);
    }
}

#[test]
fn an_open_ends_though_a_record_of_another_volume_is_not_answered() {
    for moment in (0..1500).step_by(50) {
        let (mut world, demo) = with_closed_volume();
        world.env.store_ms = 100;
        let opening = world.host.open_volume("other", OpenMode::default());
        world.pass(moment);
        world.write(&demo, 8, 3, 4096);
        let _synced = world.host.sync(&demo);
        world.env.outage_after_record = true;
        world.pass(55_000);
        let opened = opening.try_take();
        assert!(opened.is_some(), "asked for {moment} ms before the outage");
    }
}

#[test]
fn a_close_goes_on_from_a_root_that_somebody_put_back_with_a_higher_sequence() {
    let (mut world, _demo) = with_closed_volume();
    let other = world.open("other");
    world.env.store_ms = 100;
    let closing = world.host.close_volume(&other);
    // Until its update is on its way.
    let updates = |world: &World| world.env.store_requests.get("update").copied();
    let creates = |world: &World| world.env.store_requests.get("create").copied();
    let (before, records) = (updates(&world), creates(&world));
    world.wait(|world| (creates(world) != records).then_some(()));
    assert_eq!(updates(&world), before);
    let standing = root_of(&world.env, "other");
    let moved = Root {
        sequence: standing.sequence + 1,
        ..standing
    };
    world.env.versions += 1;
    let object = (moved.encode(), world.env.versions);
    world.env.objects.insert(root_key("other"), object);
    let refused = world.wait(|_| closing.try_take());
    assert!(matches!(refused, Err(OpenError::Store(_))), "{refused:?}");
    let again = world.host.close_volume(&other);
    world.wait(|_| again.try_take()).expect("closed");
    assert!(root_of(&world.env, "other").owner.is_none());
}

#[test]
fn a_take_over_that_was_cut_short_behind_its_claim_goes_on_without_being_declared_again() {
    let (mut world, _demo) = with_closed_volume();
    let mut taker = World::start(Environment {
        objects: std::mem::take(&mut world.env.objects),
        versions: world.env.versions + 5000,
        store_ms: 100,
        ..Environment::default()
    });
    let mode = OpenMode {
        take_over: true,
        ..OpenMode::default()
    };
    let _opening = taker.host.open_volume("demo", mode);
    taker.wait(|taker| {
        taker
            .env
            .store_requests
            .contains_key("update")
            .then_some(())
    });
    let claimed = root_of(&taker.env, "demo");
    assert!(claimed.claimant.is_some() && claimed.predecessor.is_some());
    let mut taker = World::start(taker.kill());
    let demo = taker.try_open("demo", false).expect("it is its own claim");
    assert_eq!(taker.read_fill(&demo, 0, 4096), 2);
}

#[test]
fn who_waits_for_a_log_that_is_not_answered_hears_of_it_though_the_rest_of_the_store_is() {
    let (world, _demo) = with_closed_volume();
    let mut env = world.kill();
    let demo = root_of(&env, "demo");
    let host = demo.owner.as_ref().expect("it is open").host;
    let mut taker = World::start(Environment {
        objects: std::mem::take(&mut env.objects),
        versions: env.versions + 5000,
        ..Environment::default()
    });
    let other = taker.open("other");
    let unanswered = record_key(host, demo.mark.next());
    taker.env.failing_keys.push(unanswered.clone());
    let take_over = OpenMode {
        take_over: true,
        ..OpenMode::default()
    };
    let taking = taker.host.open_volume("demo", take_over);
    let mut heard = None;
    for fill in 0..60 {
        taker.write(&other, 8, fill, 4096);
        taker.sync(&other);
        taker.pass(1_000);
        heard = heard.or_else(|| taking.try_take());
    }
    let error = heard.expect("within a minute").expect_err("no answer");
    assert!(error.to_string().contains(&unanswered), "{error}");
}

/// A host that was killed with both volumes open, the key of the middle one of the last three records, all of
/// `demo`, and what stood there.
fn with_a_lost_record() -> (Environment, String, (Vec<u8>, u64)) {
    let (mut world, demo) = with_closed_volume();
    let _other = world.open("other");
    for fill in 4..6 {
        world.write(&demo, 8, fill, 4096);
        world.sync(&demo);
    }
    // A frame of it says that they are stored.
    world.write(&demo, 16, 6, 4096);
    world.flush(&demo);
    let mut env = world.kill();
    let records = env.objects.keys().filter(|key| key.contains("/log/"));
    let records: Vec<_> = records.cloned().collect();
    let lost = records[records.len() - 2].clone();
    let stood = env.objects.remove(&lost).expect("it stood there");
    (env, lost, stood)
}

fn both_open_with_everything(world: &mut World) {
    let demo = world.open("demo");
    assert_eq!(world.read_fill(&demo, 8, 4096), 5);
    let other = world.open("other");
    assert_eq!(world.read_fill(&other, 0, 4096), 1);
}

#[test]
fn a_record_that_somebody_removed_is_said_and_costs_nothing_once_it_is_back() {
    let (env, lost, stood) = with_a_lost_record();
    let mut world = World::start(env);
    let open = |name: &&str| world.host.open_volume(name, OpenMode::default());
    let opening: Vec<_> = ["demo", "other"].iter().map(open).collect();
    for answer in opening {
        let Err(error) = world.wait(|_| answer.try_take()) else {
            panic!("it is opened without what the record names")
        };
        assert!(error.to_string().contains(&lost), "{error}");
    }
    assert!(
        !world.env.objects.contains_key(&lost),
        "a fence in the hole"
    );
    world.env.objects.insert(lost, stood);
    both_open_with_everything(&mut world);
}

#[test]
fn no_root_passes_records_that_the_host_called_stored_and_does_not_find() {
    let (mut env, lost, stood) = with_a_lost_record();
    env.objects.insert(lost, stood);
    let root = root_of(&env, "demo");
    let (host, position) = (
        root.owner.as_ref().expect("it is open").host,
        root.mark.next(),
    );
    // Somebody who took a hole for the end of the log.
    let fence = Record {
        log: host,
        position,
        writer: root.writer,
        content: Content::Fence(vec![(root.volume, Epoch(root.epoch.0 + 1))]),
    };
    let lost = record_key(host, position);
    let fence = (fence.encode(), 1);
    let stood = env.objects.insert(lost.clone(), fence).expect("a record");
    let mut world = World::start(env);
    let refused = world.try_open("demo", false);
    assert!(
        matches!(refused, Err(OpenError::StoreWentBack { .. })),
        "{:?}",
        refused.err()
    );
    assert_eq!(root_of(&world.env, "demo").mark, root.mark);
    world.env.objects.insert(lost, stood);
    both_open_with_everything(&mut world);
}

#[test]
fn a_record_that_is_gone_refuses_only_the_volumes_that_need_it() {
    let (mut world, demo) = with_closed_volume();
    let _other = world.open("other");
    let needed = root_of(&world.env, "other").mark.next();
    for fill in 3..12 {
        world.write(&demo, 8, fill, 4096);
        world.sync(&demo);
        world.pass(1_000);
    }
    let folded = root_of(&world.env, "demo");
    assert!(folded.mark > needed, "no fold passed the record");
    let host = folded.owner.as_ref().expect("it is open").host;
    let lost = record_key(host, needed);
    let mut env = world.kill();
    let stood = env.objects.remove(&lost).expect("it stood there");
    let mut world = World::start(env);
    let open = |name: &&str| world.host.open_volume(name, OpenMode::default());
    let opening: Vec<_> = ["other", "demo"].iter().map(open).collect();
    let opened: Vec<_> = opening
        .iter()
        .map(|answer| world.wait(|_| answer.try_take()))
        .collect();
    let refused = opened[0].as_ref().expect_err("refused").to_string();
    assert!(refused.contains(&lost), "{refused}");
    let demo = opened[1].as_ref().expect("opened");
    assert_eq!(world.read_fill(demo, 8, 4096), 11);
    world.env.objects.insert(lost, stood);
    let other = world.open("other");
    assert_eq!(world.read_fill(&other, 0, 4096), 1);
}

#[test]
fn an_own_volume_opens_though_the_log_of_another_host_is_not_answered() {
    let (world, _demo) = with_closed_volume();
    let mut env = world.kill();
    let demo = root_of(&env, "demo");
    let host = demo.owner.as_ref().expect("it is open").host;
    let mut taker = World::start(Environment {
        objects: std::mem::take(&mut env.objects),
        versions: env.versions + 5000,
        ..Environment::default()
    });
    let other = taker.open("other");
    taker.write(&other, 8, 7, 4096);
    taker.sync(&other);
    let mut world = World::start(taker.kill());
    world
        .env
        .failing_keys
        .push(record_key(host, demo.mark.next()));
    let take_over = OpenMode {
        take_over: true,
        ..OpenMode::default()
    };
    let taking = world.host.open_volume("demo", take_over);
    let opening = world.host.open_volume("other", OpenMode::default());
    world.pass(2_000);
    let other = opening.try_take().expect("in time").expect("opened");
    assert_eq!(world.read_fill(&other, 8, 4096), 7);
    world.env.failing_keys.clear();
    if world.wait(|_| taking.try_take()).is_err() {
        world.try_open("demo", true).expect("taken over");
    }
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        (
            "hole_is_the_end",
            a_record_that_somebody_removed_is_said_and_costs_nothing_once_it_is_back,
        ),
        (
            "one_volumes_record_refuses_all",
            a_record_that_is_gone_refuses_only_the_volumes_that_need_it,
        ),
        (
            "older_store_is_believed",
            no_root_passes_records_that_the_host_called_stored_and_does_not_find,
        ),
        (
            "any_answer_is_every_keys",
            who_waits_for_a_log_that_is_not_answered_hears_of_it_though_the_rest_of_the_store_is,
        ),
        (
            "own_claim_is_a_copys",
            a_take_over_that_was_cut_short_behind_its_claim_goes_on_without_being_declared_again,
        ),
        (
            "close_is_sent_for_ever",
            a_close_goes_on_from_a_root_that_somebody_put_back_with_a_higher_sequence,
        ),
    ]);
}
