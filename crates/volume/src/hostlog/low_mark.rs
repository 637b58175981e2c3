//! The low mark of a host: created on the host's first start, raised when records are not needed any more.
//! Records below it are removed only after it was raised.
//!
//! The mark never passes the host's newest own record, nor a record that names a volume whose root still depends
//! on this log with a lower mark. Whoever raises the mark reads every record that it passes, and the one at which
//! it stops, but for those that its own process published ([`super::recent_records`]). A hole, or a record that does not follow its predecessor, means that the store was set back: then
//! the mark stays. It also stays at a record that names a volume without a root and without a tombstone: somebody
//! removed that root, and may put it back.

use std::collections::{BTreeMap, BTreeSet};

use super::marks::LowMark;
use super::names::{HOST_PREFIX, Position, low_key, record_key, record_of_key};
use super::port::{LogPort, Pauses, StoredRecord, list, read_decoded, read_record};
use super::recent_records::RecentRecords;
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
/// `recent` is what the caller, this host, remembers of its own records: they need no reading.
///
/// `names` are those of volumes as far as the caller knows them: whose roots do not stand there are looked for
/// among all.
pub async fn raise_low_mark(
    port: &impl LogPort,
    host: HostId,
    last: Position,
    names: &BTreeMap<VolumeId, String>,
    recent: Option<&RecentRecords>,
) -> Option<Position> {
    let (low, version) = read_low(port, host).await?;
    let recent = recent.filter(|recent| recent.newest.is_some());
    let to_read = recent.map_or(last, |recent| last.min(recent.first.previous()));
    let records = read_records(port, host, low, to_read).await;
    let next = Position(low.0 + records.len() as u64);
    // A run that breaks off before what is remembered is the end of what is known.
    let recent = recent.filter(|recent| next >= recent.first);
    if let Some(recent) = recent
        && !is_still_there(port, host, recent).await
    {
        return Some(low);
    }
    let known = KnownRecords {
        low,
        read: &records,
        recent,
    };
    let target = target(port, host, &known, names).await;
    if target <= low {
        return Some(low);
    }
    write_low_mark(port, host, target, version).await
}

/// The records from the low mark on: those that were read, and behind them those that are remembered.
struct KnownRecords<'a> {
    low: Position,
    read: &'a [Record],
    recent: Option<&'a RecentRecords>,
}

impl KnownRecords<'_> {
    /// The newest record, and the newest that is no fence.
    fn newest(&self) -> (Option<Position>, Option<Position>) {
        let is_own = |record: &&Record| matches!(record.content, Content::Slices(_));
        let own = self.read.iter().rev().find(is_own);
        let read = (
            self.read.last().map(|record| record.position),
            own.map(|record| record.position),
        );
        let recent = self.recent.map(|recent| {
            let newest = recent.newest.map(|(position, _)| position);
            (newest, recent.newest_own)
        });
        let recent = recent.unwrap_or_default();
        (recent.0.or(read.0), recent.1.or(read.1))
    }

    fn volumes(&self) -> BTreeSet<VolumeId> {
        let read = self.read.iter().flat_map(Record::named_volumes);
        read.chain(self.remembered().map(|(volume, _)| volume))
            .collect()
    }

    /// The volumes that remembered records name, each with the newest of these.
    fn remembered(&self) -> impl Iterator<Item = (VolumeId, Position)> {
        let recent = self.recent.into_iter();
        let volumes = recent.flat_map(|recent| &recent.volumes);
        let volumes = volumes.map(|(volume, newest)| (*volume, *newest));
        volumes.filter(|(_, newest)| *newest >= self.low)
    }

    /// The first record that a volume may need, if its root has everything up to `mark`: a remembered volume may
    /// stand in any record up to the newest that names it.
    fn first_needed(&self, volume: VolumeId, mark: Option<Position>) -> Option<Position> {
        let is_behind = |position: Position| mark.is_none_or(|mark| mark < position);
        let mut read = self.read.iter().filter(|record| is_behind(record.position));
        let read = read.find(|record| record.named_volumes().contains(&volume));
        let recent = self.recent.and_then(|recent| {
            let newest = *recent.volumes.get(&volume)?;
            let first = recent.first.max(self.low);
            let from = mark.map_or(first, |mark| mark.next().max(first));
            (newest >= from).then_some(from)
        });
        read.map(|record| record.position).or(recent)
    }
}

/// Whether the newest record that is remembered stands in the store.
async fn is_still_there(port: &impl LogPort, host: HostId, recent: &RecentRecords) -> bool {
    let Some((position, digest)) = recent.newest else {
        return false;
    };
    let found = read_record(port, host, position).await;
    matches!(found, Ok(Some(found)) if found.digest == digest)
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
    known: &KnownRecords<'_>,
    names: &BTreeMap<VolumeId, String>,
) -> Position {
    let low = known.low;
    let (newest, newest_own) = known.newest();
    let mut target = newest_own.unwrap_or(low);
    if canary::active!("low_mark_passes_the_newest") {
        target = newest.map_or(low, Position::next);
    }
    if canary::active!("low_mark_passes_marks") {
        return target;
    }
    let named = known.volumes();
    // Roots are read after the records: a host that becomes a volume's owner meanwhile has a mark above them.
    let Some(roots) = roots_of(port, &named, names).await else {
        return low;
    };
    let gone = find_deleted(port, named.iter().filter(|id| !roots.contains_key(id))).await;
    let mut holding = Vec::new();
    for volume in &named {
        let needed = match roots.get(volume) {
            Some(root) => {
                mark_in(root, host).and_then(|mark| known.first_needed(*volume, Some(mark)))
            }
            // Somebody removed it, and may put it back.
            None if gone.contains(volume) || canary::active!("missing_root_needs_nothing") => None,
            None => known.first_needed(*volume, None),
        };
        if let Some(needed) = needed {
            target = target.min(needed);
            holding.extend((needed <= low).then_some(*volume));
        }
    }
    report_claims(host, low, holding.iter().filter_map(|id| roots.get(id)));
    target
}

/// Logs which volumes hold the mark although nobody serves them: a claimant died before it adopted the volume,
/// and no host will move that root by itself.
fn report_claims<'a>(host: HostId, low: Position, claimed: impl Iterator<Item = &'a Root>) {
    for root in claimed {
        let before = root.predecessor.filter(|before| before.host == host);
        if before.is_some_and(|before| before.mark < low) {
            tracing::warn!(
                volume = root.name,
                %host,
                position = low.0,
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
                // The root of one that is leaving its name may stand under another by now.
                Ok(standing)
                    if standing.root.is_leaving() && !canary::active!("leaving_root_is_asked") => {}
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
