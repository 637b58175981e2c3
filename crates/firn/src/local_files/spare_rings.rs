//! Files in memory that become rings of the program that takes over: made while clients are still served.
//!
//! To find memory for a ring and to clear it takes longer than all else that a recovery does for a volume. So the
//! program that hands over makes as many files as it has rings, and the next one renames one for each ring that it
//! makes. A spare holds nothing and is formatted as any new file is: whether there is one decides only how long a start takes.
//! Must never take the memory that rings themselves may need.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FallocateFlags, RenameFlags};

const PREFIX: &str = "spare-";

/// The spares of one directory of rings, as they were found.
#[derive(Debug, Default)]
pub(super) struct SpareRings(Vec<PathBuf>);

impl SpareRings {
    pub(super) fn find(dir: &Path) -> SpareRings {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let is_spare = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(PREFIX))
        };
        SpareRings(entries.map(|entry| entry.path()).filter(is_spare).collect())
    }

    /// Makes one a new file of this many bytes, if there is one and nothing has that name.
    pub(super) fn place_at(&mut self, path: &Path, bytes: u64) {
        while let Some(spare) = self.0.pop() {
            let flags = RenameFlags::NOREPLACE;
            if is_own(&spare, bytes)
                && rustix::fs::renameat_with(CWD, &spare, CWD, path, flags).is_ok()
            {
                return;
            }
            remove(&spare);
            if path.exists() {
                return;
            }
        }
    }

    /// Removes those that are left.
    pub(super) fn remove(self) {
        self.0.iter().for_each(|spare| remove(spare));
    }
}

/// Whether this user made it, and nobody else can have a part in it.
fn is_own(spare: &Path, bytes: u64) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(spare).is_ok_and(|found| {
        let is_private = found.mode() & 0o077 == 0 && found.nlink() == 1;
        found.is_file() && found.len() == bytes && found.uid() == own && is_private
    })
}

/// Makes spares of these sizes, as long as that leaves at least half of what is free; answers how many.
pub(super) fn make(dir: &Path, sizes: &[u64]) -> usize {
    let free = rustix::fs::statvfs(dir).map_or(0, |found| found.f_bavail * found.f_frsize);
    let mut room = free / 2;
    let made = sizes.iter().enumerate().take_while(|(nth, bytes)| {
        let is_made = **bytes <= room && make_one(&dir.join(format!("{PREFIX}{nth}")), **bytes);
        room = room.saturating_sub(**bytes);
        is_made
    });
    made.count()
}

fn make_one(path: &Path, bytes: u64) -> bool {
    remove(path);
    // One may be left of an upgrade that was called off.
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let made = file.and_then(|file| allocate(&file, bytes));
    if let Err(error) = &made {
        tracing::debug!(path = %path.display(), %error, "no spare ring");
        remove(path);
    }
    made.is_ok()
}

fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)?;
    Ok(rustix::fs::fallocate(
        file,
        FallocateFlags::empty(),
        0,
        bytes,
    )?)
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(path = %path.display(), %error, "a spare ring cannot be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 8192;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_spare_becomes_a_file_that_is_missing_and_never_replaces_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        assert_eq!(make(path, &[BYTES; 3]), 3);
        fs::write(path.join("ring"), "content").unwrap();
        let mut spares = SpareRings::find(path);
        spares.place_at(&path.join("ring"), BYTES);
        assert_eq!(fs::read(path.join("ring")).unwrap(), b"content");
        spares.place_at(&path.join("new"), BYTES);
        assert_eq!(fs::read(path.join("new")).unwrap(), [0; BYTES as usize]);
        spares.remove();
        assert_eq!(names(path), ["new", "ring"]);
    }

    #[test]
    fn a_spare_of_another_size_is_removed_and_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        assert_eq!(make(path, &[BYTES, 2 * BYTES]), 2);
        let mut spares = SpareRings::find(path);
        spares.place_at(&path.join("ring"), 3 * BYTES);
        assert_eq!(names(path), [""; 0]);
    }

    #[test]
    fn a_spare_that_others_may_write_to_or_that_is_no_file_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        assert_eq!(make(path, &[BYTES; 2]), 2);
        let others = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        fs::set_permissions(path.join("spare-0"), others).unwrap();
        fs::rename(path.join("spare-1"), path.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(path.join("elsewhere"), path.join("spare-1")).unwrap();
        let mut spares = SpareRings::find(path);
        spares.place_at(&path.join("ring"), BYTES);
        assert_eq!(names(path), ["elsewhere"]);
    }

    #[test]
    fn spares_leave_half_of_the_free_room() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(make(dir.path(), &[BYTES, u64::MAX / 4, BYTES]), 1);
        assert_eq!(names(dir.path()), ["spare-0"]);
    }
}
