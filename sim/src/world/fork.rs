//! Worlds that part at a crash: what stands before it is run once, whatever crashes follow.
//!
//! A crash ends the server process, and everything else in a world is plain data. So the fork of a
//! world at the moment of a crash is a copy of all but the process, and goes on exactly as that
//! world would have. It must not be used but for that.

use super::plan::PlannedCrash;
use super::{Attachment, Machine, World};

impl World {
    /// This world, which is a planned one, as if `crash` were taking place right now.
    pub fn fork_at_crash(&self, crash: PlannedCrash) -> World {
        let mut fork = self.without_process();
        fork.crash_as_planned(crash);
        fork
    }

    fn without_process(&self) -> World {
        World {
            profile: self.profile.clone(),
            heap: self.heap.clone(),
            trace: self.trace.clone(),
            latency: self.latency.clone(),
            chance: self.chance.clone(),
            store: self.store.clone(),
            machines: self.machines.iter().map(Machine::copy).collect(),
            attachments: self.attachments.iter().map(Attachment::copy).collect(),
            lines: self.lines.clone(),
            namer: self.namer.clone(),
            points: self.points.copy(),
            process_machines: self.process_machines.clone(),
            callers: self.callers.clone(),
            requests: Default::default(),
            planned: self.planned.clone(),
            set_back: self.set_back.clone(),
            garbage: self.garbage.clone(),
            pins: self.pins.clone(),
            faults: self.faults.clone(),
            ..*self
        }
    }
}
