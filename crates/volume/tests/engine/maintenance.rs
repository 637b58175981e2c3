//! Volumes that nobody has open are compacted, too, and nobody who wants one notices more than that it was closed.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use volume::hostlog::names::record_of_key;
use volume::object::root::Root;
use volume::{CompactOptions, OpenError, OpenMode, Volume};

use crate::support::compactions::{BLOCK, BLOCKS, Disk, pack_bytes, verify};
use crate::support::hosts::{
    close, delete, elsewhere, hand_over, open_bound, other_host, root_of, taken_over,
};
use crate::support::points::{done, gc, has_root, make_fork, snapshot};
use crate::support::rebuilds::{of, remove_below, try_rebuild};
use crate::support::{Environment, World, compacting};

/// Closed volumes are looked at as often as open ones.
fn often() -> CompactOptions {
    CompactOptions {
        closed_looks: 1,
        ..compacting()
    }
}

/// The same, and so slow that a test can look on.
fn slowly() -> CompactOptions {
    CompactOptions {
        bytes_per_s: 256 << 10,
        ..often()
    }
}

/// The store of a volume that was overwritten at random and closed, with its last host, and what it holds.
fn aged() -> (Environment, Vec<u64>) {
    let mut disk = Disk::new(None);
    disk.age(40);
    close(&mut disk.world, &disk.volume);
    (disk.world.kill(), disk.blocks)
}

fn start(env: Environment, compact: CompactOptions) -> World {
    World::start(Environment {
        compact: Some(compact),
        ..env
    })
}

/// A host that has just taken the volume to maintain it.
fn maintaining(compact: CompactOptions) -> (World, Vec<u64>) {
    let (env, blocks) = aged();
    let mut world = start(env, compact);
    world.wait(|world| is_maintained(&world.env).then_some(()));
    (world, blocks)
}

fn is_maintained(env: &Environment) -> bool {
    let root = root_of(env, "demo");
    root.owner.is_some() && root.is_maintained()
}

fn is_free(root: &Root) -> bool {
    root.owner.is_none() && root.claimant.is_none() && !root.is_maintained()
}

fn open(world: &mut World) -> Result<Volume, OpenError> {
    world.try_open("demo", false)
}

#[test]
fn a_volume_that_nobody_has_open_is_compacted_and_closed_again() {
    let (env, blocks) = aged();
    let before = pack_bytes(&env);
    let mut world = start(env, often());
    world.pass(3000);
    for _ in 0..3 {
        gc(&mut world);
        world.pass(1000);
    }
    let (report, after) = (world.host.compaction(), pack_bytes(&world.env));
    let live = BLOCKS * BLOCK;
    println!("{live} bytes alive; packs {before} before, {after} after; {report:?}");
    assert!(before > 2 * live, "there is something to do: {before}");
    assert!(after <= 2 * live + live / 16, "{after} bytes for {live}");
    assert_eq!((report.failures, report.unreadable_chunks), (0, 0));
    assert!(report.maintained > 0, "{report:?}");
    assert!(is_free(&root_of(&world.env, "demo")));
    assert!(world.host.unserved_tails().is_empty());
    let volume = open(&mut world).expect("opened");
    verify(&mut world, &volume, &blocks);
}

#[test]
fn a_closed_volume_with_nothing_to_do_costs_one_read_of_its_root_for_each_walk() {
    let (env, _) = aged();
    let mut world = start(env, often());
    world.pass(5000);
    let root = root_of(&world.env, "demo");
    let before = world.env.requests.clone();
    world.pass(2000);
    let mut since = world.env.requests.clone();
    for (kind, count) in &before {
        since.entry(kind.clone()).and_modify(|now| *now -= count);
    }
    since.retain(|(kind, _), count| *count > 0 && *kind != "list");
    let looks = since.remove(&("get", "volumes".to_owned())).unwrap_or(0);
    assert!((10..=21).contains(&looks), "{looks} walks in 2 s");
    assert!(since.is_empty(), "{since:?}");
    assert_eq!(root_of(&world.env, "demo"), root, "nobody took it");
}

#[test]
fn whoever_opens_it_here_waits_for_the_present_step_only_and_it_is_nobodys_to_take_then() {
    let (mut world, blocks) = maintaining(slowly());
    let before = world.now_ns;
    let volume = open(&mut world).expect("opened");
    let waited_ms = (world.now_ns - before) / 1_000_000;
    // Reading all of it at that rate takes 8 seconds.
    assert!(waited_ms < 5000, "{waited_ms}");
    assert!(!root_of(&world.env, "demo").is_maintained());
    verify(&mut world, &volume, &blocks);
    let mut other = elsewhere(&world);
    assert!(matches!(open(&mut other), Err(OpenError::Held { .. })));
    world.pass(3000);
    verify(&mut world, &volume, &blocks);
}

#[test]
fn another_host_takes_it_without_being_asked_to_take_over() {
    let (mut world, blocks) = maintaining(slowly());
    let mut other = other_host(&mut world);
    let volume = open(&mut other).expect("opened");
    verify(&mut other, &volume, &blocks);
    other.write_noise(&volume, 0, 7777, BLOCK);
    other.sync(&volume);
    let root = root_of(&other.env, "demo");
    assert!(!root.is_maintained() && root.owner.is_some());
    // The first one goes on, finds out, and leaves nothing behind.
    hand_over(&mut other, &mut world);
    world.pass(10_000);
    assert_eq!(root_of(&world.env, "demo"), root);
    assert!(world.host.unserved_tails().is_empty());
    assert!(matches!(open(&mut world), Err(OpenError::Held { .. })));
    hand_over(&mut world, &mut other);
    let mut blocks = blocks;
    blocks[0] = 7777;
    verify(&mut other, &volume, &blocks);
    close(&mut other, &volume);
}

#[test]
fn deleting_forking_and_snapshots_wait_for_it_on_its_host_and_take_it_on_others() {
    for is_here in [true, false] {
        for what in ["delete", "fork", "snapshot", "restore", "rename"] {
            let (env, blocks) = aged();
            let mut world = start(env, slowly());
            if what == "restore" {
                snapshot(&mut world, "demo@before").expect("taken");
            }
            world.wait(|world| is_maintained(&world.env).then_some(()));
            if !is_here {
                world = other_host(&mut world);
            }
            match what {
                "delete" => delete(&mut world, "demo"),
                "fork" => make_fork(&mut world, "demo", "fork").expect("forked"),
                "snapshot" => drop(snapshot(&mut world, "demo@now").expect("taken")),
                "restore" => {
                    let answer = world.host.restore_volume("demo@before", "demo@kept");
                    drop(done(&mut world, &answer));
                }
                _ => {
                    let answer = world.host.rename_volume("demo", "else");
                    drop(done(&mut world, &answer));
                }
            }
            let (name, other) = match what {
                "delete" => continue,
                "fork" => ("fork", "demo"),
                "rename" => ("else", "else"),
                _ => ("demo", "demo"),
            };
            // As durable as it was said to be, also where this host is lost now.
            assert!(has_root(&world.env, name), "{what}, here: {is_here}");
            let mut last = elsewhere(&world);
            for name in [name, other] {
                if name == "fork" || !is_maintained_any(&last.env, name) {
                    let volume = last.try_open(name, false).expect("opened");
                    verify(&mut last, &volume, &blocks);
                    close(&mut last, &volume);
                }
            }
        }
    }
}

fn is_maintained_any(env: &Environment, name: &str) -> bool {
    root_of(env, name).is_maintained()
}

#[test]
fn a_maintenance_that_was_cut_short_is_ended_by_the_next_walk_or_by_whoever_opens_it() {
    let (world, blocks) = maintaining(slowly());
    let env = world.kill();
    let mut next = start(env.copy(), often());
    next.wait(|world| is_free(&root_of(&world.env, "demo")).then_some(()));
    let volume = open(&mut next).expect("opened");
    verify(&mut next, &volume, &blocks);
    let mut idle = World::start(Environment {
        compact: None,
        ..env.copy()
    });
    let volume = open(&mut idle).expect("opened");
    assert!(!root_of(&idle.env, "demo").is_maintained());
    verify(&mut idle, &volume, &blocks);
    // A host that knows nothing of the one that died waits until it has seen that it does not go on.
    let mut other = World::start(Environment {
        objects: env.objects.clone(),
        versions: env.versions + 5000,
        compact: Some(often()),
        ..Environment::default()
    });
    other.wait(|world| is_free(&root_of(&world.env, "demo")).then_some(()));
    let volume = open(&mut other).expect("opened");
    verify(&mut other, &volume, &blocks);
}

/// The maintainer dies, and its log is damaged; for whoever wants the volume that is nothing.
fn the_log_of_a_maintainer_is_not_read() {
    let (mut world, blocks) = maintaining(slowly());
    world.env.store_ms = 50;
    // A record names what an update of the root is about to name.
    world.wait(|world| (is_maintained(&world.env) && has_record_behind(&world.env)).then_some(()));
    let mut env = world.kill();
    for (key, (data, _)) in &mut env.objects {
        if key.contains("/log/") {
            data.fill(7);
        }
    }
    let start_other = |compact| {
        World::start(Environment {
            objects: env.objects.clone(),
            versions: env.versions + 5000,
            compact,
            ..Environment::default()
        })
    };
    let mut other = start_other(None);
    make_fork(&mut other, "demo", "fork").expect("forked");
    for name in ["demo", "fork"] {
        let volume = other.try_open(name, false).expect("opened");
        verify(&mut other, &volume, &blocks);
        other.write_noise(&volume, 0, blocks[0], BLOCK);
        close(&mut other, &volume);
    }
    // Nor if its index is made anew.
    let mut other = start_other(None);
    assert!(remove_below(&mut other, "indexes/") > 0, "it has an index");
    try_rebuild(&mut other, &of("demo")).unwrap_or_else(|error| panic!("{error}"));
    let volume = open(&mut other).expect("opened");
    verify(&mut other, &volume, &blocks);
    // Nor for another maintainer, nor for the third, which takes it from that one.
    let mut other = start_other(Some(slowly()));
    let holder = |env: &Environment| root_of(env, "demo").owner.map(|owner| owner.host);
    let before = holder(&other.env);
    other.wait(|world| (holder(&world.env) != before).then_some(()));
    let volume = open(&mut other).expect("opened");
    verify(&mut other, &volume, &blocks);
}

/// Whether the log of the only host has records that the root has not passed.
fn has_record_behind(env: &Environment) -> bool {
    let mark = root_of(env, "demo").mark;
    let mut records = env.objects.keys().filter_map(|key| record_of_key(key));
    records.any(|(_, position)| position > mark)
}

#[test]
fn a_volume_whose_maintainer_died_is_had_though_the_log_of_that_host_is_damaged() {
    the_log_of_a_maintainer_is_not_read();
}

#[test]
fn a_client_never_serves_under_the_claim_of_a_maintenance() {
    let (env, blocks) = aged();
    let mut world = start(env, often());
    // The store is gone between the claim and the adoption.
    world.env.store_ms = 50;
    world.wait(|world| root_of(&world.env, "demo").is_maintained().then_some(()));
    world.env.outage = true;
    assert!(world.host.set_compact_interval(0));
    world.wait(|world| (world.host.compaction().failures > 0).then_some(()));
    world.env.outage = false;
    let volume = open(&mut world).expect("opened");
    assert!(!root_of(&world.env, "demo").is_maintained());
    verify(&mut world, &volume, &blocks);
}

#[test]
fn no_start_finds_anything_of_a_maintained_volume_in_the_log() {
    let (world, _) = maintaining(slowly());
    let mut next = World::start(Environment {
        compact: None,
        ..world.kill()
    });
    // A server attaches what its log has of volumes, and serves it, also while the store is away.
    assert!(next.host.unserved_tails().is_empty(), "found");
    let answer = next.host.open_unchecked("demo", OpenMode::default());
    assert!(next.wait(|_| answer.try_take()).is_err());
}

#[test]
fn a_maintenance_leaves_the_volume_as_it_was_closed_for_a_disk_that_is_still_there() {
    let mut disk = Disk::new(None);
    disk.age(40);
    let hold = disk.volume.hold();
    close(&mut disk.world, &disk.volume);
    let mut world = start(disk.world.kill(), often());
    world.wait(|world| (world.host.compaction().maintained > 0).then_some(()));
    world.wait(|world| is_free(&root_of(&world.env, "demo")).then_some(()));
    let volume = open_bound(&mut world, hold).expect("goes on");
    verify(&mut world, &volume, &disk.blocks);
}

#[test]
fn a_disk_that_is_still_there_goes_on_while_another_host_maintains_the_volume() {
    let mut disk = Disk::new(None);
    disk.age(40);
    let hold = disk.volume.hold();
    close(&mut disk.world, &disk.volume);
    let mut other = World::start(Environment {
        compact: Some(slowly()),
        versions: disk.world.env.versions + 5000,
        ..Environment::default()
    });
    hand_over(&mut disk.world, &mut other);
    other.wait(|world| is_maintained(&world.env).then_some(()));
    hand_over(&mut other, &mut disk.world);
    let volume = open_bound(&mut disk.world, hold).expect("goes on");
    verify(&mut disk.world, &volume, &disk.blocks);
}

#[test]
fn what_is_kept_for_rescue_of_an_earlier_hold_does_not_end_a_disks_hold() {
    let mut disk = Disk::new(None);
    disk.world.env.outage = true;
    disk.write(0);
    disk.world.flush(&disk.volume);
    let (mut other, volume) = taken_over(&disk.world);
    close(&mut other, &volume);
    disk.world = World::start(disk.world.kill());
    disk.world.env.outage = false;
    hand_over(&mut other, &mut disk.world);
    disk.volume = open(&mut disk.world).expect("opened");
    let kept = disk.world.host.unserved_tails();
    assert!(kept.len() == 1 && kept[0].rescue, "{kept:?}");
    disk.age(40);
    let hold = disk.volume.hold();
    close(&mut disk.world, &disk.volume);
    // Another host maintains it, and then it is closed again.
    let mut other = World::start(Environment {
        compact: Some(slowly()),
        versions: disk.world.env.versions + 5000,
        ..Environment::default()
    });
    hand_over(&mut disk.world, &mut other);
    other.wait(|world| is_maintained(&world.env).then_some(()));
    let env = disk.world.kill();
    let goes_on = |objects| {
        let mut world = World::start(Environment {
            objects,
            ..env.copy()
        });
        let volume = open_bound(&mut world, hold).expect("goes on");
        verify(&mut world, &volume, &disk.blocks);
        assert_eq!(world.host.unserved_tails().len(), 1, "it is still kept");
    };
    goes_on(other.env.objects.clone());
    other.wait(|world| is_free(&root_of(&world.env, "demo")).then_some(()));
    goes_on(other.env.objects.clone());
}

/// The store of a closed volume that has deltas and no garbage, and what it holds.
fn unfolded() -> (Environment, Vec<u64>) {
    let mut disk = Disk::new(None);
    (0..8).for_each(|block| disk.write(block));
    disk.sync();
    close(&mut disk.world, &disk.volume);
    assert!(!root_of(&disk.world.env, "demo").deltas.is_empty());
    (disk.world.kill(), disk.blocks)
}

fn folding() -> CompactOptions {
    CompactOptions {
        closed_deltas: 0,
        ..often()
    }
}

#[test]
fn a_closed_volume_whose_fold_failed_once_is_folded_at_a_later_look() {
    let (env, blocks) = unfolded();
    let mut world = start(env, folding());
    world.env.broken_folds = 1;
    world.pass(2000);
    let root = root_of(&world.env, "demo");
    assert_eq!(world.env.broken_folds, 0, "one failed");
    assert!(root.deltas.is_empty(), "never folded: {root:?}");
    assert!(is_free(&root));
    // And it is settled.
    world.pass(2000);
    assert_eq!(root_of(&world.env, "demo"), root);
    let volume = open(&mut world).expect("opened");
    verify(&mut world, &volume, &blocks);
}

#[test]
fn a_closed_volume_whose_folds_fail_is_opened_less_and_less_often() {
    let (env, _) = unfolded();
    let mut world = start(env, folding());
    world.env.broken_folds = usize::MAX;
    // About 40 walks.
    world.pass(6000);
    let maintained = world.host.compaction().maintained;
    assert!((3..=8).contains(&maintained), "{maintained}");
    // Folds get well, and the walks go on.
    world.env.broken_folds = 0;
    world.pass(10_000);
    assert!(root_of(&world.env, "demo").deltas.is_empty());
}

#[test]
fn what_snapshots_keep_ends_a_maintenance_and_does_not_keep_it_going() {
    let mut disk = Disk::new(None);
    (0..BLOCKS).for_each(|block| disk.write(block));
    disk.sync();
    snapshot(&mut disk.world, "demo@first").expect("taken");
    for _ in 0..6 {
        (0..BLOCKS)
            .filter(|at| at % 8 > 0)
            .for_each(|at| disk.write(at));
        disk.sync();
    }
    close(&mut disk.world, &disk.volume);
    let compact = CompactOptions {
        // One pack is more than a pass takes.
        pass_bytes: 1,
        closed_deltas: 0,
        ..often()
    };
    let mut world = start(disk.world.kill(), compact);
    world.wait(|world| (world.host.compaction().maintained > 0).then_some(()));
    world.wait(|world| is_free(&root_of(&world.env, "demo")).then_some(()));
    world.pass(3000);
    assert_eq!(world.host.compaction().maintained, 1);
}

#[test]
fn whatever_locks_its_name_meanwhile_a_maintained_volume_is_closed_again() {
    let (mut world, blocks) = maintaining(slowly());
    world.env.store_ms = 20;
    world.create("else", BLOCKS * BLOCK);
    while !is_free(&root_of(&world.env, "demo")) {
        // It holds the lock of the name until the store has said that there is such a volume.
        let said = make_fork(&mut world, "else", "demo");
        assert!(said.is_err());
        world.pass(10);
    }
    let volume = open(&mut world).expect("opened");
    verify(&mut world, &volume, &blocks);
}

#[test]
fn a_root_that_cannot_be_read_holds_up_no_other_volume() {
    let (env, _) = aged();
    let mut world = start(env, often());
    let key = volume::object::root_key("a");
    world.env.objects.insert(key, (vec![7; 100], 1));
    world.wait(|world| (world.host.compaction().maintained > 0).then_some(()));
}

#[test]
fn a_volume_that_waits_for_its_owner_is_left_alone() {
    let mut disk = Disk::new(None);
    disk.age(40);
    let env = disk.world.kill();
    let mut world = start(env, often());
    let root = root_of(&world.env, "demo");
    world.pass(3000);
    assert_eq!(root_of(&world.env, "demo"), root);
    let volume = open(&mut world).expect("opened");
    verify(&mut world, &volume, &disk.blocks);
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;

    #[test]
    #[should_panic(expected = "is_maintained")]
    fn a_claim_that_serves_clients_as_well_is_seen() {
        canary::with(
            "client_serves_under_a_maintenance_claim",
            a_client_never_serves_under_the_claim_of_a_maintenance,
        );
    }

    #[test]
    #[should_panic(expected = "opened: ")]
    fn a_rebuilt_volume_that_waits_for_its_maintainers_log_is_seen() {
        canary::with(
            "rebuilt_maintenance_has_a_successor",
            the_log_of_a_maintainer_is_not_read,
        );
    }

    #[test]
    #[should_panic(expected = "HoldEnded")]
    fn a_hold_that_ends_with_what_is_kept_for_rescue_is_seen() {
        canary::with(
            "kept_tail_ends_a_later_hold",
            what_is_kept_for_rescue_of_an_earlier_hold_does_not_end_a_disks_hold,
        );
    }

    #[test]
    #[should_panic(expected = "never folded")]
    fn a_failed_fold_that_settles_a_closed_volume_is_seen() {
        canary::with(
            "failed_fold_settles_a_closed_volume",
            a_closed_volume_whose_fold_failed_once_is_folded_at_a_later_look,
        );
    }

    #[test]
    #[should_panic(expected = "opened")]
    fn a_taker_that_reads_a_maintainers_log_is_seen() {
        canary::with(
            "maintenance_has_a_successor",
            the_log_of_a_maintainer_is_not_read,
        );
    }

    #[test]
    #[should_panic(expected = "found")]
    fn a_maintained_volume_that_is_in_the_log_is_seen() {
        canary::with(
            "maintained_volume_is_in_the_log",
            no_start_finds_anything_of_a_maintained_volume_in_the_log,
        );
    }

    #[test]
    #[should_panic(expected = "InUse")]
    fn a_maintenance_that_does_not_yield_is_seen() {
        canary::with(
            "maintenance_does_not_yield",
            whoever_opens_it_here_waits_for_the_present_step_only_and_it_is_nobodys_to_take_then,
        );
    }
}
