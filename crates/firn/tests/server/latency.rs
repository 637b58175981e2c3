//! How long requests take: in `/v1/activity`, in `/metrics`, and in the log.

use serde_json::{Value, json};

use crate::common::{Server, World, eventually};

fn get(server: &Server, path: &str) -> String {
    server.get(path).1
}

#[test]
fn how_long_requests_take_is_shown_by_volume_operation_and_step() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB", "--volume", "idle=8MiB"]);
    let mut client = server.connect("demo");
    for block in 0..20 {
        client.write(block * 4096, &[1; 4096]).unwrap();
    }
    client.flush().unwrap();
    client.read(0, 4096).unwrap();
    let activity = || {
        let activity: Value = serde_json::from_str(&get(&server, "/v1/activity")).unwrap();
        let volumes = activity["volumes"].as_array().unwrap();
        let demo = volumes.iter().find(|one| one["name"] == "demo");
        demo.unwrap()["ops"].as_array().unwrap().clone()
    };
    // The last one may be answered before it is counted.
    eventually("the count of the read", || {
        let is_read = |one: &Value| one["op"] == "read" && one["requests"] == 1;
        activity().iter().any(is_read)
    });
    let ops = activity();
    let op = |op: &str| ops.iter().find(|one| one["op"] == op).unwrap().clone();
    assert_eq!(
        (&op("write")["requests"], &op("write")["bytes"]),
        (&json!(20), &json!(81_920))
    );
    assert_eq!(op("read")["requests"], 1);
    let counted: u64 = op("write")["latencies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|bucket| bucket["requests"].as_u64().unwrap())
        .sum();
    assert_eq!(counted, 20);
    let metrics = get(&server, "/metrics");
    for sample in [
        "firn_request_duration_seconds_count{volume=\"demo\",op=\"write\"} 20\n",
        "firn_request_duration_seconds_bucket{le=\"+Inf\",volume=\"demo\",op=\"write\"} 20\n",
        "firn_request_bytes_total{volume=\"demo\",op=\"write\"} 81920\n",
        "firn_request_step_duration_seconds_count{volume=\"demo\",op=\"flush\",step=\"flush\"} 1\n",
        // One request in 16, beginning with the first.
        "firn_request_step_duration_seconds_count{volume=\"demo\",op=\"write\",step=\"move\"} 2\n",
    ] {
        assert!(metrics.contains(sample), "{sample} in {metrics}");
    }
    assert!(!metrics.contains("firn_request_duration_seconds_count{volume=\"idle\""));
}

#[test]
fn a_slow_request_is_logged_with_the_step_that_took_the_time() {
    let world = World::new();
    let arguments = ["--volume", "demo=8MiB", "--slow-request", "0ms"];
    let server = world.serve("cache", &arguments);
    let mut client = server.connect("demo");
    for _ in 0..100 {
        client.write(0, &[2; 4096]).unwrap();
    }
    client.flush().unwrap();
    let log = || world.server_log();
    eventually("the lines in the log", || {
        log().contains("more slow requests")
    });
    let lines = log();
    let lines = lines
        .lines()
        .filter(|line| line.contains(" a slow request "));
    let lines: Vec<&str> = lines.collect();
    // However many are slow, the log gets a few lines at a time.
    assert!((1..=16).contains(&lines.len()), "{lines:?}");
    for word in ["volume=\"demo\"", "request=Write", "took_ms=", "step="] {
        assert!(lines[0].contains(word), "{word} in {}", lines[0]);
    }
}

#[test]
fn every_metric_that_an_alert_or_the_dashboard_names_is_on_the_page() {
    let world = World::new();
    let server = world.serve("cache", &["--volume", "demo=8MiB"]);
    let metrics = get(&server, "/metrics");
    let families = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    let families: Vec<&str> = families.filter_map(|line| line.split(' ').next()).collect();
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/monitoring");
    let mut named = 0;
    for file in ["alerts.yml", "dashboard.json"] {
        let text = std::fs::read_to_string(format!("{directory}/{file}")).unwrap();
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for name in words.filter(|word| word.starts_with("firn_")) {
            let suffixes = ["", "_total", "_bucket", "_sum", "_count"];
            let is_there = suffixes
                .iter()
                .filter_map(|suffix| name.strip_suffix(suffix))
                .any(|family| families.contains(&family));
            assert!(is_there, "{name} of {file} is not among {families:?}");
            named += 1;
        }
    }
    assert!(named > 20, "the files name {named} metrics");
}
