//! The flags of `firn trash`. Only parses, as all of `args`.

use clap::Subcommand;

use super::list::ListArgs;
use super::volume::volume_name;

#[derive(Debug, Subcommand)]
pub(crate) enum TrashCommand {
    /// List the volumes in the trash by name, and behind them, by id, those whose names others have taken.
    List(ListArgs),
    /// Give a volume back, with its snapshots.
    Restore {
        /// Its name, or its id; of several that had the name it is the one that was deleted last.
        #[arg(value_name = "VOLUME|ID", value_parser = volume_name)]
        which: String,
        /// Give it this name. Then it is a fork of what was deleted, with an id of its own.
        #[arg(long = "as", value_name = "NEW", value_parser = volume_name)]
        name: Option<String>,
    },
    /// Let a volume go for good, with its snapshots, or all that is in the trash. Forks of it stay.
    Empty {
        /// Its name, or its id. [default: all of them]
        #[arg(value_name = "VOLUME|ID", value_parser = volume_name)]
        which: Option<String>,
    },
}
