//! The forks that the log keeps (S6), for whoever looks for one by its name.
//!
//! A kept fork is a kept snapshot that has a name of its own and may be written to: [`super::keep_fork`] takes it into the
//! log of its parent, [`super::store_kept`] gives it a root, and until then `open::kept_fork` serves it. Memory only, and
//! looks only.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::request::points::KeptSnapshot;
use crate::request::tail::{Status, Tail};
use crate::store::catalog::volume_spec::VolumeInfo;
use crate::units::{Epoch, VolumeId};

/// The epoch in which the hold of a fork begins that is served before it has a root.
pub(in crate::store) const FIRST_HOLD: Epoch = Epoch(1);

/// The fork of this name, with its parent's tail, if the log keeps it for a volume that goes on here.
pub(in crate::store) fn find_fork(
    engine: &Engine,
    name: &str,
) -> Option<(Arc<Tail>, KeptSnapshot)> {
    let is_it = |kept: &&KeptSnapshot| kept.record.is_fork && kept.record.name == name;
    engine.tails().into_iter().find_map(|tail| {
        let found = {
            let inner = tail.lock();
            let kept = goes_on(inner.status).then(|| inner.points.kept().iter().find(is_it));
            kept.flatten().cloned()
        };
        found
            .filter(|_| !tail.is_rescue())
            .map(|kept| (Arc::clone(&tail), kept))
    })
}

/// Whether what the log has of a volume is gone on with, by this process or the next.
fn goes_on(status: Status) -> bool {
    status.serves() || matches!(status, Status::Dormant | Status::Broken)
}

/// Refuses a name that a fork has which the log keeps, unless it is the one of this identity.
pub(in crate::store) fn check_no_fork(
    engine: &Engine,
    name: &str,
    id: Option<VolumeId>,
) -> Result<(), OpenError> {
    let other = find_fork(engine, name).filter(|(_, kept)| Some(kept.record.id) != id);
    match other.is_some() && !canary::active!("kept_fork_has_no_name") {
        true => Err(OpenError::Exists(name.to_owned())),
        false => Ok(()),
    }
}

/// The forks that the log keeps and whose names are behind this one, by name.
pub(in crate::store) fn forks_behind(
    engine: &Engine,
    after: Option<&str>,
) -> BTreeMap<String, VolumeInfo> {
    let mut found = BTreeMap::new();
    for tail in engine.tails() {
        let inner = tail.lock();
        let kept = inner.points.kept().iter();
        let kept = kept.filter(|kept| {
            let record = &kept.record;
            let is_behind = after.is_none_or(|after| record.name.as_str() > after);
            record.is_fork && kept.is_durable && is_behind
        });
        let infos = kept.map(|kept| (kept.record.name.clone(), info_of(kept, tail.size().block)));
        if goes_on(inner.status) && !tail.is_rescue() {
            found.extend(infos);
        }
    }
    found
}

/// What is known of a fork that has no root yet.
pub(in crate::store) fn info_of(kept: &KeptSnapshot, block: u32) -> VolumeInfo {
    let record = &kept.record;
    VolumeInfo {
        name: record.name.clone(),
        id: record.id,
        bytes: record.bytes,
        block,
        epoch: Epoch(0),
        stored: record.lsn,
        unix_ms: record.unix_ms,
        owner: None,
    }
}

/// A fork may be open under its name, and whoever made it knows it by that: it keeps it.
pub(in crate::store) fn name_is_taken(name: &str) -> OpenError {
    OpenError::Invalid(format!(
        "fork {name} has no place in the store: another host has made a volume of that name since; it stays in the log here \
         until that volume is renamed (`firn volume rename`) or deleted"
    ))
}
