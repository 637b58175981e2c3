//! One writer at a time per key, across processes.
//!
//! `flock(2)` on one of a fixed set of files, chosen by the key's hash: the kernel lets go when a
//! holder dies, however it dies. The files are never removed, because a lock on an unlinked file
//! excludes nobody. A lock is held for a comparison, a rename and a directory sync, never for the
//! writing of the content.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

/// Takes the lock for `key`, waiting for its holder. Dropping the file lets go.
pub(super) fn lock_key(root: &Path, key: &str) -> io::Result<File> {
    let shard = blake3::hash(key.as_bytes()).as_bytes()[0];
    let dir = root.join(super::file::PRIVATE_DIR).join("lock");
    match fs::create_dir(&dir) {
        Err(source) if source.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.join(format!("{shard:02x}")))?;
    file.lock()?;
    Ok(file)
}
