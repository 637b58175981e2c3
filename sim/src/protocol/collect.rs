//! Garbage: low marks and the deletion of records below them, and the collector of packs.

use super::rules::Rule;
use super::state::{Collector, State};
use super::step::Step;
use super::store::{HOSTS, POSITIONS, RecordKind, RootState, VOLUMES};

/// Steps of a pass: list, logs, then for each volume its root and the pins beside it.
const STEPS: u8 = 2 + VOLUMES as u8;

/// Up to where a host's records are not needed.
pub(crate) fn low_target(state: &State, host: usize, keeps_marks: bool, keeps_newest: bool) -> u8 {
    let log = &state.store.logs[host];
    let is_commit = |position: &usize| log[*position].kind == RecordKind::Commit;
    let newest = (1..POSITIONS).rev().find(is_commit).unwrap_or(1) as u8;
    let head = (1..POSITIONS)
        .rev()
        .find(|position| !log[*position].is_absent());
    let mut target = if keeps_newest {
        newest
    } else {
        head.map_or(1, |head| head as u8 + 1)
    };
    // A hole, or a record that does not follow the one before it, means that the store was set back:
    // it must not be hidden from the owner.
    let low = state.store.low[host].max(1);
    let follows = |position: &u8| {
        let (before, record) = (&log[*position as usize - 1], &log[*position as usize]);
        let commit = record.kind == RecordKind::Commit;
        !record.is_absent() && (!commit || record.previous == before.digest())
    };
    let broken = (low + 1..=target).find(|position| !follows(position));
    target = broken.map_or(target, |position| target.min(position - 1));
    if !keeps_marks {
        return target;
    }
    for (volume, root) in state.store.roots.iter().enumerate() {
        let named = |position: &u8| log[*position as usize].names(volume);
        let mark = match root.predecessor {
            Some(predecessor) if predecessor.host as usize == host => Some(predecessor.mark),
            _ if root.state == RootState::Open && root.owner as usize == host => Some(root.mark),
            _ => None,
        };
        let needed = mark.and_then(|mark| (mark + 1..POSITIONS as u8).find(named));
        target = target.min(needed.unwrap_or(target));
    }
    target
}

impl Step<'_> {
    pub(crate) fn compute_low(&mut self, host: usize) {
        let marks = self.rules.has(Rule::LowKeepsMarks);
        let newest = self.rules.has(Rule::LowKeepsNewest);
        self.state.low_targets[host] = low_target(self.state, host, marks, newest);
    }

    pub(crate) fn raise_low(&mut self, host: usize) {
        let target = std::mem::take(&mut self.state.low_targets[host]);
        let low = &mut self.state.store.low[host];
        if *low != 0 {
            *low = target.max(*low);
        }
        self.requests.puts += 1;
    }

    /// The lowest record that may be deleted.
    pub(crate) fn deletable(state: &State, host: usize, raised_first: bool) -> Option<usize> {
        let mut low = state.store.low[host];
        if low == 0 {
            low = POSITIONS as u8;
        }
        if !raised_first {
            low = low.max(state.low_targets[host]);
        }
        let log = &state.store.logs[host];
        (1..low as usize).find(|position| !log[*position].is_absent())
    }

    pub(crate) fn delete_record(&mut self, host: usize) {
        let raised = self.rules.has(Rule::LowBeforeDelete);
        if let Some(position) = Step::deletable(self.state, host, raised) {
            self.state.store.logs[host][position] = super::store::Record::default();
        }
    }

    /// One step of a collector's pass.
    pub(crate) fn collect(&mut self) {
        let collector = self.state.collector;
        let logs_first = self.rules.has(Rule::LogsBeforeRoots);
        let roots = 2..2 + VOLUMES as u8;
        match collector.step {
            0 => {
                let packs = self.state.packs();
                self.state.collector = Collector {
                    step: 1,
                    listed: packs,
                    ..Collector::default()
                };
                return;
            }
            1 if logs_first => self.trace_logs(),
            step if logs_first && roots.contains(&step) => self.trace_root(step as usize - 2),
            step if step as usize <= VOLUMES => self.trace_root(step as usize - 1),
            _ => self.trace_logs(),
        }
        self.state.collector.step += 1;
        if self.state.collector.step == STEPS {
            self.decide();
        }
    }

    fn trace_logs(&mut self) {
        let mut sessions = [0; HOSTS];
        let mut floors = [(0, 0, 0); HOSTS];
        for (host, log) in self.state.store.logs.iter().enumerate() {
            for record in log
                .iter()
                .filter(|record| record.kind == RecordKind::Commit)
            {
                sessions[host] = record.session;
                floors[host] = (record.session, record.bits, record.floor);
                for slice in record.slices.iter().filter(|slice| slice.epoch != 0) {
                    self.state.collector.named |= 1 << slice.pack;
                }
                for object in record.objects.iter().filter(|object| **object != 0) {
                    self.state.collector.named |= 1 << (object - 1);
                }
            }
        }
        let protects = self.rules.has(Rule::SessionProtects);
        for (index, pack) in self.state.store.packs.iter().enumerate() {
            let host = pack.host as usize;
            let (session, bits, floor) = floors[host];
            let same = (pack.session, pack.bits) == (session, bits);
            let ended = pack.session < sessions[host]
                || self.state.retired[host]
                || same && pack.number < floor;
            if ended || !protects {
                self.state.collector.ended |= 1 << index;
            }
        }
    }

    /// Reads a root, then the pin below which its child lives.
    fn trace_root(&mut self, volume: usize) {
        let pin = self.state.store.pins[volume];
        let root = self.state.store.roots[volume];
        if root.state != RootState::Absent {
            self.state.collector.named |= root.packs;
        }
        self.state.collector.named |= pin;
    }

    /// What was there when the pass began, is named nowhere and belongs to no session that goes on
    /// is condemned. The product deletes in a later pass, which reads everything again; the model
    /// does without, so that the order of a single trace has to prove itself.
    fn decide(&mut self) {
        let collector = &mut self.state.collector;
        *collector = Collector {
            condemned: collector.listed & !collector.named & collector.ended,
            ..Collector::default()
        };
    }

    pub(crate) fn delete_pack(&mut self) {
        let condemned = &mut self.state.collector.condemned;
        let index = condemned.trailing_zeros();
        *condemned &= *condemned - 1;
        self.state.store.packs[index as usize].deleted = true;
    }

    /// Somebody ends a lost host: a fence for all of its volumes, then its low mark goes.
    pub(crate) fn retire(&mut self, host: usize) {
        self.state.ghost.may_stop = true;
        if self.state.retired[host] {
            self.state.store.low[host] = 0;
            return;
        }
        let log = &self.state.store.logs[host];
        let low = self.state.store.low[host] as usize;
        if let Some(free) = (low..POSITIONS).find(|position| log[*position].is_absent()) {
            self.state.store.logs[host][free] = super::store::Record {
                kind: RecordKind::Fence,
                below: [u8::MAX; VOLUMES],
                ..super::store::Record::default()
            };
            self.state.retired[host] = true;
        }
    }

    /// Whether a root still leans on the host.
    pub(crate) fn is_named(state: &State, host: usize) -> bool {
        state.store.roots.iter().any(|root| {
            let before = root
                .predecessor
                .map(|predecessor| predecessor.host as usize);
            root.owner as usize == host || root.claimant as usize == host || before == Some(host)
        })
    }
}
