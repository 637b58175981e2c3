//! The flags of `firn upgrade`. Only parses, as all of `args`.

use std::path::PathBuf;

use clap::Args;

use crate::units::TimeSpan;

/// Flags of `firn upgrade`.
#[derive(Clone, Debug, Args)]
pub(crate) struct UpgradeArgs {
    /// The program that takes over. [default: what is now at the path that the server was started from]
    #[arg(long, value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,

    /// How long each part may take: the check, the draining of connections, the start of the new program.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) timeout: TimeSpan,
}
