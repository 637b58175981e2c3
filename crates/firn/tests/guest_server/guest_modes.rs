//! The same rows in each of the four data modes, each row with a server and a disk of its own, and
//! each asserting that the mode it is about is the one that served. For guests, as
//! `guest_volume.rs` says.

use std::fs;
use std::path::Path;

use crate::common::disk_oracle::{BLOCK, Direct, DiskOracle};
use crate::common::guest::{Guest, TINY, run_tool, text};
use crate::common::watchdog::Watchdog;
use crate::common::{Server, deadline};

const MIB: u64 = 1 << 20;
/// Bytes of the disk.
const SIZE: u64 = 32 * MIB;

/// One test per row and mode.
macro_rules! each_mode {
    ($($name:ident = $mode:literal),*) => {$(
        mod $name {
            #[test]
            fn requests_of_every_kind_and_shape_do_what_they_say() {
                super::kinds_and_shapes($mode);
            }

            #[test]
            fn what_fio_wrote_verifies_at_once_after_restarts_and_without_the_cache() {
                super::fio($mode);
            }

            #[test]
            fn what_was_written_under_a_crowd_is_there_after_kill_9() {
                super::killed($mode);
            }
        }
    )*};
}

each_mode!(
    zero_copy = "zero-copy",
    user_copy = "user-copy",
    get_data = "get-data",
    copy = "copy"
);

/// A guest whose kernel has this mode.
fn guest_with(mode: &str) -> Option<Guest> {
    let guest = Guest::new()?;
    let has = guest.all_modes().contains(&mode);
    if !has {
        println!("skipped: this kernel lacks {mode}");
    }
    has.then_some(guest)
}

fn serve(guest: &Guest) -> Server {
    guest.serve(&[&TINY[..], &["--volume", "demo=32MiB"]].concat())
}

/// What the disk must hold, byte by byte.
struct Image {
    disk: Direct,
    bytes: Vec<u8>,
}

impl Image {
    fn write(&mut self, at: u64, len: usize, seed: u64) {
        let mut data = vec![0; len];
        fastrand::Rng::with_seed(seed).fill(&mut data);
        self.disk.write(at, &data).unwrap();
        self.bytes[at as usize..at as usize + len].copy_from_slice(&data);
    }

    fn zero(&mut self, at: u64, len: usize) {
        self.disk.zero(at, len as u64).unwrap();
        self.bytes[at as usize..at as usize + len].fill(0);
    }

    fn check(&self, at: u64, len: usize) {
        let found = self.disk.read(at, len).unwrap();
        let expected = &self.bytes[at as usize..at as usize + len];
        if found != expected {
            let first = found.iter().zip(expected).position(|(a, b)| a != b);
            panic!("of {len} bytes at {at} one is wrong: {first:?}");
        }
    }
}

fn kinds_and_shapes(mode: &str) {
    let Some(guest) = guest_with(mode) else {
        return;
    };
    let _watchdog = Watchdog::new("requests of every kind", 2 * deadline());
    let server = serve(&guest);
    let path = guest.attach_in(&server, "demo", mode);
    let mut image = Image {
        disk: Direct::open(&path),
        bytes: vec![0; SIZE as usize],
    };
    // From a sector to a megabyte, on blocks and beside them, each across what is there.
    for (seed, (at, len)) in [
        (0, 512),
        (4096, 4096),
        (9728, 512),
        (12_800, 7680),
        (65_024, 131_072),
        (MIB - 512, MIB as usize),
        (3 * MIB, MIB as usize),
    ]
    .into_iter()
    .enumerate()
    {
        image.write(at, len, seed as u64);
        image.check(at, len);
    }
    image.zero(3 * MIB + 4096, 8192);
    image.zero(3 * MIB + 100 * 512, 512);
    run_tool("blkdiscard", &["-o", "65536", "-l", "65536", text(&path)]);
    image.bytes[65_536..131_072].fill(0);
    image.disk.flush().unwrap();
    for at in (0..5 * MIB).step_by(MIB as usize) {
        image.check(at, MIB as usize);
    }
    Direct::durable(&path).write(8 * MIB, &[7; 8192]).unwrap();
    image.bytes[8 * MIB as usize..][..8192].fill(7);
    // Newer blocks over older ones over holes, in one read, also when the older are cold.
    guest.world.expect_success(&server, &["sync", "demo"]);
    image.write(3 * MIB + 65_536, 4096, 99);
    image.check(3 * MIB, MIB as usize);
    image.check(7 * MIB + 512_000, MIB as usize);
    guest.served_in(&server, "demo", mode);
    drop(image);
    guest.detach(&server, "demo");
    assert!(server.stop().success());
}

/// The jobs, each on a part of the disk of its own: name, pattern, block sizes, place in MiB.
const JOBS: [(&str, &str, &str, u64); 3] = [
    ("random", "randwrite", "4k", 0),
    ("sequential", "write", "256k", 8),
    ("mixed", "randrw", "4k-64k", 16),
];

fn fio_job(disk: &Path, (name, pattern, sizes, place): (&str, &str, &str, u64), more: &[&str]) {
    let sizes = match sizes.split_once('-') {
        Some(_) => sizes.to_owned(),
        None => format!("{sizes}-{sizes}"),
    };
    let args = [
        format!("--name={name}"),
        format!("--filename={}", text(disk)),
        format!("--rw={pattern}"),
        format!("--bsrange={sizes}"),
        format!("--offset={place}m"),
        "--size=8m".to_owned(),
        "--io_size=2m".to_owned(),
        "--direct=1".to_owned(),
        "--ioengine=libaio".to_owned(),
        "--iodepth=16".to_owned(),
        "--verify=crc32c".to_owned(),
        "--verify_fatal=1".to_owned(),
    ];
    let args = args.iter().map(String::as_str);
    run_tool("fio", &args.chain(more.iter().copied()).collect::<Vec<_>>());
}

/// The whole disk's bytes.
fn whole(disk: &Path) -> Vec<u8> {
    let disk = Direct::open(disk);
    let mut bytes = Vec::with_capacity(SIZE as usize);
    for at in (0..SIZE).step_by(MIB as usize) {
        bytes.extend_from_slice(&disk.read(at, MIB as usize).unwrap());
    }
    bytes
}

fn fio(mode: &str) {
    let Some(guest) = guest_with(mode) else {
        return;
    };
    let _watchdog = Watchdog::new("fio", 4 * deadline());
    let server = serve(&guest);
    let disk = guest.attach_in(&server, "demo", mode);
    for job in JOBS {
        fio_job(&disk, job, &[]);
    }
    guest.served_in(&server, "demo", mode);
    let written = whole(&disk);
    let again = |server: &Server, disk: &Path, when: &str| {
        assert!(whole(disk) == written, "{mode}: {when}");
        // The jobs whose writes do not depend on what they read can be repeated by fio itself.
        for job in &JOBS[..2] {
            fio_job(disk, *job, &["--verify_only"]);
        }
        guest.served_in(server, "demo", mode);
    };
    assert!(server.stop().success());
    let server = guest.serve(&[]);
    again(&server, &disk, "after a restart");
    server.kill();
    let server = guest.serve(&[]);
    again(&server, &disk, "after kill -9");
    guest.world.expect_success(&server, &["sync", "demo"]);
    guest.detach(&server, "demo");
    assert!(server.stop().success());
    fs::remove_dir_all(guest.world.path("cache")).unwrap();
    let server = guest.serve(&TINY);
    guest.world.take_over(&server, "demo");
    let disk = guest.attach_in(&server, "demo", mode);
    again(&server, &disk, "without the cache");
    guest.detach(&server, "demo");
    assert!(server.stop().success());
}

/// Nothing is flushed here: a completed write survives the process all the same (S1).
fn killed(mode: &str) {
    const THREADS: u64 = 4;
    let Some(guest) = guest_with(mode) else {
        return;
    };
    let _watchdog = Watchdog::new("writes and kill -9", 2 * deadline());
    let server = serve(&guest);
    let path = guest.attach_in(&server, "demo", mode);
    let disk = Direct::open(&path);
    let oracle = DiskOracle::new(SIZE / BLOCK as u64);
    let own = oracle.blocks() / THREADS;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (disk, oracle) = (&disk, &oracle);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread + 11);
                for _ in 0..16 {
                    let first = thread * own + random.u64(..own - 64);
                    oracle.write(disk, first..first + 1 + random.u64(..63));
                }
            });
        }
    });
    server.kill();
    let server = guest.serve(&[]);
    oracle.read_all(&disk);
    guest.served_in(&server, "demo", mode);
    drop(disk);
    guest.detach(&server, "demo");
    assert!(server.stop().success());
}
