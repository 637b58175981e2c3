//! The commands. Each talks to the server over HTTP; only `serve` and `doctor` do not need one.
//!
//! Results go to standard output, everything else to standard error, so that output can be used
//! in scripts as it is.

pub(crate) mod args;
mod client;
pub(crate) mod output;
mod sync;
mod volume;

use args::{AttachArgs, Transport};
use client::Client;

use crate::failure::Result;
use crate::model::{AttachRequest, Attachment};

pub(crate) use sync::sync;
pub(crate) use volume::volume;

/// `firn attach`: where a volume can be reached, alone on standard output.
pub(crate) fn attach(api: &str, json: bool, args: &AttachArgs) -> Result<()> {
    let transport = match args.transport {
        Transport::Auto => None,
        Transport::Nbd => Some("nbd".to_owned()),
    };
    let client = Client::new(api)?;
    let path = format!("{}/attach", client::volume_path(&args.name));
    let attachment: Attachment = client.post(&path, &AttachRequest { transport })?;
    if json {
        output::json(&attachment)
    } else {
        output::line(&attachment.uri)
    }
}
