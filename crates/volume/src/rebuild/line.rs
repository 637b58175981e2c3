//! Which slices are the volume's history, and in which order. Pure: it reads nothing.
//!
//! - A slice is *void* if a newer epoch or hold gave out its LSNs again: its owner was fenced, and nobody was ever shown it.
//! - Slices that are left of one volume are of one line of owners, so the LSN orders them. Two that were cut of the same
//!   part of it hold the same commits: the one that goes further lies over the other.
//! - Slices are committed in order. So if one was, all before it were.
//! - A *copy* that a compaction made is what the volume was at an LSN that was committed, as far as it goes. It lies over
//!   all slices up to there, and below those that go further. It is void by nobody's word, and fills no gap.
//! - One of which nothing says that it was committed counts only where it goes on from what counts without a gap.

use std::collections::{BTreeMap, BTreeSet};

use super::base::Base;
use super::content::Content;
use super::holds::HoldStarts;
use super::logs::{CommitEvidence, Logs};
use super::target::Target;
use super::{LeftOut, LeftOutReason, Unknown};
use crate::check::footers::PackPart;
use crate::units::{Epoch, HostId, Lsn, VolumeId};

/// A volume's history.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// In the order in which they are laid over each other.
    pub(super) taken: Vec<PackPart>,
    pub(super) left_out: Vec<LeftOut>,
    /// Those of the taken ones of which nothing says that they were committed.
    uncertain: BTreeSet<(Epoch, Lsn, Lsn)>,
    /// LSNs of which no pack is there.
    gaps: Vec<(Lsn, Lsn)>,
    /// The newest LSN.
    pub(super) lsn: Lsn,
    /// The newest epoch of which there is a slice of the volume itself, and its owner.
    pub(super) newest: Option<(Epoch, HostId)>,
}

impl Lines {
    /// What they do not tell.
    pub(super) fn unknown(&self, content: &Content) -> Vec<Unknown> {
        let commits = self.uncertain.iter();
        let commits = commits.map(|(epoch, first, last)| Unknown::Commit {
            epoch: *epoch,
            first: *first,
            last: *last,
        });
        let gaps = self.gaps.iter().map(|(first, last)| Unknown::Gap {
            first: *first,
            last: *last,
            bytes: content.bytes_before(*first),
        });
        gaps.chain(commits).collect()
    }
}

/// The part of a volume's history that is wanted.
struct HistoryRange {
    origin: VolumeId,
    /// What is older is not.
    from: Lsn,
    /// What is newer is not.
    to: Lsn,
    /// Up to here it was committed.
    committed: Lsn,
}

/// One slice, and the packs that hold it.
type SliceKey = (Lsn, Epoch, Lsn, u64);

fn key(part: &PackPart) -> SliceKey {
    let slice = &part.slice;
    (
        slice.last,
        slice.epoch,
        slice.begin,
        part.session.session.random,
    )
}

pub(super) fn judge(target: &Target, base: &Base, parts: Vec<PackPart>, logs: &Logs) -> Lines {
    let mut lines = Lines::default();
    let mut by_origin: BTreeMap<VolumeId, Vec<PackPart>> = BTreeMap::new();
    for part in parts {
        by_origin.entry(part.slice.origin).or_default().push(part);
    }
    for wanted in wanted(target, base) {
        let parts = by_origin.remove(&wanted.origin).unwrap_or_default();
        if wanted.origin == target.volume {
            let own = parts.iter().filter(|it| !it.slice.is_copy_of_a_fork());
            let owners = own.map(|it| (it.slice.epoch, it.session.host));
            lines.newest = owners.max();
        }
        judge_origin(&wanted, parts, logs, &mut lines);
    }
    lines
}

/// The parts of the histories of the volume and of what it was forked from, the oldest first.
fn wanted(target: &Target, base: &Base) -> Vec<HistoryRange> {
    let mut all = Vec::new();
    let mut from = base.lsn;
    for ancestor in target.lineage.iter().rev() {
        if ancestor.last > from {
            all.push(HistoryRange {
                origin: ancestor.volume,
                from,
                to: ancestor.last,
                committed: ancestor.last,
            });
            from = ancestor.last;
        }
    }
    all.push(HistoryRange {
        origin: target.volume,
        from,
        to: target.root.as_ref().map_or(Lsn(u64::MAX), |root| root.lsn),
        committed: target.known_lsn().max(from),
    });
    all
}

fn judge_origin(wanted: &HistoryRange, parts: Vec<PackPart>, logs: &Logs, lines: &mut Lines) {
    let holds = HoldStarts::of(parts.iter().map(|part| &part.slice));
    let mut slices: BTreeMap<SliceKey, Vec<PackPart>> = BTreeMap::new();
    let is_wanted = |part: &PackPart| part.slice.last > wanted.from && part.slice.last <= wanted.to;
    for part in parts.into_iter().filter(is_wanted) {
        slices.entry(key(&part)).or_default().push(part);
    }
    let is_void = |part: &PackPart| {
        holds.make_void(&part.slice) && !canary::active!("the_rebuild_orders_by_lsn_alone")
    };
    let committed = slices
        .values()
        .map(|parts| &parts[0])
        .filter(|part| {
            let is_named =
                || !is_void(part) && logs.commit_evidence(part) == CommitEvidence::Committed;
            part.slice.is_copy() || is_named()
        })
        .map(|part| part.slice.last)
        .chain([wanted.committed])
        .max()
        .unwrap_or_default();
    let mut covered: Vec<(Lsn, Lsn)> = Vec::new();
    let mut reached = wanted.from;
    for ((last, epoch, first, _), parts) in slices {
        if parts[0].slice.is_copy() {
            reached = reached.max(last);
            lines.taken.extend(parts);
            continue;
        }
        let is_whole = parts.len() >= parts[0].slice.packs as usize;
        let commit_evidence = match logs.commit_evidence(&parts[0]) {
            CommitEvidence::NotCommitted => CommitEvidence::NotCommitted,
            _ if last <= committed => CommitEvidence::Committed,
            commit_evidence => commit_evidence,
        };
        let goes_on = first <= reached.next() && is_whole;
        let goes_on = goes_on || canary::active!("the_rebuild_takes_what_has_a_gap_before_it");
        let reason = match commit_evidence {
            _ if is_void(&parts[0]) => Some(LeftOutReason::Void),
            CommitEvidence::NotCommitted if canary::active!("the_rebuild_reads_no_logs") => None,
            CommitEvidence::NotCommitted => Some(LeftOutReason::NotCommitted),
            CommitEvidence::Silent if !goes_on => Some(LeftOutReason::Behind),
            CommitEvidence::Committed | CommitEvidence::Silent | CommitEvidence::None => None,
        };
        if let Some(reason) = reason {
            lines.left_out.push(LeftOut {
                epoch,
                first,
                last,
                reason,
            });
            continue;
        }
        if commit_evidence != CommitEvidence::Committed {
            lines.uncertain.insert((epoch, first, last));
        }
        if is_whole {
            covered.push((first, last));
        }
        reached = reached.max(last);
        lines.taken.extend(parts);
    }
    if wanted.committed < Lsn(u64::MAX) {
        reached = reached.max(wanted.committed);
    }
    lines.gaps.extend(gaps(wanted.from, reached, covered));
    lines.lsn = lines.lsn.max(reached);
}

/// The LSNs behind `from` and up to `to` that none of the slices has.
fn gaps(from: Lsn, to: Lsn, mut covered: Vec<(Lsn, Lsn)>) -> Vec<(Lsn, Lsn)> {
    covered.sort_unstable();
    let mut gaps = Vec::new();
    let mut next = from.next();
    for (first, last) in covered {
        if first > next {
            gaps.push((next, Lsn(first.0 - 1)));
        }
        next = next.max(last.next());
    }
    if next <= to {
        gaps.push((next, to));
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_no_slice_has() {
        let lsn = |(first, last)| (Lsn(first), Lsn(last));
        let found = |from, to, covered: &[(u64, u64)]| {
            let covered = covered.iter().copied().map(lsn).collect();
            let found = gaps(Lsn(from), Lsn(to), covered);
            let found = found.into_iter().map(|(first, last)| (first.0, last.0));
            found.collect::<Vec<_>>()
        };
        assert_eq!(found(0, 0, &[]), []);
        assert_eq!(found(0, 9, &[]), [(1, 9)]);
        assert_eq!(found(0, 9, &[(4, 6), (1, 5), (7, 9)]), []);
        assert_eq!(found(2, 9, &[(5, 6), (1, 3)]), [(4, 4), (7, 9)]);
        assert_eq!(found(5, 5, &[(1, 3)]), []);
    }
}
