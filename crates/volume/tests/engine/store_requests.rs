//! Store requests of a thousand volumes that write a little, a minute each, in the steady state in which their folds
//! come evenly (P21).
//!
//! Time is virtual, so hours pass in a minute. What a volume writes is one block for 64 KiB: slices cost requests, not
//! bytes, and what bytes decide is scaled alike.

use std::collections::BTreeMap;

use volume::units::Now;
use volume::{Options, Volume};

use crate::support::{Environment, World, options};

const VOLUMES: u64 = 1000;
const PERIOD_S: u64 = 60;
const BLOCK_BYTES: u64 = 4096;
const SCALE: u64 = (64 << 10) / BLOCK_BYTES;
const VOLUME_BYTES: u64 = 1 << 30;
/// What is measured without the collector: one look for the low mark is in it.
const LOOK_S: u64 = 1024 * 29;
/// The same with it: one pass is in it, as often as it comes by default.
const PASS_S: u64 = 6 * 3600;
const TICKS_PER_SECOND: u64 = 4;
/// Dollars for a thousand requests of S3 Standard, us-east-1.
const PUT_DOLLARS: f64 = 0.005;
const GET_DOLLARS: f64 = 0.0004;

fn start(gc_interval_s: u64) -> (World, Vec<Volume>) {
    let options = Options {
        log_bytes: 256 << 20,
        segment_bytes: 1 << 20,
        // Pages that a fold has written stay in a tenth of it until the next fold reads them.
        cache_bytes: Options::default().cache_bytes,
        memory_bytes: 16 << 20,
        pack_bytes: Options::default().pack_bytes / SCALE,
        index_bytes: 128 << 20,
        deltas_max: Options::default().deltas_max,
        low_mark_bytes: Options::default().low_mark_bytes / SCALE,
        gc_interval_ns: gc_interval_s * 1_000_000_000,
        ..options()
    };
    let env = Environment {
        discards_packs: true,
        ..Environment::default()
    };
    let mut world = World::try_start(env, options).unwrap_or_else(|error| panic!("{}", error.0));
    let volumes = (0..VOLUMES).map(|n| {
        let name = format!("v{n}");
        world.create(&name, VOLUME_BYTES);
        world.open(&name)
    });
    let volumes = volumes.collect();
    (world, volumes)
}

/// From one second to another each volume that has begun writes once a period, one after the other.
fn run(world: &mut World, volumes: &[Volume], seconds: std::ops::Range<u64>, begins: u64) {
    let mut random = fastrand::Rng::with_seed(seconds.start);
    let begun_ns = world.now_ns;
    let mut next = seconds.start * VOLUMES / PERIOD_S;
    for tick in 1..=(seconds.end - seconds.start) * TICKS_PER_SECOND {
        let due = seconds.start * VOLUMES / PERIOD_S + tick * VOLUMES / PERIOD_S / TICKS_PER_SECOND;
        while next < due {
            let at = next % VOLUMES;
            if next / VOLUMES * PERIOD_S >= at * begins / VOLUMES {
                let block = random.u64(..VOLUME_BYTES / BLOCK_BYTES);
                let fill = random.u8(1..);
                world.write(&volumes[at as usize], block * 8, fill, BLOCK_BYTES as usize);
            }
            next += 1;
        }
        world.now_ns = begun_ns + tick * 1_000_000_000 / TICKS_PER_SECOND;
        world.host.tick(Now {
            mono_ns: world.now_ns,
            unix_ms: world.now_ns / 1_000_000,
        });
        world.run_until_idle();
    }
}

/// Requests a second, PUT and GET, and what they cost a month.
fn measure(gc_interval_s: u64, measured_s: u64) -> (f64, f64, f64) {
    let (mut world, volumes) = start(gc_interval_s);
    // Volumes begin one after the other, so that they are folded one after the other.
    let cycle = (Options::default().deltas_max as u64 + 1) * PERIOD_S;
    run(&mut world, &volumes, 0..cycle, cycle);
    world.env.requests.clear();
    run(&mut world, &volumes, cycle..cycle + measured_s, cycle);
    let (mut puts, mut gets) = (0.0, 0.0);
    let mut table = BTreeMap::new();
    for ((kind, folder), count) in &world.env.requests {
        let rate = *count as f64 / measured_s as f64;
        let writes = ["put", "create", "update"].contains(kind);
        let reads = ["get", "range", "look"].contains(kind);
        puts += f64::from(u8::from(writes)) * rate;
        gets += f64::from(u8::from(reads)) * rate;
        table.insert(format!("{kind} {folder}"), format!("{rate:.3}"));
    }
    let dollars = (puts * PUT_DOLLARS + gets * GET_DOLLARS) / 1000.0 * 30.0 * 86400.0;
    println!(
        "a pass of the collector every {gc_interval_s} s: {puts:.3} PUT/s, {gets:.3} GET/s, {dollars:.2} dollars a \
         month; of a second: {table:?}"
    );
    (puts, gets, dollars)
}

#[test]
#[ignore = "takes minutes; cargo xtask bench store --only p21 runs it"]
fn a_thousand_small_writers_cost_few_requests() {
    let (puts, gets, dollars) = measure(0, LOOK_S);
    assert!(puts <= 0.2 && gets <= 0.2 && dollars <= 5.0, "P21");
    let (puts, _, dollars) = measure(PASS_S, PASS_S);
    assert!(puts <= 0.2 && dollars <= 5.0, "with the collector");
}
