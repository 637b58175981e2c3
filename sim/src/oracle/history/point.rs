//! Owns what a history is to snapshots and forks (S6): a point between two of its positions, which an image settles, and
//! the beginning of another history.

use std::collections::BTreeSet;

use super::{History, Intervals, Loss, intersect};
use crate::trace::Violation;

impl History {
    /// What a snapshot of the volume holds that was taken between the commit at `low` and now: one prefix, and it is not known
    /// which.
    pub fn point_since(&self, low: u64) -> History {
        let mut point = History {
            acked: low,
            flushed: low,
            stored: low,
            due: 0,
            superseded: None,
            path: Vec::new(),
            loss: Some(Loss::Cache),
            ..self.clone()
        };
        point.prune();
        point
    }

    /// The history of a fork, `volume` on its stamps, that begins as this point.
    pub fn forked(&self, volume: u64) -> History {
        let mut fork = self.clone();
        fork.ancestors.push(self.volume);
        fork.volume = volume;
        fork
    }

    /// Judges a whole image of the point, and answers the positions of which it may be. A whole image settles which: from
    /// then on no other is allowed.
    ///
    /// Sectors in `unread` gave an I/O error and say nothing.
    pub fn judge_point(
        &mut self,
        image: &[u8],
        unread: &BTreeSet<u64>,
    ) -> Result<Intervals, Violation> {
        let allowed = vec![(self.stored, self.len)];
        let found = self.prefixes(image, unread);
        let found = found.map_err(|violation| Violation::new("S6 snapshot", violation.detail))?;
        let within = intersect(&allowed, &found);
        let Some((_, last)) = within.last() else {
            let detail = format!(
                "it is of a moment between the commits {} and {}, and its bytes are those of {found:?}",
                self.stored, self.len
            );
            return Err(Violation::new("S6 snapshot", detail));
        };
        if unread.is_empty() {
            self.roll_back(*last);
            (self.stored, self.flushed, self.loss) = (*last, *last, Some(Loss::Cache));
        }
        Ok(within)
    }
}
