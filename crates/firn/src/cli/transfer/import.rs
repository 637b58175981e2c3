//! `firn import`: an image becomes a volume, and is in the store when the command returns.
//!
//! A volume that the command made is gone again if the command fails. One that it was told to overwrite begins with
//! zeroes, and keeps what has arrived; so does one after --resume. Of an image in a file the volume has a mark ([`import_mark`]), from
//! which a command that was cut short is gone on with.
//!
//! [`import_mark`]: super::import_mark

use std::time::Duration;

use indicatif::ProgressBar;
use serde_json::json;

use super::super::args::{ApiArgs, ImageFormat, ImportArgs};
use super::super::client::{Client, volume_path};
use super::super::volume_io::{Undo, connect, detach, failed};
use super::super::{output, sync, trash};
use super::copy::ImageCopy;
use super::image::Source;
use super::import_mark::{Mark, Marks, nothing_to_resume};
use super::{CONNECTIONS, attach, copy, find_unused, increment, is_standard, progress, qcow2};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{CreateVolume, Volume};
use crate::units::{ApproximateSize, Size};

/// Time from one mark of how far an import got to the next.
const MARK_INTERVAL: Duration = Duration::from_secs(10);

pub(crate) fn import(api: &ApiArgs, json: bool, args: &ImportArgs) -> Result<()> {
    let is_increment = match args.format {
        None => args.onto.is_some() || increment::is_increment(&args.file),
        Some(format) => format == ImageFormat::Increment,
    };
    if is_increment && args.resume {
        return Err(Failure::invalid(
            "--resume cannot be used here: an increment is laid over its point as a whole",
        )
        .into_usage());
    }
    if is_increment {
        return increment::apply::import(&Client::new(api)?, json, args);
    }
    let source = Source::open(&args.file)?;
    check_resumable(args, &source)?;
    let bytes = image_bytes(&source, args)?;
    let client = Client::new(api)?;
    let undo = Undo::watch()?;
    let mut marks = Marks::new(&client, args.volume_name());
    let (volume, mark) = find_or_create(&client, (args, bytes), &mut marks, &undo)?;
    let was_open = volume.nbd.is_some();
    let uris = attach(&client, args.volume_name())?;
    if !was_open {
        let (client, name) = (client.clone(), args.volume_name().to_owned());
        undo.add(move || {
            if let Err(failure) = detach(&client, &name, true) {
                output::warn(&format!(
                    "{name} stays attached (firn detach {name} --force): {failure}"
                ));
            }
        });
    }
    let copied = match args.format {
        Some(ImageFormat::Qcow2) => copy_qcow2(args, &volume, &uris),
        _ => copy_image(source, args, &volume, &uris, (&mut marks, mark)),
    };
    let data_bytes = match copied {
        Ok(bytes) => bytes,
        Err(failure) => {
            drop(undo);
            return Err(explain(failure, &client, args));
        }
    };
    let name = args.volume_name();
    undo.keep_so_far(interrupted(args, was_open));
    let finished = finish(&client, name, &mut marks, was_open);
    undo.keep();
    finished?;
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

/// What is left to do where the image is in the volume, and the command is interrupted.
fn interrupted(args: &ImportArgs, was_open: bool) -> String {
    let name = args.volume_name();
    let then_detach = match was_open {
        true => String::new(),
        false => format!("; then firn detach {name}"),
    };
    let or_resume = match is_standard(&args.file) {
        true => "",
        // Which also removes what marks how far it was.
        false => "; or all that is left by the same command with --resume",
    };
    format!(
        "interrupted: the image is in {name}, and the store may not have all of it yet (firn sync \
         {name}{then_detach}{or_resume})"
    )
}

/// Everything is in the volume: has the store take it, and removes what the command needed.
fn finish(client: &Client, name: &str, marks: &mut Marks<'_>, was_open: bool) -> Result<()> {
    sync::upload(client, name).map_err(|failure| {
        Failure::new(
            failure.code,
            format!(
                "the image is in {name}, and the store does not have all of it yet (firn sync {name}): {failure}"
            ),
        )
    })?;
    let removed = marks.remove();
    let detached = match was_open {
        true => Ok(()),
        false => detach(client, name, false).map_err(|failure| {
            let why = format!("{name} stays attached (firn detach {name}): {failure}");
            Failure::new(failure.code, why)
        }),
    };
    removed.and(detached).map_err(|failure| {
        Failure::new(
            failure.code,
            format!(
                "the import is complete, {name} holds the image and the store has it; {failure}"
            ),
        )
    })
}

/// Refuses to go on with what is read once.
fn check_resumable(args: &ImportArgs, source: &Source) -> Result<()> {
    let why = match (args.resume, args.format) {
        (false, _) => return Ok(()),
        (true, Some(ImageFormat::Qcow2)) => {
            "qemu-img copies an image of the format qcow2, and does so from its beginning"
        }
        (true, _) if source.bytes().is_none() => {
            "what comes through a pipe is read once, from its beginning: write it to a file first"
        }
        _ => return Ok(()),
    };
    let failure = Failure::invalid(format!("--resume cannot be used here: {why}"));
    Err(failure.into_usage())
}

/// The volume, and where an earlier command left off.
fn find_or_create(
    client: &Client,
    (args, image): (&ImportArgs, Option<u64>),
    marks: &mut Marks<'_>,
    undo: &Undo,
) -> Result<(Volume, Option<Mark>)> {
    let name = args.volume_name();
    if args.resume {
        match client.get::<Volume>(&volume_path(name)) {
            Err(failure) if failure.code == FailureCode::NoSuchVolume => {}
            Err(failure) => return Err(failure),
            Ok(_) => match (marks.find()?, args.overwrite) {
                (None, false) => return Err(nothing_to_resume(name)),
                (None, true) => {}
                (Some(mark), _) => {
                    if let Some(size) = args.size {
                        check_room(args, size.0, image)?;
                    }
                    return Ok((find_replaced(client, args, image)?, Some(mark)));
                }
            },
        }
    }
    let volume = match args.overwrite {
        true => find_replaced(client, args, image)?,
        false => create(client, args, image, undo)?,
    };
    Ok((volume, None))
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
                "{failure}; choose another name, or replace all that it holds with --overwrite; an import of it that was \
                 cut short goes on with --resume"
            ),
        ),
        _ => failure,
    })?;
    if !args.resume {
        let (client, name) = (client.clone(), args.volume_name().to_owned());
        undo.add(move || {
            let removed = Marks::new(&client, &name).remove();
            let deleted = removed.and_then(|()| client.delete(&trash::for_good(&name)));
            if let Err(failure) = deleted {
                output::warn(&format!(
                    "{name} stays, with what was written to it so far (firn volume delete {name}): {failure}"
                ));
            }
        });
    }
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

/// Copies the image, from where an earlier command left off; how many bytes of it are data.
fn copy_image(
    source: Source,
    args: &ImportArgs,
    volume: &Volume,
    uris: &[String],
    (marks, mark): (&mut Marks<'_>, Option<Mark>),
) -> Result<u64> {
    let image = source.bytes();
    let bar = match image {
        Some(image) => progress(format!("import {}", args.volume_name()), image),
        None => ProgressBar::hidden(),
    };
    if mark.is_none() {
        begin(args, volume.size_bytes, uris)?;
    }
    // A mark is of a volume that nobody is connected to.
    let mut copy = ImageCopy::new(source, Vec::new());
    if let Some(mark) = &mark {
        copy.skip_to(mark.end, &bar)?;
        check_same(args, mark, image.unwrap_or(0), &copy)?;
        marks.set_back(mark)?;
    } else if let Some(image) = image {
        if args.overwrite {
            marks.remove()?;
        }
        marks.set_first(image)?;
    }
    copy.connect(connect(uris, CONNECTIONS)?);
    let time = image.map(|_| args.mark_interval.map_or(MARK_INTERVAL, |time| time.0));
    // No more time goes into marks than into what they mark.
    while !copy.run(
        volume.size_bytes,
        time.map(|time| time.max(marks.took())),
        &bar,
    )? {
        marks.set(image.unwrap_or(0), copy.at(), copy.digest);
    }
    bar.finish_and_clear();
    copy.end()
}

/// A volume that is replaced begins with zeroes.
fn begin(args: &ImportArgs, bytes: u64, uris: &[String]) -> Result<()> {
    let Some(mut first) = connect(uris, 1)?.pop() else {
        return Err(Failure::internal("no connection to copy over"));
    };
    if first.is_read_only() {
        return Err(failed(format!("{} takes no writes", args.volume_name())));
    }
    if args.overwrite {
        copy::write_zeroes(&mut first, bytes)?;
    }
    Ok(first.disconnect()?)
}

/// Whether the image is the one of which the volume has a part.
fn check_same(args: &ImportArgs, mark: &Mark, image: u64, copy: &ImageCopy) -> Result<()> {
    let (file, name) = (args.file.display(), args.volume_name());
    if !mark.is_of(image, copy.digest) {
        return Err(Failure::invalid(format!(
            "{file} is not the image of which {name} has a part, or was changed since: import it from its \
             beginning with --overwrite and without --resume, which replaces all that {name} holds"
        )));
    }
    eprintln!(
        "firn: {name} has {file} up to byte {}, and that part is unchanged: going on there",
        mark.end
    );
    Ok(())
}

/// Has qemu-img copy the image.
fn copy_qcow2(args: &ImportArgs, volume: &Volume, uris: &[String]) -> Result<u64> {
    begin(args, volume.size_bytes, uris)?;
    let uri = uris.first().map_or("", String::as_str);
    qcow2::copy_image(&args.file, uri)?;
    let mut asker = connect(uris, 1)?;
    asker.pop().map_or(Ok(0), copy::count_data)
}

/// Says what is left of it, when everything is taken back that could be.
fn explain(failure: Failure, client: &Client, args: &ImportArgs) -> Failure {
    let name = args.volume_name();
    let found = client.get::<Volume>(&volume_path(name));
    let is_gone = found.is_err_and(|failure| failure.code == FailureCode::NoSuchVolume);
    if args.resume && failure.code == FailureCode::Invalid {
        // It says what helps, and going on does not.
        return failure;
    }
    let left = match (is_gone, args.format, is_standard(&args.file)) {
        (true, ..) => format!("; {name} is deleted again"),
        (false, Some(ImageFormat::Qcow2), _) | (false, _, true) => {
            format!("; {name} holds a part of the image: import it again with --overwrite")
        }
        _ => format!("; {name} holds a part of the image: go on with --resume"),
    };
    Failure::new(failure.code, format!("{failure}{left}"))
}
