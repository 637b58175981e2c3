//! What differs between two volumes or snapshots that share history: by their indexes alone, no content is read.
//!
//! A side is what the store has: a root, and of a volume that somebody holds what the log of its holder says beyond it.
//! Nodes and pages that both sides name are the same and are not read; neither is a page that deltas cover. A list is
//! made in parts, so that nobody holds a long one in memory; each part says where the next one begins, and of which
//! states it is. A volume that goes on meanwhile is told as it was, as long as its index can tell that; a snapshot
//! always can.
//!
//! [`part`] is what comes of it, [`side`] reads roots and index blocks, [`walk`] finds what is to be compared, [`compare`] compares.

mod compare;
mod part;
mod side;
mod walk;

use std::sync::Arc;

use blkmq::io::SECTOR_BYTES;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::jobs::join_all;
use crate::object::SNAPSHOT_SIGN;
use crate::store::catalog::volume_spec::check_name;
use crate::store::diff::compare::ChangedSpan;
pub use crate::store::diff::part::{ChangedRange, DiffPart, DiffPlace, DiffSide};
use crate::store::diff::side::Side;
use crate::store::diff::walk::{Walk, WalkResult};
use crate::store::forks::kept_snapshots;
use crate::store::forks::snapshot_list::check_snapshot_name;

/// How often a diff is begun again because what it was reading went from the store.
const ROUNDS_MAX: u32 = 8;

/// What of a diff is asked for.
#[derive(Clone, Debug)]
pub(crate) struct DiffRequest {
    pub(crate) from: String,
    pub(crate) to: String,
    /// None: from its beginning on.
    pub(crate) place: Option<DiffPlace>,
    /// So many ranges at most.
    pub(crate) ranges_max: usize,
}

/// A part of what differs between two volumes or snapshots.
pub(crate) async fn diff(
    engine: &Arc<Engine>,
    request: &DiffRequest,
) -> Result<DiffPart, OpenError> {
    for name in [&request.from, &request.to] {
        match name.contains(SNAPSHOT_SIGN) {
            true => drop(check_snapshot_name(name)?),
            false => check_name(name)?,
        }
        kept_snapshots::wait_in_store(engine, name).await?;
    }
    let mut lost = None;
    for _ in 0..ROUNDS_MAX {
        let (from, to) = read_sides(engine, request).await?;
        if !from.shares_history_with(&to) {
            return Err(unrelated(&from, &to));
        }
        let begin = request.place.map_or(0, |place| place.sector);
        let walk = Walk::new(engine, &from, &to, begin, request.ranges_max);
        match walk.run().await? {
            WalkResult::Changed { changed, next } => {
                return Ok(part_of(&from, &to, changed, next));
            }
            // It may have gone because a root has moved; if none has, it is damaged.
            WalkResult::Unreadable(error) => {
                if !from.has_moved(engine).await? && !to.has_moved(engine).await? {
                    return Err(error);
                }
                lost = Some(error);
            }
        }
    }
    Err(lost.unwrap_or_else(|| OpenError::StateGone(request.to.clone())))
}

async fn read_sides(
    engine: &Arc<Engine>,
    request: &DiffRequest,
) -> Result<(Side, Side), OpenError> {
    let place = request.place;
    let from = Side::read(engine, &request.from, place.map(|place| place.from));
    let to = Side::read(engine, &request.to, place.map(|place| place.to));
    let mut sides = join_all(vec![Box::pin(from), Box::pin(to)])
        .await
        .into_iter();
    let mut next = || {
        sides.next().unwrap_or_else(|| {
            Err(OpenError::Internal(
                "a side of a diff was not read".to_owned(),
            ))
        })
    };
    Ok((next()?, next()?))
}

fn unrelated(from: &Side, to: &Side) -> OpenError {
    OpenError::Invalid(format!(
        "{from} and {to} share no history: neither is a snapshot or fork of the other, and they have no parent in \
         common, so their indexes do not tell what is equal. To compare their bytes, export both and use cmp",
        from = from.name(),
        to = to.name()
    ))
}

fn part_of(from: &Side, to: &Side, changed: Vec<ChangedSpan>, next: Option<u64>) -> DiffPart {
    let range = |changed: ChangedSpan| ChangedRange {
        offset: changed.span.start * SECTOR_BYTES,
        bytes: changed.span.bytes(),
        is_zeroed: changed.is_zeroed,
    };
    let (from, to) = (from.describe(), to.describe());
    DiffPart {
        ranges: changed.into_iter().map(range).collect(),
        next: next.map(|sector| DiffPlace {
            from: (from.id, from.lsn),
            to: (to.id, to.lsn),
            sector,
        }),
        from,
        to,
    }
}
