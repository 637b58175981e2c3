//! Prints what was measured: a table, or JSON with the same figures.

use serde_json::{Value, json};

use super::super::args::BenchArgs;
use super::super::output;
use super::measure::Measurement;
use crate::failure::Result;
use crate::units::Size;

pub(super) fn print(
    json: bool,
    args: &BenchArgs,
    range_bytes: u64,
    transport: &str,
    results: &[Measurement],
) -> Result<()> {
    if json {
        return output::json(&json!({
            "volume": args.volume,
            "transport": transport,
            "range_bytes": range_bytes,
            "filled": !args.as_is,
            "results": results.iter().map(in_numbers).collect::<Vec<_>>(),
        }));
    }
    let heading = [
        "PATTERN", "SIZE", "DEPTH", "OPS/s", "MiB/s", "p50", "p99", "p99.9", "MAX",
    ];
    let rows: Vec<Vec<String>> = results.iter().map(row).collect();
    output::table(&heading, &rows)
}

fn row(result: &Measurement) -> Vec<String> {
    let workload = result.workload;
    let latencies = &result.latencies;
    let at = |quantile| output::short_time(latencies.value_at_quantile(quantile) / 1000);
    vec![
        workload.name(),
        Size(workload.block_bytes).to_string(),
        workload.depth.to_string(),
        format!("{:.0}", result.requests_per_second()),
        format!("{:.1}", result.bytes_per_second() / f64::from(1 << 20)),
        at(0.5),
        at(0.99),
        at(0.999),
        output::short_time(latencies.max() / 1000),
    ]
}

fn in_numbers(result: &Measurement) -> Value {
    let latencies = &result.latencies;
    let at = |quantile| micros(latencies.value_at_quantile(quantile));
    json!({
        "pattern": result.workload.name(),
        "block_bytes": result.workload.block_bytes,
        "depth": result.workload.depth,
        "seconds": result.elapsed.as_secs_f64(),
        "requests": latencies.len(),
        "requests_per_second": result.requests_per_second(),
        "bytes_per_second": result.bytes_per_second(),
        "latency_us": {
            "mean": latencies.mean() / 1000.0,
            "p50": at(0.5),
            "p90": at(0.9),
            "p99": at(0.99),
            "p99_9": at(0.999),
            "max": micros(latencies.max()),
        },
    })
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}
