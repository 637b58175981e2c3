//! What every list takes: how much of it, and from where on.

use clap::Args;

/// How much of a list is printed.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ListArgs {
    /// Print so many at most. [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Begin behind this name. What --limit has cut says, on standard error or as `next`, where it goes on.
    #[arg(long, value_name = "NAME")]
    pub(crate) after: Option<String>,
}
