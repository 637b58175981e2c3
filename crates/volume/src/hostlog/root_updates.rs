//! Updates of roots. The same bytes are sent until the store answers; where they did not win, the root is read.
//!
//! An update has won if the root equals what was sent in all but its sequence number: within an epoch only the
//! owner changes a root, and others raise the epoch. What the update names must stand in the owner's log, in a
//! record that counts, before it is sent. If the root has moved the update is not sent again: the caller begins
//! anew, from that root and with new objects.

use super::names::{Position, tombstone_key};
use super::port::{LogPort, Pauses, read_decoded};
use super::stop::Stop;
use crate::driver::{StoreOp, StoreReply, Version};
use crate::object::root::Root;
use crate::object::{FormatError, root_key};
use crate::units::{Epoch, HostId, Lsn, VolumeId};

/// A root and its version in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedRoot {
    /// The root.
    pub root: Root,
    /// Its version.
    pub version: Version,
}

/// What became of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// The root has the update; its sequence may have been raised since.
    Won(VersionedRoot),
    /// Another root stands there.
    Lost(VersionedRoot),
}

/// Why a root cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateError {
    /// There is no root.
    Missing,
    /// What stands there cannot be read.
    Unreadable(FormatError),
}

/// Reads a root, without judging it.
///
/// # Errors
/// If there is none, or it cannot be read.
pub async fn read_root(port: &impl LogPort, name: &str) -> Result<VersionedRoot, UpdateError> {
    let found = read_decoded(port, &root_key(name), Root::decode).await;
    let found = found.map_err(UpdateError::Unreadable)?;
    let (root, version) = found.ok_or(UpdateError::Missing)?;
    Ok(VersionedRoot { root, version })
}

/// Whether the volume was deleted and another has taken its name: the deleted volume's tombstone is kept before
/// the new root is written. An unreadable tombstone counts as none.
pub(crate) async fn has_tombstone(port: &impl LogPort, volume: VolumeId) -> bool {
    let found = read_decoded(port, &tombstone_key(volume), Root::decode).await;
    let found = found.ok().flatten();
    found.is_some_and(|(root, _)| root.deleted && root.volume == volume)
}

/// Replaces `expected` by `next`, and repeats the request until its outcome is known.
///
/// # Errors
/// If there is no root, or it cannot be read.
pub async fn update_root(
    port: &impl LogPort,
    next: &Root,
    expected: &Version,
) -> Result<UpdateOutcome, UpdateError> {
    let op = StoreOp::Update {
        key: root_key(&next.name),
        data: next.encode(),
        version: expected.clone(),
    };
    let mut pauses = Pauses::new();
    loop {
        if let Ok(StoreReply::Written { version }) = port.store(op.clone()).await {
            let root = next.clone();
            return Ok(UpdateOutcome::Won(VersionedRoot { root, version }));
        }
        let standing = read_root(port, &next.name).await?;
        if is_equivalent(&standing.root, next) {
            return Ok(UpdateOutcome::Won(standing));
        }
        if standing.version != *expected {
            return Ok(UpdateOutcome::Lost(standing));
        }
        pauses.wait(port).await;
    }
}

/// Whether two roots are equal in all but the sequence. Sessions of which a root names no object make no
/// difference.
fn is_equivalent(standing: &Root, sent: &Root) -> bool {
    let same = Root {
        sequence: sent.sequence,
        ..standing.clone()
    };
    same.encode() == sent.encode()
}

/// What an owner knows of its volume when it judges a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerView<'a> {
    /// The owner.
    pub host: HostId,
    /// The root that it wrote or read last.
    pub known: &'a Root,
    /// The LSN up to which its own log has the volume stored.
    pub stored: Lsn,
    /// The position of its next record.
    pub next: Position,
}

/// What an unexpected root means for the volume's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Another host has the volume.
    Fenced,
    /// A dead process of this host, or a copy, wrote it: the update begins again from this root.
    Moved,
    /// The whole host must stop.
    Stop(Stop),
}

/// Judges a root that stands where an owner expected its own.
#[must_use]
pub fn judge(standing: &Root, view: &OwnerView<'_>) -> Verdict {
    let OwnerView {
        host,
        known,
        stored,
        next,
    } = *view;
    let name = &known.name;
    if standing.epoch > known.epoch {
        return Verdict::Fenced;
    }
    let behind = standing.epoch < known.epoch
        || standing.volume != known.volume
        || standing.sequence < known.sequence
        || standing.lsn < known.lsn
        || standing.mark < known.mark;
    if behind {
        let what = format!("the root of {name} is older than what this host wrote");
        return Verdict::Stop(Stop::SetBack(what));
    }
    let owner = standing.owner.as_ref();
    let ours = !standing.deleted && owner.is_some_and(|owner| owner.host == host);
    let ahead = !ours || standing.lsn > stored || standing.mark >= next;
    if ahead && !canary::active!("root_ahead_is_a_moved_version") {
        let what = format!("the root of {name} is ahead of this host's own log");
        return Verdict::Stop(Stop::Cloned(what));
    }
    Verdict::Moved
}

/// The outcome of an owner's update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnersUpdate {
    /// The root is this.
    Won(VersionedRoot),
    /// The root is this, of the same owner: the update begins again from it, with new objects.
    Moved(VersionedRoot),
    /// Another host has the volume.
    Fenced,
}

/// Why an owner's update ended without an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnersError {
    /// The whole host must stop.
    Stop(Stop),
    /// The root cannot be used.
    Root(UpdateError),
}

/// An owner's update (fold, close, deletion, restore) from the root that it knows to `next`.
///
/// # Errors
/// If the host must stop, or there is no root.
pub async fn update_own_root(
    port: &impl LogPort,
    view: &OwnerView<'_>,
    next: Root,
    expected: &Version,
) -> Result<OwnersUpdate, OwnersError> {
    let next = Root {
        sequence: view.known.sequence + 1,
        ..next
    };
    let updated = update_root(port, &next, expected).await;
    match updated.map_err(OwnersError::Root)? {
        UpdateOutcome::Won(standing) => Ok(OwnersUpdate::Won(standing)),
        UpdateOutcome::Lost(standing) => match judge(&standing.root, view) {
            Verdict::Fenced => Ok(OwnersUpdate::Fenced),
            Verdict::Moved => Ok(OwnersUpdate::Moved(standing)),
            Verdict::Stop(stop) => Err(OwnersError::Stop(stop)),
        },
    }
}

/// The epoch that the next opening takes.
pub(super) fn next_epoch(root: &Root) -> Epoch {
    Epoch(root.epoch.0 + 1)
}
