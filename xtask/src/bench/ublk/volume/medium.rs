//! Disks that are memory, with a file system that has direct I/O.
//!
//! tmpfs is no substitute: a ring hands every read and write of a tmpfs file to a worker thread,
//! so it would be the workers that are measured. The disks go with their guest.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Failure, process};

const CONFIGFS: &str = "/sys/kernel/config";

/// MiB of a disk. Memory is taken as it is written.
const MIB: u32 = 3072;

/// Makes the disk and its file system; where that is mounted.
pub(in crate::bench) fn in_memory() -> Result<PathBuf, Failure> {
    let disk = null_block("firn", &[])?;
    mounted(&disk, Path::new("/tmp/disk"))
}

/// Where the guest's own disk is mounted.
pub(in crate::bench) fn scratch_disk() -> Result<PathBuf, Failure> {
    let dir = std::env::var_os("FIRN_VM_SCRATCH").ok_or("no scratch disk")?;
    Ok(dir.into())
}

/// A disk whose FLUSH takes its time, and whose reads and writes do not.
#[derive(Debug)]
pub(super) struct SlowFlush {
    /// The disk.
    pub(super) disk: PathBuf,
    /// The device that its flushes go to, and nothing else does.
    sink: PathBuf,
}

impl SlowFlush {
    /// Makes one. Its flushes go to a device of their own whose every request is completed by a
    /// timer: the device mapper's own delays are counted in ticks, of which a second can have as few
    /// as a hundred.
    pub(super) fn new(nanoseconds: u64) -> Result<SlowFlush, Failure> {
        process::run(Command::new("modprobe").arg("dm-delay"))?;
        let data = null_block("flush-data", &[("cache_size", "64")])?;
        let takes = nanoseconds.to_string();
        let timed = [
            ("cache_size", "1"),
            ("irqmode", "2"),
            ("completion_nsec", &takes),
        ];
        let sink = null_block("flush-sink", &timed)?;
        let sectors = u64::from(MIB) << 11;
        let (data, sink_shown) = (data.display(), sink.display());
        // Device, first sector and milliseconds of reads, of writes, of flushes.
        let table = format!("0 {sectors} delay {data} 0 0 {data} 0 0 {sink_shown} 0 0\n");
        dmsetup(&["create", "firn-flush"], &table)?;
        let minor = dmsetup(
            &["info", "-c", "--noheadings", "-o", "minor", "firn-flush"],
            "",
        )?;
        let disk = PathBuf::from(format!("/dev/dm-{}", minor.trim()));
        Ok(SlowFlush { disk, sink })
    }

    /// Makes a file system on it; where that is mounted.
    pub(super) fn mounted(&self) -> Result<PathBuf, Failure> {
        mounted(&self.disk, Path::new("/tmp/slow-flush"))
    }

    /// Flushes that the disk has carried out.
    pub(super) fn flushes(&self) -> Result<f64, Failure> {
        let name = self.sink.file_name().ok_or("a disk without a name")?;
        let text = fs::read_to_string(Path::new("/sys/block").join(name).join("stat"))?;
        // Reads, writes and discards have four fields each, and there are three of what waits.
        let flushes = text.split_whitespace().nth(15);
        Ok(flushes
            .ok_or("this kernel does not count flushes")?
            .parse()?)
    }
}

/// Makes a disk in memory of that name.
pub(in crate::bench) fn null_block(name: &str, more: &[(&str, &str)]) -> Result<PathBuf, Failure> {
    process::run(Command::new("modprobe").args(["null_blk", "nr_devices=0"]))?;
    // It is there already where the guest's start has mounted it.
    let _ = Command::new("mount")
        .args(["-t", "configfs", "configfs", CONFIGFS])
        .stderr(Stdio::null())
        .status();
    let device = Path::new(CONFIGFS).join("nullb").join(name);
    fs::create_dir(&device).map_err(|error| format!("no null_blk in this kernel: {error}"))?;
    let size = MIB.to_string();
    let usual = [("memory_backed", "1"), ("size", &*size)];
    for (name, value) in usual.iter().chain(more).chain(&[("power", "1")]) {
        fs::write(device.join(name), value)
            .map_err(|error| format!("null_blk does not take {name} {value}: {error}"))?;
    }
    let index = fs::read_to_string(device.join("index"))?;
    let disk = PathBuf::from(format!("/dev/nullb{}", index.trim()));
    // Configured disks have their own name on newer kernels.
    Ok(if disk.exists() {
        disk
    } else {
        Path::new("/dev").join(name)
    })
}

/// A new file system, and where it is mounted.
fn mounted(disk: &Path, dir: &Path) -> Result<PathBuf, Failure> {
    process::run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(disk))?;
    fs::create_dir_all(dir)?;
    process::run(Command::new("mount").arg(disk).arg(dir))?;
    Ok(dir.to_owned())
}

/// Runs `dmsetup` with a table on its standard input; what it printed. No udev is waited for.
fn dmsetup(args: &[&str], table: &str) -> Result<String, Failure> {
    let mut child = Command::new("dmsetup")
        .args(["--noudevsync", "--noudevrules"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start dmsetup: {error}"))?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(table.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(format!("dmsetup {args:?} ended with {}:\n{table}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
