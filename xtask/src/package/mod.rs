//! `cargo xtask package`: a Debian package of the server, and its trial in a system of its own.
//!
//! The same sources give the same bytes: times come from the last commit, paths of the machine are
//! replaced, files are in order. `--check` proves it by building twice, in two places. What is in the
//! package is `tree.rs`, what it is made of `bill.rs`, how the program is built `program.rs`, and how
//! the package is tried `trial.rs`. Needs Debian's `dpkg-deb`.

mod bill;
mod program;
mod tree;
mod trial;

use std::path::{Path, PathBuf};

use crate::{Failure, workspace};

/// Arguments of `cargo xtask package`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Package this program instead of building one
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Build a second time from a copy of the sources in another place, and compare the packages
    #[arg(long, conflicts_with = "program")]
    check: bool,
    /// Install, start, kill, upgrade, remove and purge the package under a systemd of its own (root)
    #[arg(long)]
    trial: bool,
    /// Cargo's profile for the program
    #[arg(long, default_value = "dist")]
    profile: String,
    /// Revision of the package
    #[arg(long, default_value_t = 1)]
    revision: u32,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let out = workspace::target().join("package");
    std::fs::create_dir_all(&out)?;
    let source = program::Source::here(workspace::root())?;
    let program = match &arguments.program {
        Some(program) => program.canonicalize()?,
        None => program::build(&source, &out.join("build"), &arguments.profile)?,
    };
    let quickly = arguments.program.is_some();
    let package = make(&source, &program, &out, (arguments.revision, quickly))?;
    println!("{}  {}", tree::digest(&package)?, shown(&package));
    if arguments.check {
        check(&source, &package, &out, arguments)?;
    }
    if arguments.trial {
        // The same program again stands for a later version of it.
        let upgrade = make(&source, &program, &out, (arguments.revision + 1, true))?;
        trial::run(&package, &upgrade, &out)?;
    }
    Ok(())
}

/// Builds the package again, from a copy of the committed sources in another place.
fn check(
    source: &program::Source,
    package: &Path,
    out: &Path,
    arguments: &Arguments,
) -> Result<(), Failure> {
    let again = out.join("again");
    let copy = source.copy_to(&again.join("sources"))?;
    let program = program::build(&copy, &again.join("build"), &arguments.profile)?;
    let second = make(&copy, &program, &again, (arguments.revision, false))?;
    let (first, second) = (tree::digest(package)?, tree::digest(&second)?);
    if first != second {
        return Err(format!("two builds differ: {first} and {second}").into());
    }
    println!("two builds in two places have the same bytes");
    Ok(())
}

fn make(
    source: &program::Source,
    program: &Path,
    out: &Path,
    (revision, quickly): (u32, bool),
) -> Result<PathBuf, Failure> {
    let bill = bill::Bill::of(source.root())?;
    tree::Package {
        source,
        program,
        bill: &bill,
        revision,
        quickly,
    }
    .write(out)
}

fn shown(path: &Path) -> String {
    let relative = path.strip_prefix(workspace::root()).unwrap_or(path);
    relative.display().to_string()
}

/// What a trial needs and this machine lacks.
pub(crate) fn missing_for_trial() -> Option<&'static str> {
    trial::missing()
}
