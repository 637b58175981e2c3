//! A way to the fork that is measured: a disk without the page cache, or a connection of its own.

use std::fmt;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::OFlags;

use super::super::volume_io::{Connection, connect, failed};
use super::workload::{FILL_BYTES, Workload};
use crate::failure::{Failure, Result};
use crate::model::Attachment;

/// What direct I/O wants its memory and its offsets to be a multiple of, in bytes.
const ALIGNMENT: usize = 4096;

/// How a fork is reached.
pub(super) enum Route {
    Disk {
        path: String,
        /// Nobody mounts or claims the disk meanwhile.
        _claim: File,
    },
    Nbd(Vec<String>),
}

impl Route {
    /// The way to a fork of so many bytes. A path means something else on another machine, to which a socket may have
    /// been forwarded: a disk that somebody uses, or that has another size, is not the fork and is not touched.
    pub(super) fn new(attachment: Attachment, bytes: u64) -> Result<Route> {
        let Some(path) = attachment.device else {
            return Ok(Route::Nbd(attachment.uris));
        };
        let mut claim = open_disk(&path, OFlags::EXCL)?;
        let found = claim
            .seek(SeekFrom::End(0))
            .map_err(|error| disk_failure("look for the end", 0, &error))?;
        if found != bytes {
            return Err(failed(format!(
                "{path} has {found} bytes and the fork {bytes}: it is another disk, perhaps of another machine than the \
                 server's; use --transport nbd"
            )));
        }
        let _claim = claim;
        Ok(Route::Disk { path, _claim })
    }

    /// As the command line has it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Route::Disk { .. } => "ublk",
            Route::Nbd(_) => "nbd",
        }
    }

    /// Targets that do not wait for each other.
    pub(super) fn targets(&self, count: usize) -> Result<Vec<Target>> {
        match self {
            Route::Disk { path, .. } => {
                let open = |_| open_disk(path, OFlags::empty()).map(Target::Disk);
                (0..count).map(open).collect()
            }
            Route::Nbd(uris) => {
                let connections = connect(uris, count)?;
                Ok(connections.into_iter().map(Target::Nbd).collect())
            }
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Route::Disk { path, .. } => write!(f, "ublk ({path})"),
            Route::Nbd(_) => f.write_str("NBD"),
        }
    }
}

fn open_disk(path: &str, flags: OFlags) -> Result<File> {
    let flags = OFlags::DIRECT | flags;
    let file = File::options()
        .read(true)
        .write(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    file.map_err(|error| {
        failed(format!(
            "cannot open {path}: {error}; with --transport nbd no disk is needed"
        ))
    })
}

/// One thread's way to the fork: one request at a time.
pub(super) enum Target {
    Disk(File),
    Nbd(Connection),
}

impl Target {
    pub(super) fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<()> {
        match self {
            Target::Disk(file) => file
                .read_exact_at(data, offset)
                .map_err(|error| disk_failure("read", offset, &error)),
            Target::Nbd(connection) => Ok(connection.read(offset, data)?),
        }
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        match self {
            Target::Disk(file) => file
                .write_all_at(data, offset)
                .map_err(|error| disk_failure("write", offset, &error)),
            Target::Nbd(connection) => Ok(connection.write(offset, data)?),
        }
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        match self {
            Target::Disk(file) => file
                .sync_data()
                .map_err(|error| disk_failure("flush", 0, &error)),
            Target::Nbd(connection) => Ok(connection.flush()?),
        }
    }
}

fn disk_failure(what: &str, offset: u64, error: &std::io::Error) -> Failure {
    failed(format!("{what} at {offset} failed: {error}"))
}

/// Memory that direct I/O takes.
pub(super) struct AlignedBuffer {
    bytes: Vec<u8>,
    used: Range<usize>,
}

impl AlignedBuffer {
    pub(super) fn new(length: usize) -> AlignedBuffer {
        let bytes = vec![0; length + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        AlignedBuffer {
            bytes,
            used: start..start + length,
        }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.used.clone()]
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[self.used.clone()]
    }
}

/// Bytes to write that do not compress, and of which two writes seldom send the same.
pub(super) struct Noise {
    buffer: AlignedBuffer,
    /// Places where a write's bytes may begin.
    places: usize,
}

impl Noise {
    const PLACES: usize = 1024;

    pub(super) fn new(workloads: &[Workload]) -> Noise {
        let largest = workloads.iter().map(|one| one.block_bytes).max();
        let largest = largest.unwrap_or(0).max(FILL_BYTES);
        let mut buffer = AlignedBuffer::new(largest as usize + Noise::PLACES * ALIGNMENT);
        fastrand::fill(buffer.as_mut_slice());
        Noise {
            buffer,
            places: Noise::PLACES,
        }
    }

    /// So many bytes; which ones, `nth` chooses.
    pub(super) fn slice(&self, nth: u64, length: u64) -> &[u8] {
        let place = (nth % self.places as u64) as usize * ALIGNMENT;
        &self.buffer.as_slice()[place..place + length as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_of_another_size_than_the_forks_is_not_touched() {
        // Not in /tmp, which need not take direct I/O.
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let attachment =
            serde_json::json!({"transport": "ublk", "device": file.path(), "uris": []});
        let attachment = serde_json::from_value::<Attachment>(attachment).unwrap();
        let refused = Route::new(attachment, 2 << 20).err();
        let said = refused.expect("it is another disk").detail;
        assert!(said.contains("another disk"), "{said}");
    }
}
