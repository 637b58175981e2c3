//! Whoever looks for a volume by what it is finds it while it gets other names, and whoever has its old names: it is never
//! forgotten, nor called lost, and what is kept of it is told by its identity (S6, S8, S9).
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use std::collections::VecDeque;

use volume::driver::{Outcome, Request, RequestOp};
use volume::object::root::{RenameStep, Root};
use volume::object::root_key;
use volume::rebuild::RebuildRequest;
use volume::units::{Now, VolumeId};
use volume::{OpenError, VolumeSpec};

use crate::rename::{
    HOUR_MS, MIB, check_renamed, collect, create, fill, names, rename, with_snapshot,
};
use crate::rename_races::{roots_of, steps};
use crate::support::checks::{Objects, check_all, check_moving};
use crate::support::hosts::{close, delete, elsewhere, hand_over, root_of};
use crate::support::points::{done, snapshot_names, whole_list};
use crate::support::rebuilds::{rebuild_moving, taking_over};
use crate::support::{Environment, World, compute, with_volume};

/// Carries a host's requests out one by one, in the order in which it made them: of reads that it makes side by side each
/// may see another store.
#[derive(Default)]
struct OneByOne(VecDeque<Request>);

impl OneByOne {
    fn step(&mut self, world: &mut World) {
        while world.host.run_jobs() {}
        self.0.extend(world.host.take_requests());
        self.0.extend(world.host.take_commit_requests());
        if !self.carry_out(world) {
            world.now_ns += 10_000_000;
            world.host.tick(Now {
                mono_ns: world.now_ns,
                unix_ms: world.now_ns / 1_000_000,
            });
        }
    }

    fn carry_out(&mut self, world: &mut World) -> bool {
        let Some(Request { id, op }) = self.0.pop_front() else {
            return false;
        };
        let outcome = match op {
            RequestOp::Disk(op) => Outcome::Disk(world.disk(op).map(Into::into)),
            RequestOp::Store(op) => Outcome::Store(world.store(op)),
            RequestOp::Compute(work) => compute(work),
        };
        world.host.complete(id, outcome);
        true
    }

    /// The rest of what was asked.
    fn end(mut self, world: &mut World) {
        while self.carry_out(world) {}
    }
}

fn forget(world: &mut World, id: VolumeId) -> Result<(), OpenError> {
    let answer = world.host.forget_volume(id);
    world.wait(|_| answer.try_take())
}

fn is_forgotten(env: &Environment, id: VolumeId) -> bool {
    env.objects.contains_key(&format!("tombs/{id}"))
}

/// A host forgets the volume, which is renamed when that has made so many requests; another may take its name. Whether it
/// was in the middle.
fn forgotten_and_renamed(at: usize, new: &str, is_retaken: bool) -> bool {
    let mut world = with_snapshot();
    let id = root_of(&world.env, "demo").volume;
    let mut other = elsewhere(&world);
    hand_over(&mut world, &mut other);
    let forgotten = other.host.forget_volume(id);
    let mut requests = OneByOne::default();
    (0..at).for_each(|_| requests.step(&mut other));
    let ended = forgotten.try_take();
    let is_between = ended.is_none();
    hand_over(&mut other, &mut world);
    rename(&mut world, "demo", new).expect("renamed");
    if is_retaken {
        create(&mut world, "demo").expect("it is free");
    }
    hand_over(&mut world, &mut other);
    requests.end(&mut other);
    let said = ended.unwrap_or_else(|| other.wait(|_| forgotten.try_take()));
    let what = format!("{at} requests: {said:?}");
    assert!(said.is_err() && !is_forgotten(&other.env, id), "{what}");
    is_between
}

#[test]
fn a_volume_that_is_renamed_while_it_is_looked_for_is_not_forgotten() {
    // The one was never there; the other is read before the name that the volume has.
    for new in ["fresh", "another"] {
        for is_retaken in [false, true] {
            let cuts = (0..200).take_while(|at| forgotten_and_renamed(*at, new, is_retaken));
            assert!((3..200).contains(&cuts.count()));
        }
    }
}

/// A host forgets the volume, and between any two of its requests the volume may get another name, and others may be made,
/// renamed or deleted under those that it had. Whether it was renamed in the middle.
fn forgotten_among_renamings(seed: u64) -> bool {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = with_snapshot();
    let id = root_of(&world.env, "demo").volume;
    let all = ["demo", "another", "third", "zeta"];
    let mut other = elsewhere(&world);
    hand_over(&mut world, &mut other);
    let forgotten = other.host.forget_volume(id);
    let mut requests = OneByOne::default();
    let mut was_renamed = false;
    let said = loop {
        requests.step(&mut other);
        if let Some(said) = forgotten.try_take() {
            break said;
        }
        hand_over(&mut other, &mut world);
        for _ in 0..random.usize(0..4) {
            let name = all[random.usize(0..all.len())];
            let own = roots_of(&world.env, id).remove(0);
            match random.u8(0..4) {
                0 => drop(create(&mut world, name)),
                1 if own != name => {
                    let answer = world.host.delete_volume(name);
                    let _ = world.wait(|_| answer.try_take());
                }
                _ => was_renamed |= rename(&mut world, &own, name).is_ok(),
            }
        }
        hand_over(&mut world, &mut other);
    };
    requests.end(&mut other);
    assert!(
        said.is_err() && !is_forgotten(&other.env, id),
        "seed {seed}: {said:?}"
    );
    was_renamed
}

#[test]
fn however_often_a_volume_is_renamed_while_it_is_looked_for_it_is_not_forgotten() {
    let renamed = (0..300).filter(|seed| forgotten_among_renamings(*seed));
    assert!(renamed.count() > 100);
}

/// A host stops in the middle of a renaming; somebody removes the volume's root, and it is forgotten. Then the host goes on.
/// Whether the volume was on its way then.
fn forgotten_on_its_way(at: usize) -> bool {
    let mut world = with_snapshot();
    let id = root_of(&world.env, "demo").volume;
    let mut late = elsewhere(&world);
    hand_over(&mut world, &mut late);
    let renaming = late.host.rename_volume("demo", "another");
    steps(&mut late, at);
    hand_over(&mut late, &mut world);
    let mark = root_of(&world.env, "demo").rename_mark();
    let is_on_way = mark.is_some_and(|mark| mark.step == RenameStep::Leaving);
    if !is_on_way || !roots_of(&world.env, id).is_empty() {
        return false;
    }
    let refused = forget(&mut world, id).expect_err("it is on its way");
    assert!(
        refused.to_string().contains("has a root, demo"),
        "{refused}"
    );
    world.env.objects.remove(&root_key("demo"));
    forget(&mut world, id).expect("forgotten");
    hand_over(&mut world, &mut late);
    let said = late.wait(|_| renaming.try_take());
    assert!(said.is_err(), "{said:?}");
    hand_over(&mut late, &mut world);
    assert_eq!(roots_of(&world.env, id), [""; 0], "{at} requests");
    create(&mut world, "another").expect("the name is free");
    true
}

#[test]
fn a_volume_that_was_forgotten_on_its_way_to_another_name_does_not_arrive() {
    assert!((0..100).filter(|at| forgotten_on_its_way(*at)).count() > 2);
}

/// A pass of a collector begins, and the volume is renamed when that has made so many requests; another takes its name.
/// Whether it was in the middle.
fn collected_and_renamed(at: usize) -> bool {
    let mut world = with_snapshot();
    let mut other = elsewhere(&world);
    hand_over(&mut world, &mut other);
    let pass = other.host.collect_garbage(false);
    let mut requests = OneByOne::default();
    (0..at).for_each(|_| requests.step(&mut other));
    let is_between = pass.try_take().is_none();
    hand_over(&mut other, &mut world);
    rename(&mut world, "demo", "another").expect("renamed");
    create(&mut world, "demo").expect("it is free");
    hand_over(&mut world, &mut other);
    requests.end(&mut other);
    if is_between {
        let said = other.wait(|_| pass.try_take());
        let said = said.map_err(|error| error.to_string());
        let is_lost = said
            .as_ref()
            .is_err_and(|error| error.contains("firn volume forget"));
        assert!(!is_lost, "{at} requests: {said:?}");
        assert_eq!(other.host.collector().missing_root, None);
    }
    is_between
}

#[test]
fn a_pass_that_missed_a_volume_which_was_renamed_does_not_call_it_lost() {
    let cuts = (0..300).take_while(|at| collected_and_renamed(*at)).count();
    assert!((10..300).contains(&cuts), "{cuts} requests");
}

#[test]
fn what_a_host_keeps_for_rescue_finds_its_volume_though_others_have_the_names_that_it_had() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    // The store does not get the next one; another host takes the volume, and renames it twice.
    let mut other = elsewhere(&world);
    world.env.outage = true;
    world.write(&volume, 8, 5, 4096);
    world.flush(&volume);
    let taken = other.try_open("demo", true).expect("taken over");
    close(&mut other, &taken);
    rename(&mut other, "demo", "another").expect("renamed");
    rename(&mut other, "another", "third").expect("renamed");
    drop(volume);
    let files = world.kill();
    for taken in [&["another"][..], &["demo"], &["demo", "another"]] {
        let mut there = elsewhere(&other);
        for name in taken {
            create(&mut there, name).expect("the name is free");
        }
        let mut world = World::start(Environment {
            objects: there.env.objects.clone(),
            versions: there.env.versions + 9000,
            ..files.copy()
        });
        let volume = world.open("third");
        assert_eq!(world.read_fill(&volume, 0, 4096), 1);
        let tail = world.host.unserved_tails().remove(0);
        assert!(tail.rescue && tail.volume == "demo");
        let forked = world.host.fork_tail(tail.id, "rescued", false);
        done(&mut world, &forked);
        let rescued = world.open("rescued");
        let found = [0, 8].map(|sector| world.read_fill(&rescued, sector, 4096));
        assert_eq!(found, [1, 5], "{taken:?}");
    }
}

/// The objects of a store before and behind a renaming, after which another may have taken the old name.
fn before_and_behind(new: &str, is_retaken: bool) -> (Objects, Objects) {
    let mut world = with_snapshot();
    let before = world.env.objects.clone();
    rename(&mut world, "demo", new).expect("renamed");
    if is_retaken {
        create(&mut world, "demo").expect("it is free");
    }
    (before, world.env.objects)
}

#[test]
fn a_check_beside_a_renaming_calls_no_volume_lost_and_leaves_none_out() {
    for is_retaken in [false, true] {
        let (before, behind) = before_and_behind("fresh", is_retaken);
        for moves_at in 0..80 {
            let found = check_moving(&before, &behind, moves_at, &[], true).expect("ended");
            let what = format!("the store moved at request {moves_at}: {found:?}");
            assert_eq!(found.damage, [], "{what}");
            assert!(found.counts.volumes > 0, "{what}");
        }
    }
    // What is damaged is found, under which name it ever is.
    let (mut before, mut behind) = before_and_behind("fresh", false);
    let is_of_volume_alone = |key: &&String| {
        let mut without = before.clone();
        without.remove(*key);
        let damage = check_all(&without, false).damage;
        damage.iter().any(|it| it.volume == "demo") && damage.iter().all(|it| it.volume == "demo")
    };
    let mut packs = before.keys().filter(|key| key.starts_with("packs/"));
    let newest = packs.rfind(is_of_volume_alone);
    let newest = newest.expect("what the snapshot has not").clone();
    before.remove(&newest);
    behind.remove(&newest);
    for moves_at in 0..80 {
        let found = check_moving(&before, &behind, moves_at, &[], true).expect("ended");
        let named = found.damage.iter().any(|it| it.object == newest);
        assert!(named, "the store moved at request {moves_at}: {found:?}");
    }
}

#[test]
fn a_rebuild_beside_a_renaming_makes_no_second_root() {
    for (new, is_retaken) in [("fresh", false), ("fresh", true), ("another", true)] {
        let (before, behind) = before_and_behind(new, is_retaken);
        let root = Root::decode(&before[&root_key("demo")].0).expect("a root");
        // Under which name it was, and under which it comes.
        for name in ["demo", new, "unknown"] {
            let request = RebuildRequest {
                volume: Some(root.volume),
                new_name: Some("rebuilt".into()),
                ..taking_over(name)
            };
            for moves_at in 0..60 {
                let (report, objects) = rebuild_moving(&before, &behind, moves_at, &request);
                let what = format!("{new}, {name}, request {moves_at}: {report:?}");
                assert!(report.is_err(), "{what}");
                assert!(!objects.contains_key(&root_key("rebuilt")), "{what}");
            }
        }
    }
}

#[test]
fn what_was_put_aside_of_a_renamed_volume_is_not_in_the_trash_though_another_has_its_name() {
    let mut world = with_snapshot();
    let id = root_of(&world.env, "demo").volume;
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
    drop((creation, other));
    let restored = world.host.restore_from_trash("demo", None);
    done(&mut world, &restored);
    rename(&mut world, "demo", "another").expect("renamed");
    create(&mut world, "demo").expect("the name is free");
    let listed = world.host.list_trash(whole_list());
    assert_eq!(done(&mut world, &listed).items, []);
    for which in ["demo".to_owned(), id.to_string()] {
        for name in [None, Some("stale")] {
            let refused = world.host.restore_from_trash(&which, name);
            let refused = world.wait(|_| refused.try_take());
            let refused = refused.expect_err("it has come back");
            assert_eq!(refused, OpenError::NotInTrash(which.clone()));
        }
        let refused = world.host.empty_trash(&which);
        let refused = world.wait(|_| refused.try_take());
        assert_eq!(refused, Err(OpenError::NotInTrash(which)));
    }
    // What was put aside goes in time, without what the volume has.
    world.now_ns += HOUR_MS * 1_000_000;
    world.pass(10);
    collect(&mut world);
    assert!(!is_aside(&world));
    delete(&mut world, "demo");
    check_renamed(&mut world, "it was in the trash");
    // Under its other name it goes there as before.
    let trashed = world.host.trash_volume("another", HOUR_MS);
    done(&mut world, &trashed);
    create(&mut world, "another").expect("the name is free");
    let restored = world.host.restore_from_trash(&id.to_string(), Some("back"));
    done(&mut world, &restored);
    assert_eq!(names(&mut world), ["another", "back"]);
    assert_eq!(snapshot_names(&mut world, "back"), ["back@one"]);
    assert_eq!(fill(&mut world, "back"), 2);
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen() {
    canary::each_is_seen(&[
        (
            "one_look_at_the_names_is_believed",
            a_volume_that_is_renamed_while_it_is_looked_for_is_not_forgotten,
        ),
        (
            "two_looks_need_not_agree",
            however_often_a_volume_is_renamed_while_it_is_looked_for_it_is_not_forgotten,
        ),
        (
            "forgotten_volume_arrives",
            a_volume_that_was_forgotten_on_its_way_to_another_name_does_not_arrive,
        ),
        (
            "what_a_pass_missed_is_lost",
            a_pass_that_missed_a_volume_which_was_renamed_does_not_call_it_lost,
        ),
        (
            "rescue_follows_names_alone",
            what_a_host_keeps_for_rescue_finds_its_volume_though_others_have_the_names_that_it_had,
        ),
        (
            "the_check_looks_once",
            a_check_beside_a_renaming_calls_no_volume_lost_and_leaves_none_out,
        ),
        (
            "a_rebuild_looks_once",
            a_rebuild_beside_a_renaming_makes_no_second_root,
        ),
        (
            "pinned_volume_is_lost",
            a_rebuild_beside_a_renaming_makes_no_second_root,
        ),
        (
            "names_alone_tell_what_is_in_the_trash",
            what_was_put_aside_of_a_renamed_volume_is_not_in_the_trash_though_another_has_its_name,
        ),
    ]);
}
