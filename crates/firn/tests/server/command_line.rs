//! What people type wrongly, before any server is involved: the real binary, its exit status and
//! its message.

use std::path::Path;
use std::process::{Command, Output};

fn firn(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_firn"))
        .current_dir(dir)
        .env_remove("FIRN_API")
        .args(args)
        .output()
        .unwrap()
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_command_line_that_makes_no_sense_exits_2_and_touches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for (args, says) in [
        (&[][..], "Usage"),
        (&["mount"][..], "mount"),
        (&["volume", "create", "x"][..], "--size"),
        (
            &["volume", "create", "x", "--size", "10GB"][..],
            "ambiguous unit",
        ),
        (&["volume", "create", "x", "--size", "10"][..], "10GiB"),
        (
            &[
                "volume",
                "create",
                "x",
                "--size",
                "1GiB",
                "--block-size",
                "1024",
            ][..],
            "512 or 4096",
        ),
        (
            &["volume", "create", "ü", "--size", "1GiB"][..],
            "not a volume name",
        ),
        (
            &["volume", "create", "x", "--size", "1000B"][..],
            "multiple of 4096",
        ),
        (&["volume", "create", "x", "--size", "65TiB"][..], "64 TiB"),
        (&["volume", "resize", "x", "0B"][..], "above zero"),
        (&["volume", "show", ""][..], "not a volume name"),
        (&["volume", "delete", ""][..], "not a volume name"),
        (&["sync", "a b"][..], "not a volume name"),
        (&["detach", "a/b"][..], "not a volume name"),
        (&["fork", "demo", "bad name"][..], "not a volume name"),
        (&["snapshot", "list", "bad name"][..], "not a volume name"),
        (&["volume", "list", "--api", "foo"][..], "unix:PATH"),
        (&["serve", "--volume", "demo"][..], "NAME=SIZE"),
        (&["serve", "--volume", "demo=-1GiB"][..], "10GiB"),
        (
            &["serve", "--volume", "a=1GiB", "--volume", "a=2GiB"][..],
            "given twice",
        ),
        (&["serve", "--rpo", "soon"][..], "30s"),
        (&["serve", "--rpo", "0s"][..], "more than nothing"),
        (&["serve", "--log-io", "fast"][..], "auto"),
        (&["serve", "--nbd", "unix:"][..], "unix:PATH"),
        (&["serve", "--nbd", "here"][..], "ADDRESS:PORT"),
        (&["serve", "--api", "here"][..], "IP:PORT"),
        (&["serve", "--config", "missing.toml"][..], "missing.toml"),
        (&["attach", "x", "--transport", "iscsi"][..], "ublk"),
        (&["attach", "x", "--data-mode", "fast"][..], "zero-copy"),
        (&["attach", "x", "--queues", "0"][..], "1 to 4096"),
        (&["attach", "x", "--depth", "4097"][..], "1 to 4096"),
        (&["attach", "x", "--depth", "70000"][..], "--depth"),
        (&["attach", "x", "--park-timeout", "0s"][..], "`wait`"),
        (&["attach", "x", "--park-timeout", "soon"][..], "30s"),
        (
            &["attach", "x", "--transport", "nbd", "--read-only"][..],
            "means nothing over nbd",
        ),
    ] {
        let output = firn(dir.path(), args);
        let text = message(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(says), "{args:?}: {text}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn help_shows_examples_for_every_command_that_needs_them() {
    let dir = tempfile::tempdir().unwrap();
    for (args, says) in [
        (&["--help"][..], "firn serve --volume demo=10GiB"),
        (&["serve", "--help"][..], "log-size"),
        (&["attach", "--help"][..], "nbdinfo"),
        (&["attach", "--help"][..], "--transport ublk"),
    ] {
        let output = firn(dir.path(), args);
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(says), "{args:?}: {text}");
    }
}

#[test]
fn a_command_without_its_server_exits_1_and_says_how_to_start_one() {
    let dir = tempfile::tempdir().unwrap();
    for command in [
        &["volume", "list"][..],
        &["sync", "x"][..],
        &["attach", "x"][..],
        &["detach", "x"][..],
    ] {
        // Nothing listens on the port of the discard service's neighbour.
        let mut args = vec!["--api", "127.0.0.1:2"];
        args.extend(command);
        let output = firn(dir.path(), &args);
        let text = message(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.contains("127.0.0.1:2") && text.contains("firn serve"),
            "{text}"
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn doctor_looks_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let output = firn(dir.path(), &["--json", "doctor"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    let what: Vec<&str> = found["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["what"].as_str().unwrap())
        .collect();
    for expected in [
        "kernel",
        "io_uring",
        "log I/O",
        "index rings",
        "store",
        "ublk",
        "transport",
    ] {
        assert!(what.contains(&expected), "{expected} in {what:?}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn doctor_makes_no_store_of_the_empty_directory_below_a_missing_mount() {
    let dir = tempfile::tempdir().unwrap();
    let output = firn(dir.path(), &["doctor", "--store", "."]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("no store yet"), "{text}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn doctor_calls_a_store_that_serve_would_refuse_bad() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("thesis.tex"), "x").unwrap();
    let output = firn(dir.path(), &["doctor", "--store", "."]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("BAD") && text.contains("thesis.tex"),
        "{text}"
    );
}

#[test]
fn a_checked_file_is_json_where_json_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("firn.toml"), "rpo = \"5s\"\n").unwrap();
    let output = firn(dir.path(), &["config", "check", "firn.toml", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        found,
        serde_json::json!({ "file": "firn.toml", "ok": true })
    );
}
