//! What a volume promises, one sentence a test, on files and objects in memory.

use blkmq::error::ErrorKind;
use blkmq::io::{FileId, Op};
use volume::OpenError;

use crate::support::{Environment, World, with_volume};

const MIB: u64 = 1 << 20;

#[test]
fn a_volume_reads_zeroes_until_it_is_written_and_then_what_was_written_last() {
    let (mut world, volume) = with_volume();
    assert_eq!(world.read_fill(&volume, 0, 65536), 0);
    world.write(&volume, 8, 1, 4096);
    world.write(&volume, 9, 2, 512);
    assert_eq!(world.read_fill(&volume, 8, 512), 1);
    assert_eq!(world.read_fill(&volume, 9, 512), 2);
    assert_eq!(world.read_fill(&volume, 10, 6 * 512), 1);
    assert_eq!(world.read_fill(&volume, 16, 4096), 0);
    let zero = Op::WriteZeroes {
        sector: 10,
        sectors: 2,
        fua: true,
    };
    world.request(&volume, zero, &mut []).expect("zeroed");
    assert_eq!(world.read_fill(&volume, 10, 1024), 0);
    assert_eq!(world.read_fill(&volume, 12, 512), 1);
}

#[test]
fn a_completed_write_survives_the_death_of_the_process() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.flush(&volume);
    world.write(&volume, 8, 2, 4096);
    world.write(&volume, 0, 3, 512);
    let mut world = World::start(world.kill());
    assert_eq!(world.report.ring_entries, 2);
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 0, 512), 3);
    assert_eq!(world.read_fill(&volume, 1, 512), 1);
    assert_eq!(world.read_fill(&volume, 8, 4096), 2);
}

#[test]
fn a_flushed_write_survives_the_loss_of_the_rings_with_a_reboot() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.flush(&volume);
    world.write(&volume, 0, 2, 4096);
    let mut env = world.kill();
    env.boot = 2;
    env.rings.lose_all();
    let mut world = World::start(env);
    assert!(world.report.rings_lost.is_empty(), "a reboot explains it");
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
}

#[test]
fn a_ring_that_is_gone_without_a_reboot_is_reported_as_a_loss() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    let env = world.kill();
    env.rings.lose_all();
    let world = World::start(env);
    assert_eq!(world.report.rings_lost, ["demo"]);
}

#[test]
fn a_volume_that_is_not_opened_after_a_reboot_is_not_reported_as_a_loss() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.flush(&volume);
    let mut env = world.kill();
    env.boot = 2;
    env.rings.lose_all();
    for _ in 0..3 {
        let world = World::start(env);
        assert!(world.report.rings_lost.is_empty(), "nothing was lost");
        assert_eq!(world.report.tails.len(), 1);
        env = world.kill();
    }
    // Nor is one that nobody wrote to since the last start. A loss is reported once.
    env.rings.lose_all();
    let mut world = World::start(env);
    assert!(world.report.rings_lost.is_empty(), "nothing was lost");
    let volume = world.open("demo");
    world.write(&volume, 8, 3, 4096);
    let env = world.kill();
    env.rings.lose_all();
    let world = World::start(env);
    assert_eq!(world.report.rings_lost, ["demo"]);
    let mut world = World::start(world.kill());
    assert!(world.report.rings_lost.is_empty());
    let volume = world.open("demo");
    world.write(&volume, 8, 2, 4096);
    let mut world = World::start(world.kill());
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
    assert_eq!(world.read_fill(&volume, 8, 4096), 2);
}

#[test]
fn what_was_synced_survives_the_loss_of_the_host() {
    let (mut world, volume) = with_volume();
    for block in 0..100 {
        world.write(&volume, block * 8, block as u8 + 1, 4096);
    }
    world.sync(&volume);
    world.write(&volume, 0, 200, 4096);
    let before = world.kill();
    let env = Environment {
        objects: before.objects,
        versions: 1000,
        ..Environment::default()
    };
    let mut world = World::start(env);
    assert!(matches!(
        world.try_open("demo", false),
        Err(OpenError::Held { .. })
    ));
    let volume = world.try_open("demo", true).expect("taken over");
    for block in 0..100 {
        assert_eq!(
            world.read_fill(&volume, block * 8, 4096),
            block as u8 + 1,
            "{block}"
        );
    }
    assert_eq!(world.read_fill(&volume, 800, 4096), 0);
}

#[test]
fn a_log_far_smaller_than_what_is_written_never_runs_out() {
    let (mut world, volume) = with_volume();
    for round in 0..4_u8 {
        for chunk in 0..256_u64 {
            world.write(
                &volume,
                chunk * 128,
                round * 50 + (chunk % 50) as u8 + 1,
                65536,
            );
        }
    }
    for chunk in 0..256_u64 {
        let want = 150 + (chunk % 50) as u8 + 1;
        assert_eq!(
            world.read_fill(&volume, chunk * 128, 65536),
            want,
            "{chunk}"
        );
    }
}

#[test]
fn a_failed_sync_fails_flushes_and_writes_for_good_and_reads_go_on() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.flush(&volume);
    world.write(&volume, 8, 2, 4096);
    world.env.failing_syncs = 1;
    assert_eq!(
        world.request(&volume, Op::Flush, &mut []),
        Err(ErrorKind::Io)
    );
    let op = Op::Write {
        sector: 0,
        sectors: 8,
        fua: false,
    };
    assert_eq!(
        world.request(&volume, op, &mut [9; 4096]),
        Err(ErrorKind::Io)
    );
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
    let mut world = World::start(world.kill());
    assert!(world.report.poisoned, "the mark survives");
    let volume = world.open("demo");
    assert_eq!(
        world.request(&volume, Op::Flush, &mut []),
        Err(ErrorKind::Io)
    );
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
    assert_eq!(
        world.request(&volume, op, &mut [9; 4096]),
        Err(ErrorKind::Io)
    );
    world.sync(&volume);
    let env = Environment {
        objects: world.kill().objects,
        versions: 9000,
        ..Environment::default()
    };
    let mut world = World::start(env);
    let volume = world
        .try_open("demo", true)
        .expect("what was flushed was uploaded");
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
}

#[test]
fn bad_addresses_are_refused_and_change_nothing() {
    let (mut world, volume) = with_volume();
    let end = 64 * MIB / 512;
    for (sector, sectors) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (u64::MAX / 512, 8)] {
        let write = Op::Write {
            sector,
            sectors,
            fua: false,
        };
        assert_eq!(
            world.request(&volume, write, &mut [1; 4096]),
            Err(ErrorKind::Invalid)
        );
        let read = Op::Read { sector, sectors };
        assert_eq!(
            world.request(&volume, read, &mut [1; 4096]),
            Err(ErrorKind::Invalid)
        );
        let zero = Op::Discard {
            sector,
            sectors: u64::from(sectors),
            fua: false,
        };
        assert_eq!(
            world.request(&volume, zero, &mut []),
            Err(ErrorKind::Invalid)
        );
    }
    assert_eq!(volume.newest().0, 0);
}

#[test]
fn a_damaged_chunk_is_an_error_and_never_served() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    let mut env = Environment {
        objects: world.kill().objects,
        versions: 9000,
        ..Environment::default()
    };
    for (key, (data, _)) in &mut env.objects {
        if key.starts_with("packs/") {
            data[20] ^= 1;
        }
    }
    let mut world = World::start(env);
    let volume = world.try_open("demo", true).expect("opened");
    let op = Op::Read {
        sector: 0,
        sectors: 8,
    };
    assert_eq!(
        world.request(&volume, op, &mut [0; 4096]),
        Err(ErrorKind::Corrupt)
    );
}

#[test]
fn a_foreign_or_newer_log_is_refused_by_name_and_left_alone() {
    let (world, volume) = with_volume();
    drop(volume);
    let good = world.kill();
    for (offset, byte) in [(0, b'X'), (8, 9)] {
        let mut env = Environment {
            files: good.files.clone(),
            ..Environment::default()
        };
        for copy in [0, 4096] {
            env.files.get_mut(&FileId::LOG).expect("a log")[copy + offset] = byte;
        }
        let before = env.files.clone();
        let Err(refused) = World::try_start(env, crate::support::options()) else {
            panic!("accepted");
        };
        let (error, after) = *refused;
        assert!(
            matches!(error, OpenError::Foreign(_) | OpenError::Newer { .. }),
            "{error}"
        );
        assert!(
            before[&FileId::LOG] == after.files[&FileId::LOG],
            "untouched"
        );
    }
}

#[test]
fn the_recovery_point_timer_brings_writes_to_the_store_by_itself() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    assert_eq!(volume.watermarks().stored.lsn.0, 0);
    world.pass(31_000);
    let marks = volume.watermarks();
    assert_eq!(
        (marks.stored.lsn, marks.stored.age_ms),
        (volume.newest(), 0)
    );
}

/// A world whose log has two laps, with flushed frames after the newer one's checkpoint; block
/// `n` of the volume holds `n + 1`.
fn two_laps() -> (Environment, u64) {
    let (mut world, volume) = with_volume();
    world.env.outage = true;
    let write = |world: &mut World, volume: &volume::Volume, block: u64| {
        world.write(volume, block * 8, block as u8 + 1, 4096);
        world.flush(volume);
    };
    (0..4).for_each(|block| write(&mut world, &volume, block));
    let mut env = world.kill();
    env.outage = false;
    let mut world = World::start(env);
    let volume = world.open("demo");
    world.env.outage = true;
    (4..8).for_each(|block| write(&mut world, &volume, block));
    let mut env = world.kill();
    env.outage = false;
    // Without rings only the frames are left to say what was flushed.
    (env.boot, env.rings) = (2, Default::default());
    (env, 8)
}

#[test]
fn a_damaged_frame_that_others_prove_durable_is_refused_and_never_passed_over() {
    let (env, blocks) = two_laps();
    let objects = env.objects.clone();
    let files = env.files.clone();
    let again = || Environment {
        objects: objects.clone(),
        files: files.clone(),
        boot: 2,
        versions: 1000,
        ..Environment::default()
    };
    // The journal: behind two superblocks, up to the first segment.
    let journal = 8192..827_392;
    let (mut refused, mut short) = (0, 0);
    for at in journal.step_by(4096) {
        let mut env = again();
        let log = env.files.get_mut(&FileId::LOG).expect("the log");
        if log[at..at + 4096].iter().all(|byte| *byte == 0) {
            continue;
        }
        log[at + 70] ^= 1;
        match World::try_start(env, crate::support::options()) {
            Err(error) => {
                assert!(matches!(&error.0, OpenError::Corrupt(_)), "{}", error.0);
                refused += 1;
            }
            Ok(mut world) => {
                let volume = world.open("demo");
                let found = (0..blocks)
                    .take_while(|block| {
                        world.read_fill(&volume, block * 8, 4096) == *block as u8 + 1
                    })
                    .count() as u64;
                assert!(found + 1 >= blocks, "block {at}: only {found} of {blocks}");
                short += u64::from(found < blocks);
            }
        }
    }
    // A checkpoint, the note of the fence that the opening found, the tail's record, the note of the record,
    // that the older lap's blocks are stored, where the host's log stands, and all flushes of the newer lap but
    // the last, which nothing stands behind.
    assert_eq!((refused, short), (8, 1));
}

#[test]
fn a_discard_over_very_many_extents_hides_them_all() {
    let mut options = crate::support::options();
    options.log_bytes = 64 << 20;
    options.ring_entries = 8192;
    let started = World::try_start(Environment::default(), options);
    let mut world = started.unwrap_or_else(|refused| panic!("{}", refused.0));
    world.create("demo", 64 * MIB);
    let volume = world.open("demo");
    world.env.outage = true;
    for block in 0..5000_u64 {
        world.write(&volume, block * 16, 1, 4096);
    }
    let discard = Op::Discard {
        sector: 8,
        sectors: 4990 * 16,
        fua: false,
    };
    world.request(&volume, discard, &mut []).expect("discarded");
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
    assert_eq!(world.read_fill(&volume, 16, 65536), 0);
    assert_eq!(world.read_fill(&volume, 4999 * 16, 4096), 1);
    world.env.outage = false;
    world.sync(&volume);
    assert_eq!(world.read_fill(&volume, 4000 * 16, 4096), 0);
    let mut world = World::start(world.kill());
    let volume = world.open("demo");
    assert_eq!(world.read_fill(&volume, 4000 * 16, 4096), 0);
    assert_eq!(world.read_fill(&volume, 4999 * 16, 4096), 1);
}
