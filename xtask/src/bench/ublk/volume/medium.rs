//! A disk that is memory, with a file system that has direct I/O.
//!
//! tmpfs is no substitute: a ring hands every read and write of a tmpfs file to a worker thread,
//! so it would be the workers that are measured. The disk goes with its guest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Failure, process};

const CONFIGFS: &str = "/sys/kernel/config";

/// Makes the disk and its file system; where that is mounted.
pub(in crate::bench::ublk) fn in_memory() -> Result<PathBuf, Failure> {
    process::run(Command::new("modprobe").args(["null_blk", "nr_devices=0"]))?;
    // It is there already where the guest's start has mounted it.
    let _ = Command::new("mount")
        .args(["-t", "configfs", "configfs", CONFIGFS])
        .stderr(Stdio::null())
        .status();
    let device = Path::new(CONFIGFS).join("nullb/firn");
    fs::create_dir(&device).map_err(|error| format!("no null_blk in this kernel: {error}"))?;
    for (name, value) in [("memory_backed", "1"), ("size", "3072"), ("power", "1")] {
        fs::write(device.join(name), value)
            .map_err(|error| format!("null_blk does not take {name} {value}: {error}"))?;
    }
    let index = fs::read_to_string(device.join("index"))?;
    let disk = format!("/dev/nullb{}", index.trim());
    // Configured disks have their own name on newer kernels.
    let disk = if Path::new(&disk).exists() {
        disk
    } else {
        "/dev/firn".to_owned()
    };
    process::run(Command::new("mkfs.ext4").args(["-q", "-F", &disk]))?;
    let place = PathBuf::from("/tmp/disk");
    fs::create_dir_all(&place)?;
    process::run(Command::new("mount").arg(&disk).arg(&place))?;
    Ok(place)
}
