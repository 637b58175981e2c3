//! Owns the store that is set back to an older copy of itself, while its server runs or while that is down, and
//! the judgement of what follows: nothing more is acknowledged as stored, no volume comes up without what was, and
//! what is said is not that another host has it.
//!
//! Only worlds of one host and one volume have it. A world whose server has refused is over: what comes then is
//! for people to decide.

use super::{AttachmentPhase, Phase, World};
use crate::faults::Fault;
use crate::node::Failure;
use crate::rng::Rng;
use crate::store::SavedStore;
use crate::trace::Violation;

/// When the store is copied, and when it is set back to that copy, counted in events.
#[derive(Clone, Debug)]
pub(super) struct SetBack {
    saved_at: u64,
    back_at: u64,
    /// The server is down meanwhile.
    while_down: bool,
    saved: Option<SavedStore>,
    /// Since then: what had been acknowledged, if the volume's root went back.
    lost_from: Option<u64>,
    /// The version of the root that stands there then.
    standing: Option<u64>,
}

impl SetBack {
    pub(super) fn draw(seed: u64) -> SetBack {
        let rng = &mut Rng::stream(seed, "set back");
        let saved_at = rng.within(100, 3000);
        SetBack {
            saved_at,
            back_at: saved_at + rng.within(50, 3000),
            while_down: rng.coin(),
            saved: None,
            lost_from: None,
            standing: None,
        }
    }
}

impl World {
    /// Whether the store has an older root than it had.
    pub(super) fn has_gone_back(&self) -> bool {
        let set_back = self.set_back.as_ref();
        set_back.is_some_and(|set_back| set_back.lost_from.is_some())
    }

    /// An event took place: perhaps it is time.
    pub(super) fn pass_set_back(&mut self) {
        if self.set_back.is_none() {
            return;
        }
        let events = self.trace.events();
        // A copy without the root is a root that is gone: that is said, and local data is served on.
        let exists = self.store.version(&self.root_key(0)).is_some();
        let Some(set_back) = &mut self.set_back else {
            return;
        };
        if self.phase != Phase::Work || events < set_back.saved_at {
            return;
        }
        if set_back.saved.is_none() && set_back.back_at < u64::MAX {
            if exists {
                set_back.saved = Some(self.store.save());
            }
        } else if events >= set_back.back_at {
            set_back.back_at = u64::MAX;
            self.go_back();
        }
    }

    fn go_back(&mut self) {
        let key = self.root_key(0);
        let Some(set_back) = &mut self.set_back else {
            return;
        };
        let Some(saved) = set_back.saved.take() else {
            return;
        };
        let changed = saved.version(&key) != self.store.version(&key);
        let acked = self.attachments[0].history.acked();
        set_back.lost_from = changed.then_some(acked);
        let while_down = set_back.while_down;
        self.trace.log(self.now, || {
            format!("the store is set back, the root with it: {changed}, server down: {while_down}")
        });
        let loses_packs = !self.store.set_back(saved);
        let standing = self.store.version(&key);
        if let Some(set_back) = &mut self.set_back {
            set_back.standing = standing;
        }
        // Who takes volumes over accepts what the store has.
        self.machines[0].take_over = false;
        // Of packs that no root named yet nothing tells that they are gone, and a log that never had the volume, as a new
        // machine's, cannot tell that its root is an older one.
        let is_unknown = match changed {
            true => !self.machines[0].has_opened,
            false => loses_packs,
        };
        if is_unknown {
            self.phase = Phase::Done;
            return;
        }
        if changed {
            self.count(Fault::StoreSetBack);
        }
        if while_down {
            self.process_crash(0);
        }
    }

    /// Whether somebody opened the volume from the older root: its log had what the store has lost, as the image
    /// shows that is judged then, and brings it there again.
    pub(super) fn has_gone_on(&self) -> bool {
        let standing = self.set_back.as_ref().and_then(|at| at.standing);
        standing != self.store.version(&self.root_key(0))
    }

    /// A sync of all up to `covers` was acknowledged.
    pub(super) fn judge_set_back_sync(&self, covers: u64) -> Result<(), Violation> {
        let lost_from = self.set_back.as_ref().and_then(|at| at.lost_from);
        match lost_from {
            Some(acked) if covers > acked && !self.has_gone_on() => {
                let detail = format!(
                    "commits up to {covers} were acknowledged as stored in a store that was set back when \
                     {acked} were acknowledged"
                );
                Err(Violation::new("S3 store set back", detail))
            }
            _ => Ok(()),
        }
    }

    /// The server refuses, and says why.
    pub(super) fn judge_set_back_refusal(&mut self, failure: &Failure) -> Result<(), Violation> {
        // A store that does not answer, or a log that is poisoned, says nothing of the matter yet.
        if matches!(failure, Failure::Store(_) | Failure::Disk(_)) {
            return Ok(());
        }
        if matches!(failure, Failure::Fenced(_) | Failure::Held { .. }) {
            // Somebody opened the volume from the older root, and has it.
            if self.has_gone_on() {
                return Ok(());
            }
            let detail = format!("a store that was set back is called another's: {failure:?}");
            return Err(Violation::new("S3 store set back", detail));
        }
        self.count(Fault::SetBackRefused);
        self.phase = Phase::Done;
        Ok(())
    }

    /// The volume completes nothing more, and nothing is in flight: the world is over.
    pub(super) fn ends_set_back(&self) -> bool {
        let here = &self.attachments[0];
        self.has_gone_back() && here.phase == AttachmentPhase::Fenced && here.is_quiet()
    }
}
