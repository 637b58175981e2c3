//! The engine while the store is away: what is accepted, who waits, and that all go on afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Op, Step};
use volume::Options;

use crate::support::{Environment, World, options, waker, with_volume};

const MIB: u64 = 1 << 20;

#[test]
fn in_an_outage_writers_are_parked_when_the_log_is_full_and_go_on_when_it_ends() {
    let (mut world, volume) = with_volume();
    world.env.outage = true;
    let chunk = fill(&mut world, &volume);
    assert!(chunk >= 32, "a good part of the log was used: {chunk}");
    world.flush(&volume);
    world.env.outage = false;
    world.write(&volume, chunk * 128, 9, 65536);
    assert_eq!(world.read_fill(&volume, chunk * 128, 65536), 9);
}

/// Writes chunk after chunk until none is taken any more; how many were.
fn fill(world: &mut World, volume: &volume::Volume) -> u64 {
    let waker = waker();
    let (mut chunk, mut waits) = (0, 0);
    while waits < 50 {
        let op = Op::Write {
            sector: chunk * 128,
            sectors: 128,
            fua: false,
        };
        match volume.begin(&op, &waker) {
            Step::Write(plan) => {
                let done = volume.written(plan, Ok(()), &waker);
                assert!(matches!(done, Step::Done(Ok(()))));
                (chunk, waits) = (chunk + 1, 0);
            }
            Step::Park(_) => {
                world.pass(100);
                waits += 1;
            }
            other => panic!("an outage is no error: {other:?}"),
        }
    }
    chunk
}

#[test]
fn in_an_outage_a_volume_that_fills_the_log_leaves_room_for_others() {
    let (mut world, noisy) = with_volume();
    world.create("calm", 64 * MIB);
    let calm = world.open("calm");
    world.env.outage = true;
    let chunks = fill(&mut world, &noisy);
    assert!(chunks >= 16, "a good part of the log was used: {chunks}");
    for block in 0..32 {
        world.write(&calm, block * 8, 3, 4096);
    }
    world.flush(&calm);
    world.env.outage = false;
    world.write(&noisy, chunks * 128, 9, 65536);
    assert_eq!(world.read_fill(&noisy, chunks * 128, 65536), 9);
    assert_eq!(world.read_fill(&calm, 0, 32 * 4096), 3);
}

#[test]
fn a_volume_that_is_kept_from_the_rest_of_the_log_goes_on_once_its_bytes_are_superseded() {
    let (mut world, noisy) = with_volume();
    world.create("calm", 64 * MIB);
    let _calm = world.open("calm");
    world.env.outage = true;
    let chunks = fill(&mut world, &noisy);
    // Discards take no log: what they supersede is space again, in the outage, too.
    let waker = waker();
    let op = Op::Discard {
        sector: 0,
        sectors: (chunks - 2) * 128,
        fua: false,
    };
    assert!(matches!(noisy.begin(&op, &waker), Step::Done(Ok(()))));
    for round in 0..300_u64 {
        world.write(&noisy, (round % 32) * 8, round as u8, 4096);
    }
    assert_eq!(world.read_fill(&noisy, (299 % 32) * 8, 4096), 299_u64 as u8);
}

#[test]
fn overwriting_in_an_outage_never_fills_the_log() {
    let (mut world, volume) = with_volume();
    world.env.outage = true;
    for round in 0..2000_u64 {
        world.write(&volume, (round * 37 % 64) * 8, round as u8, 4096);
    }
    for block in 0..64 {
        let last = (0..2000)
            .rev()
            .find(|round| round * 37 % 64 == block)
            .expect("written");
        assert_eq!(
            world.read_fill(&volume, block * 8, 4096),
            last as u8,
            "{block}"
        );
    }
}

#[test]
fn what_is_cached_is_served_in_an_outage_though_its_index_page_left_memory() {
    // Memory for the few blocks that always stay; one block of content in each of far more pages.
    let options = Options {
        index_bytes: 0,
        cache_bytes: 4 << 20,
        ..options()
    };
    let (pages, sectors) = (100, 32_768);
    let start =
        |env| World::try_start(env, options.clone()).unwrap_or_else(|error| panic!("{}", error.0));
    let mut world = start(Environment::default());
    world.create("demo", 100 << 30);
    let volume = world.open("demo");
    for page in 0..pages {
        world.write(&volume, page * sectors, page as u8 + 1, 4096);
    }
    for _ in 0..6 {
        world.write(&volume, 8, 9, 4096);
        world.sync(&volume);
    }
    world.pass(1000);
    let mut world = start(Environment {
        objects: world.kill().objects,
        versions: 9000,
        ..Environment::default()
    });
    let volume = world.try_open("demo", true).expect("opened");
    for page in 0..pages {
        let found = world.read_fill(&volume, page * sectors, 4096);
        assert_eq!(found, page as u8 + 1);
    }
    world.env.outage = true;
    for page in 0..pages {
        let found = world.read_fill(&volume, page * sectors, 4096);
        assert_eq!(found, page as u8 + 1);
    }
}

#[test]
fn a_volume_whose_writes_wait_for_room_learns_that_another_host_has_it() {
    let (mut world, old) = with_volume();
    world.env.outage = true;
    fill(&mut world, &old);
    world.flush(&old);
    // What fills the log belongs to a volume that nobody opens again.
    let mut world = World::start(world.kill());
    world.env.outage = false;
    world.create("parked", 64 * MIB);
    let parked = world.open("parked");
    let op = Op::Write {
        sector: 0,
        // More than is left.
        sectors: 2048,
        fua: false,
    };
    let waker = waker();
    for _ in 0..50 {
        let Step::Park(_) = parked.begin(&op, &waker) else {
            panic!("there is no room");
        };
        world.pass(100);
    }
    assert!(parked.check_serving().is_ok());

    let mut other = World::start(Environment {
        versions: world.env.versions + 5000,
        objects: std::mem::take(&mut world.env.objects),
        ..Environment::default()
    });
    other.try_open("parked", true).expect("taken over");
    world.env.versions = other.env.versions + 5000;
    world.env.objects = std::mem::take(&mut other.env.objects);
    for _ in 0..100 {
        let step = parked.begin(&op, &waker);
        assert!(
            !matches!(step, Step::Write(_)),
            "it is not its own any more"
        );
        world.pass(100);
    }
    assert_eq!(parked.check_serving(), Err(ErrorKind::Fenced));
}

/// Writes chunk after chunk until the rest of the log is for others; how many were.
fn fill_up_to_the_reserve(world: &mut World, volume: &volume::Volume) -> u64 {
    let mut chunk = 0;
    while world.host.usage().pressure_permille < 800 {
        world.write(volume, chunk * 128, 7, 65536);
        chunk += 1;
    }
    world.pass(100);
    chunk
}

#[test]
fn layers_stay_few_while_the_cleaner_finds_nothing() {
    let (mut world, noisy) = with_volume();
    world.create("calm", 64 * MIB);
    let calm = world.open("calm");
    world.env.outage = true;
    // A layer on its way and one that waits, below what follows.
    for slice in 1..=2 {
        world.write(&calm, slice * 4096, 4, 128 << 10);
        world.pass(1000);
    }
    let chunks = fill_up_to_the_reserve(&mut world, &noisy);
    let waker = waker();
    let parked = Op::Write {
        sector: chunks * 128,
        sectors: 128,
        fua: false,
    };
    // Each tick of a parked write wakes the cleaner, and each write below its share gives it a new top layer.
    let before = world.host.usage().layers;
    let mut layers = 0;
    for block in 0..60 {
        assert!(matches!(noisy.begin(&parked, &waker), Step::Park(_)));
        world.write(&calm, block * 8, 3, 4096);
        world.pass(10);
        layers = layers.max(world.host.usage().layers);
    }
    assert!(layers <= before + 1, "{layers} layers, {before} before");
    assert_eq!(world.read_fill(&calm, 0, 60 * 4096), 3);
}

/// Counts how often it is woken.
#[derive(Default)]
struct Parked(AtomicUsize);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn on_a_log_that_is_poisoned_every_parked_write_hears_of_it_at_once() {
    let (mut world, noisy) = with_volume();
    world.create("calm", 64 * MIB);
    let calm = world.open("calm");
    world.env.outage = true;
    let chunks = fill_up_to_the_reserve(&mut world, &noisy);
    let op = Op::Write {
        sector: chunks * 128,
        sectors: 128,
        fua: false,
    };
    let writes: Vec<Arc<Parked>> = (0..64).map(|_| Arc::default()).collect();
    for write in &writes {
        let waker = Waker::from(Arc::clone(write));
        assert!(matches!(noisy.begin(&op, &waker), Step::Park(_)));
    }
    world.write(&calm, 0, 3, 4096);
    world.env.failing_syncs = 1;
    world
        .request(&calm, Op::Flush, &mut [])
        .expect_err("poisoned");
    world.run_until_idle();
    let unheard = writes
        .iter()
        .filter(|write| write.0.load(Ordering::Relaxed) == 0);
    assert_eq!(unheard.count(), 0);
}

#[test]
fn the_cleaner_moves_nothing_of_a_slice_on_its_way() {
    let (mut world, noisy) = with_volume();
    world.create("calm", 64 * MIB);
    // The store has taken something, so several slices go on their way, and now it takes none of their packs.
    world.write(&noisy, 0, 1, 4096);
    world.sync(&noisy);
    world.env.hanging_puts = usize::MAX;
    // What is written over and over leaves every segment half empty, and all of it is on its way.
    let hot = 32 * MIB / 512;
    let cold = 20;
    for cold in 0..cold {
        world.write(&noisy, hot + 128 + cold * 48, 5, 24 << 10);
        world.write(&noisy, hot, 6, 40 << 10);
    }
    let _answer = world.host.sync(&noisy);
    let calm = world.open("calm");
    world.pass(100);
    let fresh = fill_up_to_the_reserve(&mut world, &noisy);
    let spare = world.host.usage().segments_spare;
    let waker = waker();
    let parked = Op::Write {
        sector: fresh * 128,
        sectors: 128,
        fua: false,
    };
    for _ in 0..200 {
        assert!(matches!(noisy.begin(&parked, &waker), Step::Park(_)));
        world.pass(10);
    }
    let left = world.host.usage().segments_spare;
    assert!(
        left >= spare,
        "{left} of {spare} segments are left for others"
    );
    for block in 0..32 {
        world.write(&calm, block * 8, 3, 4096);
    }
    assert_eq!(world.read_fill(&calm, 0, 32 * 4096), 3);
    for cold in 0..cold {
        assert_eq!(
            world.read_fill(&noisy, hot + 128 + cold * 48, 24 << 10),
            5,
            "{cold}"
        );
    }
}

#[cfg(feature = "planted")]
#[test]
fn each_planted_bug_is_seen_by_its_test() {
    canary::each_is_seen(&[
        (
            "poison_wakes_a_few",
            on_a_log_that_is_poisoned_every_parked_write_hears_of_it_at_once,
        ),
        (
            "index_block_in_memory_only",
            what_is_cached_is_served_in_an_outage_though_its_index_page_left_memory,
        ),
        (
            "parked_host_stays_unfenced",
            a_volume_whose_writes_wait_for_room_learns_that_another_host_has_it,
        ),
        (
            "cleaner_freezes_every_top",
            layers_stay_few_while_the_cleaner_finds_nothing,
        ),
        (
            "cleaner_moves_slices",
            the_cleaner_moves_nothing_of_a_slice_on_its_way,
        ),
    ]);
}
