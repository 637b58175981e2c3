//! The low mark of a host: created on the host's first start, raised when records are not needed any more.
//! Records below it are removed only after it was raised.
//!
//! The mark never passes the host's newest own record, nor a record that names a volume whose root still depends
//! on this log with a lower mark. Whoever raises the mark reads every record that it passes, and the one at which
//! it stops. A hole, or a record that does not follow its predecessor, means that the store was set back: then
//! the mark stays. It also stays at a record that names a volume without a root and without a tombstone: somebody
//! removed that root, and may put it back.

use std::collections::{BTreeMap, BTreeSet};

use super::marks::LowMark;
use super::names::{HOST_PREFIX, Position, low_key, record_key, record_of_key};
use super::port::{LogPort, Pauses, StoredRecord, list, read_decoded, read_record};
use super::record::{Content, Record};
use super::root_updates::{UpdateError, has_tombstone, read_root};
use super::stop::Stop;
use crate::driver::{StoreError, StoreOp, StoreReply, Version};
use crate::jobs::join_all;
use crate::object::root::Root;
use crate::object::{ROOT_PREFIX, volume_of_root_key};
use crate::units::{HostId, VolumeId};

/// Records that one raise passes at most: this bounds its memory, and the next raise continues.
const RECORDS_MAX: usize = 1024;

/// Roots that are read in parallel.
const SIDE_BY_SIDE: usize = 64;

/// Makes the low mark of a host that has none yet.
///
/// # Errors
/// If another object stands there.
pub(super) async fn make_low_mark(port: &impl LogPort, host: HostId) -> Result<(), Stop> {
    let op = StoreOp::Create {
        key: low_key(host),
        data: first(host).encode(),
    };
    let mut pauses = Pauses::new();
    loop {
        match port.store(op.clone()).await {
            // An earlier start made it, and died before it recorded that in the local log.
            Ok(StoreReply::Written { .. }) | Err(StoreError::PreconditionFailed) => return Ok(()),
            answer => tracing::debug!(?answer, "the low mark is tried again"),
        }
        pauses.wait(port).await;
    }
}

fn first(host: HostId) -> LowMark {
    LowMark {
        host,
        position: Position::FIRST,
    }
}

/// Raises a host's low mark as far as it may go, up to `last` at most. Returns the mark that then stands in the
/// store; `None` if there is none: the host was retired.
///
/// All roots that matter are read, an owner's own as well: a mark that it remembers may be ahead of the
/// root once the store was set back, and the records between would be lost. So it is raised seldom.
///
/// `names` are those of volumes as far as the caller knows them: whose roots do not stand there are looked for
/// among all.
pub async fn raise_low_mark(
    port: &impl LogPort,
    host: HostId,
    last: Position,
    names: &BTreeMap<VolumeId, String>,
) -> Option<Position> {
    let (low, version) = read_low(port, host).await?;
    let records = read_records(port, host, low, last).await;
    let target = target(port, host, (low, &records), names).await;
    if target <= low {
        return Some(low);
    }
    write_low_mark(port, host, target, version).await
}

/// The unbroken run of records from `low` on, up to `last`.
async fn read_records(
    port: &impl LogPort,
    host: HostId,
    low: Position,
    last: Position,
) -> Vec<Record> {
    let mut records = Vec::new();
    let mut previous = None;
    let mut at = low;
    while at <= last && records.len() < RECORDS_MAX {
        let Ok(Some(StoredRecord { record, digest })) = read_record(port, host, at).await else {
            break;
        };
        if let (Content::Slices(slices), Some(previous)) = (&record.content, previous)
            && slices.previous != previous
        {
            break;
        }
        previous = Some(digest);
        records.push(record);
        at = at.next();
    }
    records
}

/// How far the mark may go.
async fn target(
    port: &impl LogPort,
    host: HostId,
    (low, records): (Position, &[Record]),
    names: &BTreeMap<VolumeId, String>,
) -> Position {
    let is_own = |record: &&Record| matches!(record.content, Content::Slices(_));
    let newest = records.iter().rev().find(is_own);
    let mut target = newest.map_or(low, |record| record.position);
    if canary::active!("low_mark_passes_the_newest") {
        target = records.last().map_or(low, |record| record.position.next());
    }
    if canary::active!("low_mark_passes_marks") {
        return target;
    }
    let named: BTreeSet<VolumeId> = records.iter().flat_map(Record::named_volumes).collect();
    // Roots are read after the records: a host that becomes a volume's owner meanwhile has a mark above them.
    let Some(roots) = roots_of(port, &named, names).await else {
        return low;
    };
    let gone = find_deleted(port, named.iter().filter(|id| !roots.contains_key(id))).await;
    for record in records {
        let is_needed = |volume: VolumeId| match roots.get(&volume) {
            Some(root) => mark_in(root, host).is_some_and(|mark| mark < record.position),
            // Somebody removed it, and may put it back.
            None => !gone.contains(&volume) && !canary::active!("missing_root_needs_nothing"),
        };
        if record.named_volumes().into_iter().any(is_needed) {
            target = target.min(record.position);
        }
    }
    if target == low
        && let Some(record) = records.first()
    {
        report_claims(host, record, &roots);
    }
    target
}

/// Logs which volumes hold the mark although nobody serves them: a claimant died before it adopted the volume,
/// and no host will move that root by itself.
fn report_claims(host: HostId, record: &Record, roots: &BTreeMap<VolumeId, Root>) {
    let named = record.named_volumes();
    let claimed = named.iter().filter_map(|volume| roots.get(volume));
    for root in claimed {
        let before = root.predecessor.filter(|before| before.host == host);
        if before.is_some_and(|before| before.mark < record.position) {
            tracing::warn!(
                volume = root.name,
                %host,
                position = record.position.0,
                "a take-over of this volume was begun and not ended: no record of that host's log goes from here \
                 on; open the volume once, and close it"
            );
        }
    }
}

/// The position up to which a root has everything of this log, if the root depends on the log.
fn mark_in(root: &Root, host: HostId) -> Option<Position> {
    match (root.predecessor, &root.owner) {
        (Some(before), _) if before.host == host => Some(before.mark),
        (_, Some(owner)) if owner.host == host => Some(root.mark),
        _ => None,
    }
}

/// The roots of those of the volumes that have one. `None`: a root cannot be read.
async fn roots_of(
    port: &impl LogPort,
    named: &BTreeSet<VolumeId>,
    names: &BTreeMap<VolumeId, String>,
) -> Option<BTreeMap<VolumeId, Root>> {
    let known = named.iter().filter_map(|volume| names.get(volume));
    let known: BTreeSet<&str> = known.map(String::as_str).collect();
    let mut roots = read_roots(port, named, known.iter().copied()).await?;
    if named.iter().all(|volume| roots.contains_key(volume)) {
        return Some(roots);
    }
    let keys = list(port, ROOT_PREFIX).await;
    let others = keys.iter().filter_map(|(key, _)| volume_of_root_key(key));
    let others = others.filter(|name| !known.contains(name));
    roots.extend(read_roots(port, named, others).await?);
    Some(roots)
}

/// Those of the volumes that were deleted and whose names other volumes have taken.
async fn find_deleted(
    port: &impl LogPort,
    rootless: impl Iterator<Item = &VolumeId>,
) -> BTreeSet<VolumeId> {
    let mut gone = BTreeSet::new();
    for volume in rootless {
        match has_tombstone(port, *volume).await {
            true => _ = gone.insert(*volume),
            false => tracing::warn!(
                %volume,
                "this volume's root is not in the store: what logs hold of it stays until it is put back"
            ),
        }
    }
    gone
}

/// Reads the roots of these names, and keeps those that belong to the volumes. `None`: a root cannot be read.
async fn read_roots<'a>(
    port: &impl LogPort,
    volumes: &BTreeSet<VolumeId>,
    names: impl Iterator<Item = &'a str>,
) -> Option<BTreeMap<VolumeId, Root>> {
    let names: Vec<_> = names.collect();
    let mut roots = BTreeMap::new();
    for names in names.chunks(SIDE_BY_SIDE) {
        let read = names.iter().map(|name| Box::pin(read_root(port, name)));
        for found in join_all(read.collect()).await {
            match found {
                Ok(standing) if volumes.contains(&standing.root.volume) => {
                    roots.insert(standing.root.volume, standing.root);
                }
                Ok(_) | Err(UpdateError::Missing) => {}
                Err(_) => return None,
            }
        }
    }
    Some(roots)
}

async fn read_low(port: &impl LogPort, host: HostId) -> Option<(Position, Version)> {
    let found = read_decoded(port, &low_key(host), LowMark::decode).await;
    let (low, version) = found.ok().flatten()?;
    Some((low.position, version))
}

/// Raises the mark in the store, unless it is that high already.
async fn write_low_mark(
    port: &impl LogPort,
    host: HostId,
    target: Position,
    mut version: Version,
) -> Option<Position> {
    let data = LowMark {
        host,
        position: target,
    }
    .encode();
    let mut pauses = Pauses::new();
    loop {
        let op = StoreOp::Update {
            key: low_key(host),
            data: data.clone(),
            version: version.clone(),
        };
        if let Ok(StoreReply::Written { .. }) = port.store(op).await {
            return Some(target);
        }
        let (standing, now) = read_low(port, host).await?;
        if standing >= target {
            return Some(standing);
        }
        version = now;
        pauses.wait(port).await;
    }
}

/// Removes the records below the low mark that stands in the store.
pub async fn remove_records(port: &impl LogPort, host: HostId, low: Position) {
    let keys = list(port, &format!("{HOST_PREFIX}{host}/log/")).await;
    let below = keys.iter().filter_map(|(key, _)| record_of_key(key));
    for (_, position) in below.filter(|(_, position)| *position < low) {
        let key = record_key(host, position);
        if let Err(error) = port.store(StoreOp::Delete { key }).await {
            tracing::debug!(
                position = position.0,
                ?error,
                "a record is removed another time"
            );
        }
    }
}
