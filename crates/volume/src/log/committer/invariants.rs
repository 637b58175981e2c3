//! What holds of the group commit between any two steps. Read only.

use super::{Committer, Phase};
use crate::lock::lock;

impl Committer {
    /// A round under way waits for one request, covers nothing that was not committed, and its
    /// frame fits into the journal.
    pub(crate) fn invariants(&self, half_bytes: u64) -> Result<(), String> {
        let state = lock(&self.state);
        // A sync that fails beside the write of a frame poisons the log while that is in flight.
        let write_fits = match state.phase {
            Phase::WriteFrame => state.awaited_write.is_some(),
            Phase::Poisoned => true,
            _ => state.awaited_write.is_none(),
        };
        let syncs = matches!(state.phase, Phase::SyncData | Phase::SyncFrame);
        let sync_done = state.syncs.is_done(state.awaited_sync);
        if state.durable > state.started
            || state.journal.used > half_bytes
            || !write_fits
            || (syncs && (sync_done || !state.syncs.is_busy()))
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
