//! `firn import FILE --onto VOLUME[@SNAPSHOT]`: lays an increment over a volume that is exactly at the point where it
//! begins, and takes the snapshot where it ends. One that begins with nothing makes a volume.
//!
//! A file is proven as a whole before anything is touched. Of a pipe each block is proven before it is written; if it
//! turns out to be damaged or cut short, the volume is set back to the snapshot that it was at. kill -9 leaves it
//! between two points: it is then refused until it is set back by hand.

use indicatif::ProgressBar;
use serde_json::json;
use volume::increment::{IncrementBlock, IncrementHeader};

use super::super::{attach, find_unused, progress};
use super::file::IncrementFile;
use super::points::{COPY_OF, identity, list, missing, split};
use crate::cli::args::ImportArgs;
use crate::cli::client::{Client, volume_path};
use crate::cli::volume_io::{Connection, Undo, connect, detach, failed};
use crate::cli::{diff, output, sync, trash};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{
    CreateSnapshot, CreateVolume, ResizeRequest, Restored, Snapshot, SnapshotWait, Volume,
};
use crate::units::{ApproximateSize, Size};

/// How much of a volume a request zeroes at once.
const ZEROES_BYTES: u64 = 1 << 30;

/// The volume that an increment is laid over.
struct Onto {
    volume: Volume,
    /// The snapshot at which it is, and to which it is set back.
    base: Snapshot,
}

pub(in crate::cli::transfer) fn import(
    client: &Client,
    json: bool,
    args: &ImportArgs,
) -> Result<()> {
    let mut file = IncrementFile::open(&args.file)?;
    let header = file.header().clone();
    check_use(args, &header)?;
    if file.bytes.is_some() {
        prove(&mut file, args)?;
        file = IncrementFile::open(&args.file)?;
        if *file.header() != header {
            return Err(failed(format!(
                "{} changes while it is read",
                args.file.display()
            )));
        }
    }
    let undo = Undo::watch()?;
    let (name, was_open) = match (&args.onto, &args.volume) {
        (Some(onto), _) => {
            let found = find_onto(client, onto, &header)?;
            let was_open = found.volume.nbd.is_some();
            let name = found.volume.name.clone();
            let applied = lay_over(client, &found, &header, &mut file, &undo);
            applied.map_err(|failure| {
                Failure::new(
                    failure.code,
                    format!("{failure}; {name} is left at {}", found.base.name),
                )
            })?;
            (name, was_open)
        }
        (None, Some(name)) => {
            make(client, name, &header, &mut file, &undo).map_err(|failure| {
                Failure::new(failure.code, format!("{failure}; no volume was made"))
            })?;
            (name.clone(), false)
        }
        (None, None) => return Err(Failure::internal("an import without a volume")),
    };
    undo.keep();
    if !was_open {
        detach(client, &name, false)?;
    }
    let snapshot = snapshot_name(&name, &header);
    match json {
        true => output::json(&json!({
            "volume": name,
            "snapshot": snapshot,
            "size_bytes": header.point.bytes,
        })),
        false => output::line(&format!(
            "{snapshot}: {}, a copy of {}, in the store",
            Size(header.point.bytes),
            header.point.name
        )),
    }
}

/// Whether the command line says what this increment is for.
fn check_use(args: &ImportArgs, header: &IncrementHeader) -> Result<()> {
    let file = args.file.display();
    let (from, to) = (&header.base, &header.point.name);
    match (&args.onto, from) {
        (Some(_), None) => Err(Failure::invalid(format!(
            "{file} is all of {to}, and begins with nothing: make a volume of it with `firn import {file} NEW`"
        ))),
        (None, Some(base)) => Err(Failure::invalid(format!(
            "{file} leads from {} to {to}: say which volume has that point with --onto VOLUME",
            base.name
        ))),
        (None, None) if args.overwrite => Err(Failure::invalid(format!(
            "{file} is an increment, which makes a new volume: leave --overwrite out"
        ))),
        _ => Ok(()),
    }
}

/// Reads all of it once: nothing is touched for one that is damaged.
fn prove(file: &mut IncrementFile, args: &ImportArgs) -> Result<()> {
    let bar = progress(
        format!("verify {}", args.file.display()),
        file.bytes.unwrap_or(0),
    );
    while file.next()?.is_some() {
        bar.set_position(file.at);
    }
    bar.finish_and_clear();
    Ok(())
}

/// The snapshot that an import takes.
fn snapshot_name(volume: &str, header: &IncrementHeader) -> String {
    format!("{volume}@{}", split(&header.point.name).1)
}

/// The volume, with the snapshot that is the point where the increment begins.
fn find_onto(client: &Client, onto: &str, header: &IncrementHeader) -> Result<Onto> {
    let (name, wanted) = split(onto);
    let Some(point) = &header.base else {
        return Err(Failure::internal("an increment without a beginning"));
    };
    let new = snapshot_name(name, header);
    let is_point = |snapshot: &Snapshot| identity(snapshot).is_ok_and(|id| id == point.id);
    let snapshots = list(client, name, |found| {
        found.name == new || found.name == onto || is_point(found)
    })?;
    if let Some(found) = snapshots.iter().find(|found| found.name == new) {
        let what = match identity(found)? == header.point.id {
            true => format!("{new} is there already, and is what this increment leads to"),
            false => format!("a snapshot named {new} exists already, and is another point"),
        };
        return Err(Failure::new(FailureCode::SnapshotExists, what));
    }
    let base = match wanted.is_empty() {
        true => snapshots
            .iter()
            .find(|found| is_point(found))
            .ok_or_else(|| {
                Failure::invalid(format!(
                    "no snapshot of {name} is {}, where this increment begins, or a copy of it",
                    point.name
                ))
            })?,
        false => {
            let named = snapshots.iter().find(|found| found.name == onto);
            let named = named.ok_or_else(|| missing(onto))?;
            if !is_point(named) {
                return Err(Failure::invalid(format!(
                    "{onto} is not {}, where this increment begins, nor known to be a copy of it: a copy is made by \
                     `firn export {} FILE --format increment` and `firn import FILE`",
                    point.name, point.name
                )));
            }
            named
        }
    };
    let volume = find_unused(client, name)?;
    if volume.size_bytes > header.point.bytes {
        return Err(Failure::invalid(format!(
            "{name} has {} bytes, more than the {} of {}",
            volume.size_bytes, header.point.bytes, header.point.name
        )));
    }
    if !header.block.is_multiple_of(volume.block_size) {
        return Err(Failure::invalid(format!(
            "{name} has blocks of {} bytes, {} of {}",
            volume.block_size, header.point.name, header.block
        )));
    }
    let base = base.clone();
    Ok(Onto { volume, base })
}

/// Brings the volume from its base to where the increment leads, and takes the snapshot.
fn lay_over(
    client: &Client,
    onto: &Onto,
    header: &IncrementHeader,
    file: &mut IncrementFile,
    undo: &Undo,
) -> Result<()> {
    let (name, was_open) = (&onto.volume.name, onto.volume.nbd.is_some());
    let uris = attach(client, name)?;
    if !was_open {
        let (client, name) = (client.clone(), name.clone());
        undo.add(move || drop(detach(&client, &name, true)));
    }
    // Both sides of the comparison are what the store has.
    sync::upload(client, name)?;
    check_at_base(client, onto)?;
    {
        let (client, name, base) = (client.clone(), name.clone(), onto.base.name.clone());
        undo.add(move || set_back(&client, &name, &base, was_open));
    }
    if onto.volume.size_bytes < header.point.bytes {
        let size_bytes = header.point.bytes;
        let path = format!("{}/resize", volume_path(name));
        let _: Volume = client.post(&path, &ResizeRequest { size_bytes })?;
    }
    write(file, &uris, name)?;
    take_snapshot(client, name, header)
}

/// Whether nothing was written to the volume since the snapshot.
fn check_at_base(client: &Client, onto: &Onto) -> Result<()> {
    let (name, base) = (&onto.volume.name, &onto.base);
    let mut differs = 0;
    let (from, _) = diff::each_part(client, &base.name, name, |part| {
        differs += part.ranges.iter().map(|range| range.bytes).sum::<u64>();
        Ok(())
    })?;
    if from.id != base.id {
        return Err(Failure::new(
            FailureCode::VolumeBusy,
            format!(
                "{} was deleted and taken again meanwhile; try again",
                base.name
            ),
        ));
    }
    match differs {
        0 => Ok(()),
        bytes => Err(Failure::invalid(format!(
            "{name} is not at {base}: {} were written since (firn diff {base} {name}); set it back with \
             `firn snapshot restore {base}`, which keeps what it holds now as a snapshot",
            ApproximateSize(bytes),
            base = base.name
        ))),
    }
}

/// Makes the volume be what its snapshot is again.
fn set_back(client: &Client, name: &str, base: &str, was_open: bool) {
    // Our own connections are in its way, too.
    let _ = detach(client, name, true);
    let (_, snapshot) = split(base);
    let path = format!("{}/snapshots/{snapshot}", volume_path(name));
    let restored = client.post::<Restored>(&format!("{path}/restore"), &json!({}));
    match restored {
        Ok(Restored { kept, .. }) => {
            let (_, kept) = split(&kept);
            let path = format!("{}/snapshots/{kept}", volume_path(name));
            if let Err(failure) = client.delete(&path) {
                eprintln!(
                    "firn: {name}@{kept}, a part of the increment, stays, delete it: {failure}"
                );
            }
        }
        Err(failure) => eprintln!(
            "firn: {name} holds a part of the increment, and could not be set back ({failure}): \
             firn snapshot restore {base}"
        ),
    }
    if was_open && let Err(failure) = attach(client, name) {
        eprintln!("firn: {name} was open and could not be opened again: {failure}");
    }
}

/// Makes a volume of all that an increment has.
fn make(
    client: &Client,
    name: &str,
    header: &IncrementHeader,
    file: &mut IncrementFile,
    undo: &Undo,
) -> Result<()> {
    let asked = CreateVolume {
        name: name.to_owned(),
        size_bytes: header.point.bytes,
        block_size: header.block,
    };
    let _: Volume = client.post("/v1/volumes", &asked)?;
    {
        let (client, path) = (client.clone(), trash::for_good(name));
        undo.add(move || drop(client.delete(&path)));
    }
    let uris = attach(client, name)?;
    {
        let (client, name) = (client.clone(), name.to_owned());
        undo.add(move || drop(detach(&client, &name, true)));
    }
    write(file, &uris, name)?;
    take_snapshot(client, name, header)
}

/// Writes all blocks, each of which is proven, and ends once the whole is.
fn write(file: &mut IncrementFile, uris: &[String], name: &str) -> Result<()> {
    let mut connections = connect(uris, 1)?;
    let Some(mut connection) = connections.pop() else {
        return Err(Failure::internal("no connection to copy over"));
    };
    if connection.is_read_only() {
        return Err(failed(format!("{name} takes no writes")));
    }
    let bar = match file.bytes {
        Some(bytes) => progress(format!("import {name}"), bytes),
        None => ProgressBar::hidden(),
    };
    while let Some(block) = file.next()? {
        write_block(&mut connection, block)?;
        bar.set_position(file.at);
    }
    bar.finish_and_clear();
    connection.flush()?;
    Ok(connection.disconnect()?)
}

fn write_block(connection: &mut Connection, block: IncrementBlock) -> Result<()> {
    match block {
        IncrementBlock::Content { offset, data } => connection.write(offset, &data)?,
        IncrementBlock::Zeroes { offset, bytes } => {
            let (mut at, end) = (offset, offset + bytes);
            while at < end {
                let part = (end - at).min(ZEROES_BYTES);
                connection.write_zeroes(at, part as u32)?;
                at += part;
            }
        }
        IncrementBlock::End => {}
    }
    Ok(())
}

/// Everything is in place: it is that point now.
fn take_snapshot(client: &Client, name: &str, header: &IncrementHeader) -> Result<()> {
    sync::upload(client, name)?;
    let (_, snapshot) = split(&header.point.name);
    let asked = CreateSnapshot {
        name: snapshot.to_owned(),
        labels: [(COPY_OF.to_owned(), header.point.id.to_string())].into(),
        wait: SnapshotWait::Store,
        copied_unix_ms: None,
    };
    let path = format!("{}/snapshots", volume_path(name));
    client.post::<Snapshot>(&path, &asked).map(drop)
}
