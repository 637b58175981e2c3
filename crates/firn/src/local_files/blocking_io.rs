//! The engine's background disk requests, carried out with blocking calls.
//!
//! Runs on threads that may wait, never on a reactor. A short read or write is continued or is an
//! error (R8); a failed sync is reported and never repeated (R10). Reads fill aligned memory that is used
//! again; for files with direct I/O, what is written passes through an aligned copy where it is not aligned.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use blkmq::io::FileId;
use bytes::Bytes;
use volume::driver::{DiskError, DiskOp};

use super::read_buffers::{ALIGN, ReadBuffers};
use crate::local_files::free_space;

/// Bytes per write when a range is zeroed.
const ZERO_BYTES: usize = 1 << 20;

/// The three files that the engine names.
#[derive(Clone, Debug)]
pub(crate) struct BlockingIo {
    pub(crate) log: Arc<File>,
    pub(crate) log_direct: bool,
    pub(crate) cache: Arc<File>,
    pub(crate) cache_direct: bool,
    pub(crate) memory: Arc<File>,
    pub(crate) buffers: Arc<ReadBuffers>,
}

impl BlockingIo {
    /// Carries out one request. Blocks.
    pub(crate) fn execute(&self, op: DiskOp) -> Result<Bytes, DiskError> {
        self.attempt(op).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                DiskError::full(source.to_string())
            }
            _ => DiskError::new(source.to_string()),
        })
    }

    fn attempt(&self, op: DiskOp) -> io::Result<Bytes> {
        match op {
            DiskOp::Read { file, offset, len } => {
                let (file, _) = self.file(file)?;
                let mut buffer = self.buffers.take(len);
                file.read_exact_at(buffer.bytes_mut(), offset)?;
                Ok(buffer.into_bytes())
            }
            DiskOp::Write { file, offset, data } => {
                if file == FileId::CACHE {
                    free_space::check(&self.cache, offset, data.len() as u64)?;
                }
                let (file, direct) = self.file(file)?;
                write(file, direct, offset, &data)?;
                Ok(Bytes::new())
            }
            DiskOp::Zero { file, offset, len } => {
                let (file, direct) = self.file(file)?;
                zero(file, direct, offset, len)?;
                Ok(Bytes::new())
            }
            DiskOp::Sync { file } => {
                self.file(file)?.0.sync_data()?;
                Ok(Bytes::new())
            }
        }
    }

    fn file(&self, id: FileId) -> io::Result<(&File, bool)> {
        match id {
            FileId::LOG => Ok((&self.log, self.log_direct)),
            FileId::CACHE => Ok((&self.cache, self.cache_direct)),
            FileId::MEMORY => Ok((&self.memory, false)),
            _ => Err(io::Error::other("no such file")),
        }
    }
}

fn write(file: &File, direct: bool, offset: u64, data: &[u8]) -> io::Result<()> {
    if !direct || data.as_ptr().align_offset(ALIGN) == 0 {
        return file.write_all_at(data, offset);
    }
    let (mut bytes, start) = aligned(data.len());
    bytes[start..start + data.len()].copy_from_slice(data);
    file.write_all_at(&bytes[start..start + data.len()], offset)
}

fn zero(file: &File, direct: bool, offset: u64, len: u64) -> io::Result<()> {
    let step = ZERO_BYTES.min(usize::try_from(len).unwrap_or(ZERO_BYTES));
    let (bytes, start) = aligned(step);
    let mut done = 0;
    while done < len {
        let now = step.min(usize::try_from(len - done).unwrap_or(step));
        write(file, direct, offset + done, &bytes[start..start + now])?;
        done += now as u64;
    }
    Ok(())
}

/// Zeroed memory of at least `len` bytes, and the index of its first aligned byte.
fn aligned(len: usize) -> (Vec<u8>, usize) {
    let bytes = vec![0_u8; len + ALIGN];
    let start = bytes.as_ptr().align_offset(ALIGN);
    (bytes, start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::LogIo;
    use crate::local_files::create;

    fn disk(direct: bool) -> Option<(BlockingIo, tempfile::TempDir)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, vec![9; 64 << 10]).unwrap();
        if direct && create::direct_io(&path, LogIo::Auto).unwrap().0.is_none() {
            return None;
        }
        let log = Arc::new(create::open_file(&path, direct).unwrap());
        let memory = Arc::new(tempfile::tempfile().unwrap());
        let cache = Arc::new(tempfile::tempfile().unwrap());
        Some((
            BlockingIo {
                log,
                log_direct: direct,
                cache,
                cache_direct: false,
                memory,
                buffers: Arc::default(),
            },
            dir,
        ))
    }

    #[test]
    fn what_is_written_is_read_back_directly_and_buffered() {
        for direct in [false, true] {
            let Some((disk, _dir)) = disk(direct) else {
                println!("skipped: no direct I/O here");
                continue;
            };
            let data: Vec<u8> = (0..8192_u32).map(|at| at as u8 ^ (at >> 8) as u8).collect();
            let file = FileId::LOG;
            disk.execute(DiskOp::Write {
                file,
                offset: 4096,
                data: data.clone(),
            })
            .unwrap();
            disk.execute(DiskOp::Zero {
                file,
                offset: 16384,
                len: 4096,
            })
            .unwrap();
            disk.execute(DiskOp::Sync { file }).unwrap();
            let read = |offset, len| disk.execute(DiskOp::Read { file, offset, len }).unwrap();
            assert_eq!(read(4096, 8192), data);
            assert_eq!(read(16384, 4096), vec![0; 4096]);
            assert_eq!(
                read(20480, 4096),
                vec![9; 4096],
                "nothing beside was touched"
            );
        }
    }

    #[test]
    fn a_read_past_the_end_is_an_error_that_names_the_file() {
        let (disk, _dir) = disk(false).unwrap();
        // As the engine reports it: the place, and the cause from here.
        let error = |op: DiskOp| {
            let place = op.place();
            format!("{place}: {}", disk.execute(op).unwrap_err().cause)
        };
        let read = error(DiskOp::Read {
            file: FileId::LOG,
            offset: 60 << 10,
            len: 8192,
        });
        assert!(
            read.contains("read of 8192 bytes at offset 61440 of the log"),
            "{read}"
        );
        assert!(read.contains("failed to fill whole buffer"), "{read}");
        let sync = error(DiskOp::Sync { file: FileId(7) });
        assert!(sync.contains("unknown file: no such file"), "{sync}");
    }
}
