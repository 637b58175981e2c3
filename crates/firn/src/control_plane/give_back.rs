//! Brings everything that a log holds to the store, and gives all its volumes back.
//!
//! The way out of a poisoned log, and to a log on another disk or of another size: afterwards the log
//! holds nothing that the store lacks, and any host may open its volumes. It runs in a process without
//! clients. Nothing is taken over and nothing is dropped: what cannot be brought to the store is named.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::stream::{self, StreamExt};
use serde::Serialize;
use volume::{OpenError, OpenMode, RecoveryReport};

use crate::control_plane::ControlPlane;
use crate::control_plane::attach::is_snapshot;
use crate::failure::{Failure, FailureCode, Result};

/// Volumes that are given back side by side.
const CONCURRENCY: usize = 16;

/// A volume that is in the store now, up to all that its log had durable.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GivenBackVolume {
    pub(crate) name: String,
    /// The newest commit in the store.
    pub(crate) stored_lsn: u64,
    /// Writes after its last FLUSH are lost: the log was poisoned, or the index ring is gone.
    pub(crate) lost_unflushed: bool,
    /// It is recorded with a disk, which has shown those writes and is not served again.
    pub(crate) disk_ended: bool,
}

/// What the log held, and what became of it.
#[derive(Debug, Default)]
pub(crate) struct GiveBackReport {
    pub(crate) volumes: Vec<GivenBackVolume>,
    /// By volume: why what the log holds of it could not be brought to the store. A volume may have several
    /// tails, so several reasons.
    pub(crate) left: BTreeMap<String, Vec<Failure>>,
}

impl GiveBackReport {
    /// Volumes of which more stays behind than tails that are kept for rescue: their disks may have shown it.
    pub(crate) fn abandoned(&self) -> impl Iterator<Item = &String> {
        let is_more = |why: &Failure| why.code != FailureCode::TailWanted;
        let left = self.left.iter();
        let more = left.filter(move |(_, reasons)| reasons.iter().any(is_more));
        more.map(|(name, _)| name)
    }
}

/// Why what a log holds of a volume is not in the store.
pub(crate) fn describe_reasons(reasons: &[Failure]) -> String {
    let reasons: Vec<&str> = reasons.iter().map(|why| why.detail.as_str()).collect();
    reasons.join(" And: ")
}

/// Whether waiting and trying again cannot bring the tail to the store. What may still get there is never
/// given up: a store that fails now, an answer that was lost.
pub(crate) fn is_final(failure: &Failure) -> bool {
    use FailureCode as C;
    matches!(
        failure.code,
        C::TailWanted
            | C::NoSuchVolume
            | C::VolumeHeld
            | C::VolumeFenced
            | C::VolumeDeleted
            | C::RootMissing
            | C::StoreWentBack
            | C::HostCloned
            | C::HostRetired
            | C::Corrupt
    )
}

impl ControlPlane {
    /// Gives back every volume of this log. No volume is open yet.
    pub(crate) async fn give_back_all(&self, report: &RecoveryReport) -> GiveBackReport {
        if canary::active!("rescue_gives_nothing_back") {
            return GiveBackReport::default();
        }
        let tails = report.tails.iter().filter(|tail| !tail.rescue);
        let tails: BTreeSet<String> = tails.map(|tail| tail.volume.clone()).collect();
        let mut names = tails.clone();
        let attached = self.disks.attached.all().into_keys();
        // A snapshot has nothing in any log.
        names.extend(attached.filter(|name| !is_snapshot(name)));
        let given_back = stream::iter(names).map(|name| async {
            let result = self.give_back(&name, tails.contains(&name)).await;
            (name, result)
        });
        let mut all = GiveBackReport::default();
        let results: Vec<_> = given_back.buffer_unordered(CONCURRENCY).collect().await;
        for (name, result) in results {
            match result {
                Ok(Some(stored_lsn)) => {
                    let lost_unflushed = report.rings_lost.contains(&name);
                    all.volumes.push(GivenBackVolume {
                        disk_ended: lost_unflushed && self.disks.attached.disk(&name).is_some(),
                        lost_unflushed,
                        name,
                        stored_lsn,
                    });
                }
                Ok(None) => {}
                Err(failure) => all.left.entry(name).or_default().push(failure),
            }
        }
        for tail in self.rescue_tails().tails {
            // One that waits is not open because of a failure that is there already.
            let reasons = all.left.entry(tail.volume.clone()).or_default();
            if tail.rescue || reasons.is_empty() {
                reasons.push(kept_for_rescue(&tail.id));
            }
        }
        all.volumes.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Opens and closes one volume; the newest commit in the store then. `None` if this log holds
    /// nothing of it: it was recorded as attached here, and another host has it, or nobody.
    async fn give_back(&self, name: &str, has_tail: bool) -> Result<Option<u64>> {
        if !has_tail {
            match self.host.show_volume(name).await {
                Ok(info) if info.owner.as_ref().map(|owner| owner.host) == self.host.id() => {}
                Ok(_) | Err(OpenError::NoSuchVolume(_)) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        let open = self.open_unbound(name, OpenMode::default()).await?;
        self.close_with_reports(&open).await?;
        Ok(Some(open.volume.watermarks().stored.lsn.0))
    }
}

fn kept_for_rescue(tail: &str) -> Failure {
    Failure::new(
        FailureCode::TailWanted,
        format!(
            "tail {tail} is kept for rescue: another host took the volume over, and its writes are in \
             this log alone"
        ),
    )
}
