//! The garbage collector: what it reads for what it frees, and what clients notice while passes follow each other
//! without a pause, which no server has them do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::api::Api;
use super::{Arguments, PARENT, serve};
use crate::Failure;
use crate::bench::nbd_load::{Connection, Load, LoadEnd};
use crate::bench::rig::{FirnServer, StoreRig};

/// Volumes beside the one that is used, and what each was written; half of them are deleted.
const VOLUMES: usize = 32;
const VOLUME_BYTES: u64 = 64 << 20;
/// What clients go over.
const SPAN: u64 = 256 << 20;
/// A few requests under way: with many, waiting for each other hides all else.
const DEPTH: usize = 4;
/// With the collector and without it, in turns.
const PERIOD: Duration = Duration::from_secs(2);

pub(super) fn measure(rig: &StoreRig, arguments: &Arguments) -> Result<(), Failure> {
    let server = serve(rig, "gc", "30s", None)?;
    let api = Api::of(&server)?;
    for nth in 0..VOLUMES {
        fill(&server, &api, &format!("other-{nth}"))?;
    }
    let mut connection = server.connect(PARENT)?;
    connection.run(request(true, 1 << 20), LoadEnd::Bytes(SPAN))?;
    server.sync(PARENT)?;
    api.snapshot(PARENT, "kept", "store")?;
    freed(rig, &server, &api)?;
    println!(
        "\n| 4 KiB, {DEPTH} under way | p99 without, us | with passes one after the other, us | ratio of each round: median | \
         least | most | passes |\n|---|---:|---:|---:|---:|---:|---:|"
    );
    for (name, writes) in [("writes", true), ("reads", false)] {
        noticed(&api, &mut connection, (name, writes), arguments.rounds)?;
    }
    Ok(())
}

/// A volume that was written and is closed.
fn fill(server: &FirnServer<'_>, api: &Api, name: &str) -> Result<(), Failure> {
    let body = json!({"name": name, "size_bytes": VOLUME_BYTES, "block_size": 512});
    api.post("/v1/volumes", &body)?;
    api.attach(name)?;
    let mut connection = server.connect(name)?;
    let fill = Load {
        span: VOLUME_BYTES,
        ..request(true, 1 << 20)
    };
    connection.run(fill, LoadEnd::Bytes(VOLUME_BYTES))?;
    drop(connection);
    api.post(
        &format!("/v1/volumes/{name}/detach"),
        &json!({"force": true}),
    )
    .map(drop)
}

/// Deletes half of the volumes, and says what the passes read that free what they had.
fn freed(rig: &StoreRig, server: &FirnServer<'_>, api: &Api) -> Result<(), Failure> {
    for nth in 0..VOLUMES / 2 {
        let name = format!("other-{nth}");
        let status = server
            .command(&["volume", "delete", &name, &name, "--now"])
            .status()?;
        if !status.success() {
            return Err(format!("firn volume delete {name}: {status}").into());
        }
    }
    println!(
        "\n## The collector: {} volumes of {} MiB, half of them deleted\n\n\
         | pass | took, s | freed, GiB | roots read | index blocks | records | store requests | of these for each GiB freed: roots | \
         index blocks | requests |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        VOLUMES,
        VOLUME_BYTES >> 20
    );
    for nth in 1.. {
        rig.proxy.take_traffic();
        let (took, pass) = api.ask("/v1/gc", &json!({"dry_run": false}))?;
        let requests = rig.proxy.take_traffic().requests();
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let gib = number(&pass["removed"]["bytes"]) as f64 / f64::from(1 << 30);
        let (roots, blocks) = (number(&pass["roots"]), number(&pass["index_blocks"]));
        let share = |count: u64| match gib > 0.0 {
            true => format!("{:.0}", count as f64 / gib),
            false => String::new(),
        };
        println!(
            "| {nth} | {:.2} | {gib:.2} | {roots} | {blocks} | {} | {requests} | {} | {} | {} |",
            took.as_secs_f64(),
            pass["records"],
            share(roots),
            share(blocks),
            share(requests)
        );
        if gib > 0.0 {
            return Ok(());
        }
        if nth > 4 {
            return Err("passes free nothing".into());
        }
    }
    Ok(())
}

/// The foreground's p99 with and without passes, in turns.
fn noticed(
    api: &Api,
    connection: &mut Connection,
    (name, writes): (&str, bool),
    rounds: usize,
) -> Result<(), Failure> {
    let load = request(writes, 4096);
    // What the first requests bring is there for all rounds.
    connection.run(load, LoadEnd::Time(PERIOD))?;
    let mut passes = 0;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // Which comes first takes turns: a machine that grows busier must not speak for one of them.
        if round.is_multiple_of(2) {
            without.push(p99(connection, load)?);
        }
        with.push(p99_beside_passes(api, connection, load, &mut passes)?);
        if !round.is_multiple_of(2) {
            without.push(p99(connection, load)?);
        }
    }
    let mut ratios: Vec<f64> = with.iter().zip(&without).map(|(a, b)| a / b).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let middle = |mut values: Vec<f64>| {
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    let (least, most) = (ratios.first(), ratios.last());
    println!(
        "| {name} | {:.0} | {:.0} | {:.2} | {:.2} | {:.2} | {} |",
        middle(without),
        middle(with),
        middle(ratios.clone()),
        least.copied().unwrap_or(0.0),
        most.copied().unwrap_or(0.0),
        passes
    );
    Ok(())
}

/// The same while one pass follows the other.
fn p99_beside_passes(
    api: &Api,
    connection: &mut Connection,
    load: Load,
    passes: &mut u64,
) -> Result<f64, Failure> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let collector = scope.spawn(|| {
            let mut passes = 0;
            while !is_over.load(Ordering::SeqCst) {
                let pass = api.post("/v1/gc", &json!({"dry_run": false}));
                pass.map_err(|error| error.to_string())?;
                passes += 1;
            }
            Ok::<u64, String>(passes)
        });
        let found = p99(connection, load);
        is_over.store(true, Ordering::SeqCst);
        *passes += collector.join().map_err(|_| "the collector panicked")??;
        found
    })
}

/// In microseconds.
fn p99(connection: &mut Connection, load: Load) -> Result<f64, Failure> {
    let mut ran = connection.run(load, LoadEnd::Time(PERIOD))?;
    Ok(ran.percentile(0.99).as_secs_f64() * 1e6)
}

fn request(writes: bool, block: usize) -> Load {
    Load {
        writes,
        random: block == 4096,
        block,
        depth: DEPTH,
        span: SPAN,
    }
}
