//! Forks that the log keeps (S6): as durable as a FLUSH when the call ends, usable on this host from then on, and in the
//! store behind it.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use volume::object::root_key;
use volume::{Durability, Fork, ListPlace, OpenError, Volume};

use crate::support::hosts::{close, delete, elsewhere, root_of, try_write};
use crate::support::points::{done, fold, gc, has_root, make_fork, snapshot};
use crate::support::{Environment, Fault, World, with_volume};

/// Makes a fork without waiting for the store.
pub(crate) fn try_take(world: &mut World, parent: &str, name: &str) -> Result<Fork, OpenError> {
    let answer = world.host.fork_volume(parent, name, Durability::Log);
    world.wait(|_| answer.try_take())
}

/// The same, and opens it.
pub(crate) fn take(world: &mut World, parent: &str, name: &str) -> Volume {
    let fork = try_take(world, parent, name).expect("no store is needed");
    assert!(!fork.is_stored);
    world.open(name)
}

pub(crate) const FAULTS: [Fault; 3] = [Fault::LostAnswer, Fault::Outage, Fault::OutageBehind];
pub(crate) const BASE: u8 = 1;
pub(crate) const LATE: u8 = 2;

/// A fork, which is open, of a volume whose blocks 0 to 7 are in the store and 8 to 15 in the log alone, taken in an outage. After that
/// both were written to: the parent everywhere, the fork in blocks 4 and 12.
pub(crate) fn forked_in_an_outage() -> (World, Volume, Volume) {
    let (mut world, parent) = with_volume();
    world.write(&parent, 0, BASE, 8 * 4096);
    world.sync(&parent);
    world.read_fill(&parent, 0, 8 * 4096);
    world.env.outage = true;
    world.write(&parent, 64, LATE, 8 * 4096);
    let fork = take(&mut world, "demo", "branch");
    world.write(&parent, 0, 9, 16 * 4096);
    world.write(&fork, 4 * 8, 5, 4096);
    world.write(&fork, 12 * 8, 6, 4096);
    (world, parent, fork)
}

pub(crate) fn verify_fork(world: &mut World, fork: &Volume) {
    for block in 0..16 {
        let expected = match block {
            4 => 5,
            12 => 6,
            0..8 => BASE,
            _ => LATE,
        };
        assert_eq!(world.read_fill(fork, 8 * block, 4096), expected, "{block}");
    }
}

#[test]
fn a_fork_needs_no_store_and_is_read_and_written_at_once() {
    let (mut world, parent, fork) = forked_in_an_outage();
    assert!(!has_root(&world.env, "branch"));
    // What the log has of the parent is read in the outage, too.
    for (block, fill) in [(8, LATE), (11, LATE), (12, 6), (15, LATE), (4, 5)] {
        assert_eq!(world.read_fill(&fork, 8 * block, 4096), fill);
    }
    world.flush(&fork);
    world.env.outage = false;
    world.pass(60_000);
    assert!(has_root(&world.env, "branch"));
    assert!(!fork.is_unchecked());
    verify_fork(&mut world, &fork);
    assert_eq!(world.read_fill(&parent, 0, 16 * 4096), 9);
    world.sync(&fork);
    fold(&mut world, &parent, 640);
    fold(&mut world, &fork, 1280);
    verify_fork(&mut world, &fork);
    let mut other = elsewhere(&world);
    let fork = other.try_open("branch", true).expect("taken over");
    verify_fork(&mut other, &fork);
}

/// The process dies, or the power fails, with a fork that is open and one that is not.
fn forks_survive(power_fails: bool) {
    let (mut world, _, fork) = forked_in_an_outage();
    world.flush(&fork);
    try_take(&mut world, "demo", "closed").expect("taken");
    let mut env = world.kill();
    env.boot += u8::from(power_fails);
    // Again at once, in an outage, and the parent is never opened.
    let mut env = World::start(env).kill();
    env.outage = false;
    env.versions += 1;
    let mut world = World::start(env);
    let parent = world.open("demo");
    world.pass(60_000);
    let fork = world.open("branch");
    world.pass(10_000);
    verify_fork(&mut world, &fork);
    assert_eq!(world.read_fill(&parent, 0, 16 * 4096), 9);
    let closed = world.open("closed");
    assert_eq!(world.read_fill(&closed, 0, 16 * 4096), 9);
    world.sync(&fork);
    let mut other = elsewhere(&world);
    let fork = other.try_open("branch", true).expect("taken over");
    verify_fork(&mut other, &fork);
}

fn forks_survive_the_process() {
    forks_survive(false);
}

#[test]
fn an_acknowledged_fork_and_what_was_written_to_it_survive_the_death_of_the_process() {
    forks_survive_the_process();
}

#[test]
fn an_acknowledged_fork_and_what_was_flushed_to_it_survive_loss_of_power() {
    forks_survive(true);
}

#[test]
fn a_fork_that_a_start_finds_in_the_log_is_served_in_an_outage_with_what_the_log_has() {
    let (world, _, _) = forked_in_an_outage();
    let mut world = World::start(world.kill());
    assert!(world.env.outage);
    let answer = world.host.open_volume("branch", Default::default());
    let fork = world.wait(|_| answer.try_take()).expect("its log goes on");
    for (block, fill) in [(8, LATE), (11, LATE), (12, 6), (15, LATE), (4, 5)] {
        assert_eq!(world.read_fill(&fork, 8 * block, 4096), fill);
    }
    try_write(&mut world, &fork).expect("written");
    world.env.outage = false;
    let _parent = world.open("demo");
    world.pass(60_000);
    assert!(!fork.is_unchecked());
    assert_eq!(world.read_fill(&fork, 0, 4096), 9);
    assert_eq!(world.read_fill(&fork, 8, 4096), BASE);
}

/// A crash or a lost answer at each request, from the taking of the fork on.
fn a_crash_at_any_request_leaves_one_whole_fork() {
    for (is_away, fault) in [false, true]
        .into_iter()
        .flat_map(|away| FAULTS.map(|fault| (away, fault)))
    {
        for after in 0..60 {
            let (mut world, parent) = with_volume();
            world.write(&parent, 0, BASE, 8 * 4096);
            world.sync(&parent);
            world.env.outage = is_away;
            world.write(&parent, 64, LATE, 8 * 4096);
            let fork = take(&mut world, "demo", "branch");
            world.write(&fork, 4 * 8, 5, 4096);
            world.write(&fork, 12 * 8, 6, 4096);
            world.write(&parent, 0, 9, 16 * 4096);
            (world.env.outage, world.env.fault_after) = (false, Some((after, fault)));
            world.pass(5_000);
            let is_over = world.env.fault_after.is_some();
            let mut env = world.kill();
            (env.outage, env.fault_after) = (false, None);
            let mut world = World::start(env);
            let parent = world.open("demo");
            world.pass(60_000);
            let fork = world.open("branch");
            world.pass(30_000);
            verify_fork(&mut world, &fork);
            assert_eq!(world.read_fill(&parent, 0, 16 * 4096), 9);
            world.sync(&fork);
            if is_over {
                break;
            }
        }
    }
}

#[test]
fn a_crash_or_a_lost_answer_at_any_request_leaves_one_whole_fork_that_goes_on() {
    a_crash_at_any_request_leaves_one_whole_fork();
}

/// Another host makes a volume of the fork's name before the fork has a root, and much is written to the parent.
fn a_fork_without_a_place_is_read_beside_a_busy_parent() {
    let (mut world, parent, fork) = forked_in_an_outage();
    let mut other = elsewhere(&world);
    other.create("branch", 64 << 20);
    let foreign = other.env.objects[&root_key("branch")].clone();
    world.env.versions = other.env.versions + 1;
    world.env.objects.insert(root_key("branch"), foreign);
    world.env.outage = false;
    for round in 0..200_u64 {
        world.write(
            &parent,
            (round % 8) * 2048,
            20 + (round % 200) as u8,
            1 << 20,
        );
        if round % 10 == 0 {
            world.pass(1000);
        }
    }
    world.sync(&parent);
    world.pass(60_000);
    assert!(fork.is_unchecked());
    verify_fork(&mut world, &fork);
    // That volume goes, and the fork has its place.
    let root = root_of(&world.env, "branch");
    assert_ne!(root.volume, fork.hold().volume);
    world.env.objects.remove(&root_key("branch"));
    world.pass(120_000);
    assert!(!fork.is_unchecked());
    verify_fork(&mut world, &fork);
    world.sync(&fork);
    gc(&mut world);
    gc(&mut world);
    verify_fork(&mut world, &fork);
}

#[test]
fn a_fork_whose_name_another_host_took_is_read_beside_a_busy_parent_until_it_has_its_place() {
    a_fork_without_a_place_is_read_beside_a_busy_parent();
}

/// The parent's index is in pages that this process has not read, and the fork has no root for long.
fn index_blocks_of_the_parent_are_read() {
    let (mut world, parent) = with_volume();
    world.write(&parent, 0, BASE, 8 * 4096);
    fold(&mut world, &parent, 640);
    fold(&mut world, &parent, 640);
    let mut world = World::start(world.kill());
    let parent = world.open("demo");
    let mut other = elsewhere(&world);
    world.env.outage = true;
    world.write(&parent, 64, LATE, 8 * 4096);
    let fork = take(&mut world, "demo", "branch");
    other.create("branch", 64 << 20);
    let foreign = other.env.objects[&root_key("branch")].clone();
    world.env.versions = other.env.versions + 1;
    world.env.objects.insert(root_key("branch"), foreign);
    world.env.outage = false;
    world.pass(10_000);
    assert!(fork.is_unchecked());
    assert_eq!(world.read_fill(&fork, 0, 8 * 4096), BASE);
    assert_eq!(world.read_fill(&fork, 640, 4096), 105);
    assert_eq!(world.read_fill(&fork, 64, 8 * 4096), LATE);
}

#[test]
fn a_fork_without_a_root_reads_what_its_parent_has_folded() {
    index_blocks_of_the_parent_are_read();
}

/// The store has everything of both, and the log keeps what the fork reads.
fn what_a_fork_holds_is_not_free() {
    let (mut world, parent) = with_volume();
    world.write(&parent, 0, BASE, 4096);
    world.sync(&parent);
    world.env.outage = true;
    for at in 0..4 {
        world.write(&parent, at * 2048, LATE, 1 << 18);
    }
    let _fork = take(&mut world, "demo", "branch");
    let mut other = World::start(Environment::default());
    other.create("branch", 64 << 20);
    let foreign = other.env.objects[&root_key("branch")].clone();
    world.env.objects.insert(root_key("branch"), foreign);
    world.env.outage = false;
    for at in 0..4 {
        world.write(&parent, at * 2048, 9, 1 << 18);
    }
    world.sync(&parent);
    for at in 0..64 {
        world.write(&parent, at % 8 * 2048, 10, 1 << 18);
        world.sync(&parent);
    }
    world.pass(30_000);
    let held = world.host.usage().pressure_permille;
    world.env.objects.remove(&root_key("branch"));
    world.pass(120_000);
    let after = world.host.usage().pressure_permille;
    assert!(held > after, "{held} is not above {after}");
}

#[test]
fn log_that_a_fork_holds_is_not_told_as_free() {
    what_a_fork_holds_is_not_free();
}

fn a_kept_name_is_taken() {
    let (mut world, _) = with_volume();
    world.env.outage = true;
    try_take(&mut world, "demo", "branch").expect("taken");
    assert!(matches!(
        try_take(&mut world, "demo", "branch"),
        Err(OpenError::Exists(_))
    ));
    assert!(matches!(
        make_fork(&mut world, "demo", "branch"),
        Err(OpenError::Exists(_))
    ));
    world.env.outage = false;
    let spec = volume::VolumeSpec {
        name: "branch".into(),
        bytes: 1 << 20,
        block: 4096,
    };
    let answer = world.host.create_volume(spec);
    let created = world.wait(|_| answer.try_take());
    assert!(matches!(created, Err(OpenError::Exists(_))), "{created:?}");
    world.create("other", 1 << 20);
    let answer = world.host.rename_volume("other", "branch");
    let renamed = world.wait(|_| answer.try_take());
    assert!(matches!(renamed, Err(OpenError::Exists(_))), "{renamed:?}");
}

#[test]
fn the_name_of_a_fork_that_the_log_keeps_is_taken() {
    a_kept_name_is_taken();
}

#[test]
fn a_name_that_the_store_has_is_refused_at_once() {
    let (mut world, _) = with_volume();
    world.create("other", 1 << 20);
    assert!(matches!(
        try_take(&mut world, "demo", "other"),
        Err(OpenError::Exists(_))
    ));
}

#[test]
fn one_that_nobody_opened_is_deleted_and_its_name_is_free_again() {
    let (mut world, parent) = with_volume();
    world.env.outage = true;
    world.write(&parent, 0, 3, 4096);
    try_take(&mut world, "demo", "branch").expect("taken");
    delete(&mut world, "branch");
    world.write(&parent, 0, 4, 4096);
    let fork = take(&mut world, "demo", "branch");
    assert_eq!(world.read_fill(&fork, 0, 4096), 4);
    let answer = world.host.delete_volume("branch");
    let deleted = world.wait(|_| answer.try_take());
    assert!(matches!(deleted, Err(OpenError::InUse(_))), "{deleted:?}");
    world.env.outage = false;
    world.pass(60_000);
    close(&mut world, &fork);
    delete(&mut world, "branch");
    assert!(root_of(&world.env, "branch").deleted);
}

#[test]
fn a_volume_is_closed_when_its_forks_are_in_the_store() {
    let (mut world, parent) = with_volume();
    world.write(&parent, 0, 3, 4096);
    try_take(&mut world, "demo", "branch").expect("taken");
    close(&mut world, &parent);
    assert!(has_root(&world.env, "branch"));
    let fork = world.open("branch");
    assert_eq!(world.read_fill(&fork, 0, 4096), 3);
}

#[test]
fn a_fork_is_closed_when_it_is_in_the_store() {
    let (mut world, _, fork) = forked_in_an_outage();
    let answer = world.host.close_volume(&fork);
    world.pass(5_000);
    assert!(answer.try_take().is_none());
    world.env.outage = false;
    world.wait(|_| answer.try_take()).expect("closed");
    assert_eq!(root_of(&world.env, "branch").owner, None);
    let fork = world.open("branch");
    verify_fork(&mut world, &fork);
}

#[test]
fn forks_and_snapshots_of_a_fork_wait_until_it_is_in_the_store() {
    let (mut world, _, _fork) = forked_in_an_outage();
    let answer = world.host.fork_volume("branch", "twig", Durability::Log);
    world.pass(2_000);
    assert!(answer.try_take().is_none());
    world.env.outage = false;
    world.wait(|_| answer.try_take()).expect("forked");
    let twig = world.open("twig");
    world.pass(60_000);
    verify_fork(&mut world, &twig);
    snapshot(&mut world, "twig@one").expect("taken");
}

/// Another host takes the parent before the store has the fork.
#[test]
fn the_service_of_a_fork_ends_when_another_host_goes_on_without_what_it_began_with() {
    let (mut world, _, fork) = forked_in_an_outage();
    let mut other = elsewhere(&world);
    let taken = other.try_open("demo", true).expect("taken over");
    other.write(&taken, 0, 77, 4096);
    other.sync(&taken);
    world.env.objects = other.env.objects.clone();
    world.env.versions = other.env.versions + 1;
    world.env.outage = false;
    world.pass(120_000);
    assert!(fork.check_serving().is_err());
    assert!(try_write(&mut world, &fork).is_err());
    assert!(!has_root(&world.env, "branch"));
}

#[test]
fn forks_that_the_log_keeps_are_listed_by_name_among_the_others() {
    let (mut world, _) = with_volume();
    world.create("charlie", 1 << 20);
    world.env.outage = true;
    for name in ["alpha", "bravo", "echo"] {
        try_take(&mut world, "demo", name).expect("taken");
    }
    world.env.outage = false;
    world.env.failing_creates = usize::MAX;
    for limit in 1..6 {
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let answer = world.host.list_volumes(ListPlace { after, limit });
            let part = done(&mut world, &answer);
            names.extend(part.items.into_iter().map(|info| info.name));
            after = part.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(names, ["alpha", "bravo", "charlie", "demo", "echo"]);
    }
    let answer = world.host.show_volume("bravo");
    assert_eq!(done(&mut world, &answer).bytes, 64 << 20);
}

/// One look at the name, and behind the call a pin, a look at the parent, and the root.
#[test]
fn making_one_costs_four_requests() {
    let (mut world, parent) = with_volume();
    world.write(&parent, 0, 3, 4096);
    world.sync(&parent);
    world.pass(60_000);
    let count = |world: &World| world.env.requests.values().sum::<usize>();
    let before = count(&world);
    try_take(&mut world, "demo", "branch").expect("taken");
    world.pass(5_000);
    assert_eq!(count(&world) - before, 4);
}

#[test]
#[cfg_attr(not(feature = "planted"), ignore = "needs --features planted")]
fn planted_bugs_are_seen() {
    canary::each_is_seen(&[
        ("recovery_forgets_points", forks_survive_the_process),
        (
            "fork_base_pins_nothing",
            a_fork_without_a_place_is_read_beside_a_busy_parent,
        ),
        ("kept_fork_has_no_name", a_kept_name_is_taken),
        (
            "held_segments_count_as_spare",
            what_a_fork_holds_is_not_free,
        ),
        (
            "fork_without_a_root_has_no_ancestors",
            index_blocks_of_the_parent_are_read,
        ),
        (
            "served_fork_has_no_holder",
            a_crash_at_any_request_leaves_one_whole_fork,
        ),
    ]);
}
