//! `firn export VOLUME@SNAPSHOT --since @SNAPSHOT`: an increment of what one snapshot has over another, or over nothing.
//!
//! What differs is told by the indexes; only that is read, from a fork of the newer snapshot. Bytes that were written and
//! are zeroes go as zeroes.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};

use indicatif::ProgressBar;
use serde_json::json;
use volume::increment::{CONTENT_BYTES_MAX, IncrementHeader, IncrementWriter};

use super::super::copy::DataMap;
use super::super::image::Target;
use super::super::{data_runs, is_standard, progress};
use super::points::{find, point, split};
use crate::cli::args::ExportArgs;
use crate::cli::client::Client;
use crate::cli::volume_io::{Connection, Undo, connect, failed, make_fork};
use crate::cli::{diff, output};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{Diff, DiffKind, Snapshot, TransportChoice};
use crate::units::ApproximateSize;

/// What is written to the file at once.
const BUFFER_BYTES: usize = 1 << 20;

/// What an increment came to hold.
#[derive(Clone, Copy, Default)]
struct Totals {
    data: u64,
    zeroes: u64,
    file: u64,
}

pub(in crate::cli::transfer) fn export(
    client: &Client,
    json: bool,
    args: &ExportArgs,
) -> Result<()> {
    let (volume, snapshot) = split(&args.volume);
    if snapshot.is_empty() {
        return Err(Failure::invalid(format!(
            "an increment is of a snapshot, which does not change: take one with `firn snapshot create {volume}@NAME`, \
             and export that"
        ))
        .into_usage());
    }
    let to = find(client, &args.volume)?;
    let base = match &args.since {
        None => None,
        Some(since) if since.starts_with('@') => Some(find(client, &format!("{volume}{since}"))?),
        Some(since) => Some(find(client, since)?),
    };
    let undo = Undo::watch()?;
    let (fork, attachment) =
        make_fork(client, &args.volume, "export", TransportChoice::Nbd, &undo)?;
    // It is of the snapshot that was found, and of no other that was taken under its name meanwhile.
    check_same(&to, &find(client, &args.volume)?)?;
    let header = IncrementHeader {
        point: point(&to)?,
        block: fork.block_size,
        taken_unix_ms: to.taken_unix_ms,
        base: base.as_ref().map(point).transpose()?,
    };
    let source = Source {
        client,
        to: &to,
        base: base.as_ref(),
        uris: &attachment.uris,
    };
    let (target, name) = match Target::open(&args.file, 0, args.overwrite)? {
        Target::Stream(file) => (file, None),
        Target::Sparse(new) => {
            new.remove_unless_whole(&undo);
            (new.file.try_clone().map_err(cannot)?, Some(new))
        }
    };
    let totals = source.copy(&header, target)?;
    if let Some(new) = name {
        new.name(args.overwrite)?;
    }
    drop(undo);
    match is_standard(&args.file) {
        true => Ok(()),
        false => print(json, args, &header, totals),
    }
}

fn check_same(found: &Snapshot, now: &Snapshot) -> Result<()> {
    match found.id == now.id {
        true => Ok(()),
        false => Err(Failure::new(
            FailureCode::VolumeBusy,
            format!(
                "{} was deleted and taken again meanwhile; try again",
                found.name
            ),
        )),
    }
}

fn cannot(error: std::io::Error) -> Failure {
    failed(format!("cannot write the increment: {error}"))
}

fn print(json: bool, args: &ExportArgs, header: &IncrementHeader, totals: Totals) -> Result<()> {
    let base = header.base.as_ref().map(|base| base.name.as_str());
    if json {
        return output::json(&json!({
            "snapshot": header.point.name,
            "since": base,
            "size_bytes": header.point.bytes,
            "data_bytes": totals.data,
            "zero_bytes": totals.zeroes,
            "file_bytes": totals.file,
        }));
    }
    let since = base.map_or_else(String::new, |base| format!(" since {base}"));
    output::line(&format!(
        "{}: {}{since}, {} of data and {} of zeroes in {}",
        args.file.display(),
        header.point.name,
        ApproximateSize(totals.data),
        ApproximateSize(totals.zeroes),
        ApproximateSize(totals.file)
    ))
}

/// Where an increment is from.
struct Source<'a> {
    client: &'a Client,
    to: &'a Snapshot,
    base: Option<&'a Snapshot>,
    uris: &'a [String],
}

impl Source<'_> {
    fn copy(&self, header: &IncrementHeader, target: File) -> Result<Totals> {
        let mut connections = connect(self.uris, 2)?;
        let (Some(asker), Some(connection)) = (connections.pop(), connections.pop()) else {
            return Err(Failure::internal("no connection to copy over"));
        };
        if asker.facts().bytes != header.point.bytes {
            return Err(failed(format!(
                "{} has {} bytes, and its fork another size",
                header.point.name, header.point.bytes
            )));
        }
        let (writer, beginning) = IncrementWriter::new(header);
        let mut sink = Sink {
            connection,
            writer,
            output: BufWriter::with_capacity(BUFFER_BYTES, target),
            totals: Totals::default(),
            bar: self.bar()?,
            keeps_zeroes: self.base.is_some(),
        };
        sink.put(&beginning)?;
        match self.base {
            None => sink.copy_all(asker)?,
            Some(base) => {
                asker.disconnect()?;
                diff::each_part(self.client, &base.name, &self.to.name, |part| {
                    self.check_part(part)?;
                    sink.copy_part(part)
                })?;
            }
        }
        sink.finish()
    }

    /// How much there is, where a person waits for it: what differs is counted before it is copied.
    fn bar(&self) -> Result<ProgressBar> {
        let what = format!("export {}", self.to.name);
        let bar = progress(what.clone(), self.to.size_bytes);
        let Some(base) = self.base.filter(|_| !bar.is_hidden()) else {
            return Ok(bar);
        };
        let mut bytes = 0;
        diff::each_part(self.client, &base.name, &self.to.name, |part| {
            bytes += part.ranges.iter().map(|range| range.bytes).sum::<u64>();
            Ok(())
        })?;
        bar.set_length(bytes);
        Ok(bar)
    }

    /// What is compared is what the header names.
    fn check_part(&self, part: &Diff) -> Result<()> {
        let base = self.base.is_some_and(|base| base.id == part.from.id);
        match base && part.to.id == self.to.id {
            true => Ok(()),
            false => Err(Failure::new(
                FailureCode::VolumeBusy,
                format!(
                    "{} or {} was deleted and taken again meanwhile; try again",
                    part.from.name, part.to.name
                ),
            )),
        }
    }
}

/// Where an increment goes, piece by piece.
struct Sink {
    connection: Connection,
    writer: IncrementWriter,
    output: BufWriter<File>,
    totals: Totals,
    bar: ProgressBar,
    /// Something else may be below them.
    keeps_zeroes: bool,
}

impl Sink {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.totals.file += bytes.len() as u64;
        self.output.write_all(bytes).map_err(cannot)
    }

    /// Everything that is not known to be zeroes.
    fn copy_all(&mut self, asker: Connection) -> Result<()> {
        let mut map = DataMap::new(asker);
        while let Some(range) = map.next()? {
            self.copy_data(range.start, range.end - range.start)?;
            self.bar.set_position(range.end);
        }
        Ok(())
    }

    fn copy_part(&mut self, part: &Diff) -> Result<()> {
        for range in &part.ranges {
            match range.kind {
                DiffKind::Zero => self.put_zeroes(range.offset, range.bytes)?,
                DiffKind::Data => self.copy_data(range.offset, range.bytes)?,
            }
            self.bar.inc(range.bytes);
        }
        Ok(())
    }

    fn put_zeroes(&mut self, offset: u64, bytes: u64) -> Result<()> {
        if !self.keeps_zeroes || bytes == 0 {
            return Ok(());
        }
        self.totals.zeroes += bytes;
        let piece = self.writer.zeroes(offset, bytes);
        self.put(&piece)
    }

    fn copy_data(&mut self, offset: u64, bytes: u64) -> Result<()> {
        let (mut at, end) = (offset, offset + bytes);
        let mut data = Vec::new();
        while at < end {
            data.resize((end - at).min(CONTENT_BYTES_MAX as u64) as usize, 0);
            self.connection.read(at, &mut data)?;
            let mut done = 0;
            for run in data_runs(&data) {
                self.put_zeroes(at + done as u64, (run.start - done) as u64)?;
                let piece = self
                    .writer
                    .content(at + run.start as u64, &data[run.clone()]);
                self.put(&piece)?;
                self.totals.data += run.len() as u64;
                done = run.end;
            }
            self.put_zeroes(at + done as u64, (data.len() - done) as u64)?;
            at += data.len() as u64;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Totals> {
        let last = self.writer.finish();
        self.totals.file += last.len() as u64;
        self.output.write_all(&last).map_err(cannot)?;
        self.output.flush().map_err(cannot)?;
        match self.output.get_ref().sync_all() {
            // A pipe or a terminal keeps nothing.
            Err(error) if error.kind() != ErrorKind::InvalidInput => return Err(cannot(error)),
            _ => {}
        }
        self.connection.disconnect()?;
        self.bar.finish_and_clear();
        Ok(self.totals)
    }
}
