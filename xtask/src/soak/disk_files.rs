//! How a disk of this machine is open: past the page cache, with FUA, and through it.

use std::fs::File;
use std::io::{Error, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate};

/// A way to write or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoPath {
    Direct,
    Forced,
    Buffered,
}

#[derive(Debug)]
pub(super) struct DiskFiles {
    path: PathBuf,
    direct: File,
    /// Each write is a FUA write.
    fua_writes: File,
    buffered: File,
}

impl DiskFiles {
    pub(super) fn open(path: &Path) -> Result<DiskFiles> {
        let open = |flags: OFlags| {
            let flags = i32::try_from(flags.bits()).map_err(Error::other)?;
            let mut options = File::options();
            options
                .read(true)
                .write(true)
                .custom_flags(flags)
                .open(path)
        };
        Ok(DiskFiles {
            path: path.to_owned(),
            direct: open(OFlags::DIRECT)?,
            fua_writes: open(OFlags::DIRECT | OFlags::DSYNC)?,
            buffered: open(OFlags::empty())?,
        })
    }

    fn file_for(&self, way: IoPath) -> &File {
        match way {
            IoPath::Direct => &self.direct,
            IoPath::Forced => &self.fua_writes,
            IoPath::Buffered => &self.buffered,
        }
    }

    pub(super) fn read(&self, way: IoPath, at: u64, data: &mut [u8]) -> Result<()> {
        self.file_for(way).read_exact_at(data, at)
    }

    pub(super) fn write(&self, way: IoPath, at: u64, data: &[u8]) -> Result<()> {
        self.file_for(way).write_all_at(data, at)
    }

    pub(super) fn zero(&self, at: u64, bytes: u64) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.direct, flags, at, bytes)?)
    }

    /// There is no safe call for it: a program does it.
    pub(super) fn discard(&self, at: u64, bytes: u64) -> Result<()> {
        let mut command = Command::new("blkdiscard");
        command.args(["-f", "-o", &at.to_string(), "-l", &bytes.to_string()]);
        let output = command.arg(&self.path).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::other(
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ))
    }

    pub(super) fn flush(&self, way: IoPath) -> Result<()> {
        self.file_for(way).sync_data()
    }

    pub(super) fn evict_page_cache(&self, at: u64, bytes: u64) -> Result<()> {
        let length = std::num::NonZero::new(bytes);
        Ok(fadvise(&self.buffered, at, length, Advice::DontNeed)?)
    }
}
