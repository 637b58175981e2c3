//! The engine's background disk requests, carried out with blocking calls.
//!
//! Runs on threads that may wait, never on a reactor. A short read or write is continued or is an
//! error (R8); a failed sync is reported and never repeated (R10). Reads fill aligned memory that is used
//! again; for files with direct I/O, what is written passes through an aligned copy where it is not aligned. A
//! client's request waits for all that was asked of the disk before it: so large transfers go in pieces.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use blkmq::io::FileId;
use bytes::Bytes;
use volume::driver::{DiskError, DiskOp};

use super::read_buffers::{ALIGN, ReadBuffers};
use crate::local_files::free_space;

/// Bytes of a transfer that are asked of the disk at once: half a millisecond of a disk of 1 GB/s.
pub(crate) const PIECE_BYTES: usize = 512 << 10;

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
                let pieces = buffer.bytes_mut().chunks_mut(PIECE_BYTES);
                for (piece, at) in pieces.zip((offset..).step_by(PIECE_BYTES)) {
                    file.read_exact_at(piece, at)?;
                }
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
                zero(self.file(file)?.0, offset, len)?;
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
        return write_pieces(file, offset, data.chunks(PIECE_BYTES));
    }
    let (mut bytes, start) = aligned(data.len());
    let copy = &mut bytes[start..start + data.len()];
    copy.copy_from_slice(data);
    write_pieces(file, offset, copy.chunks(PIECE_BYTES))
}

fn zero(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let len = usize::try_from(len).map_err(io::Error::other)?;
    let step = PIECE_BYTES.min(len);
    let (bytes, start) = aligned(step);
    let piece = &bytes[start..start + step];
    let pieces = (0..len).step_by(PIECE_BYTES);
    write_pieces(file, offset, pieces.map(|at| &piece[..step.min(len - at)]))
}

/// Writes pieces, all but the last of [`PIECE_BYTES`], one behind the other.
fn write_pieces<'a>(
    file: &File,
    offset: u64,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> io::Result<()> {
    for (piece, at) in pieces.zip((offset..).step_by(PIECE_BYTES)) {
        file.write_all_at(piece, at)?;
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
    fn a_transfer_of_several_pieces_is_whole_and_touches_nothing_beside() {
        for direct in [false, true] {
            let Some((disk, _dir)) = disk(direct) else {
                println!("skipped: no direct I/O here");
                continue;
            };
            let file = FileId::LOG;
            let len = 2 * PIECE_BYTES + 4096;
            let data: Vec<u8> = (0..len).map(|at| (at >> 9) as u8 | 1).collect();
            let write = |offset, data| disk.execute(DiskOp::Write { file, offset, data });
            let read = |offset, len| disk.execute(DiskOp::Read { file, offset, len }).unwrap();
            write(4096, data.clone()).unwrap();
            write(4096 + len as u64, vec![7; 4096]).unwrap();
            assert_eq!(read(4096, len), data);
            disk.execute(DiskOp::Zero {
                file,
                offset: 4096,
                len: len as u64,
            })
            .unwrap();
            assert_eq!(read(0, 4096), vec![9; 4096]);
            assert_eq!(read(4096, len), vec![0; len]);
            assert_eq!(read(4096 + len as u64, 4096), vec![7; 4096]);
        }
    }

    /// Reads and writes that this thread has asked the kernel for. None: the kernel does not count them.
    fn system_calls() -> Option<(u64, u64)> {
        let text = std::fs::read_to_string("/proc/thread-self/io").ok()?;
        let count = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line?.trim().parse().ok()
        };
        Some((count("syscr:")?, count("syscw:")?))
    }

    #[test]
    fn a_large_transfer_is_asked_of_the_disk_in_pieces() {
        let (disk, _dir) = disk(false).unwrap();
        let Some(begin) = system_calls() else {
            println!("skipped: this kernel does not count what a thread reads and writes");
            return;
        };
        // Reading the counts reads, too.
        let counting = system_calls().unwrap().0 - begin.0;
        let calls_of = |op: DiskOp| {
            let before = system_calls().unwrap();
            disk.execute(op).unwrap();
            let after = system_calls().unwrap();
            (after.0 - before.0 - counting, after.1 - before.1)
        };
        let (file, offset) = (FileId::LOG, 0);
        let len = 2 * PIECE_BYTES + 4096;
        let data = vec![1; len];
        assert_eq!(calls_of(DiskOp::Write { file, offset, data }), (0, 3));
        assert_eq!(calls_of(DiskOp::Read { file, offset, len }), (3, 0));
        let len = len as u64;
        assert_eq!(calls_of(DiskOp::Zero { file, offset, len }), (0, 3));
        let data = vec![1; PIECE_BYTES];
        assert_eq!(calls_of(DiskOp::Write { file, offset, data }), (0, 1));
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
