//! `firn gc`.

use clap::Args;

/// Flags of `firn gc`.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct GcArgs {
    /// Look, and change nothing: says what is live, what is garbage, and what may come to be named yet.
    #[arg(long)]
    pub(crate) dry_run: bool,
}
