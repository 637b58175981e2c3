//! The flags of `firn check`. Only parses, as all of `args`.

use clap::Args;

use super::points::volume_or_snapshot_name;
use super::volume::volume_name;
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
    /// Rebuild what is found to be lost and can be made anew from packs, as with --rebuild, and check again. A volume that a
    /// host had open is left alone.
    #[arg(long, conflicts_with = "rebuild")]
    pub(crate) repair: bool,
    /// Make the root and the index of a volume anew from its packs, after they were lost. Of a snapshot, and of a volume
    /// whose root is there, the index. Nothing that is whole is replaced.
    #[arg(long, conflicts_with = "deep", requires = "names")]
    pub(crate) rebuild: bool,
    /// With --rebuild, say what would come of it, and write nothing.
    #[arg(long, requires = "rebuild")]
    pub(crate) dry_run: bool,
    /// With --rebuild, also where a host had the volume open and did not give it back: it cannot go on with it then,
    /// and keeps what it had not uploaded for `firn rescue`. Stop its server first.
    #[arg(long, requires = "rebuild")]
    pub(crate) take_over: bool,
    /// With --rebuild, the id of the lost volume, where several had the name.
    #[arg(long, value_name = "VOLUME-ID", requires = "rebuild")]
    pub(crate) id: Option<String>,
    /// With --rebuild, a name for the rebuilt volume, where its own is another volume's now.
    #[arg(long = "as", value_name = "NEW", value_parser = volume_name, requires = "rebuild")]
    pub(crate) new_name: Option<String>,
    /// With --rebuild, the size of the volume, if it was enlarged after it was written to last.
    #[arg(long, value_name = "SIZE", requires = "rebuild")]
    pub(crate) size: Option<Size>,
    /// With --rebuild or --repair, accept a store without conditional PUT. You promise that no server uses it meanwhile.
    #[arg(long)]
    pub(crate) single_writer: bool,
    /// Object store to check. [default: ./firn-data/store]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
}
