//! What `firn doctor` measures of a store, and what it estimates of its bill.
//!
//! It writes scratch objects below a random name of its own and removes them, also after an error or an
//! interrupt. It must never touch another object. The estimate knows firn's habits and the prices it is given,
//! not the provider's: it says so wherever it is printed.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use indicatif::{ProgressBar, ProgressStyle};
use store::{SharedStore, Store};

use crate::cli::args::DoctorArgs;

/// A root has about this size.
const SMALL_BYTES: usize = 4 << 10;
/// What is written to measure throughput: large enough that a request's own cost is small, small
/// enough that a slow line ends one in the time of a measurement.
const LARGE_BYTES: usize = 4 << 20;
/// Requests at once where throughput is measured: the window of uploads that a server begins with.
const AT_ONCE: usize = 8;
const MONTH: Duration = Duration::from_secs(30 * 86400);
/// A server's packs are at most about this large.
const PACK_BYTES: f64 = (32_u64 << 20) as f64;
const GIB: f64 = (1_u64 << 30) as f64;

/// What was measured.
#[derive(Debug)]
pub(super) struct StoreMeasurement {
    pub(super) put: Latency,
    pub(super) get: Latency,
    pub(super) put_mib_per_second: f64,
    pub(super) get_mib_per_second: f64,
}

/// Of requests one after another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Latency {
    pub(super) median_ms: f64,
    pub(super) p99_ms: f64,
}

impl Latency {
    fn of(mut times: Vec<Duration>) -> Latency {
        times.sort_unstable();
        let at = |share: f64| {
            let last = times.len().saturating_sub(1);
            let index = (last as f64 * share).round() as usize;
            times
                .get(index)
                .map_or(0.0, |time| time.as_secs_f64() * 1e3)
        };
        Latency {
            median_ms: at(0.5),
            p99_ms: at(0.99),
        }
    }
}

/// Measures for about `time` in all, and cleans up.
pub(super) async fn measure(
    store: &SharedStore,
    time: Duration,
) -> store::Result<StoreMeasurement> {
    let scratch = format!("probe/{:032x}", fastrand::u128(..));
    let measured = tokio::select! {
        measured = measure_below(store, &scratch, time) => measured,
        _ = tokio::signal::ctrl_c() => Err(interrupted(store)),
    };
    // Again: a write that was broken off may have landed after the first list.
    let cleaned = [
        remove_below(store, &scratch).await,
        remove_below(store, &scratch).await,
    ];
    let measured = measured?;
    cleaned.into_iter().collect::<store::Result<()>>()?;
    Ok(measured)
}

fn interrupted(store: &SharedStore) -> store::Error {
    store::Error::new(
        store::Kind::Unavailable,
        store::Op::Probe,
        store.name(),
        "the measurement was interrupted",
    )
}

/// Removes what it can; the first failure is told.
async fn remove_below(store: &SharedStore, scratch: &str) -> store::Result<()> {
    let mut removed = Ok(());
    for (key, _) in store.list(&format!("{scratch}/")).await? {
        removed = removed.and(store.delete(&key).await);
    }
    removed
}

async fn measure_below(
    store: &SharedStore,
    scratch: &str,
    time: Duration,
) -> store::Result<StoreMeasurement> {
    let bar = progress(4);
    let each = time / 4;
    let small = Bytes::from(vec![1; SMALL_BYTES]);
    let mut put = Vec::new();
    let started = Instant::now();
    while put.is_empty() || started.elapsed() < each {
        let key = format!("{scratch}/small-{}", put.len());
        let asked = Instant::now();
        store.put(&key, small.clone()).await?;
        put.push(asked.elapsed());
    }
    bar.inc(1);
    let mut get = Vec::new();
    let started = Instant::now();
    while get.is_empty() || started.elapsed() < each {
        let key = format!("{scratch}/small-{}", get.len() % put.len());
        let asked = Instant::now();
        store.get(&key).await?;
        get.push(asked.elapsed());
    }
    bar.inc(1);
    let large = Bytes::from(incompressible_content());
    let started = Instant::now();
    let written = join_all((0..AT_ONCE).map(|writer| {
        let large = large.clone();
        async move {
            let mut n = 0_usize;
            while n == 0 || started.elapsed() < each {
                store
                    .put(&format!("{scratch}/large-{writer}-{n}"), large.clone())
                    .await?;
                n += 1;
            }
            Ok::<_, store::Error>(n)
        }
    }));
    let written = written
        .await
        .into_iter()
        .collect::<store::Result<Vec<_>>>()?;
    let put_rate = mib_per_second(written.iter().sum(), started);
    bar.inc(1);
    let started = Instant::now();
    let read = join_all((0..AT_ONCE).map(|reader| async move {
        let mut n = 0_usize;
        while n == 0 || started.elapsed() < each {
            let key = format!("{scratch}/large-{reader}-0");
            store.get_range(&key, 0, LARGE_BYTES as u64).await?;
            n += 1;
        }
        Ok::<_, store::Error>(n)
    }));
    let read = read.await.into_iter().collect::<store::Result<Vec<_>>>()?;
    let get_rate = mib_per_second(read.iter().sum(), started);
    bar.finish_and_clear();
    Ok(StoreMeasurement {
        put: Latency::of(put),
        get: Latency::of(get),
        put_mib_per_second: put_rate,
        get_mib_per_second: get_rate,
    })
}

fn mib_per_second(objects: usize, started: Instant) -> f64 {
    let mib = (objects * LARGE_BYTES) as f64 / f64::from(1 << 20);
    mib / started.elapsed().as_secs_f64()
}

/// Bytes that no store compresses or shares.
fn incompressible_content() -> Vec<u8> {
    let mut state = fastrand::u64(..) | 1;
    let mut content = Vec::with_capacity(LARGE_BYTES);
    while content.len() < LARGE_BYTES {
        // Xorshift: any content that does not repeat serves.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend(state.to_le_bytes());
    }
    content
}

fn progress(steps: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(steps);
    bar.set_style(
        ProgressStyle::with_template("measuring the store [{bar:30}] {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A month's bill, in the currency of the prices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    pub(super) puts: f64,
    pub(super) requests_cost: f64,
    pub(super) bytes_cost: f64,
}

impl Estimate {
    pub(super) fn total(&self) -> f64 {
        self.requests_cost + self.bytes_cost
    }
}

/// At most: each volume that is written all the time has an upload per recovery point, of at least one
/// pack and one record of the host's log; more packs where there are more bytes. Reads that miss the cache come on top.
pub(super) fn estimate(args: &DoctorArgs) -> Estimate {
    let volumes = f64::from(args.busy_volumes);
    let uploads = volumes * MONTH.as_secs_f64() / args.rpo.0.as_secs_f64().max(1.0);
    let written = args.written_a_day.0 as f64 * 30.0;
    let packs = uploads.max(written / PACK_BYTES);
    let puts = uploads + packs;
    Estimate {
        puts,
        requests_cost: puts / 1000.0 * args.price_puts,
        bytes_cost: args.stored.0 as f64 / GIB * args.price_gib,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        doctor: DoctorArgs,
    }

    fn estimate_of(words: &[&str]) -> Estimate {
        let line = Line::try_parse_from([&["doctor"], words].concat()).unwrap();
        estimate(&line.doctor)
    }

    #[test]
    fn one_busy_volume_costs_a_pack_and_a_root_for_each_recovery_point() {
        let found = estimate_of(&["--rpo", "30s", "--stored", "0B", "--written-a-day", "1GiB"]);
        assert!((found.puts - 2.0 * 86400.0).abs() < 1.0, "{found:?}");
        assert!((found.total() - 0.864).abs() < 0.001, "{found:?}");
    }

    #[test]
    fn bytes_cost_what_the_price_says() {
        let found = estimate_of(&[
            "--busy-volumes",
            "0",
            "--stored",
            "1TiB",
            "--price-gib",
            "0.02",
        ]);
        assert!((found.bytes_cost - 20.48).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn a_latency_is_the_middle_and_the_end_of_what_was_measured() {
        let times = (1..=100).rev().map(Duration::from_millis).collect();
        let found = Latency::of(times);
        assert!((found.median_ms - 51.0).abs() < 1.1, "{found:?}");
        assert!((found.p99_ms - 99.0).abs() < 1.1, "{found:?}");
    }
}
