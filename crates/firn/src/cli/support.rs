//! `firn support`: what a report of a bug needs, in one document.
//!
//! It goes to other people, so it holds no secret: no token, no credential, no content of a file and
//! no environment variable. What a server answers is read from it, and what cannot be had is said.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::args::{ApiArgs, SupportArgs};
use super::client::Client;
use super::doctor;
use super::output;
use crate::failure::Result;

pub(crate) fn support(api: &ApiArgs, args: &SupportArgs) -> Result<()> {
    let mut report = Map::new();
    report.insert("firn".to_owned(), json!(env!("CARGO_PKG_VERSION")));
    report.insert("machine".to_owned(), machine());
    report.insert(
        "findings".to_owned(),
        doctor::findings_without_store(&args.cache),
    );
    report.insert("cache_dir".to_owned(), files_of(&args.cache));
    report.insert("server".to_owned(), server(api));
    output::json(&report)
}

fn machine() -> Value {
    let system = rustix::system::uname();
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    json!({
        "kernel": system.release().to_string_lossy(),
        "version": system.version().to_string_lossy(),
        "architecture": system.machine().to_string_lossy(),
        "processors": processors,
        "memory_bytes": rustix::system::sysinfo().totalram,
    })
}

/// Names and sizes alone.
fn files_of(dir: &Path) -> Value {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => return json!(format!("{}: {error}", dir.display())),
    };
    let entries = entries.filter_map(std::result::Result::ok).map(|entry| {
        let bytes = entry.metadata().map_or(0, |about| about.len());
        json!({ "name": entry.file_name().to_string_lossy(), "bytes": bytes })
    });
    json!({ "path": dir.display().to_string(), "files": entries.collect::<Vec<_>>() })
}

fn server(api: &ApiArgs) -> Value {
    let client = match Client::new(api) {
        Ok(client) => client,
        Err(failure) => return json!(failure.detail),
    };
    let mut answers = Map::new();
    for path in [
        "/readyz",
        "/v1/volumes",
        "/v1/rescue",
        "/v1/activity",
        "/metrics",
    ] {
        let answer = match client.get_text(path) {
            Ok(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
            Err(failure) => json!({ "failed": failure.detail }),
        };
        answers.insert(path.to_owned(), answer);
    }
    Value::Object(answers)
}
