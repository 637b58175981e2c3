//! `firn fork`: one request, and the new volume's name on standard output. What the new volume lacks, because another
//! host has its parent open, is said on standard error.

use super::args::{ApiArgs, ForkArgs};
use super::client::{Client, volume_path};
use super::{output, similar_name};
use crate::failure::Result;
use crate::model::{ForkVolume, Forked};

pub(crate) fn fork(api: &ApiArgs, json: bool, args: &ForkArgs) -> Result<()> {
    let client = Client::new(api)?;
    let forked = make(&client, &args.parent, &args.name)?;
    match json {
        true => output::json(&forked),
        false => output::line(&forked.volume.name),
    }
}

/// Makes a fork, and says what it lacks.
pub(super) fn make(client: &Client, parent: &str, name: &str) -> Result<Forked> {
    let asked = ForkVolume {
        name: name.to_owned(),
    };
    let forked: Forked = client
        .post(&format!("{}/fork", volume_path(parent)), &asked)
        .map_err(|failure| similar_name::suggest(client, parent, failure))?;
    if let Some(holder) = &forked.parent_holder {
        eprintln!(
            "firn: {parent} is open on host {holder}: {} begins with what the store has of it, up to LSN {}, and lacks \
             what was written there since",
            forked.volume.name, forked.parent_lsn
        );
    }
    Ok(forked)
}
