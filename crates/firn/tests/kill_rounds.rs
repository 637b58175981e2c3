//! kill -9 under load, again and again: every acknowledged write is found after each restart.
//!
//! Several clients write to blocks of their own, over connections of their own, without flushing,
//! while uploads and log reclaim run; the server is killed after some number of
//! acknowledgements. Each block must then hold the last acknowledged write of it, or the one that
//! was in flight. `FIRN_KILL_ROUNDS` sets the number of rounds.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use common::{World, eventually};
use oracle::SectorOracle;
use oracle::stamp::SECTOR_BYTES;

const CLIENTS: u32 = 4;
const BLOCK_SECTORS: u64 = 8;
/// Blocks per client: together as much as the log, so that it has to be reclaimed.
const BLOCKS: u64 = 4096;
const SECTORS: u64 = BLOCKS * BLOCK_SECTORS;
const ROUNDS_DEFAULT: u64 = 6;
/// Largest write in blocks.
const RUN_MAX: u64 = 24;

/// The offset of a sector of a client's on the disk.
fn address(client: u32, sector: u64) -> u64 {
    (u64::from(client) * SECTORS + sector) * SECTOR_BYTES as u64
}

/// Writes until the connection breaks, counts acknowledgements, and answers how many writes it made.
fn write_until_cut(
    mut to: common::nbd::Client,
    client: u32,
    random: &mut fastrand::Rng,
    oracle: &mut SectorOracle,
    acks: &AtomicU64,
) -> u64 {
    let mut writes = 0;
    loop {
        let blocks = random.u64(1..=RUN_MAX);
        let first = random.u64(..BLOCKS - blocks) * BLOCK_SECTORS;
        let (generation, data) = oracle.begin_filled(first..first + blocks * BLOCK_SECTORS);
        writes += 1;
        let Ok(code) = to.try_write(address(client, first), &data) else {
            oracle.crash();
            return writes;
        };
        assert_eq!(code, 0, "a write was refused");
        oracle.acknowledge(generation);
        acks.fetch_add(1, Ordering::SeqCst);
    }
}

/// Checks every sector of a client.
fn check(to: &mut common::nbd::Client, client: u32, oracle: &mut SectorOracle) {
    const AT_ONCE: u64 = 512;
    for first in (0..SECTORS).step_by(AT_ONCE as usize) {
        let read = oracle.begin_read(first..first + AT_ONCE);
        let len = AT_ONCE as usize * SECTOR_BYTES;
        let bytes = to.read(address(client, first), len).unwrap();
        if let Err(wrong) = oracle.check_bytes(&read, &bytes) {
            panic!("{wrong}");
        }
    }
}

#[test]
fn every_acknowledged_write_is_found_after_each_kill_9() {
    let rounds = std::env::var("FIRN_KILL_ROUNDS").map_or(ROUNDS_DEFAULT, |n| n.parse().unwrap());
    let world = World::new();
    let size = format!("demo={}MiB", address(CLIENTS, 0) >> 20);
    let mut server = world.serve("cache", &["--volume", &size, "--rpo", "300ms"]);
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let oracle = SectorOracle::in_blocks(client, SECTORS, BLOCK_SECTORS);
            (client, fastrand::Rng::with_seed(u64::from(client)), oracle)
        })
        .collect();
    let writes = AtomicU64::new(0);
    for round in 0..rounds {
        let acks = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for (client, random, oracle) in &mut clients {
                let (to, acks, writes) = (server.connect("demo"), &acks, &writes);
                scope.spawn(move || {
                    let made = write_until_cut(to, *client, random, oracle, acks);
                    writes.fetch_add(made, Ordering::Relaxed);
                });
            }
            // A different moment each round: by count, so that a slow machine does as much.
            let enough = 100 + (round * 577) % 900;
            eventually("the writes", || acks.load(Ordering::SeqCst) >= enough);
            server.kill();
        });
        server = world.serve("cache", &["--rpo", "300ms"]);
        for (client, _, oracle) in &mut clients {
            check(&mut server.connect("demo"), *client, oracle);
        }
    }
    let writes = writes.into_inner();
    println!("{rounds} rounds, {writes} writes, all acknowledged ones found");
}
