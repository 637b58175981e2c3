//! The commands. Each talks to the server over HTTP; only `serve` and `doctor` do not need one.
//!
//! Results go to standard output, everything else to standard error, so that output can be used
//! in scripts as it is.

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

/// `firn attach`: where a volume can be reached, alone on standard output.
pub(crate) fn attach(api: &str, json: bool, name: &str, request: &AttachRequest) -> Result<()> {
    let client = Client::new(api)?;
    let path = format!("{}/attach", client::volume_path(name));
    let attachment: Attachment = client.post(&path, request)?;
    if json {
        return output::json(&attachment);
    }
    let place = attachment.device.or(attachment.uri);
    output::line(&place.unwrap_or_default())
}

/// `firn detach`: silent when it is done.
pub(crate) fn detach(api: &str, args: &DetachArgs) -> Result<()> {
    let path = format!("{}/detach", client::volume_path(&args.name));
    let request = DetachRequest { force: args.force };
    Client::new(api)?.tell(&path, &request)
}
