//! The node of a disk, `/dev/ublkbN`: what programs open must be the disk.
//!
//! devtmpfs or udev makes the node, unless something has its name: a regular file that a program
//! wrote while there was no disk, the node of a device that is gone, or, in a container, nothing at
//! all. Writes to a regular file there would be in memory alone, and nobody would notice. So the
//! node is compared with the kernel's number of the device and put right: what stood there is moved
//! aside and never removed, for it may hold somebody's data.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::failure::{Failure, FailureCode, Result};

/// Names that are tried for what stands in the node's place.
const ASIDE_MAX: u32 = 100;

/// Makes the path of a ublk disk lead to that disk, or fails.
pub(super) fn repair(path: &Path) -> Result<()> {
    if canary::active!("trust_the_name_of_a_disk") {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default();
    let number = fs::read_to_string(Path::new("/sys/class/block").join(name).join("dev"));
    match number.ok().and_then(|text| parse_number(&text)) {
        Some(device) => repair_node(path, device),
        // No sysfs here: the node's type is all that can be checked.
        None => match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_block_device() => Ok(()),
            _ => Err(unusable_error(
                path,
                "it is no block device, and there is no sysfs to tell its number",
            )),
        },
    }
}

/// `MAJOR:MINOR`, as sysfs writes it.
fn parse_number(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn repair_node(path: &Path, device: u64) -> Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_block_device() && found.rdev() == device => return Ok(()),
        Ok(found) => Some(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(unusable_error(path, &error.to_string())),
    };
    let failed = |what: &str, error: &io::Error| unusable_error(path, &format!("{what}: {error}"));
    if found.is_some() {
        let aside =
            free_name(path).ok_or_else(|| unusable_error(path, "something else has its name"))?;
        fs::rename(path, &aside)
            .map_err(|error| failed("something else has its name and cannot be moved", &error))?;
        tracing::warn!(
            path = %path.display(), moved_to = %aside.display(),
            "something that is not the disk had its name; what was written there never reached a volume"
        );
    }
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, path, FileType::BlockDevice, mode, device)
        .map_err(|error| failed("its node cannot be made", &error.into()))
}

/// `PATH.not-a-disk-N`, which nothing has.
fn free_name(path: &Path) -> Option<PathBuf> {
    let mut names = (0..ASIDE_MAX).map(|n| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".not-a-disk-{n}"));
        PathBuf::from(name)
    });
    names.find(|name| fs::symlink_metadata(name).is_err())
}

fn unusable_error(path: &Path, why: &str) -> Failure {
    Failure::new(
        FailureCode::UblkFailed,
        format!(
            "{} is not the node of this disk: {why}; see that devtmpfs or udev makes the nodes of \
             this machine, also inside a container, and that nothing else has the name",
            path.display()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_has_the_name_of_a_disk_is_moved_aside_and_the_disk_gets_its_node() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ublkb0");
        let null = makedev(7, 63);
        fs::write(&path, "somebody's data").unwrap();
        if repair_node(&path, null).is_err() {
            println!("skipped: no nodes can be made here");
            return;
        }
        let is_right = || {
            let found = fs::symlink_metadata(&path).unwrap();
            found.file_type().is_block_device() && found.rdev() == null
        };
        assert!(is_right());
        let aside = dir.path().join("ublkb0.not-a-disk-0");
        assert_eq!(fs::read_to_string(&aside).unwrap(), "somebody's data");
        // The node of another device, and no node at all.
        fs::remove_file(&path).unwrap();
        repair_node(&path, makedev(7, 62)).unwrap();
        repair_node(&path, null).unwrap();
        assert!(is_right());
        assert!(dir.path().join("ublkb0.not-a-disk-1").exists());
        fs::remove_file(&path).unwrap();
        repair_node(&path, null).unwrap();
        assert!(is_right());
        repair_node(&path, null).unwrap();
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            3,
            "a right node stays"
        );
    }

    #[test]
    fn sysfs_tells_the_number_of_a_device() {
        assert_eq!(parse_number("259:3\n"), Some(makedev(259, 3)));
        assert_eq!(parse_number("ublkb0"), None);
    }
}
