//! Which point of history a snapshot is: its own, or that of the snapshot in another place of which it is a copy.

use volume::increment::Point;
use volume::units::{VolumeId, parse_hex_identity};

use crate::cli::client::{Client, volume_path};
use crate::cli::lists::ListWalk;
use crate::cli::similar_name;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{Snapshot, SnapshotList};

/// The label of a copy: the identity of the snapshot that was copied.
pub(in crate::cli::transfer) const COPY_OF: &str = "copy-of";

/// What the server calls a snapshot of what a restored volume held before.
pub(in crate::cli::transfer) const KEPT_PREFIX: &str = "before-restore-";

/// Volume and snapshot of a name that has both.
pub(in crate::cli::transfer) fn split(name: &str) -> (&str, &str) {
    name.split_once('@').unwrap_or((name, ""))
}

/// The snapshots of a volume that are wanted.
pub(in crate::cli::transfer) fn list(
    client: &Client,
    volume: &str,
    is_wanted: impl Fn(&Snapshot) -> bool,
) -> Result<Vec<Snapshot>> {
    let path = format!("{}/snapshots", volume_path(volume));
    let mut walk = ListWalk::new(client, path);
    let mut found = Vec::new();
    loop {
        let part = walk.next::<SnapshotList>();
        let part = part.map_err(|failure| similar_name::suggest(client, volume, failure))?;
        let Some(part) = part else {
            return Ok(found);
        };
        found.extend(part.snapshots.into_iter().filter(&is_wanted));
    }
}

/// The snapshot of this name.
pub(in crate::cli::transfer) fn find(client: &Client, name: &str) -> Result<Snapshot> {
    let (volume, _) = split(name);
    let mut found = list(client, volume, |snapshot| snapshot.name == name)?;
    found.pop().ok_or_else(|| missing(name))
}

pub(in crate::cli::transfer) fn missing(name: &str) -> Failure {
    Failure::new(
        FailureCode::NoSuchSnapshot,
        format!(
            "no snapshot named {name}: see `firn snapshot list {}`",
            split(name).0
        ),
    )
}

/// The identity of the point that a snapshot is.
pub(in crate::cli::transfer) fn identity(snapshot: &Snapshot) -> Result<VolumeId> {
    let text = snapshot.labels.get(COPY_OF).unwrap_or(&snapshot.id);
    let id = parse_hex_identity(text).map(VolumeId);
    id.ok_or_else(|| {
        Failure::invalid(format!(
            "{} has the label {COPY_OF}={text}, which is no identity of a snapshot: it is not known which point it is",
            snapshot.name
        ))
    })
}

/// The same with what else an increment says of it.
pub(in crate::cli::transfer) fn point(snapshot: &Snapshot) -> Result<Point> {
    Ok(Point {
        id: identity(snapshot)?,
        name: snapshot.name.clone(),
        bytes: snapshot.size_bytes,
    })
}
