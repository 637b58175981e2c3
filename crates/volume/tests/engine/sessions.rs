//! Log sessions: each start of a server on a log is told apart from every other, so that rings are
//! believed only where they continue exactly what the last server of this log left.

use std::sync::Arc;

use blkmq::io::{Backend, FileId, Op, Step};
use volume::Volume;
use volume::driver::{DiskError, Outcome};

use crate::support::{Environment, HeapRings, World, options, waker};

const GIB: u64 = 1 << 30;

fn with_volume() -> (World, Volume) {
    let mut world = World::new();
    world.create("demo", GIB);
    let volume = world.open("demo");
    (world, volume)
}

/// What the process left, started with rings in another directory.
fn restart_with_other_rings(mut env: Environment, rings: Arc<HeapRings>) -> World {
    env.rings = rings;
    World::start(env)
}

#[test]
fn a_start_that_may_not_begin_leaves_the_log_as_it_was() {
    let (mut world, volume) = with_volume();
    for block in 0..5 {
        world.write(&volume, block * 8, block as u8 + 1, 4096);
    }
    let env = world.kill();
    let before = env.written.clone();
    let mut rings = Some(Arc::new(HeapRings::default()));
    let mut env = Environment {
        refuses_start: true,
        ..env
    };
    // Also where it finds that something was lost, which the start that begins has to say.
    for rings in [None, rings.take()] {
        if let Some(rings) = rings {
            env.rings = rings;
        }
        let refused = World::try_start(env, options()).err().expect("refused");
        env = refused.1;
        assert!(env.written == before, "written");
    }
    env.refuses_start = false;
    let world = World::start(env);
    assert!(!world.report.rings_lost.is_empty());
}

#[test]
fn a_ring_that_a_start_did_not_find_is_never_replayed_later() {
    let (mut world, volume) = with_volume();
    for block in 0..5 {
        world.write(&volume, block * 8, 1, 4096);
    }
    world.flush(&volume);
    for block in 5..20 {
        world.write(&volume, block * 8, 1, 4096);
    }
    let first = Arc::clone(&world.env.rings);
    let left = first.names();
    // Another --ring-dir: a loss that is reported, and the log goes on without those writes.
    let mut world = restart_with_other_rings(world.kill(), Arc::default());
    assert_eq!(world.report.rings_lost, ["demo"]);
    let volume = world.open("demo");
    for block in 0..5 {
        world.write(&volume, block * 8, 2, 4096);
    }
    world.flush(&volume);
    let second = Arc::clone(&world.env.rings);
    // And back. LSNs beyond those of the log are in the ring; they are of another history.
    let mut world = restart_with_other_rings(world.kill(), Arc::clone(&first));
    assert_eq!(world.report.ring_entries, 0);
    assert_eq!(world.report.rings_lost, ["demo"]);
    let stale = &world.report.stale_rings;
    assert_eq!(stale.len(), 1, "it is named");
    assert!(left.contains(&stale[0].ring) && stale[0].aside.is_ok());
    assert!(stale[0].ring.session < world.host.session().expect("started"));
    assert_eq!(first.aside(), [stale[0].ring], "and kept");
    assert!(second.names().len() > 1, "the other directory was not seen");
    let volume = world.open("demo");
    for block in 0..20 {
        let expected = if block < 5 { 2 } else { 0 };
        assert_eq!(world.read_fill(&volume, block * 8, 4096), expected);
    }
    // It is said once, and what is kept is not looked at again.
    let world = World::start(world.kill());
    assert!(world.report.stale_rings.is_empty() && world.report.rings_lost.is_empty());
}

#[test]
fn rings_whose_names_are_gone_are_put_back_and_hold_what_they_held() {
    let (mut world, volume) = with_volume();
    for block in 0..5 {
        world.write(&volume, block * 8, 1, 4096);
    }
    world.flush(&volume);
    for block in 5..20 {
        world.write(&volume, block * 8, 2, 4096);
    }
    let gone = world.env.rings.names();
    world.env.rings.lose_all();
    world.host.put_back_rings(&gone).expect("there is room");
    assert_eq!(world.env.rings.names(), gone);
    world.write(&volume, 0, 3, 4096);
    let mut world = World::start(world.kill());
    assert!(world.report.rings_lost.is_empty());
    assert_eq!(world.report.ring_entries, 16);
    let volume = world.open("demo");
    for block in 0..20 {
        let expected = [3, 1, 1, 1, 1].get(block).copied().unwrap_or(2);
        assert_eq!(world.read_fill(&volume, block as u64 * 8, 4096), expected);
    }
    // The next server's rings are not those: what is not this session's is left alone.
    let names = world.env.rings.names();
    world.host.put_back_rings(&gone).expect("nothing to do");
    assert_eq!(world.env.rings.names(), names);
}

#[test]
fn a_poisoned_log_is_known_from_rings_that_were_put_back() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.flush(&volume);
    let gone = world.env.rings.names();
    world.env.rings.lose_all();
    world.host.put_back_rings(&gone).expect("there is room");
    world.write(&volume, 0, 2, 4096);
    let Step::Sync(_) = volume.begin(&Op::Flush, &waker()) else {
        panic!("there is something to make durable")
    };
    let sync = world.host.take_commit_requests();
    let failed = Outcome::Disk(Err(DiskError::new("input/output error")));
    world.host.complete(sync[0].id, failed);
    // The process dies before the mark in the superblock is written.
    assert!(World::start(world.kill()).report.poisoned);
}

#[test]
fn each_start_begins_a_session_that_the_log_knows_from_then_on() {
    let mut world = World::new();
    let mut sessions = vec![world.host.session().expect("started")];
    for _ in 0..3 {
        world = World::start(world.kill());
        sessions.push(world.host.session().expect("started"));
    }
    let numbers: Vec<u64> = sessions.iter().map(|session| session.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    assert!(
        sessions
            .iter()
            .all(|session| world.host.has_had_session(*session))
    );
    // Two servers that start from one state part for good.
    let env = world.kill();
    let mut copy = env.copy();
    copy.versions += 50;
    let (one, two) = (World::start(env), World::start(copy));
    let (of_one, of_two) = (one.host.session(), two.host.session());
    let (of_one, of_two) = (of_one.expect("started"), of_two.expect("started"));
    assert_eq!(of_one.number, of_two.number);
    assert!(!one.host.has_had_session(of_two) && !two.host.has_had_session(of_one));
}

#[test]
fn rings_of_a_copy_of_the_log_are_named_and_left_alone() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    let mut copy = world.env.copy();
    (copy.versions, copy.rings) = (copy.versions + 50, Arc::clone(&world.env.rings));
    // The original goes on, and leaves a write in its ring.
    let mut world = World::start(world.kill());
    let volume = world.open("demo");
    world.write(&volume, 8, 2, 4096);
    let session = world.host.session().expect("started");
    let of_original = world.env.rings.names();
    // The copy starts in the same directory, in the same boot, and does not touch that.
    let copy = World::start(copy);
    assert_eq!(copy.report.foreign_sessions, [session]);
    assert!(copy.report.stale_rings.is_empty());
    let names = copy.env.rings.names();
    assert!(of_original.iter().all(|ring| names.contains(ring)));
    let mut world = World::start(world.kill());
    assert_eq!(world.report.ring_entries, 1);
    assert!(world.report.rings_lost.is_empty());
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 8, 4096), 2);
}

#[test]
fn a_start_that_ends_before_it_serves_costs_no_ring() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.flush(&volume);
    world.write(&volume, 8, 2, 4096);
    let before = world.env.copy();
    // The log as the start left it, and the rings as they were.
    let rings = Arc::new(world.env.rings.copy());
    let mut env = World::start(world.kill()).kill();
    env.rings = rings;
    let mut world = World::start(env);
    assert!(world.report.rings_lost.is_empty() && world.report.stale_rings.is_empty());
    assert_eq!(world.env.rings.names().len(), 1, "the old ones are gone");
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 8, 4096), 2);
    // The start that never came so far changed nothing.
    let mut world = World::start(before);
    assert_eq!(world.report.ring_entries, 1);
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 8, 4096), 2);
}

#[test]
fn a_loss_is_reported_again_by_the_next_start_if_the_first_could_not() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.flush(&volume);
    world.write(&volume, 8, 2, 4096);
    let mut env = world.kill();
    env.rings = Arc::default();
    let journal = 8192..827_392;
    let world = World::start(env);
    assert_eq!(world.report.rings_lost, ["demo"]);
    // As it would be had the process died when its checkpoint was durable: without the round that
    // says that the loss was reported.
    let mut unheard = world.env.copy();
    let log = unheard.files.get_mut(&FileId::LOG).expect("the log");
    let half = (journal.end - journal.start) / 2;
    let halves = [journal.start, journal.start + half];
    for half in halves {
        log[half + 4096..half + 8192].fill(0);
    }
    let world = World::start(unheard);
    assert_eq!(world.report.rings_lost, ["demo"]);
    let world = World::start(world.kill());
    assert!(world.report.rings_lost.is_empty(), "now it was said");
}

#[test]
fn a_sync_that_fails_while_no_volume_is_open_is_known_to_the_next_start() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.flush(&volume);
    // One server that opens nothing, and whose marks on disk are lost.
    let mut world = World::start(world.kill());
    let superblocks = world.env.files[&FileId::LOG][..8192].to_vec();
    world.env.failing_syncs = 1;
    world.create("other", GIB);
    let other = world.try_open("other", false);
    assert!(
        other.is_err(),
        "its record in the log cannot be made durable"
    );
    let mut env = world.kill();
    let log = env.files.get_mut(&FileId::LOG).expect("the log");
    log[..8192].copy_from_slice(&superblocks);
    let mut world = World::start(env);
    assert!(world.report.poisoned);
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
    let write = Op::Write {
        sector: 0,
        sectors: 8,
        fua: false,
    };
    assert!(world.request(&volume, write, &mut [2; 4096]).is_err());
}

#[cfg(feature = "planted")]
#[test]
#[should_panic(expected = "refused")]
fn a_start_that_begins_without_permission_is_seen() {
    canary::with(
        "start_begins_without_permission",
        a_start_that_may_not_begin_leaves_the_log_as_it_was,
    );
}
