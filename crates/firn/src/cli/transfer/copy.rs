//! Moves the bytes: several threads, each with a connection of its own, take parts one after the other from what is to
//! be copied. The first failure ends all of them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use indicatif::ProgressBar;

use super::super::volume_io::{Connection, failed, run_on_each};
use super::image::{NewFile, Source};
use super::{CHUNK_BYTES, data_runs};
use crate::failure::{Failure, Result};

/// How much of a volume is asked about at once.
const STATUS_BYTES: u64 = 1 << 30;
/// How much of it a request zeroes at once.
const ZEROES_BYTES: u64 = 1 << 30;

/// Copies an image onto a volume of zeroes, which has `bytes`. How many bytes were not zeroes.
pub(super) fn copy_image(
    source: Source,
    connections: Vec<Connection>,
    bytes: u64,
    bar: &ProgressBar,
) -> Result<u64> {
    let source = Mutex::new(source);
    let written = AtomicU64::new(0);
    run_on_each(connections, |mut connection, stop| {
        let mut data = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let next = lock(&source).next(&mut data)?;
            let Some(chunk) = next else { break };
            if chunk.end > bytes {
                return Err(failed(format!(
                    "the image is larger than the volume, which has {bytes} bytes"
                )));
            }
            for run in data_runs(&data) {
                connection.write(chunk.offset + run.start as u64, &data[run.clone()])?;
                written.fetch_add(run.len() as u64, Ordering::Relaxed);
            }
            bar.set_position(bar.position().max(chunk.end));
        }
        // Each answers for what went over it, whatever a server makes of a flush on another.
        connection.flush()?;
        Ok(connection.disconnect()?)
    })?;
    Ok(written.into_inner())
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
