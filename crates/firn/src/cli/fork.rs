//! `firn fork`: one request, and the new volume's name on standard output.

use super::args::{ApiArgs, ForkArgs};
use super::client::{Client, volume_path};
use super::{output, similar_name};
use crate::failure::Result;
use crate::model::{ForkVolume, Volume};

pub(crate) fn fork(api: &ApiArgs, json: bool, args: &ForkArgs) -> Result<()> {
    let client = Client::new(api)?;
    let asked = ForkVolume {
        name: args.name.clone(),
    };
    let forked: Volume = client
        .post(&format!("{}/fork", volume_path(&args.parent)), &asked)
        .map_err(|failure| similar_name::suggest(&client, &args.parent, failure))?;
    match json {
        true => output::json(&forked),
        false => output::line(&forked.name),
    }
}
