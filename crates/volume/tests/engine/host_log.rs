//! The host's log under the engine: what of it an outage, a stop or a damaged object of one volume may
//! hold up, and what never.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use blkmq::error::ErrorKind;
use blkmq::io::Op;
use volume::hostlog::names::{low_key, record_key, record_of_key};
use volume::hostlog::record::{Content, Record};
use volume::hostlog::stop::Stop;
use volume::object::root::Root;
use volume::object::root_key;
use volume::units::Epoch;
use volume::{OpenError, OpenMode, Volume};

use crate::support::hosts::{other_host, root_of, try_write};
use crate::support::{Environment, World};

const MIB: u64 = 1 << 20;

/// A host with two volumes; both have something in the store, and `other` is closed.
fn with_closed_volume() -> (World, Volume) {
    let mut world = World::new();
    for name in ["demo", "other"] {
        world.create(name, 64 * MIB);
        let volume = world.open(name);
        world.write(&volume, 0, 1, 4096);
        world.sync(&volume);
        let answer = world.host.close_volume(&volume);
        world.wait(|_| answer.try_take()).expect("closed");
    }
    let volume = world.open("demo");
    world.write(&volume, 0, 2, 4096);
    world.sync(&volume);
    (world, volume)
}

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
fn no_volume_goes_live_on_a_host_that_has_stopped() {
    for moment in (0..1500).step_by(50) {
        let (mut world, demo) = with_closed_volume();
        world.env.store_ms = 100;
        world.write(&demo, 8, 3, 4096);
        let opening = world.host.open_volume("other", OpenMode::default());
        world.pass(moment);
        // The host was retired meanwhile.
        world.env.objects.retain(|key, _| !key.ends_with("/low"));
        let synced = world.host.sync(&demo);
        let stopped = world.wait(|_| synced.try_take()).expect_err("it stops");
        assert!(matches!(stopped, OpenError::HostStopped(_)), "{stopped}");
        if let Ok(other) = world.wait(|_| opening.try_take()) {
            let refused = try_write(&mut world, &other);
            assert_eq!(refused, Err(ErrorKind::Fenced), "opened at {moment}");
        }
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

/// What the root of a volume that was just opened may have become when its first record looks at it.
fn spoil_root(world: &mut World, spoil: impl FnOnce(&mut Environment, String)) {
    world.env.versions += 1;
    spoil(&mut world.env, root_key("other"));
}

fn a_spoilt_root_holds_up_its_own_volume_alone(
    spoil: fn(&mut Environment, String),
    is_named: bool,
) {
    let (mut world, demo) = with_closed_volume();
    let other = world.open("other");
    let (standing, _) = world.env.objects[&root_key("other")].clone();
    spoil_root(&mut world, spoil);
    world.write(&other, 8, 7, 4096);
    let synced = world.host.sync(&other);
    world.pass(100);
    for fill in 3..6 {
        world.write(&demo, 8, fill, 4096);
        let demo_synced = world.host.sync(&demo);
        world.pass(5_000);
        demo_synced.try_take().expect("in time").expect("synced");
    }
    match synced.try_take() {
        Some(refused) => assert!(is_named && refused.is_err(), "{refused:?}"),
        None => assert!(!is_named, "nobody says why"),
    }
    assert_eq!(other.check_serving(), Ok(()));
    assert!(other.watermarks().stored.lsn < volume::units::Lsn(2));
    world.env.failing_keys.clear();
    world.env.versions += 1;
    let object = (standing, world.env.versions);
    world.env.objects.insert(root_key("other"), object);
    world.pass(40_000);
    world.write(&other, 16, 8, 4096);
    world.sync(&other);
    let mut taker = other_host(&mut world);
    let other = taker.try_open("other", true).expect("taken over");
    assert_eq!(taker.read_fill(&other, 8, 4096), 7);
    assert_eq!(taker.read_fill(&other, 16, 4096), 8);
}

#[test]
fn a_volume_whose_root_is_gone_is_refused_alone_and_goes_on_when_it_is_back() {
    let spoil = |env: &mut Environment, key: String| drop(env.objects.remove(&key));
    a_spoilt_root_holds_up_its_own_volume_alone(spoil, true);
}

#[test]
fn a_volume_whose_root_cannot_be_read_is_refused_alone_and_goes_on_when_it_can() {
    let spoil = |env: &mut Environment, key: String| {
        let object = (b"nonsense".repeat(20), env.versions);
        env.objects.insert(key, object);
    };
    a_spoilt_root_holds_up_its_own_volume_alone(spoil, true);
}

#[test]
fn a_root_that_the_store_does_not_answer_for_holds_up_no_other_volume() {
    a_spoilt_root_holds_up_its_own_volume_alone(|env, key| env.failing_keys.push(key), false);
}

#[test]
fn a_root_that_the_store_does_not_answer_for_is_no_other_volumes_error() {
    let (mut world, demo) = with_closed_volume();
    let other = world.open("other");
    world.env.store_ms = 20;
    world.env.failing_keys.push(root_key("other"));
    for volume in [&other, &demo] {
        world.write(volume, 8, 7, 4096);
    }
    let synced = [world.host.sync(&other), world.host.sync(&demo)];
    let mut said = None;
    for _ in 0..500 {
        world.pass(10);
        assert_eq!(demo.upload_error(), None);
        said = said.or(other.upload_error());
    }
    assert!(said.is_some_and(|error| error.contains("other")));
    assert!(synced[1].try_take().is_some() && synced[0].try_take().is_none());
}

#[test]
fn on_a_poisoned_log_a_root_that_is_not_answered_holds_up_no_other_volume() {
    let (mut world, demo) = with_closed_volume();
    let other = world.open("other");
    world.create("third", 64 * MIB);
    let third = world.open("third");
    for volume in [&demo, &other] {
        world.write(volume, 8, 7, 4096);
        world.flush(volume);
    }
    world.write(&third, 8, 7, 4096);
    world.env.failing_syncs = 1;
    world
        .request(&third, Op::Flush, &mut [])
        .expect_err("poisoned");
    world.env.failing_keys.push(root_key("other"));
    let others = world.host.sync(&other);
    world.pass(1_000);
    let demos = world.host.sync(&demo);
    world.pass(20_000);
    demos.try_take().expect("in time").expect("synced");
    assert!(others.try_take().is_none());
    world.env.failing_keys.clear();
    world.wait(|_| others.try_take()).expect("synced");
}

/// Requests to the store from the start of a host to where all of its volumes are open.
fn requests_of_a_restart(volumes: usize) -> usize {
    let mut world = World::new();
    let names: Vec<_> = (0..volumes).map(|nth| format!("volume-{nth}")).collect();
    for name in &names {
        world.create(name, 64 * MIB);
        let volume = world.open(name);
        world.write(&volume, 0, 1, 4096);
        world.sync(&volume);
    }
    let mut env = world.kill();
    env.store_requests.clear();
    env.store_ms = 20;
    let mut world = World::start(env);
    let open = |name: &String| world.host.open_volume(name, OpenMode::default());
    let opening: Vec<_> = names.iter().map(open).collect();
    for answer in opening {
        let volume = world.wait(|_| answer.try_take()).expect("opened");
        assert_eq!(world.read_fill(&volume, 0, 4096), 1);
    }
    world.env.store_requests.values().sum()
}

#[test]
fn a_restart_costs_requests_by_volume_and_not_by_their_square() {
    let (few, many) = (requests_of_a_restart(4), requests_of_a_restart(32));
    let more = (many - few) / 28;
    assert!(
        more <= 9,
        "{few} of 4 volumes, {many} of 32: {more} by volume"
    );
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

/// The host has met a pack of a stranger under a name of its own, at `next`, and stopped.
fn stop_by_a_strangers_pack(world: &mut World, demo: &Volume) -> (String, (Vec<u8>, u64)) {
    let packs = |world: &World| {
        let keys = world.env.objects.keys();
        keys.filter(|key| key.starts_with("packs/"))
            .cloned()
            .collect::<Vec<_>>()
    };
    let before = packs(world);
    // Another process that has the same memory: it draws the same names.
    world.write(demo, 8, 3, 4096);
    world.env.failing_creates = usize::MAX;
    let synced = world.host.sync(demo);
    world.pass(1_000);
    let own = packs(world).into_iter().find(|key| !before.contains(key));
    let own = own.expect("it is there, and no record names it yet");
    let number = own.rsplit('/').next().expect("a number").to_owned();
    let next = u64::from_str_radix(&number, 16).expect("hexadecimal") + 1;
    let width = number.len();
    let next = format!(
        "{}{next:0width$x}",
        own.strip_suffix(&number).expect("its end")
    );
    let stranger = (b"of another process".to_vec(), 1);
    world.env.objects.insert(next.clone(), stranger.clone());
    world.env.failing_creates = 0;
    world.wait(|_| synced.try_take()).expect("synced");
    world.write(demo, 16, 4, 4096);
    let synced = world.host.sync(demo);
    let stopped = world.wait(|_| synced.try_take()).expect_err("it stops");
    assert!(matches!(stopped, OpenError::HostStopped(_)), "{stopped}");
    (next, stranger)
}

#[test]
fn a_pack_of_a_stranger_under_its_own_name_stops_the_host_and_stays_as_it_is() {
    let (mut world, demo) = with_closed_volume();
    let (next, stranger) = stop_by_a_strangers_pack(&mut world, &demo);
    assert_eq!(world.env.objects[&next], stranger);
}

#[test]
fn a_host_that_stopped_writes_no_record_and_closes_no_volume_any_more() {
    let (mut world, demo) = with_closed_volume();
    let other = world.open("other");
    // Everything of it is stored: nothing but the stop can refuse its close.
    world.write(&other, 8, 3, 4096);
    world.sync(&other);
    // Of another volume a snapshot can be made without any write of this host's.
    world.create("idle", 64 * MIB);
    stop_by_a_strangers_pack(&mut world, &demo);
    let before = world.env.objects.clone();
    let taken = world.host.create_snapshot("idle@one", Vec::new());
    let refused = world.wait(|_| taken.try_take());
    assert!(
        matches!(refused, Err(OpenError::HostStopped(_))),
        "{refused:?}"
    );
    for _ in 0..2 {
        let closing = world.host.close_volume(&other);
        let refused = world.wait(|_| closing.try_take());
        assert!(
            matches!(refused, Err(OpenError::HostStopped(_))),
            "{refused:?}"
        );
    }
    world.pass(10_000);
    assert!(world.env.objects == before, "it wrote to the store");
    assert!(root_of(&world.env, "other").owner.is_some());
}

/// How the host ends that finds its own log like that.
fn stopped_by(spoil: fn(&mut Environment, last_record: &str)) -> (String, OpenError) {
    let (mut world, demo) = with_closed_volume();
    let keys = world.env.objects.keys();
    let last = keys.filter(|key| key.contains("/log/")).max().cloned();
    let last = last.expect("a record");
    spoil(&mut world.env, &last);
    world.write(&demo, 8, 3, 4096);
    let synced = world.host.sync(&demo);
    let stopped = world.wait(|_| synced.try_take()).expect_err("it stops");
    (last, stopped)
}

#[test]
fn a_damaged_object_of_a_hosts_own_log_is_said_as_damage_and_as_no_copy_or_retirement() {
    let damaged = |key: &str, stopped: &OpenError| {
        let is_damage = matches!(stopped, OpenError::HostStopped(Stop::Damaged(_)));
        assert!(is_damage, "{stopped}");
        let said = stopped.to_string();
        assert!(
            said.contains(key) && said.contains("Put the object back"),
            "{said}"
        );
    };
    // Where the next record was to go.
    let (last, stopped) = stopped_by(|env, last| {
        let (host, position) = record_of_key(last).expect("a record's");
        let next = record_key(host, position.next());
        env.objects.insert(next, (b"damaged".to_vec(), 1));
    });
    let (host, position) = record_of_key(&last).expect("a record's");
    damaged(&record_key(host, position.next()), &stopped);
    let (last, stopped) = stopped_by(|env, last| {
        let (host, _) = record_of_key(last).expect("a record's");
        let low = env.objects.get_mut(&low_key(host)).expect("it is there");
        low.0[20] ^= 1;
    });
    let (host, _) = record_of_key(&last).expect("a record's");
    damaged(&low_key(host), &stopped);
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
fn packs_that_went_before_a_dead_servers_record_was_looked_at_stop_its_successor() {
    let (mut world, demo) = with_closed_volume();
    let packs = |env: &Environment| {
        let keys = env.objects.keys();
        keys.filter(|key| key.starts_with("packs/"))
            .cloned()
            .collect::<Vec<_>>()
    };
    let before = packs(&world.env);
    world.write(&demo, 8, 3, 4096);
    world.env.outage_after_record = true;
    let _synced = world.host.sync(&demo);
    world.pass(2_000);
    let mut env = world.kill();
    env.outage = false;
    env.outage_after_record = false;
    let new: Vec<_> = packs(&env)
        .into_iter()
        .filter(|key| !before.contains(key))
        .map(|key| {
            let stood = env.objects.remove(&key).expect("it is there");
            (key, stood)
        })
        .collect();
    assert!(!new.is_empty());
    let mut world = World::start(env);
    let refused = world.try_open("demo", false).expect_err("it stops");
    assert!(matches!(refused, OpenError::HostStopped(_)), "{refused}");
    let mut env = world.kill();
    env.objects.extend(new);
    let mut world = World::start(env);
    let demo = world.open("demo");
    assert_eq!(world.read_fill(&demo, 8, 4096), 3);
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
            "packs_are_not_read_back",
            a_pack_of_a_stranger_under_its_own_name_stops_the_host_and_stays_as_it_is,
        ),
        (
            "stopped_host_publishes",
            a_host_that_stopped_writes_no_record_and_closes_no_volume_any_more,
        ),
        (
            "one_key_is_everybodys",
            a_root_that_the_store_does_not_answer_for_is_no_other_volumes_error,
        ),
        (
            "hole_is_the_end",
            a_record_that_somebody_removed_is_said_and_costs_nothing_once_it_is_back,
        ),
        (
            "one_volumes_record_refuses_all",
            a_record_that_is_gone_refuses_only_the_volumes_that_need_it,
        ),
        (
            "packs_of_a_dead_server_are_believed",
            packs_that_went_before_a_dead_servers_record_was_looked_at_stop_its_successor,
        ),
        (
            "older_store_is_believed",
            no_root_passes_records_that_the_host_called_stored_and_does_not_find,
        ),
        (
            "damage_is_a_copys",
            a_damaged_object_of_a_hosts_own_log_is_said_as_damage_and_as_no_copy_or_retirement,
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
            "one_root_stops_the_host",
            a_volume_whose_root_is_gone_is_refused_alone_and_goes_on_when_it_is_back,
        ),
        (
            "looks_have_no_limit",
            a_root_that_the_store_does_not_answer_for_holds_up_no_other_volume,
        ),
        (
            "stopped_host_opens_volumes",
            no_volume_goes_live_on_a_host_that_has_stopped,
        ),
        (
            "close_is_sent_for_ever",
            a_close_goes_on_from_a_root_that_somebody_put_back_with_a_higher_sequence,
        ),
    ]);
}
