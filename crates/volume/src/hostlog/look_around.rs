//! The look around after a won create: the host compares the store with what it knows before it reports slices as
//! stored.
//!
//! A won create proves that nothing stood at its position. It does not prove that the log before it is the one
//! that this host wrote, nor that the packs and roots are still there: while the host slept it may have been
//! retired or copied, or the bucket may have been set back.

use std::collections::BTreeMap;
use std::pin::Pin;

use super::marks::LowMark;
use super::names::{Position, SessionName, low_key, record_key};
use super::notes::LogState;
use super::port::{
    self, LogPort, LookLimit, NoAnswer, ReadOutcome, read_decoded, read_decoded_within_limit,
    read_record,
};
use super::record::{Record, Slices};
use super::stop::Stop;
use crate::driver::StoreOp;
use crate::jobs::join_all;
use crate::object::FormatError;
use crate::object::pack::HEADER_BYTES;
use crate::object::root::Root;
use crate::object::root_key;
use crate::units::{Epoch, HostId, VolumeId};

/// Packs whose presence is checked in parallel.
const LOOKS_AT_ONCE: usize = 64;

/// A volume that this host owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedVolume {
    /// Its name.
    pub name: String,
    /// The epoch in which it is owned.
    pub epoch: Epoch,
    /// Whether its root was read after a record of the epoch.
    pub(super) is_verified: bool,
}

/// The volumes that this host owns.
pub(super) type OwnedVolumes = BTreeMap<VolumeId, OwnedVolume>;

/// Why the host cannot tell whether a record's slices of a volume are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnverifiedReason {
    /// The volume's root is gone, and no tombstone stands there.
    RootMissing,
    /// Its root cannot be read.
    RootUnreadable(FormatError),
    /// The store answers, but not about this object.
    NoAnswer(String),
}

/// What the look around found out about volumes.
#[derive(Debug, Default)]
pub(super) struct LookAroundResult {
    /// Volumes that another host has taken.
    pub(super) fenced: Vec<VolumeId>,
    /// Volumes of which nothing is reported as stored for now. They do not hold up the others.
    pub(super) unverified: Vec<(VolumeId, UnverifiedReason)>,
}

/// Compares the store with what this host knows, once its record stands in its log.
///
/// # Errors
///
/// If something in the store contradicts what the host knows.
pub(super) async fn look_around(
    port: &impl LogPort,
    own: SessionName,
    state: &LogState,
    volumes: &mut OwnedVolumes,
    (record, slices): (&Record, &Slices),
) -> Result<LookAroundResult, Stop> {
    let host = record.log;
    // A record of an earlier start, which may have died before its look around. The tails of its volumes wait to
    // be opened, and opening drops what the root has from them: so its packs must be proved present.
    let is_waiting = |(volume, epoch): &(VolumeId, Epoch)| {
        let owned = volumes.get(volume);
        slices.of(*volume, *epoch).next().is_some()
            && owned.is_none_or(|owned| owned.epoch != *epoch)
            && !canary::active!("packs_of_a_dead_server_are_believed")
    };
    let waiting: Vec<_> = match record.writer == own {
        true => Vec::new(),
        false => slices
            .volumes
            .iter()
            .filter(|named| is_waiting(named))
            .collect(),
    };
    let limit = LookLimit::of(waiting.is_empty());
    let packs = start_checks(port, state, (record, slices), &limit).await?;
    let has = |volume: VolumeId, epoch: Epoch, of: &[u16]| {
        let mut packs = slices.of(volume, epoch).map(|(slice, _)| slice.pack);
        packs.find(|pack| of.contains(pack))
    };
    if waiting
        .iter()
        .any(|(volume, epoch)| has(*volume, *epoch, &packs.missing).is_some())
    {
        return Err(packs_gone(record));
    }
    let is_missing = |volume, epoch| has(volume, epoch, &packs.missing).is_some();
    let looks = |(volume, epoch): &(VolumeId, Epoch)| {
        let owned = volumes.get(volume).filter(|owned| owned.epoch == *epoch)?;
        let has_slices = slices.of(*volume, *epoch).next().is_some();
        let is_first = !owned.is_verified && !canary::active!("roots_are_not_read");
        let looks = has_slices && (is_first || is_missing(*volume, *epoch));
        looks.then(|| (*volume, *epoch, owned.name.clone()))
    };
    let looked_at: Vec<_> = slices.volumes.iter().filter_map(looks).collect();
    let roots = looked_at
        .iter()
        .map(|(_, _, name)| Box::pin(read_root(port, name, &limit)));
    let roots = join_all(roots.collect()).await;
    let mut around = LookAroundResult::default();
    for (volume, epoch) in &slices.volumes {
        if let Some(pack) = has(*volume, *epoch, &packs.unanswered) {
            let pack = &slices.packs[usize::from(pack)];
            let key = record.session_of(pack).pack_key(pack.number);
            around
                .unverified
                .push((*volume, UnverifiedReason::NoAnswer(key)));
        }
    }
    for ((volume, epoch, _), root) in looked_at.into_iter().zip(roots) {
        match judge(root, volume, epoch, host)? {
            Holder::Other => around.fenced.push(volume),
            Holder::This if is_missing(volume, epoch) => {
                return Err(packs_gone(record));
            }
            Holder::This => {
                if let Some(owned) = volumes.get_mut(&volume) {
                    owned.is_verified = true;
                }
            }
            Holder::Unknown(doubt) => around.unverified.push((volume, doubt)),
        }
    }
    Ok(around)
}

fn packs_gone(record: &Record) -> Stop {
    let key = record_key(record.log, record.position);
    Stop::set_back(format!("packs of {key} are gone"))
}

/// Packs of a record that were not found.
#[derive(Debug, Default)]
struct PackLookups {
    missing: Vec<u16>,
    unanswered: Vec<u16>,
}

/// The checks that every record gets, in parallel: the low mark, the previous record, the packs.
async fn start_checks(
    port: &impl LogPort,
    state: &LogState,
    (record, slices): (&Record, &Slices),
    limit: &LookLimit,
) -> Result<PackLookups, Stop> {
    type Look<'a> = Pin<Box<dyn Future<Output = Result<PackLookups, Stop>> + Send + 'a>>;
    let host = record.log;
    let own: Look<'_> = Box::pin(async move {
        type Own<'a> = Pin<Box<dyn Future<Output = Result<(), Stop>> + Send + 'a>>;
        let low: Own<'_> = Box::pin(check_low_mark(port, host, record.position));
        let previous: Own<'_> = Box::pin(check_previous(port, host, state));
        let found = join_all(vec![low, previous]).await;
        limit.set_answered();
        found.into_iter().collect::<Result<(), Stop>>()?;
        Ok(PackLookups::default())
    });
    let packs: Look<'_> =
        Box::pin(async move { Ok(check_packs(port, record, slices, limit).await) });
    let mut looks = PackLookups::default();
    for found in join_all(vec![own, packs]).await {
        let found = found?;
        looks.missing.extend(found.missing);
        looks.unanswered.extend(found.unanswered);
    }
    Ok(looks)
}

/// Who holds a volume, according to its root.
enum Holder {
    This,
    Other,
    /// The root could not be read.
    Unknown(UnverifiedReason),
}

/// What the root says about this host's epoch.
fn judge(
    root: Result<Root, UnverifiedReason>,
    volume: VolumeId,
    epoch: Epoch,
    host: HostId,
) -> Result<Holder, Stop> {
    let root = match root {
        Ok(root) => root,
        Err(_) if canary::active!("one_root_stops_the_host") => {
            return Err(Stop::set_back(format!(
                "the root of volume {volume} is gone"
            )));
        }
        Err(doubt) => return Ok(Holder::Unknown(doubt)),
    };
    let name = &root.name;
    // Epochs of a name keep rising when the volume is deleted and created again.
    if root.epoch > epoch {
        return Ok(Holder::Other);
    }
    if root.epoch < epoch || root.volume != volume {
        return Err(Stop::set_back(format!(
            "the root of {name} is of epoch {}, and this host took {}",
            root.epoch.0, epoch.0
        )));
    }
    match &root.owner {
        Some(owner) if owner.host == host && !root.deleted => Ok(Holder::This),
        _ => Err(Stop::Cloned(format!(
            "the root of {name} names no owner, or another, in this host's epoch {}",
            epoch.0
        ))),
    }
}

async fn read_root(
    port: &impl LogPort,
    name: &str,
    limit: &LookLimit,
) -> Result<Root, UnverifiedReason> {
    let key = root_key(name);
    match read_decoded_within_limit(port, &key, limit, Root::decode).await {
        ReadOutcome::Found(root) => Ok(root),
        ReadOutcome::Missing => Err(UnverifiedReason::RootMissing),
        ReadOutcome::Unreadable(error) => Err(UnverifiedReason::RootUnreadable(error)),
        ReadOutcome::NoAnswer => Err(UnverifiedReason::NoAnswer(key)),
    }
}

async fn check_low_mark(port: &impl LogPort, host: HostId, position: Position) -> Result<(), Stop> {
    if canary::active!("low_mark_is_not_read") {
        return Ok(());
    }
    let found = look_at_low_mark(port, host).await;
    match found.map_err(|error| Stop::unreadable(&low_key(host), &error))? {
        Some(low) if low <= position => Ok(()),
        Some(low) => Err(Stop::Retired(format!(
            "{} is {}, above this host's newest record {}",
            low_key(host),
            low.0,
            position.0
        ))),
        None => Err(Stop::Retired(format!("{} is gone", low_key(host)))),
    }
}

/// A host's low mark. None if there is none that can be read.
pub(crate) async fn read_low_mark(port: &impl LogPort, host: HostId) -> Option<Position> {
    look_at_low_mark(port, host).await.ok().flatten()
}

/// Reads the low mark, and tells a damaged one from a missing one.
async fn look_at_low_mark(
    port: &impl LogPort,
    host: HostId,
) -> Result<Option<Position>, FormatError> {
    let found = read_decoded(port, &low_key(host), LowMark::decode).await?;
    match found {
        Some((low, _)) if low.host != host => {
            Err(FormatError::Corrupt("the low mark of another host"))
        }
        found => Ok(found.map(|(low, _)| low.position)),
    }
}

/// Checks that the record before the next position is the one this host knows, or lies below the low mark. Below
/// it there may be nothing, or a fence that a taker put too low.
///
/// # Errors
///
/// If another record stands there, or none.
pub(crate) async fn check_previous(
    port: &impl LogPort,
    host: HostId,
    state: &LogState,
) -> Result<(), Stop> {
    let before = state.next.previous();
    if before < Position::FIRST || canary::active!("record_before_is_not_read") {
        return Ok(());
    }
    let found = read_record(port, host, before).await;
    if matches!(&found, Ok(Some(found)) if found.digest == state.previous) {
        return Ok(());
    }
    // Read after the record, because a collector raises the low mark before it removes records.
    match read_low_mark(port, host).await {
        Some(low) if low <= before => {
            let key = record_key(host, before);
            Err(Stop::set_back(format!("{key} is not what stood there")))
        }
        // Low marks only rise, and one goes only with a host that no root names.
        None if state.has_low_mark && !canary::active!("lost_low_mark_says_nothing") => {
            let (low, key) = (low_key(host), record_key(host, before));
            Err(Stop::set_back(format!("{low} and {key} are gone")))
        }
        _ => Ok(()),
    }
}

/// Checks whether the record's packs are still in the store.
async fn check_packs(
    port: &impl LogPort,
    record: &Record,
    slices: &Slices,
    limit: &LookLimit,
) -> PackLookups {
    let mut looks = PackLookups::default();
    if canary::active!("packs_are_not_looked_for") {
        return looks;
    }
    // A pack that slices share has a row for each of them.
    let mut rows: BTreeMap<String, Vec<u16>> = BTreeMap::new();
    for (at, pack) in (0..).zip(&slices.packs) {
        let key = record.session_of(pack).pack_key(pack.number);
        rows.entry(key).or_default().push(at);
    }
    let look_at = |key: &String| {
        let op = StoreOp::GetRange {
            key: key.clone(),
            offset: 0,
            len: HEADER_BYTES as u64,
        };
        Box::pin(async move { port::read_within_limit(port, &op, limit).await })
    };
    let rows: Vec<_> = rows.into_iter().collect();
    for window in rows.chunks(LOOKS_AT_ONCE) {
        let found = join_all(window.iter().map(|(key, _)| look_at(key)).collect()).await;
        for ((_, rows), found) in window.iter().zip(found) {
            match found {
                Ok(Some(_)) => {}
                Ok(None) => looks.missing.extend(rows),
                Err(NoAnswer) => looks.unanswered.extend(rows),
            }
        }
    }
    looks
}
