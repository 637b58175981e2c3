//! `cargo xtask bench blkmq`: the multi-queue core by itself, here or in a guest of another kernel.

use std::process::{Command, Stdio};

use super::{build, instructions};
use crate::vm::Kernel;
use crate::{Failure, figures, process};

/// Arguments of `cargo xtask bench blkmq`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Arguments {
    /// Only the second check of "must this queue run?", lock-free against a lock
    #[arg(long)]
    quick: bool,
    /// Under this kernel instead of the machine's own
    #[arg(long, value_enum)]
    kernel: Option<Kernel>,
}

/// Seconds after which a guest that measures is given up.
const GUEST_DEADLINE_SECONDS: &str = "1800";

/// Names the lane and becomes the program.
const IN_GUEST: &str =
    r#"echo "lane: guest, $(nproc) processors, Linux $(uname -r)"; exec "$0" "$@""#;

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let program = build("blkmq", "blkmq", &[])?;
    println!("{}", crate::lane::describe_machine()?);
    let mut command = match arguments.kernel {
        None => Command::new(&program),
        Some(kernel) => {
            let mut guest = Command::new(process::own_path()?);
            guest.args(["vm", "--kernel", kernel.name()]);
            guest.args(["--deadline", GUEST_DEADLINE_SECONDS, "--"]);
            guest.args(["sh", "-c", IN_GUEST]).arg(&program);
            guest
        }
    };
    command.args(arguments.quick.then_some("--quick"));
    process::run(command.args(figures::flag()))?;
    if arguments.quick || arguments.kernel.is_some() {
        return Ok(());
    }
    println!("\n(d) instructions per call, counted by callgrind\n");
    if Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        println!("skipped: valgrind is not installed");
        return Ok(());
    }
    println!("| what | instructions |\n|---|---:|");
    let list = Command::new(&program)
        .args(["--instructions", "list", "0"])
        .output()?;
    for case in String::from_utf8(list.stdout)?.lines() {
        // The difference of two runs leaves out what a program costs before its first call.
        let (few, many) = (10_000, 30_000);
        let counted = instructions(&program, case, many)? - instructions(&program, case, few)?;
        println!("| {case} | {:.1} |", counted as f64 / f64::from(many - few));
    }
    Ok(())
}
