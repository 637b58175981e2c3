//! Folding, and opening what was folded: beside the uploads, by nodes and pages, at the cost of what changed.
//!
//! With the feature `planted` each planted bug is seen by the test that is there for it.

use std::collections::{BTreeMap, BTreeSet};

use blkmq::error::ErrorKind;
use blkmq::io::Op;
use volume::driver::{Outcome, Request, RequestOp};
use volume::hostlog::record::{Content, Record};
use volume::object::ObjectId;
use volume::object::page::{BlockRef, PAGE_SECTORS as PAGE};
use volume::object::root::Root;
use volume::units::Lsn;
use volume::{Options, Volume};

use crate::support::{Environment, World, options};

const GIB: u64 = 1 << 30;

/// Sectors of a node.
const NODE: u64 = 1024 * PAGE;

fn with_volume(options: Options, bytes: u64) -> (World, Volume) {
    let mut world =
        World::try_start(Environment::default(), options).unwrap_or_else(|e| panic!("{}", e.0));
    world.create("demo", bytes);
    let volume = world.open("demo");
    (world, volume)
}

/// Another host, which sees the same store and takes the volume over.
fn take_over_on_other_host(world: &World, options: Options) -> (World, Volume) {
    let env = Environment {
        objects: world.env.objects.clone(),
        versions: world.env.versions + 5000,
        ..Environment::default()
    };
    let mut other = World::try_start(env, options).unwrap_or_else(|e| panic!("{}", e.0));
    let volume = other.try_open("demo", true).expect("taken over");
    (other, volume)
}

fn root(world: &World) -> Root {
    Root::decode(&world.env.objects["volumes/demo/root"].0).expect("a root")
}

/// Enough small uploads far away from everything for a fold, and time for it.
fn fold(world: &mut World, volume: &Volume, sector: u64) {
    for round in 0..6 {
        world.write(volume, sector, round, 4096);
        world.sync(volume);
    }
    world.pass(1000);
}

fn requests(world: &World, kind: &str) -> usize {
    world.env.store_requests.get(kind).copied().unwrap_or(0)
}

#[test]
fn a_fold_holds_up_no_upload_and_keeps_what_arrives_meanwhile() {
    let (mut world, volume) = with_volume(options(), 8 * GIB);
    for page in 0..200 {
        world.write(&volume, page * PAGE, 1, 4096);
    }
    fold(&mut world, &volume, 0);
    assert!(root(&world).deltas.len() <= 4, "{:?}", root(&world).deltas);
    // Each page changes, so the next fold loads all of them, from a slow store.
    let (mut world, volume) = take_over_on_other_host(&world, options());
    for page in 0..200 {
        world.write(&volume, page * PAGE + 8, 2, 4096);
    }
    world.sync(&volume);
    world.env.store_ms = 200;
    let before = root(&world).nodes;
    let mut longest = 0;
    for round in 0..30_u64 {
        world.write(&volume, round * PAGE + 16, 3, 4096);
        let begun = world.now_ns;
        world.sync(&volume);
        longest = longest.max(world.now_ns - begun);
    }
    let most = 6 * 200 * 1_000_000;
    assert!(longest <= most, "an upload took {} ms", longest / 1_000_000);
    world.pass(20_000);
    assert_ne!(root(&world).nodes, before, "it was folded meanwhile");
    assert!(root(&world).deltas.len() <= 4, "{:?}", root(&world).deltas);
    let (mut other, theirs) = take_over_on_other_host(&world, options());
    for (world, volume) in [(&mut world, &volume), (&mut other, &theirs)] {
        for page in 1..200 {
            let written = if page < 30 { 3 } else { 0 };
            for (at, fill) in [(0, 1), (8, 2), (16, written)] {
                let found = world.read_fill(volume, page * PAGE + at, 4096);
                assert_eq!(found, fill, "page {page}, sector {at}");
            }
        }
    }
}

#[test]
fn a_host_that_learns_from_a_fold_that_it_is_fenced_completes_nothing_more() {
    let (mut world, volume) = with_volume(options(), 8 * GIB);
    let before = root(&world).nodes;
    for page in 0..30 {
        world.write(&volume, page * PAGE, 1, 4096);
        if page < options().deltas_max as u64 {
            world.sync(&volume);
        }
    }
    // The last of these makes a fold due, whose first object is on its way when this ends.
    world.env.store_ms = 200;
    world.sync(&volume);
    assert_eq!(root(&world).nodes, before, "not folded yet");
    world.env.store_ms = 0;
    let (other, _theirs) = take_over_on_other_host(&world, options());
    world.env.objects = other.env.objects.clone();
    world.pass(5000);
    let read = Op::Read {
        sector: 0,
        sectors: 8,
    };
    let answer = world.request(&volume, read, &mut [0; 4096]);
    assert_eq!(answer, Err(ErrorKind::Fenced));
}

#[test]
fn a_discard_of_a_whole_volume_costs_what_its_tombstone_costs() {
    let (mut world, volume) = with_volume(options(), 1024 * GIB);
    for node in 0..40 {
        for page in 0..5 {
            world.write(&volume, node * NODE + page * PAGE, 1, 4096);
        }
    }
    fold(&mut world, &volume, 0);
    assert_eq!(root(&world).nodes.len(), 40);
    let (mut world, volume) = take_over_on_other_host(&world, options());
    world.run_until_idle();
    world.env.store_requests.clear();
    for _ in 0..6 {
        let op = Op::Discard {
            sector: 0,
            sectors: 1024 * GIB / 512,
            fua: false,
        };
        world.request(&volume, op, &mut []).expect("discarded");
        world.sync(&volume);
    }
    world.pass(1000);
    assert_eq!(root(&world).nodes, [], "nothing is left");
    assert_eq!(requests(&world, "range"), 0, "nothing was loaded");
    let puts = requests(&world, "put");
    assert_eq!(puts, 6, "and nothing written but the tombstones");
    for node in 0..40 {
        assert_eq!(world.read_fill(&volume, node * NODE, 4096), 0);
    }
    let (mut other, theirs) = take_over_on_other_host(&world, options());
    assert_eq!(other.read_fill(&theirs, 7 * NODE, 4096), 0);
}

#[test]
fn a_page_that_deltas_cover_is_not_loaded() {
    let (mut world, volume) = with_volume(options(), 8 * GIB);
    for page in 0..20 {
        world.write(&volume, page * PAGE, 1, 4096);
    }
    fold(&mut world, &volume, 300 * PAGE);
    // A host that has none of the pages; the last one is far from what changes.
    let (mut world, volume) = take_over_on_other_host(&world, options());
    let op = Op::Discard {
        sector: 0,
        sectors: 20 * PAGE,
        fua: false,
    };
    world.request(&volume, op, &mut []).expect("discarded");
    for page in 0..10 {
        world.write(&volume, page * PAGE + 64, 2, 4096);
    }
    world.sync(&volume);
    world.run_until_idle();
    world.env.store_requests.clear();
    fold(&mut world, &volume, 301 * PAGE);
    // That page which the rounds before changed in part.
    assert!(requests(&world, "range") <= 1, "no other had to be loaded");
    let (mut other, theirs) = take_over_on_other_host(&world, options());
    for page in 0..20 {
        let expected = if page < 10 { 2 } else { 0 };
        assert_eq!(other.read_fill(&theirs, page * PAGE, 4096), 0, "{page}");
        assert_eq!(other.read_fill(&theirs, page * PAGE + 64, 4096), expected);
    }
}

#[test]
fn a_lost_pack_stops_folding_of_its_own_range_alone() {
    let (mut world, volume) = with_volume(options(), 64 * GIB);
    world.write(&volume, 3 * PAGE, 1, 4096);
    world.sync(&volume);
    let gone = world.env.objects.keys();
    let gone = gone.filter(|key| key.starts_with("packs/"));
    let gone: Vec<String> = gone.cloned().collect();
    assert_eq!(gone.len(), 1);
    let taken = world.env.objects.remove(&gone[0]).expect("it is there");
    let (mut world, volume) = take_over_on_other_host(&world, options());
    let mut expected = BTreeMap::new();
    for round in 0..40_u64 {
        // In the lost range's page now and then, and in other pages and nodes.
        let sector = match round % 8 {
            0 => 3 * PAGE + 64 + round * 8,
            far => far * PAGE + NODE * (round % 3) + round * 8 + NODE,
        };
        world.write(&volume, sector, round as u8 + 10, 4096);
        expected.insert(sector, round as u8 + 10);
        world.sync(&volume);
        world.pass(200);
    }
    let deltas = root(&world).deltas;
    let outside = deltas.iter().filter(|delta| delta.span.end > 4 * PAGE);
    assert!(outside.count() <= 5, "{deltas:?}");
    assert!(deltas.len() <= 11, "{deltas:?}");
    assert!(root(&world).nodes.len() >= 3, "the rest is folded");
    let mut data = [0; 4096];
    let op = Op::Read {
        sector: 3 * PAGE,
        sectors: 8,
    };
    assert!(world.request(&volume, op, &mut data).is_err());
    // Once it is put back, the volume is whole, with what was written meanwhile.
    world.env.objects.insert(gone[0].clone(), taken);
    let (mut other, theirs) = take_over_on_other_host(&world, options());
    assert_eq!(other.read_fill(&theirs, 3 * PAGE, 4096), 1);
    for (sector, fill) in &expected {
        assert_eq!(other.read_fill(&theirs, *sector, 4096), *fill, "{sector}");
    }
    fold(&mut other, &theirs, 50 * NODE / 16);
    assert!(root(&other).deltas.len() <= 4, "now all of it is folded");
    assert_eq!(other.read_fill(&theirs, 3 * PAGE, 4096), 1);
}

#[test]
fn a_footer_is_read_once_however_many_windows_a_fold_left_of_it() {
    let (mut world, volume) = with_volume(options(), 64 * GIB);
    for page in [3, 7, 11] {
        world.write(&volume, page * PAGE, 1, 4096);
        world.sync(&volume);
    }
    world
        .env
        .objects
        .retain(|key, _| !key.starts_with("packs/"));
    let (mut world, volume) = take_over_on_other_host(&world, options());
    for round in 0..8_u64 {
        for page in [3, 5, 7, 9, 11] {
            world.write(&volume, page * PAGE + 64 + round * 8, 2, 4096);
        }
        world.sync(&volume);
        world.pass(200);
    }
    let deltas = root(&world).deltas;
    let packs: BTreeSet<ObjectId> = deltas.iter().map(|delta| delta.pack).collect();
    assert!(deltas.len() >= 2 * packs.len(), "{deltas:?}");
    let (mut other, theirs) = take_over_on_other_host(&world, options());
    other.run_until_idle();
    // Beside the footers, a node and pages: what can be folded now is folded.
    let reads = requests(&other, "range");
    assert!(
        reads <= packs.len() + 5,
        "{reads} for {} packs",
        packs.len()
    );
    assert_eq!(other.read_fill(&theirs, 7 * PAGE + 64, 4096), 2);
}

#[test]
fn an_open_reads_what_it_needs_side_by_side() {
    let many = Options {
        deltas_max: 64,
        ..options()
    };
    let (mut world, volume) = with_volume(many.clone(), 1024 * GIB);
    for node in 0..60 {
        world.write(&volume, node * NODE, node as u8, 4096);
    }
    for round in 0..50 {
        world.write(&volume, 8, round, 4096);
        world.sync(&volume);
    }
    let (world, _) = take_over_on_other_host(&world, many.clone());
    let env = Environment {
        objects: world.env.objects.clone(),
        versions: world.env.versions + 9000,
        store_ms: 30,
        ..Environment::default()
    };
    let mut world = World::try_start(env, many).unwrap_or_else(|e| panic!("{}", e.0));
    let begun = world.now_ns;
    let volume = world.try_open("demo", true).expect("opened");
    assert_eq!(world.read_fill(&volume, 8, 4096), 49);
    let took_ms = (world.now_ns - begun) / 1_000_000;
    // Root, own log, claim, low mark, 50 records in six windows, fence, low mark, adoption, two batches of
    // footers, the chunk; each is rounded up to the test's clock.
    assert!(took_ms <= 18 * 40, "{took_ms} ms for 50 footers");
    assert!(root(&world).deltas.len() >= 50, "nothing was folded");
}

#[test]
fn what_a_fold_writes_is_named_in_the_hosts_log_before_a_root_has_it() {
    let (mut world, volume) = with_volume(options(), 8 * GIB);
    for page in 0..40 {
        world.write(&volume, page * PAGE, 1, 4096);
    }
    fold(&mut world, &volume, 0);
    let log = world.env.objects.iter();
    let log = log.filter(|(key, _)| key.contains("/log/"));
    let mut named = Vec::new();
    for (_, (data, _)) in log {
        if let Content::Slices(slices) = Record::decode(data).expect("a record").content {
            named.extend(slices.objects.iter().map(|object| object.number));
        }
    }
    let nodes = root(&world).nodes;
    assert!(!nodes.is_empty());
    let listed = |(_, block): &(u64, BlockRef)| named.contains(&block.object.number);
    assert!(nodes.iter().all(listed), "{nodes:?}: {named:?}");
}

/// Carries on what goes on now, with a fold that looks between all steps whether one is due.
fn settle_with_an_eager_fold(world: &mut World, volume: &Volume, bytes: u64) {
    loop {
        // It has this size already, so this does nothing but wake the volume's procedures.
        drop(world.host.grow_volume(volume, bytes));
        let more = world.host.run_jobs();
        let mut requests = world.host.take_requests();
        requests.extend(world.host.take_commit_requests());
        if requests.is_empty() && !more {
            return;
        }
        for Request { id, op } in requests {
            let outcome = match op {
                RequestOp::Disk(op) => Outcome::Disk(world.disk(op).map(Into::into)),
                RequestOp::Store(op) => Outcome::Store(world.store(op)),
                RequestOp::Compute(work) => crate::support::compute(work),
            };
            world.host.complete(id, outcome);
        }
    }
}

/// What a fork of another host's tail goes by: the root's extension 1.
fn folded(root: &Root) -> Option<Lsn> {
    let found = root.extensions.0.iter().find(|found| found.tag == 1)?;
    let bytes = found.bytes[..].try_into().expect("eight bytes");
    Some(Lsn(u64::from_le_bytes(bytes)))
}

#[test]
fn pages_hold_nothing_newer_than_what_their_root_says_was_folded() {
    let (mut world, volume) = with_volume(options(), 8 * GIB);
    for page in 0..options().deltas_max as u64 {
        world.write(&volume, page * PAGE, 1, 4096);
        world.sync(&volume);
    }
    assert_eq!(root(&world).nodes, [], "one more makes a fold due");
    // The fold begins while the publisher is about to say that this one is stored.
    world.write(&volume, 9 * PAGE, 2, 4096);
    let synced = world.host.sync(&volume);
    settle_with_an_eager_fold(&mut world, &volume, 8 * GIB);
    let newest = synced.try_take().expect("an answer").expect("synced");
    let root = root(&world);
    assert!(root.deltas.is_empty() && !root.nodes.is_empty(), "{root:?}");
    assert_eq!((root.lsn, folded(&root)), (newest, Some(newest)));
}

#[test]
fn a_fold_of_a_volume_whose_root_is_gone_is_tried_seldom_and_ends_when_it_is_back() {
    let (mut world, volume) = with_volume(options(), 8 * GIB);
    for round in 0..6 {
        for page in 0..40 {
            world.write(&volume, page * PAGE, round, 4096);
        }
        if round < 4 {
            world.sync(&volume);
        }
    }
    // The fold has begun to write when the root goes.
    world.env.store_ms = 100;
    let synced = world.host.sync(&volume);
    world.pass(500);
    let root_key = "volumes/demo/root";
    let stood = world.env.objects.remove(root_key).expect("a root");
    world.pass(5_000);
    let (puts, creates) = (requests(&world, "put"), requests(&world, "create"));
    world.pass(600_000);
    let puts = requests(&world, "put") - puts;
    let creates = requests(&world, "create") - creates;
    assert!(puts < 60 && creates < 60, "{puts} PUTs, {creates} records");
    world.env.objects.insert(root_key.to_owned(), stood);
    world.pass(120_000);
    drop(synced);
    assert!(!root(&world).nodes.is_empty(), "folded");
}

#[test]
fn on_a_poisoned_log_nothing_is_folded_since_no_record_can_name_it() {
    let (mut world, volume) = with_volume(options(), 8 * GIB);
    world.create("other", 8 * GIB);
    let other = world.open("other");
    // One more is due for a fold.
    for round in 0..4 {
        world.write(&volume, 0, round, 4096);
        world.sync(&volume);
    }
    world.write(&volume, 0, 5, 4096);
    world.flush(&volume);
    world.write(&other, 0, 5, 4096);
    world.env.failing_syncs = 1;
    world
        .request(&other, Op::Flush, &mut [])
        .expect_err("poisoned");
    world.sync(&volume);
    world.pass(60_000);
    let root = root(&world);
    assert_eq!(root.deltas.len(), 5);
    assert!(root.nodes.is_empty());
    let is_index = |key: &String| key.starts_with("indexes/");
    assert!(!world.env.objects.keys().any(is_index));
    let (mut there, volume) = take_over_on_other_host(&world, options());
    assert_eq!(there.read_fill(&volume, 0, 4096), 5);
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        (
            "poisoned_log_names_objects",
            on_a_poisoned_log_nothing_is_folded_since_no_record_can_name_it,
        ),
        (
            "folds_never_back_off",
            a_fold_of_a_volume_whose_root_is_gone_is_tried_seldom_and_ends_when_it_is_back,
        ),
        (
            "footers_are_read_once_a_window",
            a_footer_is_read_once_however_many_windows_a_fold_left_of_it,
        ),
        (
            "fold_names_its_objects_nowhere",
            what_a_fold_writes_is_named_in_the_hosts_log_before_a_root_has_it,
        ),
        (
            "folded_is_what_is_stored",
            pages_hold_nothing_newer_than_what_their_root_says_was_folded,
        ),
    ]);
}
