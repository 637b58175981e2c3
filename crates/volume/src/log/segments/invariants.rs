//! What holds of the segment table between any two steps. Read only.

use super::{Alloc, Segments, State};
use crate::lock::lock;
use crate::sync::atomic::Ordering;

/// Sectors of one segment that the extents of all tails name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamedSectors {
    pub(crate) dirty: u64,
    pub(crate) clean: u64,
}

impl Segments {
    /// The counters say what the maps name, queues and states agree, and what is or will be free
    /// is neither named nor pinned. `named` has an element for each segment.
    pub(crate) fn invariants(&self, named: &[NamedSectors]) -> Result<(), String> {
        let alloc = lock(&self.alloc);
        alloc.invariants(self.layout.segment_sectors())?;
        for (segment, cell) in self.cells.iter().enumerate() {
            let (state, named) = (alloc.states[segment], named[segment]);
            let dirty = cell.dirty.load(Ordering::Acquire);
            let clean = cell.clean.load(Ordering::Acquire);
            let pins = cell.pins.count();
            let wrong = |what| {
                Err(format!(
                    "segment {segment}, {state:?}: {what}; counted {dirty} dirty and {clean} clean \
                     sectors, {pins} pins; the maps name {} and {}",
                    named.dirty, named.clean
                ))
            };
            // A plan that has log space pins it, and counts it as dirty before a map names it.
            if clean != named.clean || dirty < named.dirty || (pins == 0 && dirty > named.dirty) {
                return wrong("a counter is wrong");
            }
            match state {
                State::Open | State::Sealed => {}
                State::Dying { .. } if dirty + clean == 0 => {}
                _ if dirty + clean == 0 && pins == 0 => {}
                _ => return wrong("it is in use"),
            }
        }
        Ok(())
    }
}

impl Alloc {
    fn invariants(&self, segment_sectors: u64) -> Result<(), String> {
        let is = |segment: u32, state| self.states[segment as usize] == state;
        let count = |state| self.states.iter().filter(|other| **other == state).count();
        let open: Vec<_> = self.open.iter().flatten().collect();
        let agree = self.ready.iter().all(|segment| is(*segment, State::Ready))
            && self
                .sealed
                .iter()
                .all(|segment| is(*segment, State::Sealed))
            && open.iter().all(|open| is(open.segment, State::Open))
            && self.ready.len() == count(State::Ready)
            && self.sealed.len() == count(State::Sealed)
            && open.len() == count(State::Open);
        if !agree || open.iter().any(|open| open.used > segment_sectors) {
            return Err(format!(
                "the queues of segments and their states differ: {self:?}"
            ));
        }
        Ok(())
    }
}
