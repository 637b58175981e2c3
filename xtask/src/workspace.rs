//! Where the workspace is, and how its cargo is called.
//!
//! Builds that differ in their flags get target directories of their own below `target/`:
//! otherwise each would throw away what the other compiled.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace's root directory.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a directory of the workspace")
}

/// The directory for everything that is built: `target/`, or what the user chose.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(chosen) => root().join(chosen),
        None => root().join("target"),
    }
}

/// `cargo ARGS` in the workspace's root.
pub(crate) fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root()).args(args);
    command
}

/// Makes a build of its own out of `command`: with these compiler flags, in `target/NAME`.
pub(crate) fn build_apart(command: &mut Command, name: &str, rustflags: &str) {
    command
        .env("CARGO_TARGET_DIR", target().join(name))
        .env("RUSTFLAGS", rustflags);
}
