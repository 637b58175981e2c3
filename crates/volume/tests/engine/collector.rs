//! The garbage collector under the engine (S9): what nothing reaches goes in a later pass, and nothing else ever.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use volume::collect::candidates::{CANDIDATES_KEY, Candidates};
use volume::object::page::PAGE_SECTORS;
use volume::object::root::Root;
use volume::object::root_key;
use volume::{Durability, Options};

use crate::support::checks::list;
use crate::support::hosts::{close, elsewhere};
use crate::support::points::{done, fork, gc, packs, write_over};
use crate::support::{Environment, Fault, World, options, with_volume};

const MIB: u64 = 1 << 20;

#[test]
fn what_was_written_over_goes_and_another_host_finds_everything_else() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 4096, 200, 4096);
    for fill in [1, 21, 41] {
        write_over(&mut world, &volume, fill);
    }
    let before = packs(&world.env);
    let first = gc(&mut world);
    assert!(first.garbage.objects > 10, "{first:?}");
    let second = gc(&mut world);
    assert!(
        second.removed.objects >= first.garbage.objects,
        "{second:?}"
    );
    assert_eq!(second.recovered.objects, 0);
    let after = packs(&world.env);
    assert!(after * 2 < before, "{after} of {before} packs are left");
    let mut other = elsewhere(&world);
    let theirs = other.try_open("demo", true).expect("opened");
    for (world, volume) in [(&mut world, &volume), (&mut other, &theirs)] {
        assert_eq!(world.read_fill(volume, 4096, 4096), 200);
        for place in 0..4 {
            assert_eq!(world.read_fill(volume, 8 * place, 4096), 48);
        }
    }
}

#[test]
fn what_a_pass_finds_is_removed_by_a_later_one_and_never_by_one_pass_alone() {
    let (mut world, volume) = with_volume();
    write_over(&mut world, &volume, 1);
    let objects: Vec<String> = world.env.objects.keys().cloned().collect();
    let first = gc(&mut world);
    assert!(first.garbage.objects > 0);
    assert_eq!(first.removed.objects, 0);
    let is_data = |key: &&String| key.starts_with("packs/") || key.starts_with("indexes/");
    for key in objects.iter().filter(is_data) {
        assert!(world.env.objects.contains_key(key), "{key}");
    }
    assert!(gc(&mut world).removed.objects > 0);
}

#[test]
fn passes_come_at_the_interval_that_is_set_and_none_where_it_is_off() {
    const MINUTE_NS: u64 = 60_000_000_000;
    let (mut world, volume) = with_volume();
    write_over(&mut world, &volume, 1);
    let minutes = |world: &mut World, count: u64| {
        for _ in 0..count * 60 {
            world.pass(1000);
        }
        world.host.collector()
    };
    let off = minutes(&mut world, 5);
    assert_eq!((off.is_on, off.passes), (false, 0));
    assert!(world.host.set_gc_interval(60 * MINUTE_NS));
    let on = minutes(&mut world, 1);
    assert_eq!((on.is_on, on.passes), (true, 0));
    // Nobody waits for the hour to be over.
    assert!(world.host.set_gc_interval(MINUTE_NS));
    let often = minutes(&mut world, 5);
    assert!((4..=6).contains(&often.passes), "{often:?}");
    assert!(often.removed.objects > 0, "{often:?}");
    assert_eq!(often.on_since_unix_ms, on.on_since_unix_ms);
    assert!(world.host.set_gc_interval(0));
    let off = minutes(&mut world, 5);
    assert_eq!(
        (off.is_on, off.passes, off.on_since_unix_ms),
        (false, often.passes, None)
    );
}

#[test]
fn a_dry_run_says_what_a_pass_would_find_and_changes_nothing() {
    let (mut world, volume) = with_volume();
    write_over(&mut world, &volume, 1);
    gc(&mut world);
    let before = world.env.objects.clone();
    let answer = world.host.collect_garbage(true);
    let found = done(&mut world, &answer);
    assert!(
        found.garbage.objects > 0 && found.live_packs.objects > 0,
        "{found:?}"
    );
    assert_eq!(found.removed.objects, 0);
    assert!(world.env.objects == before);
}

#[test]
fn pages_that_lie_side_by_side_in_an_object_are_read_by_one_request() {
    const PAGES: u64 = 4;
    let (mut world, volume) = with_volume();
    for page in 0..PAGES {
        world.write(&volume, page * PAGE_SECTORS, 1, 4096);
    }
    world.sync(&volume);
    // Folds them, into one object.
    gc(&mut world);
    world.env.requests.clear();
    let answer = world.host.collect_garbage(true);
    done(&mut world, &answer);
    let ranges = ("range", "indexes".to_owned());
    // The node, and its pages.
    assert_eq!(world.env.requests.get(&ranges), Some(&2));
}

#[test]
fn a_pass_that_may_remove_nothing_has_failed_and_says_why() {
    let (mut world, volume) = with_volume();
    write_over(&mut world, &volume, 1);
    let first = gc(&mut world);
    assert!(first.garbage.objects > 0 && first.reason_nothing_was_removed().is_none());
    world.env.refuses_deletes = true;
    let before = packs(&world.env);
    for failures in 1..=2 {
        let found = gc(&mut world);
        assert!(found.failed.objects >= first.garbage.objects, "{found:?}");
        let why = found
            .reason_nothing_was_removed()
            .expect("not one went")
            .to_owned();
        assert!(
            why.starts_with("packs/") || why.starts_with("indexes/"),
            "{why}"
        );
        let report = world.host.collector();
        assert_eq!((report.failures_in_a_row, report.passes), (failures, 1));
        assert!(report.failed_removals >= failures * first.garbage.objects);
        assert!(report.last_error.is_some_and(|error| error.contains(&why)));
    }
    assert_eq!(packs(&world.env), before);
    world.env.refuses_deletes = false;
    let found = gc(&mut world);
    assert!(found.removed.objects >= first.garbage.objects, "{found:?}");
    let report = world.host.collector();
    assert_eq!((report.failures_in_a_row, report.passes), (0, 2));
    assert_eq!(report.last_error, None);
}

#[test]
fn a_candidate_that_is_reached_again_stays_and_is_counted() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 7, 4096);
    world.sync(&volume);
    world.pass(2_000);
    let root = world.host.fork_volume("demo", "child", Durability::Store);
    done(&mut world, &root);
    let early = world.env.objects[&root_key("child")].clone();
    let pin = |key: &&String| key.starts_with("pins/");
    let pin = world.env.objects.keys().find(pin).cloned();
    world.env.objects.remove(&pin.expect("a pin"));
    world.env.objects.remove(&root_key("child"));
    write_over(&mut world, &volume, 20);
    let first = gc(&mut world);
    assert!(first.garbage.objects > 0);
    // A root comes back that reaches what a pass found reached by nobody.
    world.env.objects.insert(root_key("child"), early);
    let second = gc(&mut world);
    assert!(second.recovered.objects > 0, "{second:?}");
    assert_eq!(world.host.collector().recovered, second.recovered.objects);
    let third = gc(&mut world);
    assert_eq!(
        third.recovered.objects, 0,
        "it is no candidate any more: {third:?}"
    );
    let mut other = elsewhere(&world);
    let child = other.open("child");
    assert_eq!(other.read_fill(&child, 0, 4096), 7);
}

#[test]
fn a_root_that_cannot_be_read_keeps_everything_and_is_named() {
    let (mut world, volume) = with_volume();
    write_over(&mut world, &volume, 1);
    world.create("other", 64 * MIB);
    gc(&mut world);
    let key = root_key("other");
    world
        .env
        .objects
        .get_mut(&key)
        .expect("there")
        .0
        .truncate(40);
    let before = packs(&world.env);
    let answer = world.host.collect_garbage(false);
    let error = world
        .wait(|_| answer.try_take())
        .expect_err("it cannot be read");
    assert!(error.to_string().contains(&key), "{error}");
    assert_eq!(packs(&world.env), before);
    let report = world.host.collector();
    assert_eq!((report.failures_in_a_row, report.passes), (1, 1));
    assert!(report.last_error.is_some());
}

#[test]
fn what_an_idle_volume_had_stays_when_its_root_is_removed_until_somebody_says_that_it_is_gone() {
    let (mut world, volume) = with_volume();
    world.create("other", 64 * MIB);
    let other = world.open("other");
    world.write(&volume, 0, 7, 4096);
    write_over(&mut world, &volume, 20);
    close(&mut world, &volume);
    // The host goes on in a new session, without it, and its log names it no more.
    let mut world = World::start(world.env.copy());
    drop(other);
    let other = world.open("other");
    for fill in [1, 40, 80] {
        write_over(&mut world, &other, fill);
        gc(&mut world);
    }
    let key = root_key("demo");
    let root = world.env.objects.remove(&key).expect("there");
    let id = Root::decode(&root.0).expect("a root").volume;
    let fails = |world: &mut World| {
        let answer = world.host.collect_garbage(false);
        world
            .wait(|_| answer.try_take())
            .map_err(|error| error.to_string())
    };
    let mut said = Vec::new();
    for _ in 0..4 {
        said.extend(fails(&mut world).err());
    }
    let remedy = format!("firn volume forget {id}");
    assert!(said.iter().any(|error| error.contains(&remedy)), "{said:?}");
    assert_eq!(world.host.collector().missing_root, Some(id));
    // It was a mistake, and the root is put back.
    let before = packs(&world.env);
    world.env.objects.insert(key.clone(), root.clone());
    let mut there = elsewhere(&world);
    let theirs = there.try_open("demo", true).expect("opened");
    for place in 0..4 {
        assert_eq!(there.read_fill(&theirs, 8 * place, 4096), 27);
    }
    let refused = world.host.forget_volume(id);
    let refused = world
        .wait(|_| refused.try_take())
        .expect_err("it has a root");
    assert!(refused.to_string().contains("demo"), "{refused}");
    gc(&mut world);
    assert_eq!(world.host.collector().missing_root, None);
    // It was not.
    world.env.objects.remove(&key);
    let forgotten = world.host.forget_volume(id);
    done(&mut world, &forgotten);
    for _ in 0..3 {
        gc(&mut world);
    }
    assert!(packs(&world.env) < before);
    assert_eq!(world.host.collector().missing_root, None);
}

#[test]
fn a_pass_that_somebody_asks_for_has_open_volumes_folded_first() {
    let options = Options {
        deltas_max: 1_000,
        ..options()
    };
    let world = World::try_start(Environment::default(), options);
    let mut world = world.unwrap_or_else(|failed| panic!("{}", failed.0));
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    write_over(&mut world, &volume, 1);
    let answer = world.host.collect_garbage(true);
    let dry = done(&mut world, &answer);
    assert_eq!(dry.garbage.objects, 0, "a dry run changes nothing: {dry:?}");
    let found = gc(&mut world);
    assert!(found.garbage.objects >= 7, "{found:?}");
    assert!(gc(&mut world).removed.objects >= 7);
    for place in 0..4 {
        assert_eq!(world.read_fill(&volume, 8 * place, 4096), 8);
    }
}

#[test]
fn a_pass_that_slept_while_another_one_ended_removes_nothing() {
    let (mut world, volume) = with_volume();
    write_over(&mut world, &volume, 1);
    gc(&mut world);
    let lists = |world: &World| world.env.store_requests["list"];
    let before = lists(&world);
    let answer = world.host.collect_garbage(true);
    assert!(done(&mut world, &answer).garbage.objects > 0);
    let lists_of_a_look = lists(&world) - before;
    world.env.store_ms = 20;
    let before = lists(&world);
    let answer = world.host.collect_garbage(false);
    // It knows its candidates by now, and has removed nothing yet.
    while lists(&world) < before + lists_of_a_look - 1 {
        world.pass(10);
    }
    assert!(answer.try_take().is_none());
    let versions = world.env.versions + 1;
    let objects = &mut world.env.objects;
    let (bytes, version) = objects.get_mut(CANDIDATES_KEY).expect("a pass left them");
    let mut others = Candidates::decode(bytes).expect("candidates");
    others.passes += 1;
    *bytes = others.encode();
    *version = versions;
    world.env.versions = versions;
    let found = done(&mut world, &answer);
    assert!(found.is_overtaken, "{found:?}");
    assert_eq!(found.removed.objects, 0, "{found:?}");
    assert!(gc(&mut world).removed.objects > 0, "one that is awake does");
}

/// Pins go when the pass has ended, which a store that loses answers must not put off for ever.
#[test]
fn a_pass_whose_last_answer_is_lost_has_ended_all_the_same() {
    let (mut world, volume) = with_volume();
    write_over(&mut world, &volume, 1);
    gc(&mut world);
    drop(fork(&mut world, "demo", "child").expect("forked"));
    let env = world.kill();
    let mut ended = 0;
    for nth in 0..200 {
        let mut world = World::start(env.copy());
        let before = world.env.objects.get(CANDIDATES_KEY).cloned();
        world.env.fault_after = Some((nth, Fault::LostAnswer));
        let answer = world.host.collect_garbage(false);
        let _ = world.wait(|_| answer.try_take());
        if world.env.fault_after.is_some() {
            break;
        }
        if world.env.objects.get(CANDIDATES_KEY).cloned() != before {
            ended += 1;
            assert_eq!(list(&world.env.objects, "pins/"), [], "{nth}");
        }
    }
    assert!(ended > 0);
}

#[test]
fn damaged_candidates_prove_nothing_and_end_no_pass() {
    let (mut world, volume) = with_volume();
    write_over(&mut world, &volume, 1);
    assert!(gc(&mut world).garbage.objects > 0);
    let objects = &mut world.env.objects;
    let candidates = objects.get_mut(CANDIDATES_KEY).expect("a pass left them");
    candidates.0.truncate(50);
    assert_eq!(
        gc(&mut world).removed.objects,
        0,
        "nothing was found before"
    );
    assert!(gc(&mut world).removed.objects > 0);
    // A newer firn may know why something must stay.
    let objects = &mut world.env.objects;
    let candidates = objects.get_mut(CANDIDATES_KEY).expect("a pass left them");
    candidates.0[8] += 1;
    let answer = world.host.collect_garbage(false);
    let error = world.wait(|_| answer.try_take()).expect_err("a newer one");
    assert!(error.to_string().contains("use a newer firn"), "{error}");
}

#[test]
fn a_pass_that_removes_much_does_not_read_its_candidates_again_and_again() {
    let mut world = World::new();
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    for fill in 1..=30 {
        write_over(&mut world, &volume, 8 * fill);
    }
    gc(&mut world);
    let mut gets = || {
        let before = world.env.store_requests["get"];
        let found = gc(&mut world);
        let after = world.env.store_requests["get"];
        (after - before, found.removed.objects)
    };
    let (gets_of_some, removed) = gets();
    let (gets_of_none, nothing) = gets();
    assert!(removed > 16 * 8 && nothing == 0, "{removed}, {nothing}");
    assert!(
        gets_of_some < gets_of_none + 4,
        "{gets_of_some} GETs with removals, {gets_of_none} without"
    );
}

#[test]
fn a_root_that_never_answers_ends_a_pass_in_words_and_holds_up_no_log_it_is_not_in() {
    let mut world = World::new();
    for name in ["busy", "idle", "mute"] {
        world.create(name, 64 * MIB);
    }
    let (busy, mute) = (world.open("busy"), world.open("mute"));
    let key = root_key("idle");
    world.env.failing_keys.push(key.clone());
    for nth in 0..20_u8 {
        world.write(&busy, 0, 1 + nth, 4096);
        world.sync(&busy);
    }
    let records = |env: &Environment| {
        let keys = env.objects.keys();
        keys.filter(|key| key.contains("/log/")).count()
    };
    let fails = |world: &mut World| {
        let answer = world.host.collect_garbage(false);
        let error = world.wait(|_| answer.try_take()).expect_err("no answer");
        error.to_string()
    };
    let error = fails(&mut world);
    assert!(error.contains(&key), "{error}");
    assert!(records(&world.env) <= 2, "the log of this host shrinks");
    let report = world.host.collector();
    assert_eq!(
        (report.failures_in_a_row, report.busy_since_unix_ms),
        (1, None)
    );
    assert!(report.last_error.is_some_and(|error| error.contains(&key)));
    // One that is open here, and whose own root is to be written.
    world.env.failing_keys.clear();
    world.write(&mute, 0, 1, 4096);
    world.sync(&mute);
    world.env.failing_keys.push(root_key("mute"));
    let error = fails(&mut world);
    assert!(error.contains(&root_key("mute")), "{error}");
    // It goes on by itself, and costs no stop.
    world.env.failing_keys.clear();
    world.pass(10_000);
    gc(&mut world);
    world.write(&mute, 0, 2, 4096);
    world.sync(&mute);
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen() {
    canary::each_is_seen(&[
        ("candidates_go_in_the_same_pass", what_a_pass_finds_is_removed_by_a_later_one_and_never_by_one_pass_alone),
        ("objects_go_without_their_root", what_an_idle_volume_had_stays_when_its_root_is_removed_until_somebody_says_that_it_is_gone),
        ("passes_that_remove_nothing_end_well", a_pass_that_may_remove_nothing_has_failed_and_says_why),
        ("recovered_candidates_go", a_candidate_that_is_reached_again_stays_and_is_counted),
        ("asked_passes_fold_nothing", a_pass_that_somebody_asks_for_has_open_volumes_folded_first),
        ("slept_collector_removes", a_pass_that_slept_while_another_one_ended_removes_nothing),
        ("lost_answer_ends_no_pass", a_pass_whose_last_answer_is_lost_has_ended_all_the_same),
        ("damaged_candidates_end_passes", damaged_candidates_prove_nothing_and_end_no_pass),
        ("each_window_reads_the_candidates", a_pass_that_removes_much_does_not_read_its_candidates_again_and_again),
        ("a_pass_never_gives_up", a_root_that_never_answers_ends_a_pass_in_words_and_holds_up_no_log_it_is_not_in),
    ]);
}
