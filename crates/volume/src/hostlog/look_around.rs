//! The look around after a won create: only what fits may be called stored.
//!
//! A create that is won proves that nothing stood at its position. It does not prove that the log
//! before it is the one that this host wrote, nor that its packs and roots are still there: the host
//! may have slept while it was retired, copied, or the bucket set back.

use std::collections::BTreeMap;
use std::pin::Pin;

use super::marks::LowMark;
use super::names::{Position, low_key, record_key};
use super::notes::LogState;
use super::port::{LogPort, read_decoded, read_record};
use super::record::{Record, RecordPack, Slices};
use super::stop::Stop;
use crate::driver::{StoreError, StoreOp, StoreReply};
use crate::jobs::join_all;
use crate::object::pack::HEADER_BYTES;
use crate::object::root::Root;
use crate::object::root_key;
use crate::units::{Epoch, HostId, VolumeId};

/// A volume that this host owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// Its name.
    pub name: String,
    /// The epoch in which it is owned.
    pub epoch: Epoch,
    /// Whether its root was read after a record of the epoch.
    pub(super) is_verified: bool,
}

/// The volumes that this host owns.
pub(super) type OwnedVolumes = BTreeMap<VolumeId, Owned>;

/// Compares the store with what this host knows, after its record was found in its log. Gives the
/// volumes that turned out to be another host's.
///
/// # Errors
/// If something does not fit.
pub(super) async fn look_around(
    port: &impl LogPort,
    state: &LogState,
    volumes: &mut OwnedVolumes,
    (record, slices): (&Record, &Slices),
) -> Result<Vec<VolumeId>, Stop> {
    let host = record.log;
    let missing = look(port, state, record, slices).await?;
    let is_missing = |volume: VolumeId, epoch: Epoch| {
        let mut packs = slices.of(volume, epoch).map(|(slice, _)| slice.pack);
        packs.any(|pack| missing.contains(&pack))
    };
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
        .map(|(_, _, name)| Box::pin(read_root(port, name)));
    let roots = join_all(roots.collect()).await;
    let mut fenced = Vec::new();
    for ((volume, epoch, _), root) in looked_at.into_iter().zip(roots) {
        match judge(root, volume, epoch, host)? {
            Holder::Other => fenced.push(volume),
            Holder::This if is_missing(volume, epoch) => {
                let what = format!("packs of {} are gone", record_key(host, record.position));
                return Err(Stop::set_back(what));
            }
            Holder::This => {
                if let Some(owned) = volumes.get_mut(&volume) {
                    owned.is_verified = true;
                }
            }
        }
    }
    Ok(fenced)
}

/// The looks that every record gets, side by side: the low mark, the record before, the packs. Gives the
/// packs that are missing.
async fn look(
    port: &impl LogPort,
    state: &LogState,
    record: &Record,
    slices: &Slices,
) -> Result<Vec<u16>, Stop> {
    type Look<'a> = Pin<Box<dyn Future<Output = Result<Vec<u16>, Stop>> + Send + 'a>>;
    let host = record.log;
    let low: Look<'_> = Box::pin(async move {
        check_low_mark(port, host, record.position).await?;
        Ok(Vec::new())
    });
    let previous: Look<'_> = Box::pin(async move {
        check_previous(port, host, state).await?;
        Ok(Vec::new())
    });
    let packs: Look<'_> = Box::pin(async move { Ok(missing_packs(port, record, slices).await) });
    let mut missing = Vec::new();
    for found in join_all(vec![low, previous, packs]).await {
        missing.extend(found?);
    }
    Ok(missing)
}

/// Who holds a volume, by its root.
enum Holder {
    This,
    Other,
}

/// What the root says about this host's epoch.
fn judge(root: Option<Root>, volume: VolumeId, epoch: Epoch, host: HostId) -> Result<Holder, Stop> {
    let Some(root) = root else {
        return Err(Stop::set_back(format!(
            "the root of volume {volume} is gone"
        )));
    };
    let name = &root.name;
    // A name's epochs go on over deletion and creation.
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

async fn read_root(port: &impl LogPort, name: &str) -> Option<Root> {
    let found = read_decoded(port, &root_key(name), Root::decode).await;
    found.ok().flatten().map(|(root, _)| root)
}

async fn check_low_mark(port: &impl LogPort, host: HostId, position: Position) -> Result<(), Stop> {
    if canary::active!("low_mark_is_not_read") {
        return Ok(());
    }
    match read_low_mark(port, host).await {
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
pub(super) async fn read_low_mark(port: &impl LogPort, host: HostId) -> Option<Position> {
    let found = read_decoded(port, &low_key(host), LowMark::decode).await;
    let (low, _) = found.ok().flatten()?;
    (low.host == host).then_some(low.position)
}

/// The record before the next one is the one that this host knows, or lies below the low mark: there
/// may be nothing there, or a fence that a taker put too low.
///
/// # Errors
/// If it is another, or gone.
pub(crate) async fn check_previous(
    port: &impl LogPort,
    host: HostId,
    state: &LogState,
) -> Result<(), Stop> {
    let before = state.next.before();
    if before < Position::FIRST || canary::active!("record_before_is_not_read") {
        return Ok(());
    }
    let found = read_record(port, host, before).await;
    if matches!(&found, Ok(Some(found)) if found.digest == state.previous) {
        return Ok(());
    }
    // Read after the record: whoever removes records has raised it before.
    match read_low_mark(port, host).await {
        Some(low) if low <= before => {
            let key = record_key(host, before);
            Err(Stop::set_back(format!("{key} is not what stood there")))
        }
        _ => Ok(()),
    }
}

/// Which of the record's packs are not in the store any more.
async fn missing_packs(port: &impl LogPort, record: &Record, slices: &Slices) -> Vec<u16> {
    if canary::active!("packs_are_not_looked_for") {
        return Vec::new();
    }
    let look = |pack: &RecordPack| {
        let key = record.session_of(pack).pack_key(pack.number);
        Box::pin(async move { is_there(port, key).await })
    };
    let found = join_all(slices.packs.iter().map(look).collect()).await;
    let missing = (0..).zip(found).filter(|(_, found)| !found);
    missing.map(|(at, _)| at).collect()
}

async fn is_there(port: &impl LogPort, key: String) -> bool {
    let mut pauses = super::port::Pauses::new();
    loop {
        let op = StoreOp::GetRange {
            key: key.clone(),
            offset: 0,
            len: HEADER_BYTES as u64,
        };
        match port.store(op).await {
            Ok(StoreReply::Range(_)) => return true,
            Err(StoreError::NotFound) => return false,
            answer => tracing::debug!(key, ?answer, "a look at a pack is tried again"),
        }
        pauses.wait(port).await;
    }
}
