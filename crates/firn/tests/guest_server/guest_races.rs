//! Races between requests of one disk, on a log of tiny segments whose seals and reclaims never
//! pause: each test is a bug that others had with this kind of server. For guests, as
//! `guest_volume.rs` says.
//!
//! `FIRN_BUG_ROUNDS` sets how often a race is run. What hangs is ended by a watchdog that aborts.

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use oracle::stamp;

use crate::common::disk_oracle::{BLOCK, Direct, DiskOracle};
use crate::common::guest::{Guest, TINY, metric, rounds};
use crate::common::watchdog::Watchdog;
use crate::common::{Server, deadline};

const ROUNDS_DEFAULT: u64 = 256;

fn bug_rounds() -> u64 {
    rounds("FIRN_BUG_ROUNDS", ROUNDS_DEFAULT)
}

/// What a crowd of clients does.
#[derive(Clone, Copy)]
struct Crowd {
    writers: u64,
    readers: u64,
    /// Largest write and largest read, in blocks.
    write_max: u64,
    read_max: u64,
    flushes: bool,
}

/// Bytes of the log of [`TINY`], in blocks.
const LOG_BLOCKS: u64 = (4 << 20) / BLOCK as u64;
/// Blocks of the disk: more than the log and the cache hold.
const DISK_BLOCKS: u64 = (12 << 20) / BLOCK as u64;

/// Writers rewrite blocks of their own until `rounds` are over and the log was filled twice;
/// readers read everywhere all the while, and judge. Answers how many reads there were.
fn crowd(disk: &Path, oracle: &DiskOracle, crowd: Crowd, rounds: u64) -> u64 {
    let (disk, over) = (Direct::open(disk), AtomicBool::new(false));
    let (written, reads) = (AtomicU64::new(0), AtomicU64::new(0));
    let own = oracle.blocks() / crowd.writers;
    let (disk, over, written, reads) = (&disk, &over, &written, &reads);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..crowd.writers)
            .map(|writer| {
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(writer + 1);
                    let mut round = 0;
                    while round < rounds || written.load(Ordering::Relaxed) < 2 * LOG_BLOCKS {
                        round += 1;
                        let count = 1 + random.u64(..crowd.write_max);
                        let first = writer * own + random.u64(..own - count);
                        if random.u64(..10) == 0 {
                            oracle.zero(disk, first..first + count);
                        } else {
                            oracle.write(disk, first..first + count);
                            written.fetch_add(count, Ordering::Relaxed);
                        }
                        // What has just landed is read at once: nothing older may come back.
                        oracle.read(disk, first..first + count);
                    }
                })
            })
            .collect();
        for reader in 0..crowd.readers {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(1000 + reader);
                while !over.load(Ordering::Relaxed) {
                    let count = 1 + random.u64(..crowd.read_max);
                    let first = random.u64(..oracle.blocks() - count);
                    oracle.read(disk, first..first + count);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        if crowd.flushes {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    disk.flush().unwrap();
                }
            });
        }
        // Ends the others also where a writer panicked.
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "a writer failed");
    });
    oracle.read_all(disk);
    reads.load(Ordering::Relaxed)
}

fn tiny(guest: &Guest) -> Server {
    let volume = format!("demo={}MiB", (DISK_BLOCKS * BLOCK as u64) >> 20);
    guest.serve(&[&TINY[..], &["--volume", &volume]].concat())
}

/// Has the crowd on a disk of its own in each mode.
fn in_each_mode(what: &'static str, wanted: Crowd) {
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        let _watchdog = Watchdog::new(what, 4 * deadline());
        let server = tiny(&guest);
        let disk = guest.attach_in(&server, "demo", mode);
        let oracle = DiskOracle::new(DISK_BLOCKS);
        let reads = crowd(&disk, &oracle, wanted, bug_rounds());
        assert!(reads > 0);
        let cold = metric(&server, "firn_store_read_bytes_total", "");
        assert!(cold > 0.0, "{mode}: nothing was ever read cold");
        guest.served_in(&server, "demo", mode);
        guest.end(server, "demo");
    }
}

#[test]
fn nothing_older_than_the_last_completed_write_of_a_block_is_ever_read() {
    in_each_mode(
        "the crowd of small writes",
        Crowd {
            writers: 3,
            readers: 3,
            write_max: 16,
            read_max: 32,
            flushes: true,
        },
    );
}

/// Its plan pins the segments that it names: the request is large, of many pieces, and while it is
/// under way everything around it is overwritten, brought to the store and reclaimed.
#[test]
fn a_planned_read_is_served_though_its_segments_are_sealed_and_reclaimed_meanwhile() {
    in_each_mode(
        "the crowd of large requests",
        Crowd {
            writers: 2,
            readers: 4,
            write_max: 128,
            read_max: 256,
            flushes: false,
        },
    );
}

/// A volume whose every block is in the store alone: a server of its own with an empty cache.
/// Each block has its generation from the oracle.
fn cold(guest: &Guest, cache: &str, oracle: &DiskOracle) -> Server {
    // A host that served a volume does not make it anew once another has deleted it.
    let first = format!("first-{cache}");
    let server = guest.world.serve(&first, &["--volume", "cold=64MiB"]);
    let mut client = server.connect("cold");
    let blocks = oracle.blocks();
    for first in (0..blocks).step_by(CHUNK as usize) {
        let blocks = first..first + CHUNK;
        oracle.write_by(blocks, |at, bytes| client.write(at, bytes).unwrap());
    }
    drop(client);
    // A server that stops brings everything to the store, and gives the volume back.
    assert!(server.stop().success());
    guest.world.serve(cache, &TINY)
}

/// Blocks of one chunk, the unit in which the store is read.
const CHUNK: u64 = (64 << 10) / BLOCK as u64;

/// Fetched bytes never land on what was written meanwhile, nor bring back what was before: a fetch
/// is of a place in a pack, not of an address.
#[test]
fn a_write_that_races_with_a_cold_read_of_its_block_always_wins() {
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        let _watchdog = Watchdog::new("the race of a cold read and a write", 4 * deadline());
        let oracle = DiskOracle::new(bug_rounds().min(512) * CHUNK);
        let server = cold(&guest, mode, &oracle);
        let disk = Direct::open(&guest.attach_in(&server, "cold", mode));
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..oracle.blocks() / CHUNK {
            let first = round * CHUNK;
            let written = first + random.u64(..CHUNK);
            let start = Barrier::new(3);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    oracle.read(&disk, first..first + CHUNK);
                });
                scope.spawn(|| {
                    start.wait();
                    oracle.read(&disk, written..written + 1);
                });
                start.wait();
                oracle.write(&disk, written..written + 1);
                oracle.read(&disk, written..written + 1);
            });
            // The write is there, and nothing else of its chunk has changed.
            oracle.read(&disk, first..first + CHUNK);
        }
        guest.served_in(&server, "cold", mode);
        let bytes = metric(&server, "firn_store_read_bytes_total", "");
        assert!(bytes > 0.0, "{mode}: nothing was read cold");
        drop(disk);
        guest.detach(&server, "cold");
        guest
            .world
            .expect_success(&server, &["volume", "delete", "cold"]);
        assert!(server.stop().success());
    }
}

/// Each request of many at once waits for bytes of its own.
#[test]
fn cold_blocks_that_are_read_at_once_do_not_get_each_others_bytes() {
    const THREADS: u64 = 8;
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        let _watchdog = Watchdog::new("cold reads at once", 4 * deadline());
        let oracle = DiskOracle::new((2 * bug_rounds()).clamp(THREADS, 512) * CHUNK);
        let server = cold(&guest, mode, &oracle);
        let open = Direct::open(&guest.attach_in(&server, "cold", mode));
        let chunks = oracle.blocks() / CHUNK;
        let (oracle, disk) = (&oracle, &open);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for chunk in (thread..chunks).step_by(THREADS as usize) {
                        // One block, then across the chunk's border, which another thread reads.
                        let first = chunk * CHUNK + chunk % CHUNK;
                        oracle.read(disk, first..first + 1);
                        let end = (first + CHUNK).min(oracle.blocks());
                        oracle.read(disk, first..end);
                    }
                });
            }
        });
        guest.served_in(&server, "cold", mode);
        drop(open);
        guest.detach(&server, "cold");
        guest
            .world
            .expect_success(&server, &["volume", "delete", "cold"]);
        assert!(server.stop().success());
    }
}

/// Others had three who waited in a circle: a FLUSH on the ring's thread, a seal that wanted all
/// writers out, and writers that queued behind the seal.
#[test]
fn flushes_seals_and_writers_of_eight_threads_never_wait_for_each_other() {
    const THREADS: u64 = 8;
    let Some(guest) = Guest::new() else { return };
    for mode in guest.modes() {
        let _watchdog = Watchdog::new("flushes, seals and writers", 2 * deadline());
        let server = tiny(&guest);
        let open = Direct::open(&guest.attach_in(&server, "demo", mode));
        let oracle = DiskOracle::new(DISK_BLOCKS);
        let own = DISK_BLOCKS / THREADS;
        let over = AtomicBool::new(false);
        let (disk, oracle, over) = (&open, &oracle, &over);
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..THREADS)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut random = fastrand::Rng::with_seed(thread + 1);
                        for round in 0..bug_rounds() {
                            let first = thread * own + random.u64(..own - 16);
                            // Two segments each time, so that nearly every write seals one.
                            oracle.write(disk, first..first + 1 + random.u64(..15));
                            if round % 2 == thread % 2 {
                                disk.flush().unwrap();
                            }
                        }
                    })
                })
                .collect();
            // And uploads and seals beside the timer's, from outside.
            let (guest, server) = (&guest, &server);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    guest.world.expect_success(server, &["sync", "demo"]);
                }
            });
            let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
            over.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(Result::is_ok), "a client failed");
        });
        oracle.read_all(disk);
        guest.served_in(&server, "demo", mode);
        drop(open);
        guest.end(server, "demo");
    }
}

/// Extents as small as they can be: every block of a request is one of its own.
#[test]
fn requests_of_more_extents_than_fit_at_once_and_of_every_mixture_read_back_right() {
    let Some(guest) = Guest::new() else { return };
    let args = [
        "--log-size",
        "8MiB",
        "--segment-size",
        "8KiB",
        "--cache-size",
        "1MiB",
        "--rpo",
        "200ms",
    ];
    for mode in guest.modes() {
        let _watchdog = Watchdog::new("requests of many extents", 2 * deadline());
        let cache = format!("small-{mode}");
        let serve = [&args[..], &["--volume", "demo=12MiB"]].concat();
        let server = guest.world.serve(&cache, &serve);
        let path = guest.attach_in(&server, "demo", mode);
        let disk = Direct::open(&path);
        let oracle = DiskOracle::new(DISK_BLOCKS);
        for round in 0..bug_rounds() / 32 + 1 {
            let base = round * 500 % (DISK_BLOCKS - 512);
            // A megabyte, of 256 extents, and a part in its middle written again.
            oracle.write(&disk, base..base + 256);
            oracle.read(&disk, base..base + 256);
            oracle.write(&disk, base + 100..base + 140);
            // Dirty, a hole in it, a hole behind it, and what was never written.
            oracle.zero(&disk, base + 50..base + 90);
            oracle.zero(&disk, base + 250..base + 300);
            oracle.read(&disk, base..base + 256);
            oracle.read(&disk, base + 200..base + 456);
            // The same from the store, where holes are holes, too; mixed with what is newer.
            guest.world.expect_success(&server, &["sync", "demo"]);
            oracle.write(&disk, base + 60..base + 61);
            oracle.read(&disk, base..base + 256);
        }
        oracle.read_all(&disk);
        guest.served_in(&server, "demo", mode);
        drop(disk);
        server.kill();
        let server = guest.world.serve(&cache, &[]);
        oracle.read_all(&Direct::open(&path));
        guest.detach(&server, "demo");
        assert!(server.stop().success());
        // And each block from the store alone, holes among them.
        let server = guest.world.serve(&format!("cold-{mode}"), &TINY);
        let disk = Direct::open(&guest.attach_in(&server, "demo", mode));
        oracle.read_all(&disk);
        drop(disk);
        guest.end(server, "demo");
    }
}

/// The check itself: what it must refuse, it refuses.
#[test]
fn an_older_write_a_mixture_and_another_block_are_told_apart() {
    let generation = |generation, block: u64| stamp::bytes(0, generation, 8 * block..8 * block + 8);
    let refused = |found: Vec<u8>| {
        let oracle = DiskOracle::new(4);
        for _ in 0..3 {
            oracle.write_by(0..4, |_, _| {});
        }
        let checking = std::panic::AssertUnwindSafe(|| {
            oracle.check(&oracle.begin_read(2..3), &found);
        });
        std::panic::catch_unwind(checking).is_err()
    };
    assert!(!refused(generation(3, 2)));
    assert!(refused(generation(2, 2)), "older");
    assert!(refused(generation(4, 2)), "never written");
    assert!(refused(generation(3, 1)), "another block's");
    assert!(refused(vec![0; BLOCK]), "zeroes");
    let mut mixed = generation(3, 2);
    mixed[BLOCK / 2..].copy_from_slice(&generation(2, 2)[BLOCK / 2..]);
    assert!(refused(mixed), "a mixture");
}
