//! Volumes on a local disk that returns errors, or lies, made by the device mapper below the cache
//! directory: refused writes, failed flushes, bad reads, windows of trouble, lost writes, no space.
//!
//! What is tested is that no client ever reads wrong bytes, that each fault ends where R10 says,
//! and that the server goes on and says what is wrong. Run as root in a guest.

use std::fs;
use std::io;
use std::ops::Range;
use std::time::Duration;

use crate::common::guest::{Direct, Guest, run_tool, text, tool};
use crate::common::mapped::{Fault, Faulty, MIB};
use crate::common::nbd::Client;
use crate::common::{Server, eventually, message};

const BLOCK: usize = 4096;

/// Where a log of 64 MiB has its segments: superblocks and journal come before.
const SEGMENTS: u64 = 5_251_072;

/// What the server has said so far.
/// Counts writes of the log that failed.
const LOG_WRITE_FAILURES: &str = r#"firn_io_failures_total{kind="log-write"}"#;

/// The value of a metric, by its name with its labels.
fn metric(server: &Server, name: &str) -> f64 {
    let answer = server.get("/metrics").1;
    let line = answer
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("{name} in {answer}"))
        .trim()
        .parse()
        .unwrap()
}

fn stamped(at: usize, round: u8) -> Vec<u8> {
    let mut block = vec![round; BLOCK];
    block[..8].copy_from_slice(&(at as u64).to_le_bytes());
    block
}

fn drop_caches() {
    run_tool("sync", &[]);
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}

fn is_eio(result: io::Result<impl Sized>) -> bool {
    // EIO is 5 everywhere that has ublk.
    result.err().and_then(|error| error.raw_os_error()) == Some(5)
}

/// R10: a failed payload write is retried at another place.
#[test]
fn a_write_that_the_log_disk_refuses_lands_at_another_place() {
    let Some(guest) = Guest::new() else { return };
    let Some(faulty) = Faulty::new(&guest, 128) else {
        return;
    };
    let server = guest.serve(&["--volume", "demo=64MiB"]);
    // A bad block in every 128 KiB of the log, never one that a segment begins with.
    let places = (SEGMENTS + (64 << 10)..64 * MIB - (1 << 20)).step_by(128 << 10);
    let blocks: Vec<_> = places.map(|at| (at, BLOCK as u64)).collect();
    let bad = faulty.of_parts(&guest, "log", &blocks);
    faulty.spoil(&bad, Fault::Dead);
    for (round, mode) in guest.modes().into_iter().enumerate() {
        let before = metric(&server, LOG_WRITE_FAILURES);
        let disk = Direct::open(&guest.attach_in(&server, "demo", mode));
        let round = round as u8 + 1;
        for at in 0..512 {
            disk.write((at * BLOCK) as u64, &stamped(at, round))
                .unwrap();
        }
        disk.flush().unwrap();
        for at in 0..512 {
            let found = disk.read((at * BLOCK) as u64, BLOCK).unwrap();
            assert!(found == stamped(at, round), "{mode}: block {at}");
        }
        let hits = metric(&server, LOG_WRITE_FAILURES) - before;
        assert!(hits >= 8.0, "{mode}: only {hits} writes met a bad block");
        assert_eq!(guest.world.show(&server, "demo")["state"], "open");
        drop(disk);
        guest.detach(&server, "demo");
    }
    let said = guest.world.server_log();
    let cause = said.lines().find(|line| line.contains("errno"));
    assert!(cause.is_some_and(|line| line.contains("log")), "{said}");
    assert!(server.stop().success());
}

/// R10: a failed sync poisons the log, and the mark outlives the server and the machine.
#[test]
fn a_failed_flush_of_the_log_disk_poisons_it_for_good_and_reads_go_on() {
    let Some(guest) = Guest::new() else { return };
    let Some(faulty) = Faulty::new(&guest, 128) else {
        return;
    };
    let world = &guest.world;
    let server = guest.serve(&["--volume", "demo=64MiB", "--rpo", "1h"]);
    let mode = guest.modes()[0];
    let path = guest.attach_in(&server, "demo", mode);
    let disk = Direct::open(&path);
    for at in 0..64 {
        disk.write((at * BLOCK) as u64, &stamped(at, 1)).unwrap();
    }
    disk.flush().unwrap();
    assert_eq!(metric(&server, "firn_log_poisoned"), 0.0);
    faulty.spoil_flushes();
    // Completed, and perhaps already too late; the flush must not say that it is durable.
    let newer = disk.write(0, &stamped(0, 2)).is_ok();
    assert!(disk.flush().is_err(), "nothing was made durable");
    let check = |disk: &Direct, what: &str| {
        assert!(is_eio(disk.write(4096, &stamped(1, 3))), "{what}: a write");
        assert!(is_eio(disk.flush()), "{what}: a flush");
        for at in 1..64 {
            let found = disk.read((at * BLOCK) as u64, BLOCK).unwrap();
            assert!(found == stamped(at, 1), "{what}: block {at} was flushed");
        }
        let first = disk.read(0, BLOCK).unwrap();
        assert!(
            first == stamped(0, 1) || newer && first == stamped(0, 2),
            "{what}: neither old nor new"
        );
    };
    check(&disk, "at once");
    assert_eq!(world.show(&server, "demo")["state"], "poisoned");
    assert_eq!(metric(&server, "firn_log_poisoned"), 1.0);
    assert!(
        guest.world.server_log().contains("poisoned"),
        "{}",
        guest.world.server_log()
    );
    // The disk is well again, and nothing is forgotten: not by the next server,
    faulty.heal();
    server.kill();
    let server = guest.serve(&[]);
    check(&disk, "after kill -9");
    assert_eq!(world.show(&server, "demo")["state"], "poisoned");
    assert!(guest.world.server_log().contains("volumes are read-only"));
    server.kill();
    // nor by one that finds no ring, as after a loss of power.
    let rings = tempfile::tempdir_in("/dev/shm").unwrap();
    let server = guest.serve(&["--ring-dir", text(rings.path())]);
    check(&disk, "without rings");
    assert_eq!(world.show(&server, "demo")["state"], "poisoned");
    drop(disk);
    world.expect_success(&server, &["detach", "demo", "--force"]);
    assert!(!path.exists());
    server.kill();
}

/// A read error of the log ends the request that met it, and only that.
#[test]
fn a_log_that_cannot_be_read_fails_those_reads_and_nothing_else() {
    let Some(guest) = Guest::new() else { return };
    let Some(faulty) = Faulty::new(&guest, 128) else {
        return;
    };
    let args = ["--volume", "demo=64MiB", "--volume", "other=64MiB"];
    let server = guest.serve(&args);
    let bad = faulty.of_file(&guest, "log", SEGMENTS, 64 * MIB - SEGMENTS);
    for mode in guest.modes() {
        let [disk, other] = ["demo", "other"].map(|name| {
            let path = guest.attach_in(&server, name, mode);
            Direct::open(&path)
        });
        for at in 0..32 {
            disk.write((at * BLOCK) as u64, &stamped(at, 4)).unwrap();
        }
        faulty.spoil(&bad, Fault::Flakey("error_reads"));
        for at in 0..32 {
            assert!(is_eio(disk.read((at * BLOCK) as u64, BLOCK)), "{mode} {at}");
        }
        // The same disk takes writes, another is written, flushed, and read where it is a hole.
        disk.write(0, &stamped(0, 5)).unwrap();
        disk.flush().unwrap();
        other.write(8 * MIB, &stamped(0, 6)).unwrap();
        other.flush().unwrap();
        assert_eq!(other.read(16 * MIB, BLOCK).unwrap(), vec![0; BLOCK]);
        // What cannot be read cannot be brought to the store; that is told, and tried again.
        let syncing = guest.world.run(&server, &["volume", "show", "demo"]);
        assert!(syncing.status.success(), "{}", message(&syncing));
        faulty.heal();
        assert!(disk.read(0, BLOCK).unwrap() == stamped(0, 5));
        for at in 1..32 {
            let found = disk.read((at * BLOCK) as u64, BLOCK).unwrap();
            assert!(found == stamped(at, 4), "{mode}: block {at}");
        }
        assert!(other.read(8 * MIB, BLOCK).unwrap() == stamped(0, 6));
        guest.world.expect_success(&server, &["sync", "demo"]);
        drop((disk, other));
        guest.detach(&server, "demo");
        guest.detach(&server, "other");
    }
    assert!(server.stop().success());
}

/// Bytes that are read cold here, more than the memory for fetched bytes takes.
const COLD_MIB: u64 = 176;

/// A volume that is in the store alone, opened by a server whose cache directory is on `faulty`.
fn cold(guest: &Guest) -> Server {
    let world = &guest.world;
    let size = format!("demo={COLD_MIB}MiB");
    let server = world.serve("first", &["--volume", &size, "--log-size", "64MiB"]);
    let disk = Direct::open(&guest.attach(&server, "demo", &[]));
    for mib in 0..COLD_MIB {
        disk.write(mib * MIB, &noise(mib)).unwrap();
    }
    drop(disk);
    guest.detach(&server, "demo");
    assert!(server.stop().success());
    let args = ["--log-size", "64MiB", "--cache-size", "256MiB"];
    guest.serve(&args)
}

/// A MiB that does not compress and is like no other.
fn noise(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed + 1);
    let mut bytes = vec![0; MIB as usize];
    random.fill(&mut bytes);
    bytes
}

fn read_all(disk: &Direct, what: &str) {
    for mib in 0..COLD_MIB {
        let found = disk.read(mib * MIB, MIB as usize);
        let found = found.unwrap_or_else(|error| panic!("{what}: MiB {mib}: {error}"));
        assert!(found == noise(mib), "{what}: MiB {mib} has wrong bytes");
    }
}

/// S8: what the cache disk cannot read comes from the store again.
#[test]
fn what_the_cache_disk_cannot_read_or_did_not_write_comes_from_the_store() {
    let Some(guest) = Guest::new() else { return };
    let Some(faulty) = Faulty::new(&guest, 400) else {
        return;
    };
    let server = cold(&guest);
    // The file takes its space as it is filled: here all of it must be known before.
    let file = guest.world.path("cache/cache");
    run_tool("fallocate", &["--length", "256MiB", text(&file)]);
    let cache = faulty.of_file(&guest, "cache", 0, 256 * MIB);
    let disk = Direct::open(&guest.attach(&server, "demo", &["--read-only"]));
    // The page cache takes what is kept, and the disk does not take it from there.
    faulty.spoil(&cache, Fault::Dead);
    read_all(&disk, "first, the cache disk is dead");
    drop_caches();
    faulty.heal();
    read_all(&disk, "the cache disk is back");
    drop_caches();
    read_all(&disk, "the cache disk works");
    faulty.spoil(&cache, Fault::Flakey("error_reads"));
    drop_caches();
    read_all(&disk, "the cache disk cannot be read");
    assert_eq!(guest.world.show(&server, "demo")["state"], "open");
    faulty.heal();
    drop(disk);
    guest.detach(&server, "demo");
    assert!(server.stop().success());
}

/// How long the disk is bad, and then well.
const WINDOW: Duration = Duration::from_millis(700);

/// Windows of errors on the whole of the log's data: what was acknowledged is what is read.
#[test]
fn in_windows_of_errors_no_read_ever_gives_wrong_bytes() {
    let Some(guest) = Guest::new() else { return };
    let Some(faulty) = Faulty::new(&guest, 128) else {
        return;
    };
    let server = guest.serve(&["--volume", "demo=64MiB"]);
    let bad = faulty.of_file(&guest, "log", SEGMENTS, 64 * MIB - SEGMENTS);
    let disk = Direct::open(&guest.attach_in(&server, "demo", guest.modes()[0]));
    const BLOCKS: usize = 64;
    // For each block: what it may hold. Newest last; a write that failed leaves it in doubt.
    let mut may: Vec<Vec<u8>> = vec![vec![0]; BLOCKS];
    let mut random = fastrand::Rng::with_seed(3);
    let (mut refused, mut unread, mut read, mut round) = (0, 0, 0, 0_u8);
    std::thread::scope(|scope| {
        // A thread of its own: a write may wait for a segment until the disk is well again.
        let windows = scope.spawn(|| {
            for _ in 0..6 {
                faulty.spoil(&bad, Fault::Dead);
                std::thread::sleep(WINDOW);
                faulty.heal();
                std::thread::sleep(WINDOW);
            }
        });
        while !windows.is_finished() {
            let block = random.usize(..BLOCKS);
            round = round.wrapping_add(1).max(1);
            match disk.write((block * BLOCK) as u64, &stamped(block, round)) {
                Ok(()) => may[block] = vec![round],
                Err(_) => {
                    refused += 1;
                    may[block].push(round);
                }
            }
            let block = random.usize(..BLOCKS);
            let Ok(found) = disk.read((block * BLOCK) as u64, BLOCK) else {
                unread += 1;
                continue;
            };
            read += 1;
            let right = may[block].iter().any(|&round| match round {
                0 => found == vec![0; BLOCK],
                _ => found == stamped(block, round),
            });
            assert!(right, "block {block}: {:?}", &found[..16]);
        }
    });
    println!("{read} reads were right, {unread} failed; {refused} writes were refused");
    assert!(
        refused > 0 && unread > 0 && read > 0,
        "the windows were met"
    );
    // Nothing was flushed into the bad part: the log itself is well.
    eventually("a write", || disk.write(0, &stamped(0, 9)).is_ok());
    disk.flush().unwrap();
    assert!(disk.read(0, BLOCK).unwrap() == stamped(0, 9));
    drop(disk);
    guest.detach(&server, "demo");
    assert!(server.stop().success());
}

/// Writes blocks through a server, all of one round, and has them flushed.
fn write_round(client: &mut Client, blocks: Range<usize>, round: u8) {
    for at in blocks {
        client
            .write((at * BLOCK) as u64, &stamped(at, round))
            .unwrap();
    }
    client.flush().unwrap();
}

/// S2 rests on the disk: a sync that it reports as done must be done. What a disk that lies costs
/// is what it was given since it does; all before that is there, and nothing that never was.
#[test]
fn a_power_cut_while_the_log_disk_drops_writes_costs_those_and_nothing_else() {
    let Some(guest) = Guest::new() else { return };
    let Some(faulty) = Faulty::new(&guest, 128) else {
        return;
    };
    let mode = guest.modes()[0];
    let server = guest.serve(&["--volume", "demo=64MiB", "--rpo", "1h"]);
    let disk = Direct::open(&guest.attach_in(&server, "demo", mode));
    let log = faulty.of_file(&guest, "log", 0, 64 * MIB);
    for at in 0..64 {
        disk.write((at * BLOCK) as u64, &stamped(at, 1)).unwrap();
    }
    disk.flush().unwrap();
    faulty.spoil(&log, Fault::Flakey("drop_writes"));
    for at in 0..32 {
        disk.write((at * BLOCK) as u64, &stamped(at, 2)).unwrap();
    }
    disk.flush().expect("the disk says so");
    server.kill();
    faulty.heal();
    let rings = tempfile::tempdir_in("/dev/shm").unwrap();
    let server = guest.serve(&["--ring-dir", text(rings.path())]);
    for at in 0..64 {
        let found = disk.read((at * BLOCK) as u64, BLOCK).unwrap();
        assert!(found == stamped(at, 1), "block {at}: {:?}", &found[..16]);
    }
    disk.write(0, &stamped(0, 3)).unwrap();
    disk.flush().unwrap();
    assert!(disk.read(0, BLOCK).unwrap() == stamped(0, 3));
    drop(disk);
    guest.detach(&server, "demo");
    assert!(server.stop().success());
}

/// What was acknowledged is missing between what is there: that is seen, refused, and told.
#[test]
fn a_log_disk_that_dropped_writes_for_a_while_is_found_out_and_the_store_has_the_rest() {
    let Some(guest) = Guest::new() else { return };
    let Some(faulty) = Faulty::new(&guest, 128) else {
        return;
    };
    let server = guest.serve(&["--volume", "demo=64MiB", "--rpo", "1h"]);
    let mut client = server.connect("demo");
    let log = faulty.of_file(&guest, "log", 0, 64 * MIB);
    write_round(&mut client, 0..64, 1);
    guest.world.expect_success(&server, &["sync", "demo"]);
    faulty.spoil(&log, Fault::Flakey("drop_writes"));
    write_round(&mut client, 0..32, 2);
    faulty.heal();
    write_round(&mut client, 32..64, 3);
    drop(client);
    server.kill();
    let rings = tempfile::tempdir_in("/dev/shm").unwrap();
    let rings = ["--ring-dir", text(rings.path())];
    // Twice: refusing it changes nothing.
    for _ in 0..2 {
        let said = guest.world.expect_refusal("cache", &rings);
        assert!(
            said.contains("commits that were flushed are gone"),
            "{said}"
        );
        assert!(said.contains("--take-over"), "{said}");
    }
    let server = guest.world.serve("anew", &[]);
    guest.world.take_over(&server, "demo");
    let mut client = server.connect("demo");
    for at in 0..64 {
        let found = client.read((at * BLOCK) as u64, BLOCK).unwrap();
        assert!(found == stamped(at, 1), "block {at}: {:?}", &found[..16]);
    }
    drop(client);
    assert!(server.stop().success());
}

/// A full file system below the cache directory is no reason to stop or to lie.
#[test]
fn a_full_cache_file_system_stops_neither_writes_nor_the_server() {
    let Some(guest) = Guest::new() else { return };
    let Some(_faulty) = Faulty::new(&guest, 128) else {
        return;
    };
    let world = &guest.world;
    let server = guest.serve(&["--volume", "demo=64MiB", "--volume", "b=16MiB"]);
    let mode = guest.modes()[0];
    let disk = Direct::open(&guest.attach_in(&server, "demo", mode));
    let filler = format!("of={}", text(&world.path("disk/filler")));
    let full = tool("dd", &["if=/dev/zero", &filler, "bs=64k"]);
    assert!(message(&full).contains("No space"), "{}", message(&full));
    // Twice what the log takes: segments are used again, and uploaded in between.
    for round in 0..2_u8 {
        for mib in 0..48 {
            disk.write(mib * MIB, &vec![round + 1; MIB as usize])
                .unwrap();
        }
        disk.flush().unwrap();
    }
    for mib in 0..48 {
        assert!(disk.read(mib * MIB, MIB as usize).unwrap() == vec![2; MIB as usize]);
    }
    // What needs a new block may be refused, by a name for it, and leaves nothing half done.
    let attach = world.run(&server, &["attach", "b", "--transport", "ublk"]);
    if !attach.status.success() {
        let why = message(&attach);
        assert!(why.contains("No space") || why.contains("space"), "{why}");
        assert!(world.show(&server, "b")["disk"].is_null());
    }
    fs::remove_file(world.path("disk/filler")).unwrap();
    guest.attach(&server, "b", &[]);
    guest.detach(&server, "b");
    drop(disk);
    guest.detach(&server, "demo");
    assert!(server.stop().success());
}

/// A disk that answers nothing says nothing: somebody else must.
#[test]
fn a_cache_disk_that_hangs_is_said() {
    struct Frozen(std::path::PathBuf);
    impl Drop for Frozen {
        fn drop(&mut self) {
            tool("fsfreeze", &["--unfreeze", text(&self.0)]);
        }
    }
    let Some(guest) = Guest::new() else { return };
    let Some(_faulty) = Faulty::new(&guest, 128) else {
        return;
    };
    let server = guest.serve(&["--volume", "demo=16MiB", "--rpo", "1h"]);
    let readiness = || server.get("/readyz");
    assert_eq!(readiness().0, 200);
    let frozen = Frozen(guest.world.path("disk"));
    run_tool("fsfreeze", &["--freeze", text(&frozen.0)]);
    eventually("the word of it", || {
        let (status, said) = readiness();
        status == 503 && said.contains("cache disk: a write has not completed")
    });
    drop(frozen);
    eventually("the return", || readiness().0 == 200);
    server.connect("demo").write(0, &[1; 4096]).unwrap();
    assert!(server.stop().success());
}
