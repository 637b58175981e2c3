//! Forks of an open volume by any host: parent read, pin put, parent looked at again, child made.

use super::rules::Rule;
use super::state::Phase;
use super::step::Step;
use super::store::{NOBODY, Predecessor, Record, RecordKind, Root, RootState, length};

impl Step<'_> {
    /// Reads the parent's root, and the records of its owner since the mark: a stored prefix.
    pub(crate) fn read_parent(&mut self, index: usize, parent: usize) {
        self.get();
        let root = self.state.store.roots[parent];
        let mut content = self
            .state
            .store
            .root_content(parent, &root)
            .unwrap_or_default();
        let mut packs = root.packs;
        if root.state == RootState::Open && root.owner != NOBODY {
            self.get();
            let low = self.state.store.low[root.owner as usize];
            let log = self.state.store.logs[root.owner as usize];
            let from = (root.mark + 1).max(low) as usize;
            let is_there = |record: &&Record| !record.is_absent();
            for record in log[from..].iter().take_while(is_there) {
                let slice = record.slices[parent];
                if record.kind == RecordKind::Fence && record.below[parent] > root.epoch {
                    break;
                }
                let known = length(&content);
                let next = slice.epoch == root.epoch && slice.from == known + 1;
                if let (true, Some(pack)) = (next, self.state.store.pack(slice.pack)) {
                    let range = known as usize..slice.to as usize;
                    content[range.clone()].copy_from_slice(&pack.contents[parent][range]);
                    packs |= 1 << slice.pack;
                }
            }
        }
        let pins = self.rules.has(Rule::PinBeforeChild) && self.rules.has(Rule::RootsNamePacks);
        let activity = &mut self.machine(index).activities[parent];
        activity.update = root;
        activity.content = content;
        activity.packs = packs;
        activity.phase = if pins {
            Phase::ForkPin
        } else {
            Phase::ForkRoot
        };
    }

    pub(crate) fn put_pin(&mut self, index: usize, parent: usize, child: usize) {
        self.requests.puts += 1;
        let packs = self.machine(index).activities[parent].packs;
        self.state.store.pins[child] = packs;
        let looks = self.rules.has(Rule::LookAfterPin);
        self.machine(index).activities[parent].phase = if looks {
            Phase::ForkLook
        } else {
            Phase::ForkRoot
        };
    }

    /// The pin was in time only if the parent's root did not move since it was read.
    pub(crate) fn look_after_pin(&mut self, index: usize, parent: usize) {
        self.get();
        let root = self.state.store.roots[parent];
        let activity = &mut self.machine(index).activities[parent];
        activity.phase = if activity.update == root {
            Phase::ForkRoot
        } else {
            Phase::ForkRead
        };
    }

    pub(crate) fn make_child(&mut self, index: usize, parent: usize, child: usize) {
        self.requests.puts += 1;
        let owns = self.machine(index).disk.tails[parent].attached;
        let activity = &mut self.machine(index).activities[parent];
        // Whoever owns the parent here goes on.
        activity.phase = if owns { Phase::Live } else { Phase::Idle };
        let activity = *activity;
        if self.state.store.roots[child].state != RootState::Absent {
            return;
        }
        let read = activity.update;
        let mut root = Root {
            state: RootState::Closed,
            epoch: 1,
            lsn: length(&activity.content),
            fork_lsn: length(&activity.content),
            void: read.void,
            packs: activity.packs,
            origin: parent as u8,
            ..Root::ABSENT
        };
        if !self.rules.has(Rule::RootsNamePacks) && read.owner != NOBODY {
            // The parent's root as it was, with the log that it leans on.
            root.lsn = read.lsn;
            root.fork_lsn = read.lsn;
            root.packs = read.packs;
            root.predecessor = Some(Predecessor {
                host: read.owner,
                epoch: read.epoch,
                mark: read.mark,
            });
        }
        self.state.store.roots[child] = root;
        let line = &mut self.state.ghost.lines[child];
        line.stored = activity.content;
        line.epoch = 1;
    }
}
