//! Owns the judgement of the recovery point (S3): what completed at `t` is in the store by `t` plus the recovery
//! point while the store keeps up; where it does not, the watermark says by how much.
//!
//! Whether the store keeps up is the world's to say, and so is when a request completed. The one thing that
//! is taken from the engine is the watermark, for that is what is judged.

use super::{AttachmentPhase, Phase, ProcessEvent, World};
use crate::trace::Violation;

/// Within this the engine looks at its clocks, also where nothing moves; and how exact its ages are.
const BOOKKEEPING_NS: u64 = 400_000_000;
/// What the way of a slice into the store takes at most, in typical store requests and disk operations.
const STORE_TIMES: u64 = 120;
const DISK_TIMES: u64 = 300;
/// What a store that failed for a while, or a backlog of computing, may cost once all that is over.
const AFTERMATH_NS: u64 = 120_000_000_000;

/// When which commits of a volume were acknowledged, since it came up.
#[derive(Clone, Debug, Default)]
pub(super) struct Completions {
    /// When, and up to which position of the history; both ascend.
    all: Vec<(u64, u64)>,
}

impl Completions {
    /// The volume came up with all up to `position`.
    pub(super) fn restart(&mut self, now: u64, position: u64) {
        self.all = vec![(now, position)];
    }

    /// Commits up to `position` are acknowledged.
    pub(super) fn note(&mut self, now: u64, position: u64) {
        if self.all.last().is_none_or(|(_, last)| *last < position) {
            self.all.push((now, position));
        }
    }

    /// What had been acknowledged by then.
    fn acknowledged_by(&self, moment: u64) -> u64 {
        let count = self.all.partition_point(|(at, _)| *at <= moment);
        count.checked_sub(1).map_or(0, |last| self.all[last].1)
    }

    /// When the first commit beyond `position` was acknowledged.
    fn first_after(&self, position: u64) -> Option<u64> {
        let before = self.all.partition_point(|(_, last)| *last <= position);
        self.all.get(before).map(|(at, _)| *at)
    }
}

/// What a volume's watermark said when its host was lost.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    lost_at: u64,
    /// So old is the oldest commit that the store lacks.
    age_ns: u64,
    completions: Completions,
}

impl World {
    /// Nothing of this world keeps a slice longer on its way than the way is.
    fn keeps_up(&self) -> bool {
        let profile = &self.profile;
        self.is_upload_possible()
            && profile.outage == 0
            && profile.unchecked == 0
            && profile.compute_ns == 0
            && {
                profile.store.unavailable == 0
                    && profile.store.unknown == 0
                    && profile.store.get_failed == 0
            }
    }

    /// Nothing keeps a slice from the store for good.
    fn is_upload_possible(&self) -> bool {
        self.is_single()
            && !self.profile.partial_failures
            && !self.profile.errors_allowed()
            && !self.profile.set_back
    }

    /// How long after its completion a commit must be in the store, where it keeps up.
    fn due_ns(&self) -> u64 {
        let profile = &self.profile;
        let rpo = profile.limits.rpo_ns;
        let way = STORE_TIMES * profile.store_ns + DISK_TIMES * profile.disk_ns;
        // The engine leaves the time that slices took of late, half of the recovery point at most.
        rpo + BOOKKEEPING_NS + 40 * profile.wake_ns + 2 * way.saturating_sub(rpo / 4)
    }

    /// A host is about to be lost: what is due must be in the store, and what its watermarks say is
    /// remembered.
    pub(super) fn note_exposure(&mut self, machine: usize) {
        if !self.is_upload_possible() {
            return;
        }
        let due_ns = match self.phase {
            Phase::LastWait => Some(0),
            Phase::Work if self.keeps_up() => Some(self.due_ns()),
            _ => None,
        };
        let Some(node) = &self.machines[machine].node else {
            return;
        };
        for (nth, attachment) in self.attachments.iter_mut().enumerate() {
            let serving = attachment.phase == AttachmentPhase::Serving;
            let marks = node.watermarks(nth).filter(|_| serving);
            let Some(marks) = marks else { continue };
            let completions = std::mem::take(&mut attachment.completions);
            if let Some(moment) = due_ns.and_then(|due_ns| self.now.checked_sub(due_ns)) {
                attachment
                    .history
                    .on_due(completions.acknowledged_by(moment));
            }
            attachment.claim = Some(Claim {
                lost_at: self.now,
                age_ns: marks.stored.age_ms * 1_000_000,
                completions,
            });
        }
    }

    /// A volume came up with all up to `found`: had it been lost from the store alone, the watermark must have
    /// said how much that would cost.
    pub(super) fn judge_claim(&mut self, attachment: usize, found: u64) -> Result<(), Violation> {
        let here = &mut self.attachments[attachment];
        let claim = here.claim.take();
        here.completions.restart(self.now, found);
        let Some(claim) = claim else { return Ok(()) };
        let Some(first) = claim.completions.first_after(found) else {
            return Ok(());
        };
        let lost_ns = claim.lost_at - first;
        if lost_ns <= claim.age_ns + BOOKKEEPING_NS {
            return Ok(());
        }
        let detail = format!(
            "the loss of the host cost what was acknowledged for {} ms, where the watermark said {} ms",
            lost_ns / 1_000_000,
            claim.age_ns / 1_000_000
        );
        Err(Violation::new("S3 watermark", detail))
    }

    /// Whether this world ends without a sync: the recovery point alone brings all to the store.
    pub(super) fn rests_on_recovery_point(&self) -> bool {
        self.seed.is_multiple_of(2) && self.is_upload_possible()
    }

    /// Lets the recovery point pass, and a few more where faults may have left a backlog.
    pub(super) fn await_recovery_point(&mut self) {
        self.trace
            .log(self.now, || "quiet: the recovery point passes".into());
        self.phase = Phase::LastWait;
        let aftermath = if self.keeps_up() { 0 } else { AFTERMATH_NS };
        let delay = self.due_ns() + aftermath;
        self.at_process(0, delay, ProcessEvent::RecoveryPointPassed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_acknowledged_by_a_moment_is_due_and_what_came_after_a_position_is_lost() {
        let mut completions = Completions::default();
        assert_eq!(completions.acknowledged_by(9), 0);
        completions.restart(10, 4);
        completions.note(20, 6);
        completions.note(25, 5);
        completions.note(30, 9);
        assert_eq!(
            [9, 10, 29, 30].map(|at| completions.acknowledged_by(at)),
            [0, 4, 6, 9]
        );
        assert_eq!(
            [3, 4, 6, 9].map(|position| completions.first_after(position)),
            [Some(10), Some(20), Some(30), None]
        );
    }
}
