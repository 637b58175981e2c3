//! FLUSH and FUA on a real kernel, in every data mode: what they promise is durable before they are
//! answered.
//!
//! Two servers, one on the other's disk: what the upper one was given stays in the page cache of the
//! lower disk until somebody syncs it, and what is in the lower server's file has passed that cache.
//! So the file tells what a power cut would have left, at every moment.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::servers::client::{Load, Mounted, run, text};
use crate::servers::world::{Scratch, Server, ServerOptions, Table, requested_modes};

const BLOCK: usize = 8192;
/// Blocks of a round, and the pages that they have.
const BLOCKS: u64 = 8;
const PAGES: u64 = BLOCKS * (BLOCK / PAGE) as u64;
const PAGE: usize = 4096;
const ROUNDS: u64 = 6;

/// A counter of a block device: how many flushes it was asked for.
fn flushes(disk: &Path) -> u64 {
    let name = disk.file_name().unwrap().to_string_lossy();
    let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
    stat.split_whitespace().nth(15).unwrap().parse().unwrap()
}

/// Memory that may be written past the page cache.
#[repr(align(4096))]
struct Block([u8; BLOCK]);

/// The upper disk, the lower one, and the file below both.
struct Stack {
    upper: Server,
    // After the other, which has its disk open.
    lower: Server,
    file: File,
    scratch: Scratch,
}

impl Stack {
    fn of(mode: &str) -> Stack {
        let scratch = Scratch::new();
        let path = scratch.file("lower", 16);
        let file = File::open(&path).unwrap();
        let serve = |id, mode, files: Vec<PathBuf>| {
            let serve = ServerOptions {
                program: "file",
                id,
                mode,
                files,
                ..ServerOptions::default()
            };
            serve.start()
        };
        let lower = serve(1, "auto", vec![path]);
        let upper = serve(0, mode, vec![lower.block(0)]);
        Stack {
            lower,
            upper,
            file,
            scratch,
        }
    }

    /// How many pages of this pattern have reached the file below both.
    fn durable(&self, pattern: u8) -> u64 {
        let mut bytes = vec![0; 16 << 20];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        let is_there = |page: &&[u8]| page.iter().all(|byte| *byte == pattern);
        bytes.chunks(PAGE).filter(is_there).count() as u64
    }

    fn end(self) {
        self.upper.exits_cleanly();
        self.lower.exits_cleanly();
    }

    /// Everything else meanwhile: writes to the second half.
    fn neighbours(&self) -> crate::servers::client::RunningLoad {
        let mut load = Load::endless(self.upper.blocks());
        (load.pattern, load.depth, load.mib) = ("randwrite", 4, 4);
        load.extra_args.extend(["--offset=8m", "--rate_iops=200"]);
        load.start()
    }
}

/// A file or a disk, past the page cache.
fn direct(path: &Path, flags: i32) -> File {
    let mut options = File::options();
    options.read(true).write(true);
    options.custom_flags(libc::O_DIRECT | flags);
    options.open(path).unwrap()
}

/// Writes a pattern over blocks that do not touch each other, nor those of another round.
fn write(file: &File, round: u64, pattern: u8) {
    let block = Block([pattern; BLOCK]);
    for number in 0..BLOCKS {
        let at = (round + ROUNDS * number) * BLOCK as u64;
        file.write_all_at(&block.0, at).unwrap();
    }
}

#[test]
fn a_flush_is_answered_when_the_writes_completed_before_it_are_durable() {
    for mode in requested_modes(Table::All) {
        let stack = Stack::of(mode);
        let disk = direct(&stack.upper.block(0), 0);
        let load = stack.neighbours();
        let mut owed = 0;
        for round in 0..ROUNDS {
            let pattern = 0xa0 + round as u8;
            write(&disk, round, pattern);
            owed += PAGES - stack.durable(pattern);
            let before = flushes(&stack.lower.block(0));
            disk.sync_data().unwrap();
            assert_eq!(stack.durable(pattern), PAGES, "{mode}, round {round}");
            assert!(flushes(&stack.lower.block(0)) > before, "{mode}");
        }
        // Or the flushes had nothing to do.
        assert!(owed > 0, "{mode}: all was durable by itself");
        drop((load, disk));
        stack.end();
    }
}

#[test]
fn a_write_with_fua_is_answered_when_it_is_durable() {
    for mode in requested_modes(Table::All) {
        let stack = Stack::of(mode);
        let upper = stack.upper.block(0);
        // A disk that is written directly gets a FLUSH after each such write. A file system
        // that writes over what a file has gets by with FUA.
        run(
            "mkfs.ext4",
            &["-q", "-F", "-O", "^has_journal", text(&upper)],
        );
        let mounted = Mounted::new(&upper, stack.scratch.path("mnt"));
        let path = mounted.path("x");
        std::fs::write(&path, vec![1; BLOCK * (BLOCKS * ROUNDS) as usize]).unwrap();
        run("sync", &["-f", text(&path)]);
        let file = direct(&path, libc::O_DSYNC);
        let before = flushes(&upper);
        for round in 0..ROUNDS {
            let pattern = 0xa0 + round as u8;
            let before = flushes(&stack.lower.block(0));
            write(&file, round, pattern);
            assert_eq!(stack.durable(pattern), PAGES, "{mode}, round {round}");
            let extra_args = flushes(&stack.lower.block(0)) - before;
            assert!(
                extra_args >= BLOCKS,
                "{mode}: {extra_args} for {BLOCKS} writes"
            );
        }
        // One for each write if it was not FUA alone. The file system has some of its own.
        let own = flushes(&upper) - before;
        assert!(own < ROUNDS * BLOCKS / 4, "{mode}: {own} flushes");
        drop(file);
        mounted.unmount();
        stack.end();
    }
}
