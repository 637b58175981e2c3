//! The flags of `firn diff`. Only parses, as all of `args`.

use clap::Args;

use super::points::volume_or_snapshot_name;

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// What was before.
    #[arg(value_name = "VOLUME[@SNAPSHOT]", value_parser = volume_or_snapshot_name)]
    pub(crate) from: String,
    /// What is now: a snapshot or fork of the first, the volume itself, or another child of the same parent.
    #[arg(value_name = "VOLUME[@SNAPSHOT]", value_parser = volume_or_snapshot_name)]
    pub(crate) to: String,
}
