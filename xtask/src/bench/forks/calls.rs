//! Single snapshots and forks: how long the call takes, what it asks of the store, and what clients notice.

use std::thread;
use std::time::{Duration, Instant};

use super::api::Api;
use super::{Arguments, PARENT, median_ms, most_ms, serve};
use crate::Failure;
use crate::bench::nbd_load::{Connection, Load, LoadEnd};
use crate::bench::rig::{FirnServer, StoreRig};
use crate::bench::stall::{Client, Notes};

/// What the volume has when it is branched, in bytes.
const STORED_BYTES: u64 = 1 << 30;
/// Requests that the load has under way.
const DEPTH: usize = 32;
/// How long the longest request is looked for around each call, and without one.
const PERIOD: Duration = Duration::from_millis(700);
/// After this time without a request the store is taken to be left alone.
const QUIET: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Snapshot,
    /// One that waits for the store.
    StoredSnapshot,
    Fork,
    /// The same.
    StoredFork,
}

const CALLS: [Call; 4] = [
    Call::Snapshot,
    Call::StoredSnapshot,
    Call::Fork,
    Call::StoredFork,
];
/// What goes on behind a snapshot ends within this time.
const PAUSE: Duration = Duration::from_millis(500);

impl Call {
    fn name(self) -> &'static str {
        match self {
            Call::Snapshot => "snapshot",
            Call::StoredSnapshot => "snapshot, wait=store",
            Call::Fork => "fork",
            Call::StoredFork => "fork, wait=store",
        }
    }

    /// What names of its snapshots and forks begin with.
    fn prefix(self) -> &'static str {
        match self {
            Call::Snapshot => "kept",
            Call::StoredSnapshot => "stored",
            Call::Fork => "fork",
            Call::StoredFork => "stored-fork",
        }
    }

    fn make(self, api: &Api, name: &str) -> Result<Duration, Failure> {
        match self {
            Call::Snapshot => api.snapshot(PARENT, name, "log"),
            Call::StoredSnapshot => api.snapshot(PARENT, name, "store"),
            Call::Fork => api.fork(PARENT, name, "log"),
            Call::StoredFork => api.fork(PARENT, name, "store"),
        }
    }
}

/// What calls under load came to.
#[derive(Default)]
struct UnderLoad {
    calls: Vec<Duration>,
    flushes: Vec<Duration>,
    longest_with: Vec<Duration>,
    longest_without: Vec<Duration>,
}

pub(super) fn measure(rig: &StoreRig, arguments: &Arguments) -> Result<(), Failure> {
    let server = serve(rig, "calls", "30s", None)?;
    let api = Api::of(&server)?;
    let mut connection = server.connect(PARENT)?;
    connection.run(sequential_writes(), LoadEnd::Bytes(STORED_BYTES))?;
    server.sync(PARENT)?;
    println!(
        "| | idle, ms: median | most | store requests | beside 4k writes, ms: median | most | FLUSH there | \
         longest request with one | without |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    );
    for call in CALLS {
        // The first one of a hold asks the store which names are taken.
        call.make(&api, &format!("first-{}", call.prefix()))?;
        let mut idle = Vec::new();
        for round in 0..arguments.rounds {
            thread::sleep(PAUSE);
            idle.push(call.make(&api, &format!("idle-{}-{round}", call.prefix()))?);
        }
        let requests = count_requests(rig, || {
            let name = format!("counted-{}", call.prefix());
            call.make(&api, &name).map(drop)
        })?;
        let loaded = under_load(&server, &api, call, arguments.rounds)?;
        println!(
            "| {} | {:.1} | {:.1} | {requests} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} |",
            call.name(),
            median_ms(&idle),
            most_ms(&idle),
            median_ms(&loaded.calls),
            most_ms(&loaded.calls),
            median_ms(&loaded.flushes),
            median_ms(&loaded.longest_with),
            median_ms(&loaded.longest_without),
        );
    }
    drop(connection);
    server.stop()?;
    dirty(rig, arguments)
}

/// A snapshot and a fork of a volume that was written to, and of which the store has nothing of that.
fn dirty(rig: &StoreRig, arguments: &Arguments) -> Result<(), Failure> {
    let server = serve(rig, "dirty", "1h", None)?;
    let api = Api::of(&server)?;
    let mut connection = server.connect(PARENT)?;
    api.snapshot(PARENT, "first", "store")?;
    for call in CALLS {
        connection.run(
            sequential_writes(),
            LoadEnd::Bytes(arguments.dirty_mib << 20),
        )?;
        let took = call.make(&api, &format!("dirty-{}", call.prefix()))?;
        println!(
            "\nA {} with {} MiB that the store lacks: {:.0} ms",
            call.name(),
            arguments.dirty_mib,
            took.as_secs_f64() * 1e3
        );
        server.sync(PARENT)?;
    }
    Ok(())
}

fn sequential_writes() -> Load {
    Load {
        writes: true,
        random: false,
        block: 1 << 20,
        depth: 8,
        span: STORED_BYTES,
    }
}

/// Requests to the store from a call on, until it is left alone.
fn count_requests(
    rig: &StoreRig,
    call: impl FnOnce() -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let settle = || {
        let mut seen = rig.proxy.traffic().requests();
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            thread::sleep(Duration::from_millis(50));
            let now = rig.proxy.traffic().requests();
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
    };
    settle();
    rig.proxy.take_traffic();
    call()?;
    settle();
    Ok(rig.proxy.take_traffic().requests())
}

/// Calls while a client writes and reads 4 KiB blocks, verified, with its longest request around each.
fn under_load(
    server: &FirnServer<'_>,
    api: &Api,
    call: Call,
    rounds: usize,
) -> Result<UnderLoad, Failure> {
    let notes = Notes::new(2 * rounds);
    let client = Client {
        export: PARENT.to_owned(),
        depth: DEPTH,
        pause: Duration::ZERO,
    };
    thread::scope(|scope| {
        let (notes, client) = (&notes, &client);
        let load = scope.spawn(move || {
            let ran = client.run(&server.socket, notes);
            ran.map_err(|error| error.to_string())
        });
        let mut connection = server.connect(PARENT)?;
        let measured = calls(notes, api, call, &mut connection, rounds);
        notes.stop();
        load.join().map_err(|_| "the client panicked")??;
        measured
    })
}

fn calls(
    notes: &Notes,
    api: &Api,
    call: Call,
    connection: &mut Connection,
    rounds: usize,
) -> Result<UnderLoad, Failure> {
    let mut found = UnderLoad::default();
    thread::sleep(PERIOD);
    for round in 0..rounds {
        notes.begin(2 * round);
        let until = Instant::now() + PERIOD;
        let began = Instant::now();
        connection.flush()?;
        found.flushes.push(began.elapsed());
        thread::sleep(until.saturating_duration_since(Instant::now()));
        notes.begin(2 * round + 1);
        let until = Instant::now() + PERIOD;
        let name = format!("loaded-{}-{round}", call.prefix());
        found.calls.push(call.make(api, &name)?);
        thread::sleep(until.saturating_duration_since(Instant::now()));
        found.longest_without.push(notes.longest(2 * round));
        found.longest_with.push(notes.longest(2 * round + 1));
    }
    Ok(found)
}
