//! Moves the bytes: several threads, each with a connection of its own, take parts one after the other from what is to
//! be copied. The first failure ends all of them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::super::volume_io::{Connection, failed, run_on_each};
use super::digest::PartsDigest;
use super::image::{NewFile, Source};
use super::{BLOCK_BYTES, CHUNK_BYTES, data_runs};
use crate::failure::{Failure, Result};

/// How much of a volume is asked about at once.
const STATUS_BYTES: u64 = 1 << 30;
/// How much of it a request zeroes at once.
const ZEROES_BYTES: u64 = 1 << 30;

/// An image on its way.
pub(super) struct ImageCopy {
    source: Source,
    connections: Vec<Connection>,
    /// What was read so far and is not zero, block by block.
    pub(super) digest: PartsDigest,
    /// How much that is.
    pub(super) written: u64,
}

impl ImageCopy {
    /// The volume's connections, one for each thread.
    pub(super) fn connect(&mut self, connections: Vec<Connection>) {
        self.connections = connections;
    }

    /// What comes in is copied onto a volume of zeroes.
    pub(super) fn new(source: Source, connections: Vec<Connection>) -> ImageCopy {
        ImageCopy {
            source,
            connections,
            digest: PartsDigest::default(),
            written: 0,
        }
    }

    /// Up to where it is copied.
    pub(super) fn at(&self) -> u64 {
        self.source.at()
    }

    /// Reads what is before `end` and copies nothing: the volume has it.
    pub(super) fn skip_to(&mut self, end: u64, bar: &ProgressBar) -> Result<()> {
        let mut data = Vec::new();
        while self.source.at() < end {
            let next = self.source.next_before(end, &mut data)?;
            let Some(chunk) = next else { break };
            self.written += add_blocks(&mut self.digest, chunk.offset, &data);
            bar.set_position(chunk.end);
        }
        Ok(())
    }

    /// Copies onto a volume of `bytes`, until all is done or, with `time`, for so long, and a part on each connection at least;
    /// whether all is done. What was copied is as durable as a FLUSH.
    pub(super) fn run(
        &mut self,
        bytes: u64,
        time: Option<Duration>,
        bar: &ProgressBar,
    ) -> Result<bool> {
        let begun = Instant::now();
        let is_over = || time.is_some_and(|time| begun.elapsed() >= time);
        let source = Mutex::new(&mut self.source);
        let connections = std::mem::take(&mut self.connections);
        let lanes = run_on_each(connections, |mut connection, stop| {
            let (mut digest, mut written) = (PartsDigest::default(), 0);
            let mut data = Vec::new();
            let (mut is_first, mut is_done) = (true, false);
            while !stop.load(Ordering::Relaxed) && (is_first || !is_over()) {
                is_first = false;
                let next = lock(&source).next(&mut data)?;
                let Some(chunk) = next else {
                    is_done = true;
                    break;
                };
                if chunk.end > bytes {
                    return Err(failed(format!(
                        "the image is larger than the volume, which has {bytes} bytes"
                    )));
                }
                for run in data_runs(&data) {
                    connection.write(chunk.offset + run.start as u64, &data[run.clone()])?;
                }
                written += add_blocks(&mut digest, chunk.offset, &data);
                bar.set_position(bar.position().max(chunk.end));
            }
            // Each answers for what went over it, whatever a server makes of a flush on another.
            connection.flush()?;
            Ok((connection, digest, written, is_done))
        })?;
        let mut is_done = false;
        for (connection, digest, written, has_ended) in lanes {
            self.connections.push(connection);
            self.digest.merge(digest);
            self.written += written;
            is_done |= has_ended;
        }
        Ok(is_done)
    }

    pub(super) fn end(self) -> Result<u64> {
        for connection in self.connections {
            connection.disconnect()?;
        }
        Ok(self.written)
    }
}

/// Adds the blocks that are not zeroes; how many bytes they have.
fn add_blocks(digest: &mut PartsDigest, offset: u64, data: &[u8]) -> u64 {
    let mut bytes = 0;
    for run in data_runs(data) {
        for (nth, block) in data[run.clone()].chunks(BLOCK_BYTES).enumerate() {
            digest.add(offset + (run.start + nth * BLOCK_BYTES) as u64, block);
        }
        bytes += run.len() as u64;
    }
    bytes
}

/// Has all of a volume read as zeroes.
pub(super) fn write_zeroes(connection: &mut Connection, bytes: u64) -> Result<()> {
    let mut at = 0;
    while at < bytes {
        let part = (bytes - at).min(ZEROES_BYTES);
        connection.write_zeroes(at, part as u32)?;
        at += part;
    }
    Ok(connection.flush()?)
}

/// Copies a volume into a file of zeroes as long as it. How many bytes were not zeroes.
pub(super) fn fetch(
    mut connections: Vec<Connection>,
    new: &NewFile,
    bar: &ProgressBar,
) -> Result<u64> {
    let Some(asker) = connections.pop() else {
        return Err(Failure::internal("no connection to copy over"));
    };
    let map = Mutex::new(DataMap::new(asker));
    let read = AtomicU64::new(0);
    let cannot = |error: std::io::Error| Failure::io("write", &new.partial, &error);
    run_on_each(connections, |mut connection, stop| {
        let mut data = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let next = lock(&map).next()?;
            let Some(range) = next else { break };
            data.resize((range.end - range.start) as usize, 0);
            connection.read(range.start, &mut data)?;
            for run in data_runs(&data) {
                let place = range.start + run.start as u64;
                new.file
                    .write_all_at(&data[run.clone()], place)
                    .map_err(cannot)?;
                read.fetch_add(run.len() as u64, Ordering::Relaxed);
            }
            bar.set_position(bar.position().max(range.end));
        }
        Ok(connection.disconnect()?)
    })?;
    Ok(read.into_inner())
}

/// Writes a volume's bytes one after the other.
pub(super) fn stream(
    connections: Vec<Connection>,
    output: &mut File,
    bar: &ProgressBar,
) -> Result<()> {
    let Ok([asker, mut connection]) = <[Connection; 2]>::try_from(connections) else {
        return Err(Failure::internal("a stream takes two connections"));
    };
    let bytes = asker.facts().bytes;
    let cannot = |error: std::io::Error| failed(format!("cannot write the image: {error}"));
    let mut map = DataMap::new(asker);
    let (mut data, mut at) = (Vec::new(), 0);
    let zeroes = vec![0; CHUNK_BYTES as usize];
    while at < bytes {
        let next = map.next()?.unwrap_or(bytes..bytes);
        while at < next.start {
            let part = (next.start - at).min(CHUNK_BYTES);
            output.write_all(&zeroes[..part as usize]).map_err(cannot)?;
            at += part;
        }
        data.resize((next.end - next.start) as usize, 0);
        if !data.is_empty() {
            connection.read(next.start, &mut data)?;
            output.write_all(&data).map_err(cannot)?;
            at = next.end;
        }
        bar.set_position(at);
    }
    match output.sync_all() {
        // A pipe or a terminal keeps nothing.
        Err(error) if error.kind() != ErrorKind::InvalidInput => Err(cannot(error)),
        _ => Ok(connection.disconnect()?),
    }
}

/// How many bytes of a volume are not known to be zeroes.
pub(super) fn count_data(connection: Connection) -> Result<u64> {
    let mut map = DataMap::new(connection);
    let mut bytes = 0;
    while let Some(range) = map.next()? {
        bytes += range.end - range.start;
    }
    Ok(bytes)
}

/// Where a volume has data, in order, a chunk at a time.
pub(super) struct DataMap {
    connection: Connection,
    at: u64,
    bytes: u64,
    known: VecDeque<Range<u64>>,
}

impl DataMap {
    pub(super) fn new(connection: Connection) -> DataMap {
        let bytes = connection.facts().bytes;
        DataMap {
            connection,
            at: 0,
            bytes,
            known: VecDeque::new(),
        }
    }

    pub(super) fn next(&mut self) -> Result<Option<Range<u64>>> {
        while self.known.is_empty() && self.at < self.bytes {
            let asked = (self.bytes - self.at).min(STATUS_BYTES);
            for range in self.connection.allocation(self.at, asked as u32)? {
                let end = self.at + range.bytes;
                if !range.zero {
                    self.known.push_back(self.at..end);
                }
                self.at = end;
            }
        }
        let Some(range) = self.known.pop_front() else {
            return Ok(None);
        };
        let end = range.end.min(range.start + CHUNK_BYTES);
        if end < range.end {
            self.known.push_front(end..range.end);
        }
        Ok(Some(range.start..end))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
