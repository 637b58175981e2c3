//! The figures of a soak over time: it prints them while the soak runs and judges them at its end.
//!
//! A server that was restarted or upgraded counts from zero, so the last values of each are added to those
//! of the ones before it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::server::{ProcessUsage, Server};
use super::world::{Tally, World, lock};

/// The kinds of store faults; each must be injected at least once.
const FAULTS: [&str; 5] = [
    "refused",
    "lost_request",
    "lost_answer",
    "delayed",
    "outage",
];

const MIB: u64 = 1 << 20;

/// The resource use of one server process, up to its end or an upgrade.
#[derive(Clone, Copy, Debug)]
struct ServerLife {
    host: usize,
    first: ProcessUsage,
    largest: ProcessUsage,
}

/// What a server counts, and since which start or upgrade.
#[derive(Debug, Default)]
struct Counters {
    incarnation: (u32, u32),
    last: BTreeMap<String, f64>,
}

#[derive(Debug, Default)]
struct State {
    /// Sums of the counters of earlier processes.
    earlier: BTreeMap<String, f64>,
    /// The last counters of the present ones, by their host.
    current: BTreeMap<usize, Counters>,
    lives: Vec<ServerLife>,
    lines: Vec<Value>,
}

/// The figures.
#[derive(Debug)]
pub(super) struct Gauge {
    devices: u64,
    state: Mutex<State>,
}

impl Gauge {
    pub(super) fn new(devices: usize) -> Gauge {
        Gauge {
            devices: devices as u64,
            state: Mutex::default(),
        }
    }

    /// A server is ready and has all its disks.
    pub(super) fn on_server_start(&self, server: &Server) {
        let size = server.size();
        lock(&self.state).lives.push(ServerLife {
            host: server.host.number,
            first: size,
            largest: size,
        });
        self.sample(server);
    }

    /// Reads the server's resource use and counters.
    pub(super) fn sample(&self, server: &Server) {
        let (size, seen) = (server.size(), server.host.metrics());
        let host = server.host.number;
        let mut state = lock(&self.state);
        let State {
            earlier, current, ..
        } = &mut *state;
        if !seen.is_empty() {
            let counters = current.entry(host).or_default();
            if counters.incarnation != server.incarnation() {
                for (name, value) in std::mem::take(&mut counters.last) {
                    *earlier.entry(name).or_default() += value;
                }
                counters.incarnation = server.incarnation();
            }
            counters.last = seen.into_iter().collect();
        }
        let mut lives = state.lives.iter_mut().rev();
        let life = lives.find(|life| life.host == host);
        if let Some(life) = life.filter(|_| size.rss_kib > 0) {
            let largest = &mut life.largest;
            largest.rss_kib = largest.rss_kib.max(size.rss_kib);
            largest.anonymous_kib = largest.anonymous_kib.max(size.anonymous_kib);
            largest.threads = largest.threads.max(size.threads);
            largest.descriptors = largest.descriptors.max(size.descriptors);
        }
    }

    /// The sum of all samples whose names have this prefix, over all server processes.
    fn sum(&self, prefix: &str) -> u64 {
        let state = lock(&self.state);
        let current = state.current.values().flat_map(|counters| &counters.last);
        let all = state.earlier.iter().chain(current);
        let matching = all.filter(|(name, _)| name.starts_with(prefix));
        matching.map(|(_, value)| value).sum::<f64>() as u64
    }

    pub(super) fn print_header() {
        println!(
            "| s | RSS MiB | anonymous | threads | descriptors | written MiB | read MiB | requests | \
             uploaded MiB | fetched MiB | store requests | planned faults | longest ms | stops+kills | detaches | upgrades | moves |"
        );
        println!("|{}", "---:|".repeat(17));
    }

    /// Prints a row of the table; `size` is of all servers together.
    pub(super) fn print_row(&self, world: &World, size: ProcessUsage) {
        let tally = &world.tally;
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let longest = tally.longest_ms.swap(0, Ordering::Relaxed);
        let line = json!({
            "seconds": world.began.elapsed().as_secs(),
            "rss_mib": size.rss_kib as f64 / 1024.0,
            "anonymous_mib": size.anonymous_kib as f64 / 1024.0,
            "threads": size.threads,
            "descriptors": size.descriptors,
            "written_mib": of(&tally.written_bytes) / MIB,
            "read_mib": of(&tally.read_bytes) / MIB,
            "requests": tally.requests(),
            "uploaded_mib": self.sum("firn_store_written_bytes_total") / MIB,
            "fetched_mib": self.sum("firn_store_read_bytes_total") / MIB,
            "store_requests": self.sum("firn_store_requests_total"),
            "planned_faults": self.sum("firn_planned_store_faults_total"),
            "longest_ms": longest,
            "restarts": of(&tally.stops) + of(&tally.kills),
            "detaches": of(&tally.detaches),
            "upgrades": of(&tally.upgrades),
            "moves": of(&tally.moves),
        });
        let order = [
            "seconds",
            "rss_mib",
            "anonymous_mib",
            "threads",
            "descriptors",
            "written_mib",
            "read_mib",
            "requests",
            "uploaded_mib",
            "fetched_mib",
            "store_requests",
            "planned_faults",
            "longest_ms",
            "restarts",
            "detaches",
            "upgrades",
            "moves",
        ];
        let cells = order.map(|name| match &line[name] {
            Value::Number(number) if number.is_f64() => {
                format!("{:.1}", number.as_f64().unwrap_or(0.0))
            }
            other => other.to_string(),
        });
        println!("| {} |", cells.join(" | "));
        lock(&self.state).lines.push(line);
    }

    /// Checks what must hold at the end: the bounds of P10, and that every kind of fault was injected.
    pub(super) fn judge(&self, world: &World, faults: bool) {
        if faults {
            for kind in FAULTS {
                if self.sum(&format!(
                    "firn_planned_store_faults_total{{kind=\"{kind}\"}}"
                )) == 0
                {
                    world.fail(format!(
                        "no store fault of the kind {kind} was injected: run longer"
                    ));
                }
            }
        }
        if self.sum("firn_store_requests_total{op=\"get_range\"") == 0 {
            world.fail("no data was read from the store: no read was cold".to_owned());
        }
        for (at, life) in lock(&self.state).lives.clone().iter().enumerate() {
            let ServerLife { first, largest, .. } = life;
            let growth_mib = largest.rss_kib.saturating_sub(first.rss_kib) / 1024;
            if growth_mib > 256 + 64 * self.devices {
                world.fail(format!("server process {at} grew by {growth_mib} MiB"));
            }
            if largest.descriptors > first.descriptors + 64 * self.devices {
                world.fail(format!(
                    "server process {at} had {} descriptors, {} at its start",
                    largest.descriptors, first.descriptors
                ));
            }
        }
    }

    /// All figures as one JSON document.
    pub(super) fn summary(&self, world: &World) -> Value {
        let Tally {
            written_bytes,
            read_bytes,
            writes,
            fua_writes,
            reads,
            flushes,
            zeroings,
            discards,
            buffered,
            slow,
            longest_ms: _,
            stops,
            kills,
            detaches,
            upgrades,
            moves,
            failed_moves,
            store_kills,
            store_suspensions,
            late_recoveries,
        } = &world.tally;
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let faults: BTreeMap<_, _> = FAULTS
            .iter()
            .map(|kind| {
                (
                    *kind,
                    self.sum(&format!(
                        "firn_planned_store_faults_total{{kind=\"{kind}\"}}"
                    )),
                )
            })
            .collect();
        let lives: Vec<_> = lock(&self.state)
            .lives
            .iter()
            .map(|life| {
                json!({
                    "rss_mib_first": life.first.rss_kib / 1024,
                    "rss_mib_largest": life.largest.rss_kib / 1024,
                    "descriptors_first": life.first.descriptors,
                    "descriptors_largest": life.largest.descriptors,
                    "threads_largest": life.largest.threads,
                })
            })
            .collect();
        json!({
            "seconds": world.began.elapsed().as_secs(),
            "devices": self.devices,
            "written_mib": of(written_bytes) / MIB,
            "read_mib": of(read_bytes) / MIB,
            "writes": of(writes), "of_them_fua": of(fua_writes), "reads": of(reads),
            "buffered": of(buffered), "flushes": of(flushes),
            "zeroings": of(zeroings), "discards": of(discards),
            "longer_than_a_second": of(slow),
            "stops": of(stops), "kills": of(kills), "detaches": of(detaches),
            "upgrades": of(upgrades), "moves": of(moves), "failed_moves": of(failed_moves),
            "store_kills": of(store_kills), "store_suspensions": of(store_suspensions),
            "disks_back_late": of(late_recoveries),
            "uploaded_mib": self.sum("firn_store_written_bytes_total") / MIB,
            "fetched_mib": self.sum("firn_store_read_bytes_total") / MIB,
            "store_requests": self.sum("firn_store_requests_total"),
            "planned_faults": faults,
            "lives": lives,
            "curve": lock(&self.state).lines.clone(),
            "failures": world.failures(),
        })
    }
}
