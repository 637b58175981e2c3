//! Root updates of an owner: fold, close, restore in place; and what an owner does on a 404.
//!
//! Each leaves a durable intent first. A root of the same epoch that somebody else changed is
//! merged, one that is ahead of the owner's own log was written by a clone.

use super::ghost::{DANGLING, Ghost, MIXED};
use super::rules::Rule;
use super::search::Checked;
use super::state::{Activity, CommitPhase, Phase};
use super::step::{Outcome, Step};
use super::store::{Content, NOBODY, Pack, Root, RootState};

impl Step<'_> {
    /// Folds the records since the mark into the root, as packs.
    pub(crate) fn fold(&mut self, index: usize, volume: usize) {
        let packs = self.stored_packs(index, volume);
        let activity = self.note_position(index, volume);
        activity.packs = packs;
        self.intend_fold(index, volume);
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

    /// Writes one merged pack of all that is stored, as an index fold with compaction does.
    pub(crate) fn write_fold(&mut self, index: usize, volume: usize) -> Checked<()> {
        let content = self.note_position(index, volume).content;
        let machine = &mut self.state.machines[index];
        let mut pack = Pack {
            host: machine.disk.host,
            session: machine.disk.session,
            bits: machine.bits,
            number: machine.number,
            ..Pack::default()
        };
        pack.contents[volume] = content;
        machine.number += 1;
        let activity = &mut machine.activities[volume];
        activity.object = pack.number;
        activity.phase = Phase::FoldReady;
        self.requests.puts += 1;
        let (place, created) = self.state.store.create_pack(pack);
        if created == super::store::Created::Exists && self.rules.has(Rule::PackIsReadBack) {
            self.get();
            let there = self.state.store.pack(place);
            if there.is_none_or(|there| there.contents != pack.contents) {
                return self.stop(index);
            }
        }
        self.machine(index).activities[volume].packs = 1 << place;
        Ok(())
    }

    pub(crate) fn intend_fold(&mut self, index: usize, volume: usize) {
        let activity = &mut self.machine(index).activities[volume];
        let mut update = activity.root;
        update.sequence += 1;
        update.mark = activity.position;
        update.lsn = super::store::length(&activity.content);
        update.packs = activity.packs;
        activity.update = update;
        self.intend(index, volume, Phase::FoldSent);
    }

    /// Closes: the root gets what the records since its mark hold, and no owner.
    pub(crate) fn intend_close(&mut self, index: usize, volume: usize) {
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
        self.intend(index, volume, sent);
    }

    /// Goes back to LSN 1. What follows is void, and LSNs go on.
    pub(crate) fn intend_restore(&mut self, index: usize, volume: usize) {
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
        self.intend(index, volume, Phase::RestoreSent);
    }

    /// Packs of the root, and of the records since, as the host knows them.
    fn stored_packs(&self, index: usize, volume: usize) -> u16 {
        let machine = &self.state.machines[index];
        let tail = machine.disk.tails[volume];
        let root = machine.activities[volume].root;
        let range = root.lsn.min(tail.stored) as usize..tail.stored as usize;
        tail.packs[range]
            .iter()
            .filter(|pack| **pack != 0)
            .fold(root.packs, |packs, pack| packs | 1 << (pack - 1))
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
        tail.intent = (0, 0);
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
        // Same owner, same epoch, nothing that we do not know: a moved version. Once more.
        let activity = &mut self.machine(index).activities[volume];
        activity.root = root;
        activity.phase = match activity.phase {
            Phase::CloseSent => Phase::Close,
            Phase::DeleteSent => Phase::Delete,
            Phase::RestoreSent => Phase::Restore,
            _ if activity.object == NOBODY => Phase::Fold,
            _ => Phase::FoldReady,
        };
        Ok(())
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
        self.state.machines[index].activities[volume].root = root;
        Ok(())
    }
}
