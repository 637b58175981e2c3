//! Clients that others wrote, against this server on both drivers. What is not installed is told
//! as skipped; under CI=true it is a failure.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use reactor::DioAlign;
use serve::testing::Faults;

use crate::support::{Engine, Setup, World, backends};

const TOOL_DEADLINE: Duration = Duration::from_secs(60);

/// Whether all these programs are here.
fn has_tools(tools: &[&str]) -> bool {
    for tool in tools {
        let found = std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()));
        if !found {
            assert!(
                std::env::var("CI").as_deref() != Ok("true"),
                "{tool} is not installed"
            );
            println!("skipped: {tool} is not installed");
            return false;
        }
    }
    true
}

/// Runs a program to its end, but not beyond the deadline, and expects success.
fn run(program: &str, args: &[&str], dir: &Path) -> Output {
    let log = |name: &str| std::fs::File::create(dir.join(name)).unwrap();
    let mut child = Command::new(program)
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(log("stdout"))
        .stderr(log("stderr"))
        .spawn()
        .unwrap();
    let until = Instant::now() + TOOL_DEADLINE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() > until {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = |name: &str| std::fs::read(dir.join(name)).unwrap();
    let (stdout, stderr) = (text("stdout"), text("stderr"));
    let told = format!(
        "{program} {args:?}\n{}\n{}",
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr)
    );
    let status = status.unwrap_or_else(|| panic!("not in time: {told}"));
    assert!(status.success(), "{told}");
    Output {
        status,
        stdout,
        stderr,
    }
}

fn unix_uri(world: &World) -> String {
    format!("nbd+unix:///disk?socket={}", world.unix.display())
}

fn tcp_uri(world: &World) -> String {
    format!("nbd://{}/disk", world.tcp)
}

/// A file of `bytes` bytes with data, zeroes and a hole at its end.
fn image(dir: &Path, bytes: usize) -> PathBuf {
    let path = dir.join("image");
    let mut content = vec![0_u8; bytes / 2];
    let mut random = fastrand::Rng::with_seed(1);
    for (at, chunk) in content.chunks_mut(8).enumerate() {
        if (at / 1500) % 3 != 1 {
            random.fill(chunk);
        }
    }
    std::fs::write(&path, &content).unwrap();
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(bytes as u64)
        .unwrap();
    path
}

/// A world per driver, calm and with an engine that parks, delays and cuts into pieces.
fn worlds(bytes: u64) -> impl Iterator<Item = (World, Option<Engine>)> {
    let faults = Faults {
        park_space: 11,
        park_fetch: 7,
        fail_move: 13,
        slow_sync: true,
        piece_sectors: 37,
        ..Faults::NONE
    };
    backends().into_iter().flat_map(move |kind| {
        [false, true].map(|hard| {
            let setup = Setup {
                bytes,
                ..Setup::new(kind)
            };
            if !hard {
                return (World::new(setup), None);
            }
            let align = DioAlign {
                memory: 512,
                offset: 4096,
            };
            let world = World::new(Setup {
                faults,
                align,
                ..setup
            });
            let engine = Engine::start(&world.disk);
            (world, Some(engine))
        })
    })
}

#[test]
fn nbdinfo_sees_size_flags_and_block_sizes() {
    if !has_tools(&["nbdinfo"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (world, _engine) in worlds(8 << 20) {
        for uri in [unix_uri(&world), tcp_uri(&world)] {
            let told = run("nbdinfo", &["--json", &uri], dir.path()).stdout;
            let told = String::from_utf8(told).unwrap();
            for fact in [
                "\"protocol\": \"newstyle-fixed\"",
                "\"export-name\": \"disk\"",
                "\"description\": \"a disk in memory\"",
                "\"export-size\": 8388608",
                "\"is_read_only\": false",
                "\"can_multi_conn\": true",
                "\"can_flush\": true",
                "\"can_fua\": true",
                "\"can_trim\": true",
                "\"can_zero\": true",
                "\"can_fast_zero\": true",
                "\"can_cache\": true",
                "\"can_df\": true",
                "\"base:allocation\"",
                "\"firn:dirty\"",
                "\"block_size_minimum\": 512",
                "\"block_size_preferred\": 4096",
                "\"block_size_maximum\": 33554432",
            ] {
                assert!(told.contains(fact), "no {fact} in {told}");
            }
        }
        let server = format!("nbd+unix:///?socket={}", world.unix.display());
        let listed = run("nbdinfo", &["--list", "--json", &server], dir.path()).stdout;
        assert!(
            String::from_utf8(listed)
                .unwrap()
                .contains("\"export-name\": \"disk\"")
        );
    }
}

#[test]
fn nbdcopy_brings_an_image_in_and_out_over_several_connections() {
    if !has_tools(&["nbdcopy", "nbdinfo"]) {
        return;
    }
    for (world, engine) in worlds(24 << 20) {
        let dir = tempfile::tempdir().unwrap();
        let image = image(dir.path(), 24 << 20);
        let (image, uri) = (image.to_str().unwrap(), unix_uri(&world));
        for options in [&["--connections=4", "--flush"][..], &["--synchronous"]] {
            let to = [options, &[image, &uri]].concat();
            run("nbdcopy", &to, dir.path());
            let tcp = tcp_uri(&world);
            let from = [options, &[&tcp, "back"]].concat();
            run("nbdcopy", &from, dir.path());
            let back = std::fs::read(dir.path().join("back")).unwrap();
            assert!(back == std::fs::read(image).unwrap(), "the copy differs");
            std::fs::remove_file(dir.path().join("back")).unwrap();
        }
        drop(engine);
        world.assert_nothing_left();
    }
}

#[test]
fn qemu_img_converts_and_finds_no_difference() {
    if !has_tools(&["qemu-img"]) {
        return;
    }
    for (world, engine) in worlds(16 << 20) {
        let dir = tempfile::tempdir().unwrap();
        let image = image(dir.path(), 16 << 20);
        let (image, uri) = (image.to_str().unwrap(), unix_uri(&world));
        let convert = [
            "convert", "-n", "-W", "-m", "8", "-f", "raw", "-O", "raw", image, &uri,
        ];
        run("qemu-img", &convert, dir.path());
        let compare = ["compare", "-f", "raw", "-F", "raw", image, &tcp_uri(&world)];
        run("qemu-img", &compare, dir.path());
        drop(engine);
        world.assert_nothing_left();
    }
}

#[test]
fn qemu_io_writes_reads_zeroes_discards_and_flushes() {
    if !has_tools(&["qemu-io"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (world, engine) in worlds(16 << 20) {
        let commands = [
            "write -P 0xab 0 1M",
            "read -P 0xab 0 1M",
            "write -f -P 0x11 512 512",
            "read -P 0xab 0 512",
            "read -P 0x11 512 512",
            "read -P 0xab 1k 512",
            "write -z 64k 64k",
            "read -P 0 64k 64k",
            "write -z -u -f 256k 4k",
            "read -P 0 256k 4k",
            "discard 512k 128k",
            "read -P 0 512k 128k",
            "aio_write -P 0x21 2M 4M",
            "aio_write -P 0x22 6M 4M",
            "aio_flush",
            "read -P 0x21 2M 4M",
            "read -P 0x22 6M 4M",
            "flush",
            "read -P 0xab 640k 384k",
        ];
        let mut args = vec!["-f", "raw", "-t", "none"];
        commands
            .iter()
            .for_each(|command| args.extend(["-c", command]));
        let uri = unix_uri(&world);
        args.push(&uri);
        let told = String::from_utf8(run("qemu-io", &args, dir.path()).stdout).unwrap();
        assert!(!told.contains("failed"), "{told}");
        drop(engine);
        world.assert_nothing_left();
    }
}

#[test]
fn fio_verifies_512_bytes_to_4_mib_with_trims_over_several_connections() {
    if !has_tools(&["fio"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let engines = run("fio", &["--enghelp"], dir.path()).stdout;
    if !String::from_utf8(engines).unwrap().contains("nbd") {
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "fio has no NBD engine"
        );
        return println!("skipped: fio has no NBD engine");
    }
    for (world, engine) in worlds(64 << 20) {
        let uri = format!("--uri={}", unix_uri(&world));
        let common = [
            "--name=job",
            "--ioengine=nbd",
            &uri,
            "--thread",
            "--numjobs=4",
            "--size=16m",
            "--offset_increment=16m",
            "--iodepth=16",
            "--randseed=7",
        ];
        let verify = ["--verify=crc32c", "--verify_fatal=1", "--do_verify=1"];
        let mixed = [
            "--rw=randrw",
            "--bsrange=512-4m",
            "--bs_unaligned=0",
            "--fsync=16",
        ];
        run("fio", &[&common[..], &verify, &mixed].concat(), dir.path());
        let small = ["--rw=randwrite", "--bs=512", "--io_size=1m", "--fsync=32"];
        run("fio", &[&common[..], &verify, &small].concat(), dir.path());
        let trims = ["--rw=randtrim", "--bsrange=4k-256k", "--io_size=4m"];
        run("fio", &[&common[..], &trims].concat(), dir.path());
        drop(engine);
        world.assert_nothing_left();
    }
}
