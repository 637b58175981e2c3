//! What every file of a directory store needs: reading one with its version, syncing a directory,
//! and what an error of the file system means. It knows nothing of keys, locks and conditions.

use std::fs::File;
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use bytes::Bytes;

use crate::{Error, Kind, Op, Version};

/// What the store keeps for itself. No key can name it, because of its dot.
pub(super) const PRIVATE_DIR: &str = ".firn-store";

/// Reads a whole object. The file is open throughout, so a writer cannot mix two contents.
pub(super) fn read(path: &Path) -> io::Result<(Bytes, Version)> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let len = usize::try_from(metadata.len()).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0)?;
    let version = version_of(&bytes, metadata.modified()?);
    Ok((bytes.into(), version))
}

pub(super) fn version_of(bytes: &[u8], written: std::time::SystemTime) -> Version {
    let hash = blake3::hash(bytes).to_hex();
    let nanos = written
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    Version(format!("{}-{nanos:x}", &hash[..32]))
}

pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// An error before the change became visible: it was certainly not applied.
pub(super) fn io_error(op: Op, object: &str, source: io::Error) -> Error {
    let (kind, detail) = match source.kind() {
        Io::NotFound => (Kind::NotFound, "there is no such object"),
        // A key whose name is a prefix of others, or has another as its prefix.
        Io::NotADirectory | Io::IsADirectory if !matches!(op, Op::Open | Op::Put | Op::Create) => {
            (Kind::NotFound, "there is no such object")
        }
        Io::PermissionDenied if is_restricted() => (
            Kind::Denied,
            "no permission: if the store's directory was mounted or replaced after the server's start, --sandbox keeps it out of \
             reach: start the server again; or check its owner and mode",
        ),
        Io::PermissionDenied | Io::ReadOnlyFilesystem => (
            Kind::Denied,
            "no permission; check the owner and mode of the store's directory",
        ),
        Io::StorageFull | Io::QuotaExceeded => (
            Kind::Unavailable,
            "the store's file system is full; free space or move the store (nothing was lost)",
        ),
        Io::NotADirectory | Io::IsADirectory | Io::AlreadyExists => (
            Kind::Invalid,
            "a name in the path is already used for another kind of file",
        ),
        _ => (
            Kind::Unavailable,
            "the store's file system reported an error; check the disk or the mount",
        ),
    };
    Error::new(kind, op, object, detail).with_source(source)
}

/// Whether this process has given up files that its user may read: the root directory is everybody's.
fn is_restricted() -> bool {
    std::fs::read_dir("/").is_err_and(|error| error.kind() == Io::PermissionDenied)
}
