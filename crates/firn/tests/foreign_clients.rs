//! Clients that others wrote, against the real server with the real engine.
//!
//! Each part says "skipped" where its tool is not installed.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::process::{Command, Output};

use common::{Server, World, message};

/// Runs a foreign tool; `None` where it is not installed.
fn tool(world: &World, program: &str, args: &[&str]) -> Option<Output> {
    match Command::new(program)
        .args(args)
        .current_dir(world.dir.path())
        .output()
    {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: {program} is not installed");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

/// Runs a foreign tool that must succeed.
fn succeeds(world: &World, program: &str, args: &[&str]) -> Option<String> {
    let output = tool(world, program, args)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} {args:?}: {text}{}",
        message(&output)
    );
    Some(text)
}

fn serve(world: &World) -> (Server, String) {
    let server = world.serve("cache", &["--volume", "demo=96MiB", "--rpo", "500ms"]);
    let uri = world
        .done(&server, &["attach", "demo", "--transport", "nbd"])
        .trim()
        .to_owned();
    (server, uri)
}

/// Half noise, a quarter zeroes, a quarter text: what images are made of.
fn image(world: &World) {
    let mut bytes = vec![0; 48 << 20];
    fastrand::Rng::with_seed(42).fill(&mut bytes);
    bytes.resize(72 << 20, 0);
    while bytes.len() < 96 << 20 {
        bytes.extend(b"all work and no play makes a dull disk. ");
    }
    bytes.truncate(96 << 20);
    fs::write(world.path("image"), bytes).unwrap();
}

#[test]
fn nbdinfo_sees_what_is_offered() {
    let world = World::new();
    let (_server, uri) = serve(&world);
    let Some(text) = succeeds(&world, "nbdinfo", &["--json", &uri]) else {
        return;
    };
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], 96 << 20, "{text}");
    for offered in [
        "can_flush",
        "can_fua",
        "can_multi_conn",
        "can_trim",
        "can_zero",
    ] {
        assert_eq!(export[offered], true, "{offered}: {text}");
    }
}

#[test]
fn an_image_that_is_converted_onto_a_volume_compares_equal_there_and_from_the_store_alone() {
    let world = World::new();
    image(&world);
    let (server, uri) = serve(&world);
    let convert = ["convert", "-n", "-f", "raw", "-O", "raw", "image", &uri];
    if succeeds(&world, "qemu-img", &convert).is_none() {
        return;
    }
    let compare = ["compare", "-f", "raw", "-F", "raw", "image", &uri];
    succeeds(&world, "qemu-img", &compare);
    assert!(server.stop().success());
    fs::remove_dir_all(world.path("cache")).unwrap();
    let _server = world.serve("cache", &["--volume", "demo=96MiB"]);
    succeeds(&world, "qemu-img", &compare);
}

#[test]
fn what_nbdcopy_brings_it_takes_back_over_several_connections() {
    let world = World::new();
    image(&world);
    let (_server, uri) = serve(&world);
    if succeeds(
        &world,
        "nbdcopy",
        &["--connections=4", "--flush", "image", &uri],
    )
    .is_none()
    {
        return;
    }
    succeeds(&world, "nbdcopy", &["--connections=4", &uri, "copy"]);
    assert!(fs::read(world.path("image")).unwrap() == fs::read(world.path("copy")).unwrap());
}

#[test]
fn qemu_io_finds_its_patterns_around_zeroes_and_discards() {
    let world = World::new();
    let (_server, uri) = serve(&world);
    let mut args = vec!["-f", "raw"];
    for command in [
        "write -P 0x11 0 1M",
        "write -P 0x22 4608 512",
        "write -z 8192 4096",
        "discard 65536 131072",
        "write -f -P 0x33 70144 1024",
        "flush",
        "read -P 0x11 0 4608",
        "read -P 0x22 4608 512",
        "read -P 0x11 5120 3072",
        "read -P 0x00 8192 4096",
        "read -P 0x00 65536 4608",
        "read -P 0x33 70144 1024",
        "read -P 0x00 71168 125440",
        "read -P 0x11 196608 851968",
    ] {
        args.extend(["-c", command]);
    }
    args.push(&uri);
    let Some(text) = succeeds(&world, "qemu-io", &args) else {
        return;
    };
    assert!(!text.contains("failed"), "{text}");
}

#[test]
fn fio_verifies_what_it_wrote_between_trims() {
    let world = World::new();
    let (_server, uri) = serve(&world);
    let uri = format!("--uri={uri}");
    for pattern in [
        &[
            "--rw=randwrite",
            "--bsrange=512-64k",
            "--blockalign=512",
            "--io_size=64M",
            "--iodepth=32",
        ],
        &[
            "--rw=randwrite",
            "--bsrange=4M-4M",
            "--io_size=128M",
            "--iodepth=4",
            "--numjobs=1",
        ],
        &[
            "--rw=randtrimwrite",
            "--bs=4k",
            "--io_size=32M",
            "--iodepth=16",
            "--numjobs=1",
        ],
    ] {
        let mut args = vec![
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            "--size=90M",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
        ];
        args.extend(pattern);
        let Some(output) = tool(&world, "fio", &args) else {
            return;
        };
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            message(&output)
        );
        if said.contains("engine nbd not loadable") {
            println!("skipped: this fio has no NBD engine");
            return;
        }
        assert!(
            output.status.success() && !said.contains("verify failed"),
            "{said}"
        );
    }
}
