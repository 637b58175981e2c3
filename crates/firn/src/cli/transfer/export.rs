//! `firn export`: an image of a volume or snapshot as it is at one moment.
//!
//! It reads a fork that it makes and deletes again, so that the volume's own clients neither see nor disturb it. kill -9
//! leaves the fork, whose name says what it was for.

use serde_json::json;

use super::super::args::{ApiArgs, ExportArgs, ImageFormat};
use super::super::client::Client;
use super::super::output;
use super::super::volume_io::{Connection, Undo, connect, failed, make_fork};
use super::image::{NewFile, Target};
use super::{CONNECTIONS, copy, increment, is_standard, progress, qcow2};
use crate::failure::{Failure, Result};
use crate::model::TransportChoice;
use crate::units::{ApproximateSize, Size};

pub(crate) fn export(api: &ApiArgs, json: bool, args: &ExportArgs) -> Result<()> {
    if args.format == ImageFormat::Qcow2 && is_standard(&args.file) {
        return Err(Failure::invalid(
            "an image of the format qcow2 cannot be written to a pipe; name a file",
        )
        .into_usage());
    }
    if args.format == ImageFormat::Qcow2 && args.since.is_some() {
        return Err(Failure::invalid(
            "what differs since a snapshot is an increment; leave --format qcow2 out",
        )
        .into_usage());
    }
    let client = Client::new(api)?;
    if args.format == ImageFormat::Increment || args.since.is_some() {
        return increment::make::export(&client, json, args);
    }
    let undo = Undo::watch()?;
    let (fork, attachment) =
        make_fork(&client, &args.volume, "export", TransportChoice::Nbd, &undo)?;
    let bytes = fork.size_bytes;
    let data_bytes = fetch(args, &attachment.uris, bytes, &undo)?;
    drop(undo);
    if is_standard(&args.file) {
        return Ok(());
    }
    if json {
        return output::json(&json!({
            "volume": args.volume,
            "size_bytes": bytes,
            "data_bytes": data_bytes,
        }));
    }
    let of_it = data_bytes.map(|data| format!(", {} of it data", ApproximateSize(data)));
    output::line(&format!(
        "{}: {}{}",
        args.file.display(),
        Size(bytes),
        of_it.unwrap_or_default()
    ))
}

/// Makes the image; how many of its bytes are not zeroes, where that is known.
fn fetch(args: &ExportArgs, uris: &[String], bytes: u64, undo: &Undo) -> Result<Option<u64>> {
    if args.format == ImageFormat::Qcow2 {
        let new = NewFile::create(&args.file, args.overwrite)?;
        new.remove_unless_whole(undo);
        let uri = uris.first().map_or("", String::as_str);
        qcow2::fetch(uri, &new.partial)?;
        new.name(args.overwrite)?;
        return Ok(None);
    }
    let bar = progress(format!("export {}", args.volume), bytes);
    let done = match Target::open(&args.file, bytes, args.overwrite)? {
        Target::Sparse(new) => {
            new.remove_unless_whole(undo);
            // One more to ask where data is.
            let connections = connect(uris, CONNECTIONS + 1)?;
            check_size(&connections, bytes)?;
            copy::fetch(connections, &new, &bar).and_then(|data| {
                new.name(args.overwrite)?;
                Ok(Some(data))
            })
        }
        Target::Stream(mut output) => {
            let connections = connect(uris, 2)?;
            copy::stream(connections, &mut output, &bar).map(|()| None)
        }
    };
    bar.finish_and_clear();
    done
}

fn check_size(connections: &[Connection], bytes: u64) -> Result<()> {
    match connections.iter().all(|one| one.facts().bytes == bytes) {
        true => Ok(()),
        false => Err(failed(format!(
            "the volume has {bytes} bytes, and its NBD export another size"
        ))),
    }
}
