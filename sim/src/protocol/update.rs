//! Root updates of an owner: fold, close, restore in place; and what an owner does on a 404.
//!
//! A root of the same epoch that somebody else changed is merged, one that is ahead of the owner's
//! own log was written by a clone.

use super::ghost::{DANGLING, Ghost, MIXED};
use super::rules::Rule;
use super::search::Checked;
use super::state::{Activity, CommitPhase, Phase, Tail};
use super::step::{Outcome, Step};
use super::store::{Content, NOBODY, Pack, Root, RootState};

impl Step<'_> {
    /// Folds the records since the mark into the root, as packs.
    pub(crate) fn fold(&mut self, index: usize, volume: usize) {
        let packs = self.stored_packs(index, volume);
        let activity = self.note_position(index, volume);
        activity.packs = packs;
        self.prepare_fold(index, volume);
    }

    /// Notes what the volume had at the last resolved position.
    fn note_position(&mut self, index: usize, volume: usize) -> &mut Activity {
        let resolves = self.rules.has(Rule::CreateResolvesBeforeFold);
        let machine = self.machine(index);
        let tail = machine.disk.tails[volume];
        let unresolved = machine.commit != CommitPhase::Idle && !resolves;
        let activity = &mut machine.activities[volume];
        activity.position = machine.disk.next - 1 + u8::from(unresolved);
        activity.content = Content::default();
        let stored = tail.stored as usize;
        activity.content[..stored].copy_from_slice(&tail.data[..stored]);
        activity
    }

    /// Begins a merged pack of all that is stored, as an index fold with compaction does.
    pub(crate) fn number_object(&mut self, index: usize, volume: usize) {
        self.note_position(index, volume);
        let machine = self.machine(index);
        let activity = &mut machine.activities[volume];
        activity.object = machine.number;
        activity.phase = Phase::PutObject;
        machine.number += 1;
    }

    pub(crate) fn put_object(&mut self, index: usize, volume: usize) -> Checked<()> {
        let in_log = self.rules.has(Rule::ObjectsInLog);
        let machine = &mut self.state.machines[index];
        let activity = &mut machine.activities[volume];
        let mut pack = Pack {
            host: machine.disk.host,
            session: machine.disk.session,
            bits: machine.bits,
            number: activity.object,
            ..Pack::default()
        };
        pack.contents[volume] = activity.content;
        activity.phase = if in_log {
            Phase::Name
        } else {
            Phase::FoldReady
        };
        self.requests.puts += 1;
        let (place, created) = self.state.store.create_pack(pack);
        if created == super::store::CreateResult::Exists && self.rules.has(Rule::PackIsReadBack) {
            self.get();
            let there = self.state.store.pack(place);
            if there.is_none_or(|there| there.contents != pack.contents) {
                return self.stop(index);
            }
        }
        let activity = &mut self.machine(index).activities[volume];
        (activity.place, activity.packs) = (place, 1 << place);
        Ok(())
    }

    /// The object is named: it goes into the root, and beside it what was stored since it was cut,
    /// so that the mark may pass the record that names it.
    pub(crate) fn ready_fold(&mut self, index: usize, volume: usize) {
        let machine = self.machine(index);
        let (tail, activity) = (machine.disk.tails[volume], machine.activities[volume]);
        let cut = super::store::length(&activity.content);
        let since = Step::packs_of(&tail, cut);
        self.note_position(index, volume).packs |= since;
        self.prepare_fold(index, volume);
    }

    fn prepare_fold(&mut self, index: usize, volume: usize) {
        let activity = &mut self.machine(index).activities[volume];
        let mut update = activity.root;
        update.sequence += 1;
        update.mark = activity.position;
        update.lsn = super::store::length(&activity.content);
        update.packs = activity.packs;
        activity.update = update;
        self.sign(index, volume, Phase::FoldSent);
    }

    /// Closes: the root gets what the records since its mark hold, and no owner.
    pub(crate) fn prepare_close(&mut self, index: usize, volume: usize) {
        let packs = self.stored_packs(index, volume);
        let machine = self.machine(index);
        let activity = &mut machine.activities[volume];
        let mut update = activity.root;
        update.state = RootState::Closed;
        update.sequence += 1;
        update.owner = NOBODY;
        update.mark = 0;
        update.lsn = machine.disk.tails[volume].stored;
        update.packs = packs;
        if activity.phase == Phase::Delete {
            // The root stays as a tombstone with its epoch.
            update.state = RootState::Absent;
            update.lsn = 0;
            update.packs = 0;
        }
        activity.update = update;
        let sent = if activity.phase == Phase::Delete {
            Phase::DeleteSent
        } else {
            Phase::CloseSent
        };
        self.sign(index, volume, sent);
    }

    /// Goes back to LSN 1. What follows is void, and LSNs go on.
    pub(crate) fn prepare_restore(&mut self, index: usize, volume: usize) {
        let packs = self.stored_packs(index, volume);
        let raises = self.rules.has(Rule::RestoreRaisesEpoch);
        let machine = self.machine(index);
        let activity = &mut machine.activities[volume];
        let tail = machine.disk.tails[volume];
        let mut update = activity.root;
        update.sequence += 1;
        if raises {
            update.epoch += 1;
            update.mark = machine.disk.next - 1;
            update.lsn = tail.stored;
            update.packs = packs;
            update.void = ((1 << tail.stored) - 1) & !1;
        } else {
            // The snapshot's root, as it was.
            update.lsn = 1;
        }
        activity.update = update;
        self.sign(index, volume, Phase::RestoreSent);
    }

    /// Packs of the root, and of the records since, as the host knows them.
    fn stored_packs(&self, index: usize, volume: usize) -> u16 {
        let machine = &self.state.machines[index];
        let tail = machine.disk.tails[volume];
        let root = machine.activities[volume].root;
        root.packs | Step::packs_of(&tail, root.lsn)
    }

    /// Packs of what a tail has stored since this LSN.
    fn packs_of(tail: &Tail, lsn: u8) -> u16 {
        let range = lsn.min(tail.stored) as usize..tail.stored as usize;
        let packs = tail.packs[range].iter().filter(|pack| **pack != 0);
        packs.fold(0, |packs, pack| packs | 1 << (pack - 1))
    }

    /// Sends an owner's update.
    pub(crate) fn send_update(&mut self, index: usize, volume: usize) -> Checked<()> {
        let activity = self.machine(index).activities[volume];
        match self.update_root(volume, activity.root.etag(), activity.update) {
            Outcome::Unknown => Ok(()),
            Outcome::Won => {
                self.on_updated(index, volume);
                Ok(())
            }
            Outcome::Lost => self.on_conflict(index, volume),
        }
    }

    fn on_updated(&mut self, index: usize, volume: usize) {
        let machine = &mut self.state.machines[index];
        let activity = &mut machine.activities[volume];
        let tail = &mut machine.disk.tails[volume];
        activity.root = activity.update;
        activity.object = NOBODY;
        match activity.phase {
            Phase::CloseSent | Phase::DeleteSent => {
                tail.attached = false;
                activity.phase = Phase::Idle;
            }
            Phase::RestoreSent => {
                tail.epoch = activity.root.epoch;
                tail.ended = false;
                tail.data = Ghost::restored(&tail.data);
                activity.phase = Phase::Live;
                self.state.ghost.on_restored(volume, tail.epoch, &tail.data);
            }
            _ => activity.phase = Phase::Live,
        }
    }

    /// The root is not what this owner wrote last.
    fn on_conflict(&mut self, index: usize, volume: usize) -> Checked<()> {
        self.get();
        let root = self.state.store.roots[volume];
        let machine = &mut self.state.machines[index];
        let tail = machine.disk.tails[volume];
        if root.epoch > tail.epoch {
            return self.fence(index, volume);
        }
        if root.epoch < tail.epoch || self.is_foreign(index, volume) {
            return self.stop(index);
        }
        self.update_again(index, volume, root);
        Ok(())
    }

    /// Same owner, same epoch, nothing that we do not know: a moved version. The update once more.
    fn update_again(&mut self, index: usize, volume: usize, root: Root) {
        let anew = self.rules.has(Rule::MovedBeginsAgain);
        let activity = &mut self.machine(index).activities[volume];
        activity.root = root;
        activity.phase = match activity.phase {
            Phase::CloseSent => Phase::Close,
            Phase::DeleteSent => Phase::Delete,
            Phase::RestoreSent => Phase::Restore,
            Phase::FoldSent if activity.object == NOBODY => Phase::Fold,
            // The root may have passed the record that names the object, the low mark followed, and
            // the object is garbage.
            _ if anew => Phase::Compact,
            _ => Phase::FoldReady,
        };
    }

    /// Whether a root of the owner's own epoch is ahead of what the owner wrote, which is a clone's
    /// doing, or behind it, which means that the store was set back.
    fn is_foreign(&self, index: usize, volume: usize) -> bool {
        let root = self.state.store.roots[volume];
        let machine = &self.state.machines[index];
        let tail = machine.disk.tails[volume];
        let known = machine.activities[volume].root;
        let other = root.state != RootState::Open || root.owner != machine.disk.host;
        let ahead = other || root.lsn > tail.stored || root.mark >= machine.disk.next;
        let behind = |what: fn(&Root) -> u8| what(&root) < what(&known);
        let behind =
            behind(|root| root.sequence) || behind(|root| root.lsn) || behind(|root| root.mark);
        behind || ahead && self.rules.has(Rule::AheadIsClone)
    }

    /// The owner reads: what its root names, below its own tail.
    pub(crate) fn read(&mut self, index: usize, volume: usize) -> Checked<()> {
        let machine = &self.state.machines[index];
        let tail = machine.disk.tails[volume];
        let known = machine.activities[volume].root;
        self.requests.gets += 1;
        if self.state.store.root_content(volume, &known).is_some() {
            return Ok(());
        }
        self.get();
        let root = self.state.store.roots[volume];
        if root == known {
            // After a set-back the read is refused.
            return if self.state.ghost.was_set_back {
                Ok(())
            } else {
                Err(DANGLING)
            };
        }
        if root.epoch != tail.epoch && self.rules.has(Rule::OtherEpochFences) {
            return if root.epoch > tail.epoch {
                self.fence(index, volume)
            } else {
                self.stop(index)
            };
        }
        if root.epoch == tail.epoch && self.is_foreign(index, volume) {
            return self.stop(index);
        }
        // The owner lays its own tail over the base it found.
        let base = self
            .state
            .store
            .root_content(volume, &root)
            .ok_or(DANGLING)?;
        let mut seen = base;
        let range = known.lsn as usize..tail.newest as usize;
        seen[range.clone()].copy_from_slice(&tail.data[range]);
        if seen != tail.data {
            return Err(MIXED);
        }
        // An update under way meets the new version by itself.
        if self.machine(index).activities[volume].phase == Phase::Live {
            self.machine(index).activities[volume].root = root;
        }
        Ok(())
    }
}
