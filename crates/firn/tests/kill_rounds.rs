//! kill -9 under load, again and again: every acknowledged write is found after each restart.
//!
//! Several clients write to blocks of their own, over connections of their own, without flushing,
//! while uploads and log reclaim run; the server is killed after some number of
//! acknowledgements. Each 4 KiB block says who wrote it, where, and as which of its writes, so
//! that what is found can be judged: it must be the last acknowledged write of that block, or the
//! one that was in flight. `FIRN_KILL_ROUNDS` sets the number of rounds.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{World, eventually};

const CLIENTS: u64 = 4;
const BLOCK: u64 = 4096;
/// Blocks per client: together as much as the log, so that it has to be reclaimed.
const BLOCKS: u64 = 4096;
const ROUNDS_DEFAULT: u64 = 6;
/// Largest write in blocks.
const RUN_MAX: u64 = 24;

/// What one client knows of its blocks.
#[derive(Default)]
struct Ledger {
    /// Per block, the write that was last acknowledged.
    acknowledged: HashMap<u64, u64>,
    /// The blocks of the write in flight when the connection broke, and its number.
    in_flight: Option<(Vec<u64>, u64)>,
    writes: u64,
}

fn content(client: u64, block: u64, write: u64) -> Vec<u8> {
    let mut state = (client << 56) ^ (block << 32) ^ write ^ 0x9E37_79B9_7F4A_7C15;
    let mut bytes = Vec::with_capacity(BLOCK as usize);
    for word in [client, block, write] {
        bytes.extend(word.to_le_bytes());
    }
    while bytes.len() < BLOCK as usize {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

fn address(client: u64, block: u64) -> u64 {
    (client * BLOCKS + block) * BLOCK
}

/// Writes until the connection breaks; counts acknowledgements.
fn write_until_cut(
    mut to: common::nbd::Client,
    client: u64,
    ledger: &mut Ledger,
    acks: &AtomicU64,
) {
    let mut state = client * 7919 + ledger.writes * 104_729 + 1;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    loop {
        let run = 1 + random(RUN_MAX);
        let first = random(BLOCKS - run);
        ledger.writes += 1;
        let write = ledger.writes;
        let blocks: Vec<u64> = (first..first + run).collect();
        let data: Vec<u8> = blocks
            .iter()
            .flat_map(|&block| content(client, block, write))
            .collect();
        match to.try_write(address(client, first), &data) {
            Ok(code) => {
                assert_eq!(code, 0, "a write was refused");
                ledger
                    .acknowledged
                    .extend(blocks.iter().map(|&block| (block, write)));
                acks.fetch_add(1, Ordering::SeqCst);
            }
            Err(_) => {
                ledger.in_flight = Some((blocks, write));
                return;
            }
        }
    }
}

/// Compares every block with what the client knows, and learns what became of the last write.
fn check(to: &mut common::nbd::Client, client: u64, ledger: &mut Ledger) {
    let (flying, last) = ledger.in_flight.take().unwrap_or_default();
    let per_read = 64;
    for first in (0..BLOCKS).step_by(per_read) {
        let bytes = to
            .read(address(client, first), per_read * BLOCK as usize)
            .unwrap();
        for (at, found) in bytes.chunks(BLOCK as usize).enumerate() {
            let block = first + at as u64;
            let known = ledger.acknowledged.get(&block).copied();
            let is = |write: u64| found == content(client, block, write);
            let old = known.map_or_else(|| found.iter().all(|&byte| byte == 0), is);
            if old {
                continue;
            }
            let write = u64::from_le_bytes(found[16..24].try_into().unwrap());
            assert!(
                flying.contains(&block) && is(last),
                "client {client} block {block}: acknowledged {known:?}, in flight {last} \
                 (here: {}), found {write}",
                flying.contains(&block)
            );
            ledger.acknowledged.insert(block, last);
        }
    }
}

#[test]
fn every_acknowledged_write_is_found_after_each_kill_9() {
    let rounds = std::env::var("FIRN_KILL_ROUNDS").map_or(ROUNDS_DEFAULT, |n| n.parse().unwrap());
    let world = World::new();
    let size = format!("demo={}MiB", (CLIENTS * BLOCKS * BLOCK) >> 20);
    let mut server = world.serve("cache", &["--volume", &size, "--rpo", "300ms"]);
    let mut ledgers: Vec<Ledger> = (0..CLIENTS).map(|_| Ledger::default()).collect();
    for round in 0..rounds {
        let acks = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for (client, ledger) in (0..).zip(&mut ledgers) {
                let (to, acks) = (server.connect("demo"), &acks);
                scope.spawn(move || write_until_cut(to, client, ledger, acks));
            }
            // A different moment each round: by count, so that a slow machine does as much.
            let enough = 100 + (round * 577) % 900;
            eventually("the writes", || acks.load(Ordering::SeqCst) >= enough);
            server.kill();
        });
        server = world.serve("cache", &["--rpo", "300ms"]);
        for (client, ledger) in (0..).zip(&mut ledgers) {
            check(&mut server.connect("demo"), client, ledger);
        }
    }
    let writes: u64 = ledgers.iter().map(|ledger| ledger.writes).sum();
    println!("{rounds} rounds, {writes} writes, all acknowledged ones found");
}
