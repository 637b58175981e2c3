//! What the read cache leaves free on its file system.
//!
//! The cache takes space as it fills, and may be larger than what there is. It is the one that can do without:
//! whatever else writes there (the index rings where they lie beside it, a directory store, the system's own log)
//! would find a full disk. So it takes no new space where little is left. What it has it writes over as before.

use std::fs::File;
use std::io;

use rustix::fs::SeekFrom;

/// The part of the file system that is left free.
const FREE_PART: u64 = 20;

/// More is never left.
const FREE_BYTES_MAX: u64 = 1 << 30;

/// Fails as a full disk does if a write of the cache there would take new space and little is left.
pub(super) fn check(cache: &File, offset: u64, len: u64) -> io::Result<()> {
    match canary::active!("cache_takes_the_last_byte") || !is_short(cache) {
        true => Ok(()),
        false => refuse_new_space(cache, offset, len),
    }
}

/// A question to the file system for each write: a call of a microsecond, on a thread that waits for disks.
fn is_short(file: &File) -> bool {
    rustix::fs::fstatvfs(file).is_ok_and(|found| {
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        let total = found.f_blocks.saturating_mul(found.f_frsize);
        free < (total / FREE_PART).min(FREE_BYTES_MAX)
    })
}

fn refuse_new_space(file: &File, offset: u64, len: u64) -> io::Result<()> {
    // Where the file system cannot tell, nothing is a hole: then it is as it was without this check.
    let hole = rustix::fs::seek(file, SeekFrom::Hole(offset)).unwrap_or(u64::MAX);
    if hole < offset + len {
        return Err(io::Error::new(
            io::ErrorKind::StorageFull,
            "the file system is nearly full, and the read cache leaves the rest of it free",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_cache_on_a_nearly_full_disk_writes_over_what_it_has_and_takes_nothing_more() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&vec![1; 64 << 10], 0).unwrap();
        assert!(refuse_new_space(&file, 0, 64 << 10).is_ok());
        let refused = refuse_new_space(&file, 512 << 10, 4096).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    }
}
