//! `firn bench`: what a volume's disk gives, measured on a fork that nobody else uses.
//!
//! Owns the order of things: fork, fill, measure, print, delete. It must never write to the volume that it was given.
//! [`target`] is a way to the fork, [`workload`] says what is asked of it, [`measure`] asks and takes the time,
//! [`report`] prints.

mod measure;
mod report;
mod target;
mod workload;

use super::args::{ApiArgs, BenchArgs};
use super::client::Client;
use super::output;
use super::volume_io::{Undo, make_fork};
use crate::failure::{Failure, Result};
use crate::model::{TransportChoice, Volume};
use crate::units::{ApproximateSize, Size};
use target::{Noise, Route};
use workload::Workload;

pub(crate) fn bench(api: &ApiArgs, json: bool, args: &BenchArgs) -> Result<()> {
    let client = Client::new(api)?;
    let workloads = workload::of(args);
    let undo = Undo::watch()?;
    let transport = match args.transport {
        // A disk of another machine is none of this one.
        TransportChoice::Auto if client.is_over_tcp() => TransportChoice::Nbd,
        asked => asked,
    };
    let (fork, attachment) = make_fork(&client, &args.volume, "bench", transport, &undo)?;
    let range_bytes = range_of(args, &fork, &workloads)?;
    let route = Route::new(attachment, fork.size_bytes)?;
    eprintln!(
        "firn: measuring {} of a fork of {} over {route}; what is written may reach the store, where it is garbage once \
         the fork is deleted",
        Size(range_bytes),
        args.volume
    );
    let noise = Noise::new(&workloads);
    let bar = output::spinner();
    if !args.as_is && workloads.iter().any(Workload::reads) {
        bar.set_message(format!("filling {}", ApproximateSize(range_bytes)));
        measure::fill(&route, range_bytes, &noise)?;
    }
    let mut results = Vec::new();
    for workload in workloads {
        bar.set_message(workload.to_string());
        let range = measure::Range {
            bytes: range_bytes,
            time: args.time.0,
        };
        results.push(measure::measure(&route, workload, range, &noise)?);
    }
    bar.finish_and_clear();
    let transport = route.name();
    // A disk that is open is not detached.
    drop(route);
    drop(undo);
    report::print(json, args, range_bytes, transport, &results)
}

/// How much of the fork is used: whole requests of each kind.
fn range_of(args: &BenchArgs, fork: &Volume, workloads: &[Workload]) -> Result<u64> {
    let range = args.range.0.min(fork.size_bytes);
    let largest = workloads.iter().map(|one| one.block_bytes).max();
    let largest = largest.unwrap_or(0).max(workload::FILL_BYTES);
    let block = u64::from(fork.block_size);
    if let Some(bad) = args.block_size
        && (bad.0 == 0 || !bad.0.is_multiple_of(block) || bad.0 > workload::BLOCK_BYTES_MAX)
    {
        return Err(Failure::invalid(format!(
            "--block-size {bad}: a request is a multiple of {block} bytes, and at most {}",
            Size(workload::BLOCK_BYTES_MAX)
        ))
        .into_usage());
    }
    let range = range - range % largest;
    if range == 0 {
        return Err(Failure::invalid(format!(
            "nothing to measure: requests of {} do not fit; the disk has {}, and --range is {}",
            Size(largest),
            Size(fork.size_bytes),
            args.range
        ))
        .into_usage());
    }
    Ok(range)
}
