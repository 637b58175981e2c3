//! What the index costs in the store: bytes of footers, index objects, roots and records for each byte of random
//! 4 KiB writes to a volume that was written in sequence before.
//!
//! Time is virtual, and the store keeps no payload. All that counts is scaled alike: a volume of 1 TiB and the extents
//! after which it is folded by 256, the rate of writes, too. Each page then has as many new extents in a fold as
//! it would have.

use std::collections::BTreeMap;

use volume::Options;
use volume::Volume;
use volume::units::Now;

use crate::support::{Environment, World, options};

const SCALE: u64 = 256;
const BYTES: u64 = (1 << 40) / SCALE;
const BLOCK_BYTES: u64 = 4096;
const REQUEST_BYTES: u64 = 1 << 20;
/// Of a volume of 1 TiB.
const WRITES_PER_SECOND: u64 = 5000;

fn scaled_options(delta_extents_max: usize) -> Options {
    Options {
        log_bytes: 64 << 20,
        segment_bytes: 1 << 20,
        ring_entries: 4096,
        cache_bytes: 16 << 20,
        memory_bytes: 16 << 20,
        pack_bytes: 32 << 20,
        deltas_max: 256,
        delta_extents_max: delta_extents_max / SCALE as usize,
        low_mark_records: 1 << 20,
        ..options()
    }
}

/// Half of each block compresses to nothing.
fn fill_half(block: &mut [u8], random: &mut fastrand::Rng) {
    for part in block.chunks_mut(BLOCK_BYTES as usize) {
        random.fill(&mut part[..BLOCK_BYTES as usize / 2]);
    }
}

fn write(world: &mut World, volume: &Volume, at: u64, content: &mut [u8]) {
    let op = blkmq::io::Op::Write {
        sector: at / 512,
        sectors: (content.len() / 512) as u32,
        fua: false,
    };
    world.request(volume, op, content).expect("written");
}

/// A store with a volume that was written in sequence, and whose index is folded.
fn written_in_sequence() -> Environment {
    let env = Environment {
        discards_packs: true,
        ..Environment::default()
    };
    // At the usual limit all of the volume is in deltas, so the first fold comes early in the hour.
    let mut world = World::try_start(env, scaled_options(1 << 18))
        .unwrap_or_else(|error| panic!("{}", error.0));
    world.create("large", BYTES);
    let volume = world.open("large");
    let mut random = fastrand::Rng::with_seed(1);
    let mut content = vec![0; REQUEST_BYTES as usize];
    for at in (0..BYTES).step_by(REQUEST_BYTES as usize) {
        fill_half(&mut content, &mut random);
        write(&mut world, &volume, at, &mut content);
        world.run_until_idle();
    }
    world.sync(&volume);
    world.pass(2000);
    crate::support::hosts::close(&mut world, &volume);
    world.kill()
}

/// Bytes of the index for each byte written, part by part.
fn an_hour_of_random_writes(env: Environment, delta_extents_max: usize) -> BTreeMap<String, f64> {
    let mut world = World::try_start(env, scaled_options(delta_extents_max))
        .unwrap_or_else(|error| panic!("{}", error.0));
    let volume = world.open("large");
    let mut random = fastrand::Rng::with_seed(2);
    world.env.bytes_put.clear();
    let begun_ns = world.now_ns;
    let writes = WRITES_PER_SECOND * 3600 / SCALE;
    let mut block = vec![0; BLOCK_BYTES as usize];
    for nth in 1..=writes {
        // Incompressible: what of a pack is more than this is its index.
        random.fill(&mut block);
        let at = random.u64(..BYTES / BLOCK_BYTES) * BLOCK_BYTES;
        write(&mut world, &volume, at, &mut block);
        world.now_ns = begun_ns + nth * 3_600_000_000_000 / writes;
        world.host.tick(Now {
            mono_ns: world.now_ns,
            unix_ms: world.now_ns / 1_000_000,
        });
        world.run_until_idle();
    }
    world.sync(&volume);
    let payload = (writes * BLOCK_BYTES) as f64;
    let put = &world.env.bytes_put;
    let mut parts: BTreeMap<String, f64> = put
        .iter()
        .map(|(folder, bytes)| (folder.clone(), *bytes as f64 / payload))
        .collect();
    if let Some(packs) = parts.get_mut("packs") {
        *packs -= 1.0;
    }
    parts
}

/// Extents in deltas: what a volume has beside many others, and alone, and what a fold less often would save.
const LIMITS: [usize; 4] = [1 << 18, 1 << 19, 1 << 20, 1 << 21];

#[test]
#[ignore = "takes a minute; cargo xtask bench store --only p20 runs it"]
fn index_bytes_of_random_writes_fall_with_the_extents_that_a_fold_brings_to_a_page() {
    let env = written_in_sequence();
    println!(
        "| extents in deltas | index bytes per byte | packs | index objects | roots | records |"
    );
    println!("|---:|---:|---:|---:|---:|---:|");
    let mut found = Vec::new();
    for extents in LIMITS {
        let mut copy = env.copy();
        copy.discards_packs = true;
        let parts = an_hour_of_random_writes(copy, extents);
        let all: f64 = parts.values().sum();
        let part = |folder: &str| parts.get(folder).copied().unwrap_or_default();
        println!(
            "| {extents} | {all:.3} | {:.3} | {:.3} | {:.3} | {:.3} |",
            part("packs"),
            part("indexes"),
            part("volumes"),
            part("hosts")
        );
        found.push(all);
    }
    // Each page is written anew in each fold: what changes is how often.
    assert!(found.is_sorted_by(|more, less| more > less), "{found:?}");
    let built = LIMITS.map(|extents| extents == Options::default().delta_extents_max);
    let built = built.iter().position(|is_built| *is_built);
    assert!(built.is_some_and(|nth| found[nth] <= 0.15), "{found:?}");
}
