//! Which point of history a snapshot is: its own, or that of the snapshot in another place of which it is a copy.

use volume::increment::Point;
use volume::units::{VolumeId, parse_hex_identity};

use crate::cli::client::{Client, volume_path};
use crate::cli::similar_name;
use crate::failure::{Failure, FailureCode, Result};
use crate::model::{Snapshot, SnapshotList};

/// The label of a copy: the identity of the snapshot that was copied.
pub(super) const COPY_OF: &str = "copy-of";

/// Volume and snapshot of a name that has both.
pub(super) fn split(name: &str) -> (&str, &str) {
    name.split_once('@').unwrap_or((name, ""))
}

/// The snapshots of a volume.
pub(super) fn list(client: &Client, volume: &str) -> Result<Vec<Snapshot>> {
    let path = format!("{}/snapshots", volume_path(volume));
    let found: SnapshotList = client
        .get(&path)
        .map_err(|failure| similar_name::suggest(client, volume, failure))?;
    Ok(found.snapshots)
}

/// The snapshot of this name.
pub(super) fn find(client: &Client, name: &str) -> Result<Snapshot> {
    let (volume, _) = split(name);
    let listed = list(client, volume)?.into_iter();
    let found = listed.into_iter().find(|snapshot| snapshot.name == name);
    found.ok_or_else(|| missing(name))
}

pub(super) fn missing(name: &str) -> Failure {
    Failure::new(
        FailureCode::NoSuchSnapshot,
        format!(
            "no snapshot named {name}: see `firn snapshot list {}`",
            split(name).0
        ),
    )
}

/// The identity of the point that a snapshot is.
pub(super) fn identity(snapshot: &Snapshot) -> Result<VolumeId> {
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
pub(super) fn point(snapshot: &Snapshot) -> Result<Point> {
    Ok(Point {
        id: identity(snapshot)?,
        name: snapshot.name.clone(),
        bytes: snapshot.size_bytes,
    })
}
