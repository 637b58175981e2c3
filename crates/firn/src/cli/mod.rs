//! The commands. Each is a client of the server's HTTP API, except `serve`, `check` and `doctor`.
//!
//! Results go to standard output and everything else to standard error, so that scripts can use the
//! output as it is.

pub(crate) mod args;
mod bench;
mod check;
mod client;
mod config;
mod diff;
mod doctor;
mod fork;
mod gc;
mod generate;
mod lists;
mod mount;
mod move_volume;
pub(crate) mod output;
mod rescue;
mod similar_name;
mod snapshot;
mod support;
mod sync;
mod top;
mod transfer;
mod trash;
mod upgrade;
mod volume;
mod volume_io;
mod warm_up;

use std::path::Path;
use std::time::Duration;

use args::{ApiArgs, AttachArgs, DetachArgs};
use client::Client;

use crate::failure::Result;
use crate::model::{AttachRequest, Attachment, DetachRequest, RescueTails, TakeOverLoss, Volume};
use crate::units::ApproximateSize;

pub(crate) use bench::bench;
pub(crate) use check::check;
pub(crate) use config::config;
pub(crate) use diff::diff;
pub(crate) use doctor::doctor;
pub(crate) use fork::fork;
pub(crate) use gc::gc;
pub(crate) use generate::{completions, write_man_pages};
pub(crate) use move_volume::move_volume;
pub(crate) use rescue::rescue;
pub(crate) use snapshot::snapshot;
pub(crate) use support::support;
pub(crate) use sync::sync;
pub(crate) use top::top;
pub(crate) use transfer::{clone, export, import};
pub(crate) use trash::trash;
pub(crate) use upgrade::upgrade;
pub(crate) use volume::volume;

/// `firn attach`: prints the volume's device or URI, and nothing else, on standard output.
pub(crate) fn attach(
    api: &ApiArgs,
    json: bool,
    args: &AttachArgs,
    request: &AttachRequest,
) -> Result<()> {
    let name = &args.name;
    let client = Client::with_patience(api, args.patience)?;
    let path = format!("{}/attach", client::volume_path(name));
    let attachment: Attachment = client
        .post(&path, request)
        .map_err(|failure| similar_name::suggest(&client, name, failure))?;
    if let Some(loss) = &attachment.given_up {
        eprintln!("{}", describe_loss(name, loss));
    }
    if let (Some(dir), Some(device)) = (&args.mount, &attachment.device) {
        let device = Path::new(device);
        let was_written = args.mkfs.is_some() && {
            let volume: Volume = client.get(&client::volume_path(name))?;
            mount::was_written(volume.watermarks.as_ref())
        };
        let with = mount::Options {
            make: args.mkfs,
            was_written,
            read_only: args.is_read_only(),
        };
        mount::mount(device, dir, with)?;
    }
    if json {
        return output::json(&attachment);
    }
    let address = attachment.device.or(attachment.uri);
    output::line(&address.unwrap_or_default())
}

/// What a take-over gave up, in words.
fn describe_loss(name: &str, loss: &TakeOverLoss) -> String {
    let seen = Duration::from_millis(loss.last_seen_unix_ms);
    format!(
        "firn: {name} was taken over from {} (host {}), whose root of it was last seen to change {} ago (at Unix time \
         {}). Given up: whatever it wrote after LSN {}, the newest position that it had uploaded. \
         If that host comes back it keeps those writes: see `firn rescue list` there",
        loss.owner,
        loss.owner_host,
        rounded(loss.stored_age_seconds),
        seen.as_secs(),
        loss.stored_lsn
    )
}

/// An age in its largest two units.
fn rounded(seconds: f64) -> String {
    let total = seconds.max(0.0) as u64;
    let parts = [
        (total / 86_400, "d"),
        (total / 3600 % 24, "h"),
        (total / 60 % 60, "m"),
        (total % 60, "s"),
    ];
    let first = parts.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    let shown = parts[first..]
        .iter()
        .take(2)
        .map(|(count, unit)| format!("{count}{unit}"));
    shown.collect::<Vec<_>>().join(" ")
}

/// `firn detach`: prints nothing when it succeeds and nothing of the volume is left here.
pub(crate) fn detach(api: &ApiArgs, args: &DetachArgs) -> Result<()> {
    let path = format!("{}/detach", client::volume_path(&args.name));
    let request = DetachRequest {
        force: args.force,
        ..DetachRequest::default()
    };
    let client = Client::new(api)?;
    client
        .post_no_content(&path, &request)
        .map_err(|failure| similar_name::suggest(&client, &args.name, failure))?;
    // It is detached, whatever comes of this question.
    let kept = client.get::<RescueTails>("/v1/rescue");
    let kept = kept.map_or(Vec::new(), |kept| kept.tails);
    let bytes: u64 = kept
        .iter()
        .filter(|tail| tail.volume == args.name && tail.rescue)
        .map(|tail| tail.log_bytes)
        .sum();
    if bytes > 0 {
        eprintln!(
            "firn: {name} is detached; {} that only this host has are in its log: firn rescue show {name}",
            ApproximateSize(bytes),
            name = args.name
        );
    }
    Ok(())
}
