//! Volumes come and go: they are closed and opened elsewhere, grow, are listed and deleted, and leave their name.

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, FileId, Op, Step};
use volume::OpenError;

use crate::support::points::whole_list;
use crate::support::{Environment, World, waker, with_volume};

const MIB: u64 = 1 << 20;

#[test]
fn a_closed_volume_is_given_back_and_opens_anywhere() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 7, 4096);
    let answer = world.host.close_volume(&volume);
    world.wait(|_| answer.try_take()).expect("closed");
    let error = world.request(&volume, Op::Flush, &mut []);
    assert_eq!(error, Err(ErrorKind::Closed));
    let env = Environment {
        objects: world.kill().objects,
        versions: 99,
        ..Environment::default()
    };
    let mut world = World::start(env);
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 0, 4096), 7);
}

#[test]
fn a_fenced_host_completes_no_more_writes_and_keeps_its_tail_for_rescue() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    world.write(&volume, 0, 2, 4096);
    world.flush(&volume);
    let objects = std::mem::take(&mut world.env.objects);
    let mut other = World::start(Environment {
        objects,
        versions: 5000,
        ..Environment::default()
    });
    let theirs = other.try_open("demo", true).expect("taken over");
    other.write(&theirs, 8, 3, 4096);
    other.sync(&theirs);
    world.env.objects = std::mem::take(&mut other.env.objects);
    let answer = world.host.sync(&volume);
    let error = world.wait(|_| answer.try_take()).expect_err("fenced");
    assert!(matches!(error, OpenError::Fenced(_)));
    let op = Op::Write {
        sector: 0,
        sectors: 8,
        fua: false,
    };
    assert_eq!(
        world.request(&volume, op, &mut [0; 4096]),
        Err(ErrorKind::Fenced)
    );
    let mut world = World::start(world.kill());
    let volume = world.try_open("demo", true).expect("taken back");
    assert_eq!(
        world.read_fill(&volume, 0, 4096),
        1,
        "the tail is not replayed"
    );
    assert_eq!(world.read_fill(&volume, 8, 4096), 3);
    world.pass(100);
    let world = World::start(world.kill());
    let rescue: Vec<bool> = world.report.tails.iter().map(|tail| tail.rescue).collect();
    assert!(
        rescue.contains(&true),
        "and it is still there: {:?}",
        world.report.tails
    );
}

#[test]
fn a_volume_that_was_grown_takes_writes_there_and_keeps_its_size_and_never_shrinks() {
    let (mut world, volume) = with_volume();
    let (old_end, new_bytes) = (64 * MIB / 512, 80 * MIB);
    world.write(&volume, old_end - 8, 1, 4096);
    let beyond = Op::Write {
        sector: old_end,
        sectors: 8,
        fua: false,
    };
    assert_eq!(
        world.request(&volume, beyond, &mut [2; 4096]),
        Err(ErrorKind::Invalid)
    );
    world.grow(&volume, new_bytes).unwrap();
    assert_eq!(volume.geometry().bytes, new_bytes);
    assert_eq!(world.read_fill(&volume, old_end, 4096), 0);
    world.write(&volume, old_end, 2, 4096);
    // It was clean and idle: growing alone must bring a root to the store, too.
    world.sync(&volume);
    world.grow(&volume, new_bytes + 4096).unwrap();
    world.grow(&volume, new_bytes + 4096).unwrap();
    for bad in [new_bytes, 0, new_bytes + 6000, 1 << 60] {
        let refused = world.grow(&volume, bad);
        assert!(
            matches!(refused, Err(OpenError::Invalid(_))),
            "{bad}: {refused:?}"
        );
    }
    let mut world = World::start(world.kill());
    let volume = world.open("demo");
    assert_eq!(volume.geometry().bytes, new_bytes + 4096);
    assert_eq!(volume.info().bytes, new_bytes + 4096);
    assert_eq!(world.read_fill(&volume, old_end - 8, 4096), 1);
    assert_eq!(world.read_fill(&volume, old_end, 4096), 2);
}

#[test]
fn volumes_are_listed_and_deleted_only_when_nobody_has_them_open() {
    let (mut world, volume) = with_volume();
    world.create("other", MIB);
    let answer = world.host.list_volumes(whole_list());
    let names: Vec<String> = world
        .wait(|_| answer.try_take())
        .expect("listed")
        .items
        .into_iter()
        .map(|info| info.name)
        .collect();
    assert_eq!(names, ["demo", "other"]);
    let answer = world.host.delete_volume("demo");
    let error = world.wait(|_| answer.try_take()).expect_err("it is open");
    assert!(matches!(error, OpenError::InUse(_)));
    let answer = world.host.close_volume(&volume);
    world.wait(|_| answer.try_take()).expect("closed");
    let answer = world.host.delete_volume("demo");
    world.wait(|_| answer.try_take()).expect("deleted");
    assert!(matches!(
        world.try_open("demo", false),
        Err(OpenError::NoSuchVolume(_))
    ));
}

#[test]
fn a_name_is_free_after_deletion_and_the_new_volume_is_empty() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 7, 4096);
    let answer = world.host.close_volume(&volume);
    world.wait(|_| answer.try_take()).expect("closed");
    let answer = world.host.delete_volume("demo");
    world.wait(|_| answer.try_take()).expect("deleted");
    let answer = world.host.delete_volume("demo");
    let again = world.wait(|_| answer.try_take());
    assert!(matches!(again, Err(OpenError::NoSuchVolume(_))));
    assert!(!world.env.store_requests.contains_key("delete"));
    world.create("demo", 2 * MIB);
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 0, 4096), 0);
}

#[test]
fn a_root_that_was_copied_to_another_name_is_refused() {
    let mut world = World::new();
    world.create("demo", MIB);
    let copy = world.env.objects[&volume::object::root_key("demo")].clone();
    let key = volume::object::root_key("copy");
    world.env.objects.insert(key, copy);
    let refused = world.try_open("copy", false);
    assert!(matches!(refused, Err(OpenError::Corrupt(why)) if why.contains("\"demo\"")));
}

#[test]
fn a_volume_that_was_given_back_is_not_kept_for_rescue_if_a_crash_follows() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 7, 4096);
    world.flush(&volume);
    world.env.store_ms = 20;
    let answer = world.host.close_volume(&volume);
    let key = volume::object::root_key("demo");
    let is_given_back = |world: &World| {
        let root = volume::object::root::Root::decode(&world.env.objects[&key].0);
        root.expect("a root").owner.is_none()
    };
    let before = loop {
        let log = world.env.files[&FileId::LOG].clone();
        world.pass(1);
        if is_given_back(&world) {
            break log;
        }
    };
    drop(answer);
    // The host loses power: nothing that the log learnt since the root was updated was durable.
    let mut env = world.kill();
    env.files.insert(FileId::LOG, before);
    env.rings.lose_all();
    env.boot = 2;
    env.store_ms = 0;
    let mut world = World::start(env);
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 0, 4096), 7);
    world.run_until_idle();
    let world = World::start(world.kill());
    assert!(
        world.report.tails.iter().all(|tail| !tail.rescue),
        "{:?}",
        world.report.tails
    );
}

#[test]
fn a_fetch_given_up_with_its_volume_fails_no_read_of_the_next_opening() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 7, 4096);
    let answer = world.host.close_volume(&volume);
    world.wait(|_| answer.try_take()).expect("closed");
    let env = Environment {
        objects: world.kill().objects,
        versions: 99,
        ..Environment::default()
    };
    let mut world = World::start(env);
    let volume = world.open("demo");
    let op = Op::Read {
        sector: 0,
        sectors: 8,
    };
    world.env.outage = true;
    assert!(matches!(volume.begin(&op, &waker()), Step::Park(_)));
    world.run_until_idle();
    world.env.outage = false;
    let answer = world.host.close_volume(&volume);
    world.run_until_idle();
    answer.try_take().expect("at once").expect("closed");
    // The fetch tries again, in vain, and finds its volume closed.
    world.env.outage = true;
    world.pass(1500);
    world.env.outage = false;
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 0, 4096), 7);
}
