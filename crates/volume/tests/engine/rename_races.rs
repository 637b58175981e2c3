//! A volume is renamed while a collector, other hosts and whoever comes late are at it (S7, S9).
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use std::any::Any;
use std::collections::BTreeSet;

use volume::driver::{RequestOp, StoreOp};
use volume::object::root::{RenameStep, Root};
use volume::object::root_key;
use volume::units::{Now, VolumeId};
use volume::{Durability, OpenError, OpenMode, SnapshotInfo, VolumeSpec};

use crate::rename::{
    HOUR_MS, MIB, check_renamed, collect, create, fill, names, rename, with_snapshot,
};
use crate::support::hosts::{close, delete, elsewhere, hand_over, root_of};
use crate::support::points::{
    delete_snapshot, done, gc, snapshot_infos, snapshot_names, whole_list,
};
use crate::support::{Environment, Fault, World};

/// Carries a host's next requests out, so many times.
pub(crate) fn steps(world: &mut World, count: usize) {
    for _ in 0..count {
        while world.host.run_jobs() {}
        if !world.one_step() {
            world.now_ns += 10_000_000;
            world.host.tick(Now {
                mono_ns: world.now_ns,
                unix_ms: world.now_ns / 1_000_000,
            });
        }
    }
}

/// A pass of another host's collector begins, goes on behind a part of the renaming, and ends behind all of it. Whether it
/// took that long.
fn with_a_pass_beside(before: usize, part: usize, is_retaken: bool) -> bool {
    let mut world = with_snapshot();
    // No record names the volume any more.
    let volume = {
        create(&mut world, "last").expect("created");
        world.open("last")
    };
    world.write(&volume, 0, 9, 4096);
    close(&mut world, &volume);
    collect(&mut world);
    delete(&mut world, "last");
    let mut other = elsewhere(&world);
    hand_over(&mut world, &mut other);
    let pass = other.host.collect_garbage(false);
    steps(&mut other, before);
    let ended = pass.try_take();
    hand_over(&mut other, &mut world);
    let renamed = world.host.rename_volume("demo", "another");
    steps(&mut world, part);
    hand_over(&mut world, &mut other);
    steps(&mut other, part);
    hand_over(&mut other, &mut world);
    done(&mut world, &renamed);
    if is_retaken {
        create(&mut world, "demo").expect("the name is free");
    }
    hand_over(&mut world, &mut other);
    let is_between = ended.is_none();
    if is_between {
        let found = other.wait(|_| pass.try_take());
        let what = format!("{before} requests, and {part} of the renaming: {found:?}");
        // That of the volume that was deleted last.
        let garbage = found.as_ref().map_or(1, |found| found.garbage.objects);
        assert_eq!(garbage, 1, "{what}");
        // It may say that it did not find the volume, which went from name to name before it; never that it is lost.
        assert!(found.is_ok() || is_retaken, "{what}");
        assert_eq!(other.host.collector().missing_root, None, "{what}");
    }
    hand_over(&mut other, &mut world);
    if is_retaken {
        delete(&mut world, "demo");
    }
    collect(&mut world);
    check_renamed(&mut world, "beside a pass");
    is_between
}

#[test]
fn a_pass_beside_a_renaming_takes_nothing_for_garbage() {
    for is_retaken in [false, true] {
        for part in [0, 4, 8, 12, 16, 20, 24, 28] {
            let passes = (0..200)
                .take_while(|before| with_a_pass_beside(*before, part, is_retaken))
                .count();
            assert!((10..200).contains(&passes), "{passes} requests");
        }
    }
}

/// A creation whose answer is lost is asked for again behind a renaming of what it made. How many roots of it can be opened.
fn created_and_renamed(part: usize) -> usize {
    let mut world = World::new();
    world.env.fault_after = Some((0, Fault::LostAnswer));
    let created = world.host.create_volume(VolumeSpec {
        name: "made".into(),
        bytes: MIB,
        block: 512,
    });
    steps(&mut world, part);
    let mut other = elsewhere(&world);
    hand_over(&mut world, &mut other);
    if names(&mut other).contains(&"made".to_owned()) {
        rename(&mut other, "made", "named").expect("renamed");
    }
    hand_over(&mut other, &mut world);
    let created = world.wait(|_| created.try_take());
    assert!(created.is_ok(), "{created:?}");
    let roots = ["made", "named"].map(root_key);
    let roots = roots.iter().filter_map(|key| world.env.objects.get(key));
    let roots = roots.map(|(bytes, _)| Root::decode(bytes).expect("a root"));
    roots.filter(|root| !root.deleted).count()
}

#[test]
fn a_creation_whose_answer_was_lost_does_not_make_a_renamed_volume_again() {
    for part in 0..12 {
        assert_eq!(created_and_renamed(part), 1, "{part}");
    }
}

#[test]
fn a_snapshot_of_a_volume_that_is_on_its_way_is_not_deleted() {
    let mut refused = 0;
    for at in 0..60 {
        let mut world = with_snapshot();
        world.env.fault_after = Some((at, Fault::Outage));
        let answer = world.host.rename_volume("demo", "another");
        world.pass(200);
        drop(answer);
        world.env.outage = false;
        if !root_of(&world.env, "demo")
            .rename_mark()
            .is_some_and(|mark| mark.step == RenameStep::Leaving)
        {
            continue;
        }
        let mut other = elsewhere(&world);
        hand_over(&mut world, &mut other);
        match delete_snapshot(&mut other, "demo@one") {
            Err(OpenError::Renaming { .. }) => refused += 1,
            // It has moved.
            Err(OpenError::NoSuchSnapshot(_)) => {}
            deleted => panic!("{at}: {deleted:?}"),
        }
    }
    assert!(refused > 0);
}

/// Cuts a renaming at this request; the volume has arrived and its old root says still that it is leaving: that.
fn arrived_and_leaving(at: usize) -> Option<World> {
    let mut world = with_snapshot();
    world.env.fault_after = Some((at, Fault::Outage));
    let answer = world.host.rename_volume("demo", "another");
    world.pass(200);
    drop(answer);
    world.env.outage = false;
    let has_arrived = !root_of(&world.env, "another").deleted;
    let mark = root_of(&world.env, "demo").rename_mark();
    let is_leaving = mark.is_some_and(|mark| mark.step == RenameStep::Leaving);
    (has_arrived && is_leaving).then(|| World::start(world.kill()))
}

#[test]
fn records_of_a_volume_that_has_arrived_are_kept_whatever_its_old_root_says() {
    let mut worlds = (0..100).filter_map(arrived_and_leaving);
    let mut world = worlds.next().expect("a renaming that was cut there");
    let volume = world.open("another");
    world.write(&volume, 8, 5, 4096);
    world.sync(&volume);
    create(&mut world, "busy").expect("created");
    let busy = world.open("busy");
    for fill in 1..4 {
        world.write(&busy, 0, fill, 4096);
        world.sync(&busy);
    }
    // Another host raises the low mark of this one.
    let mut other = elsewhere(&world);
    gc(&mut other);
    let volume = other.try_open("another", true).expect("taken over");
    let found = [0, 8].map(|sector| other.read_fill(&volume, sector, 4096));
    assert_eq!(found, [2, 5]);
    let mark = root_of(&other.env, "demo").rename_mark();
    let step = mark.map(|mark| mark.step);
    assert_eq!(step, Some(RenameStep::Gone), "the pass went on with it");
}

/// A host stops in the middle of a renaming and goes on when the volume has been there and come back. Whether it was in
/// the middle.
fn with_late_hands(at: usize) -> bool {
    let mut world = with_snapshot();
    let mut late = elsewhere(&world);
    hand_over(&mut world, &mut late);
    let answer = late.host.rename_volume("demo", "another");
    steps(&mut late, at);
    let ended = answer.try_take();
    hand_over(&mut late, &mut world);
    rename(&mut world, "demo", "another").expect("renamed");
    rename(&mut world, "another", "demo").expect("it comes back");
    hand_over(&mut world, &mut late);
    if ended.is_none() {
        let _ = late.wait(|_| answer.try_take());
    }
    hand_over(&mut late, &mut world);
    let what = format!("{at} requests");
    // Who had not begun has renamed it now.
    let there = names(&mut world);
    assert_eq!(there.len(), 1, "{what}: {there:?}");
    let name = &there[0];
    let taken = snapshot_names(&mut world, name);
    assert_eq!(taken, [format!("{name}@one")], "{what}");
    collect(&mut world);
    let found = (fill(&mut world, name), fill(&mut world, &taken[0]));
    assert_eq!(found, (2, 1), "{what}");
    // It can be renamed as before.
    if name == "demo" {
        rename(&mut world, "demo", "another").expect("renamed");
    }
    check_renamed(&mut world, &what);
    ended.is_none()
}

#[test]
fn whoever_goes_on_late_moves_nothing_of_a_volume_that_has_come_back() {
    let cuts = (0..200).take_while(|at| with_late_hands(*at)).count();
    assert!((15..200).contains(&cuts), "{cuts} requests");
}

/// Live roots of a volume, by their names.
pub(crate) fn roots_of(env: &Environment, id: VolumeId) -> Vec<String> {
    let roots = env.objects.iter().filter(|(key, _)| key.ends_with("/root"));
    let roots = roots.filter_map(|(_, (data, _))| Root::decode(data).ok());
    let of = roots.filter(|root| root.volume == id && !root.deleted);
    of.map(|root| root.name).collect()
}

/// A host that has read the volume's root sleeps; the volume is renamed, which is cut short behind its arrival, and goes on
/// to a third name. Then the host keeps the second name once more, and dies. Whether it did.
fn with_a_name_kept_again(cut: usize, before: usize, behind: usize) -> bool {
    let mut world = with_snapshot();
    let id = root_of(&world.env, "demo").volume;
    let mut late = elsewhere(&world);
    hand_over(&mut world, &mut late);
    let sleeping = late.host.rename_volume("demo", "another");
    steps(&mut late, before);
    hand_over(&mut late, &mut world);
    world.env.fault_after = Some((cut, Fault::Outage));
    let renaming = world.host.rename_volume("demo", "another");
    world.pass(200);
    drop(renaming);
    world.env.fault_after = None;
    world.env.outage = false;
    let mut world = World::start(world.kill());
    if root_of(&world.env, "another").deleted {
        return false;
    }
    rename(&mut world, "another", "third").expect("renamed");
    hand_over(&mut world, &mut late);
    steps(&mut late, behind);
    drop(sleeping);
    hand_over(&mut late, &mut world);
    drop(late);
    let kept = root_of(&world.env, "another").rename_mark();
    let is_kept = kept.is_some_and(|mark| mark.step == RenameStep::Kept);
    collect(&mut world);
    let what = format!("{before} requests, and {behind}");
    assert_eq!(roots_of(&world.env, id), ["third"], "{what}");
    let found = (fill(&mut world, "third"), fill(&mut world, "third@one"));
    assert_eq!(found, (2, 1), "{what}");
    is_kept
}

#[test]
fn a_name_that_is_kept_once_more_brings_no_volume_that_has_gone_on() {
    let cut = (0..100).find(|at| arrived_and_leaving(*at).is_some());
    let cut = cut.expect("a renaming that was cut there");
    let places = (0..16).flat_map(|before| (0..12).map(move |behind| (before, behind)));
    let kept = places.filter(|(before, behind)| with_a_name_kept_again(cut, *before, *behind));
    assert!(kept.count() > 0, "no name was kept again");
}

#[test]
fn a_volume_that_came_back_from_the_trash_and_was_renamed_is_there_once() {
    let mut world = with_snapshot();
    let trashed = world.host.trash_volume("demo", HOUR_MS);
    done(&mut world, &trashed);
    // Another host has put the root aside, and is about to take the name.
    let mut other = elsewhere(&world);
    hand_over(&mut world, &mut other);
    let creation = other.host.create_volume(VolumeSpec {
        name: "demo".into(),
        bytes: 64 * MIB,
        block: 512,
    });
    let is_aside = |world: &World| {
        let mut keys = world.env.objects.keys();
        keys.any(|key| key.starts_with("trash/"))
    };
    while !is_aside(&other) {
        steps(&mut other, 1);
    }
    hand_over(&mut other, &mut world);
    let restored = world.host.restore_from_trash("demo", None);
    done(&mut world, &restored);
    rename(&mut world, "demo", "another").expect("renamed");
    drop((creation, other));
    let listed = world.host.list_trash(whole_list());
    assert_eq!(done(&mut world, &listed).items, []);
    let restored = world.host.restore_from_trash("demo", None);
    let restored = world.wait(|_| restored.try_take());
    assert!(restored.is_err(), "{restored:?}");
    // What was put aside goes in time, without what the volume has.
    world.now_ns += HOUR_MS * 1_000_000;
    world.pass(10);
    collect(&mut world);
    assert!(!is_aside(&world));
    check_renamed(&mut world, "it was in the trash");
}

/// A host moves the volume to the trash, and another renames it in the middle of that. Whether it was in the middle.
fn with_a_deletion_beside(at: usize, part: usize) -> bool {
    let mut world = with_snapshot();
    let mut other = elsewhere(&world);
    hand_over(&mut world, &mut other);
    let answer = other.host.trash_volume("demo", HOUR_MS);
    steps(&mut other, at);
    let ended = answer.try_take();
    let is_between = ended.is_none();
    hand_over(&mut other, &mut world);
    let renaming = world.host.rename_volume("demo", "another");
    steps(&mut world, part);
    hand_over(&mut world, &mut other);
    let deleted = ended.unwrap_or_else(|| other.wait(|_| answer.try_take()));
    hand_over(&mut other, &mut world);
    let renamed = world.wait(|_| renaming.try_take());
    let what = format!("{at} requests, and {part} of the renaming: {deleted:?}, {renamed:?}");
    assert!(deleted.is_ok() != renamed.is_ok(), "{what}");
    if deleted.is_ok() {
        let restored = world.host.restore_from_trash("demo", None);
        done(&mut world, &restored);
        rename(&mut world, "demo", "another").expect("renamed");
    }
    check_renamed(&mut world, &what);
    is_between
}

#[test]
fn of_a_deletion_and_a_renaming_at_once_one_is_done_and_the_other_says_so() {
    for part in 0..30 {
        let cuts = (0..200)
            .take_while(|at| with_a_deletion_beside(*at, part))
            .count();
        assert!((2..200).contains(&cuts), "{cuts} requests");
    }
}

/// A host is asked for something, mostly there and back between the same names, which brings those who are late to where
/// they began.
fn begin_something(host: &World, random: &mut fastrand::Rng) -> Box<dyn Any> {
    let names = match random.bool() {
        true => &["demo", "another"][..],
        false => &["demo", "another", "third"],
    };
    let one = names[random.usize(0..names.len())];
    let two = names[random.usize(0..names.len())];
    match random.u8(0..8) {
        0 => {
            let spec = VolumeSpec {
                name: two.into(),
                bytes: 64 * MIB,
                block: 512,
            };
            Box::new(host.host.create_volume(spec))
        }
        1 => Box::new(host.host.collect_garbage(false)),
        2 => Box::new(host.host.open_volume(one, OpenMode::default())),
        3 => Box::new(host.host.trash_volume(one, HOUR_MS)),
        4 => {
            let name = format!("{one}@s{}", random.u32(..));
            let made = host
                .host
                .create_snapshot(&name, Vec::new(), Durability::Store);
            Box::new(made)
        }
        _ => Box::new(host.host.rename_volume(one, two)),
    }
}

/// Whatever was left of the volume is brought to its end, and it is there once with all of its data.
fn check_at_rest(mut world: World, id: VolumeId, seed: u64) {
    for _ in 0..3 {
        let answer = world.host.collect_garbage(false);
        done(&mut world, &answer);
    }
    let listed = world.host.list_trash(whole_list());
    let in_trash = done(&mut world, &listed).items;
    let in_trash: Vec<_> = in_trash.iter().filter(|found| found.id == id).collect();
    let mut standing = roots_of(&world.env, id);
    assert_eq!(
        standing.len() + in_trash.len(),
        1,
        "seed {seed}: {standing:?}"
    );
    if !in_trash.is_empty() {
        let answer = world.host.restore_from_trash(&id.to_string(), Some("back"));
        done(&mut world, &answer);
        standing = vec!["back".into()];
    }
    let name = standing.remove(0);
    let opened = world.try_open(&name, true);
    let volume = opened.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert_eq!(world.read_fill(&volume, 0, 4096), 2, "seed {seed}");
    collect(&mut world);
    let taken = snapshot_infos(&mut world, &name);
    let one = format!("{name}@one");
    assert!(taken.iter().any(|info| info.name == one), "seed {seed}");
    assert_eq!(fill(&mut world, &one), 1, "seed {seed}");
    let ids: BTreeSet<VolumeId> = taken.iter().map(|info| info.id).collect();
    assert_eq!(ids.len(), taken.len(), "seed {seed}: {taken:?}");
    // What was taken of it while it went from name to name is where it is now.
    for other in ["demo", "another", "third"] {
        let theirs = snapshot_infos(&mut world, other);
        let is_stray = |info: &SnapshotInfo| info.of == Some(id) && other != name;
        assert!(!theirs.iter().any(is_stray), "seed {seed}: {theirs:?}");
    }
}

/// What a host has sent to the store, which takes it after the host is gone.
pub(crate) fn sent(host: &World) -> Vec<StoreOp> {
    while host.host.run_jobs() {}
    let requests = host.host.take_requests().into_iter();
    let ops = requests.filter_map(|request| match request.op {
        RequestOp::Store(op) => Some(op),
        _ => None,
    });
    ops.collect()
}

/// Two hosts rename the volume, others take the names and use it, a collector runs and all are cut, in some order.
fn with_others_beside(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = with_snapshot();
    let id = root_of(&world.env, "demo").volume;
    // What a host draws follows from its versions: no two draw the same identities.
    let start = |nth: u64| {
        World::start(Environment {
            versions: world.env.versions + 100_000 * nth,
            ..Environment::default()
        })
    };
    let mut hosts: Vec<World> = (1..5).map(start).collect();
    let (mut answers, mut late) = (Vec::<Box<dyn Any>>::new(), Vec::new());
    for _ in 0..random.usize(20..60) {
        let nth = random.usize(0..hosts.len());
        let host = &mut hosts[nth];
        hand_over(&mut world, host);
        if random.u8(0..4) == 0 {
            answers.push(begin_something(host, &mut random));
        }
        steps(host, random.usize(0..25));
        let standing = roots_of(&host.env, id);
        assert!(
            standing.len() <= 1,
            "seed {seed}: it has two roots, {standing:?}"
        );
        hand_over(host, &mut world);
        if random.u8(0..8) == 0 {
            late.extend(sent(host));
            let env = std::mem::take(&mut hosts[nth].env);
            hosts[nth] = World::start(env);
        }
        if !late.is_empty() && random.u8(0..4) == 0 {
            let op = late.swap_remove(random.usize(0..late.len()));
            let _ = world.store(op);
        }
    }
    drop(hosts);
    check_at_rest(world, id, seed);
}

#[test]
fn a_volume_that_many_rename_at_once_has_one_name_and_all_of_its_data() {
    for seed in 0..400 {
        with_others_beside(seed);
    }
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen() {
    canary::each_is_seen(&[
        (
            "leaving_volume_is_a_deleted_one",
            of_a_deletion_and_a_renaming_at_once_one_is_done_and_the_other_says_so,
        ),
        (
            "renamed_without_a_pin",
            a_pass_beside_a_renaming_takes_nothing_for_garbage,
        ),
        (
            "renamed_volume_is_made_again",
            a_creation_whose_answer_was_lost_does_not_make_a_renamed_volume_again,
        ),
        (
            "leaving_root_is_asked",
            records_of_a_volume_that_has_arrived_are_kept_whatever_its_old_root_says,
        ),
        (
            "late_hands_move_snapshots",
            whoever_goes_on_late_moves_nothing_of_a_volume_that_has_come_back,
        ),
        (
            "kept_name_is_told_by_its_volume",
            a_name_that_is_kept_once_more_brings_no_volume_that_has_gone_on,
        ),
    ]);
}
