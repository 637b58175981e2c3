//! What compaction costs and saves in a day of a mixed workload, in virtual time.

use crate::support::compactions::{BLOCK, environment, pack_bytes};
use crate::support::{World, options};
use blkmq::io::Op;
use volume::CompactOptions;

/// What a day brought to the store.
#[derive(Debug)]
struct Day {
    written: u64,
    /// Bytes of packs at the end of each hour.
    packs: Vec<u64>,
    put: u64,
    report: volume::CompactionReport,
}

/// A day in which a volume of 16 MiB that was written in sequence gets 64 KiB of random blocks a minute, three of four in a
/// quarter of it, a MiB in sequence each hour, and now and then a discard. Virtual time goes by in seconds.
fn day(compact: Option<CompactOptions>) -> Day {
    let blocks = (16 << 20) / BLOCK;
    let of_a_day = volume::Options {
        deltas_max: 32,
        gc_interval_ns: 3600 * 1_000_000_000,
        ..options()
    };
    let mut world =
        World::try_start(environment(compact), of_a_day).unwrap_or_else(|e| panic!("{}", e.0));
    world.create("demo", blocks * BLOCK);
    let volume = world.open("demo");
    let mut random = fastrand::Rng::with_seed(1);
    let (mut written, mut seed) = (0, 0);
    let mut write = |world: &mut World, block: u64, count: u64| {
        for at in block..block + count {
            seed += 1;
            world.write_noise(&volume, at % blocks * 8, seed, BLOCK);
            written += BLOCK;
        }
    };
    for block in (0..blocks).step_by(64) {
        write(&mut world, block, 64);
        world.sync(&volume);
    }
    let mut packs = Vec::new();
    for minute in 0..24 * 60_u64 {
        for nth in 0..16 {
            let within = if nth % 4 > 0 { blocks / 4 } else { blocks };
            write(&mut world, random.u64(..within), 1);
        }
        if minute % 60 == 30 {
            write(&mut world, random.u64(..blocks), 256);
        }
        if minute % 120 == 45 {
            let op = Op::Discard {
                sector: random.u64(..blocks - 64) * 8,
                sectors: 64 * 8,
                fua: false,
            };
            world.request(&volume, op, &mut []).expect("discarded");
        }
        for _ in 0..60 {
            world.now_ns += 990_000_000;
            world.pass(10);
        }
        if minute % 60 == 59 {
            packs.push(pack_bytes(&world.env));
        }
    }
    Day {
        written,
        packs,
        put: world.env.bytes_put.values().sum(),
        report: world.host.compaction(),
    }
}

#[test]
fn a_day_of_a_mixed_workload_costs_little_more_to_write_and_far_less_to_keep() {
    let minutes = CompactOptions {
        interval_ns: 600 * 1_000_000_000,
        ..CompactOptions::default()
    };
    let (off, on) = (day(None), day(Some(minutes)));
    let live = 16 << 20;
    for (name, day) in [("off", &off), ("on", &on)] {
        let Day {
            written,
            put,
            report,
            ..
        } = day;
        let most = day.packs.iter().max().copied().unwrap_or(0);
        let last = day.packs.last().copied().unwrap_or(0);
        println!(
            "compaction {name}: {:.2} bytes put for one written ({:.2} of them compaction's), packs {:.2} times the \
             volume at the end, {:.2} at most; {report:?}",
            *put as f64 / *written as f64,
            report.written_bytes as f64 / *written as f64,
            last as f64 / f64::from(live),
            most as f64 / f64::from(live),
        );
    }
    let last = |day: &Day| day.packs.last().copied().unwrap_or(0);
    // Twice what is alive, and what was written over since the pass before the last, two hours ago: half a volume.
    let most = 5 * (16_u64 << 20) / 2;
    assert!(last(&on) <= most && last(&off) > most, "{on:?}, {off:?}");
    assert!(on.put < 3 * off.put, "{on:?}, {off:?}");
}
