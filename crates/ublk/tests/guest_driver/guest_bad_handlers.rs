//! Servers that misbehave, on a real kernel, in every data mode that it grants: answers for a part
//! of a request, panics over a request, requests that are dropped or failed. Each costs its request
//! at most, and no disk hangs.

use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::mpsc;

use crate::servers::world::{DEADLINE, ServerOptions, Table, requested_modes};

const BLOCK: usize = 8192;
const BLOCKS: usize = 24;
/// Every so many requests are hit.
const EVERY: &str = "5";

/// Writes each block and reads it back, past the page cache, again where it fails: how often it
/// did. What is read must be what was written.
fn client(disk: PathBuf) -> u32 {
    let disk = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(disk)
        .unwrap();
    let mut memory = vec![0_u8; BLOCK + 4096];
    let from = memory.as_ptr().align_offset(4096);
    let buf = &mut memory[from..from + BLOCK];
    let mut failed = 0;
    let mut until_done = |mut call: Box<dyn FnMut() -> io::Result<()> + '_>| {
        while let Err(error) = call() {
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
            failed += 1;
        }
    };
    for block in 0..BLOCKS {
        let at = (block * BLOCK) as u64;
        buf.fill(block as u8 + 1);
        until_done(Box::new(|| disk.write_all_at(buf, at)));
    }
    for block in 0..BLOCKS {
        let at = (block * BLOCK) as u64;
        buf.fill(0);
        until_done(Box::new(|| disk.read_exact_at(buf, at)));
        assert!(
            buf.iter().all(|&byte| byte == block as u8 + 1),
            "block {block}"
        );
    }
    failed
}

/// How many requests failed of a client of a server with this fault.
fn failures(mode: &str, fault: &str) -> u32 {
    let server = ServerOptions {
        program: "faulty",
        mode,
        queues: 1,
        extra_args: vec![fault.into(), EVERY.into(), "--size".into(), "16M".into()],
        ..ServerOptions::default()
    }
    .start();
    assert_eq!(server.mode(0), mode);
    let (done, waiting) = mpsc::channel();
    let disk = server.block(0);
    let thread = std::thread::spawn(move || {
        // Nobody waits any more where this fails.
        let _ = done.send(client(disk));
    });
    let failed = match waiting.recv_timeout(DEADLINE) {
        Ok(failed) => failed,
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("the client failed"),
        Err(mpsc::RecvTimeoutError::Timeout) => {
            // Whatever shuts down in order would wait for the disk that hangs.
            println!("watchdog: {mode} {fault}: a request has no end");
            std::process::abort();
        }
    };
    thread.join().unwrap();
    failed
}

/// Of 48 requests and their repetitions every fifth fails: twelve, one more or less for where the
/// scan for partitions left the count, and its end may still come between.
const ALONE: RangeInclusive<u32> = 10..=14;

fn each_mode(fault: &str, judge: impl Fn(u32) -> bool) {
    for mode in requested_modes(Table::All) {
        let failed = failures(mode, fault);
        assert!(judge(failed), "{mode} {fault}: {failed} failed");
    }
}

#[test]
fn a_request_that_is_done_in_part_is_never_taken_for_done() {
    // What the kernel does not ask for again fails: all of it, or where bytes are copied the writes.
    each_mode("--short-every", |failed| (4..=14).contains(&failed));
}

#[test]
fn a_panic_over_a_request_fails_it_and_hangs_nobody() {
    each_mode("--panic-every", |failed| ALONE.contains(&failed));
}

#[test]
fn a_request_that_is_dropped_fails_and_hangs_nobody() {
    each_mode("--drop-every", |failed| ALONE.contains(&failed));
}

#[test]
fn a_request_that_fails_fails_alone() {
    each_mode("--fail-every", |failed| ALONE.contains(&failed));
}
