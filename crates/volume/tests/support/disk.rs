//! The disk of a world: what the engine reads, writes and syncs, with the faults of [`super::environment`].

use std::ops::Range;

use blkmq::io::FileId;
use volume::driver::{DiskError, DiskOp};

use super::World;

impl World {
    pub(crate) fn disk(&mut self, op: DiskOp) -> Result<Vec<u8>, DiskError> {
        match op {
            DiskOp::Read { file, offset, len } => {
                let asked = offset..offset + len as u64;
                let hits = |bad: &Range<u64>| bad.start < asked.end && asked.start < bad.end;
                let unreadable = match file {
                    FileId::LOG => &self.env.unreadable[..],
                    FileId::CACHE => &self.env.unreadable_cache[..],
                    _ => &[],
                };
                if unreadable.iter().any(hits) {
                    return Err(DiskError::new("read: input/output error"));
                }
                self.env.bytes_read += len as u64;
                let data = self.env.files.entry(file).or_default();
                let (at, end) = (offset as usize, offset as usize + len);
                if data.len() < end {
                    data.resize(end, 0);
                }
                Ok(data[at..end].to_vec())
            }
            DiskOp::Write { file, offset, .. } | DiskOp::Zero { file, offset, .. }
                if file == FileId::LOG && self.env.bad.iter().any(|bad| bad.contains(&offset)) =>
            {
                Err(DiskError::new("write: input/output error"))
            }
            DiskOp::Write { file, offset, data } => {
                self.env.written.push((file, offset));
                self.put(file, offset, &data);
                Ok(Vec::new())
            }
            DiskOp::Zero { file, offset, len } => {
                self.put(file, offset, &vec![0; len as usize]);
                Ok(Vec::new())
            }
            DiskOp::Sync { .. } if self.env.good_syncs > 0 => {
                self.env.good_syncs -= 1;
                Ok(Vec::new())
            }
            DiskOp::Sync { .. } if self.env.failing_syncs > 0 => {
                self.env.failing_syncs -= 1;
                Err(DiskError::new("sync: input/output error"))
            }
            DiskOp::Sync { .. } => Ok(Vec::new()),
        }
    }

    pub(crate) fn put(&mut self, file: FileId, offset: u64, bytes: &[u8]) {
        let data = self.env.files.entry(file).or_default();
        let end = offset as usize + bytes.len();
        if data.len() < end {
            data.resize(end, 0);
        }
        data[offset as usize..end].copy_from_slice(bytes);
    }
}
