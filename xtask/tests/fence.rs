//! The fence of the sans-IO crates holds: what their `clippy.toml` forbids is denied when it is planted.
//!
//! A crate with a `clippy.toml` of its own has left the workspace's. A lint whose path no longer resolves,
//! or a file that clippy does not find, would forbid nothing and say nothing: so each such file is put
//! beside a tiny crate that breaks it, and clippy must name every breach.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A breach: the path that a `clippy.toml` may list, and a function that uses it.
struct Plant {
    path: &'static str,
    code: &'static str,
}

/// One of each sort: clocks, sleeps, threads, files, sockets, waits and randomness.
const PLANTS: [Plant; 13] = [
    plant(
        "std::time::Instant::now",
        "pub fn p() { let _ = std::time::Instant::now(); }",
    ),
    plant(
        "std::time::SystemTime::now",
        "pub fn p() { let _ = std::time::SystemTime::now(); }",
    ),
    plant(
        "std::thread::sleep",
        "pub fn p() { std::thread::sleep(std::time::Duration::ZERO); }",
    ),
    plant(
        "std::thread::spawn",
        "pub fn p() { std::thread::spawn(|| {}); }",
    ),
    plant("std::thread::park", "pub fn p() { std::thread::park(); }"),
    plant(
        "std::fs::read",
        "pub fn p() { let _ = std::fs::read(\"x\"); }",
    ),
    plant(
        "std::fs::write",
        "pub fn p() { let _ = std::fs::write(\"x\", \"y\"); }",
    ),
    plant(
        "std::sync::mpsc::Receiver::recv",
        "pub fn p(r: &std::sync::mpsc::Receiver<u8>) { let _ = r.recv(); }",
    ),
    plant("std::fs::File", "pub fn p(_: std::fs::File) {}"),
    plant("std::net::TcpStream", "pub fn p(_: std::net::TcpStream) {}"),
    plant("std::net::UdpSocket", "pub fn p(_: std::net::UdpSocket) {}"),
    plant("std::sync::Condvar", "pub fn p(_: std::sync::Condvar) {}"),
    plant(
        "std::hash::RandomState",
        "pub fn p(_: std::hash::RandomState) {}",
    ),
];

/// What every fence forbids, whatever else it does.
const ALWAYS: [&str; 3] = [
    "std::time::Instant::now",
    "std::time::SystemTime::now",
    "std::thread::sleep",
];

const fn plant(path: &'static str, code: &'static str) -> Plant {
    Plant { path, code }
}

/// Has a file for another reason, which the file says: it may do all that the others may not.
const OF_ANOTHER_KIND: &str = "firn";

fn fenced_crates() -> Vec<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let folders = fs::read_dir(crates).unwrap().map(|entry| entry.unwrap());
    let mut fenced: Vec<PathBuf> = folders
        .map(|folder| folder.path())
        .filter(|folder| folder.join("clippy.toml").exists())
        .filter(|folder| !folder.ends_with(OF_ANOTHER_KIND))
        .collect();
    fenced.sort();
    fenced
}

/// The paths that a `clippy.toml` lists, of methods and of types.
fn listed_paths(clippy_toml: &str) -> Vec<String> {
    let table: toml::Table = clippy_toml.parse().unwrap();
    let lists = ["disallowed-methods", "disallowed-types"].map(|key| table.get(key));
    let entries = lists.into_iter().flatten().flat_map(|list| list.as_array());
    let path_of = |entry: &toml::Value| {
        let reason = entry.get("reason").and_then(toml::Value::as_str);
        assert!(reason.is_some(), "an entry without a reason: {entry:?}");
        entry.get("path").unwrap().as_str().unwrap().to_owned()
    };
    entries.flatten().map(path_of).collect()
}

/// What clippy says of a crate with these sources under this `clippy.toml`.
fn clippy_says(name: &str, clippy_toml: &str, source: &str) -> String {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fence-{name}"));
    fs::create_dir_all(root.join("src")).unwrap();
    let manifest =
        "[package]\nname = \"planted\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n";
    fs::write(root.join("Cargo.toml"), manifest).unwrap();
    fs::write(root.join("clippy.toml"), clippy_toml).unwrap();
    fs::write(root.join("src/lib.rs"), source).unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["clippy", "--offline", "--quiet", "--target-dir"])
        .arg(root.join("target"))
        .current_dir(&root)
        .env_remove("RUSTFLAGS")
        .env_remove("CLIPPY_CONF_DIR")
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_a_sans_io_crate_must_not_use_is_denied_when_it_is_planted() {
    let crates = fenced_crates();
    assert!(!crates.is_empty(), "no crate has a fence");
    for folder in crates {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let clippy_toml = fs::read_to_string(folder.join("clippy.toml")).unwrap();
        let listed = listed_paths(&clippy_toml);
        for path in ALWAYS {
            assert!(listed.iter().any(|other| other == path), "{name}: {path}");
        }
        let planted: Vec<&Plant> = PLANTS
            .iter()
            .filter(|plant| listed.iter().any(|path| path == plant.path))
            .collect();
        let mut source =
            "#![warn(clippy::disallowed_methods, clippy::disallowed_types)]\n".to_owned();
        for (number, plant) in planted.iter().enumerate() {
            source += &format!("pub mod m{number} {{ {} }}\n", plant.code);
        }
        let said = clippy_says(&name, &clippy_toml, &source);
        for plant in planted {
            let method = format!("use of a disallowed method `{}`", plant.path);
            let kind = format!("use of a disallowed type `{}`", plant.path);
            assert!(
                said.contains(&method) || said.contains(&kind),
                "{name}: `{}` was planted and is not denied:\n{said}",
                plant.path
            );
        }
        // Clippy's word for a path in its file that names nothing.
        assert!(!said.contains("does not refer to"), "{name}:\n{said}");
    }
}

#[test]
fn a_loop_over_a_hash_table_is_denied_where_one_seed_decides_a_run() {
    for folder in fenced_crates() {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let lib = fs::read_to_string(folder.join("src/lib.rs")).unwrap();
        let is_denial = |line: &&str| {
            line.starts_with("#![deny(") && line.contains("clippy::iter_over_hash_type")
        };
        let denial = lib.lines().find(is_denial);
        let denial = denial.unwrap_or_else(|| panic!("{name} does not deny iter_over_hash_type"));
        let planted = "pub fn p(s: &std::collections::HashSet<u8>) -> u8 {\n    \
                       let mut last = 0;\n    for i in s { last = *i; }\n    last\n}\n";
        let said = clippy_says(&format!("hash-{name}"), "", &format!("{denial}\n{planted}"));
        assert!(
            said.contains("iteration over unordered hash-based type"),
            "{name}:\n{said}"
        );
    }
}
