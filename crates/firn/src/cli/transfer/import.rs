//! `firn import`: an image becomes a volume, and is in the store when the command returns.
//!
//! A volume that the command made is gone again if the command fails. One that it was told to overwrite begins with
//! zeroes, and keeps what has arrived.

use indicatif::ProgressBar;
use serde_json::json;

use super::super::args::{ApiArgs, ImageFormat, ImportArgs};
use super::super::client::Client;
use super::super::volume_io::{Undo, connect, detach, failed};
use super::super::{output, sync, trash};
use super::image::Source;
use super::{CONNECTIONS, attach, copy, find_unused, increment, is_standard, progress, qcow2};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{CreateVolume, Volume};
use crate::units::{ApproximateSize, Size};

pub(crate) fn import(api: &ApiArgs, json: bool, args: &ImportArgs) -> Result<()> {
    let is_increment = match args.format {
        None => args.onto.is_some() || increment::is_increment(&args.file),
        Some(format) => format == ImageFormat::Increment,
    };
    if is_increment {
        return increment::apply::import(&Client::new(api)?, json, args);
    }
    let source = Source::open(&args.file)?;
    let bytes = image_bytes(&source, args)?;
    let client = Client::new(api)?;
    let undo = Undo::watch()?;
    let volume = match args.overwrite {
        true => find_replaced(&client, args, bytes)?,
        false => create(&client, args, bytes, &undo)?,
    };
    let was_open = volume.nbd.is_some();
    let uris = attach(&client, args.volume_name())?;
    if !was_open {
        let (client, name) = (client.clone(), args.volume_name().to_owned());
        undo.add(move || drop(detach(&client, &name, true)));
    }
    let copied = copy_image(source, args, &volume, &uris);
    let data_bytes = copied.map_err(|failure| explain(failure, args))?;
    undo.keep();
    sync::upload(&client, args.volume_name())
        .and_then(|_| match was_open {
            true => Ok(()),
            false => detach(&client, args.volume_name(), false),
        })
        .map_err(|failure| {
            Failure::new(
                failure.code,
                format!(
                    "the image is in {name}, and the store does not have all of it yet (firn sync {name}): {failure}",
                    name = args.volume_name()
                ),
            )
        })?;
    if json {
        return output::json(&json!({
            "volume": args.volume_name(),
            "size_bytes": volume.size_bytes,
            "data_bytes": data_bytes,
        }));
    }
    output::line(&format!(
        "{}: {}, {} of it data, in the store",
        args.volume_name(),
        Size(volume.size_bytes),
        ApproximateSize(data_bytes)
    ))
}

/// The size of the disk that the image holds, if it is known before it was read.
fn image_bytes(source: &Source, args: &ImportArgs) -> Result<Option<u64>> {
    let path = args.file.display();
    match args.format {
        Some(ImageFormat::Qcow2) if is_standard(&args.file) || source.bytes().is_none() => {
            Err(Failure::invalid(
                "an image of the format qcow2 cannot be read from a pipe; write it to a file first",
            )
            .into_usage())
        }
        Some(ImageFormat::Qcow2) => qcow2::disk_bytes(&args.file).map(Some),
        None if qcow2::is_qcow2(source.peek_header()) => Err(Failure::invalid(format!(
            "{path} begins as an image of the format qcow2: say --format qcow2, or --format raw to \
             have it byte by byte"
        ))),
        _ => match source.bytes() {
            Some(0) => Err(Failure::invalid(format!("{path} is empty"))),
            bytes => Ok(bytes),
        },
    }
}

/// The volume that is made.
fn create(client: &Client, args: &ImportArgs, image: Option<u64>, undo: &Undo) -> Result<Volume> {
    let size_bytes = match (args.size, image) {
        (Some(size), image) => {
            check_room(args, size.0, image)?;
            size.0
        }
        (None, Some(image)) => image.next_multiple_of(4096),
        (None, None) => {
            return Err(Failure::invalid(
                "how large the image is that comes through a pipe is not known: say how large the volume is \
                 to be with --size",
            )
            .into_usage());
        }
    };
    let asked = CreateVolume {
        name: args.volume_name().to_owned(),
        size_bytes,
        block_size: 512,
    };
    let created = client.post("/v1/volumes", &asked);
    let created = created.map_err(|failure: Failure| match failure.code {
        FailureCode::VolumeExists => Failure::new(
            failure.code,
            format!(
                "{failure}; choose another name, or replace all that it holds with --overwrite"
            ),
        ),
        _ => failure,
    })?;
    let (client, path) = (client.clone(), trash::for_good(args.volume_name()));
    undo.add(move || drop(client.delete(&path)));
    Ok(created)
}

/// The volume that is replaced.
fn find_replaced(client: &Client, args: &ImportArgs, image: Option<u64>) -> Result<Volume> {
    let name = args.volume_name();
    let volume = find_unused(client, name)?;
    check_room(args, volume.size_bytes, image)?;
    Ok(volume)
}

fn check_room(args: &ImportArgs, volume: u64, image: Option<u64>) -> Result<()> {
    match image {
        Some(image) if image > volume => Err(Failure::invalid(format!(
            "{} holds {image} bytes, more than the {volume} of {}",
            args.file.display(),
            args.volume_name()
        ))),
        _ => Ok(()),
    }
}

/// Copies the image; how many bytes of the volume are data afterwards.
fn copy_image(source: Source, args: &ImportArgs, volume: &Volume, uris: &[String]) -> Result<u64> {
    let bytes = volume.size_bytes;
    let mut connections = connect(uris, CONNECTIONS)?;
    if let Some(first) = connections.first_mut() {
        if first.is_read_only() {
            return Err(failed(format!("{} takes no writes", args.volume_name())));
        }
        if args.overwrite {
            copy::write_zeroes(first, bytes)?;
        }
    }
    if args.format == Some(ImageFormat::Qcow2) {
        drop(connections);
        let uri = uris.first().map_or("", String::as_str);
        qcow2::copy_image(&args.file, uri)?;
        let mut asker = connect(uris, 1)?;
        return asker.pop().map_or(Ok(0), copy::count_data);
    }
    let bar = match source.bytes() {
        Some(image) => progress(format!("import {}", args.volume_name()), image),
        None => ProgressBar::hidden(),
    };
    let copied = copy::copy_image(source, connections, bytes, &bar);
    bar.finish_and_clear();
    copied
}

/// Says what is left of it.
fn explain(failure: Failure, args: &ImportArgs) -> Failure {
    let name = args.volume_name();
    let left = match args.overwrite {
        true => format!("; {name} holds a part of the image: import it again"),
        false => format!("; {name} is deleted again"),
    };
    Failure::new(failure.code, format!("{failure}{left}"))
}
