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
    /// Build twice from what is committed, in two places, and compare the packages
    #[arg(long, conflicts_with_all = ["program", "trial"])]
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
    let here = program::Source::here(workspace::root())?;
    if arguments.check {
        return check(&here, &out, arguments);
    }
    let program = match &arguments.program {
        Some(program) => program.canonicalize()?,
        None => program::build(&here, &out.join("build"), &arguments.profile)?,
    };
    let quickly = arguments.program.is_some();
    let package = make(&here, &program, &out, (arguments.revision, quickly))?;
    println!("{}  {}", tree::digest(&package)?, shown(&package));
    if arguments.trial {
        // The same program again stands for a later version of it.
        let upgrade = make(&here, &program, &out, (arguments.revision + 1, true))?;
        trial::run(&package, &upgrade, &out)?;
    }
    Ok(())
}

/// Builds the package twice from what is committed, in two places.
fn check(here: &program::Source, out: &Path, arguments: &Arguments) -> Result<(), Failure> {
    // Names of different lengths, so that a path that gets into the program moves what is behind it.
    let places = [out.join("once"), out.join("a-second-time")];
    let mut copies = Vec::new();
    for place in &places {
        copies.push(here.copy_to(&place.join("sources"))?);
    }
    let mut digests = Vec::new();
    for (copy, place) in copies.iter().zip(&places) {
        let program = program::build(copy, &place.join("build"), &arguments.profile)?;
        let package = make(copy, &program, place, (arguments.revision, false))?;
        digests.push(tree::digest(&package)?);
        println!("{}  {}", digests[digests.len() - 1], shown(&package));
    }
    if digests[0] != digests[1] {
        return Err("two builds in two places differ".into());
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
    let bill = bill::BillOfMaterials::of(source.root())?;
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
