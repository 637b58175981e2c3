//! `firn snapshot create|list|restore|delete`: one request each, printed as text or as JSON.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Map;

use super::args::{ApiArgs, ListArgs, SnapshotCommand};
use super::client::{Client, volume_path};
use super::lists::{ListPrinter, ListWalk};
use super::{output, similar_name};
use crate::failure::Result;
use crate::model::{
    CreateSnapshot, CreateSnapshotGroup, Restored, Snapshot, SnapshotList, SnapshotWait,
};
use crate::units::Size;

pub(crate) fn snapshot(api: &ApiArgs, json: bool, command: &SnapshotCommand) -> Result<()> {
    let client = Client::new(api)?;
    match command {
        SnapshotCommand::Create {
            names,
            labels,
            wait,
        } => {
            let labels = labels.iter().cloned().collect();
            match names.as_slice() {
                [name] => create(&client, json, name, labels, *wait),
                names => create_group(&client, json, names, labels, *wait),
            }
        }
        SnapshotCommand::List { volume, list: args } => list(&client, json, volume, args),
        SnapshotCommand::Restore { name } => {
            let (volume, snapshot) = split(name);
            let path = format!("{}/snapshots/{snapshot}/restore", volume_path(volume));
            let restored: Restored = client
                .post(&path, &serde_json::json!({}))
                .map_err(|failure| similar_name::suggest(&client, volume, failure))?;
            match json {
                true => output::json(&restored),
                false => output::line(&restored.kept),
            }
        }
        SnapshotCommand::Delete { name } => {
            let (volume, snapshot) = split(name);
            let path = format!("{}/snapshots/{snapshot}", volume_path(volume));
            client
                .delete(&path)
                .map_err(|failure| similar_name::suggest(&client, volume, failure))
        }
    }
}

fn create(
    client: &Client,
    json: bool,
    name: &str,
    labels: BTreeMap<String, String>,
    wait: SnapshotWait,
) -> Result<()> {
    let (volume, snapshot) = split(name);
    let asked = CreateSnapshot {
        name: snapshot.to_owned(),
        labels,
        wait,
        copied_unix_ms: None,
    };
    let path = format!("{}/snapshots", volume_path(volume));
    let created: Snapshot = client
        .post(&path, &asked)
        .map_err(|failure| similar_name::suggest(client, volume, failure))?;
    match json {
        true => output::json(&created),
        false => output::line(&created.name),
    }
}

/// Of several volumes at one moment.
fn create_group(
    client: &Client,
    json: bool,
    names: &[String],
    labels: BTreeMap<String, String>,
    wait: SnapshotWait,
) -> Result<()> {
    let asked = CreateSnapshotGroup {
        names: names.to_vec(),
        labels,
        wait,
    };
    let created: SnapshotList = client.post("/v1/snapshots", &asked)?;
    match json {
        true => output::json(&created),
        false => created
            .snapshots
            .iter()
            .try_for_each(|snapshot| output::line(&snapshot.name)),
    }
}

/// The command line took no other name.
fn split(name: &str) -> (&str, &str) {
    name.split_once('@').unwrap_or((name, ""))
}

/// How long ago that was.
fn age_of(unix_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_s = now.map_or(0, |now| now.as_secs());
    let age_s = now_s.saturating_sub(unix_ms / 1000);
    output::rounded_time(age_s)
}

const HEADING: [&str; 7] = [
    "SNAPSHOT", "SIZE", "LSN", "AGE", "STORED", "ATTACHED", "LABELS",
];

/// Prints the snapshots as they come.
fn list(client: &Client, json: bool, volume: &str, args: &ListArgs) -> Result<()> {
    let path = format!("{}/snapshots", volume_path(volume));
    let mut args = args.clone();
    if let Some(after) = args.after.as_mut().filter(|after| !after.contains('@')) {
        *after = format!("{volume}@{after}");
    }
    let mut walk = ListWalk::of(client, path, &args);
    let mut printer = ListPrinter::new::<SnapshotList>(json, &HEADING);
    loop {
        let part = walk.next::<SnapshotList>();
        let part = part.map_err(|failure| similar_name::suggest(client, volume, failure))?;
        let Some(part) = part else {
            return printer.end(&walk, Map::new());
        };
        printer.print(&part, part.snapshots.iter().map(row).collect())?;
        if !printer.is_read() {
            return Ok(());
        }
    }
}

fn row(snapshot: &Snapshot) -> Vec<String> {
    let labels = snapshot.labels.iter();
    let labels: Vec<String> = labels
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    vec![
        snapshot.name.clone(),
        Size(snapshot.size_bytes).to_string(),
        snapshot.lsn.to_string(),
        age_of(snapshot.taken_unix_ms),
        if snapshot.stored { "yes" } else { "not yet" }.to_owned(),
        snapshot.attached.clone().unwrap_or_default(),
        labels.join(" "),
    ]
}
