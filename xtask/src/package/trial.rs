//! Tries a package as an administrator would: installed, started, killed, upgraded, removed, purged.
//!
//! A systemd of its own runs in new namespaces on an overlay of this machine's root directory, all
//! changes in memory: nothing of this machine is changed, and its own services are not seen. What is done
//! there is `packaging/trial/lifecycle.sh`; this file starts it and reads what it said.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Failure, process, workspace};

/// Seconds that a trial may take; a quiet machine needs about twenty.
const SECONDS: &str = "240";

/// What a trial needs and this machine lacks.
pub(super) fn missing() -> Option<&'static str> {
    let needs = [
        ("/lib/systemd/systemd", "systemd is not installed"),
        ("/usr/bin/dpkg-deb", "dpkg-deb is not installed"),
        ("/usr/bin/qemu-io", "qemu-io is not installed"),
    ];
    let lacking = needs.iter().find(|(path, _)| !Path::new(path).exists());
    match lacking {
        Some((_, why)) => Some(why),
        None if !rustix::process::geteuid().is_root() => Some("it takes root"),
        None => None,
    }
}

/// Runs the trial with a package and its upgrade.
pub(super) fn run(package: &Path, upgrade: &Path, out: &Path) -> Result<(), Failure> {
    if let Some(why) = missing() {
        println!("skipped: {why}");
        return Ok(());
    }
    let folder = out.join("trial");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(folder.join("disk"))?;
    fs::copy(package, folder.join("firn.deb"))?;
    fs::copy(upgrade, folder.join("upgrade.deb"))?;
    let scripts = workspace::root().join("packaging/trial");
    for name in ["boot.sh", "lifecycle.sh"] {
        fs::copy(scripts.join(name), folder.join(name))?;
    }
    let mut boot = Command::new("timeout");
    boot.args(["--signal=KILL", SECONDS, "unshare", "--mount", "--pid"])
        .args([
            "--uts",
            "--ipc",
            "--net",
            "--cgroup",
            "--fork",
            "--kill-child",
            "sh",
        ])
        .arg(folder.join("boot.sh"))
        .arg(&folder)
        .stdin(Stdio::null());
    let ended = process::run(&mut boot);
    let said = fs::read_to_string(folder.join("output")).unwrap_or_default();
    print!("{said}");
    match ended {
        Ok(()) if said.ends_with("trial: passed\n") => Ok(()),
        Ok(()) => Err("the trial ended early; see above".into()),
        Err(failure) => Err(failure),
    }
}
