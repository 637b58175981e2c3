//! Follows the names that a volume or snapshot got, from a root that is gone to the one of today.
//!
//! Reads only, and asks names alone: where another has taken one of them, or a root was removed, the trail ends.

use crate::engine::Engine;
use crate::error::OpenError;
use crate::object::root::{RenameMark, RenameStep};
use crate::store::flow::upload_state::KnownRoot;
use crate::store::roots::{read_any_root, why_not_there};
use crate::units::VolumeId;

/// Renamings behind each other that are followed.
const HOPS_MAX: u32 = 16;

/// The root of a volume or snapshot where the names that it got lead from `standing`, which may be its own; none: the trail
/// ends before.
pub(in crate::store) async fn follow_names(
    engine: &Engine,
    standing: &KnownRoot,
    volume: VolumeId,
) -> Result<Option<KnownRoot>, OpenError> {
    let mut head = standing.clone();
    for _ in 0..HOPS_MAX {
        if head.root.volume == volume {
            return Ok(Some(head));
        }
        let is_next = |mark: &RenameMark| mark.step == RenameStep::Gone && mark.volume == volume;
        let Some(mark) = head.root.rename_mark().filter(is_next) else {
            return Ok(None);
        };
        head = match read_any_root(engine, &mark.other).await {
            Err(OpenError::NoSuchVolume(_)) => return Ok(None),
            head => head?,
        };
    }
    Ok(None)
}

/// The error for whoever looks for a volume or snapshot under the name of a deleted root: with its name of today, if it was
/// renamed.
pub(in crate::store) async fn why_not_there_now(
    engine: &Engine,
    standing: &KnownRoot,
) -> OpenError {
    let mark = standing.root.rename_mark();
    let gone = mark.filter(|mark| mark.step == RenameStep::Gone);
    let Some(mark) = gone.filter(|_| !canary::active!("only_the_next_name_is_told")) else {
        return why_not_there(&standing.root);
    };
    let name = standing.root.name.clone();
    let (last_name, is_there) = match follow_names(engine, standing, mark.volume).await {
        Ok(Some(head)) => {
            let is_there = !head.root.deleted || head.root.is_leaving();
            (head.root.name, is_there)
        }
        Ok(None) => (mark.other, false),
        // What is known of it.
        Err(_) => (mark.other, true),
    };
    match is_there {
        true => OpenError::Renamed {
            name,
            new_name: last_name,
        },
        false => OpenError::RenamedAndGone {
            name,
            last_name,
            id: mark.volume,
        },
    }
}
