//! `cargo xtask sim …`: builds the simulator fast, with every assertion on, and runs it.
//!
//! The arguments are the simulator's own. By hand the planted bugs exist only in a build of their own, for
//! `--canaries`. The steps of the tests have that build alone: what a bug that is not planted costs there is a look
//! whether it is, and a second build costs more than all seeds.

use std::ffi::OsString;
use std::process::Command;

use crate::{Failure, process, workspace};

/// Arguments for the simulator; `cargo xtask sim -- --help` lists them.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// For example --seed 7 --trace, --seconds 60, --exhaustive, --canaries.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    pass: Vec<OsString>,
}

/// `cargo SUBCOMMAND` for the simulator, with the switch for planted bugs or without it.
fn cargo(subcommand: &str, planted: bool) -> Command {
    let mut command = workspace::cargo([subcommand, "--profile", "sim", "-p", "sim"]);
    if planted {
        command.args(["--features", "planted"]);
    }
    command
}

/// The command that builds what the steps of the tests run.
pub(crate) fn build_command() -> Command {
    cargo("build", true)
}

/// The command that runs what the command above builds, with these arguments.
pub(crate) fn command(pass: &[OsString]) -> Command {
    run_command(pass, true)
}

fn run_command(pass: &[OsString], planted: bool) -> Command {
    let mut command = cargo("run", planted);
    command.arg("--quiet");
    command.arg("--").args(pass);
    // Worlds come and go by the thousand: giving their memory back to the kernel each time costs
    // more than running them.
    for variable in ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"] {
        command.env(variable, "1073741824");
    }
    command
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let planted = arguments.pass.iter().any(|arg| arg == "--canaries");
    process::run(&mut run_command(&arguments.pass, planted))
}
