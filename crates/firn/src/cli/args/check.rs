//! `firn check`.

use clap::Args;

use super::points::volume_or_snapshot_name;
use crate::units::Size;

/// Flags of `firn check`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CheckArgs {
    /// Volumes, each with its snapshots, and single snapshots. [default: all that the store has]
    #[arg(value_name = "VOLUME[@SNAPSHOT]", value_parser = volume_or_snapshot_name)]
    pub(crate) names: Vec<String>,
    /// Read every byte, and prove it by its checksum. It costs what reading the volumes costs.
    #[arg(long)]
    pub(crate) deep: bool,
    /// With --deep, read no more than so much a second.
    #[arg(long, value_name = "SIZE", requires = "deep")]
    pub(crate) rate: Option<Size>,
    /// Object store to check. [default: ./firn-data/store]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
}
