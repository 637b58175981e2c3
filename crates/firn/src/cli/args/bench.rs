//! The flags of `firn bench`. Only parses, as all of `args`.

use clap::{Args, ValueEnum};

use super::points::volume_or_snapshot_name;
use crate::model::TransportChoice;
use crate::units::{Size, TimeSpan};

/// What is asked of a disk again and again; in this order, for reads of what was written at random find it scattered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pattern {
    /// Reads anywhere.
    RandRead,
    /// Reads one after the other.
    SeqRead,
    /// Writes anywhere.
    RandWrite,
    /// Writes anywhere, each with a FLUSH after it, as a database commits.
    DurableWrite,
    /// Writes one after the other.
    SeqWrite,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// The volume, or a snapshot of it. Nothing is written to it: a fork is measured, and deleted afterwards.
    #[arg(value_name = "VOLUME[@SNAPSHOT]", value_parser = volume_or_snapshot_name)]
    pub(crate) volume: String,
    /// What to measure, in this order; several are separated by commas. [default: all of them]
    #[arg(
        long = "pattern",
        value_enum,
        value_delimiter = ',',
        value_name = "PATTERN"
    )]
    pub(crate) patterns: Vec<Pattern>,
    /// Bytes of a request. [default: 4KiB anywhere, 1MiB one after the other]
    #[arg(long, value_name = "SIZE")]
    pub(crate) block_size: Option<Size>,
    /// Requests in flight, each from a thread of its own. [default: 1 and 32 anywhere, 1 of durable writes, 8 one
    /// after the other]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) depth: Option<u32>,
    /// How long each is measured.
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub(crate) time: TimeSpan,
    /// How much of the disk is used, from its beginning; the whole disk if that is less. It is filled before
    /// reads are measured.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub(crate) range: Size,
    /// Fill nothing: read what the volume has, from wherever that is, the store included. What was never written
    /// is answered with zeroes at once.
    #[arg(long)]
    pub(crate) as_is: bool,
    /// How the fork is reached. A disk takes the right to open it; a server that is reached over TCP is
    /// measured over NBD.
    #[arg(long, value_enum, default_value_t = TransportChoice::Auto)]
    pub(crate) transport: TransportChoice,
}
