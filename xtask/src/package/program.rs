//! Builds the program so that its bytes depend on the sources and the compiler alone.
//!
//! Paths of this machine would get into panics' messages and into what the C compiler makes: all of them
//! are replaced. The build has a target directory of its own, because its flags are its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Failure, process, workspace};

/// A tree of sources, and its time.
pub(super) struct Source {
    root: PathBuf,
    /// Of the last commit, in seconds of Unix time.
    epoch: String,
}

impl Source {
    /// The sources of a work tree.
    pub(super) fn here(root: &Path) -> Result<Self, Failure> {
        let mut log = git(root);
        log.args(["log", "-1", "--format=%ct"]);
        Ok(Source {
            root: root.to_owned(),
            epoch: output(&mut log)?.trim().to_owned(),
        })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// What is committed, as it stands in another directory.
    pub(super) fn copy_to(&self, place: &Path) -> Result<Self, Failure> {
        let mut status = git(&self.root);
        status.args(["status", "--porcelain"]);
        if !output(&mut status)?.is_empty() {
            return Err("commit first: the second build is of what is committed".into());
        }
        if place.exists() {
            std::fs::remove_dir_all(place)?;
        }
        std::fs::create_dir_all(place)?;
        let archive = place.with_extension("tar");
        let mut pack = git(&self.root);
        pack.args(["archive", "HEAD", "-o"]).arg(&archive);
        process::run(&mut pack)?;
        let mut unpack = Command::new("tar");
        unpack.arg("-xf").arg(&archive).arg("-C").arg(place);
        process::run(&mut unpack)?;
        Ok(Source {
            root: place.canonicalize()?,
            epoch: self.epoch.clone(),
        })
    }
}

fn git(root: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(root);
    command
}

/// What a program printed, if it succeeded.
pub(super) fn output(command: &mut Command) -> Result<String, Failure> {
    let spelled = process::command_line(command);
    let done = command
        .output()
        .map_err(|error| format!("cannot start {spelled}: {error}"))?;
    if !done.status.success() {
        let why = String::from_utf8_lossy(&done.stderr);
        return Err(format!("{}: {spelled}: {}", done.status, why.trim()).into());
    }
    Ok(String::from_utf8(done.stdout)?)
}

/// Builds `firn` of these sources below `target`; its path.
pub(super) fn build(source: &Source, target: &Path, profile: &str) -> Result<PathBuf, Failure> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
        .ok_or("neither CARGO_HOME nor HOME is set")?;
    // The later of two that match wins: the target directory is mostly below the root.
    let replaced = [
        (home, "/usr/src/cargo"),
        (source.root.clone(), "/usr/src/firn"),
        (target.to_owned(), "/usr/src/target"),
    ];
    let flags = |option: &str| {
        let each = replaced.iter();
        let each = each.map(|(path, with)| format!("{option}={}={with}", path.display()));
        each.collect::<Vec<_>>().join(" ")
    };
    let mut cargo = workspace::cargo(["build", "--quiet", "--locked", "-p", "firn"]);
    cargo
        .current_dir(&source.root)
        .args(["--profile", profile])
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_INCREMENTAL", "0")
        .env("RUSTFLAGS", flags("--remap-path-prefix"))
        .env("CFLAGS", flags("-ffile-prefix-map"))
        .env("SOURCE_DATE_EPOCH", &source.epoch);
    process::run(&mut cargo)?;
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(target.join(folder).join("firn"))
}
