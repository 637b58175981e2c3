//! `firn import` and `firn export`: images in and out of volumes, over the server's own NBD listeners.
//!
//! The server moves the bytes as it does for any client; these commands only find them, copy them and leave nothing
//! behind. What an image holds as holes or zeroes is neither sent nor written. An import returns when the store has the
//! image; an export is one moment of the volume, whoever writes to it meanwhile, for it reads a fork of its own.
//!
//! [`mod@import`] and [`mod@export`] say what happens in which order; [`image`] reads and makes files, [`copy`] moves the bytes,
//! [`qcow2`] has qemu-img do its part, [`increment`] has what one snapshot has over another. [`mod@clone`] copies a volume with its
//! snapshots to another store.

mod clone;
mod copy;
mod digest;
mod export;
mod image;
mod import;
mod import_mark;
mod increment;
mod qcow2;

use std::io::IsTerminal;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

pub(crate) use clone::clone;
pub(crate) use export::export;
pub(crate) use import::import;

use super::client::{Client, volume_path};
use super::similar_name;
use super::volume_io::{self, failed};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{TransportChoice, Volume};

/// Connections that copy side by side.
const CONNECTIONS: usize = 4;
/// Bytes of one request.
const CHUNK_BYTES: u64 = 1 << 20;
/// What is looked at at once when zeroes are left out.
const BLOCK_BYTES: usize = 4096;

/// Opens a volume on the server, and says where it is reached over NBD.
fn attach(client: &Client, name: &str) -> Result<Vec<String>> {
    volume_io::attach(client, name, TransportChoice::Nbd).map(|attachment| attachment.uris)
}

/// A volume that an import writes to: nobody may use it meanwhile.
fn find_unused(client: &Client, name: &str) -> Result<Volume> {
    let volume: Volume = client
        .get(&volume_path(name))
        .map_err(|failure| similar_name::suggest(client, name, failure))?;
    let clients = volume.nbd.as_ref().map_or(0, |nbd| nbd.connections);
    if volume.disk.is_some() || clients > 0 {
        return Err(Failure::new(
            FailureCode::VolumeInUse,
            format!("{name} is in use; detach its disk and disconnect its clients first"),
        ));
    }
    Ok(volume)
}

/// A bar over so many bytes, where a person looks.
fn progress(what: String, bytes: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(bytes);
    bar.set_style(
        ProgressStyle::with_template(
            "{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
        )
        .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Whether a path means standard input or output.
fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The parts of `data` that are not zeroes, in whole blocks: as ranges of it, in order, never side by side.
fn data_runs(data: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (nth, block) in data.chunks(BLOCK_BYTES).enumerate() {
        if block == &[0; BLOCK_BYTES][..block.len()] {
            continue;
        }
        let from = nth * BLOCK_BYTES;
        let to = from + block.len();
        match runs.last_mut() {
            Some(run) if run.end == from => run.end = to,
            _ => runs.push(from..to),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_zero_is_found_in_whole_blocks() {
        let mut data = vec![0; 5 * BLOCK_BYTES + 100];
        assert!(data_runs(&data).is_empty());
        for at in [0, 4095, 2 * 4096, 3 * 4096 + 1, 5 * 4096 + 99] {
            data[at] = 1;
        }
        assert_eq!(data_runs(&data), [0..4096, 8192..16384, 20480..20580]);
        assert!(data_runs(&[]).is_empty());
    }
}
