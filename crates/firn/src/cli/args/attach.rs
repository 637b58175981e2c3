//! `firn attach` and `firn detach`: how a volume is reached.
//!
//! Options that contradict each other are refused here; what this machine can do, the server says.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::points::volume_or_snapshot_name;
use super::volume::{Patience, volume_name};
use crate::failure::Failure;
use crate::model::{AttachRequest, DataMode, TransportChoice};
use crate::units::TimeSpan;

/// A file system that `attach` makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileSystem {
    /// By mkfs.ext4.
    Ext4,
    /// By mkfs.xfs.
    Xfs,
}

#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// The volume, or a snapshot of it, which takes no writes.
    #[arg(value_name = "VOLUME[@SNAPSHOT]", value_parser = volume_or_snapshot_name)]
    pub(crate) name: String,
    /// How to reach it. Data mode, queues, depth, read-only, partition scan, park timeout and mount are of a ublk disk.
    #[arg(long, value_enum, default_value_t = TransportChoice::Auto)]
    transport: TransportChoice,
    /// How the bytes of its requests are moved. A mode that this kernel lacks is an error.
    #[arg(long, value_enum, value_name = "MODE", default_value_t = DataMode::Auto)]
    data_mode: DataMode,
    /// Hardware queues. [default: one per reactor thread, at most 4]
    #[arg(long, value_name = "N")]
    queues: Option<u16>,
    /// Requests that one queue may have outstanding. [default: 128]
    #[arg(long, value_name = "N")]
    depth: Option<u16>,
    /// Refuse writes through this disk.
    #[arg(long)]
    read_only: bool,
    /// Do not scan its partitions when it starts (Linux 7.0).
    #[arg(long)]
    no_part_scan: bool,
    /// How long a request may wait for log space or for the store before it fails, or `wait` for no
    /// limit. [default: wait; 20s before Linux 6.15, whose driver needs an answer in time]
    #[arg(long, value_name = "TIME|wait", value_parser = park_timeout)]
    park_timeout: Option<f64>,
    /// Open the volume although its last server has not released it. What that server had not
    /// uploaded is lost; how much the store knows of it is printed on standard error. That server,
    /// should it still run, can write the volume no more. Its own tail is kept there: `firn rescue`.
    #[arg(long)]
    take_over: bool,
    /// Mount the disk here, too; the directory is made if it is missing. Nothing is done if it is mounted
    /// there already.
    #[arg(long, value_name = "DIR")]
    pub(crate) mount: Option<PathBuf>,
    /// Make this file system first, if the volume was never written. One that was is mounted as it is,
    /// whatever is on it.
    #[arg(
        long,
        value_enum,
        value_name = "TYPE",
        requires = "mount",
        conflicts_with = "read_only"
    )]
    pub(crate) mkfs: Option<FileSystem>,
    #[command(flatten)]
    pub(crate) patience: Patience,
}

/// In seconds, zero for no limit.
fn park_timeout(text: &str) -> Result<f64, String> {
    if text == "wait" {
        return Ok(0.0);
    }
    match text.parse::<TimeSpan>()?.0.as_secs_f64() {
        0.0 => Err(
            "a time-out of zero fails every request that waits; write `wait` to wait \
             without limit"
                .to_owned(),
        ),
        seconds => Ok(seconds),
    }
}

impl AttachArgs {
    /// Whether the disk takes no writes.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only || self.name.contains('@')
    }

    /// The request for the server, if its options make sense.
    pub(crate) fn request(&self) -> crate::failure::Result<AttachRequest> {
        let transport = match (self.transport, &self.mount) {
            (TransportChoice::Nbd, Some(_)) => {
                return Err(Failure::invalid(
                    "--mount needs a disk of this machine; leave --transport nbd out",
                ));
            }
            // The reason why there is no disk is worth more than a URI that cannot be mounted.
            (TransportChoice::Auto, Some(_)) => TransportChoice::Ublk,
            (asked, _) => asked,
        };
        if self.mkfs.is_some() && self.is_read_only() {
            return Err(Failure::invalid(
                "--mkfs makes a file system, and a snapshot takes no writes; leave it out",
            ));
        }
        let request = AttachRequest {
            transport,
            data_mode: Some(self.data_mode).filter(|mode| *mode != DataMode::Auto),
            queues: self.queues,
            depth: self.depth,
            read_only: self.read_only,
            no_part_scan: self.no_part_scan,
            park_timeout_seconds: self.park_timeout,
            take_over: self.take_over,
            ticket: None,
        };
        request.validate()?;
        Ok(request)
    }
}

#[derive(Debug, Args)]
pub(crate) struct MoveArgs {
    /// The volume, which is open on the server that --api names.
    #[arg(value_name = "VOLUME", value_parser = volume_name)]
    pub(crate) name: String,
    /// Address of the API of the server that is to have it. Both use the same store.
    #[arg(long, value_name = "unix:PATH|ADDR")]
    pub(crate) to: String,
    /// File with the token for that server, if it is reached over TCP.
    #[arg(long, value_name = "FILE")]
    pub(crate) to_token_file: Option<PathBuf>,
    /// How to attach it there. [default: as it is attached here]
    #[arg(long, value_enum)]
    pub(crate) transport: Option<TransportChoice>,
    /// For how long the other server may read ahead what this one has at hand of the volume, before this one lets go.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) warm_up: TimeSpan,
    /// Let the other server read nothing ahead: it begins with a cold cache.
    #[arg(long, conflicts_with = "warm_up")]
    pub(crate) no_warm_up: bool,
    /// Move it even if it is mounted or has clients here: their connections end, and requests of a disk fail.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DetachArgs {
    /// The volume or snapshot.
    #[arg(value_name = "VOLUME[@SNAPSHOT]", value_parser = volume_or_snapshot_name)]
    pub(crate) name: String,
    /// Detach even if it is mounted or has clients: their requests fail.
    #[arg(long)]
    pub(crate) force: bool,
}
