//! `firn volume create|list|show|resize|rename|delete|forget`: one request each, printed as text or as JSON.

use std::time::Duration;

use serde_json::{Map, json};

use super::args::{ApiArgs, ListArgs, Patience, VolumeCommand};
use super::client::{Client, volume_path};
use super::lists::{ListPrinter, ListWalk};
use super::{output, similar_name, top, trash};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{
    CreateVolume, DiskInfo, ForgetRequest, RenameRequest, ResizeRequest, Volume, VolumeList,
    WaitingVolume, Watermark, Watermarks,
};
use crate::units::{ApproximateSize, Size};

/// Least time between two pictures of a volume.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// How long the command is to wait; only some can be told.
fn patience_of(command: &VolumeCommand) -> Patience {
    match command {
        VolumeCommand::Create { patience, .. } => *patience,
        _ => Patience::default(),
    }
}

pub(crate) fn volume(api: &ApiArgs, json: bool, command: &VolumeCommand) -> Result<()> {
    let client = Client::with_patience(api, patience_of(command))?;
    match command {
        VolumeCommand::Create {
            name,
            size,
            block_size,
            if_missing,
            ..
        } => {
            let asked = CreateVolume {
                name: name.clone(),
                size_bytes: size.0,
                block_size: *block_size,
            };
            let created = create(&client, &asked, *if_missing)?;
            match json {
                true => output::json(&created),
                false => output::line(&created.name),
            }
        }
        VolumeCommand::List(args) => list(&client, json, args),
        VolumeCommand::Show {
            which,
            watch,
            interval,
            count,
        } => {
            let picture = || describe_found(&client, &which.name, json);
            match watch {
                true => top::redraw(interval.0.max(INTERVAL_MIN), *count, picture),
                false => output::line(&picture()?),
            }
        }
        VolumeCommand::Resize { name, size } => {
            let body = ResizeRequest { size_bytes: size.0 };
            let path = format!("{}/resize", volume_path(name));
            let resized: Volume = client
                .post(&path, &body)
                .map_err(|failure| similar_name::suggest(&client, name, failure))?;
            match json {
                true => output::json(&resized),
                false => output::line(&format!("{name}: {}", Size(resized.size_bytes))),
            }
        }
        VolumeCommand::Rename { name, new_name } => {
            let body = RenameRequest {
                name: new_name.clone(),
            };
            let path = format!("{}/rename", volume_path(name));
            let renamed: Volume = client
                .post(&path, &body)
                .map_err(|failure| similar_name::suggest(&client, name, failure))?;
            match json {
                true => output::json(&renamed),
                false => output::line(&renamed.name),
            }
        }
        VolumeCommand::Delete(args) => trash::delete(&client, args),
        // `--gone` is required: that it is there is all that it says.
        VolumeCommand::Forget { id, gone: _ } => client.post_no_content(
            "/v1/gc/forget",
            &ForgetRequest {
                volume_id: id.clone(),
            },
        ),
    }
}

/// A volume as it is now.
fn describe_found(client: &Client, name: &str, json: bool) -> Result<String> {
    let found: Volume = client
        .get(&volume_path(name))
        .map_err(|failure| similar_name::suggest(client, name, failure))?;
    Ok(match json {
        true => output::json_text(&found),
        false => describe_volume(&found),
    })
}

fn create(client: &Client, asked: &CreateVolume, if_missing: bool) -> Result<Volume> {
    match client.post::<Volume>("/v1/volumes", asked) {
        Err(failure) if if_missing && failure.code == FailureCode::VolumeExists => {
            find_existing(client, asked)
        }
        created => created,
    }
}

/// The volume that is there already, if it is as asked.
fn find_existing(client: &Client, asked: &CreateVolume) -> Result<Volume> {
    let found: Volume = client.get(&volume_path(&asked.name))?;
    if (found.size_bytes, found.block_size) == (asked.size_bytes, asked.block_size) {
        return Ok(found);
    }
    Err(Failure::new(
        FailureCode::VolumeExists,
        format!(
            "volume {} exists with {} in blocks of {}, not {} in blocks of {}; choose another name, or \
             `firn volume resize` it",
            asked.name,
            Size(found.size_bytes),
            found.block_size,
            Size(asked.size_bytes),
            asked.block_size
        ),
    ))
}

const HEADING: [&str; 6] = [
    "NAME",
    "SIZE",
    "BLOCK",
    "STATE",
    "ATTACHED",
    "NOT STORED FOR",
];

/// Prints the volumes as they come.
fn list(client: &Client, json: bool, args: &ListArgs) -> Result<()> {
    let mut walk = ListWalk::of(client, "/v1/volumes", args);
    let mut printer = ListPrinter::new::<VolumeList>(json, &HEADING);
    let (mut waiting, mut store_error) = (Vec::new(), None);
    while let Some(mut part) = walk.next::<VolumeList>()? {
        printer.print(&part, list_rows(&part))?;
        if !printer.is_read() {
            return Ok(());
        }
        waiting.append(&mut part.waiting);
        store_error = part.store_error.or(store_error);
    }
    let mut more = Map::new();
    if json && !waiting.is_empty() {
        more.insert("waiting".to_owned(), json!(waiting));
    }
    if let Some(why) = &store_error {
        more.insert("store_error".to_owned(), json!(why));
    }
    printer.end(&walk, more)?;
    for one in waiting.iter().filter(|_| !json) {
        let since = seconds(one.since_seconds);
        output::line(&match is_left_out(one) {
            true => format!("\n{}", one.why),
            false => format!(
                "\n{} waits since {since}, and is retried: {}",
                one.name, one.why
            ),
        })?;
    }
    match store_error {
        None => Ok(()),
        Some(why) => Err(Failure::new(
            FailureCode::StoreUnavailable,
            format!("only volumes that are open here are listed: {why}"),
        )),
    }
}

fn list_rows(list: &VolumeList) -> Vec<Vec<String>> {
    let waits = |name: &str| list.waiting.iter().find(|one| one.name == name);
    let mut rows: Vec<Vec<String>> = list
        .volumes
        .iter()
        .map(|volume| {
            let unstored = volume
                .watermarks
                .as_ref()
                .map_or("-".to_owned(), |marks| seconds(marks.stored.age_seconds));
            vec![
                volume.name.clone(),
                Size(volume.size_bytes).to_string(),
                volume.block_size.to_string(),
                match waits(&volume.name) {
                    Some(one) => format!("{}, {}", volume.state.as_str(), waiting_state(one)),
                    None => volume.state.as_str().to_owned(),
                },
                attached_as(volume),
                unstored,
            ]
        })
        .collect();
    let known = |name: &str| list.volumes.iter().any(|volume| volume.name == name);
    for one in list.waiting.iter().filter(|one| !known(&one.name)) {
        let unknown = || "-".to_owned();
        let state = waiting_state(one).to_owned();
        rows.push(vec![
            one.name.clone(),
            unknown(),
            unknown(),
            state,
            unknown(),
            unknown(),
        ]);
    }
    rows
}

fn is_left_out(one: &WaitingVolume) -> bool {
    one.code == FailureCode::LeftOut.name()
}

fn waiting_state(one: &WaitingVolume) -> &'static str {
    match is_left_out(one) {
        true => "left out",
        false => "waiting",
    }
}

/// How a volume is attached, in one word.
fn attached_as(volume: &Volume) -> String {
    match (&volume.disk, &volume.nbd) {
        (Some(disk), _) => disk.device.clone(),
        (None, Some(_)) => "nbd".to_owned(),
        (None, None) => "-".to_owned(),
    }
}

fn describe_disk(disk: &DiskInfo, lines: &mut Vec<String>) {
    let mode = disk.data_mode.as_str();
    let asked = match disk.data_mode_asked {
        asked if asked == disk.data_mode => "as asked".to_owned(),
        asked => format!("asked: {}", asked.as_str()),
    };
    let access = if disk.read_only { ", read-only" } else { "" };
    lines.push(format!("disk          {} (ublk{access})", disk.device));
    lines.push(format!("data mode     {mode} ({asked})"));
    lines.push(format!(
        "queues        {} of depth {}, on {}",
        disk.queues,
        disk.depth,
        disk.threads.join(", ")
    ));
    lines.push(format!(
        "requests      {} ({} moved without a copy, {} with one, {} failed in the server)",
        disk.requests.taken, disk.requests.uncopied, disk.requests.copied, disk.requests.faults
    ));
    if !disk.part_scan {
        lines.push("partitions    not scanned".to_owned());
    }
    lines.push(match disk.park_timeout_seconds {
        Some(limit) => format!("park timeout  {}", seconds(limit)),
        None => "park timeout  none: requests wait".to_owned(),
    });
    for dropped in &disk.dropped {
        lines.push(format!("not granted   {}: {}", dropped.what, dropped.why));
    }
}

fn describe_watermarks(marks: &Watermarks, lines: &mut Vec<String>) {
    lines.push(watermark_line(
        "acknowledged",
        &marks.acknowledged,
        "survives the death of the server",
    ));
    lines.push(watermark_line(
        "flushed",
        &marks.flushed,
        "survives loss of power",
    ));
    lines.push(watermark_line(
        "stored",
        &marks.stored,
        "survives the loss of this host",
    ));
}

fn describe_volume(volume: &Volume) -> String {
    let mut lines = vec![
        format!("name          {}", volume.name),
        format!("id            {}", volume.id),
        format!(
            "size          {} ({} bytes)",
            Size(volume.size_bytes),
            volume.size_bytes
        ),
        format!("block size    {}", volume.block_size),
        format!("state         {}", volume.state.as_str()),
        format!("epoch         {}", volume.epoch),
    ];
    if let Some(holder) = &volume.holder {
        lines.push(format!("held by       {holder}"));
    }
    if let Some(marks) = &volume.watermarks {
        describe_watermarks(marks, &mut lines);
    }
    if let Some(disk) = &volume.disk {
        describe_disk(disk, &mut lines);
    }
    if let Some(nbd) = &volume.nbd {
        for uri in &nbd.uris {
            lines.push(format!("nbd           {uri}"));
        }
        lines.push(format!("nbd clients   {}", nbd.connections));
    }
    if let Some(space) = &volume.space {
        lines.push(format!(
            "in the store  {} alive, {} garbage in the same packs, {} packs to be compacted",
            ApproximateSize(space.live_bytes),
            ApproximateSize(space.garbage_bytes),
            space.candidates
        ));
    }
    if let Some(health) = &volume.health {
        let why = health.why.as_ref().map(|why| format!(": {why}"));
        lines.push(format!(
            "health        {}{}",
            health.status.as_str(),
            why.unwrap_or_default()
        ));
    }
    if let Some(why) = &volume.waiting {
        lines.push(format!("waits         {why}"));
    }
    if let Some(error) = &volume.upload_error {
        lines.push(format!("upload fails  {error}"));
    }
    if let Some(overdue) = volume.overdue_seconds {
        lines.push(format!(
            "overdue       {}: the recovery point is missed by that",
            seconds(overdue)
        ));
    }
    if let Some(count) = volume.log_snapshots {
        lines.push(format!(
            "snapshots     {count} in the log of this server alone: as durable as a FLUSH, and not in the store yet"
        ));
    }
    if let Some(bytes) = volume.damaged_bytes {
        lines.push(format!(
            "damaged       {bytes} bytes: the log could not be read; they are errors until written again"
        ));
    }
    lines.join("\n")
}

fn watermark_line(name: &str, mark: &Watermark, promise: &str) -> String {
    let waiting = if mark.age_seconds > 0.0 {
        format!("newer writes wait for {}", seconds(mark.age_seconds))
    } else {
        "nothing waits".to_owned()
    };
    format!("{name:<12}  LSN {} ({promise}; {waiting})", mark.lsn)
}

fn seconds(age: f64) -> String {
    format!("{age:.1}s")
}
