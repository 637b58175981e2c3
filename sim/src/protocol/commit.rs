//! The committer: one create in flight per host, for every slice that is ready.

use super::rules::{Rule, Rules};
use super::search::Checked;
use super::state::{Activity, CommitPhase, DIGESTS, Machine, Phase};
use super::step::{Outcome, Step};
use super::store::{
    CreateResult, NOBODY, POSITIONS, Pack, Record, RecordKind, RootState, Slice, VOLUMES,
};

/// Whether the committer of a machine has something to do.
pub(crate) fn can_commit(machine: &Machine, has_room: bool) -> bool {
    if !machine.is_on() {
        return false;
    }
    match machine.commit {
        CommitPhase::Idle => {
            has_room
                && has_position(machine)
                && (0..VOLUMES).any(|volume| has_news(machine, volume))
        }
        // What it acknowledges must have been checked.
        CommitPhase::LowRead | CommitPhase::ChainRead => (0..VOLUMES).all(|volume| {
            machine.record.slices[volume].epoch == 0
                || machine.activities[volume].phase != Phase::Checking
        }),
        CommitPhase::Stopped => false,
        _ => true,
    }
}

/// Whether the log has room for another record.
pub(crate) fn has_position(machine: &Machine) -> bool {
    (machine.disk.next as usize) < POSITIONS - 1
}

/// Whether the next record is to say something of the volume.
fn has_news(machine: &Machine, volume: usize) -> bool {
    has_slice(machine, volume) || ends(machine, volume) || object(machine, volume).is_some()
}

fn has_slice(machine: &Machine, volume: usize) -> bool {
    let tail = &machine.disk.tails[volume];
    machine.activities[volume].phase.may_commit() && tail.newest > tail.stored
}

/// Whether the next record is to end the volume's epoch.
fn ends(machine: &Machine, volume: usize) -> bool {
    machine.activities[volume].phase == Phase::End
}

/// The object of the volume that the next record is to name.
fn object(machine: &Machine, volume: usize) -> Option<u8> {
    let activity = &machine.activities[volume];
    (activity.phase == Phase::Name).then_some(activity.place)
}

/// Objects of the session below it are abandoned, unless a record or a root names them: those whose
/// name this record does not bring are still to come.
fn floor(machine: &Machine, rules: Rules) -> u8 {
    let unnamed = |activity: &Activity| match activity.phase {
        Phase::PutObject => activity.object,
        _ => NOBODY,
    };
    if !rules.has(Rule::FloorWaits) {
        return machine.number;
    }
    let unnamed = machine.activities.iter().map(unnamed);
    unnamed.fold(machine.number, u8::min)
}

impl Step<'_> {
    pub(crate) fn commit(&mut self, machine: usize) -> Checked<()> {
        match self.machine(machine).commit {
            CommitPhase::Idle => self.cut(machine),
            CommitPhase::Packed => {
                self.write_frame(machine);
                Ok(())
            }
            CommitPhase::Framed => {
                let disk = self.machine(machine).disk;
                let record = self.machine(machine).record;
                let outcome = self.create_record(disk.host, disk.next, record);
                self.machine(machine).commit = match outcome {
                    Outcome::Won => CommitPhase::Won,
                    Outcome::Lost | Outcome::Unknown => CommitPhase::Unknown,
                };
                Ok(())
            }
            CommitPhase::Unknown => self.resolve(machine),
            CommitPhase::Won => {
                self.get();
                let disk = self.machine(machine).disk;
                let low = self.state.store.low[disk.host as usize];
                if self.rules.has(Rule::LowAfterWin) && (low == 0 || low > disk.next) {
                    return self.stop(machine);
                }
                self.machine(machine).commit = CommitPhase::LowRead;
                Ok(())
            }
            CommitPhase::LowRead => self.check_chain(machine),
            CommitPhase::ChainRead => self.check_roots(machine),
            CommitPhase::Stopped => Ok(()),
        }
    }

    /// Cuts a slice of every volume that has one, and puts them into one pack.
    fn cut(&mut self, index: usize) -> Checked<()> {
        let machine = &mut self.state.machines[index];
        let mut pack = Pack {
            host: machine.disk.host,
            session: machine.disk.session,
            bits: machine.bits,
            number: machine.number,
            ..Pack::default()
        };
        let mut slices = [Slice::default(); VOLUMES];
        for (volume, slice) in slices.iter_mut().enumerate() {
            if !has_slice(machine, volume) {
                continue;
            }
            let tail = &machine.disk.tails[volume];
            *slice = Slice {
                epoch: tail.epoch,
                from: tail.stored + 1,
                to: tail.newest,
                pack: 0,
            };
            for lsn in slice.from..=slice.to {
                pack.contents[volume][lsn as usize - 1] = tail.data[lsn as usize - 1];
            }
        }
        let floor = floor(machine, self.rules);
        let (mut below, mut objects) = ([0; VOLUMES], [0; VOLUMES]);
        for volume in 0..VOLUMES {
            if ends(machine, volume) {
                below[volume] = machine.disk.tails[volume].epoch + 1;
            }
            objects[volume] = object(machine, volume).map_or(0, |object| object + 1);
        }
        if slices.iter().any(|slice| slice.epoch != 0) && !self.put_pack(index, pack, &mut slices) {
            return self.stop(index);
        }
        let machine = &mut self.state.machines[index];
        machine.record = Record {
            kind: RecordKind::Commit,
            session: machine.disk.session,
            bits: machine.bits,
            floor,
            slices,
            objects,
            below,
            previous: machine.disk.previous,
        };
        machine.commit = CommitPhase::Packed;
        if !self.rules.has(Rule::FrameBeforeCreate) {
            add_digest(&mut machine.disk.digests, machine.record.digest());
            machine.commit = CommitPhase::Framed;
        }
        Ok(())
    }

    /// Writes the pack of these slices. False: a stranger's bytes have its name.
    fn put_pack(&mut self, index: usize, pack: Pack, slices: &mut [Slice; VOLUMES]) -> bool {
        self.machine(index).number += 1;
        self.requests.puts += 1;
        let (place, created) = self.state.store.create_pack(pack);
        if created == CreateResult::Exists && self.rules.has(Rule::PackIsReadBack) {
            self.get();
            let there = self.state.store.pack(place);
            if there.is_none_or(|there| there.contents != pack.contents) {
                return false;
            }
        }
        for slice in slices.iter_mut().filter(|slice| slice.epoch != 0) {
            slice.pack = place;
        }
        true
    }

    fn write_frame(&mut self, machine: usize) {
        let machine = self.machine(machine);
        let record = machine.record;
        add_digest(&mut machine.disk.digests, record.digest());
        for (volume, tail) in machine.disk.tails.iter_mut().enumerate() {
            let slice = record.slices[volume];
            if slice.epoch != 0 && slice.epoch == tail.epoch {
                tail.durable = tail.durable.max(slice.to);
            }
            tail.ended |= record.below[volume] > tail.epoch;
        }
        machine.commit = CommitPhase::Framed;
    }

    /// Reads what stands at the position of the create.
    fn resolve(&mut self, index: usize) -> Checked<()> {
        self.get();
        let machine = &self.state.machines[index];
        let found = *self
            .state
            .store
            .record(machine.disk.host, machine.disk.next);
        let sent = machine.record;
        let known = machine.disk.digests.contains(&found.digest());
        let machine = self.machine(index);
        if found.is_absent() {
            machine.commit = if sent.is_absent() {
                CommitPhase::Idle
            } else {
                CommitPhase::Framed
            };
            return Ok(());
        }
        if found.kind == RecordKind::Fence {
            return self.meet_fence(index, &found);
        }
        if known {
            machine.record = found;
            machine.commit = CommitPhase::Won;
            return Ok(());
        }
        if !self.rules.has(Rule::DigestsDecide) {
            let machine = self.machine(index);
            machine.record = if sent.is_absent() { found } else { sent };
            machine.commit = CommitPhase::Won;
            return Ok(());
        }
        if self.rules.has(Rule::StrangerStops) {
            return self.stop(index);
        }
        self.pass(index, &found);
        Ok(())
    }

    /// Goes on behind a record that is not ours.
    fn pass(&mut self, machine: usize, record: &Record) {
        let machine = self.machine(machine);
        machine.disk.next += 1;
        machine.disk.previous = record.digest();
        machine.disk.digests = [0; DIGESTS];
        machine.record = Record::default();
        machine.commit = CommitPhase::Idle;
    }

    fn meet_fence(&mut self, index: usize, fence: &Record) -> Checked<()> {
        if !self.follows(index) {
            return self.stop(index);
        }
        self.pass(index, fence);
        for volume in 0..VOLUMES {
            let tail = self.machine(index).disk.tails[volume];
            let below = fence.below[volume];
            let blocks = if self.rules.has(Rule::FenceHasEpoch) {
                below > tail.epoch
            } else {
                below > 0
            };
            if tail.attached && blocks && self.rules.has(Rule::FencedVolumeIsDropped) {
                self.fence(index, volume)?;
            }
        }
        Ok(())
    }

    /// Whether the record before this position is the one that the host knows.
    fn follows(&mut self, index: usize) -> bool {
        let disk = self.machine(index).disk;
        if disk.next == 1 || !self.rules.has(Rule::ChainAfterWin) {
            return true;
        }
        self.get();
        let before = *self.state.store.record(disk.host, disk.next - 1);
        // What is below the low mark says nothing; it may be a fence that a taker put too low.
        let low = self.state.store.low[disk.host as usize];
        low == 0 || low >= disk.next || before.digest() == disk.previous
    }

    fn check_chain(&mut self, index: usize) -> Checked<()> {
        let record = self.machine(index).record;
        if !self.follows(index) {
            return self.stop(index);
        }
        if self.rules.has(Rule::PacksAfterWin) {
            self.get();
            if !self.check_packs(index)? {
                return self.stop(index);
            }
        }
        let machine = self.machine(index);
        machine.commit = CommitPhase::ChainRead;
        let tails = machine.disk.tails;
        let is_new = |(slice, tail): (&Slice, _)| {
            let tail: &super::state::Tail = tail;
            slice.epoch != 0 && slice.epoch == tail.epoch && tail.attached && !tail.verified
        };
        if record.slices.iter().zip(&tails).any(is_new) && self.rules.has(Rule::RootAfterFirst) {
            return Ok(());
        }
        self.note_stored(index)
    }

    /// Packs that went before their record did may be gone again only if the volume is another's.
    fn check_packs(&mut self, index: usize) -> Checked<bool> {
        let machine = &self.state.machines[index];
        let (record, tails) = (machine.record, machine.disk.tails);
        for (volume, tail) in tails.iter().enumerate() {
            let slice = record.slices[volume];
            let ours = slice.epoch == tail.epoch && tail.attached;
            if slice.epoch == 0 || !ours || self.state.store.pack(slice.pack).is_some() {
                continue;
            }
            self.get();
            if self.state.store.roots[volume].epoch <= slice.epoch {
                return Ok(false);
            }
            self.fence(index, volume)?;
        }
        Ok(true)
    }

    /// Reads the roots of volumes of which this is the epoch's first record.
    fn check_roots(&mut self, index: usize) -> Checked<()> {
        let record = self.machine(index).record;
        for volume in 0..VOLUMES {
            let disk = self.machine(index).disk;
            let tail = disk.tails[volume];
            if record.slices[volume].epoch != tail.epoch || !tail.attached || tail.verified {
                continue;
            }
            self.get();
            let root = self.state.store.roots[volume];
            if root.epoch > tail.epoch {
                self.fence(index, volume)?;
            } else if (root.state, root.owner, root.epoch)
                == (RootState::Open, disk.host, tail.epoch)
            {
                self.machine(index).disk.tails[volume].verified = true;
            } else {
                return self.stop(index);
            }
        }
        self.note_stored(index)
    }

    /// The record is effective: says so, and notes it durably.
    fn note_stored(&mut self, index: usize) -> Checked<()> {
        let machine = &mut self.state.machines[index];
        let record = machine.record;
        for volume in 0..VOLUMES {
            let slice = record.slices[volume];
            let tail = &mut machine.disk.tails[volume];
            let activity = &mut machine.activities[volume];
            if record.below[volume] > tail.epoch && activity.phase == Phase::End {
                activity.phase = activity.after;
            }
            if activity.phase == Phase::Name && record.objects[volume] == activity.place + 1 {
                activity.phase = Phase::FoldReady;
            }
            if slice.epoch == 0 || slice.epoch != tail.epoch || !tail.attached {
                continue;
            }
            tail.stored = tail.stored.max(slice.to);
            tail.durable = tail.durable.max(slice.to);
            for lsn in slice.from..=slice.to {
                tail.packs[lsn as usize - 1] = slice.pack + 1;
            }
            let (range, data) = ((slice.from, slice.to.min(tail.newest)), tail.data);
            self.state
                .ghost
                .on_stored(volume, slice.epoch, range, &data)?;
        }
        self.pass(index, &record);
        Ok(())
    }
}

fn add_digest(digests: &mut [u32; DIGESTS], digest: u32) {
    if digests.contains(&digest) {
        return;
    }
    if let Some(place) = digests.iter_mut().find(|place| **place == 0) {
        *place = digest;
    }
}
