//! Opening a volume: the claim, the fence in the predecessor's log, what it read there, adoption;
//! and what a start does with the tails that it found.

use super::ghost::DANGLING;
use super::rules::Rule;
use super::search::Checked;
use super::state::{Machine, Phase, Power, Tail};
use super::step::{Outcome, Step};
use super::store::{NOBODY, POSITIONS, Predecessor, Record, RecordKind, RootState, length};

impl Step<'_> {
    /// A process starts on the directory of a machine.
    pub(crate) fn start(&mut self, index: usize) {
        let rules = self.rules;
        let machine = self.machine(index);
        machine.power = Power::On;
        machine.disk.session += 1;
        machine.bits = index as u8;
        machine.number = 0;
        if machine.disk.digests != [0; super::state::DIGESTS] {
            machine.commit = super::state::CommitPhase::Unknown;
        }
        if !rules.has(Rule::DigestsSurvive) {
            machine.disk.digests = [0; super::state::DIGESTS];
        }
        for (tail, activity) in machine.disk.tails.iter().zip(&mut machine.activities) {
            let ended = tail.ended && rules.has(Rule::EndedReopens);
            activity.phase = match tail.attached {
                false => Phase::Idle,
                true if ended || !rules.has(Rule::TailServesAtOnce) => Phase::Claim,
                true => Phase::Checking,
            };
        }
    }

    /// The first look at the root of a tail that this start continued.
    pub(crate) fn check_tail(&mut self, index: usize, volume: usize) {
        self.get();
        let disk = self.machine(index).disk;
        let root = self.state.store.roots[volume];
        let tail = disk.tails[volume];
        let ours = root.epoch == tail.epoch && root.owner == disk.host;
        let phase = if ours && root.state == RootState::Open {
            Phase::Live
        } else if root.epoch == tail.epoch && root.state == RootState::Closed {
            Phase::Claim
        } else {
            Phase::Fenced
        };
        let machine = self.machine(index);
        machine.activities[volume].phase = phase;
        machine.activities[volume].root = root;
        machine.disk.tails[volume].attached = phase != Phase::Fenced;
    }

    /// A root update is ready to be sent.
    pub(crate) fn sign(&mut self, index: usize, volume: usize, sent: Phase) {
        let machine = self.machine(index);
        let activity = &mut machine.activities[volume];
        activity.phase = sent;
        activity.update.writer = machine.bits;
    }

    /// Reads the root and prepares the claim of the next epoch.
    pub(crate) fn claim(&mut self, index: usize, volume: usize) {
        self.get();
        let root = self.state.store.roots[volume];
        let host = self.machine(index).disk.host;
        let mut update = root;
        update.epoch += 1;
        update.sequence += 1;
        update.claimant = host;
        update.owner = NOBODY;
        let followed = Predecessor {
            host: root.owner,
            epoch: root.epoch,
            mark: root.mark,
        };
        if root.owner != NOBODY && root.state == RootState::Open {
            update.predecessor = Some(followed);
        } else if !self.rules.has(Rule::PredecessorIsKept) {
            update.predecessor = None;
        }
        let activity = &mut self.machine(index).activities[volume];
        activity.root = root;
        activity.update = update;
        self.sign(index, volume, Phase::ClaimSent);
    }

    pub(crate) fn send_claim(&mut self, index: usize, volume: usize) -> Checked<()> {
        let activity = self.machine(index).activities[volume];
        let outcome = self.update_root(volume, activity.root.etag(), activity.update);
        let machine = self.machine(index);
        let place = &mut machine.activities[volume];
        match outcome {
            Outcome::Unknown => return Ok(()),
            Outcome::Lost => place.phase = Phase::Claim,
            Outcome::Won => place.root = activity.update,
        }
        if outcome == Outcome::Won {
            self.read_base(index, volume)?;
        }
        Ok(())
    }

    /// Reads what the claimed root names.
    fn read_base(&mut self, index: usize, volume: usize) -> Checked<()> {
        let root = self.machine(index).activities[volume].root;
        let Some(content) = self.state.store.root_content(volume, &root) else {
            return self.on_missing_base(index, volume);
        };
        let activity = &mut self.machine(index).activities[volume];
        activity.content = content;
        activity.packs = root.packs;
        activity.previous = 0;
        activity.phase = match root.predecessor {
            Some(_) => Phase::Low,
            None => Phase::Adopt,
        };
        Ok(())
    }

    /// An object that the root named is gone: fails only if the root has not changed.
    fn on_missing_base(&mut self, index: usize, volume: usize) -> Checked<()> {
        self.get();
        let root = self.machine(index).activities[volume].root;
        if self.state.store.roots[volume] == root && !self.state.ghost.was_set_back {
            return Err(DANGLING);
        }
        self.machine(index).activities[volume].phase = Phase::GaveUp;
        Ok(())
    }

    /// Finds where the scan of the predecessor's log begins.
    pub(crate) fn read_low(&mut self, index: usize, volume: usize) -> Checked<()> {
        self.get();
        self.read_base(index, volume)?;
        let activity = &mut self.state.machines[index].activities[volume];
        let Some(predecessor) = activity.root.predecessor else {
            return Ok(());
        };
        if activity.phase == Phase::Low {
            let low = self.state.store.low[predecessor.host as usize];
            activity.position = low.max(predecessor.mark + 1);
            activity.phase = Phase::Scan;
        }
        Ok(())
    }

    /// Reads one record of the predecessor's log: takes what it says of the volume, ends at the
    /// first fence that blocks the epoch.
    pub(crate) fn scan(&mut self, index: usize, volume: usize) -> Checked<()> {
        self.get();
        let rules = self.rules;
        let activity = self.state.machines[index].activities[volume];
        let Some(predecessor) = activity.root.predecessor else {
            return Ok(());
        };
        let host = predecessor.host;
        let record = *self.state.store.record(host, activity.position);
        let named = self.name_in_log(index, volume);
        let place = &mut self.state.machines[index].activities[volume];
        // A fence, or a record by which the owner itself ended its epoch.
        let fenced = blocks(&record, named, predecessor.epoch, rules);
        match record.kind {
            RecordKind::Absent => place.phase = Phase::PutFence,
            RecordKind::Fence if fenced => place.phase = Phase::AfterFence,
            RecordKind::Commit
                if activity.previous != 0 && record.previous != activity.previous =>
            {
                let refuses = self.state.ghost.may_stop;
                place.phase = if refuses { Phase::GaveUp } else { Phase::Low };
            }
            _ => {
                place.previous = record.digest();
                let full = place.position as usize + 1 >= POSITIONS;
                if fenced {
                    place.phase = Phase::AfterFence;
                } else if full {
                    place.phase = Phase::GaveUp;
                } else {
                    place.position += 1;
                }
                return self.take(index, volume, &record);
            }
        }
        Ok(())
    }

    /// Under which name records speak of a volume. Only where a fork may lean on records is it not
    /// its own.
    fn name_in_log(&self, index: usize, volume: usize) -> usize {
        if self.rules.has(Rule::RootsNamePacks) {
            volume
        } else {
            self.state.machines[index].activities[volume].root.origin as usize
        }
    }

    /// Lays a record's slice of the volume over what was read before, chained by LSN.
    fn take(&mut self, index: usize, volume: usize, record: &Record) -> Checked<()> {
        let named = self.name_in_log(index, volume);
        let place = &mut self.state.machines[index].activities[volume];
        let slice = record.slices[named];
        let epoch = place.root.predecessor.map(|predecessor| predecessor.epoch);
        let known = length(&place.content);
        if Some(slice.epoch) != epoch || slice.from > known + 1 || slice.to <= known {
            return Ok(());
        }
        let Some(pack) = self.state.store.pack(slice.pack) else {
            return self.on_missing_base(index, volume);
        };
        let held = pack.contents[named];
        let range = known as usize..slice.to as usize;
        place.content[range.clone()].copy_from_slice(&held[range]);
        place.packs |= 1 << slice.pack;
        self.requests.gets += 1;
        Ok(())
    }

    pub(crate) fn put_fence(&mut self, index: usize, volume: usize) {
        let activities = self.machine(index).activities;
        let this = activities[volume];
        let Some(predecessor) = this.root.predecessor else {
            return;
        };
        let mut fence = Record {
            kind: RecordKind::Fence,
            ..Record::default()
        };
        for (other, activity) in activities.iter().enumerate() {
            let waits = matches!(activity.phase, Phase::Low | Phase::Scan | Phase::PutFence);
            let same = waits && activity.root.predecessor.map(|p| p.host) == Some(predecessor.host);
            if other == volume || same && self.rules.has(Rule::FenceNamesMany) {
                fence.below[self.name_in_log(index, other)] = activity.root.epoch;
            }
        }
        let outcome = self.create_record(predecessor.host, this.position, fence);
        self.state.fences += u8::from(outcome == Outcome::Won);
        self.machine(index).activities[volume].phase = match outcome {
            Outcome::Won => Phase::AfterFence,
            Outcome::Lost => Phase::Scan,
            Outcome::Unknown => Phase::PutFence,
        };
    }

    /// The fence exists: it must not lie below what was removed meanwhile.
    pub(crate) fn look_after_fence(&mut self, index: usize, volume: usize) {
        self.get();
        let activity = &mut self.state.machines[index].activities[volume];
        let host = activity.root.predecessor.map_or(0, |p| p.host);
        let low = self.state.store.low[host as usize];
        let below = low > activity.position;
        activity.phase = if below && self.rules.has(Rule::LowAfterFence) {
            Phase::Low
        } else {
            Phase::Adopt
        };
    }

    /// Prepares the update that makes this host the owner.
    pub(crate) fn adopt(&mut self, index: usize, volume: usize) {
        let machine = self.machine(index);
        let activity = &mut machine.activities[volume];
        let mut update = activity.root;
        update.state = RootState::Open;
        update.sequence += 1;
        update.owner = machine.disk.host;
        update.claimant = NOBODY;
        update.predecessor = None;
        update.mark = machine.disk.next - 1;
        update.packs = activity.packs;
        update.lsn = length(&activity.content);
        activity.update = update;
        self.sign(index, volume, Phase::AdoptSent);
    }

    pub(crate) fn send_adoption(&mut self, index: usize, volume: usize) -> Checked<()> {
        let activity = self.machine(index).activities[volume];
        let mut outcome = self.update_root(volume, activity.root.etag(), activity.update);
        let root = self.state.store.roots[volume];
        let machine = &mut self.state.machines[index];
        // Somebody moved the version of what is ours already.
        let ours = root.owner == machine.disk.host && root.epoch == activity.update.epoch;
        if outcome == Outcome::Lost && ours {
            outcome = Outcome::Won;
        }
        match outcome {
            Outcome::Unknown => return Ok(()),
            Outcome::Lost => {
                machine.disk.tails[volume].attached = false;
                machine.activities[volume].phase = Phase::GaveUp;
                return Ok(());
            }
            Outcome::Won => {}
        }
        serve(machine, volume, activity.update.lsn);
        let tail = machine.disk.tails[volume];
        machine.activities[volume].root = activity.update;
        // A tail that was continued may hold more than the store: that was never called stored.
        self.state
            .ghost
            .on_opened(volume, tail.epoch, &activity.content)
    }
}

/// The volume is ours: a tail of the new epoch, on top of what a continued tail still holds.
fn serve(machine: &mut Machine, volume: usize, lsn: u8) {
    let activity = &mut machine.activities[volume];
    let tail = &mut machine.disk.tails[volume];
    let continued = tail.attached && tail.newest >= lsn;
    *tail = Tail {
        attached: true,
        epoch: activity.update.epoch,
        data: if continued {
            tail.data
        } else {
            activity.content
        },
        newest: if continued { tail.newest } else { lsn },
        durable: if continued {
            tail.durable.max(lsn)
        } else {
            lsn
        },
        stored: lsn,
        packs: [0; super::store::LSNS],
        verified: false,
        ended: false,
    };
    activity.phase = Phase::Live;
}

fn blocks(fence: &Record, volume: usize, epoch: u8, rules: super::rules::Rules) -> bool {
    let below = fence.below[volume];
    if rules.has(Rule::FenceHasEpoch) {
        below > epoch
    } else {
        below > 0
    }
}
