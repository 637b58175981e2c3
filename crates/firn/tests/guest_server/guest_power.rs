//! Power cuts under volumes that are disks, with dm-log-writes: below the log, and between a file
//! system and its disk. What was flushed before the cut is there after it (S2), and what is there
//! is the state after a prefix of the history (S4).
//!
//! dm-log-writes records each write when it becomes durable. Replaying a part of the record gives
//! what the disk may hold when power is cut there; the index rings are memory and gone, and the
//! machine has booted anew. Run as root in a guest; `FIRN_POWER_CUTS` sets how many cuts are
//! tried in each data mode.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use oracle::{Promise, WriteHistory};

use crate::common::eventually;
use crate::common::guest::{
    Direct, Guest, Mounted, Stops, content, keep_writing, run_tool, text, tool,
};
use crate::common::mapped::{self, Loop, Mapped, NoFlush, Record, SECTOR, sparse_file};

/// Few: under emulation one mode with one cut took longer than four minutes on a busy machine.
const CUTS_DEFAULT: usize = 4;

/// Of the disk with the cache directory: 64 MiB of log, 16 of cache, and a small file system.
const DISK_MIB: u64 = 104;
const VOLUME_MIB: u64 = 64;
const WRITERS: usize = 4;
const MARKS: usize = 8;

fn cuts() -> usize {
    std::env::var("FIRN_POWER_CUTS").map_or(CUTS_DEFAULT, |n| n.parse().unwrap())
}

/// A guest that can record what a disk makes durable.
fn guest() -> Option<Guest> {
    let guest = Guest::new()?;
    for target in ["log-writes", "delay"] {
        if !mapped::has_target(target) {
            println!("skipped: this kernel lacks dm-{target} (modprobe dm-{target})");
            return None;
        }
    }
    Some(guest)
}

/// Another boot of the machine, as far as programs can tell.
struct Boot;

impl Boot {
    fn anew(dir: &Path, number: usize) -> Boot {
        let id = dir.join("boot-id");
        fs::write(&id, format!("{number:08x}-0000-4000-8000-000000000000\n")).unwrap();
        run_tool("mount", &["--bind", text(&id), Boot::ID]);
        Boot
    }

    const ID: &str = "/proc/sys/kernel/random/boot_id";
}

impl Drop for Boot {
    fn drop(&mut self) {
        tool("umount", &[Boot::ID]);
    }
}

/// The cache directory on a disk that keeps a record of what it made durable.
struct Below {
    images: tempfile::TempDir,
    /// What the disk is made of.
    base: PathBuf,
    record: PathBuf,
}

impl Below {
    fn file(&self, name: &str) -> PathBuf {
        self.images.path().join(name)
    }

    /// A cache directory, made and left in good order, with a volume that is no disk yet.
    fn new(guest: &Guest) -> Below {
        let images = tempfile::tempdir().unwrap();
        let file = |name: &str| images.path().join(name);
        let (base, record) = (file("base"), file("record"));
        sparse_file(&base, DISK_MIB);
        let make = ["-q", "-F", "-m", "0", "-J", "size=4", "-E"];
        let lazy = "lazy_itable_init=0,lazy_journal_init=0";
        run_tool("mkfs.ext4", &[&make[..], &[lazy, text(&base)]].concat());
        let below = Below {
            images,
            base,
            record,
        };
        {
            let disk = Loop::attach(&below.base);
            let _mounted = below.mount(guest, &disk.0);
            let demo = format!("demo={VOLUME_MIB}MiB");
            assert!(guest.serve(&["--volume", &demo]).stop().success());
        }
        sparse_file(&below.record, 1024);
        below
    }

    /// Mounts the disk where servers of this world find their cache directory.
    fn mount(&self, guest: &Guest, disk: &Path) -> Mounted {
        let at = guest.world.path("disk");
        let mounted = Mounted::at(&at, disk, "ext4", "defaults");
        fs::create_dir_all(at.join("cache")).unwrap();
        let link = guest.world.path("cache");
        if !link.exists() {
            std::os::unix::fs::symlink(at.join("cache"), link).unwrap();
        }
        mounted
    }
}

/// How a writer of [`write_history`] reaches the disk.
struct Writer<'a> {
    history: &'a WriteHistory,
    number: usize,
    plain: Direct,
    /// The same disk without FLUSH.
    fua: Direct,
    /// Nobody flushes: what is durable is so by FUA. One writer's FLUSH would hide that another's
    /// FUA was dropped.
    fua_alone: &'a AtomicBool,
}

impl Writer<'_> {
    /// Writes until told to stop. Every so often a write asks to be durable when it completes, or
    /// a flush follows it.
    fn run(&self, stop: &AtomicBool) {
        let mut random = fastrand::Rng::with_seed(self.number as u64 + 1);
        while !stop.load(Ordering::Relaxed) {
            let block = random.u64(..self.history.blocks_per_writer());
            let (at, bytes) = self.history.begin(self.number, block);
            let (fua, flush) = match random.u32(..8) {
                0 => (true, false),
                1 | 2 if self.fua_alone.load(Ordering::SeqCst) => (true, false),
                1 | 2 => (false, true),
                _ => (false, false),
            };
            let file = if fua { &self.fua } else { &self.plain };
            file.write(at, &bytes)
                .unwrap_or_else(|error| panic!("writer {} saw an error: {error}", self.number));
            self.history.complete(self.number, fua);
            if flush {
                let flushed = self.history.flush(self.number, || self.plain.flush());
                flushed.unwrap();
            }
        }
    }
}

/// Writes a history through a disk until it is long enough, with marks in between. Before
/// every other mark nobody flushes, and FUA alone makes durable what is promised.
fn write_history(history: &WriteHistory, disk: &Path, recording: &Mapped) -> Vec<Promise> {
    let (stop, fua_alone) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut promises = Vec::new();
    let fua = NoFlush::map(disk).expect("dm-delay, which was looked for");
    std::thread::scope(|scope| {
        let stops = Stops(&stop);
        let write = |number| {
            let writer = Writer {
                history,
                number,
                plain: Direct::open(disk),
                fua: Direct::durable(&fua.path),
                fua_alone: &fua_alone,
            };
            let stop = &stop;
            scope.spawn(move || writer.run(stop))
        };
        let writers: Vec<_> = (0..WRITERS).map(write).collect();
        for mark in 0..MARKS {
            let enough = (mark + 1) * 100;
            fua_alone.store(mark % 2 == 1, Ordering::SeqCst);
            eventually("writes", || {
                history.written() >= enough || writers.iter().any(|one| one.is_finished())
            });
            // First what is promised, then the mark: all of it is before the mark.
            promises.push(history.promise());
            recording.mark(&format!("mark-{mark}"));
        }
        drop(stops);
    });
    promises
}

/// Where to cut: at each mark, then anywhere; with the last mark before the cut.
fn places(record: &Record, random: &mut fastrand::Rng) -> Vec<(usize, Option<usize>)> {
    let marks: Vec<(usize, usize)> = record
        .marks()
        .into_iter()
        .filter_map(|(at, text)| Some((at, text.strip_prefix("mark-")?.parse().ok()?)))
        .collect();
    assert_eq!(marks.len(), MARKS, "{:?}", record.marks());
    let mut cuts: Vec<usize> = marks.iter().map(|(at, _)| *at).collect();
    random.shuffle(&mut cuts);
    cuts.truncate((self::cuts() / 2).max(1));
    while cuts.len() < self::cuts() {
        cuts.push(random.usize(..record.len()));
    }
    let before = |cut: usize| marks.iter().rfind(|(at, _)| *at <= cut).map(|(_, n)| *n);
    cuts.into_iter().map(|cut| (cut, before(cut))).collect()
}

/// Starts a server on what a power cut left of the disk, and gives its volume's disk to `look`.
fn after_cut(
    below: &Below,
    guest: &Guest,
    store: &Path,
    round: usize,
    (mode, attached): (&str, bool),
    look: impl FnOnce(&Path),
) {
    let _boot = Boot::anew(below.images.path(), round + 1);
    let disk = Loop::attach(&below.file("cut"));
    let mounted = below.mount(guest, &disk.0);
    let rings = tempfile::tempdir_in("/dev/shm").unwrap();
    let copy = guest.world.path("store-of-the-round");
    run_tool("cp", &["-a", text(store), text(&copy)]);
    let args = ["--store", text(&copy), "--ring-dir", text(rings.path())];
    let server = guest.serve(&args);
    let shown = guest.world.show(&server, "demo")["disk"].clone();
    // Before the first mark, power may have been cut while it was being attached.
    assert!(
        shown.is_object() || !attached,
        "a disk that was there comes back"
    );
    let path = guest.attach_in(&server, "demo", mode);
    look(&path);
    guest.detach(&server, "demo");
    assert!(server.stop().success());
    drop(mounted);
    fs::remove_dir_all(copy).unwrap();
}

/// S2 and S4, below the log.
#[test]
fn what_was_flushed_to_a_disk_survives_a_power_cut_at_any_moment() {
    let Some(guest) = guest() else { return };
    for (number, mode) in guest.modes().into_iter().enumerate() {
        let below = Below::new(&guest);
        let history = WriteHistory::new(WRITERS);
        let (store, then) = (guest.world.path("store"), guest.world.path("store-then"));
        mapped::copy(&below.base, &below.file("before"));
        let promises = {
            let (disk, record) = (Loop::attach(&below.base), Loop::attach(&below.record));
            let sectors = (DISK_MIB << 20) / SECTOR;
            let table = format!(
                "0 {sectors} log-writes {} {}",
                text(&disk.0),
                text(&record.0)
            );
            let recording = Mapped::new("record", &table);
            let mounted = below.mount(&guest, &recording.path);
            let server = guest.serve(&["--rpo", "1h"]);
            let path = guest.attach_in(&server, "demo", mode);
            // From here on nothing reaches the store: what a cut leaves is the log's alone.
            run_tool("cp", &["-a", text(&store), text(&then)]);
            fs::rename(&store, guest.world.path("away")).unwrap();
            let promises = write_history(&history, &path, &recording);
            server.kill();
            drop(mounted);
            promises
        };
        let record = Record::read(&below.record);
        let (flushes, fuas) = record.flushes_and_fuas();
        println!(
            "{mode}: {} writes, {} entries, {flushes} flushes, {fuas} FUA",
            history.written(),
            record.len()
        );
        assert!(flushes > MARKS, "the disk below was flushed");
        let mut random = fastrand::Rng::with_seed(number as u64);
        let nothing = WriteHistory::new(WRITERS).promise();
        for (round, (cut, mark)) in places(&record, &mut random).into_iter().enumerate() {
            mapped::copy(&below.file("before"), &below.file("cut"));
            let image = File::options().write(true).open(below.file("cut")).unwrap();
            let mut kept = fastrand::Rng::with_seed(cut as u64);
            record.replay(&image, cut, || kept.bool());
            drop(image);
            let promise = mark.map_or(&nothing, |mark| &promises[mark]);
            let attached = (mode, mark.is_some());
            after_cut(&below, &guest, &then, round, attached, |disk| {
                let found = Direct::open(disk)
                    .read(0, history.disk_bytes() as usize)
                    .unwrap();
                if let Err(why) = history.check(&found, promise) {
                    panic!(
                        "{mode}, cut after {cut} of {} (mark {mark:?}): {why}",
                        record.len()
                    );
                }
            });
        }
        fs::remove_dir_all(then).unwrap();
        fs::remove_file(guest.world.path("cache")).unwrap();
        fs::rename(guest.world.path("away"), &store).unwrap();
        fs::remove_dir_all(&store).unwrap();
    }
}

/// Makes files on a file system on a disk that is recorded, with marks in between; for each mark,
/// what had been synced by then.
fn write_files(guest: &Guest, recording: &Mapped) -> Vec<BTreeMap<u64, usize>> {
    let (promised, next) = (Mutex::new(BTreeMap::new()), AtomicU64::new(0));
    let mut promises = Vec::new();
    let mounted = Mounted::new(&guest.world, &recording.path, "ext4");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stops = Stops(&stop);
        let write = || keep_writing(&mounted.0, &next, &promised, &stop);
        let writers = [scope.spawn(write), scope.spawn(write)];
        for mark in 0..MARKS {
            eventually("synced files", || {
                promised.lock().unwrap().len() >= 10 * (mark + 1)
                    || writers.iter().any(|one| one.is_finished())
            });
            promises.push(promised.lock().unwrap().clone());
            recording.mark(&format!("mark-{mark}"));
        }
        drop(stops);
    });
    promises
}

/// S2, as a file system sees it: what it flushed in its order is what a cut leaves.
#[test]
fn a_file_system_on_a_disk_is_whole_after_a_power_cut_and_has_what_was_synced() {
    let Some(guest) = guest() else { return };
    for mode in guest.modes() {
        let images = tempfile::tempdir().unwrap();
        let file = |name: &str| images.path().join(name);
        let demo = format!("demo={VOLUME_MIB}MiB");
        let server = guest.serve(&["--volume", &demo]);
        let disk = guest.attach_in(&server, "demo", mode);
        let record = Loop::attach(&sparse_file(&file("record"), 1024));
        let sectors = (VOLUME_MIB << 20) / SECTOR;
        let table = format!("0 {sectors} log-writes {} {}", text(&disk), text(&record.0));
        let recording = Mapped::new("record", &table);
        run_tool("mkfs.ext4", &["-q", "-F", text(&recording.path)]);
        let promises = write_files(&guest, &recording);
        drop(recording);
        let record = Record::read(&file("record"));
        let (flushes, fuas) = record.flushes_and_fuas();
        println!(
            "{mode}: {} entries, {flushes} flushes, {fuas} FUA",
            record.len()
        );
        assert!(
            flushes > 0 && fuas > 0,
            "the file system flushes and uses FUA"
        );
        let mut random = fastrand::Rng::with_seed(7);
        // Before the first mark there is no whole file system yet.
        let places = places(&record, &mut random).into_iter();
        for (cut, mark) in places.filter_map(|(cut, mark)| Some((cut, mark?))) {
            let image = File::options()
                .write(true)
                .open(sparse_file(&file("cut"), VOLUME_MIB));
            let image = image.unwrap();
            let mut kept = fastrand::Rng::with_seed(cut as u64);
            record.replay(&image, cut, || kept.bool());
            let looked = Loop::attach(&file("cut"));
            let mounted = Mounted::new(&guest.world, &looked.0, "ext4");
            for &name in promises[mark].keys() {
                let found = fs::read(mounted.0.join(name.to_string())).unwrap();
                assert!(
                    found == content(name),
                    "{mode}: file {name}, cut after {cut}"
                );
            }
            drop(mounted);
            run_tool("e2fsck", &["-f", "-n", text(&looked.0)]);
        }
        // In the end the volume is what was written to it, whatever way it took.
        let image = File::options()
            .write(true)
            .open(sparse_file(&file("cut"), VOLUME_MIB));
        record.replay(&image.unwrap(), record.len(), || true);
        run_tool("cmp", &[text(&file("cut")), text(&disk)]);
        guest.end(server, "demo");
    }
}
