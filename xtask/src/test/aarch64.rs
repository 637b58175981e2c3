//! The step `aarch64`: the server built, and its libraries' unit tests run, for another architecture.
//!
//! It compiles with Debian's cross compiler and runs in QEMU's user mode, which has no io_uring: epoll serves there. Kernels,
//! and what asks them, are not tried. It takes many minutes, so CI, which has a bound, does without.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::count::Counts;
use super::step::{Kind, Lane, Output, Step};
use crate::workspace;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
/// Where the cross compiler's package has the libraries of the other architecture.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
const EMULATOR: &str = "qemu-aarch64";

/// Crates whose unit tests need no kernel of their own.
const CRATES: [&str; 8] = [
    "blkmq",
    "messenger",
    "nbd",
    "oracle",
    "reactor",
    "serve",
    "store",
    "volume",
];

/// The step; none under CI.
pub(super) fn step() -> Option<Step> {
    let is_ci = std::env::var("CI").as_deref() == Ok("true");
    (!is_ci).then(|| Step {
        name: "aarch64",
        what: "the server built, and unit tests run, for aarch64: cross compiler, QEMU's user mode; not in CI",
        quick: false,
        lane: Lane::Builds,
        after: None,
        output: Output::Tests,
        limit: Duration::from_secs(60 * 60),
        run: Box::new(|_| match what_lacks() {
            None => Kind::Commands(vec![build_command(), test_command()]),
            Some(lacking) => Kind::Inside(Counts {
                skipped: vec![format!("tests for aarch64: {lacking}")],
                ..Counts::default()
            }),
        }),
    })
}

/// What is not installed here, and how it is had.
fn what_lacks() -> Option<&'static str> {
    if !Path::new("/usr/bin").join(LINKER).is_file() || !Path::new(LIBRARIES).is_dir() {
        return Some("no cross compiler (Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross)");
    }
    if !Path::new("/usr/bin").join(EMULATOR).is_file() {
        return Some("no emulator (Debian's qemu-user)");
    }
    if !standard_library().is_some_and(|folder| folder.is_dir()) {
        return Some("no standard library (rustup target add aarch64-unknown-linux-gnu)");
    }
    None
}

fn standard_library() -> Option<PathBuf> {
    let mut ask = Command::new("rustc");
    let asked = ask.args(["--print", "target-libdir", "--target", TARGET]);
    let said = asked.current_dir(workspace::root()).output().ok()?.stdout;
    Some(PathBuf::from(String::from_utf8(said).ok()?.trim()))
}

/// Cargo for that architecture, in a directory of its own: its lock holds up nothing else.
fn cargo(word: &str) -> Command {
    let mut command = workspace::cargo([word, "--target", TARGET]);
    command
        .arg("--target-dir")
        .arg(workspace::target().join("aarch64"));
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
    command.env("CC_aarch64_unknown_linux_gnu", LINKER);
    let runner = format!("{EMULATOR} -L {LIBRARIES}");
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
    command
}

fn build_command() -> Command {
    let mut build = cargo("build");
    build.args(["--quiet", "-p", "firn", "--bins"]);
    build
}

fn test_command() -> Command {
    let mut test = cargo("test");
    test.args(["--lib", "--no-fail-fast"]);
    for name in CRATES {
        test.args(["-p", name]);
    }
    test.args(["--", "--show-output", "--color=never"]);
    test
}
