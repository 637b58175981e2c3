//! Finds the volumes of the objects that a pass is about to remove, and whether all have roots that must have.
//!
//! A volume has a root, or a tombstone, from before its first object and for ever. So objects of a volume that
//! has neither show that somebody else removed its root, and they are all that is left of it, because no log
//! names an idle volume. The owner is read from the object itself, right before its removal.
//!
//! An object that cannot be decoded, because it was cut short for example, shows nothing.

use std::collections::BTreeSet;

use super::error::CollectError;
use super::listing::{ListedObject, Listing};
use super::{CollectPort, SIDE_BY_SIDE};
use crate::driver::{StoreError, StoreOp, StoreReply};
use crate::hostlog::name_look::{LookError, look_for};
use crate::hostlog::root_updates::has_tombstone;
use crate::jobs::join_all;
use crate::object::pack::{TRAILER_BYTES, decode_footer, footer_offset};
use crate::object::page::{HEADER_BYTES, block_volume};
use crate::object::{FormatError, ROOT_PREFIX, SNAPSHOT_PREFIX};
use crate::units::VolumeId;

/// The bytes of a pack's end that are read first: most footers are shorter.
const TAIL_BYTES: u64 = 4 << 10;

/// Attempts of a read whose failure may be temporary.
const READS_MAX: u32 = 8;

/// Checks whether each of these volumes has a root, or was deleted. An operator may put a missing root back, and
/// it is not known what that would name. `rooted` have a root, or a tombstone in its place.
pub(super) async fn check_roots(
    port: &impl CollectPort,
    rooted: &BTreeSet<VolumeId>,
    volumes: &BTreeSet<VolumeId>,
) -> Result<(), CollectError> {
    for volume in volumes.difference(rooted) {
        if !has_tombstone(port, *volume).await && !canary::active!("missing_root_needs_nothing") {
            return Err(why_not_rooted(port, *volume).await);
        }
    }
    Ok(())
}

/// Why the pass has not seen a root of a volume. One that got another name while the pass read roots has one, and nobody is to
/// be told that it is lost.
async fn why_not_rooted(port: &impl CollectPort, volume: VolumeId) -> CollectError {
    if canary::active!("what_a_pass_missed_is_lost") {
        return CollectError::RootMissing(volume);
    }
    match look_for(port, &[ROOT_PREFIX, SNAPSHOT_PREFIX], volume).await {
        Ok(found) if found.own.is_empty() => CollectError::RootMissing(volume),
        Ok(_) | Err(LookError::Moving) => CollectError::Moving,
        Err(LookError::Unreadable(key, error)) => CollectError::Unreadable(key, error),
    }
}

/// The volumes to which these objects belong.
///
/// # Errors
/// If the store gives no answer about one.
pub(super) async fn owners(
    port: &impl CollectPort,
    listing: &Listing,
    objects: &[usize],
) -> Result<BTreeSet<VolumeId>, CollectError> {
    let mut volumes = BTreeSet::new();
    for window in objects.chunks(SIDE_BY_SIDE) {
        let reads = window.iter().map(|at| {
            let listed = &listing.objects[*at];
            Box::pin(owners_of(port, listing, listed))
        });
        for found in join_all(reads.collect()).await {
            volumes.extend(found?);
        }
        port.sleep(port.pace_ns()).await;
    }
    Ok(volumes)
}

async fn owners_of(
    port: &impl CollectPort,
    listing: &Listing,
    listed: &ListedObject,
) -> Result<Vec<VolumeId>, CollectError> {
    let (key, bytes) = (listing.key(listed), listed.bytes);
    if listed.is_index {
        let head = read_range(port, &key, 0, bytes.min(HEADER_BYTES as u64)).await?;
        return Ok(block_volume(&head).into_iter().collect());
    }
    let mut at = bytes.saturating_sub(TAIL_BYTES);
    let mut tail = read_range(port, &key, at, bytes - at).await?;
    let Some(footer) = footer_offset(&tail).filter(|footer| *footer < bytes) else {
        return Ok(Vec::new());
    };
    if footer < at {
        at = footer;
        tail = read_range(port, &key, at, bytes - at).await?;
    }
    let pack = listing.id(listed);
    let decode = move || {
        let footer = tail.get((footer - at) as usize..).unwrap_or_default();
        let footer = decode_footer(pack, footer);
        let sections = footer.map(|footer| footer.sections).unwrap_or_default();
        let origins = sections.iter().map(|section| section.slice.origin);
        origins.collect::<Vec<VolumeId>>()
    };
    let decoded = port.compute(bytes - at, decode).await;
    decoded.map_err(|_| {
        let error = FormatError::Corrupt("a footer ends the server's computation");
        CollectError::Unreadable(key, error)
    })
}

/// `None` if the object is missing or shorter.
async fn read_range(
    port: &impl CollectPort,
    key: &str,
    offset: u64,
    len: u64,
) -> Result<Vec<u8>, CollectError> {
    if len < HEADER_BYTES.min(TRAILER_BYTES) as u64 {
        return Ok(Vec::new());
    }
    let mut pause = port.pause_ns();
    let mut reads = 0;
    loop {
        let op = StoreOp::GetRange {
            key: key.to_owned(),
            offset,
            len,
        };
        let error = match port.store(op).await {
            Ok(StoreReply::Range(data)) => return Ok(data),
            Err(StoreError::NotFound | StoreError::OutOfRange) => return Ok(Vec::new()),
            Ok(other) => format!("{other:?}"),
            Err(error) => format!("{error:?}"),
        };
        reads += 1;
        if reads >= READS_MAX {
            return Err(CollectError::NoAnswer(key.to_owned(), error));
        }
        port.sleep(pause).await;
        pause = (pause * 2).min(port.pause_ns() * 30);
    }
}
