//! Images: where the data of one is that comes in, and how one is made that goes out.
//!
//! Holes stay holes, both ways. A file that is made gets its name when it is whole and on the disk.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::super::volume_io::{Undo, failed};
use super::{BLOCK_BYTES, CHUNK_BYTES, is_standard};
use crate::failure::{Failure, FailureCode, Result};

/// An image that comes in.
pub(super) enum Source {
    /// One whose length is known, and that can be read from anywhere.
    File {
        file: File,
        path: PathBuf,
        bytes: u64,
        at: u64,
    },
    /// One that is read to its end.
    Stream {
        input: Box<dyn Read + Send>,
        at: u64,
    },
}

/// A part of an image.
pub(super) struct Chunk {
    /// Where it begins.
    pub(super) offset: u64,
    /// Where the image's own bytes end in it: behind are zeroes, up to a whole block.
    pub(super) end: u64,
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Source> {
        if is_standard(path) {
            return Ok(Source::Stream {
                input: Box::new(io::stdin()),
                at: 0,
            });
        }
        let cannot = |error: io::Error| Failure::io("open the image", path, &error);
        let file = File::open(path).map_err(cannot)?;
        let kind = file.metadata().map_err(cannot)?.file_type();
        if kind.is_dir() {
            return Err(Failure::invalid(format!(
                "{} is a directory, not an image",
                path.display()
            )));
        }
        if !kind.is_file() && !kind.is_block_device() {
            return Ok(Source::Stream {
                input: Box::new(file),
                at: 0,
            });
        }
        let bytes =
            rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|errno| cannot(errno.into()))?;
        Ok(Source::File {
            file,
            path: path.to_owned(),
            bytes,
            at: 0,
        })
    }

    /// Its length, where that is known.
    pub(super) fn bytes(&self) -> Option<u64> {
        match self {
            Source::File { bytes, .. } => Some(*bytes),
            Source::Stream { .. } => None,
        }
    }

    /// Its first bytes, if they can be looked at without being taken.
    pub(super) fn peek_header(&self) -> [u8; 4] {
        let mut bytes = [0; 4];
        if let Source::File { file, .. } = self {
            // What cannot be read now fails when it is copied.
            let _ = file.read_exact_at(&mut bytes, 0);
        }
        bytes
    }

    /// Up to where it was read.
    pub(super) fn at(&self) -> u64 {
        match self {
            Source::File { at, .. } | Source::Stream { at, .. } => *at,
        }
    }

    /// The next part that may have data, into `data`; none at the end.
    pub(super) fn next(&mut self, data: &mut Vec<u8>) -> Result<Option<Chunk>> {
        self.next_before(u64::MAX, data)
    }

    /// The same of what is before `end`, a whole number of blocks from the beginning; of a stream all is read.
    pub(super) fn next_before(&mut self, end: u64, data: &mut Vec<u8>) -> Result<Option<Chunk>> {
        data.clear();
        let offset = match self {
            Source::File {
                file,
                path,
                bytes,
                at,
            } => {
                let cannot = |error: io::Error| Failure::io("read the image", path, &error);
                let end = end.min(*bytes);
                let Some(range) = next_data(file, *at, end).map_err(cannot)? else {
                    // The rest is a hole.
                    *at = end;
                    return Ok(None);
                };
                data.resize((range.end - range.start) as usize, 0);
                file.read_exact_at(data, range.start).map_err(cannot)?;
                *at = range.end;
                range.start
            }
            Source::Stream { input, at } => {
                let read = input.by_ref().take(CHUNK_BYTES).read_to_end(data);
                let read =
                    read.map_err(|error| failed(format!("cannot read the image: {error}")))?;
                if read == 0 {
                    return Ok(None);
                }
                *at += read as u64;
                *at - read as u64
            }
        };
        let end = offset + data.len() as u64;
        data.resize(data.len().next_multiple_of(BLOCK_BYTES), 0);
        Ok(Some(Chunk { offset, end }))
    }
}

/// The next range of a file from `at` on that may have data: it begins with a block, and is a chunk at most.
fn next_data(file: &File, at: u64, bytes: u64) -> io::Result<Option<std::ops::Range<u64>>> {
    if at >= bytes {
        return Ok(None);
    }
    let block = BLOCK_BYTES as u64;
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        // A file whose holes nobody knows has none.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
        Err(Errno::NXIO) => return Ok(None),
        found => (found? / block * block).max(at),
    };
    let hole = match rustix::fs::seek(file, SeekFrom::Hole(start.max(at))) {
        Ok(hole) if hole > start => hole.next_multiple_of(block),
        _ => bytes,
    };
    let end = hole.min(bytes).min(start + CHUNK_BYTES);
    Ok((end > start).then_some(start..end))
}

/// An image that goes out.
pub(super) enum Target {
    /// A new file, which is written anywhere and in which nothing is a hole.
    Sparse(NewFile),
    /// Something that takes every byte, one after the other: a pipe, a disk.
    Stream(File),
}

/// A file that does not have its name yet.
pub(super) struct NewFile {
    pub(super) file: File,
    /// Where it is until it is whole.
    pub(super) partial: PathBuf,
    path: PathBuf,
}

impl Target {
    /// What is to be written for this path. A new file has zeroes alone, and a length of `bytes`.
    pub(super) fn open(path: &Path, bytes: u64, overwrite: bool) -> Result<Target> {
        if is_standard(path) {
            // Past the buffer of lines that the standard library has for it.
            let stdout = io::stdout().as_fd().try_clone_to_owned();
            let stdout =
                stdout.map_err(|error| failed(format!("cannot write the image: {error}")))?;
            return Ok(Target::Stream(stdout.into()));
        }
        let cannot = |error: io::Error| Failure::io("write the image", path, &error);
        match fs::metadata(path).map(|found| found.file_type()) {
            Ok(kind) if !kind.is_file() && !kind.is_dir() => {
                if kind.is_block_device() {
                    check_device(path, bytes, overwrite)?;
                }
                let file = File::options().write(true).open(path).map_err(cannot)?;
                Ok(Target::Stream(file))
            }
            _ => {
                let new = NewFile::create(path, overwrite)?;
                new.file.set_len(bytes).map_err(cannot)?;
                Ok(Target::Sparse(new))
            }
        }
    }
}

/// A disk is written over only on demand, and only if the volume fits.
fn check_device(path: &Path, bytes: u64, overwrite: bool) -> Result<()> {
    let cannot = |error: io::Error| Failure::io("open the device", path, &error);
    if !overwrite {
        return Err(Failure::invalid(format!(
            "{} is a disk; --overwrite replaces what it holds",
            path.display()
        )));
    }
    let device = File::open(path).map_err(cannot)?;
    let has = rustix::fs::seek(&device, SeekFrom::End(0)).map_err(|errno| cannot(errno.into()))?;
    if has < bytes {
        return Err(Failure::invalid(format!(
            "{} has {has} bytes, the volume {bytes}: choose a larger one",
            path.display()
        )));
    }
    Ok(())
}

impl NewFile {
    /// A file beside `path` that [`NewFile::name`] gives that name.
    pub(super) fn create(path: &Path, overwrite: bool) -> Result<NewFile> {
        if !overwrite && path.symlink_metadata().is_ok() {
            return Err(exists(path));
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let cannot = |error: io::Error| Failure::io("make", &partial, &error);
        let file = File::options()
            .write(true)
            .create_new(true)
            .open(&partial)
            .map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Failure::new(
                    FailureCode::TransferFailed,
                    format!(
                        "{} is there: another export is at work on it, or one was killed; remove it, or choose another name",
                        partial.display()
                    ),
                ),
                _ => cannot(error),
            })?;
        Ok(NewFile {
            file,
            path: path.to_owned(),
            partial,
        })
    }

    /// If the command does not come to its end, nothing stays of it: a file that is whole has another name by then.
    pub(super) fn remove_unless_whole(&self, undo: &Undo) {
        let partial = self.partial.clone();
        undo.add(move || drop(fs::remove_file(partial)));
    }

    /// Makes it durable, and gives it its name.
    pub(super) fn name(self, overwrite: bool) -> Result<()> {
        let cannot = |error: io::Error| Failure::io("write the image", &self.path, &error);
        self.file.sync_all().map_err(cannot)?;
        if overwrite {
            fs::rename(&self.partial, &self.path).map_err(cannot)?;
        } else {
            // A name that somebody else took meanwhile is theirs.
            match fs::hard_link(&self.partial, &self.path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(exists(&self.path));
                }
                // A file system without links.
                Err(_) => fs::rename(&self.partial, &self.path).map_err(cannot)?,
                Ok(()) => fs::remove_file(&self.partial).map_err(cannot)?,
            }
        }
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty());
        File::open(dir.unwrap_or(Path::new(".")))
            .and_then(|dir| dir.sync_all())
            .map_err(cannot)
    }
}

fn exists(path: &Path) -> Failure {
    Failure::invalid(format!(
        "{} exists; choose another name, or replace it with --overwrite",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_read_without_its_holes_and_filled_up_to_whole_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let file = File::create(&path).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(&[1; 100], 20 << 20).unwrap();
        file.write_all_at(&[2; 10], 64 << 20).unwrap();
        let mut source = Source::open(&path).unwrap();
        assert_eq!(source.bytes(), Some((64 << 20) + 10));
        let (mut data, mut read, mut found) = (Vec::new(), 0, Vec::new());
        while let Some(chunk) = source.next(&mut data).unwrap() {
            assert!(chunk.offset.is_multiple_of(4096) && data.len().is_multiple_of(4096));
            assert!(chunk.end <= (64 << 20) + 10);
            read += data.len();
            for (at, byte) in data.iter().enumerate().filter(|(_, byte)| **byte != 0) {
                found.push((chunk.offset + at as u64, *byte));
            }
        }
        // A file system may know no holes.
        assert!(read <= 65 << 20, "{read}");
        assert_eq!(found.len(), 110);
        assert_eq!((found[0], found[109]), ((20 << 20, 1), ((64 << 20) + 9, 2)));
    }

    #[test]
    fn a_file_gets_its_name_when_it_is_whole_and_takes_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let new = NewFile::create(&path, false).unwrap();
        assert!(!path.exists());
        let second = NewFile::create(&path, false).err().expect("one at a time");
        assert!(second.detail.contains("image.partial"), "{second}");
        fs::write(&path, "somebody's").unwrap();
        let said = new.name(false).expect_err("taken").detail;
        assert!(said.contains("--overwrite"), "{said}");
        assert_eq!(fs::read(&path).unwrap(), b"somebody's");
        fs::remove_file(dir.path().join("image.partial")).unwrap();
        NewFile::create(&path, true).unwrap().name(true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
