//! `firn export`: an image of a volume or snapshot as it is at one moment.
//!
//! It reads a fork that it makes and deletes again, so that the volume's own clients neither see nor disturb it. kill -9
//! leaves the fork, whose name says what it was for.

use serde_json::json;

use super::super::args::{ApiArgs, ExportArgs, ImageFormat};
use super::super::client::{Client, volume_path};
use super::super::{fork, output};
use super::image::{NewFile, Target};
use super::undo::Undo;
use super::{CONNECTIONS, attach, connection, copy, detach, failed, is_standard, progress, qcow2};
use crate::failure::{Failure, Result};
use crate::units::{ApproximateSize, Size};

/// Bytes of a volume's name that the fork's begins with: so that all of it is a name.
const NAME_BYTES_MAX: usize = 40;

pub(crate) fn export(api: &ApiArgs, json: bool, args: &ExportArgs) -> Result<()> {
    if args.format == ImageFormat::Qcow2 && is_standard(&args.file) {
        return Err(Failure::invalid(
            "an image of the format qcow2 cannot be written to a pipe; name a file",
        )
        .into_usage());
    }
    let client = Client::new(api)?;
    let undo = Undo::watch()?;
    let fork = fork::make(&client, &args.volume, &fork_name(&args.volume))?.volume;
    {
        let (client, path) = (client.clone(), volume_path(&fork.name));
        undo.add(move || {
            if let Err(failure) = client.delete(&path) {
                eprintln!("firn: the fork that was read stays, delete it: {failure}");
            }
        });
    }
    let (bytes, name) = (fork.size_bytes, fork.name);
    let done = attach(&client, &name).and_then(|uris| {
        let client = client.clone();
        let fork = name.clone();
        // Nothing was written to it, so that nothing is lost.
        undo.add(move || drop(detach(&client, &fork, true)));
        fetch(args, &uris, bytes, &undo)
    });
    let data_bytes = done?;
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

/// A name that nobody else has, and that says what it is.
fn fork_name(volume: &str) -> String {
    let parent = volume.split('@').next().unwrap_or_default();
    let parent = &parent[..parent.len().min(NAME_BYTES_MAX)];
    format!("{parent}-export-{:08x}", fastrand::u32(..))
}

/// Makes the image; how many of its bytes are not zeroes, where that is known.
fn fetch(args: &ExportArgs, uris: &[String], bytes: u64, undo: &Undo) -> Result<Option<u64>> {
    if args.format == ImageFormat::Qcow2 {
        let new = NewFile::create(&args.file, args.overwrite)?;
        remove_unless_whole(&new, undo);
        let uri = uris.first().map_or("", String::as_str);
        qcow2::fetch(uri, &new.partial)?;
        new.name(args.overwrite)?;
        return Ok(None);
    }
    let bar = progress(format!("export {}", args.volume), bytes);
    let done = match Target::open(&args.file, bytes, args.overwrite)? {
        Target::Sparse(new) => {
            remove_unless_whole(&new, undo);
            // One more to ask where data is.
            let connections = connection::connect(uris, CONNECTIONS + 1)?;
            check_size(&connections, bytes)?;
            copy::fetch(connections, &new, &bar).and_then(|data| {
                new.name(args.overwrite)?;
                Ok(Some(data))
            })
        }
        Target::Stream(mut output) => {
            let connections = connection::connect(uris, 2)?;
            copy::stream(connections, &mut output, &bar).map(|()| None)
        }
    };
    bar.finish_and_clear();
    done
}

/// A file that is whole has another name by then.
fn remove_unless_whole(new: &NewFile, undo: &Undo) {
    let partial = new.partial.clone();
    undo.add(move || drop(std::fs::remove_file(partial)));
}

fn check_size(connections: &[connection::Connection], bytes: u64) -> Result<()> {
    match connections.iter().all(|one| one.facts().bytes == bytes) {
        true => Ok(()),
        false => Err(failed(format!(
            "the volume has {bytes} bytes, and its NBD export another size"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forks_name_is_a_name_whatever_the_volumes_is() {
        for volume in ["demo", "demo@one", &"x".repeat(64)] {
            let name = fork_name(volume);
            assert_eq!(volume::check_name(&name), Ok(()), "{name}");
            assert!(name.contains("-export-"));
        }
    }
}
