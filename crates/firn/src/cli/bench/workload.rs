//! What is asked of a disk: a pattern, with the size of its requests and how many are in flight.

use std::fmt;

use clap::ValueEnum;

use super::super::args::{BenchArgs, Pattern};
use crate::units::Size;

/// Largest request: what every NBD server takes.
pub(super) const BLOCK_BYTES_MAX: u64 = 32 << 20;

/// Bytes of a request that fills the range.
pub(super) const FILL_BYTES: u64 = 1 << 20;

const SMALL_BYTES: u64 = 4 << 10;
const LARGE_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    pub(super) pattern: Pattern,
    pub(super) block_bytes: u64,
    pub(super) depth: u32,
}

impl Workload {
    pub(super) fn reads(&self) -> bool {
        matches!(self.pattern, Pattern::RandRead | Pattern::SeqRead)
    }

    pub(super) fn is_sequential(&self) -> bool {
        is_sequential(self.pattern)
    }

    /// As the command line has it.
    pub(super) fn name(&self) -> String {
        let value = self.pattern.to_possible_value();
        value.map_or(String::new(), |value| value.get_name().to_owned())
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = Size(self.block_bytes);
        write!(f, "{} of {size}, {} in flight", self.name(), self.depth)
    }
}

fn is_sequential(pattern: Pattern) -> bool {
    matches!(pattern, Pattern::SeqRead | Pattern::SeqWrite)
}

/// What was asked for, in this order.
pub(super) fn of(args: &BenchArgs) -> Vec<Workload> {
    let patterns = match args.patterns.as_slice() {
        [] => Pattern::value_variants(),
        some => some,
    };
    let mut workloads = Vec::new();
    for &pattern in patterns {
        let (block_bytes, depths): (u64, &[u32]) = match pattern {
            Pattern::RandRead | Pattern::RandWrite => (SMALL_BYTES, &[1, 32]),
            Pattern::DurableWrite => (SMALL_BYTES, &[1]),
            Pattern::SeqRead | Pattern::SeqWrite => (LARGE_BYTES, &[8]),
        };
        let block_bytes = args.block_size.map_or(block_bytes, |size| size.0);
        let depths = args.depth.as_ref().map_or(depths, std::slice::from_ref);
        workloads.extend(depths.iter().map(|&depth| Workload {
            pattern,
            block_bytes,
            depth,
        }));
    }
    workloads
}
