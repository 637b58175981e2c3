//! QEMU's own format, by qemu-img: it knows all of it, and speaks NBD.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::super::volume_io::failed;
use crate::failure::{Failure, Result};

/// How such an image begins.
const MAGIC: [u8; 4] = *b"QFI\xfb";

pub(super) fn is_qcow2(beginning: [u8; 4]) -> bool {
    beginning == MAGIC
}

/// The size of the disk that an image holds. An image that names other files is refused: whoever made it could have
/// any file of this machine read.
pub(super) fn disk_bytes(file: &Path) -> Result<u64> {
    let bad = |why: &str| Failure::invalid(format!("{}: {why}", file.display()));
    let text = run(Command::new("qemu-img")
        .args(["info", "--output=json", "-f", "qcow2", "--"])
        .arg(file)
        .stdout(Stdio::piped()))?;
    let info: Value = serde_json::from_slice(&text)
        .map_err(|error| bad(&format!("qemu-img says what is no JSON: {error}")))?;
    let names_a_file = info.get("backing-filename").is_some()
        || info.pointer("/format-specific/data/data-file").is_some();
    if names_a_file {
        return Err(bad(
            "it is a layer over another file; make one image of both first: qemu-img convert -O qcow2",
        ));
    }
    let bytes = info.get("virtual-size").and_then(Value::as_u64);
    bytes.ok_or_else(|| bad("qemu-img does not say how large its disk is"))
}

/// Copies an image onto a volume of zeroes.
pub(super) fn copy_image(file: &Path, uri: &str) -> Result<()> {
    let mut command = Command::new("qemu-img");
    command.args([
        "convert",
        "-n",
        "--target-is-zero",
        "-f",
        "qcow2",
        "-O",
        "raw",
    ]);
    show_progress(&mut command)?;
    run(command.arg("--").arg(file).arg(uri)).map(drop)
}

/// Makes an image of a volume in a file that is there.
pub(super) fn fetch(uri: &str, file: &Path) -> Result<()> {
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-f", "raw", "-O", "qcow2"]);
    show_progress(&mut command)?;
    run(command.arg("--").arg(uri).arg(file)).map(drop)
}

/// It goes to standard output, which is for results.
fn show_progress(command: &mut Command) -> Result<()> {
    if !std::io::stderr().is_terminal() {
        return Ok(());
    }
    let stderr = std::io::stderr().as_fd().try_clone_to_owned();
    let stderr = stderr.map_err(|error| failed(format!("cannot start qemu-img: {error}")))?;
    command.arg("-p").stdout(stderr);
    Ok(())
}

/// Runs it; what it says on failure is part of the failure.
fn run(command: &mut Command) -> Result<Vec<u8>> {
    let done = command.stderr(Stdio::piped()).spawn();
    let done = done.and_then(std::process::Child::wait_with_output);
    let done = done.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => failed(
            "the format qcow2 needs the program qemu-img: install the package qemu-utils".into(),
        ),
        _ => failed(format!("cannot start qemu-img: {error}")),
    })?;
    match done.status.success() {
        true => Ok(done.stdout),
        false => {
            let said = String::from_utf8_lossy(&done.stderr);
            Err(failed(said.trim().to_owned()))
        }
    }
}
