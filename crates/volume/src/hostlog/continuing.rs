//! What a start makes of a tail that it continued, when it has read the volume's root.
//!
//! Until the root was read the tail serves in its old epoch, and publishes nothing, and acknowledges nothing as
//! stored.

use super::names::Position;
use super::stop::Stop;
use crate::object::root::{Owner, Root};
use crate::units::{Epoch, HostId, Lsn, VolumeId};

/// A tail of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnTail {
    /// This host.
    pub host: HostId,
    /// The volume.
    pub volume: VolumeId,
    /// The epoch in which it was owned.
    pub epoch: Epoch,
    /// The host has reported everything up to here as stored.
    pub stored: Lsn,
    /// The newest commit.
    pub newest: Lsn,
    /// The position of the host's next record.
    pub next: Position,
    /// A create at `next` may still reach the store.
    pub is_unresolved: bool,
    /// A record of this host may have ended its epoch.
    pub is_ended: bool,
}

/// What the root says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TailVerdict {
    /// The tail continues in its epoch. Records that the root has beyond the resolved end of the host's own log
    /// count only once the publisher has resolved them: until then a copy of this host may have written them.
    Continues,
    /// The tail continues, but in a new epoch, which the host has to take first.
    Reopens,
    /// Another host has taken the volume: the tail is kept for rescue.
    Fenced,
    /// The root shows that the whole host must stop.
    Stop(Stop),
}

/// Judges a tail by its volume's root.
#[must_use]
pub fn judge_tail(root: &Root, tail: &OwnTail) -> TailVerdict {
    let name = &root.name;
    if root.volume != tail.volume || root.deleted {
        return TailVerdict::Fenced;
    }
    let is_this = |holder: &Option<Owner>| holder.as_ref().is_some_and(|one| one.host == tail.host);
    // An earlier start of this host claimed the volume and never served it.
    let own_claim = is_this(&root.claimant)
        && root
            .predecessor
            .is_some_and(|before| (before.host, before.epoch) == (tail.host, tail.epoch));
    let is_ended = tail.is_ended && !canary::active!("ended_tail_goes_on");
    if is_ended || own_claim {
        return TailVerdict::Reopens;
    }
    if root.epoch > tail.epoch {
        return TailVerdict::Fenced;
    }
    if root.epoch < tail.epoch {
        let what = format!("the root of {name} is older than this host's tail");
        return TailVerdict::Stop(Stop::SetBack(what));
    }
    // An update sent by the previous process may have landed late. It can name only what that process's log has.
    let mark_max = match tail.is_unresolved {
        true => tail.next,
        false => tail.next.previous(),
    };
    if root.lsn > tail.newest || root.mark > mark_max {
        let what = format!("the root of {name} is ahead of this host's own log");
        return TailVerdict::Stop(Stop::Cloned(what));
    }
    match &root.owner {
        Some(_) if is_this(&root.owner) => TailVerdict::Continues,
        Some(_) => TailVerdict::Fenced,
        None => TailVerdict::Reopens,
    }
}
