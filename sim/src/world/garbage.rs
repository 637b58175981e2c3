//! Owns when the collector is judged: whenever a pass of one has ended, and at the end of a world, when three more have
//! ended in peace.
//!
//! Not judged: worlds whose store is set back, where logs have holes, and those whose reads are damaged on their way, where
//! a pass may take a whole log for a damaged one.

use volume::ScrubCounts;
use volume::object::root::Root;

use super::{Phase, World};
use crate::faults::Fault;
use crate::oracle::garbage::{CANDIDATES_KEY, Stored};
use crate::store::RootStep;
use crate::trace::Violation;

/// The first of them may have begun before; what it does not find the second does, and the third removes it.
const LAST_PASSES: usize = 3;

impl World {
    fn judges_garbage(&self) -> bool {
        let store = &self.profile.store;
        self.set_back.is_none() && store.get_corrupt == 0 && store.get_truncated == 0
    }

    /// A call took effect in the store: perhaps it ended a pass.
    pub(super) fn judge_passes(&mut self) -> Result<(), Violation> {
        let ended = self.store.replacements(CANDIDATES_KEY).len();
        if ended == self.passes {
            return Ok(());
        }
        self.passes = ended;
        self.count(Fault::PassEnded);
        let refused = self.store.take_refused_removals();
        let unheard = self.store.take_unheard_pass();
        let was_heard = !std::mem::replace(&mut self.has_unheard_pass, unheard);
        if !self.judges_garbage() {
            return Ok(());
        }
        let in_peace = was_heard && matches!(self.phase, Phase::LastPasses(_));
        let objects: Vec<Stored<'_>> = self.store.stored().collect();
        let gone = self.garbage.on_pass(&objects, &refused, in_peace)?;
        for _ in 0..gone {
            self.count(Fault::GarbageRemoved);
        }
        Ok(())
    }

    /// A call took effect in the store: perhaps it made a snapshot or a fork, or a volume got another name.
    pub(super) fn judge_roots(&mut self) -> Result<(), Violation> {
        for step in self.store.take_root_steps() {
            if let RootStep::Named(key) = &step {
                self.judge_name(key)?;
            }
            let root = match &step {
                RootStep::Created(_, key) => self.store.data(key),
                _ => None,
            };
            let root = root.and_then(|bytes| Root::decode(bytes).ok());
            self.pins.on_step(step, root.as_ref())?;
        }
        Ok(())
    }

    /// Counts what compactions have moved since the last event.
    pub(super) fn count_compactions(&mut self) {
        let nodes = self.machines.iter_mut().filter_map(|it| it.node.as_mut());
        let steps: u64 = nodes.map(|node| node.take_compaction_steps()).sum();
        for _ in 0..steps {
            self.count(Fault::Compacted);
        }
        let nodes = self.machines.iter_mut().filter_map(|it| it.node.as_mut());
        let maintained: u64 = nodes.map(|node| node.take_maintained()).sum();
        for _ in 0..maintained {
            self.count(Fault::Maintained);
        }
    }

    /// Counts passes of scrubs since the last event. Where every read of the disk gives what was written there, they find nothing:
    /// silent faults strike neither payload nor the cache.
    pub(super) fn judge_scrubs(&mut self) -> Result<(), Violation> {
        let nodes = self.machines.iter_mut().filter_map(|it| it.node.as_mut());
        let looks: Vec<_> = nodes.map(|node| node.take_scrub_passes()).collect();
        let disk = &self.profile.disk;
        let is_readable = disk.read_eio == 0 && disk.unreadable == 0;
        for (passes, damaged) in looks {
            for _ in 0..passes {
                self.count(Fault::Scrubbed);
            }
            if is_readable && damaged != ScrubCounts::default() {
                let detail = format!("a scrub gave up what is right: {damaged:?}");
                return Err(Violation::new("S8 scrub", detail));
            }
        }
        Ok(())
    }

    /// Everything was opened from the store: what is left of it that nothing names has to go.
    pub(super) fn await_last_passes(&mut self) {
        if self.judges_garbage() {
            self.trace.log(self.now, || "the last passes".into());
            self.phase = Phase::LastPasses(self.passes + LAST_PASSES);
        } else {
            self.begin_last_reads();
        }
    }
}
