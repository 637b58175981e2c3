//! `firn sync`: everything written so far, in the store, before it returns.
//!
//! The request itself has no progress to report, so while it runs the volume's own watermarks
//! are read: the bar is the ladder's, not a guess.

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::client::{Client, volume_path};
use super::output;
use crate::failure::{Failure, Result};
use crate::model::Volume;

/// How often the bar moves.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(crate) fn sync(api: &str, json: bool, name: &str) -> Result<()> {
    let client = Client::new(api)?;
    let synced = if std::io::stderr().is_terminal() {
        with_progress(&client, name)?
    } else {
        request(&client, name)?
    };
    if json {
        return output::json(&synced);
    }
    match &synced.watermarks {
        Some(marks) => output::line(&format!("{}: stored up to LSN {}", name, marks.stored.lsn)),
        None => output::line(&format!("{name}: stored")),
    }
}

fn request(client: &Client, name: &str) -> Result<Volume> {
    client.post(
        &format!("{}/sync", volume_path(name)),
        &serde_json::json!({}),
    )
}

fn with_progress(client: &Client, name: &str) -> Result<Volume> {
    let before: Volume = client.get(&volume_path(name))?;
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
            // The receiver is gone only if its thread panicked, which says so itself.
            let _ = sender.send(request(client, name));
        });
        loop {
            match receiver.recv_timeout(LOOK_EVERY) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::internal("the request was lost"));
                }
                Err(RecvTimeoutError::Timeout) => {
                    // A failed look costs nothing but this step of the bar.
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
