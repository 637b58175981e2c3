//! What holds of the group commit between any two steps. Read only.

use super::{Committer, Phase};
use crate::lock::lock;

impl Committer {
    /// A round under way waits for one request, covers nothing that was not committed, and its
    /// frame fits into the journal.
    pub(crate) fn invariants(&self, half_bytes: u64) -> Result<(), String> {
        let state = lock(&self.state);
        let waits = matches!(
            state.phase,
            Phase::SyncData | Phase::WriteFrame | Phase::SyncFrame
        );
        if state.durable > state.started
            || state.journal.used > half_bytes
            || (waits && state.awaited.is_none())
            || (state.phase == Phase::Idle && state.awaited.is_some())
        {
            return Err(format!("the committer's round is wrong: {state:?}"));
        }
        for (tail, cut) in &state.cuts {
            let newest = tail.newest();
            if *cut > newest {
                let (cut, newest) = (cut.0, newest.0);
                return Err(format!(
                    "the cut of {} is {cut}, its newest commit {newest}",
                    tail.name()
                ));
            }
        }
        Ok(())
    }
}
