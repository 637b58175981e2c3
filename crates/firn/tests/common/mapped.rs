//! Disks over a file that fail, lie or keep a record, made by the device mapper.
//!
//! Only in guests. A disk goes when its value is dropped, after what is mounted on it. Nothing
//! waits for udev, which guests do not run.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::guest::{Guest, Mounted, run_tool, text, tool};
use super::message;

/// The unit of the device mapper's tables.
pub const SECTOR: u64 = 512;

pub const MIB: u64 = 1 << 20;

/// A file as a block device.
pub struct Loop(pub PathBuf);

impl Loop {
    pub fn attach(file: &Path) -> Loop {
        let device = run_tool("losetup", &["-f", "--show", text(file)]);
        Loop(PathBuf::from(device.trim()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        tool("losetup", &["-d", text(&self.0)]);
    }
}

/// A device of the device mapper.
pub struct Mapped {
    name: String,
    pub path: PathBuf,
}

impl Mapped {
    pub fn new(name: &str, table: &str) -> Mapped {
        let name = format!("firn-{}-{name}", std::process::id());
        dmsetup(&["create", &name], table);
        let minor = dmsetup(&["info", "-c", "--noheadings", "-o", "minor", &name], "");
        let path = PathBuf::from(format!("/dev/dm-{}", minor.trim()));
        Mapped { name, path }
    }

    /// Puts another table in place while the device is used.
    pub fn swap(&self, table: &str) {
        dmsetup(&["suspend", "--nolockfs", "--noflush", &self.name], "");
        dmsetup(&["load", &self.name], table);
        dmsetup(&["resume", &self.name], "");
    }

    /// Puts a mark into the record that dm-log-writes keeps.
    pub fn mark(&self, mark: &str) {
        dmsetup(&["message", &self.name, "0", "mark", mark], "");
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        tool(
            "dmsetup",
            &["--noudevsync", "remove", "--retry", &self.name],
        );
    }
}

/// Runs `dmsetup` with a table on its standard input; what it printed.
fn dmsetup(args: &[&str], table: &str) -> String {
    let mut child = Command::new("timeout")
        .args(["-k", "5", "120", "dmsetup", "--noudevsync", "--noudevrules"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(table.as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "dmsetup {args:?}: {}\n{table}",
        message(&output)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Whether this kernel has a target of that name.
pub fn has_target(name: &str) -> bool {
    let output = tool("dmsetup", &["targets"]);
    let targets = String::from_utf8_lossy(&output.stdout).into_owned();
    targets
        .lines()
        .any(|line| line.split(' ').next() == Some(name))
}

/// A mapping of a disk that passes everything on but FLUSH, which goes to another device: so what
/// is durable through it is so by FUA. (A block device that is open with O_DSYNC is flushed after
/// each write, which would hide an FUA that was dropped.)
pub struct NoFlush {
    pub path: PathBuf,
    _mapped: Mapped,
    _sink: Loop,
    _image: tempfile::TempDir,
}

impl NoFlush {
    /// `None` where the kernel has no such mapping.
    pub fn map(disk: &Path) -> Option<NoFlush> {
        tool("modprobe", &["-q", "dm-delay"]);
        if !has_target("delay") {
            println!("skipped: this kernel lacks dm-delay (modprobe dm-delay)");
            return None;
        }
        let disk = text(disk);
        let sectors = run_tool("blockdev", &["--getsz", disk]);
        let sectors: u64 = sectors.trim().parse().unwrap();
        let image = tempfile::tempdir().unwrap();
        let mib = (sectors * SECTOR).div_ceil(MIB);
        let sink = Loop::attach(&sparse_file(&image.path().join("flushes"), mib));
        // Reads, writes, flushes: each to a device, all without delay.
        let sink_path = text(&sink.0);
        let table = format!("0 {sectors} delay {disk} 0 0 {disk} 0 0 {sink_path} 0 0");
        let mapped = Mapped::new("no-flush", &table);
        Some(NoFlush {
            path: mapped.path.clone(),
            _mapped: mapped,
            _sink: sink,
            _image: image,
        })
    }
}

/// One line of dm-log-writes' record.
#[derive(Debug)]
struct Entry {
    sector: u64,
    sectors: u64,
    flags: u64,
    /// Where its bytes are in the record.
    data: u64,
    /// Only of a mark.
    mark: String,
}

const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// What dm-log-writes recorded, as Linux' `Documentation/admin-guide/device-mapper/log-writes.rst`
/// and `drivers/md/dm-log-writes.c` lay it out: writes in the order in which they became durable.
pub struct Record {
    log: File,
    entries: Vec<Entry>,
}

impl Record {
    /// Reads the device that the record was kept on, once the recording one is gone.
    pub fn read(path: &Path) -> Record {
        let log = File::open(path).unwrap();
        let words = |at: u64| {
            let mut bytes = [0; 32];
            log.read_exact_at(&mut bytes, at).unwrap();
            let word = |n: usize| u64::from_le_bytes(bytes[n * 8..n * 8 + 8].try_into().unwrap());
            [word(0), word(1), word(2), word(3)]
        };
        let [magic, version, count, sector] = words(0);
        assert_eq!((magic, version), (0x006a_7366_7773_6872, 1), "a record");
        // The size of a sector is the last 32 bits that the header has.
        let unit = sector & u64::from(u32::MAX);
        let (mut at, mut entries) = (unit, Vec::new());
        for _ in 0..count {
            let [sector, sectors, flags, text] = words(at);
            let mut mark = vec![0; if flags & MARK == 0 { 0 } else { text as usize }];
            log.read_exact_at(&mut mark, at + 32).unwrap();
            let mark = String::from_utf8(mark).unwrap();
            let mark = mark.trim_end_matches('\0').to_owned();
            let data = at + unit;
            let held = if flags & DISCARD == 0 { sectors } else { 0 };
            at = data + held * unit;
            entries.push(Entry {
                sector: sector * unit,
                sectors: sectors * unit,
                flags,
                data,
                mark,
            });
        }
        Record { log, entries }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The marks, each with the number of entries before it.
    pub fn marks(&self) -> Vec<(usize, &str)> {
        let marks = self.entries.iter().enumerate();
        marks
            .filter(|(_, entry)| entry.flags & MARK != 0)
            .map(|(at, entry)| (at, entry.mark.as_str()))
            .collect()
    }

    /// Entries of the kinds that make others durable, or are durable by themselves.
    pub fn flushes_and_fuas(&self) -> (usize, usize) {
        let with = |flag| self.entries.iter().filter(|e| e.flags & flag != 0).count();
        (with(FLUSH), with(FUA))
    }

    /// Makes `image` what the disk was when power was cut after `until` entries: everything up to
    /// the last FLUSH is there, of what came after it only what had FUA and what `keeps` says.
    pub fn replay(&self, image: &File, until: usize, mut keeps: impl FnMut() -> bool) {
        let entries = &self.entries[..until];
        let flushed = entries.iter().rposition(|entry| entry.flags & FLUSH != 0);
        for (at, entry) in entries.iter().enumerate() {
            let durable = flushed.is_some_and(|last| at <= last) || entry.flags & FUA != 0;
            if entry.flags & MARK == 0 && (durable || keeps()) {
                self.apply(image, entry);
            }
        }
    }

    fn apply(&self, image: &File, entry: &Entry) {
        let mut bytes = vec![0; (1 << 20).min(entry.sectors as usize)];
        let mut done = 0;
        while done < entry.sectors {
            let now = bytes.len().min((entry.sectors - done) as usize);
            if entry.flags & DISCARD == 0 {
                let from = entry.data + done;
                self.log.read_exact_at(&mut bytes[..now], from).unwrap();
            }
            image
                .write_all_at(&bytes[..now], entry.sector + done)
                .unwrap();
            done += now as u64;
        }
    }
}

/// A file of `mib` MiB that takes space only where it is written.
pub fn sparse_file(path: &Path, mib: u64) -> PathBuf {
    File::create(path).unwrap().set_len(mib << 20).unwrap();
    path.to_owned()
}

/// Copies a file, holes as holes.
pub fn copy(from: &Path, to: &Path) {
    run_tool("cp", &["--sparse=always", text(from), text(to)]);
}

/// Sectors of the disk, from the first on, so many.
pub type Range = (u64, u64);

/// How a range of a disk is bad.
#[derive(Clone, Copy)]
pub enum Fault {
    /// Reads and writes fail. Flushes of the disk do not: the target takes none.
    Dead,
    /// What dm-flakey is told. Where writes fail, so does every flush of the disk.
    Flakey(&'static str),
}

/// A cache directory on a disk whose faults the test chooses.
pub struct Faulty {
    _mounted: Mounted,
    disk: Mapped,
    below: Loop,
    sectors: u64,
    _image: tempfile::TempDir,
}

impl Faulty {
    pub fn new(guest: &Guest, mib: u64) -> Option<Faulty> {
        if !has_target("flakey") {
            println!("skipped: this kernel lacks dm-flakey (modprobe dm-flakey)");
            return None;
        }
        let image = tempfile::tempdir().unwrap();
        let below = Loop::attach(&sparse_file(&image.path().join("disk"), mib));
        let sectors = mib * MIB / SECTOR;
        let disk = Mapped::new("faulty", &linear(0, sectors, &below.0));
        let lazy = "lazy_itable_init=0,lazy_journal_init=0";
        let make = ["-q", "-F", "-m", "0", "-J", "size=4", "-E", lazy];
        run_tool("mkfs.ext4", &[&make[..], &[text(&disk.path)]].concat());
        let at = guest.world.path("disk");
        // Errors in its own structures are not what is tested: it goes on as long as it can.
        let mounted = Mounted::at(&at, &disk.path, "ext4", "errors=continue");
        fs::create_dir(at.join("cache")).unwrap();
        std::os::unix::fs::symlink(at.join("cache"), guest.world.path("cache")).unwrap();
        Some(Faulty {
            _mounted: mounted,
            disk,
            below,
            sectors,
            _image: image,
        })
    }

    /// Where on the disk a range of bytes of a file in the cache directory lies.
    pub fn of_file(&self, guest: &Guest, name: &str, from: u64, bytes: u64) -> Vec<Range> {
        self.of_parts(guest, name, &[(from, bytes)])
    }

    /// The same of many ranges of one file, each its first byte and its length.
    pub fn of_parts(&self, guest: &Guest, name: &str, parts: &[(u64, u64)]) -> Vec<Range> {
        let file = guest.world.path("cache").join(name);
        // Asked once: under emulation a program takes half a second to start.
        let told = run_tool("filefrag", &["-v", "-b512", text(&file)]);
        let extents = told.lines().filter_map(|line| {
            // ext: logical_offset: physical_offset: length: expected: flags
            let words = line.split([':', ' ', '.']).filter(|word| !word.is_empty());
            let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
            let [_, first, last, place, ..] = numbers[..] else {
                return None;
            };
            Some((first, last, place))
        });
        let extents: Vec<_> = extents.collect();
        let mut ranges = Vec::new();
        for (from, bytes) in parts {
            let (from, end) = (from / SECTOR, (from + bytes) / SECTOR);
            let before = ranges.len();
            for (first, last, place) in &extents {
                let (begin, stop) = (*first.max(&from), (last + 1).min(end));
                if begin < stop {
                    ranges.push((place + begin - first, stop - begin));
                }
            }
            let found: u64 = ranges[before..].iter().map(|(_, sectors)| sectors).sum();
            assert_eq!(found, end - from, "{told}");
        }
        ranges.sort_unstable();
        ranges
    }

    /// From now on the ranges are bad in this way.
    pub fn spoil(&self, ranges: &[Range], fault: Fault) {
        let (mut table, mut at) = (String::new(), 0);
        let below = text(&self.below.0);
        for &(first, sectors) in ranges {
            table += &linear(at, first - at, &self.below.0);
            table += &match fault {
                Fault::Dead => format!("{first} {sectors} error\n"),
                Fault::Flakey(what) => {
                    format!("{first} {sectors} flakey {below} {first} 0 1 1 {what}\n")
                }
            };
            at = first + sectors;
        }
        table += &linear(at, self.sectors - at, &self.below.0);
        self.disk.swap(&table);
    }

    /// From now on no flush of the disk succeeds; everything else does. The device mapper sends a
    /// flush to every part of a table, so one bad part that nobody writes to is enough.
    pub fn spoil_flushes(&self) {
        let unused = (self.sectors - 8, 8);
        self.spoil(&[unused], Fault::Flakey("error_writes"));
    }

    pub fn heal(&self) {
        self.disk.swap(&linear(0, self.sectors, &self.below.0));
    }
}

fn linear(first: u64, sectors: u64, disk: &Path) -> String {
    match sectors {
        0 => String::new(),
        _ => format!("{first} {sectors} linear {} {first}\n", text(disk)),
    }
}
