//! Asks and takes the time: a thread for each request in flight, each with a target of its own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::super::args::Pattern;
use super::super::volume_io::run_on_each;
use super::target::{AlignedBuffer, Noise, Route, Target};
use super::workload::{FILL_BYTES, Workload};
use crate::failure::{Failure, Result};

const FILL_DEPTH: usize = 8;

/// Latencies are exact to a thousandth.
const DIGITS: u8 = 3;

/// Where on the fork, and for how long.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) bytes: u64,
    pub(super) time: Duration,
}

/// What came of a workload.
pub(super) struct Measurement {
    pub(super) workload: Workload,
    pub(super) elapsed: Duration,
    /// Of each request, in nanoseconds.
    pub(super) latencies: Histogram<u64>,
}

impl Measurement {
    pub(super) fn requests_per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    pub(super) fn bytes_per_second(&self) -> f64 {
        self.requests_per_second() * self.workload.block_bytes as f64
    }
}

/// Writes the whole range once, and makes it durable.
pub(super) fn fill(route: &Route, bytes: u64, noise: &Noise) -> Result<()> {
    let next = AtomicU64::new(0);
    run_on_each(route.targets(FILL_DEPTH)?, |mut target, stop| {
        while !stop.load(Ordering::Relaxed) {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            let offset = nth * FILL_BYTES;
            if offset >= bytes {
                break;
            }
            target.write(offset, noise.slice(nth, FILL_BYTES))?;
        }
        target.flush()
    })?;
    Ok(())
}

/// Runs a workload for its time.
pub(super) fn measure(
    route: &Route,
    workload: Workload,
    range: Range,
    noise: &Noise,
) -> Result<Measurement> {
    let targets = route.targets(workload.depth as usize)?;
    let next = AtomicU64::new(0);
    let begun = Instant::now();
    let parts = run_on_each(targets, |target, stop| {
        let mut lane = Lane {
            workload,
            blocks: range.bytes / workload.block_bytes,
            next: &next,
            random: fastrand::Rng::new(),
            target,
            read_buffer: AlignedBuffer::new(workload.block_bytes as usize),
            noise,
        };
        lane.run(begun + range.time, stop)
    })?;
    let elapsed = begun.elapsed();
    let mut latencies = histogram()?;
    for part in parts {
        latencies.add(part).map_err(too_large)?;
    }
    Ok(Measurement {
        workload,
        elapsed,
        latencies,
    })
}

/// What one thread needs to have one request in flight.
struct Lane<'a> {
    workload: Workload,
    /// How many requests the range holds side by side.
    blocks: u64,
    /// The next one of a sequence that all threads share.
    next: &'a AtomicU64,
    random: fastrand::Rng,
    target: Target,
    read_buffer: AlignedBuffer,
    noise: &'a Noise,
}

impl Lane<'_> {
    fn run(&mut self, end: Instant, stop: &AtomicBool) -> Result<Histogram<u64>> {
        let mut latencies = histogram()?;
        let mut now = Instant::now();
        while now < end && !stop.load(Ordering::Relaxed) {
            let begun = now;
            self.request()?;
            now = Instant::now();
            let taken = now.duration_since(begun).as_nanos();
            latencies
                .record(u64::try_from(taken).unwrap_or(u64::MAX))
                .map_err(too_large)?;
        }
        Ok(latencies)
    }

    fn request(&mut self) -> Result<()> {
        let block = match self.workload.is_sequential() {
            true => self.next.fetch_add(1, Ordering::Relaxed) % self.blocks,
            false => self.random.u64(..self.blocks),
        };
        let bytes = self.workload.block_bytes;
        let offset = block * bytes;
        if self.workload.reads() {
            return self.target.read(offset, self.read_buffer.as_mut_slice());
        }
        let data = self.noise.slice(self.random.u64(..), bytes);
        self.target.write(offset, data)?;
        match self.workload.pattern {
            Pattern::DurableWrite => self.target.flush(),
            _ => Ok(()),
        }
    }
}

/// Grows to the longest wait that it sees.
fn histogram() -> Result<Histogram<u64>> {
    Histogram::new(DIGITS).map_err(too_large)
}

fn too_large(error: impl std::fmt::Display) -> Failure {
    Failure::internal(format!("cannot count latencies: {error}"))
}
