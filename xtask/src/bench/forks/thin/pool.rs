//! dm-thin's side: a pool with LVM's smallest block size, 64 KiB, and thin volumes of it.
//!
//! Its data and metadata are files on the file system that the other side has its log on, as loop devices with direct I/O,
//! or disks in memory without a file system between.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::{Branching, ORIGIN_MIB};
use crate::Failure;
use crate::bench::measure::{fill, write_file};
use crate::bench::ublk::volume::{Medium, medium};

const DATA_MIB: u64 = 1024;
const METADATA_MIB: u64 = 64;
/// Sectors of the pool's blocks, which snapshots share as a whole.
const BLOCK_SECTORS: u64 = 128;
const SECTORS_PER_MIB: u64 = 2048;

const POOL: &str = "firn-pool";
const ORIGIN: &str = "firn-origin";
/// The origin's number in the pool.
const ORIGIN_ID: u32 = 0;

const DEVICE_MAPPER: &str = include_str!("device_mapper.py");

/// The process that asks the kernel's device mapper.
struct DeviceMapper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl DeviceMapper {
    fn start() -> Result<DeviceMapper, Failure> {
        let mut command = Command::new("python3");
        command.args(["-c", DEVICE_MAPPER]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("cannot start python3: {error}"))?;
        let input = child.stdin.take().ok_or("a program without input")?;
        let output = child.stdout.take().ok_or("a program without output")?;
        Ok(DeviceMapper {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    /// Executes commands one after the other; how long all of them took, and the device of the last.
    fn run(&mut self, commands: &[&str]) -> Result<(Duration, PathBuf), Failure> {
        writeln!(self.input, "{}", commands.join("\t"))?;
        let mut answer = String::new();
        self.output.read_line(&mut answer)?;
        let (nanoseconds, minor) =
            parse_answer(&answer).ok_or_else(|| format!("the device mapper: {}", answer.trim()))?;
        let path = PathBuf::from(format!("/dev/dm-{minor}"));
        Ok((Duration::from_nanos(nanoseconds), path))
    }
}

fn parse_answer(answer: &str) -> Option<(u64, u32)> {
    let (nanoseconds, minor) = answer.trim().split_once(' ')?;
    Some((nanoseconds.parse().ok()?, minor.parse().ok()?))
}

impl Drop for DeviceMapper {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) struct Pool {
    mapper: DeviceMapper,
    pool: PathBuf,
    origin: PathBuf,
    /// Numbers in the pool of snapshots and forks: to it they are the same.
    ids: BTreeMap<String, u32>,
    last_id: u32,
    disks: [Backing; 2],
}

/// A disk below the pool.
struct Backing {
    device: PathBuf,
    /// The file that it is, if it is a loop device.
    file: Option<PathBuf>,
}

impl Backing {
    /// A disk every block of which was written: others pay for their first use.
    fn create(medium: Medium, dir: &Path, name: &str, mib: u64) -> Result<Backing, Failure> {
        match medium {
            Medium::Memory => {
                let device = medium::null_block(name, &[])?;
                write_file(&device, mib)?;
                Ok(Backing { device, file: None })
            }
            Medium::Disk => {
                let file = dir.join(name);
                write_file(&file, mib)?;
                let device = losetup(&["--find", "--show", "--direct-io=on"], &file)?;
                Ok(Backing {
                    device: PathBuf::from(device.trim()),
                    file: Some(file),
                })
            }
        }
    }

    fn remove(&self) -> Result<(), Failure> {
        if let Some(file) = &self.file {
            losetup(&["--detach"], &self.device)?;
            std::fs::remove_file(file)?;
        }
        Ok(())
    }
}

fn losetup(words: &[&str], file: &Path) -> Result<String, Failure> {
    let output = Command::new("losetup").args(words).arg(file).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("losetup {} {}: {said}", words.join(" "), file.display()).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

impl Pool {
    /// A new pool, and its first volume written from end to end.
    pub(super) fn create(medium: Medium, dir: &Path) -> Result<Pool, Failure> {
        let metadata = Backing::create(medium, dir, "thin-metadata", METADATA_MIB)?;
        let data = Backing::create(medium, dir, "thin-data", DATA_MIB)?;
        // By zeroes the pool knows that it is a new one.
        let file = File::options().write(true).open(&metadata.device)?;
        file.write_all_at(&[0; 4096], 0)?;
        file.sync_all()?;
        drop(file);
        let mut mapper = DeviceMapper::start()?;
        let (metadata_path, data_path) = (metadata.device.display(), data.device.display());
        let sectors = DATA_MIB * SECTORS_PER_MIB;
        let table = format!("{sectors} thin-pool {metadata_path} {data_path} {BLOCK_SECTORS} 0");
        let (_, pool) = mapper.run(&[&format!("create {POOL} {table}")])?;
        mapper.run(&[&format!("message {POOL} create_thin {ORIGIN_ID}")])?;
        let mut created = Pool {
            mapper,
            pool,
            origin: PathBuf::new(),
            ids: BTreeMap::new(),
            last_id: ORIGIN_ID,
            disks: [data, metadata],
        };
        created.origin = created.activate(ORIGIN, ORIGIN_ID)?.1;
        created.settle()?;
        Ok(created)
    }

    fn activate(&mut self, name: &str, id: u32) -> Result<(Duration, PathBuf), Failure> {
        let sectors = ORIGIN_MIB * SECTORS_PER_MIB;
        let pool = self.pool.display();
        let create = format!("create {name} {sectors} thin {pool} {id}");
        self.mapper.run(&[&create])
    }

    /// A snapshot of what has this number; a volume in use is suspended for it.
    fn branch(&mut self, of: u32, name: &str) -> Result<Duration, Failure> {
        self.last_id += 1;
        self.ids.insert(name.to_owned(), self.last_id);
        let branch = format!("message {POOL} create_snap {} {of}", self.last_id);
        let (suspend, resume) = (format!("suspend {ORIGIN}"), format!("resume {ORIGIN}"));
        let (took, _) = match of {
            ORIGIN_ID => self.mapper.run(&[&suspend, &branch, &resume])?,
            _ => self.mapper.run(&[&branch])?,
        };
        Ok(took)
    }

    fn id(&self, name: &str) -> Result<u32, Failure> {
        let id = self.ids.get(name).copied();
        Ok(id.ok_or_else(|| format!("there is no {name} in the pool"))?)
    }
}

impl Branching for Pool {
    fn name(&self) -> &'static str {
        "dm-thin"
    }

    fn origin(&self) -> &Path {
        &self.origin
    }

    /// Writes all of it, so that it shares no block: one that a snapshot had is copied also when that is gone.
    fn settle(&mut self) -> Result<(), Failure> {
        fill(&self.origin)?;
        Ok(File::open(&self.origin)?.sync_all()?)
    }

    fn snapshot(&mut self, name: &str) -> Result<Duration, Failure> {
        self.branch(ORIGIN_ID, name)
    }

    fn stored_snapshot(&mut self, name: &str) -> Result<(), Failure> {
        self.snapshot(name).map(drop)
    }

    fn fork(&mut self, snapshot: Option<&str>, name: &str) -> Result<Duration, Failure> {
        let of = snapshot.map_or(Ok(ORIGIN_ID), |snapshot| self.id(snapshot))?;
        self.branch(of, name)
    }

    fn attach(&mut self, fork: &str) -> Result<(Duration, PathBuf), Failure> {
        let id = self.id(fork)?;
        self.activate(fork, id)
    }

    fn detach(&mut self, fork: &str) -> Result<(), Failure> {
        self.mapper.run(&[&format!("remove {fork}")]).map(drop)
    }

    fn remove_snapshot(&mut self, name: &str) -> Result<(), Failure> {
        self.remove_fork(name)
    }

    fn remove_fork(&mut self, name: &str) -> Result<(), Failure> {
        let id = self.id(name)?;
        self.ids.remove(name);
        let delete = format!("message {POOL} delete {id}");
        self.mapper.run(&[&delete]).map(drop)
    }

    fn describe(&self) -> Result<String, Failure> {
        let [data, metadata] = self.disks.each_ref().map(|disk| disk.device.display());
        let block_kib = BLOCK_SECTORS / 2;
        Ok(format!(
            "blocks of {block_kib} KiB, data on {data}, metadata on {metadata}"
        ))
    }

    fn end(mut self: Box<Self>) -> Result<(), Failure> {
        self.detach(ORIGIN)?;
        self.detach(POOL)?;
        self.disks.iter().try_for_each(Backing::remove)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_time_and_a_minor_number_or_why_there_is_none() {
        assert_eq!(parse_answer("1500 3\n"), Some((1500, 3)));
        assert_eq!(
            parse_answer("! suspend x: [Errno 6] No such device\n"),
            None
        );
        assert_eq!(parse_answer(""), None);
    }
}
