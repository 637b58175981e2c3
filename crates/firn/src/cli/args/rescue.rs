//! `firn rescue`: tails that are not served, and the log of a stopped server.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::units::Size;

#[derive(Debug, Subcommand)]
pub(crate) enum RescueCommand {
    /// List the tails that are not served, and the log space that they hold.
    List,
    /// Show one of them.
    Show(TailName),
    /// Make a new volume of one that another host's take-over left here: the store's state that it continues,
    /// and its writes over that. The tail stays until it is dropped.
    Fork {
        #[command(flatten)]
        which: TailName,
        /// Name of the new volume.
        #[arg(value_name = "NEW", value_parser = super::volume::volume_name)]
        name: String,
        /// Over zeroes: if the store does not have the state any more that the tail continues.
        #[arg(long)]
        without_base: bool,
    },
    /// Drop one for good, with every write in it that the store lacks, and free its log space.
    Drop {
        #[command(flatten)]
        which: TailName,
        /// Also one whose volume still waits for it: its writes are acknowledged ones.
        #[arg(long)]
        force: bool,
    },
    /// Bring everything that the log of a stopped server holds to the store, and give its volumes
    /// back. With --to, --log-size or --cache-size, make the files of the next server: its disks
    /// stay, and their requests wait for it.
    Log(Box<RescueLogArgs>),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Of a poisoned log, what its frames cover is brought to the store: all that a \
    FLUSH acknowledged. Volumes whose newest writes are lost are named. Nothing is replaced unless \
    everything is in the store; run it again as often as needed.\n\n\
    A disk that has become read-only: copy the cache directory elsewhere (cp -a), then name the \
    copy with --cache."
)]
pub(crate) struct RescueLogArgs {
    /// Read settings from this TOML file of `serve`.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Object store that holds the volumes. [default: ./firn-data/store]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Cache directory of the stopped server. [default: ./firn-data/cache]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// Directory in memory of its index rings. [default: where they are]
    #[arg(long, value_name = "DIR")]
    pub(crate) ring_dir: Option<PathBuf>,
    /// Accept a store without conditional PUT. You promise that no second server ever uses it.
    #[arg(long)]
    pub(crate) single_writer: bool,
    /// Go on without what the log holds of this volume and what can never be brought to the store, such
    /// as a tail that `firn rescue list` names. It stays in the old directory if --to is given, else
    /// it is lost. May be given several times.
    #[arg(long, value_name = "VOLUME")]
    pub(crate) without: Vec<String>,
    /// Cache directory of the next server, on another disk: it is made, and gets the list of what is
    /// attached. [default: the files are made anew in the same directory, if a size is given]
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
    /// Size of the new log. [default: that of the old one]
    #[arg(long, value_name = "SIZE")]
    pub(crate) log_size: Option<Size>,
    /// Size of the new read cache. [default: that of the old one]
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache_size: Option<Size>,
}

#[derive(Debug, Args)]
pub(crate) struct TailName {
    /// Id of the tail, or the name of its volume if that has one only.
    #[arg(value_name = "TAIL")]
    pub(crate) tail: String,
}
