//! The server that benchmarks and soaks run: as it is packaged, so that what they say is said of what users have.

use std::path::{Path, PathBuf};

use crate::{Failure, process, workspace};

/// The server as it is packaged, built if no other was named.
pub(crate) fn build_unless(named: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(program) = named {
        return Ok(program.canonicalize()?);
    }
    let build = [
        "build",
        "--quiet",
        "--profile",
        "dist",
        "-p",
        "firn",
        "--bins",
    ];
    process::run(&mut workspace::cargo(build))?;
    Ok(workspace::packaged("firn"))
}
