//! `firn bench` with the real binary: it measures, and leaves everything as it was.

use std::process::Stdio;

use serde_json::Value;

use crate::common::{World, eventually, message};

#[test]
fn a_bench_measures_every_pattern_and_leaves_the_volume_and_nothing_else() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=64MiB", "--rpo", "1h"]);
    let mut client = server.connect("demo");
    client.write(0, &[7; 8192]).unwrap();
    let arguments = [
        "bench",
        "demo",
        "--time",
        "100ms",
        "--range",
        "8MiB",
        "--transport",
        "nbd",
    ];
    let said = world.expect_success(&server, &[&arguments[..], &["--json"]].concat());
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["transport"], "nbd");
    assert_eq!(said["range_bytes"], 8 << 20);
    let results = said["results"].as_array().unwrap();
    let kinds: Vec<(&str, u64, u64)> = results
        .iter()
        .map(|one| {
            (
                one["pattern"].as_str().unwrap(),
                one["block_bytes"].as_u64().unwrap(),
                one["depth"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        kinds,
        [
            ("rand-read", 4096, 1),
            ("rand-read", 4096, 32),
            ("seq-read", 1 << 20, 8),
            ("rand-write", 4096, 1),
            ("rand-write", 4096, 32),
            ("durable-write", 4096, 1),
            ("seq-write", 1 << 20, 8),
        ]
    );
    for one in results {
        let latency = |name: &str| one["latency_us"][name].as_f64().unwrap();
        assert!(one["requests"].as_u64().unwrap() > 0, "{one}");
        assert!(
            latency("p50") > 0.0 && latency("p50") <= latency("p99"),
            "{one}"
        );
        assert!(latency("p99") <= latency("max"), "{one}");
    }
    assert_eq!(world.volume_names(&server), ["demo"]);
    let trash = world.expect_success(&server, &["trash", "list", "--json"]);
    let trash: Value = serde_json::from_str(&trash).unwrap();
    assert_eq!(trash["volumes"], serde_json::json!([]));
    assert_eq!(client.read(0, 8192).unwrap(), [7; 8192]);
    assert_eq!(client.read(8192, 4096).unwrap(), [0; 4096]);
    // As text, with a line for each.
    let said = world.expect_success(&server, &[&arguments[..], &["--depth", "2"]].concat());
    assert_eq!(said.lines().count(), 6, "{said}");
}

#[test]
fn a_bench_of_what_is_there_reads_the_content_and_fills_nothing() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=16MiB", "--rpo", "1h"]);
    let mut client = server.connect("demo");
    client.write(0, &[7; 8192]).unwrap();
    let log_bytes = || world.show(&server, "demo")["log_bytes"].clone();
    let before = log_bytes();
    let said = world.run(
        &server,
        &[
            "bench",
            "demo",
            "--as-is",
            "--pattern",
            "rand-read,seq-read",
            "--time",
            "50ms",
        ],
    );
    assert!(said.status.success(), "{}", message(&said));
    assert_eq!(log_bytes(), before);
    let said = world.expect_failure(&server, &["bench", "dmeo"]);
    assert!(said.contains("did you mean demo"), "{said}");
    let said = world.run(&server, &["bench", "demo", "--block-size", "64MiB"]);
    assert_eq!(said.status.code(), Some(2), "{}", message(&said));
    assert!(
        message(&said).contains("at most 32MiB"),
        "{}",
        message(&said)
    );
    let said = world.run(&server, &["bench", "demo", "--range", "1KiB"]);
    assert_eq!(said.status.code(), Some(2), "{}", message(&said));
    assert_eq!(world.volume_names(&server), ["demo"]);
}

#[test]
fn a_bench_that_is_interrupted_takes_its_fork_back() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=16MiB", "--rpo", "1h"]);
    let mut bench = world
        .command(&[
            "--api",
            &server.api,
            "bench",
            "demo",
            "--time",
            "1h",
            "--transport",
            "nbd",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the fork is written to", || {
        world.volume_names(&server).iter().any(|name| {
            let shown = name
                .starts_with("demo-bench-")
                .then(|| world.show(&server, name));
            shown.is_some_and(|fork| fork["nbd"]["connections"].as_u64() > Some(0))
        })
    });
    let pid = rustix::process::Pid::from_child(&bench);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(130));
    assert_eq!(world.volume_names(&server), ["demo"]);
}
