//! What a volume costs: bytes and requests of the store, and what a recovery reads of the log.

use crate::support::{Environment, World, options, random_bytes, with_volume};

#[test]
fn deltas_are_folded_and_a_cold_block_costs_two_requests() {
    let (mut world, volume) = with_volume();
    for round in 0..12_u64 {
        for block in 0..8 {
            world.write(&volume, (round * 8 + block) * 1024, round as u8 + 1, 4096);
        }
        world.sync(&volume);
    }
    let env = Environment {
        objects: world.kill().objects,
        versions: 9000,
        ..Environment::default()
    };
    let mut world = World::start(env);
    let volume = world.try_open("demo", true).expect("opened");
    world.env.store_requests.clear();
    assert_eq!(world.read_fill(&volume, 0, 4096), 1);
    let requests: usize = world.env.store_requests.values().sum();
    assert!(requests <= 2, "{:?}", world.env.store_requests);
    for round in 0..12_u64 {
        for block in 0..8 {
            let sector = (round * 8 + block) * 1024;
            assert_eq!(world.read_fill(&volume, sector, 4096), round as u8 + 1);
        }
    }
}

#[test]
fn random_small_writes_upload_little_more_than_their_bytes() {
    let (mut world, volume) = with_volume();
    let before = volume.uploaded_bytes();
    let mut written = 0;
    for n in 0..512_u64 {
        world.write_noise(&volume, n * 7919 % 16384 * 8, n + 1, 4096);
        written += 4096;
    }
    world.sync(&volume);
    let uploaded = volume.uploaded_bytes() - before;
    assert!(
        uploaded * 10 <= written * 13,
        "{uploaded} bytes for {written}"
    );
}

#[test]
fn a_cold_block_is_written_without_asking_the_store() {
    let (mut world, volume) = with_volume();
    for block in 0..64 {
        world.write(&volume, block * 8, 1, 4096);
    }
    world.sync(&volume);
    let env = Environment {
        objects: world.kill().objects,
        versions: 9000,
        ..Environment::default()
    };
    let mut world = World::start(env);
    let volume = world.try_open("demo", true).expect("opened");
    world.run_until_idle();
    world.env.store_requests.clear();
    world.write(&volume, 8, 2, 4096);
    world.write(&volume, 17, 3, 512);
    assert!(
        world.env.store_requests.is_empty(),
        "{:?}",
        world.env.store_requests
    );
    assert_eq!(world.read_fill(&volume, 16, 512), 1);
    assert_eq!(world.read_fill(&volume, 17, 512), 3);
}

#[test]
fn what_was_written_in_sequence_is_read_cold_in_one_request_a_pack() {
    let (mut world, volume) = with_volume();
    for block in 0..32_u64 {
        world.write_noise(&volume, block * 8, block + 1, 4096);
    }
    world.sync(&volume);
    let env = Environment {
        objects: world.kill().objects,
        versions: 9000,
        ..Environment::default()
    };
    let mut world = World::start(env);
    let volume = world.try_open("demo", true).expect("opened");
    world.env.store_requests.clear();
    let data = world.read(&volume, 0, 131_072);
    for block in 0..32 {
        assert_eq!(
            data[block * 4096..][..4096],
            random_bytes(block as u64 + 1, 4096),
            "{block}"
        );
    }
    let requests: usize = world.env.store_requests.values().sum();
    assert_eq!(requests, 1, "{:?}", world.env.store_requests);
}

#[test]
fn an_idle_volume_costs_no_store_requests() {
    let (mut world, volume) = with_volume();
    world.write(&volume, 0, 1, 4096);
    world.sync(&volume);
    world.pass(1000);
    world.env.store_requests.clear();
    world.pass(120_000);
    assert!(
        world.env.store_requests.is_empty(),
        "{:?}",
        world.env.store_requests
    );
}

#[test]
fn recovery_reads_a_bounded_part_of_the_log() {
    let (mut world, volume) = with_volume();
    world.env.outage = true;
    for block in 0..400_u64 {
        world.write(&volume, block * 8, 1, 4096);
        if block.is_multiple_of(5) {
            world.flush(&volume);
        }
    }
    let mut env = world.kill();
    env.bytes_read = 0;
    let log_bytes = options().log_bytes;
    let world = World::start(env);
    let read = world.env.bytes_read;
    // Both journal halves, a header per segment and the superblocks, whatever was written.
    let segments = log_bytes / options().segment_bytes;
    let bound = log_bytes * 72 / 1000 + 2 * 64 * 4096 + (segments + 2) * 4096;
    assert!(read <= bound, "{read} of {log_bytes}, bound {bound}");
}
