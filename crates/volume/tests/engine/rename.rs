//! A volume gets another name and keeps its identity, data and snapshots, whichever request a crash cuts and whenever
//! the collector looks (S6, S7, S9).
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use volume::object::root::RenameStep;
use volume::{OpenError, VolumeSpec};

use crate::support::checks::{check_all, check_moving};
use crate::support::hosts::{close, delete, elsewhere, hand_over, root_of};
use crate::support::points::{
    delete_snapshot, done, fork, gc, make_fork, packs, snapshot, snapshot_names, whole_list,
};
use crate::support::{Environment, Fault, World, with_volume};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const HOUR_MS: u64 = 3_600_000;

pub(crate) fn rename(world: &mut World, old: &str, new: &str) -> Result<(), OpenError> {
    let answer = world.host.rename_volume(old, new);
    world.wait(|_| answer.try_take()).map(drop)
}

pub(crate) fn create(world: &mut World, name: &str) -> Result<(), OpenError> {
    let answer = world.host.create_volume(VolumeSpec {
        name: name.into(),
        bytes: 64 * MIB,
        block: 512,
    });
    world.wait(|_| answer.try_take()).map(drop)
}

pub(crate) fn names(world: &mut World) -> Vec<String> {
    let answer = world.host.list_volumes(whole_list());
    let found = done(world, &answer).items;
    found.into_iter().map(|info| info.name).collect()
}

fn was_renamed(name: &str, new_name: &str) -> OpenError {
    OpenError::Renamed {
        name: name.into(),
        new_name: new_name.into(),
    }
}

/// A closed volume, `demo`, that holds 2 and has a snapshot `demo@one` that holds 1. Its new name, `another`, was that of
/// a volume and of a snapshot which were deleted: the collector reads both before it reads what has the old name.
pub(crate) fn with_snapshot() -> World {
    let (mut world, volume) = with_volume();
    world.create("another", 64 * MIB);
    snapshot(&mut world, "another@one").expect("taken");
    delete_snapshot(&mut world, "another@one").expect("deleted");
    delete(&mut world, "another");
    world.write(&volume, 0, 1, 4096);
    snapshot(&mut world, "demo@one").expect("taken");
    world.write(&volume, 0, 2, 4096);
    close(&mut world, &volume);
    world
}

/// What a volume, or a fork of a snapshot, holds.
pub(crate) fn fill(world: &mut World, name: &str) -> u8 {
    let volume = match name.contains('@') {
        true => fork(world, name, "looked-at").expect("forked"),
        false => world.open(name),
    };
    let found = world.read_fill(&volume, 0, 4096);
    close(world, &volume);
    if name.contains('@') {
        delete(world, "looked-at");
    }
    found
}

/// Passes until nothing more goes; none may take for garbage what another reaches.
pub(crate) fn collect(world: &mut World) {
    for _ in 0..4 {
        assert_eq!(gc(world).recovered.objects, 0);
    }
    let found = check_all(&world.env.objects, true);
    assert_eq!(found.damage, []);
}

fn pins(env: &Environment) -> usize {
    let keys = env.objects.keys();
    keys.filter(|key| key.starts_with("pins/")).count()
}

/// All is there under the new name, and nothing under the old one.
pub(crate) fn check_renamed(world: &mut World, what: &str) {
    assert_eq!(names(world), ["another"], "{what}");
    assert_eq!(snapshot_names(world, "another"), ["another@one"], "{what}");
    assert_eq!(snapshot_names(world, "demo"), [""; 0], "{what}");
    let found = (fill(world, "another"), fill(world, "another@one"));
    assert_eq!(found, (2, 1), "{what}");
}

#[test]
fn a_renamed_volume_keeps_its_identity_its_data_and_its_snapshots() {
    let mut world = with_snapshot();
    make_fork(&mut world, "demo@one", "branch").expect("forked");
    let (before, taken) = (root_of(&world.env, "demo"), root_of(&world.env, "demo@one"));
    rename(&mut world, "demo", "another").expect("renamed");
    let after = root_of(&world.env, "another");
    assert_eq!(after.volume, before.volume);
    assert_eq!(root_of(&world.env, "another@one").volume, taken.volume);
    assert!(after.epoch > before.epoch && after.lsn == before.lsn);
    let stored = packs(&world.env);
    collect(&mut world);
    assert_eq!((packs(&world.env), pins(&world.env)), (stored, 0));
    // From any host, and again as any volume.
    let mut other = elsewhere(&world);
    for world in [&mut world, &mut other] {
        assert_eq!(fill(world, "branch"), 1);
        delete(world, "branch");
        check_renamed(world, "renamed");
        let volume = world.open("another");
        world.write(&volume, 8, 3, 4096);
        snapshot(world, "another@two").expect("taken");
        close(world, &volume);
        let set_back = world.host.restore_volume("another@one", "another@kept");
        done(world, &set_back);
        assert_eq!(
            (fill(world, "another"), fill(world, "another@kept")),
            (1, 2)
        );
        collect(world);
    }
}

#[test]
fn whoever_asks_by_an_old_name_hears_the_new_one_and_the_name_is_free() {
    let mut world = with_snapshot();
    rename(&mut world, "demo", "another").expect("renamed");
    let opened = world
        .try_open("demo", true)
        .expect_err("it has another name");
    assert_eq!(opened, was_renamed("demo", "another"));
    let forked = make_fork(&mut world, "demo@one", "branch").expect_err("so has its snapshot");
    assert_eq!(forked, was_renamed("demo@one", "another@one"));
    assert!(forked.to_string().contains("another@one now"), "{forked}");
    let again = rename(&mut world, "demo", "third").expect_err("it has another name");
    assert_eq!(again, was_renamed("demo", "another"));
    rename(&mut world, "demo", "another").expect("that is done already");
    // Both names can be used, and the new one can be given up again.
    let left = root_of(&world.env, "demo").epoch;
    create(&mut world, "demo").expect("it is free");
    assert!(
        root_of(&world.env, "demo").epoch > left,
        "it never goes back"
    );
    let volume = world.open("demo");
    world.write(&volume, 0, 7, 4096);
    snapshot(&mut world, "demo@one").expect("that is free, too");
    close(&mut world, &volume);
    collect(&mut world);
    assert_eq!(
        (fill(&mut world, "demo"), fill(&mut world, "demo@one")),
        (7, 7)
    );
    let refused = rename(&mut world, "another", "demo").expect_err("it is taken");
    assert_eq!(refused, OpenError::Exists("demo".into()));
    rename(&mut world, "demo", "third").expect("renamed");
    rename(&mut world, "another", "demo").expect("it comes back");
    // That of a fork, too, which has its name no more when the collector looks.
    make_fork(&mut world, "demo", "branch").expect("forked");
    rename(&mut world, "branch", "bough").expect("renamed");
    collect(&mut world);
    assert_eq!(
        pins(&world.env),
        0,
        "none stays for a name that was given up"
    );
    assert_eq!(
        (fill(&mut world, "demo"), fill(&mut world, "demo@one")),
        (2, 1)
    );
    assert_eq!(
        (fill(&mut world, "third"), fill(&mut world, "third@one")),
        (7, 7)
    );
}

#[test]
fn a_volume_that_is_open_held_elsewhere_or_not_all_in_the_store_keeps_its_name() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    let refused = rename(&mut world, "demo", "another").expect_err("it is open");
    assert_eq!(refused, OpenError::InUse("demo".into()));
    let mut other = elsewhere(&world);
    let refused = rename(&mut other, "demo", "another").expect_err("another host has it");
    assert!(matches!(refused, OpenError::Held { .. }), "{refused}");
    drop(volume);
    // Its newest write is in the log alone.
    let mut world = World::start(world.kill());
    let refused = rename(&mut world, "demo", "another").expect_err("the store lacks something");
    assert!(refused.to_string().contains("the store lacks"), "{refused}");
    for (old, new) in [
        ("demo", "demo"),
        ("demo", "a name"),
        ("demo@one", "another"),
    ] {
        let refused = rename(&mut world, old, new).expect_err("no name for it");
        assert!(matches!(refused, OpenError::Invalid(_)), "{refused}");
    }
    let missing = rename(&mut world, "nothing", "another").expect_err("there is none");
    assert_eq!(missing, OpenError::NoSuchVolume("nothing".into()));
    assert_eq!(names(&mut world), ["demo"]);
    assert_eq!(fill(&mut world, "demo"), 1);
    assert!(!world.env.objects.contains_key("volumes/another/root"));
}

#[test]
fn a_name_or_a_snapshots_name_that_is_taken_is_refused_before_anything_is_changed() {
    let mut world = with_snapshot();
    create(&mut world, "third").expect("created");
    let before = world.env.objects.clone();
    let refused = rename(&mut world, "demo", "third").expect_err("it is taken");
    assert_eq!(refused, OpenError::Exists("third".into()));
    assert!(world.env.objects == before);
    // What is in the trash keeps its snapshots where they are.
    let taken = snapshot(&mut world, "third@one");
    taken.expect("taken");
    let trashed = world.host.trash_volume("third", HOUR_MS);
    done(&mut world, &trashed);
    let refused = rename(&mut world, "demo", "third").expect_err("its snapshot has no place");
    assert!(refused.to_string().contains("in the trash"), "{refused}");
    assert_eq!(fill(&mut world, "demo"), 2);
    let emptied = world.host.empty_trash("third");
    done(&mut world, &emptied);
    rename(&mut world, "demo", "third").expect("renamed");
    assert_eq!(
        (fill(&mut world, "third"), fill(&mut world, "third@one")),
        (2, 1)
    );
}

#[test]
fn a_volume_goes_through_the_trash_under_the_name_that_it_has() {
    let mut world = with_snapshot();
    rename(&mut world, "demo", "another").expect("renamed");
    let trashed = world.host.trash_volume("another", HOUR_MS);
    done(&mut world, &trashed);
    collect(&mut world);
    create(&mut world, "demo").expect("created");
    let restored = world.host.restore_from_trash("another", None);
    done(&mut world, &restored);
    delete(&mut world, "demo");
    check_renamed(&mut world, "restored");
    let trashed = world.host.trash_volume("another", HOUR_MS);
    done(&mut world, &trashed);
    let emptied = world.host.empty_trash("another");
    done(&mut world, &emptied);
    collect(&mut world);
    assert_eq!(packs(&world.env), 0);
}

#[test]
fn what_a_host_keeps_for_rescue_of_a_renamed_volume_is_forked_all_the_same() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    // The store does not get the next one; another host takes the volume, and renames it.
    let mut other = elsewhere(&world);
    world.env.outage = true;
    world.write(&volume, 8, 5, 4096);
    world.flush(&volume);
    let taken = other.try_open("demo", true).expect("taken over");
    close(&mut other, &taken);
    rename(&mut other, "demo", "another").expect("renamed");
    drop(volume);
    let mut world = World::start(Environment {
        objects: other.env.objects.clone(),
        versions: other.env.versions + 9000,
        outage: false,
        ..world.kill()
    });
    let volume = world.open("another");
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
    let tail = world.host.unserved_tails().remove(0);
    assert!(tail.rescue && tail.volume == "demo");
    let forked = world.host.fork_tail(tail.id, "rescued", false);
    done(&mut world, &forked);
    let rescued = world.open("rescued");
    let found = [0, 8].map(|sector| world.read_fill(&rescued, sector, 4096));
    assert_eq!(found, [1, 5]);
}

#[test]
fn a_host_whose_volume_was_taken_over_and_renamed_hears_that_it_was_taken_over() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    let mut other = elsewhere(&world);
    hand_over(&mut world, &mut other);
    let taken = other.try_open("demo", true).expect("taken over");
    close(&mut other, &taken);
    rename(&mut other, "demo", "another").expect("renamed");
    hand_over(&mut other, &mut world);
    world.write(&volume, 8, 5, 4096);
    let answer = world.host.sync(&volume);
    let refused = world.wait(|_| answer.try_take()).expect_err("it is fenced");
    assert_eq!(refused, OpenError::Fenced("demo".into()));
    let opened = world
        .try_open("demo", true)
        .expect_err("it has another name");
    assert_eq!(opened, was_renamed("demo", "another"));
    assert_eq!(fill(&mut world, "another"), 1);
}

/// How a cut renaming is brought to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mend {
    /// The same command is given again.
    Again,
    /// A pass of the collector goes on with what has left.
    Collector,
}

/// Cuts a renaming at one request, starts another server, and has it gone on with, among passes of the collector.
/// Whether the request was reached.
fn with_fault(at: usize, fault: Fault, mend: Mend) -> bool {
    let mut world = with_snapshot();
    world.env.fault_after = Some((at, fault));
    let answer = world.host.rename_volume("demo", "another");
    let outcome = match fault {
        Fault::LostAnswer => Some(world.wait(|_| answer.try_take())),
        Fault::Outage | Fault::OutageBehind => {
            world.pass(200);
            answer.try_take()
        }
    };
    let was_reached = world.env.fault_after.take().is_none();
    world.env.outage = false;
    let what = format!("request {at}, {fault:?}, {mend:?}: {outcome:?}");
    let mut world = World::start(world.kill());
    if mend == Mend::Collector {
        collect(&mut world);
    }
    let there = names(&mut world);
    assert!(
        !there.is_empty(),
        "{what}: it is in the list at every moment"
    );
    let mark = root_of(&world.env, "demo").rename_mark();
    let step = mark.map(|mark| mark.step);
    if step.is_none() {
        assert_eq!(there, ["demo"], "{what}");
        // It never left, and the name that is kept for it is no obstacle.
        assert_eq!(fill(&mut world, "demo"), 2, "{what}");
        assert_eq!(snapshot_names(&mut world, "demo"), ["demo@one"], "{what}");
    } else if step == Some(RenameStep::Leaving) {
        assert_eq!(mend, Mend::Again, "{what}");
        let refused = world.try_open("demo", true).expect_err("it has left");
        assert!(
            refused
                .to_string()
                .contains("firn volume rename demo another")
        );
        let refused = create(&mut world, "demo").expect_err("the volume is there yet");
        assert!(
            refused
                .to_string()
                .contains("firn volume rename demo another")
        );
        if there == ["demo"] {
            let refused = world.try_open("another", true);
            let refused = refused.expect_err("it has not arrived").to_string();
            assert!(refused.contains("firn volume rename demo another"));
        }
    }
    rename(&mut world, "demo", "another").unwrap_or_else(|error| panic!("{what}: {error}"));
    collect(&mut world);
    check_renamed(&mut world, &what);
    create(&mut world, "demo").expect("the name is free");
    delete(&mut world, "demo");
    collect(&mut world);
    check_renamed(&mut world, &what);
    was_reached
}

#[test]
fn a_renaming_that_is_cut_at_any_request_is_gone_on_with_and_loses_nothing() {
    for mend in [Mend::Again, Mend::Collector] {
        for fault in [Fault::LostAnswer, Fault::Outage, Fault::OutageBehind] {
            let cuts = (0..100)
                .take_while(|at| with_fault(*at, fault, mend))
                .count();
            assert!((15..100).contains(&cuts), "{fault:?}: {cuts} requests");
        }
    }
}

/// A name that was kept for nothing: the command was cut short, and is not given again.
#[test]
fn a_name_that_was_kept_for_a_volume_which_went_on_is_free() {
    let mut world = with_snapshot();
    world.env.failing_keys = vec!["volumes/demo/root".into()];
    let mut other = elsewhere(&world);
    other.env.outage_after_update = true;
    let answer = other.host.rename_volume("demo", "another");
    other.pass(200);
    drop(answer);
    other.env.outage = false;
    let kept = root_of(&other.env, "another");
    let step = kept.rename_mark().map(|mark| mark.step);
    assert_eq!(step, Some(RenameStep::Kept));
    let mut world = World::start(other.kill());
    let refused = create(&mut world, "another").expect_err("it is kept");
    assert!(matches!(refused, OpenError::Renaming { .. }), "{refused}");
    let refused = make_fork(&mut world, "demo", "another").expect_err("it is kept");
    assert!(matches!(refused, OpenError::Renaming { .. }), "{refused}");
    // The volume is used under its name meanwhile, and then nothing can come of the attempt.
    assert_eq!(fill(&mut world, "demo"), 2);
    create(&mut world, "another").expect("it is free");
    collect(&mut world);
    assert_eq!(names(&mut world), ["another", "demo"]);
    assert_eq!(
        (fill(&mut world, "another"), fill(&mut world, "demo")),
        (0, 2)
    );
}

#[test]
fn without_its_root_a_renamed_volume_is_missing_and_nothing_of_it_is_garbage() {
    let mut world = with_snapshot();
    rename(&mut world, "demo", "another").expect("renamed");
    collect(&mut world);
    let stored = packs(&world.env);
    // Somebody removes the root, and the snapshots', and may put them back.
    let is_roots = |key: &str| key.ends_with("/root") && key.contains("/another/");
    let removed = world.env.objects.extract_if(.., |key, _| is_roots(key));
    let removed: Vec<_> = removed.collect();
    // What tells of old names alone holds it.
    for _ in 0..4 {
        let answer = world.host.collect_garbage(false);
        let _ = world.wait(|_| answer.try_take());
    }
    assert_eq!(packs(&world.env), stored);
    world.env.objects.extend(removed);
    collect(&mut world);
    check_renamed(&mut world, "put back");
}

/// What is said of a name behind a chain of renamings.
fn said_of(world: &mut World, name: &str) -> String {
    let opened = world.try_open(name, true);
    let opened = opened.expect_err("it has another name").to_string();
    let again = rename(world, name, "fourth");
    let again = again.expect_err("it has another name").to_string();
    assert_eq!(opened, again);
    opened
}

#[test]
fn behind_a_chain_of_renamings_an_old_name_leads_to_the_one_of_today_or_to_the_id() {
    let mut world = with_snapshot();
    let id = root_of(&world.env, "demo").volume;
    rename(&mut world, "demo", "another").expect("renamed");
    rename(&mut world, "another", "third").expect("renamed");
    let said = said_of(&mut world, "demo");
    assert!(
        said.contains("demo was renamed: its name is third now"),
        "{said}"
    );
    let again = rename(&mut world, "demo", "another").expect_err("it has a third name");
    assert_eq!(again.to_string(), said);
    // While it is half renamed it has the name that it is listed by.
    for at in 0..60 {
        let mut there = elsewhere(&world);
        there.env.fault_after = Some((at, Fault::Outage));
        let answer = there.host.rename_volume("third", "fourth");
        there.pass(200);
        drop(answer);
        (there.env.outage, there.env.fault_after) = (false, None);
        let mut there = World::start(there.kill());
        let said = there.try_open("demo", true).expect_err("renamed");
        let name = names(&mut there).remove(0);
        let told = [&name[..], "third", "fourth"];
        let is_told = told.iter().any(|name| {
            let text = format!("demo was renamed: its name is {name} now");
            said.to_string().contains(&text)
        });
        assert!(is_told, "{at}: {said}");
    }
    // Another takes a name between, or the volume is deleted: then its id tells.
    let mut other = elsewhere(&world);
    create(&mut world, "another").expect("the name is free");
    delete_snapshots_and(&mut other, "third");
    for world in [&mut world, &mut other] {
        let said = said_of(world, "demo");
        assert!(
            said.contains("demo was renamed to") && said.contains(&id.to_string()),
            "{said}"
        );
        assert!(said.contains("firn volume list"), "{said}");
    }
}

/// Deletes a volume with its snapshot.
fn delete_snapshots_and(world: &mut World, name: &str) {
    let snapshot = format!("{name}@one");
    delete_snapshot(world, &snapshot).expect("deleted");
    delete(world, name);
}

#[test]
fn a_check_by_an_old_name_says_the_one_of_today() {
    let mut world = with_snapshot();
    rename(&mut world, "demo", "another").expect("renamed");
    rename(&mut world, "another", "third").expect("renamed");
    let mut other = elsewhere(&world);
    create(&mut other, "another").expect("the name is free");
    for world in [&world, &other] {
        let objects = &world.env.objects;
        for (old, new) in [("demo", "third"), ("demo@one", "third@one")] {
            let refused = check_moving(objects, objects, 0, &[old], false);
            let said = refused.expect_err("renamed").to_string();
            let told = format!("{old} was renamed: its name is {new} now");
            assert!(said.contains(&told), "{said}");
        }
    }
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen() {
    canary::each_is_seen(&[
        (
            "leaving_root_holds_nothing",
            a_renaming_that_is_cut_at_any_request_is_gone_on_with_and_loses_nothing,
        ),
        (
            "name_of_a_leaving_volume_is_free",
            a_renaming_that_is_cut_at_any_request_is_gone_on_with_and_loses_nothing,
        ),
        (
            "snapshots_stay_behind",
            a_renamed_volume_keeps_its_identity_its_data_and_its_snapshots,
        ),
        (
            "only_the_next_name_is_told",
            behind_a_chain_of_renamings_an_old_name_leads_to_the_one_of_today_or_to_the_id,
        ),
        (
            "pins_are_judged_by_their_name_alone",
            whoever_asks_by_an_old_name_hears_the_new_one_and_the_name_is_free,
        ),
        (
            "old_name_has_the_volumes_identity",
            without_its_root_a_renamed_volume_is_missing_and_nothing_of_it_is_garbage,
        ),
    ]);
}
