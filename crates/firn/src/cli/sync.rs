//! `firn sync`: returns when everything written so far is in the store.
//!
//! The request itself reports no progress, so a second connection polls the volume's watermarks
//! while it runs: the progress bar shows what is stored, not an estimate.

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::args::{ApiArgs, Patience};
use super::client::{Client, volume_path};
use super::{output, similar_name};
use crate::failure::{Failure, Result};
use crate::model::Volume;

/// How often the watermarks are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) fn sync(api: &ApiArgs, json: bool, name: &str, patience: Patience) -> Result<()> {
    let client = Client::with_patience(api, patience)?;
    let synced = upload(&client, name)?;
    if json {
        return output::json(&synced);
    }
    match &synced.watermarks {
        Some(marks) => output::line(&format!("{}: stored up to LSN {}", name, marks.stored.lsn)),
        None => output::line(&format!("{name} is closed here; nothing to upload")),
    }
}

/// Returns when everything written so far is in the store, and shows how far it is where a person looks.
pub(super) fn upload(client: &Client, name: &str) -> Result<Volume> {
    match std::io::stderr().is_terminal() {
        true => with_progress(client, name),
        false => {
            request(client, name).map_err(|failure| similar_name::suggest(client, name, failure))
        }
    }
}

fn request(client: &Client, name: &str) -> Result<Volume> {
    client.post(
        &format!("{}/sync", volume_path(name)),
        &serde_json::json!({}),
    )
}

fn with_progress(client: &Client, name: &str) -> Result<Volume> {
    let before: Volume = client
        .get(&volume_path(name))
        .map_err(|failure| similar_name::suggest(client, name, failure))?;
    let Some(marks) = before.watermarks else {
        return request(client, name);
    };
    let (from, to) = (marks.stored.lsn, marks.acknowledged.lsn);
    let bar = ProgressBar::new(to.saturating_sub(from));
    bar.set_style(
        ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} writes {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar.set_message(format!("sync {name}"));

    let (sender, receiver) = mpsc::channel();
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            // The receiver is dropped only if its thread panicked, and that is reported anyway.
            let _ = sender.send(request(client, name));
        });
        loop {
            match receiver.recv_timeout(POLL_INTERVAL) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::internal("the thread of the request panicked"));
                }
                Err(RecvTimeoutError::Timeout) => {
                    // A failed poll costs one step of the bar.
                    let now = client.get::<Volume>(&volume_path(name)).ok();
                    if let Some(marks) = now.and_then(|volume| volume.watermarks) {
                        bar.set_position(marks.stored.lsn.min(to).saturating_sub(from));
                    }
                }
            }
        }
    });
    bar.finish_and_clear();
    result
}
