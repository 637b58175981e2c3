//! The commands that look and change nothing: `top`, `config`, `support` and `doctor`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::serve::ServeArgs;
use crate::units::{Size, TimeSpan};

#[derive(Debug, Args)]
#[command(
    after_help = "Percentiles are of the time between two pictures; each is exact to within a quarter. \
    A script that wants numbers asks for --json, or reads /metrics."
)]
pub(crate) struct TopArgs {
    /// Time from one picture to the next.
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub(crate) interval: TimeSpan,
    /// End after this many pictures.
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
    firn config > firn.toml              the defaults, each explained and commented out\n  \
    firn config --config firn.toml       what a server with this file would use\n  \
    firn config check firn.toml          whether a server would take this file\n  \
    firn config set rpo=10s              a server that runs keeps to it, until it ends"
)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ConfigCommand>,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a file without starting anything.
    Check {
        /// The file.
        file: PathBuf,
    },
    /// Print the settings of the server that runs, as far as they may change while it does.
    Get,
    /// Change settings of the server that runs, until it ends: what it starts with is in its configuration.
    #[command(after_help = "Examples:\n  \
        firn config set rpo=10s slow-request=250ms\n  \
        firn config set cache-size=200GiB         the read cache keeps what it has, as far as that fits\n  \
        firn config set compact=10m               and compact=off when it has done enough\n  \
        firn config set snapshot-schedule=demo=1h,keep=24 snapshot-schedule=demo=24h,keep=7\n  \
        firn config set snapshot-schedule=        none; snapshots that were taken stay\n\n\
        An upgrade (`firn upgrade`) keeps them, except where the configuration has another value than before.\n\
        Write there what is to stay after a stop. A cache-size that is not there stays, for it is that of the file.\n\
        The size of the log is fixed: `firn rescue log --log-size SIZE` makes it anew, with the server stopped.")]
    Set {
        /// rpo, slow-request, trash-keep (times), gc, compact, scrub (times or off), cache-size, or snapshot-schedule, which may be given several times and
        /// replaces all that there are.
        #[arg(required = true, value_name = "NAME=VALUE")]
        settings: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SupportArgs {
    /// Cache directory of the server: names and sizes of its files are told.
    #[arg(long, value_name = "DIR", default_value = "./firn-data/cache")]
    pub(crate) cache: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Object store to check. [default: ./firn-data/store if it exists]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Cache directory to check. [default: ./firn-data/cache if it exists, else here]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// Directory for index rings to check. [default: the one that `serve` chooses]
    #[arg(long, value_name = "DIR")]
    pub(crate) ring_dir: Option<PathBuf>,
    /// How long to measure the store's latency and throughput; 0s measures nothing. Without --store
    /// nothing is measured.
    #[arg(long, value_name = "TIME", default_value = "4s")]
    pub(crate) measure: TimeSpan,
    /// Recovery point of the server, for the estimate of the bill.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) rpo: TimeSpan,
    /// Volumes that are written all the time, for the estimate.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) busy_volumes: u32,
    /// Bytes that all volumes write a day, compressed, for the estimate.
    #[arg(long, value_name = "SIZE", default_value = "10GiB")]
    pub(crate) written_a_day: Size,
    /// Bytes in the store, for the estimate.
    #[arg(long, value_name = "SIZE", default_value = "100GiB")]
    pub(crate) stored: Size,
    /// Price of a thousand PUTs. The defaults are those published for S3 Standard in us-east-1, in
    /// US dollars.
    #[arg(long, value_name = "PRICE", default_value_t = 0.005)]
    pub(crate) price_puts: f64,
    /// Price of a GiB stored for a month.
    #[arg(long, value_name = "PRICE", default_value_t = 0.023)]
    pub(crate) price_gib: f64,
}
