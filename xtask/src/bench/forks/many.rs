//! Many forks of one snapshot, and what the first requests to one cost.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::api::Api;
use super::{Arguments, PARENT, median_ms, serve};
use crate::Failure;
use crate::bench::nbd_load::{Connection, Load, LoadEnd};
use crate::bench::rig::{FirnServer, StoreRig};

/// What the parent has, and of it what the store has; less than the log, so that everything is hot.
const PARENT_HAS_BYTES: u64 = 256 << 20;
/// Requests under way, where there are several.
pub(super) const AT_ONCE: usize = 8;
/// Forks whose first requests are timed.
const TOUCHED: usize = 64;

pub(super) fn measure(
    rig: &StoreRig,
    arguments: &Arguments,
    directory: Option<&str>,
) -> Result<(), Failure> {
    let (name, cache) = match directory {
        Some(_) => ("a directory", "many-dir"),
        None => ("MinIO", "many"),
    };
    let server = serve(rig, cache, "30s", directory)?;
    let api = Api::of(&server)?;
    let mut connection = server.connect(PARENT)?;
    let fill = Load {
        block: 1 << 20,
        depth: 8,
        ..request(true)
    };
    connection.run(fill, LoadEnd::Bytes(PARENT_HAS_BYTES))?;
    server.sync(PARENT)?;
    api.snapshot(PARENT, "base", "store")?;
    let snapshot = format!("{PARENT}@base");
    let before = server.resident_bytes()?;
    rig.proxy.take_traffic();
    let began = Instant::now();
    for nth in 0..arguments.forks {
        api.fork(&snapshot, &format!("fork-{nth}"), "store")?;
    }
    let forked = began.elapsed();
    let requests = rig.proxy.take_traffic().requests();
    let began = Instant::now();
    make_at_once(&api, &snapshot, arguments.forks)?;
    let at_once = began.elapsed();
    rig.proxy.take_traffic();
    let began = Instant::now();
    for nth in 0..arguments.forks {
        api.attach(&format!("fork-{nth}"))?;
    }
    let attached = began.elapsed();
    let grown = server.resident_bytes()?.saturating_sub(before);
    let count = arguments.forks.max(1) as f64;
    let requests = match directory {
        // Nobody counts them there.
        Some(_) => String::new(),
        None => format!("{:.1}", requests as f64 / count),
    };
    println!(
        "| {name} | {:.2} s | {:.2} s | {requests} | {:.2} s | {:.0} KiB |",
        forked.as_secs_f64(),
        at_once.as_secs_f64(),
        attached.as_secs_f64(),
        grown as f64 / 1024.0 / count
    );
    if directory.is_some() {
        return Ok(());
    }
    first_requests(&server, arguments.forks.min(TOUCHED))
}

/// As many again, as `firn fork` does with several names.
fn make_at_once(api: &Api, snapshot: &str, forks: usize) -> Result<(), Failure> {
    let next = AtomicUsize::new(0);
    let make = || -> Result<(), String> {
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= forks {
                return Ok(());
            }
            let made = api.fork(snapshot, &format!("again-{nth}"), "store");
            made.map_err(|error| error.to_string())?;
        }
    };
    std::thread::scope(|scope| {
        let makers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(make)).collect();
        let ended = makers.into_iter().map(|maker| maker.join());
        ended.collect::<Result<Vec<_>, _>>()
    })
    .map_err(|_| "a maker of forks panicked")?
    .into_iter()
    .collect::<Result<(), String>>()
    .map_err(Failure::from)
}

/// The first read and write of forks that nobody has used, against the same of their parent.
fn first_requests(server: &FirnServer<'_>, forks: usize) -> Result<(), Failure> {
    println!(
        "\n## The first 4k request to each of {forks} forks, and one to their parent\n\n\
         | | fork, us | parent, us | ratio |\n|---|---:|---:|---:|"
    );
    for (name, writes) in [("read", false), ("write", true)] {
        let mut of_forks = Vec::new();
        let mut of_parent = Vec::new();
        // A read of each first, and of others a write: neither is to find what the other has brought.
        let half = forks / 2;
        let range = if writes { half..forks } else { 0..half };
        for nth in range {
            // Each with a client of its own: the first request of a connection costs more than later ones.
            let mut fork = server.connect(&format!("fork-{nth}"))?;
            let mut parent = server.connect(PARENT)?;
            // Which comes first takes turns: both read the same place of the log.
            if nth % 2 == 0 {
                of_parent.push(once(&mut parent, writes)?);
            }
            of_forks.push(once(&mut fork, writes)?);
            if nth % 2 != 0 {
                of_parent.push(once(&mut parent, writes)?);
            }
        }
        let (fork, parent) = (median_ms(&of_forks), median_ms(&of_parent));
        println!(
            "| {name} | {:.0} | {:.0} | {:.2} |",
            fork * 1e3,
            parent * 1e3,
            fork / parent
        );
    }
    Ok(())
}

/// One request by itself.
pub(super) fn once(connection: &mut Connection, writes: bool) -> Result<Duration, Failure> {
    let ran = connection.run(request(writes), LoadEnd::Bytes(4096))?;
    Ok(ran.longest())
}

fn request(writes: bool) -> Load {
    Load {
        writes,
        random: !writes,
        block: 4096,
        depth: 1,
        span: PARENT_HAS_BYTES,
    }
}
