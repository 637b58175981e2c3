//! The commands. Each is a client of the server's HTTP API, except `serve` and `doctor`.
//!
//! Results go to standard output and everything else to standard error, so that scripts can use the
//! output as it is.

pub(crate) mod args;
mod client;
mod doctor;
pub(crate) mod output;
mod sync;
mod volume;

use args::DetachArgs;
use client::Client;

use crate::failure::Result;
use crate::model::{AttachRequest, Attachment, DetachRequest};

pub(crate) use doctor::doctor;
pub(crate) use sync::sync;
pub(crate) use volume::volume;

/// `firn attach`: prints the volume's device or URI, and nothing else, on standard output.
pub(crate) fn attach(api: &str, json: bool, name: &str, request: &AttachRequest) -> Result<()> {
    let client = Client::new(api)?;
    let path = format!("{}/attach", client::volume_path(name));
    let attachment: Attachment = client.post(&path, request)?;
    if json {
        return output::json(&attachment);
    }
    let address = attachment.device.or(attachment.uri);
    output::line(&address.unwrap_or_default())
}

/// `firn detach`: prints nothing when it succeeds.
pub(crate) fn detach(api: &str, args: &DetachArgs) -> Result<()> {
    let path = format!("{}/detach", client::volume_path(&args.name));
    let request = DetachRequest { force: args.force };
    Client::new(api)?.post_no_content(&path, &request)
}
