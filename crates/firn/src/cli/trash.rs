//! `firn trash list|restore|empty`, and `firn volume delete`, which moves a volume there.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Map;

use super::args::{ApiArgs, DeleteArgs, ListArgs, TrashCommand};
use super::client::{Client, volume_path};
use super::lists::{ListPrinter, ListWalk};
use super::{output, similar_name};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{RestoreTrashed, TrashList, TrashedVolume, Volume};
use crate::units::Size;

pub(crate) fn trash(api: &ApiArgs, json: bool, command: &TrashCommand) -> Result<()> {
    let client = Client::new(api)?;
    match command {
        TrashCommand::List(args) => list(&client, json, args),
        TrashCommand::Restore { which, name } => {
            let asked = RestoreTrashed { name: name.clone() };
            let path = format!("{}/restore", trash_path(which));
            let restored: Volume = client.post(&path, &asked)?;
            match json {
                true => output::json(&restored),
                false => output::line(&restored.name),
            }
        }
        TrashCommand::Empty { which: Some(which) } => client.delete(&trash_path(which)),
        TrashCommand::Empty { which: None } => {
            let mut walk = ListWalk::new(&client, "/v1/trash");
            while let Some(list) = walk.next::<TrashList>()? {
                for volume in list.volumes {
                    match client.delete(&trash_path(&volume.id)) {
                        // Another was quicker.
                        Err(failure) if failure.code == FailureCode::NoSuchVolume => {}
                        emptied => emptied?,
                    }
                }
            }
            Ok(())
        }
    }
}

fn trash_path(which: &str) -> String {
    volume_path(which).replacen("/v1/volumes/", "/v1/trash/", 1)
}

/// Moves a volume to the trash, or deletes it for good.
pub(super) fn delete(client: &Client, args: &DeleteArgs) -> Result<()> {
    let name = &args.name;
    let is_for_good = args.is_for_good()?;
    let path = match is_for_good {
        true => for_good(name),
        false => volume_path(name),
    };
    client
        .delete(&path)
        .map_err(|failure| similar_name::suggest(client, name, failure))?;
    if !is_for_good {
        eprintln!(
            "firn: {name} is in the trash with its snapshots: `firn trash list` says for how long, \
             `firn trash restore {name}` brings it back"
        );
    }
    Ok(())
}

/// The path by which what a command made for itself is deleted: it is nobody's to have back.
pub(super) fn for_good(name: &str) -> String {
    format!("{}?now=true", volume_path(name))
}

impl DeleteArgs {
    fn is_for_good(&self) -> Result<bool> {
        let is_sure = self.yes || self.again.as_deref() == Some(&*self.name);
        match (self.now, is_sure) {
            (false, _) if self.again.is_some() => Err(Failure::invalid(
                "a name is said twice for a deletion with --now; leave the second one out",
            )
            .into_usage()),
            (false, _) => Ok(false),
            (true, true) => Ok(true),
            (true, false) => Err(Failure::invalid(format!(
                "--now deletes {name} for good: say its name twice, `firn volume delete {name} {name} --now`, or --yes",
                name = self.name
            ))
            .into_usage()),
        }
    }
}

/// How long it is until then, in its largest unit.
fn time_left(until_unix_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_s = now.map_or(0, |now| now.as_secs());
    match (until_unix_ms / 1000).saturating_sub(now_s) {
        0 => "until the next pass of gc".to_owned(),
        left => output::rounded_time(left),
    }
}

const HEADING: [&str; 5] = ["VOLUME", "SIZE", "SNAPSHOTS", "KEPT FOR", "ID"];

/// Prints what is in the trash as it comes.
fn list(client: &Client, json: bool, args: &ListArgs) -> Result<()> {
    let mut walk = ListWalk::of(client, "/v1/trash", args);
    let mut printer = ListPrinter::new::<TrashList>(json, &HEADING);
    while let Some(part) = walk.next::<TrashList>()? {
        printer.print(&part, part.volumes.iter().map(row).collect())?;
        if !printer.is_read() {
            return Ok(());
        }
    }
    printer.end(&walk, Map::new())
}

fn row(volume: &TrashedVolume) -> Vec<String> {
    vec![
        volume.name.clone(),
        Size(volume.size_bytes).to_string(),
        volume.snapshots.to_string(),
        time_left(volume.until_unix_ms),
        volume.id.clone(),
    ]
}
